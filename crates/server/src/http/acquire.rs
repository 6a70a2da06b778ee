//! `POST /v1/acquire`.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body as ResponseBody;
use axum::extract::State;
use axum::response::Response;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use sluicegate::types::{Amounts, EpochMillis, Millitokens};
use sluicegate::{
    AcquireError, AcquireRequest, EntityId, Limit, LimitStatus, Limiter, Permit, Resource,
};
use sluicegate_core::rfc3339_s;
use utoipa::ToSchema;

use super::amount::{self, Number, TokenCounts, Written, number, priced};
use super::body::JsonBytes;
use super::problem::Problem;
use crate::config::ANSWER_MS;
use crate::permit_id::Granted;
use crate::state::ServerState;

/// The key of a correction that is made once.
pub(super) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Tokens of several limits, to be taken at once or not at all.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "entity": "user-123", "resource": "gpt-4", "amounts": {"rpm": 1, "tpm": 500},
    "limits": ["rpm=100/min", "tpm=100000/min,burst=200000"],
}))]
pub(super) struct AcquireBody<'a> {
    /// The party that is limited: a user, a key.
    #[serde(borrow)]
    entity: Cow<'a, str>,
    /// The thing that is limited: a model, an API.
    #[serde(borrow)]
    resource: Cow<'a, str>,
    /// The amount of each limit, in tokens; of a limit that is named after a currency, in its unit.
    #[serde(borrow, default)]
    #[schema(value_type = std::collections::BTreeMap<String, f64>)]
    amounts: Written<'a>,
    /// The most tokens that the request may have, of a model that has a price.
    usage: Option<TokenCounts>,
    /// The model whose prices count, here and for corrections. Absent: the resource.
    #[serde(borrow)]
    #[schema(value_type = Option<String>)]
    model: Option<Cow<'a, str>>,
    /// The limits, like `rpm=100/min` or `usd=200/month`. Absent: the server's, and those that are
    /// stored under other names.
    #[serde(default)]
    limits: Vec<String>,
    /// Take from the bucket of this parent, too. Absent: as the entity's record says.
    parent: Option<String>,
    /// Take from no parent, whatever the entity's record says.
    #[serde(default)]
    no_cascade: bool,
    /// The limits of the parent, if they are not stored. Absent: `limits`.
    #[serde(default)]
    parent_limits: Vec<String>,
    /// The time to wait for tokens, in milliseconds. It ends with the server's time for a request.
    #[serde(default)]
    wait_ms: u32,
}

/// Granted tokens.
#[derive(Serialize, ToSchema)]
pub(super) struct AcquireAnswer<'a> {
    /// The id by which the tokens are corrected or released.
    permit: String,
    /// The time until which that is possible, RFC 3339.
    expires_at: String,
    /// The limits after the grant, as far as they are known.
    limits: Vec<Balance<'a>>,
    /// True if the store did not decide: it was unavailable. Then nothing can be corrected.
    degraded: bool,
}

/// Most answers are no longer than this: then the body is allocated once.
const ANSWER_BYTES: usize = 768;

impl AcquireAnswer<'_> {
    fn into_response(self, mut headers: HeaderMap) -> Response {
        let mut body = Vec::with_capacity(ANSWER_BYTES);
        // Names and numbers: no value of it can fail.
        let _ = serde_json::to_writer(&mut body, &self);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let mut response = Response::new(ResponseBody::from(body));
        *response.headers_mut() = headers;
        response
    }
}

/// The balance of one limit.
#[derive(Serialize, ToSchema)]
pub(super) struct Balance<'a> {
    /// The entity: the parent's for a limit of the parent.
    entity: &'a str,
    limit: &'a str,
    /// Tokens that are left; negative while there is a debt.
    #[schema(value_type = f64)]
    available: Number,
    /// Tokens of a full bucket.
    #[schema(value_type = f64)]
    burst: Number,
    /// Of a refusal: the tokens that the request asks for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>)]
    asked: Option<Number>,
}

/// The part of a refusal beside the members of a problem (RFC 9457).
#[derive(Serialize, ToSchema)]
pub(super) struct RefusedLimits<'a> {
    /// Every limit of the request, with what it asks for and what there is.
    limits: Vec<Balance<'a>>,
    /// The time after which every limit has enough, unless others take tokens meanwhile. Absent:
    /// waiting does not help.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
}

impl<'a> RefusedLimits<'a> {
    /// `None`: no limit is the reason of the error.
    fn of(error: &'a AcquireError) -> Option<Self> {
        let (limits, retry_after) = match error {
            AcquireError::LimitExceeded(exceeded) => (&exceeded.limits, exceeded.retry_after),
            AcquireError::NeverAdmissible(never) => (&never.limits, None),
            _ => return None,
        };
        let refused = |status: &'a LimitStatus| Balance {
            asked: Some(number(status.limit.as_str(), status.asked.get())),
            ..Balance::from(status)
        };
        let retry_after_ms =
            retry_after.map(|after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX));
        Some(Self { limits: limits.iter().map(refused).collect(), retry_after_ms })
    }

    /// Adds these members to a problem, which is a JSON object.
    fn added_to(&self, mut problem: String) -> String {
        if let (true, Ok(members)) = (problem.ends_with('}'), serde_json::to_string(self)) {
            problem.pop();
            problem.push(',');
            problem.push_str(members.trim_start_matches('{'));
        }
        problem
    }
}

impl<'a> From<&'a LimitStatus> for Balance<'a> {
    fn from(status: &'a LimitStatus) -> Self {
        let LimitStatus { entity, limit, rule, available, .. } = status;
        let available = number(limit.as_str(), available.get());
        let burst = number(limit.as_str(), rule.burst().get());
        Self { entity: entity.as_str(), limit: limit.as_str(), available, burst, asked: None }
    }
}

/// Take tokens of several limits, all or none.
///
/// A request that is sent again takes again: an `Idempotency-Key` is answered with 400.
#[utoipa::path(
    post, path = "/v1/acquire", tag = "acquire", request_body = AcquireBody,
    responses(
        (status = 200, description = "Granted", body = AcquireAnswer,
            headers(("RateLimit" = String), ("RateLimit-Policy" = String))),
        (status = 400, description = "Bad input, or more than a full bucket holds", content_type = "application/problem+json"),
        (status = 429, description = "A limit is short; Retry-After says when it is not. Beside these members, the body has those of RFC 9457 and the names of the short limits in violated-policies", body = inline(RefusedLimits), content_type = "application/problem+json"),
        (status = 503, description = "The store is unavailable or contended. The tokens may have been taken", content_type = "application/problem+json"),
    )
)]
pub(super) async fn acquire(
    State(state): State<Arc<ServerState>>,
    headers: HeaderMap,
    body: JsonBytes,
) -> Result<Response, Problem> {
    if headers.contains_key(IDEMPOTENCY_KEY) {
        return Err(Problem::bad(
            "an acquire that is sent again takes again: send an Idempotency-Key with corrections only",
        ));
    }
    let mut body: AcquireBody<'_> = body.parse()?;
    let asked_at = state.limiter.clock().now();
    body.model.as_deref().map(Resource::new).transpose().map_err(Problem::bad)?;
    let mut amounts = amount::read(&body.amounts)?;
    if let Some(usage) = body.usage.take() {
        let model = body.model.as_ref().unwrap_or(&body.resource);
        let mut priced = priced(&state, model, &usage.into(), asked_at)?;
        priced.extend(amounts);
        amounts = priced;
    }
    if !amounts.is_empty() && amounts.values().all(|amount| *amount == Millitokens::ZERO) {
        // A model may be free, and the limiter grants no request for nothing.
        EntityId::new(&body.entity).map_err(Problem::bad)?;
        Resource::new(&body.resource).map_err(Problem::bad)?;
        body.parent.as_deref().map(EntityId::new).transpose().map_err(Problem::bad)?;
        drop(body.request(&state, &amounts)?);
        let answer = body.granted(&state, None, &[], amounts, [asked_at; 2]);
        return Ok(answer.into_response(HeaderMap::new()));
    }
    let _waiting = match body.wait_ms {
        0 => None,
        _ => Some(state.waiting_slots.try_acquire().map_err(|_| {
            let detail = "as many requests wait as may wait: ask again later";
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
        })?),
    };
    let result = body.request(&state, &amounts)?.await;
    let now = state.limiter.clock().now();
    match result {
        Ok(permit) => {
            let remaining = permit.remaining();
            let headers = sluicegate_tower::headers_of_grant(&remaining, &body.entity, now);
            let answer = body.granted(&state, Some(&permit), &remaining, amounts, [asked_at, now]);
            Ok(answer.into_response(headers))
        }
        // Limits come from clients, too.
        Err(AcquireError::InvalidRequest(invalid)) => Err(Problem::bad(invalid)),
        Err(error) => {
            let refusal = sluicegate_tower::refusal(&error, &body.entity, &body.resource, now);
            let refused = RefusedLimits::of(&error);
            Ok(refusal.map(|problem| match refused {
                Some(refused) => refused.added_to(problem).into(),
                None => problem.into(),
            }))
        }
    }
}

impl AcquireBody<'_> {
    fn request<'s>(
        &self,
        state: &'s ServerState,
        amounts: &Amounts,
    ) -> Result<AcquireRequest<&'s Limiter>, Problem> {
        let mut request = state.limiter.acquire(&*self.entity, &*self.resource);
        request = request.limits(parsed(&self.limits)?).consume_all(amounts);
        if !self.parent_limits.is_empty() {
            request = request.parent_limits(parsed(&self.parent_limits)?);
        }
        request = match (&self.parent, self.no_cascade) {
            (None, false) => request,
            (None, true) => request.no_cascade(),
            (Some(parent), false) => request.cascade_to(parent),
            (Some(_), true) => return Err(Problem::bad("give parent or no_cascade, not both")),
        };
        if self.wait_ms > 0 {
            // The answer must be made before the server gives the request up.
            let most = state.bounds.request_ms.saturating_sub(ANSWER_MS);
            let wait = Duration::from_millis(most.min(self.wait_ms.into()));
            request = request.wait_up_to(wait);
        }
        Ok(request)
    }

    fn granted<'r>(
        self,
        state: &ServerState,
        permit: Option<&Permit>,
        remaining: &'r [LimitStatus],
        amounts: Amounts,
        [asked_at, now]: [EpochMillis; 2],
    ) -> AcquireAnswer<'r> {
        let ids = &state.reloadable().ids;
        let degraded = permit.is_some_and(|permit| permit.degraded().is_some());
        let must_look_up_parent = permit.is_none() && self.parent.is_none() && !self.no_cascade;
        let charged = permit.and_then(|permit| permit.buckets().nth(1));
        // A parent that has none of the limits yet is not charged, but it may be in a correction.
        let parent = charged.map(|bucket| bucket.entity.to_string()).or(self.parent);
        let granted = Granted {
            name: state.permit_name(),
            entity: self.entity,
            resource: self.resource,
            model: self.model,
            parent,
            must_look_up_parent,
            taken: if degraded { Amounts::new() } else { amounts },
            corrections: Vec::new(),
            limits: self.limits,
            parent_limits: self.parent_limits,
            asked_s: asked_at.get() / 1_000,
            expires_s: ids.expiry_s(now),
        };
        AcquireAnswer {
            permit: ids.sign(&granted),
            expires_at: rfc3339_s(granted.expires_s),
            limits: remaining.iter().map(Balance::from).collect(),
            degraded,
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
