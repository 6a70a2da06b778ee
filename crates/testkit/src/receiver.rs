//! A receiver of alerts on loopback that fails at random: a webhook, SNS and EventBridge.

mod call;

use std::sync::{Arc, Mutex};

use aws_config::{BehaviorVersion, SdkConfig};
use aws_sdk_dynamodb::config::{Credentials, SharedCredentialsProvider};
use axum::Router;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::post;
use fastrand::Rng;
use serde_json::Value;
use sluicegate_local::client::https_client;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use self::call::{Answer, Call};

/// The behaviour of a receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mood {
    /// It accepts everything.
    Fine,
    /// It accepts a third, refuses a third, and says of a third that it failed although it has it.
    Moody(u64),
    /// It says of everything that it failed, although it has it.
    Down,
    /// It never answers.
    Silent,
}

/// An alert that a receiver has.
#[derive(Debug, Clone)]
pub struct Received {
    /// The headers of the request.
    pub headers: HeaderMap,
    /// The parameters of a call of SNS or EventBridge; `null` for a webhook.
    pub parameters: Value,
    /// The event.
    pub body: Value,
    /// True if it was answered with success.
    pub is_accepted: bool,
}

/// A running receiver. Dropping it closes its port.
pub struct Receiver {
    url: String,
    endpoint_url: String,
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
        let endpoint_url = format!("http://{}", listener.local_addr().expect("an address"));
        let url = format!("{endpoint_url}/alerts");
        let seed = if let Mood::Moody(seed) = mood { seed } else { 0 };
        let rng = Mutex::new(Rng::with_seed(seed));
        let shared = Arc::new(Shared { mood, rng, received: Mutex::default() });
        let app = Router::new().route("/alerts", post(receive)).route("/", post(receive));
        let app = app.with_state(Arc::clone(&shared));
        let mut server = JoinSet::new();
        server.spawn(async move { axum::serve(listener, app).await.expect("a running server") });
        Self { url, endpoint_url, shared, _server: server }
    }

    /// The URL of its webhook.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The endpoint of its SNS and its EventBridge.
    #[must_use]
    pub fn endpoint_url(&self) -> &str {
        &self.endpoint_url
    }

    /// A configuration with which clients of SNS and EventBridge call it.
    #[must_use]
    pub fn sdk_config(&self) -> SdkConfig {
        let credentials = Credentials::new("test", "test", None, None, "test");
        SdkConfig::builder()
            .behavior_version(BehaviorVersion::latest())
            .http_client(https_client())
            .credentials_provider(SharedCredentialsProvider::new(credentials))
            .endpoint_url(&self.endpoint_url)
            .build()
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
    request: String,
) -> Response {
    let call = Call::read(&headers, &request);
    let answer = match shared.mood {
        Mood::Fine => Answer::Accepted,
        Mood::Moody(_) => match shared.rng.lock().expect("no panic").u8(..3) {
            0 => Answer::Accepted,
            1 => Answer::Refused,
            _ => Answer::Lost,
        },
        Mood::Down | Mood::Silent => Answer::Lost,
    };
    if answer != Answer::Refused {
        let body = serde_json::from_str(call.event()).expect("JSON");
        let parameters = call.parameters.clone();
        let is_accepted = answer == Answer::Accepted;
        let received = Received { headers, parameters, body, is_accepted };
        shared.received.lock().expect("no panic").push(received);
    }
    if shared.mood == Mood::Silent {
        std::future::pending::<()>().await;
    }
    call.response(answer)
}
