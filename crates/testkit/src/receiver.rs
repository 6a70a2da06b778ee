//! A receiver of webhooks on loopback that fails at random.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use fastrand::Rng;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// The behaviour of a receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mood {
    /// It accepts everything.
    Fine,
    /// It accepts a third, refuses a third, and says of a third that it failed although it has it.
    Moody(u64),
    /// It refuses everything.
    Down,
}

/// A webhook that a receiver has.
#[derive(Debug, Clone)]
pub struct Received {
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Value,
    /// True if it was answered with success.
    pub is_accepted: bool,
}

/// A running receiver. Dropping it closes its port.
pub struct Receiver {
    url: String,
    shared: Arc<Shared>,
    _server: JoinSet<()>,
}

struct Shared {
    mood: Mood,
    rng: Mutex<Rng>,
    received: Mutex<Vec<Received>>,
}

impl Receiver {
    /// Starts one on a free port.
    pub async fn start(mood: Mood) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}/alerts", listener.local_addr().expect("an address"));
        let seed = if let Mood::Moody(seed) = mood { seed } else { 0 };
        let rng = Mutex::new(Rng::with_seed(seed));
        let shared = Arc::new(Shared { mood, rng, received: Mutex::default() });
        let app = Router::new().route("/alerts", post(receive)).with_state(Arc::clone(&shared));
        let mut server = JoinSet::new();
        server.spawn(async move { axum::serve(listener, app).await.expect("a running server") });
        Self { url, shared, _server: server }
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Everything that it has, in order.
    #[must_use]
    pub fn received(&self) -> Vec<Received> {
        self.shared.received.lock().expect("no panic").clone()
    }
}

async fn receive(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: String,
) -> StatusCode {
    let mood = match shared.mood {
        Mood::Fine => 0,
        Mood::Moody(_) => shared.rng.lock().expect("no panic").u8(..3),
        Mood::Down => 1,
    };
    if mood != 1 {
        let body = serde_json::from_str(&body).expect("JSON");
        let received = Received { headers, body, is_accepted: mood == 0 };
        shared.received.lock().expect("no panic").push(received);
    }
    if mood == 0 { StatusCode::ACCEPTED } else { StatusCode::SERVICE_UNAVAILABLE }
}
