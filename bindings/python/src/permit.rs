//! A permit: tokens that were taken.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3_async_runtimes::tokio::future_into_py;
use sluicegate::types::Amounts;

use crate::amounts::{Given, read};
use crate::errors::of_adjust;
use crate::runtime::{Home, wait};
use crate::status::{LimitStatus, remaining};

/// Tokens that were taken before the work starts. Dropping it keeps them taken.
#[pyclass(frozen, module = "sluicegate")]
pub(crate) struct Permit {
    pub(crate) inner: Arc<sluicegate::Permit>,
    pub(crate) home: Home,
}

#[pymethods]
impl Permit {
    /// Adds amounts to the consumption, in one write; negative ones are given back. Never refused: a
    /// balance may go below zero.
    #[pyo3(signature = (**by))]
    fn adjust<'py>(&self, py: Python<'py>, by: Option<Given<'py>>) -> PyResult<Bound<'py, PyAny>> {
        let by = read(&by.unwrap_or_default())?;
        self.correction(py, |permit| async move { permit.adjust_all(&by).await.map(drop) })
    }

    /// As `adjust`, for code without an event loop.
    #[pyo3(signature = (**by))]
    fn adjust_sync(&self, py: Python<'_>, by: Option<Given<'_>>) -> PyResult<()> {
        let by = read(&by.unwrap_or_default())?;
        self.home.check()?;
        wait(py, self.inner.adjust_all(&by))?.map(drop).map_err(|error| of_adjust(&error))
    }

    /// Corrects the consumption to these amounts, in one write: the cost is known. Limits that are not
    /// named stay as they are.
    #[pyo3(signature = (**to))]
    fn correct_to<'py>(
        &self,
        py: Python<'py>,
        to: Option<Given<'py>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let to: Amounts = read(&to.unwrap_or_default())?;
        self.correction(py, |permit| async move { permit.correct_to(&to).await.map(drop) })
    }

    /// As `correct_to`, for code without an event loop.
    #[pyo3(signature = (**to))]
    fn correct_to_sync(&self, py: Python<'_>, to: Option<Given<'_>>) -> PyResult<()> {
        let to = read(&to.unwrap_or_default())?;
        self.home.check()?;
        wait(py, self.inner.correct_to(&to))?.map(drop).map_err(|error| of_adjust(&error))
    }

    /// Gives back everything, once: the work did not happen.
    fn release<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.correction(py, |permit| async move { permit.give_back().await.map(drop) })
    }

    /// As `release`, for code without an event loop.
    pub(crate) fn release_sync(&self, py: Python<'_>) -> PyResult<()> {
        self.home.check()?;
        wait(py, self.inner.give_back())?.map(drop).map_err(|error| of_adjust(&error))
    }

    /// The balances of the requested limits. The list is empty if the store did not decide.
    #[getter]
    fn remaining(&self, py: Python<'_>) -> PyResult<Vec<LimitStatus>> {
        remaining(py, &self.inner.remaining())
    }

    /// True if the store did not decide: it was unavailable. Then nothing can be corrected.
    #[getter]
    fn degraded(&self) -> bool {
        self.inner.degraded().is_some()
    }

    /// True if the limiter only watches, and would have refused. Then nothing was taken.
    #[getter]
    fn shadowed(&self) -> bool {
        self.inner.shadowed().is_some()
    }
}

impl Permit {
    /// A correction as an awaitable.
    pub(crate) fn correction<'py, F>(
        &self,
        py: Python<'py>,
        correct: impl FnOnce(Arc<sluicegate::Permit>) -> F,
    ) -> PyResult<Bound<'py, PyAny>>
    where
        F: Future<Output = Result<(), sluicegate::AdjustError>> + Send + 'static,
    {
        self.home.check()?;
        let correction = correct(Arc::clone(&self.inner));
        future_into_py(py, async move { correction.await.map_err(|error| of_adjust(&error)) })
    }
}
