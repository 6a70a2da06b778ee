//! The log lines of the layer. Tested in a process of its own: the decision to log a line is
//! remembered for all threads, so other tests beside it would influence it.
#![allow(missing_docs, clippy::unwrap_used, reason = "tests panic")]

use std::convert::Infallible;
use std::io::Write;
use std::sync::{Arc, Mutex};

use http::{Request, Response, StatusCode};
use sluicegate::{Limit, Limiter, MemoryStore};
use sluicegate_tower::{LimitRequest, RateLimitLayer};
use tower::{Layer, ServiceExt, service_fn};
use tracing_subscriber::fmt::MakeWriter;

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

#[tokio::test]
async fn lines_say_what_was_answered_and_not_to_whom() {
    let log = Log::default();
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .with_writer(log.clone())
        .init();

    let limiter = Limiter::new(MemoryStore::new());
    let layer = RateLimitLayer::new(limiter, |parts| {
        let said = |name: &str| parts.headers.get(name).ok_or(StatusCode::BAD_REQUEST);
        let tokens = said("x-tokens")?.to_str()?.parse().map_err(|_| StatusCode::BAD_REQUEST)?;
        let wanted = LimitRequest::new(said("x-user")?.to_str()?, "api").consume("tpd", tokens);
        let wanted = wanted.limits([Limit::per_day("tpd", 5)]);
        Ok(Some(match said("x-project") {
            Ok(project) => wanted.cascade_to(project.to_str()?),
            Err(_) => wanted,
        }))
    });
    let service = layer.layer(service_fn(|_: Request<()>| async {
        Ok::<_, Infallible>(Response::new(String::new()))
    }));
    let mut statuses = Vec::new();
    for headers in [
        vec![("x-user", "secret"), ("x-tokens", "5")],
        vec![("x-user", "secret"), ("x-tokens", "1")],
        vec![("x-user", "secret"), ("x-tokens", "6")],
        vec![("x-user", "secret#"), ("x-tokens", "1")],
        vec![("x-user", "secret"), ("x-tokens", "1"), ("x-project", "secret")],
        vec![("x-user", "secret")],
    ] {
        let request = headers.into_iter().fold(Request::get("/"), |it, (k, v)| it.header(k, v));
        let response = service.clone().oneshot(request.body(()).unwrap()).await.unwrap();
        statuses.push(response.status().as_u16());
    }
    assert_eq!(statuses, [200, 429, 400, 400, 400, 400]);

    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let lines: Vec<&str> = log
        .lines()
        .filter_map(|line| line.split_once("sluicegate_tower::").map(|(_, line)| line))
        .collect();
    let expected = [
        r#"refusal: refused status=429 resource="api" violated=["tpd"]"#,
        r#"refusal: refused status=400 resource="api" violated=["tpd"]"#,
        r#"refusal: refused status=400 resource="api" violated=[]"#,
        r#"refusal: refused status=400 resource="api" violated=[]"#,
    ];
    assert_eq!(lines, expected);
    // The span of an acquire names the entity, in its stable field.
    let mut named = log.lines().filter(|line| line.contains("secret"));
    assert!(named.all(|line| line.contains("acquire{entity=secret ")), "{log}");
}
