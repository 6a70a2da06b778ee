//! Usage windows and budgets.

use chrono::{DateTime, Utc};
use futures_util::TryStreamExt as _;
use futures_util::future;
use futures_util::stream::{BoxStream, StreamExt as _};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use sluicegate::dynamo::{Lasts, ReadError};
use sluicegate::types::{EpochMillis, WindowKind, WindowSpan};
use sluicegate::{AcquireError, EntityId, LimitStatus, Resource};

use crate::call::{Begin, Call, ready};
use crate::decimals::{decimal, decimals};
use crate::errors::{invalid, of_acquire, of_config, of_read};
use crate::limiter::Limiter;

/// The consumption of an entity of a resource in one window.
#[pyclass(frozen, get_all, module = "sluicegate")]
pub(crate) struct UsageWindow {
    entity: String,
    resource: String,
    /// Its start and its end.
    start: DateTime<Utc>,
    end: DateTime<Utc>,
    /// Tokens, or money in the currency's unit, by limit: consumed less returned.
    consumed: Py<PyAny>,
}

#[pymethods]
impl UsageWindow {
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let Self { entity, resource, start, consumed, .. } = self;
        let consumed = consumed.bind(py).repr()?;
        Ok(format!("UsageWindow({entity:?}, {resource:?}, {start}, {consumed})"))
    }
}

/// A calendar limit, or one that counts money, in its period.
#[pyclass(frozen, get_all, module = "sluicegate")]
pub(crate) struct Budget {
    entity: String,
    resource: String,
    limit: String,
    rule: String,
    /// Taken and not given back, calls in flight included.
    granted: Py<PyAny>,
    /// The rest.
    left: Py<PyAny>,
    /// The sum of the usage windows of the period; `None`: there are none, or one of them cannot be
    /// read.
    used: Option<Py<PyAny>>,
    /// The next boundary, or the time when it is full; `None`: never.
    resets_at: Option<DateTime<Utc>>,
    /// The time at which it is used up at the pace of the last seven days (of a new budget, of the
    /// days since its first use); `None`: not before it resets, or not known.
    used_up_at: Option<DateTime<Utc>>,
}

#[pymethods]
impl Budget {
    fn __repr__(&self, py: Python<'_>) -> String {
        let Self { entity, resource, rule, .. } = self;
        let left = self.left.bind(py);
        format!("Budget({entity:?}, {resource:?}, {rule:?}, left={left})")
    }
}

fn time(millis: i64) -> DateTime<Utc> {
    // Instants of the table end with the year 9999, as Python's do.
    DateTime::from_timestamp_millis(millis).unwrap_or_default()
}

/// An instant, as a `datetime` with any time zone.
pub(crate) fn instant(given: &Bound<'_, PyAny>) -> PyResult<EpochMillis> {
    let module = given.py().import("datetime")?;
    if !given.is_instance(&module.getattr("datetime")?)? {
        return Err(PyTypeError::new_err(format!("{given} is no datetime")));
    }
    if given.getattr("tzinfo")?.is_none() {
        return Err(invalid(format!("the time {given} has no time zone: give one")));
    }
    let utc = module.getattr("timezone")?.getattr("utc")?;
    // It fails before the year 1 and after the year 9999.
    let given: DateTime<Utc> =
        given.call_method1("astimezone", (utc,)).map_err(invalid)?.extract()?;
    EpochMillis::new(given.timestamp_millis()).map_err(invalid)
}

/// The reason why windows or budgets were not read.
enum Failed {
    Read(ReadError),
    Peek(AcquireError),
}

impl From<ReadError> for Failed {
    fn from(error: ReadError) -> Self {
        Self::Read(error)
    }
}

#[pymethods]
impl Limiter {
    /// The usage windows of an entity, of a resource, or of both, that begin in a time; both with a
    /// time zone. `kind` is `minute`, `hour`, `day`, `week`, `month`, `year`, or a calendar like
    /// `month@15/Europe/Berlin`.
    #[pyo3(signature = (entity=None, resource=None, *, kind="hour", since, until=None))]
    fn usage(
        &self,
        entity: Option<&str>,
        resource: Option<&str>,
        kind: &str,
        since: &Bound<'_, PyAny>,
        until: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Call> {
        let kind: WindowKind = kind.parse().map_err(invalid)?;
        let now = self.inner.clock().now();
        let span = WindowSpan { kind, starts: instant(since)?..until.map_or(Ok(now), instant)? };
        let entity = entity.map(EntityId::new).transpose().map_err(invalid)?;
        let resource = resource.map(Resource::new).transpose().map_err(invalid)?;
        let reader = self.inner.reader().map_err(|error| of_config(&error))?;
        let windows: BoxStream<'_, _> = match (entity, resource) {
            (Some(entity), Some(resource)) => reader.usage(&entity, &resource, &span).boxed(),
            (Some(entity), None) => reader.usage_of_entity(&entity, &span).boxed(),
            (None, Some(resource)) => reader.usage_of_resource(&resource, &span).boxed(),
            (None, None) => return Err(invalid("name an entity, a resource or both")),
        };
        // A window of which all records went to quarantine has no consumption.
        let windows = windows.try_filter(|window| future::ready(window.events > 0));
        Call::new(self.home, Begin::OnRuntime, "usage", async move {
            let windows = windows.try_collect::<Vec<_>>().await;
            ready(move |py| {
                let windows = windows.map_err(|error| of_read(&error))?;
                let shown = windows.iter().map(|window| {
                    let consumed = window.consumed_milli.iter();
                    let consumed = decimals(py, consumed.map(|(limit, milli)| (limit, *milli)))?;
                    Ok(UsageWindow {
                        entity: window.entity.to_string(),
                        resource: window.resource.to_string(),
                        start: time(window.window.start_s() * 1_000),
                        end: time(window.window.end_s() * 1_000),
                        consumed: consumed.into_any().unbind(),
                    })
                });
                shown.collect::<PyResult<Vec<_>>>()
            })
        })
    }

    /// The calendar limits of an entity, and those that count money.
    #[pyo3(signature = (entity, resource=None))]
    fn budget(&self, entity: &str, resource: Option<&str>) -> PyResult<Call> {
        let entity = EntityId::new(entity).map_err(invalid)?;
        let resource = resource.map(Resource::new).transpose().map_err(invalid)?;
        self.inner.reader().map_err(|error| of_config(&error))?;
        let limiter = self.inner.clone();
        Call::new(self.home, Begin::OnRuntime, "budget", async move {
            let budgets = budgets(&limiter, &entity, resource).await;
            ready(move |py| match budgets {
                Ok(budgets) => {
                    budgets.iter().map(|budget| shown(py, budget)).collect::<PyResult<Vec<_>>>()
                }
                Err(Failed::Read(error)) => Err(of_read(&error)),
                Err(Failed::Peek(error)) => Err(of_acquire(py, error)),
            })
        })
    }
}

/// A budget as of a time.
type Found = (Resource, LimitStatus, sluicegate::dynamo::Budget, EpochMillis);

async fn budgets(
    limiter: &sluicegate::Limiter,
    entity: &EntityId,
    resource: Option<Resource>,
) -> Result<Vec<Found>, Failed> {
    // The caller has seen that there is one.
    let Ok(reader) = limiter.reader() else { return Ok(Vec::new()) };
    let resources = match resource {
        Some(resource) => vec![resource],
        None => {
            let buckets = reader.buckets_of_entity(entity);
            buckets.map_ok(|bucket| bucket.resource).try_collect().await?
        }
    };
    let mut budgets = Vec::new();
    for resource in resources {
        let peek = limiter.peek(entity.as_str(), resource.as_str()).no_cascade();
        let statuses = peek.without_default_limits().await.map_err(Failed::Peek)?;
        // After the balances: a boundary in between would mix two periods.
        let now = limiter.clock().now();
        for status in statuses {
            if status.is_budget() {
                let budget = reader.budget(&resource, &status, now).await?;
                budgets.push((resource.clone(), status, budget, now));
            }
        }
    }
    Ok(budgets)
}

fn shown(py: Python<'_>, (resource, status, budget, now): &Found) -> PyResult<Budget> {
    let amount =
        |milli: i128| Ok::<_, PyErr>(decimal(py, &status.limit, milli)?.into_any().unbind());
    Ok(Budget {
        entity: status.entity.to_string(),
        resource: resource.to_string(),
        limit: status.limit.to_string(),
        rule: sluicegate::Limit::from_rule(&status.limit, status.rule).to_string(),
        granted: amount(budget.granted_milli.into())?,
        left: amount(status.available.get().into())?,
        used: budget.used_milli.map(amount).transpose()?,
        resets_at: budget.resets_at(*now).map(|at| time(at.get())),
        used_up_at: match budget.lasts {
            Lasts::Until { at, .. } => Some(time(at.get())),
            Lasts::Unknown | Lasts::UntilReset => None,
        },
    })
}
