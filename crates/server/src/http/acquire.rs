//! `POST /v1/acquire`.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sluicegate::request::Remaining;
use sluicegate::{AcquireError, Limit};
use utoipa::ToSchema;

use super::amount::{self, Written, number};
use super::body::Body;
use super::problem::Problem;
use super::time::rfc3339;
use crate::live::Live;
use crate::permit_id::{Granted, nonce};

/// Tokens of several limits, to be taken at once or not at all.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "entity": "user-123", "resource": "gpt-4", "amounts": {"rpm": 1, "tpm": 500},
    "limits": ["rpm=100/min", "tpm=100000/min,burst=200000"],
}))]
pub(super) struct AcquireBody {
    /// The party that is limited: a user, a key.
    entity: String,
    /// The thing that is limited: a model, an API.
    resource: String,
    /// The amount of each limit, in tokens; of a limit that is named after a currency, in its unit.
    #[schema(value_type = std::collections::BTreeMap<String, f64>)]
    amounts: Written,
    /// The limits, like `rpm=100/min` or `usd=200/month`. Absent: those that are stored, or else the
    /// server's.
    #[serde(default)]
    limits: Vec<String>,
    /// True: take from the parent's bucket, too. False: do not. Absent: as the entity's record says.
    /// With a name: from the bucket of this parent.
    #[serde(default)]
    #[schema(value_type = Option<bool>)]
    cascade: Option<Cascade>,
    /// The limits of the parent, if they are not stored.
    #[serde(default)]
    parent_limits: Vec<String>,
    /// The time to wait for tokens, in milliseconds. It ends with the server's time for a request.
    #[serde(default)]
    wait_ms: u32,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Cascade {
    /// Only `false` says more than the absent field.
    Stored(bool),
    To(String),
}

/// Granted tokens.
#[derive(Serialize, ToSchema)]
pub(super) struct AcquireAnswer {
    /// The id by which the tokens are corrected or released.
    permit: String,
    /// The time until which that is possible, RFC 3339.
    expires_at: String,
    /// The limits after the grant. Empty if the store did not decide.
    limits: Vec<Balance>,
    /// True if the store did not decide: it was unavailable. Then nothing can be corrected.
    degraded: bool,
    /// True if the server only watches, and would have refused. Then nothing was taken.
    shadowed: bool,
}

/// The balance of one limit.
#[derive(Serialize, ToSchema)]
pub(super) struct Balance {
    /// The entity: the parent's for a limit of the parent.
    entity: String,
    limit: String,
    /// Tokens that are left; negative while there is a debt.
    #[schema(value_type = f64)]
    available: Box<RawValue>,
    /// Tokens of a full bucket.
    #[schema(value_type = f64)]
    burst: Box<RawValue>,
}

impl From<&Remaining> for Balance {
    fn from(remaining: &Remaining) -> Self {
        let Remaining { entity, limit, rule, available, .. } = remaining;
        let available = number(limit.as_str(), available.get());
        let burst = number(limit.as_str(), rule.burst().get());
        Self { entity: entity.to_string(), limit: limit.to_string(), available, burst }
    }
}

/// Take tokens of several limits, all or none.
#[utoipa::path(
    post, path = "/v1/acquire", tag = "acquire", request_body = AcquireBody,
    responses(
        (status = 200, description = "Granted", body = AcquireAnswer,
            headers(("RateLimit" = String), ("RateLimit-Policy" = String))),
        (status = 400, description = "Bad input, or more than a full bucket holds", content_type = "application/problem+json"),
        (status = 429, description = "A limit is short; Retry-After says when it is not", content_type = "application/problem+json"),
        (status = 503, description = "The store is unavailable or contended", content_type = "application/problem+json"),
    )
)]
pub(super) async fn acquire(
    State(live): State<Arc<Live>>,
    Body(body): Body<AcquireBody>,
) -> Result<Response, Problem> {
    let AcquireBody { entity, resource, amounts, limits, cascade, parent_limits, wait_ms } = body;
    let amounts = amount::read(&amounts)?;
    let mut request = live.limiter.acquire(&entity, &resource).limits(parsed(&limits)?);
    for (limit, milli) in &amounts {
        request = request.consume_milli(limit, *milli);
    }
    if !parent_limits.is_empty() {
        request = request.parent_limits(parsed(&parent_limits)?);
    }
    request = match cascade {
        None | Some(Cascade::Stored(true)) => request,
        Some(Cascade::Stored(false)) => request.no_cascade(),
        Some(Cascade::To(parent)) => request.cascade_to(parent),
    };
    if wait_ms > 0 {
        // The answer must be made before the server gives the request up.
        let most = live.bounds.request_ms.saturating_sub(500).min(wait_ms.into());
        request = request.wait_up_to(Duration::from_millis(most));
    }
    let result = request.await;
    let now = live.limiter.clock().now();
    match result {
        Ok(permit) => {
            let remaining = permit.remaining();
            let replaceable = live.now();
            let expires_s = replaceable.ids.expiry_s(now);
            let (degraded, shadowed) = (permit.degraded().is_some(), permit.shadowed().is_some());
            let parent = permit.buckets().nth(1).map(|bucket| bucket.entity.to_string());
            let headers = if shadowed {
                http::HeaderMap::new()
            } else {
                sluicegate_tower::headers_of_grant(&remaining, &entity, now)
            };
            let taken = if degraded || shadowed { [].into() } else { amounts };
            let granted =
                Granted { nonce: nonce(), entity, resource, parent, taken, limits, expires_s };
            let answer = AcquireAnswer {
                permit: replaceable.ids.sign(&granted),
                expires_at: rfc3339(expires_s),
                limits: remaining.iter().map(Balance::from).collect(),
                degraded,
                shadowed,
            };
            Ok((headers, Json(answer)).into_response())
        }
        // Limits come from clients, too.
        Err(AcquireError::InvalidRequest(invalid)) => Err(Problem::bad(invalid)),
        Err(error) => {
            let refusal = sluicegate_tower::refusal(&error, &entity, &resource, now);
            Ok(refusal.map(axum::body::Body::from))
        }
    }
}

/// Limits that a request brought.
///
/// # Errors
/// 400 for a text that is no limit.
pub(super) fn parsed(limits: &[String]) -> Result<Vec<Limit>, Problem> {
    limits.iter().map(|limit| limit.parse().map_err(Problem::bad)).collect()
}
