//! Entities: their balances, and their stored parents.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use futures_util::TryStreamExt as _;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use sluicegate::types::EntityRecord;
use sluicegate::{EntityId, Limit, LimitStatus, Resource};
use utoipa::ToSchema;

use super::amount::{Number, number};
use super::body::Body;
use super::problem::Problem;
use crate::state::ServerState;

/// Buckets that are read at a time.
const READS_AT_ONCE: usize = 16;

/// An entity with its balances.
#[derive(Serialize, ToSchema)]
pub(super) struct Entity {
    entity: String,
    /// Absent: none is stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<String>,
    /// True: every acquire takes from the parent's bucket, too.
    cascade: bool,
    buckets: Vec<BucketBalances>,
}

/// The balances of one entity and one resource.
#[derive(Serialize, ToSchema)]
struct BucketBalances {
    resource: String,
    limits: Vec<BucketBalance>,
}

/// The balance of one limit.
#[derive(Serialize, ToSchema)]
struct BucketBalance {
    limit: String,
    /// The limit with its rule, like `rpm=100/min`.
    rule: String,
    /// Tokens that are left, as of now; negative while there is a debt.
    #[schema(value_type = f64)]
    available: Number,
}

impl From<&LimitStatus> for BucketBalance {
    fn from(status: &LimitStatus) -> Self {
        let name = &status.limit;
        Self {
            limit: name.to_string(),
            rule: Limit::from_rule(name, status.rule).to_string(),
            available: number(name.as_str(), status.available.get()),
        }
    }
}

/// The balances of an entity on all resources, and its stored parent.
#[utoipa::path(
    get, path = "/v1/entities/{entity}", operation_id = "show_entity", tag = "read",
    params(("entity" = String, Path)),
    responses(
        (status = 200, description = "The entity", body = Entity),
        (status = 501, description = "Only DynamoDB lists buckets", content_type = "application/problem+json"),
    )
)]
pub(super) async fn show(
    State(state): State<Arc<ServerState>>,
    Path(entity): Path<String>,
) -> Result<Json<Entity>, Problem> {
    let entity = EntityId::new(&entity).map_err(Problem::bad)?;
    let (record, reader) = (state.limiter.entity(&entity).await?, state.limiter.reader()?);
    let balances = async |resource: Resource| {
        // With stored limits that changed since.
        let limits = state.limiter.peek(entity.as_str(), resource.as_str());
        let limits = limits.without_default_limits().no_cascade().await?;
        let limits = limits.iter().map(BucketBalance::from).collect();
        Ok(BucketBalances { resource: resource.to_string(), limits })
    };
    let found = reader.buckets_of_entity(&entity).map_err(Problem::from);
    let buckets = found.map_ok(|bucket| balances(bucket.resource));
    let buckets = buckets.try_buffered(READS_AT_ONCE).try_collect().await?;
    let (parent, cascade) = record.map_or((None, false), |record| (record.parent, record.cascade));
    let parent = parent.map(|parent| parent.to_string());
    Ok(Json(Entity { entity: entity.to_string(), parent, cascade, buckets }))
}

/// The parent of an entity.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ParentBody {
    /// Absent: the entity has none.
    parent: Option<String>,
    /// True: every acquire takes from the parent's bucket, too.
    #[serde(default)]
    cascade: bool,
}

/// Store the parent of an entity.
///
/// Other servers and programs follow within a minute. Nothing is taken from the parent of a parent.
#[utoipa::path(
    put, path = "/v1/entities/{entity}", operation_id = "put_entity", tag = "operate",
    params(("entity" = String, Path)), request_body = ParentBody,
    responses((status = 204, description = "Stored"))
)]
pub(super) async fn put(
    State(state): State<Arc<ServerState>>,
    Path(entity): Path<String>,
    Body(ParentBody { parent, cascade }): Body<ParentBody>,
) -> Result<StatusCode, Problem> {
    let entity = EntityId::new(&entity).map_err(Problem::bad)?;
    let parent = parent.map(EntityId::new).transpose().map_err(Problem::bad)?;
    if cascade && parent.is_none() {
        return Err(Problem::bad("an entity cascades to a parent: name it, or leave cascade out"));
    }
    state.limiter.put_entity(&EntityRecord { entity, parent, cascade }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Delete the stored parent of an entity. Its balances, limits and usage stay.
#[utoipa::path(
    delete, path = "/v1/entities/{entity}", operation_id = "delete_entity", tag = "operate",
    params(("entity" = String, Path)),
    responses((status = 204, description = "Deleted, or there was none"))
)]
pub(super) async fn delete(
    State(state): State<Arc<ServerState>>,
    Path(entity): Path<String>,
) -> Result<StatusCode, Problem> {
    let entity = EntityId::new(&entity).map_err(Problem::bad)?;
    state.limiter.delete_entity(&entity).await?;
    Ok(StatusCode::NO_CONTENT)
}
