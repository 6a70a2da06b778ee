//! A request that is checked once and made many times, from leased tokens.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3_async_runtimes::tokio::future_into_py;

use crate::errors::of_acquire;
use crate::permit::Permit;
use crate::runtime::Home;

/// A request to a limiter that leases, checked once.
#[pyclass(frozen, module = "sluicegate")]
pub(crate) struct Prepared {
    pub(crate) inner: Arc<sluicegate::leasing::Prepared>,
    pub(crate) home: Home,
}

#[pymethods]
impl Prepared {
    /// Takes the tokens if this process holds them; never waits. `False`: it does not, and leases more
    /// in the background; `await acquire()` waits for them.
    #[pyo3(signature = (entity=None, /))]
    fn try_acquire(&self, entity: Option<&str>) -> bool {
        let permit = match entity {
            None => self.inner.try_acquire(),
            Some(entity) => self.inner.try_acquire_for(entity),
        };
        permit.is_some()
    }

    /// Takes the tokens; waits for the store if this process does not hold them.
    #[pyo3(signature = (entity=None, /))]
    fn acquire<'py>(&self, py: Python<'py>, entity: Option<String>) -> PyResult<Bound<'py, PyAny>> {
        self.home.check()?;
        let (prepared, home) = (Arc::clone(&self.inner), self.home);
        future_into_py(py, async move {
            let granted = match entity {
                None => prepared.acquire().await,
                Some(entity) => prepared.acquire_for(&entity).await,
            };
            let permit = granted.map(sluicegate::leasing::PreparedPermit::into_permit);
            Python::attach(|py| {
                let permit = permit.map_err(|error| of_acquire(py, error))?;
                Ok(Permit { inner: Arc::new(permit), home })
            })
        })
    }
}
