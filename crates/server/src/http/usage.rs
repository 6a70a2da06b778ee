//! `GET /v1/usage`: usage windows.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Query, State};
use futures_util::stream::{BoxStream, StreamExt as _};
use futures_util::{TryStreamExt as _, future};
use serde::{Deserialize, Serialize};
use sluicegate::dynamo::ReadError;
use sluicegate::types::{LimitName, UsageWindow, WindowKind, WindowSpan};
use sluicegate::{EntityId, Resource};
use sluicegate_core::{TimePoint, rfc3339_s};
use utoipa::{IntoParams, ToSchema};

use super::amount::{Number, number};
use super::problem::Problem;
use crate::state::ServerState;

/// The most windows in one answer.
const WINDOWS_MAX: usize = 10_000;

/// The windows that are requested.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct UsageQuery {
    /// The entity; without it, all entities on a resource.
    entity: Option<String>,
    /// The resource; without it, all resources of an entity.
    resource: Option<String>,
    /// `minute`, `hour`, `day`, `week`, `month`, `year`, or a calendar like
    /// `month@15/Europe/Berlin`.
    #[serde(default = "hour")]
    window: String,
    /// Windows that begin at this time or later: RFC 3339, a day like `2026-01-28`, or `-24h`,
    /// `-7d`. Absent: 60 minutes, 24 hours, 30 days, or 12 weeks, months or years before `to`.
    from: Option<String>,
    /// Windows that begin before this time. Absent: now.
    to: Option<String>,
}

fn hour() -> String {
    "hour".to_owned()
}

/// Usage windows, at most 10,000.
#[derive(Serialize, ToSchema)]
pub(super) struct Usage {
    windows: Vec<UsageRow>,
    /// True: there are more; ask for a shorter time.
    truncated: bool,
}

/// The consumption in one window.
#[derive(Serialize, ToSchema)]
struct UsageRow {
    entity: String,
    resource: String,
    /// RFC 3339.
    start: String,
    /// Tokens, or money, by limit.
    #[schema(value_type = BTreeMap<String, f64>)]
    consumed: BTreeMap<String, Number>,
}

impl From<UsageWindow> for UsageRow {
    fn from(window: UsageWindow) -> Self {
        let consumed = |(limit, milli): (&LimitName, &i128)| {
            (limit.to_string(), number(limit.as_str(), *milli))
        };
        Self {
            entity: window.entity.to_string(),
            resource: window.resource.to_string(),
            start: rfc3339_s(window.window.start_s()),
            consumed: window.consumed_milli.iter().map(consumed).collect(),
        }
    }
}

/// The consumption by windows.
#[utoipa::path(
    get, path = "/v1/usage", tag = "read", params(UsageQuery),
    responses((status = 200, description = "The windows", body = Usage))
)]
pub(super) async fn usage(
    State(state): State<Arc<ServerState>>,
    Query(question): Query<UsageQuery>,
) -> Result<Json<Usage>, Problem> {
    let kind: WindowKind = question.window.parse().map_err(Problem::bad)?;
    let now = state.limiter.clock().now();
    let [from, to] = [question.from, question.to].map(|text| match text {
        Some(text) => text
            .parse::<TimePoint>()
            // A `+` of a query that is not encoded arrives as a space.
            .or_else(|_| text.replace(' ', "+").parse())
            .map(|point| Some(point.resolve(now, kind.zone()))),
        None => Ok(None),
    });
    let mut span = WindowSpan::until(to.map_err(Problem::bad)?.unwrap_or(now), kind);
    if let Some(from) = from.map_err(Problem::bad)? {
        span.starts.start = from;
    }
    let entity = question.entity.map(EntityId::new).transpose().map_err(Problem::bad)?;
    let resource = question.resource.map(Resource::new).transpose().map_err(Problem::bad)?;
    let reader = state.limiter.reader()?;
    let windows: BoxStream<'_, Result<UsageWindow, ReadError>> = match (&entity, &resource) {
        (Some(entity), Some(resource)) => reader.usage(entity, resource, &span).boxed(),
        (Some(entity), None) => reader.usage_of_entity(entity, &span).boxed(),
        (None, Some(resource)) => reader.usage_of_resource(resource, &span).boxed(),
        (None, None) => return Err(Problem::bad("name an entity, a resource or both")),
    };
    // A window of which all records went to quarantine has no consumption.
    let windows = windows.try_filter(|window| future::ready(window.events > 0));
    let mut windows: Vec<_> = windows.take(WINDOWS_MAX + 1).try_collect().await?;
    let truncated = windows.len() > WINDOWS_MAX;
    windows.truncate(WINDOWS_MAX);
    Ok(Json(Usage { windows: windows.into_iter().map(UsageRow::from).collect(), truncated }))
}
