//! The entity behind an API key: `/check?api_key=...`.

use std::collections::HashMap;

use axum::extract::Query;
use axum::http::StatusCode;
use axum::http::request::Parts;
use sha2::{Digest as _, Sha256};
use sluicegate_tower::Rejection;

/// A key is a secret and an entity is not, so the table and the log get 128 bits of the key's hash.
pub(crate) fn entity(parts: &Parts) -> Result<String, Rejection> {
    let query = Query::<HashMap<String, String>>::try_from_uri(&parts.uri);
    let Query(query) = query.map_err(|_| StatusCode::BAD_REQUEST)?;
    let no_key = || Rejection::new(StatusCode::BAD_REQUEST, "name your key: /check?api_key=...");
    let key = query.get("api_key").filter(|key| !key.is_empty()).ok_or_else(no_key)?;
    let first = |sum: u128, byte: &u8| sum << 8 | u128::from(*byte);
    Ok(format!("key-{:032x}", Sha256::digest(key).iter().take(16).fold(0, first)))
}
