//! Corrections of permits by their ids: `POST /v1/permits/{id}/adjust` and `/release`.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use http::{HeaderMap, HeaderName};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use sluicegate::types::EpochMillis;
use utoipa::ToSchema;

use super::acquire::parsed;
use super::amount::{self, Written};
use super::body::Body;
use super::problem::Problem;
use super::time::rfc3339;
use crate::live::Live;
use crate::permit_id::Granted;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// The longest `Idempotency-Key`, in bytes.
const KEY_BYTES_MAX: usize = 255;
/// A server whose clock is behind still takes an id when another one no longer does.
const CLOCKS_DIFFER_MS: i64 = 300_000;

/// A correction of what a permit took.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[schema(example = json!({"to": {"tpm": 1240}}))]
pub(super) enum AdjustBody {
    /// The amounts that were used in the end. Limits that are not named stay as they are.
    #[schema(value_type = BTreeMap<String, f64>)]
    To(Written),
    /// The amounts that were used in addition; negative ones are given back.
    #[schema(value_type = BTreeMap<String, f64>)]
    By(Written),
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
    /// Limits that the bucket no longer has: nothing was corrected there.
    dropped: Vec<String>,
}

/// Correct what a permit took.
///
/// A correction is never refused, and a balance may go below zero. With an `Idempotency-Key`, all
/// requests with the same key on the same permit make one correction. Without it, each makes another.
#[utoipa::path(
    post, path = "/v1/permits/{id}/adjust", tag = "acquire", request_body = AdjustBody,
    params(("id" = String, Path, description = "The id of the permit, from the newest answer"),
        ("Idempotency-Key" = Option<String>, Header, description = "1 to 255 bytes")),
    responses(
        (status = 200, description = "Corrected", body = AdjustAnswer),
        (status = 400, description = "Bad input", content_type = "application/problem+json"),
        (status = 404, description = "The id is not one that this server made", content_type = "application/problem+json"),
        (status = 410, description = "The permit is too old", content_type = "application/problem+json"),
        (status = 503, description = "The store is unavailable or contended", content_type = "application/problem+json"),
    )
)]
pub(super) async fn adjust(
    State(live): State<Arc<Live>>,
    Path(id): Path<String>,
    headers: HeaderMap,
    Body(body): Body<AdjustBody>,
) -> Result<Json<AdjustAnswer>, Problem> {
    let now = live.limiter.clock().now();
    let granted = live.now().ids.check(&id, now)?;
    let by = match &body {
        AdjustBody::By(amounts) => amount::read(amounts)?,
        AdjustBody::To(amounts) => {
            let mut by = amount::read(amounts)?;
            for (limit, milli) in &mut by {
                *milli = milli.saturating_sub(granted.taken.get(limit).copied().unwrap_or(0));
            }
            by
        }
    };
    let once = idempotency_key(&headers)?.map(|key| {
        // Hashed, because a key may have any characters.
        let hash: String =
            Sha256::digest(key)[..12].iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{}.{hash}", granted.nonce)
    });
    correct(&live, granted, by, once).await
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
    State(live): State<Arc<Live>>,
    Path(id): Path<String>,
) -> Result<Json<AdjustAnswer>, Problem> {
    let now = live.limiter.clock().now();
    let granted = live.now().ids.check(&id, now)?;
    let by = granted
        .taken
        .iter()
        .map(|(limit, milli)| (limit.clone(), milli.saturating_neg()))
        .collect();
    let once = granted.nonce.clone();
    correct(&live, granted, by, Some(once)).await
}

/// Corrects the buckets of a permit; with a key `once`, at most one time.
async fn correct(
    live: &Live,
    mut granted: Granted,
    mut by: BTreeMap<String, i64>,
    once: Option<String>,
) -> Result<Json<AdjustAnswer>, Problem> {
    by.retain(|_, milli| *milli != 0);
    let mut answer = AdjustAnswer {
        permit: String::new(),
        expires_at: rfc3339(granted.expires_s),
        changed: false,
        dropped: Vec::new(),
    };
    if !granted.taken.is_empty() && !by.is_empty() {
        let Granted { entity, resource, .. } = &granted;
        let mut request = live.limiter.adjust(entity, resource).limits(parsed(&granted.limits)?);
        request = match &granted.parent {
            Some(parent) => request.cascade_to(parent),
            None => request.no_cascade(),
        };
        for (limit, milli) in &by {
            request = request.by_milli(limit, *milli);
        }
        if let Some(key) = once {
            let until_ms = granted.expires_s.saturating_mul(1_000).saturating_add(CLOCKS_DIFFER_MS);
            request = request.once(key, EpochMillis::new(until_ms).map_err(Problem::bad)?);
        }
        let adjusted = request.await?;
        answer.changed = !adjusted.already_made;
        answer.dropped = adjusted.dropped.iter().map(ToString::to_string).collect();
        for (limit, milli) in by {
            let taken = granted.taken.entry(limit).or_default();
            *taken = taken.saturating_add(milli);
        }
    }
    answer.permit = live.now().ids.sign(&granted);
    Ok(Json(answer))
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<&[u8]>, Problem> {
    let Some(key) = headers.get(IDEMPOTENCY_KEY) else { return Ok(None) };
    let key = key.as_bytes();
    if key.is_empty() || key.len() > KEY_BYTES_MAX {
        return Err(Problem::bad(format!("Idempotency-Key: give 1 to {KEY_BYTES_MAX} bytes")));
    }
    Ok(Some(key))
}
