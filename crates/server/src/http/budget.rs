//! `GET /v1/budget`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Query, State};
use futures_util::TryStreamExt as _;
use serde::{Deserialize, Serialize};
use sluicegate::dynamo::{Budget, Lasts};
use sluicegate::types::EpochMillis;
use sluicegate::{EntityId, Limit, LimitStatus, Resource};
use sluicegate_core::rfc3339_s;
use utoipa::{IntoParams, ToSchema};

use super::amount::{Number, number};
use super::problem::Problem;
use crate::state::ServerState;

/// The budgets that are requested.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct BudgetQuery {
    entity: String,
    /// Absent: all resources.
    resource: Option<String>,
}

/// A limit that counts money or refills by the calendar.
#[derive(Serialize, ToSchema)]
pub(super) struct BudgetRow {
    entity: String,
    resource: String,
    limit: String,
    /// The limit with its rule, like `usd=200/month`.
    rule: String,
    /// The start of the period, RFC 3339. Absent: the limit has no calendar.
    #[serde(skip_serializing_if = "Option::is_none")]
    period_start: Option<String>,
    /// Taken in this period and not given back.
    #[schema(value_type = f64)]
    granted: Number,
    #[schema(value_type = f64)]
    left: Number,
    /// The use by the usage windows of the period. Absent: there are none, or one cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>)]
    used: Option<Number>,
    /// The next boundary, or the time when it is full, RFC 3339. Absent: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    resets_at: Option<String>,
    /// The time when it is used up at the pace of the last seven days (of a new budget, of the days
    /// since its first use), RFC 3339. Absent: not before it resets, or not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    used_up_at: Option<String>,
}

impl BudgetRow {
    fn new(resource: &Resource, status: &LimitStatus, budget: &Budget, now: EpochMillis) -> Self {
        let amount = |milli: i128| number(status.limit.as_str(), milli);
        let text = |at: EpochMillis| rfc3339_s(at.get() / 1_000);
        Self {
            entity: status.entity.to_string(),
            resource: resource.to_string(),
            limit: status.limit.to_string(),
            rule: Limit::from_rule(&status.limit, status.rule).to_string(),
            period_start: budget.period_start.map(text),
            granted: amount(budget.granted_milli.into()),
            left: amount(status.available.get().into()),
            used: budget.used_milli.map(amount),
            resets_at: budget.resets_at(now).map(text),
            used_up_at: match budget.lasts {
                Lasts::Until { at, .. } => Some(text(at)),
                Lasts::Unknown | Lasts::UntilReset => None,
            },
        }
    }
}

/// The budgets of an entity: granted, left, used, and how long they last. Default
/// limits of the server count only where a bucket has them.
#[utoipa::path(
    get, path = "/v1/budget", tag = "read", params(BudgetQuery),
    responses((status = 200, description = "The budgets", body = Vec<BudgetRow>))
)]
pub(super) async fn budget(
    State(state): State<Arc<ServerState>>,
    Query(question): Query<BudgetQuery>,
) -> Result<Json<Vec<BudgetRow>>, Problem> {
    let entity = EntityId::new(&question.entity).map_err(Problem::bad)?;
    let reader = state.limiter.reader()?;
    let resources = match question.resource {
        Some(resource) => vec![Resource::new(resource).map_err(Problem::bad)?],
        None => {
            let buckets = reader.buckets_of_entity(&entity);
            buckets.map_ok(|bucket| bucket.resource).try_collect().await?
        }
    };
    let mut budgets = Vec::new();
    for resource in &resources {
        let statuses = state.limiter.peek(entity.as_str(), resource.as_str());
        let statuses = statuses.without_default_limits().no_cascade().await?;
        // After the balances: a boundary in between would mix two periods.
        let now = state.limiter.clock().now();
        for status in statuses {
            if status.is_budget() {
                let budget = reader.budget(resource, &status, now).await?;
                budgets.push(BudgetRow::new(resource, &status, &budget, now));
            }
        }
    }
    Ok(Json(budgets))
}
