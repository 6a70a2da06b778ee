//! A request that is checked once and made many times, from leased tokens.

use std::sync::Arc;

use pyo3::prelude::*;
use sluicegate::leasing::PreparedPermit;

use crate::call::{Begin, Call};
use crate::permit::granted;
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
    fn try_acquire(&self, entity: Option<&str>) -> PyResult<bool> {
        // A miss leases in the background.
        let _in_runtime = self.home.runtime()?.enter();
        let permit = match entity {
            None => self.inner.try_acquire(),
            Some(entity) => self.inner.try_acquire_for(entity),
        };
        Ok(permit.is_some())
    }

    /// Takes the tokens; waits for the store if this process does not hold them.
    #[pyo3(signature = (entity=None, /))]
    fn acquire(&self, entity: Option<String>) -> PyResult<Call> {
        let (prepared, home) = (Arc::clone(&self.inner), self.home);
        Call::new(home, Begin::Here, "acquire", async move {
            let result = match entity {
                None => prepared.acquire().await,
                Some(entity) => prepared.acquire_for(&entity).await,
            };
            granted(home, result.map(PreparedPermit::into_permit), |_| ())
        })
    }
}
