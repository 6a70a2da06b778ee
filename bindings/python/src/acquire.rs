//! A request for tokens: awaited, or entered as a context.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyAny;
use pyo3_async_runtimes::tokio::future_into_py;
use sluicegate::{AcquireError, AcquireRequest, Limiter};

use crate::errors::of_acquire;
use crate::permit::Permit;
use crate::runtime::{Home, wait};

/// A request for tokens. `await` it for a permit, or enter it: `async with`, or `with` in code without
/// an event loop. If the body raises, everything is given back.
#[pyclass(frozen, module = "sluicegate")]
pub(crate) struct Acquire {
    pub(crate) limiter: Limiter,
    pub(crate) request: AcquireRequest<()>,
    pub(crate) home: Home,
    /// The permit of a context that was entered.
    pub(crate) entered: Arc<Mutex<Option<Arc<sluicegate::Permit>>>>,
}

#[pymethods]
impl Acquire {
    fn __await__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.asked(py, false)?.call_method0("__await__")
    }

    fn __aenter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.asked(py, true)
    }

    fn __aexit__<'py>(
        &self,
        py: Python<'py>,
        kind: &Bound<'py, PyAny>,
        _error: &Bound<'py, PyAny>,
        _traceback: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        match self.left() {
            Some(permit) if !kind.is_none() => {
                permit.correction(py, |permit| async move { permit.give_back().await.map(drop) })
            }
            _ => future_into_py(py, async { Ok(()) }),
        }
    }

    fn __enter__(&self, py: Python<'_>) -> PyResult<Permit> {
        let permit = self.sync(py)?;
        *self.entered() = Some(Arc::clone(&permit.inner));
        Ok(permit)
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        match self.left() {
            Some(permit) if !kind.is_none() => permit.release_sync(py),
            _ => Ok(()),
        }
    }

    /// Takes the tokens, for code without an event loop.
    pub(crate) fn sync(&self, py: Python<'_>) -> PyResult<Permit> {
        self.home.check()?;
        let request = self.request.clone().bind(&self.limiter);
        let granted = wait(py, async { request.await })?;
        self.permit(py, granted)
    }
}

impl Acquire {
    fn asked<'py>(&self, py: Python<'py>, enters: bool) -> PyResult<Bound<'py, PyAny>> {
        self.home.check()?;
        if enters && self.entered().is_some() {
            let twice = "this request is entered already: make another one";
            return Err(PyRuntimeError::new_err(twice));
        }
        let (limiter, request) = (self.limiter.clone(), self.request.clone());
        let (home, entered) = (self.home, Arc::clone(&self.entered));
        future_into_py(py, async move {
            let granted = request.bind(&limiter).await;
            Python::attach(|py| {
                let inner = Arc::new(granted.map_err(|error| of_acquire(py, error))?);
                if enters {
                    *entered.lock().unwrap_or_else(PoisonError::into_inner) = Some(inner.clone());
                }
                Ok(Permit { inner, home })
            })
        })
    }

    fn permit(
        &self,
        py: Python<'_>,
        granted: Result<sluicegate::Permit, AcquireError>,
    ) -> PyResult<Permit> {
        let permit = granted.map_err(|error| of_acquire(py, error))?;
        Ok(Permit { inner: Arc::new(permit), home: self.home })
    }

    fn entered(&self) -> std::sync::MutexGuard<'_, Option<Arc<sluicegate::Permit>>> {
        self.entered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The permit of the context, which ends.
    fn left(&self) -> Option<Permit> {
        Some(Permit { inner: self.entered().take()?, home: self.home })
    }
}
