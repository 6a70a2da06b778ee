//! A call of the library, which Python awaits, or makes by `sync()`.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker as TaskWaker};

use pyo3::BoundObject as _;
use pyo3::exceptions::{PyRuntimeError, PyRuntimeWarning, PyStopIteration};
use pyo3::prelude::*;
use pyo3::types::PyType;
use tokio::task::AbortHandle;

use crate::event_loop::{Inbox, running};
use crate::runtime::Home;

/// The result of a call, on its way to Python. Dropping it drops what the call got.
pub(crate) type Ready = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;

/// The work of a call.
type Work = Pin<Box<dyn Future<Output = Ready> + Send>>;

/// Makes a result of a value, which becomes an object of Python when it arrives.
pub(crate) fn ready<T>(convert: impl FnOnce(Python<'_>) -> PyResult<T> + Send + 'static) -> Ready
where
    T: for<'py> IntoPyObject<'py>,
{
    Box::new(move |py| {
        let value = convert(py)?.into_pyobject(py).map_err(Into::into)?;
        Ok(value.into_any().unbind())
    })
}

/// The thread that makes the first step of a call that is awaited.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begin {
    /// The event loop's: the call may be decided in memory.
    Here,
    /// A thread of the runtime.
    OnRuntime,
    /// A thread of the runtime. The call goes on if its task is cancelled, or a signal comes meanwhile.
    Detached,
}

/// A call that was not made yet. `await` it in a task, or make it by `sync()`, once. A call that is
/// dropped unmade is a `RuntimeWarning`.
#[pyclass(frozen, module = "sluicegate")]
pub(crate) struct Call {
    home: Home,
    begin: Begin,
    name: &'static str,
    work: Mutex<Option<Work>>,
}

impl Call {
    pub(crate) fn new(
        home: Home,
        begin: Begin,
        name: &'static str,
        work: impl Future<Output = Ready> + Send + 'static,
    ) -> PyResult<Self> {
        home.runtime()?;
        Ok(Self { home, begin, name, work: Mutex::new(Some(Box::pin(work))) })
    }

    /// A correction: a call that gets nothing but an error, and is made whole once it began.
    pub(crate) fn unit<E>(
        home: Home,
        name: &'static str,
        work: impl Future<Output = Result<(), E>> + Send + 'static,
        error: impl FnOnce(Python<'_>, E) -> PyErr + Send + 'static,
    ) -> PyResult<Self>
    where
        E: Send + 'static,
    {
        Self::new(home, Begin::Detached, name, async move {
            let done = work.await;
            ready(move |py| done.map(|()| py.None()).map_err(|failed| error(py, failed)))
        })
    }

    fn take(&self) -> PyResult<Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner).take().ok_or_else(|| {
            PyRuntimeError::new_err(format!(
                "this {} was made already: make another call",
                self.name
            ))
        })
    }
}

#[pymethods]
impl Call {
    #[classmethod]
    fn __class_getitem__(class: &Bound<'_, PyType>, _of: &Bound<'_, PyAny>) -> Py<PyType> {
        class.clone().unbind()
    }

    pub(crate) fn __await__(&self, py: Python<'_>) -> PyResult<Awaited> {
        let event_loop = running(py)?;
        Awaited::begin(&event_loop, self.home, self.begin, self.take()?)
    }

    /// Makes the call and waits for its result, in code without an event loop.
    pub(crate) fn sync(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let work = self.take()?;
        if self.begin == Begin::Detached {
            // It is made whole, even if a signal ends the wait for it.
            let made = self.home.runtime()?.spawn(work);
            let made = self.home.wait(py, made)?;
            return made.map_err(|error| PyRuntimeError::new_err(error.to_string()))?(py);
        }
        self.home.wait(py, work)?(py)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if self.work.get_mut().is_ok_and(|work| work.is_some()) {
            warn_unmade(self.name);
        }
    }
}

/// Warns of a call that its program forgot to await.
pub(crate) fn warn_unmade(name: &str) {
    let warned = Python::try_attach(|py| {
        // An exception on its way is the reason, and no code may run before it is handled.
        if PyErr::occurred(py) {
            return;
        }
        let message = format!(
            "a call of {name} was never made: await it, or call its sync(); or its task was cancelled before it began"
        );
        let Ok(message) = std::ffi::CString::new(message) else { return };
        let warning = py.get_type::<PyRuntimeWarning>();
        // With warnings as errors there is nobody to catch it.
        if let Err(error) = PyErr::warn(py, &warning, &message, 1) {
            error.write_unraisable(py, None);
        }
    });
    // An interpreter that ends hears no warnings.
    _ = warned;
}

/// A call that a task awaits. It yields one future, whose end wakes the task. If the task is cancelled,
/// it is dropped, and with it the call or its result.
#[pyclass(frozen, module = "sluicegate")]
pub(crate) struct Awaited {
    state: Mutex<State>,
}

enum State {
    Ready(Ready),
    Waits(Waits),
    Ended,
}

/// A call that the runtime makes.
struct Waits {
    /// The future that was not yielded yet.
    future: Option<Py<PyAny>>,
    inbox: Py<Inbox>,
    number: u64,
    result: Arc<Mutex<Option<Ready>>>,
    /// The task that ends with the call that waits for it.
    task: Option<AbortHandle>,
}

impl Drop for Waits {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
        self.inbox.get().forget(self.number);
    }
}

impl Awaited {
    pub(crate) fn begin(
        event_loop: &Bound<'_, PyAny>,
        home: Home,
        begin: Begin,
        mut work: Work,
    ) -> PyResult<Self> {
        let (py, runtime) = (event_loop.py(), home.runtime()?);
        if begin == Begin::Here {
            let _in_runtime = runtime.enter();
            let mut context = Context::from_waker(TaskWaker::noop());
            // If it is not decided here, the runtime asks again.
            if let Poll::Ready(result) = work.as_mut().poll(&mut context) {
                return Ok(Self { state: Mutex::new(State::Ready(result)) });
            }
        }
        let future = event_loop.call_method0("create_future")?.unbind();
        let inbox = Inbox::of(event_loop)?.unbind();
        let waker = inbox.get().expect(future.clone_ref(py));
        let (number, slot) = (waker.number(), Arc::new(Mutex::new(None)));
        let result = Arc::clone(&slot);
        let task = runtime.spawn(async move {
            // Dropped last: with the result in its place, or because the call was aborted.
            let _waker = waker;
            let ready = work.await;
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(ready);
        });
        let task = (begin != Begin::Detached).then(|| task.abort_handle());
        let future = Some(future);
        let state = State::Waits(Waits { future, inbox, number, result, task });
        Ok(Self { state: Mutex::new(state) })
    }
}

#[pymethods]
impl Awaited {
    fn __await__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let State::Waits(waits) = &mut *state
            && let Some(future) = waits.future.take()
        {
            // The protocol of asyncio for a future that a task waits for.
            future.bind(py).setattr("_asyncio_future_blocking", true)?;
            return Ok(future);
        }
        let result = match std::mem::replace(&mut *state, State::Ended) {
            State::Ready(result) => Some(result),
            State::Waits(waits) => {
                waits.result.lock().unwrap_or_else(PoisonError::into_inner).take()
            }
            State::Ended => None,
        };
        drop(state);
        let result = result.ok_or_else(|| PyRuntimeError::new_err("the call did not end"))?;
        Err(PyStopIteration::new_err((result(py)?,)))
    }
}
