//! The HTTP API.

mod acquire;
mod amount;
mod body;
mod budget;
mod entities;
mod health;
mod limits;
mod permits;
mod problem;
mod time;
mod usage;

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitServiceServer, SERVICE_NAME,
};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::config::Role;
use crate::envoy::Service;
use crate::live::Live;
use crate::metrics::{Seen, rendered};
use problem::Problem;

/// The longest text of a refusal by the framework.
const REFUSAL_BYTES_MAX: usize = 4_096;

#[derive(OpenApi)]
#[openapi(info(
    title = "Sluicegate",
    description = "Rate limits and budgets: acquire tokens of several limits at once, correct them when the actual use is known."
))]
struct Document;

/// The routes of the API, with the document that describes them.
fn api(live: &Arc<Live>) -> (Router<Arc<Live>>, utoipa::openapi::OpenApi) {
    let envoy = RateLimitServiceServer::new(Service { live: Arc::clone(live) })
        .max_decoding_message_size(live.bounds.body_bytes);
    let open =
        OpenApiRouter::new().routes(routes!(health::healthz)).routes(routes!(health::readyz));
    let acquire = OpenApiRouter::new()
        .routes(routes!(acquire::acquire))
        .routes(routes!(permits::adjust))
        .routes(routes!(permits::release))
        .route_service(&format!("/{SERVICE_NAME}/{{*method}}"), envoy);
    let read = OpenApiRouter::new()
        .routes(routes!(entities::show))
        .routes(routes!(limits::show))
        .routes(routes!(usage::usage))
        .routes(routes!(budget::budget))
        .routes(routes!(metrics));
    let operate = OpenApiRouter::new()
        .routes(routes!(entities::put, entities::delete))
        .routes(routes!(limits::put, limits::delete));
    let for_role = |routes: OpenApiRouter<Arc<Live>>, role: Role| {
        routes.route_layer(from_fn_with_state((Arc::clone(live), role), authorize))
    };
    OpenApiRouter::with_openapi(Document::openapi())
        .merge(open)
        .merge(for_role(acquire, Role::Acquire))
        .merge(for_role(read, Role::Read))
        .merge(for_role(operate, Role::Operate))
        .split_for_parts()
}

/// Metrics for Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "health", responses((status = 200, description = "All metrics", content_type = "text/plain")))]
async fn metrics() -> String {
    rendered()
}

/// Everything that the server answers.
pub(crate) fn router(live: &Arc<Live>) -> Router {
    let (api, document) = api(live);
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
        .layer(from_fn_with_state(Arc::clone(live), bounded))
        .layer(DefaultBodyLimit::max(live.bounds.body_bytes))
        .with_state(Arc::clone(live))
}

/// Lets a request pass if its caller has the role.
async fn authorize(
    State((live, role)): State<(Arc<Live>, Role)>,
    request: Request,
    next: Next,
) -> Response {
    if let Err(denied) = live.now().callers.authorize(request.headers(), role) {
        return Problem::from(denied).answer_to(is_grpc(&request));
    }
    next.run(request).await
}

fn is_grpc(request: &Request) -> bool {
    let kind = request.headers().get(CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// Gives a request a place and a time. Without a place it is answered at once, not queued.
async fn bounded(State(live): State<Arc<Live>>, request: Request, next: Next) -> Response {
    let (begin, seen) = (Instant::now(), Seen::of(&request));
    let is_grpc = is_grpc(&request);
    let overloaded =
        |detail: &str| Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail).answer_to(is_grpc);
    let time = Duration::from_millis(live.bounds.request_ms);
    let response = match live.places.try_acquire() {
        Ok(_place) => match tokio::time::timeout(time, next.run(request)).await {
            Ok(response) => as_problem(response).await,
            Err(_) => overloaded("the request took longer than the server allows"),
        },
        Err(_) => overloaded("the server has as many requests as it may have: ask again later"),
    };
    seen.answered(&response, begin.elapsed(), live.now().access_log);
    response
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
