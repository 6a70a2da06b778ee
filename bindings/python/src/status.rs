//! The status of a limit.

use pyo3::prelude::*;
use sluicegate::Limit;

use crate::decimals::decimal;

/// A limit of a bucket: its rule, and the amount that is left.
#[pyclass(frozen, get_all, module = "sluicegate")]
pub(crate) struct LimitStatus {
    /// The entity: the parent's for a limit of the parent.
    entity: String,
    /// The name.
    limit: String,
    /// The limit with its rule, like `rpm=100/min`.
    rule: String,
    /// Tokens, or money in the currency's unit; negative while there is a debt.
    available: Py<PyAny>,
    /// True if the limit does not have the amount that was asked for.
    violated: bool,
}

#[pymethods]
impl LimitStatus {
    #[new]
    const fn new(
        entity: String,
        limit: String,
        rule: String,
        available: Py<PyAny>,
        violated: bool,
    ) -> Self {
        Self { entity, limit, rule, available, violated }
    }

    /// For `pickle` and `copy`; an exception has statuses, too.
    fn __getnewargs__(&self, py: Python<'_>) -> (&str, &str, &str, Py<PyAny>, bool) {
        let Self { entity, limit, rule, available, violated } = self;
        (entity, limit, rule, available.clone_ref(py), *violated)
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let Self { entity, rule, .. } = self;
        format!(
            "LimitStatus(entity={entity:?}, rule={rule:?}, available={})",
            self.available.bind(py)
        )
    }
}

pub(crate) fn statuses(
    py: Python<'_>,
    limits: &[sluicegate::LimitStatus],
) -> PyResult<Vec<LimitStatus>> {
    let status = |status: &sluicegate::LimitStatus| {
        Ok(LimitStatus {
            entity: status.entity.to_string(),
            limit: status.limit.to_string(),
            rule: Limit::from_rule(&status.limit, status.rule).to_string(),
            available: decimal(py, &status.limit, status.available.get())?.unbind(),
            violated: status.is_violated(),
        })
    };
    limits.iter().map(status).collect()
}
