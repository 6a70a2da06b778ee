//! The HTTP API.

mod acquire;
mod amount;
mod body;
mod budget;
mod document;
mod entities;
mod health;
mod limits;
mod permits;
mod problem;
mod usage;

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::Route;
use axum::routing::future::RouteFuture;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitServiceServer, SERVICE_NAME,
};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, poll};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use tower::Service;
use tower::layer::layer_fn;
use tracing::Instrument as _;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::config::Role;
use crate::envoy;
use crate::metrics::{Seen, Status, rendered};
use crate::state::{ServerState, Slot};
use crate::traces;
use problem::Problem;

/// The bytes that a message of Envoy may always have: it admits 60 KiB of headers, several descriptors
/// may have the same one, and a request whose message is refused is not limited.
const MESSAGE_BYTES_MIN: usize = 1_024 * 1_024;
/// The longest text of a refusal by the framework.
const REFUSAL_BYTES_MAX: usize = 4_096;

/// The routes of the API, with the document that describes them.
fn api(state: &Arc<ServerState>) -> (Router<Arc<ServerState>>, utoipa::openapi::OpenApi) {
    let envoy = RateLimitServiceServer::new(envoy::Service { state: Arc::clone(state) })
        .max_decoding_message_size(state.bounds.body_bytes.max(MESSAGE_BYTES_MIN));
    let acquire = OpenApiRouter::new()
        .routes(routes!(acquire::acquire))
        .routes(routes!(permits::adjust))
        .routes(routes!(permits::release))
        .route_service(&format!("/{SERVICE_NAME}/{{*method}}"), envoy);
    let read = OpenApiRouter::new()
        .routes(routes!(entities::show))
        .routes(routes!(limits::show))
        .routes(routes!(usage::usage))
        .routes(routes!(budget::budget));
    let operate = OpenApiRouter::new()
        .routes(routes!(entities::put, entities::delete))
        .routes(routes!(limits::put, limits::delete));
    let guarded = |mut routes: OpenApiRouter<Arc<ServerState>>, role: Role| {
        document::need_token(routes.get_openapi_mut(), role);
        document::may_be_refused(routes.get_openapi_mut(), role);
        let state = Arc::clone(state);
        routes.route_layer(layer_fn(move |route| Guard { state: Arc::clone(&state), role, route }))
    };
    // An overloaded server is still healthy, and its metrics are needed most.
    let mut of_health = OpenApiRouter::new().routes(routes!(metrics));
    document::need_token(of_health.get_openapi_mut(), Role::Read);
    let of_health = of_health
        .route_layer(from_fn_with_state((Arc::clone(state), Role::Read), authorize))
        .routes(routes!(health::healthz))
        .routes(routes!(health::readyz));
    OpenApiRouter::with_openapi(document::empty())
        .merge(guarded(acquire, Role::Acquire))
        .merge(guarded(read, Role::Read))
        .merge(guarded(operate, Role::Operate))
        .merge(of_health)
        .split_for_parts()
}

/// Metrics for Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "health", responses((status = 200, description = "All metrics", content_type = "text/plain")))]
async fn metrics() -> String {
    rendered()
}

/// Everything that the server answers.
pub(crate) fn router(state: &Arc<ServerState>) -> Router {
    let (api, document) = api(state);
    let document = axum::body::Bytes::from(document.to_json().unwrap_or_default());
    let json = [(CONTENT_TYPE, "application/json")];
    api.route("/openapi.json", axum::routing::get(move || async move { (json, document) }))
        .fallback(|| async {
            Problem::new(StatusCode::NOT_FOUND, "there is no such path: /openapi.json lists them")
        })
        .method_not_allowed_fallback(|| async {
            Problem::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "the path has no such method: /openapi.json lists them",
            )
        })
        .with_state(Arc::clone(state))
}

/// Lets a request pass if its caller has the role.
async fn authorize(
    State((state, role)): State<(Arc<ServerState>, Role)>,
    request: Request,
    next: Next,
) -> Response {
    match state.reloadable().callers.authorize(&request, role) {
        Ok(_) => next.run(request).await,
        Err(denied) => Problem::from(denied).into_response(),
    }
}

/// Lets a request pass if its caller has the role, and gives it a place and a time. Without a place
/// it is answered at once, not queued. (A middleware that is a function costs each request more.)
#[derive(Clone)]
struct Guard {
    state: Arc<ServerState>,
    role: Role,
    route: Route,
}

impl Service<Request> for Guard {
    type Response = Response;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let (seen, is_grpc) = (Seen::of(&request), is_grpc(&request));
        let reloadable = self.state.reloadable();
        let mut count = CountOnDrop {
            state: Arc::clone(&self.state),
            log_caller: None,
            seen,
            begin: Instant::now(),
            status: Status::LEFT,
        };
        let caller = reloadable.callers.authorize(&request, self.role);
        // Without a token, anybody could have spans sent to the collector.
        let headers = caller.is_ok().then(|| request.headers());
        let span = traces::span(count.seen.method(), count.seen.path(), headers);
        if reloadable.access_log {
            count.log_caller = Some(caller.unwrap_or_default().to_owned());
        }
        let answer = caller.map_err(Problem::from).and_then(|_| self.begin(request));
        let time = Duration::from_millis(self.state.bounds.request_ms);
        let guarded = async move {
            let response = match answer {
                Ok((_slot, answer)) => in_time(answer, time).instrument(span.clone()).await,
                Err(problem) => Err(problem),
            };
            let response = match response {
                Ok(response) => as_problem(response).await,
                Err(problem) => problem.answer_to(is_grpc),
            };
            traces::record(&span, &response);
            count.end(Status::of(&response));
            Ok(response)
        };
        guarded.boxed()
    }
}

impl Guard {
    /// # Errors
    /// 503 without a place.
    fn begin(&mut self, mut request: Request) -> Result<(Slot, RouteFuture<Infallible>), Problem> {
        let slot = Slot::of(&self.state).ok_or_else(|| {
            overloaded("the server has as many requests as it may have: ask again later")
        })?;
        request.extensions_mut().insert(slot.clone());
        Ok((slot, self.route.call(request)))
    }
}

/// # Errors
/// 503 if the time is over.
async fn in_time(answer: RouteFuture<Infallible>, time: Duration) -> Result<Response, Problem> {
    let mut answer = pin!(answer);
    // Most answers are there at once: those cost no timer.
    if let Poll::Ready(Ok(response)) = poll!(answer.as_mut()) {
        return Ok(response);
    }
    let Ok(Ok(response)) = tokio::time::timeout(time, answer).await else {
        let late = "the request took longer than the server allows: it may be carried out later";
        return Err(overloaded(late).not_to_be_repeated());
    };
    Ok(response)
}

fn overloaded(detail: &str) -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
}

/// Counts a request and writes its line to the access log, also if its client leaves.
struct CountOnDrop {
    state: Arc<ServerState>,
    /// The caller's name for the access log. `None`: there is no log.
    log_caller: Option<String>,
    seen: Seen,
    begin: Instant,
    status: Status,
}

impl CountOnDrop {
    fn end(mut self, status: Status) {
        self.status = status;
    }
}

impl Drop for CountOnDrop {
    fn drop(&mut self) {
        let took = self.begin.elapsed();
        if let Some(caller) = &self.log_caller {
            self.seen.log(caller, self.status, took);
        }
        self.seen.count(&self.state.request_metrics, self.status, took);
    }
}

fn is_grpc(request: &Request) -> bool {
    let kind = request.headers().get(CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// A refusal of the framework is a text; its callers get a problem, as of every other refusal.
async fn as_problem(response: Response) -> Response {
    let kind = response.headers().get(CONTENT_TYPE);
    let is_text = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/plain"));
    if !is_text || response.status().is_success() {
        return response;
    }
    let status = response.status();
    let text = axum::body::to_bytes(response.into_body(), REFUSAL_BYTES_MAX).await;
    let text = text.unwrap_or_default();
    Problem::new(status, String::from_utf8_lossy(&text)).into_response()
}
