//! Stored limits: `/v1/limits`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Query, State};
use serde::{Deserialize, Serialize};
use sluicegate::types::{LimitName, LimitsScope, StoredLimits};
use sluicegate::{EntityId, Limit, Resource};
use utoipa::{IntoParams, ToSchema};

use super::acquire::parsed;
use super::body::Body;
use super::problem::Problem;
use crate::state::ServerState;

/// The requests that stored limits apply to: those of an entity on a resource, of an entity, of a
/// resource, or all.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Level {
    /// Absent: every entity.
    entity: Option<String>,
    /// Absent: every resource.
    resource: Option<String>,
    /// To delete: the names of limits, separated by commas.
    limits: Option<String>,
}

impl Level {
    fn scope(&self) -> Result<LimitsScope, Problem> {
        let entity = self.entity.as_deref().map(EntityId::new).transpose().map_err(Problem::bad)?;
        let resource =
            self.resource.as_deref().map(Resource::new).transpose().map_err(Problem::bad)?;
        Ok(LimitsScope::of(entity, resource))
    }
}

/// Limits, like `rpm=100/min` or `usd=200/month@15,tz=Europe/Berlin`.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Limits {
    limits: Vec<String>,
}

impl Limits {
    fn of(stored: Option<StoredLimits>) -> Json<Self> {
        let rules = stored.map(|stored| stored.rules).unwrap_or_default();
        let limits =
            rules.iter().map(|(name, rule)| Limit::from_rule(name, *rule).to_string()).collect();
        Json(Self { limits })
    }
}

/// The limits that are stored for an entity, a resource, both or everyone.
#[utoipa::path(
    get, path = "/v1/limits", operation_id = "show_limits", tag = "read", params(Level), responses((status = 200, description = "The limits", body = Limits))
)]
pub(super) async fn show(
    State(state): State<Arc<ServerState>>,
    Query(level): Query<Level>,
) -> Result<Json<Limits>, Problem> {
    Ok(Limits::of(state.limiter.stored_limits(&level.scope()?).await?))
}

/// Store limits. Other limits of the same level stay. All servers follow within a minute.
#[utoipa::path(
    put, path = "/v1/limits", operation_id = "put_limits", tag = "operate", params(Level), request_body = Limits,
    responses((status = 200, description = "All limits of the level", body = Limits))
)]
pub(super) async fn put(
    State(state): State<Arc<ServerState>>,
    Query(level): Query<Level>,
    Body(Limits { limits }): Body<Limits>,
) -> Result<Json<Limits>, Problem> {
    let stored = state.limiter.set_limits(&level.scope()?, &parsed(&limits)?).await?;
    Ok(Limits::of(Some(stored)))
}

/// Delete stored limits by name.
#[utoipa::path(
    delete, path = "/v1/limits", operation_id = "delete_limits", tag = "operate", params(Level),
    responses((status = 200, description = "The limits that are left", body = Limits))
)]
pub(super) async fn delete(
    State(state): State<Arc<ServerState>>,
    Query(level): Query<Level>,
) -> Result<Json<Limits>, Problem> {
    let names = level.limits.as_deref().unwrap_or_default();
    if names.is_empty() {
        return Err(Problem::bad("name the limits to delete: ?limits=rpm,tpm"));
    }
    let names: Result<Vec<_>, _> = names.split(',').map(LimitName::new).collect();
    let names = names.map_err(Problem::bad)?;
    Ok(Limits::of(state.limiter.delete_limits(&level.scope()?, &names).await?))
}
