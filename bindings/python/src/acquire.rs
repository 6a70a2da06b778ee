//! A request for tokens: awaited, or entered as a context.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use sluicegate::{AcquireRequest, Limiter};

use crate::call::{Awaited, Begin, Call, ready, warn_unmade};
use crate::permit::{Permit, SerialPermit, granted};
use crate::runtime::Home;

/// A request for tokens: `await` it for a permit, or enter it. If the body of a context raises,
/// everything is given back: the work did not happen. Cancelling the task takes nothing.
#[pyclass(frozen, module = "sluicegate")]
pub(crate) struct Acquire {
    limiter: Limiter,
    request: AcquireRequest<()>,
    home: Home,
    begin: Begin,
    is_made: AtomicBool,
    context: Context,
}

/// The context that a request is entered as.
type Context = Arc<Mutex<Entered>>;

enum Entered {
    No,
    /// Its permit is on its way.
    Entering,
    Yes(Arc<SerialPermit>),
}

/// A context that is being entered. If no permit arrives, it is not.
struct Entering(Context);

impl Entering {
    fn arrived(&self, permit: &Permit) {
        *lock(&self.0) = Entered::Yes(Arc::clone(&permit.inner));
    }
}

impl Drop for Entering {
    fn drop(&mut self) {
        let mut entered = lock(&self.0);
        if matches!(*entered, Entered::Entering) {
            *entered = Entered::No;
        }
    }
}

fn lock(context: &Context) -> MutexGuard<'_, Entered> {
    context.lock().unwrap_or_else(PoisonError::into_inner)
}

#[pymethods]
impl Acquire {
    fn __await__(&self, py: Python<'_>) -> PyResult<Awaited> {
        self.call(false)?.__await__(py)
    }

    fn __aenter__(&self) -> PyResult<Call> {
        self.call(true)
    }

    fn __aexit__(
        &self,
        kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<Call> {
        match self.left() {
            Some(permit) if !kind.is_none() => permit.release_quietly(),
            _ => {
                let nothing = async { ready(|py| Ok(py.None())) };
                Call::new(self.home, Begin::Here, "acquire", nothing)
            }
        }
    }

    fn __enter__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.call(true)?.sync(py)
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        match self.left() {
            // The tokens of a process that was forked are those of its parent.
            Some(permit) if !kind.is_none() && self.home.runtime().is_ok() => {
                permit.release_quietly()?.sync(py).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Takes the tokens, in code without an event loop.
    fn sync(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.call(false)?.sync(py)
    }
}

impl Acquire {
    pub(crate) fn new(
        limiter: Limiter,
        request: AcquireRequest<()>,
        home: Home,
        begin: Begin,
    ) -> Self {
        let (is_made, context) = (AtomicBool::new(false), Arc::new(Mutex::new(Entered::No)));
        Self { limiter, request, home, begin, is_made, context }
    }

    /// The request, which is used for something.
    pub(crate) fn request(&self) -> AcquireRequest<()> {
        self.is_made.store(true, Ordering::Relaxed);
        self.request.clone()
    }

    fn call(&self, enters: bool) -> PyResult<Call> {
        let (limiter, request, home) = (self.limiter.clone(), self.request(), self.home);
        let entering = if enters { Some(self.enter()?) } else { None };
        Call::new(home, self.begin, "acquire", async move {
            let result = request.bind(&limiter).await;
            granted(home, result, move |permit| {
                if let Some(entering) = entering {
                    entering.arrived(permit);
                }
            })
        })
    }

    fn enter(&self) -> PyResult<Entering> {
        let mut entered = lock(&self.context);
        if !matches!(*entered, Entered::No) {
            let twice = "this request is entered already: make another one";
            return Err(PyRuntimeError::new_err(twice));
        }
        *entered = Entered::Entering;
        Ok(Entering(Arc::clone(&self.context)))
    }

    /// The permit of the context, which ends.
    fn left(&self) -> Option<Permit> {
        match std::mem::replace(&mut *lock(&self.context), Entered::No) {
            Entered::Yes(inner) => Some(Permit { inner, home: self.home }),
            Entered::No | Entered::Entering => None,
        }
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        if !*self.is_made.get_mut() {
            warn_unmade("acquire");
        }
    }
}
