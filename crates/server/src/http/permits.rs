//! Corrections of permits by their ids: `POST /v1/permits/{id}/adjust` and `/release`.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::{Extension, Json};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};
use sluicegate::error::InvalidRequest;
use sluicegate::request::AdjustRequest;
use sluicegate::types::{Amounts, EpochMillis, LimitName, Millitokens};
use sluicegate::{AdjustError, EntityId};
use sluicegate_core::rfc3339_s;
use sluicegate_prices::Usage;
use utoipa::ToSchema;

use super::acquire::{IDEMPOTENCY_KEY, parsed};
use super::amount::{self, TokenCounts, Written, priced};
use super::body::JsonBytes;
use super::problem::Problem;
use crate::permit_id::Granted;
use crate::state::{ServerState, Slot};

/// The longest `Idempotency-Key`, in bytes.
const KEY_BYTES_MAX: usize = 255;
/// A server whose clock is behind still takes an id when another one no longer does.
const CLOCKS_DIFFER_MS: i64 = 300_000;

/// A correction of what a permit took.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[schema(example = json!({"to": {"tpm": 1240}}))]
pub(super) enum AdjustBody<'a> {
    /// The amounts that were used in the end. Limits that are not named stay as they are.
    #[schema(value_type = std::collections::BTreeMap<String, f64>)]
    To(#[serde(borrow)] Written<'a>),
    /// The amounts that were used in addition; negative ones are given back, at most what the
    /// permit took.
    #[schema(value_type = std::collections::BTreeMap<String, f64>)]
    By(#[serde(borrow)] Written<'a>),
    /// The tokens that were used in the end, of a model that has a price.
    Usage(TokenCounts),
    /// The response of OpenAI, Anthropic or Amazon Bedrock, or the part of it with `usage`.
    #[schema(value_type = serde_json::Value)]
    Response(&'a RawValue),
}

impl AdjustBody<'_> {
    fn amounts(&self, state: &ServerState, granted: &Granted<'_>) -> Result<Amounts, Problem> {
        let priced = |usage: &Usage| {
            let asked_at = EpochMillis::new(granted.asked_s.saturating_mul(1_000));
            let model = granted.model.as_ref().unwrap_or(&granted.resource);
            priced(state, model, usage, asked_at.map_err(Problem::bad)?)
        };
        match self {
            Self::By(amounts) => amount::read(amounts),
            Self::To(amounts) => {
                let amounts = amount::read(amounts)?;
                match amounts.iter().find(|(_, amount)| **amount < Millitokens::ZERO) {
                    Some((limit, _)) => Err(Problem::bad(format!(
                        "the amount of {:?} is negative: `to` names what was used, `by` gives back",
                        limit.as_str()
                    ))),
                    None => Ok(amounts),
                }
            }
            Self::Usage(usage) => priced(&(*usage).into()),
            Self::Response(response) => {
                let usage = Usage::from_response(response.get().as_bytes());
                let usage = usage.map_err(Problem::bad)?;
                let usage = usage.ok_or_else(|| Problem::bad("the response has no usage"))?;
                priced(&usage)
            }
        }
    }
}

/// The result of a correction.
#[derive(Serialize, ToSchema)]
pub(super) struct AdjustAnswer {
    /// The id of the permit with its new amounts, for the next correction or the release.
    permit: String,
    /// The time until which that is possible, RFC 3339.
    expires_at: String,
    /// False: an earlier request made this correction, or the permit took nothing.
    changed: bool,
    /// Limits that a bucket does not have: nothing was corrected there.
    dropped: Vec<String>,
    /// True if another correction was made under the key.
    #[serde(skip)]
    key_was_reused: bool,
}

/// Correct what a permit took.
///
/// No limit refuses a correction, and a balance may go below zero. With an `Idempotency-Key`, all
/// requests with the same key and body on the same permit make one correction. Without it, each
/// makes another. A key that came with another body before is answered with 422.
#[utoipa::path(
    post, path = "/v1/permits/{id}/adjust", tag = "acquire", request_body = AdjustBody,
    params(("id" = String, Path, description = "The id of the permit, from the newest answer"),
        ("Idempotency-Key" = Option<String>, Header, description = "1 to 255 bytes")),
    responses(
        (status = 200, description = "Corrected", body = AdjustAnswer),
        (status = 400, description = "Bad input", content_type = "application/problem+json"),
        (status = 404, description = "The id is not one that this server made", content_type = "application/problem+json"),
        (status = 410, description = "The permit is too old", content_type = "application/problem+json"),
        (status = 422, description = "Another body was sent with this Idempotency-Key before", content_type = "application/problem+json"),
        (status = 503, description = "The store is unavailable or contended. Without Retry-After, the correction may have been made: do not repeat it", content_type = "application/problem+json"),
    )
)]
pub(super) async fn adjust(
    State(state): State<Arc<ServerState>>,
    Extension(slot): Extension<Slot>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: JsonBytes,
) -> Result<Json<AdjustAnswer>, Problem> {
    // Of the whole body: the amounts that it stands for may change with prices and stored limits.
    let fingerprint = hash(body.bytes());
    let body: AdjustBody<'_> =
        body.parse_as("exactly one of `to`, `by`, `usage` and `response`")?;
    let now = state.limiter.clock().now();
    let granted = state.reloadable().ids.check(&id, now)?;
    let amounts = body.amounts(&state, &granted)?;
    // Hashed, because a key may have any characters.
    let once = idempotency_key(&headers)?
        .map(|key| Once { key: format!("{}.{}", granted.name, hash(key)), fingerprint });
    let is_in_id =
        once.as_ref().is_some_and(|once| granted.corrections.contains(&once.short_hash()));
    let by = match body {
        // The id already contains this correction.
        _ if is_in_id => Amounts::new(),
        AdjustBody::By(_) => {
            refuse_too_much(&amounts, &granted.taken)?;
            amounts
        }
        _ => difference(amounts, &granted.taken),
    };
    let answer = slot.finish(async move { correct(&state, granted, by, once).await }).await??;
    if answer.key_was_reused {
        return Err(Problem::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "another body was sent with this Idempotency-Key before: that correction stays, and this one changed nothing; send a new key",
        ));
    }
    Ok(answer)
}

/// Refuses to give back more than a permit took: the rest would be tokens of others. A permit that
/// took nothing, because the store did not decide, has nothing to correct.
fn refuse_too_much(by: &Amounts, taken: &Amounts) -> Result<(), Problem> {
    let mut left = taken.clone();
    left += by;
    let is_too_much = |(limit, left): &(&LimitName, &Millitokens)| {
        **left < Millitokens::ZERO && by.of(limit) < Millitokens::ZERO
    };
    match left.iter().find(is_too_much) {
        Some((limit, _)) if !taken.is_empty() => Err(Problem::bad(format!(
            "`by` gives back more of {:?} than the permit took",
            limit.as_str()
        ))),
        _ => Ok(()),
    }
}

/// The amounts that are missing to reach `to`. Limits that it does not name stay as they are.
fn difference(mut to: Amounts, taken: &Amounts) -> Amounts {
    let taken = to.keys().map(|limit| (limit.clone(), taken.of(limit))).collect();
    to -= &taken;
    to
}

/// Give everything back that a permit took. It happens once, however often it is asked for.
#[utoipa::path(
    post, path = "/v1/permits/{id}/release", tag = "acquire",
    params(("id" = String, Path, description = "The id of the permit, from the newest answer")),
    responses(
        (status = 200, description = "Given back", body = AdjustAnswer),
        (status = 404, description = "The id is not one that this server made", content_type = "application/problem+json"),
        (status = 410, description = "The permit is too old", content_type = "application/problem+json"),
        (status = 503, description = "The store is unavailable or contended", content_type = "application/problem+json"),
    )
)]
pub(super) async fn release(
    State(state): State<Arc<ServerState>>,
    Extension(slot): Extension<Slot>,
    Path(id): Path<String>,
) -> Result<Json<AdjustAnswer>, Problem> {
    let now = state.limiter.clock().now();
    let granted = state.reloadable().ids.check(&id, now)?;
    // However much the permit has taken by now, it is released once.
    let once = Once { key: granted.name.clone(), fingerprint: "release".to_owned() };
    let by = -&granted.taken;
    slot.finish(async move { correct(&state, granted, by, Some(once)).await }).await?
}

/// The key of a correction that is made once, and its fingerprint.
#[derive(Clone)]
struct Once {
    key: String,
    fingerprint: String,
}

impl Once {
    /// Stands for this correction in the ids that contain it.
    fn short_hash(&self) -> String {
        let mut hash = hash(format!("{}.{}", self.key, self.fingerprint).as_bytes());
        hash.truncate(8);
        hash
    }
}

fn hash(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(&Sha256::digest(bytes)[..12])
}

/// Corrects the buckets of a permit; with `once`, at most one time.
async fn correct(
    state: &ServerState,
    mut granted: Granted<'_>,
    mut by: Amounts,
    once: Option<Once>,
) -> Result<Json<AdjustAnswer>, Problem> {
    by.retain(|_, amount| *amount != Millitokens::ZERO);
    let mut answer = AdjustAnswer {
        permit: String::new(),
        expires_at: rfc3339_s(granted.expires_s),
        changed: false,
        dropped: Vec::new(),
        key_was_reused: false,
    };
    let mut has_repeated = false;
    while !granted.taken.is_empty() && !by.is_empty() {
        let adjusted = match request(state, &granted, &by, once.clone())?.await {
            Ok(adjusted) => adjusted,
            // The limit was deleted since.
            Err(AdjustError::InvalidRequest(InvalidRequest::UnknownLimit(limit)))
                if by.remove(&limit).is_some() =>
            {
                answer.dropped.push(limit.to_string());
                continue;
            }
            Err(error @ AdjustError::Partial { .. }) if once.is_none() => {
                return Err(Problem::left_open(&error));
            }
            Err(error) if once.is_none() && error.may_have_been_made() => {
                return Err(Problem::left_open(&error));
            }
            Err(error) => return Err(error.into()),
        };
        if adjusted.key_was_reused {
            answer.key_was_reused = true;
            break;
        }
        let added = if adjusted.already_made {
            AddedLimits { missing: adjusted.dropped_of, must_repeat: false }
        } else {
            let in_empty = match (&once, has_repeated) {
                (None, _) => InEmptyBucket::Count,
                (Some(_), false) => InEmptyBucket::Add,
                (Some(_), true) => InEmptyBucket::Leave,
            };
            add_missing_limits(state, &granted, &by, &adjusted.dropped_of, in_empty).await
        };
        by.retain(|limit, _| !added.is_counted_nowhere(limit, &granted));
        answer.dropped.extend(added.missing.iter().map(|(_, limit)| limit.to_string()));
        if added.must_repeat {
            has_repeated = true;
            continue;
        }
        granted.taken += &by;
        answer.changed = !adjusted.already_made && !by.is_empty();
        break;
    }
    answer.dropped.sort_unstable();
    answer.dropped.dedup();
    if let Some(once) = once {
        granted.note_correction(once.short_hash());
    }
    answer.permit = state.reloadable().ids.sign(&granted);
    Ok(Json(answer))
}

/// The result of adding limits that buckets did not have.
struct AddedLimits {
    /// The limits that could not be added, with the entities of the buckets.
    missing: Vec<(EntityId, LimitName)>,
    /// True if a bucket got limits and no amounts. The same correction, sent again, counts them.
    must_repeat: bool,
}

impl AddedLimits {
    /// True if neither the child's nor the parent's bucket counted the limit.
    fn is_counted_nowhere(&self, limit: &LimitName, granted: &Granted<'_>) -> bool {
        let mut missing = self.missing.iter().filter(|(_, of)| of == limit);
        match granted.parent {
            Some(_) => missing.count() > 1,
            None => missing.any(|(entity, _)| entity.as_str() == granted.entity),
        }
    }
}

/// The treatment of a limit that is missing in a bucket in which the correction changed nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
enum InEmptyBucket {
    /// The correction has no key: its amount is counted at once.
    Count,
    /// The correction has a key, and left no mark in the bucket: the limit is only added. The
    /// repeated correction counts its amount.
    Add,
    /// The correction was repeated already: the limit is left out.
    Leave,
}

/// Adds limits to the buckets, the child's and the parent's, that do not have them, and counts
/// their amounts.
async fn add_missing_limits(
    state: &ServerState,
    granted: &Granted<'_>,
    by: &Amounts,
    missing: &[(EntityId, LimitName)],
    in_empty: InEmptyBucket,
) -> AddedLimits {
    let mut added = AddedLimits { missing: Vec::new(), must_repeat: false };
    for (entity, limit) in missing {
        let is_missing = |limit| missing.contains(&(entity.clone(), LimitName::clone(limit)));
        let is_empty = by.keys().all(is_missing);
        let only_adds = is_empty && in_empty == InEmptyBucket::Add;
        let may_add =
            by.of(limit) > Millitokens::ZERO && !(is_empty && in_empty == InEmptyBucket::Leave);
        let amount = if only_adds { Millitokens::ZERO } else { by.of(limit) };
        if may_add && count_new_limit(state, granted, entity, limit, amount).await {
            added.must_repeat |= only_adds;
        } else {
            added.missing.push((entity.clone(), limit.clone()));
        }
    }
    added
}

/// Adds a limit to the bucket of this entity and counts the amount. False if that failed.
async fn count_new_limit(
    state: &ServerState,
    granted: &Granted<'_>,
    entity: &EntityId,
    limit: &LimitName,
    amount: Millitokens,
) -> bool {
    let is_child = entity.as_str() == granted.entity || granted.parent_limits.is_empty();
    let limits = parsed(if is_child { &granted.limits } else { &granted.parent_limits });
    let Ok(limits) = limits else { return false };
    let counted = state.count_new_limit(entity, &granted.resource, limits, limit, amount).await;
    counted.inspect_err(|error| tracing::warn!(%error, "a new limit was not counted")).is_ok()
}

fn request<'a>(
    state: &'a ServerState,
    granted: &Granted<'_>,
    by: &Amounts,
    once: Option<Once>,
) -> Result<AdjustRequest<'a>, Problem> {
    let Granted { entity, resource, .. } = granted;
    let mut request = state.limiter.adjust(&**entity, &**resource).by_all(by);
    request = request.limits(parsed(&granted.limits)?);
    if !granted.parent_limits.is_empty() {
        request = request.parent_limits(parsed(&granted.parent_limits)?);
    }
    request = match &granted.parent {
        Some(parent) => request.cascade_to(parent),
        None if granted.must_look_up_parent => request,
        None => request.no_cascade(),
    };
    if let Some(Once { key, fingerprint }) = once {
        request = request.fingerprint(fingerprint);
        let until_ms = granted.expires_s.saturating_mul(1_000).saturating_add(CLOCKS_DIFFER_MS);
        request = request.once(key, EpochMillis::new(until_ms).map_err(Problem::bad)?);
    }
    Ok(request)
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<&[u8]>, Problem> {
    let Some(key) = headers.get(IDEMPOTENCY_KEY) else { return Ok(None) };
    let key = key.as_bytes();
    if key.is_empty() || key.len() > KEY_BYTES_MAX {
        return Err(Problem::bad(format!("Idempotency-Key: give 1 to {KEY_BYTES_MAX} bytes")));
    }
    Ok(Some(key))
}
