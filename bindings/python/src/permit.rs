//! A permit: tokens that were taken.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use sluicegate::AdjustError;

use crate::amounts::keywords;
use crate::call::{Begin, Call, Ready, ready};
use crate::errors::{of_acquire, of_adjust};
use crate::runtime::Home;
use crate::status::{LimitStatus, statuses};

/// A permit that makes its corrections one after the other. A correction continues after its caller
/// left. The next one must see its result, because a correction to a total sends the difference to
/// the total before.
pub(crate) struct SerialPermit {
    permit: sluicegate::Permit,
    turn: tokio::sync::Mutex<()>,
}

impl std::ops::Deref for SerialPermit {
    type Target = sluicegate::Permit;

    fn deref(&self) -> &Self::Target {
        &self.permit
    }
}

/// Tokens that were taken before the work starts. Dropping it keeps them taken.
#[pyclass(frozen, module = "sluicegate")]
pub(crate) struct Permit {
    pub(crate) inner: Arc<SerialPermit>,
    pub(crate) home: Home,
}

#[pymethods]
impl Permit {
    /// Adds amounts to the consumption, in one write; negative ones are given back. Never refused:
    /// a balance may go below zero. Limits that no bucket has are left out, with a warning in the
    /// log; if it has none of them, `InvalidRequestError` is raised.
    #[pyo3(signature = (**by))]
    fn adjust(&self, by: Option<&Bound<'_, PyDict>>) -> PyResult<Call> {
        let by = keywords(by)?;
        self.correction("adjust", |permit| async move { permit.adjust_all(&by).await.map(drop) })
    }

    /// Corrects the consumption to these amounts, in one write: the cost is known. Limits that are
    /// not named stay as they are. A negative amount is an `InvalidRequestError`.
    #[pyo3(signature = (**to))]
    fn correct_to(&self, to: Option<&Bound<'_, PyDict>>) -> PyResult<Call> {
        let to = keywords(to)?;
        self.correction(
            "correct_to",
            |permit| async move { permit.correct_to(&to).await.map(drop) },
        )
    }

    /// Gives back everything, once: the work did not happen.
    pub(crate) fn release(&self) -> PyResult<Call> {
        self.correction("release", |permit| async move { permit.give_back().await.map(drop) })
    }

    /// The balances of the requested limits. The list is empty if the store did not decide.
    #[getter]
    fn remaining(&self, py: Python<'_>) -> PyResult<Vec<LimitStatus>> {
        statuses(py, &self.inner.remaining())
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
    pub(crate) fn new(permit: sluicegate::Permit, home: Home) -> Self {
        let turn = tokio::sync::Mutex::default();
        Self { inner: Arc::new(SerialPermit { permit, turn }), home }
    }

    /// Gives back everything at the end of a context whose body raised. A failure is reported, and
    /// does not replace the exception of the body.
    pub(crate) fn release_quietly(&self) -> PyResult<Call> {
        let inner = Arc::clone(&self.inner);
        Call::new(self.home, Begin::Detached, "release", async move {
            let _turn = inner.turn.lock().await;
            let released = inner.give_back().await;
            ready(move |py| {
                if let Err(error) = released {
                    of_adjust(&error).write_unraisable(py, None);
                }
                Ok(py.None())
            })
        })
    }

    fn correction<F>(
        &self,
        name: &'static str,
        correct: impl FnOnce(Arc<SerialPermit>) -> F + Send + 'static,
    ) -> PyResult<Call>
    where
        F: Future<Output = Result<(), AdjustError>> + Send + 'static,
    {
        let permit = Arc::clone(&self.inner);
        let correction = async move {
            let inner = Arc::clone(&permit);
            let _turn = inner.turn.lock().await;
            correct(permit).await
        };
        Call::unit(self.home, name, correction, |_, error| of_adjust(&error))
    }
}

/// A permit on its way to Python. If it does not arrive, its tokens are given back.
pub(crate) struct Granted {
    permit: Option<sluicegate::Permit>,
    home: Home,
}

impl Granted {
    pub(crate) const fn new(permit: sluicegate::Permit, home: Home) -> Self {
        Self { permit: Some(permit), home }
    }

    fn arrive(mut self) -> Option<Permit> {
        Some(Permit::new(self.permit.take()?, self.home))
    }
}

impl Drop for Granted {
    fn drop(&mut self) {
        if let Some(permit) = self.permit.take() {
            self.home.spawn(async move {
                if let Err(error) = permit.release().await {
                    tracing::warn!(%error, "tokens of a cancelled task stay taken");
                }
            });
        }
    }
}

/// The result of an acquire; `arrived` sees the permit when it is Python's.
pub(crate) fn granted(
    home: Home,
    result: Result<sluicegate::Permit, sluicegate::AcquireError>,
    arrived: impl FnOnce(&Permit) + Send + 'static,
) -> Ready {
    let result = result.map(|permit| Granted::new(permit, home));
    ready(move |py| {
        let permit = result.map_err(|error| of_acquire(py, error))?.arrive();
        permit.as_ref().map(arrived);
        Ok(permit)
    })
}
