//! Wakes the tasks of an event loop from the threads of the runtime.
//!
//! These threads never take the interpreter's lock: they note which futures are done, and write a byte
//! to a socket that the loop watches. The loop reads all notes at once. A future only wakes its task;
//! the result stays where the task takes it, so a task that was cancelled leaves it there.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::runtime::forks;

/// The inboxes by event loop: a `WeakKeyDictionary`.
static INBOXES: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// The futures of one event loop that wait for the runtime.
#[pyclass(frozen, module = "sluicegate")]
pub(crate) struct Inbox {
    forks: u32,
    notes: Arc<Notes>,
    receiver: UnixStream,
    /// Futures by number, used with the interpreter's lock only.
    waiting: Mutex<(u64, HashMap<u64, Py<PyAny>>)>,
}

/// The numbers of the futures that are done.
struct Notes {
    done: Mutex<Vec<u64>>,
    sender: UnixStream,
}

/// Wakes one task, once, when it is dropped.
pub(crate) struct Waker {
    notes: Arc<Notes>,
    number: u64,
}

impl Waker {
    /// The number of its future.
    pub(crate) const fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for Waker {
    fn drop(&mut self) {
        let mut done = self.notes.done.lock().unwrap_or_else(PoisonError::into_inner);
        done.push(self.number);
        // One byte for all notes that are unread. A full socket has bytes that wake the loop too.
        if done.len() == 1 {
            _ = (&self.notes.sender).write(&[1]);
        }
    }
}

impl Inbox {
    /// The inbox of an event loop; the loop must be the one that runs in this thread.
    ///
    /// # Errors
    /// For a loop that cannot watch a socket, such as that of Windows.
    pub(crate) fn of<'py>(event_loop: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Self>> {
        let py = event_loop.py();
        let inboxes = INBOXES.get_or_try_init(py, || -> PyResult<_> {
            let kind = py.import("weakref")?.getattr("WeakKeyDictionary")?;
            Ok(kind.call0()?.unbind())
        })?;
        let inboxes = inboxes.bind(py);
        let found = inboxes.call_method1("get", (event_loop,))?;
        if let Ok(inbox) = found.cast_into::<Self>()
            && inbox.get().forks == forks()
        {
            return Ok(inbox);
        }
        // A loop that was closed while a call waited is kept by its future.
        for other in inboxes.call_method0("keyrefs")?.try_iter()? {
            let other = other?.call0()?;
            if !other.is_none() && other.call_method0("is_closed")?.is_truthy()? {
                let inbox = inboxes.call_method1("pop", (other, py.None()))?;
                // Its tasks keep the inbox, and the inbox keeps them by their futures.
                if let Ok(inbox) = inbox.cast_into::<Self>() {
                    let waiting = std::mem::take(&mut inbox.get().waiting().1);
                    drop(waiting);
                }
            }
        }
        let (receiver, sender) = UnixStream::pair()?;
        receiver.set_nonblocking(true)?;
        sender.set_nonblocking(true)?;
        let socket = receiver.as_raw_fd();
        let inbox = Bound::new(
            py,
            Self {
                forks: forks(),
                notes: Arc::new(Notes { done: Mutex::default(), sender }),
                receiver,
                waiting: Mutex::default(),
            },
        )?;
        event_loop.call_method1("add_reader", (socket, inbox.getattr("_read")?))?;
        inboxes.set_item(event_loop, &inbox)?;
        Ok(inbox)
    }

    /// Keeps a future that a waker will end.
    pub(crate) fn expect(&self, future: Py<PyAny>) -> Waker {
        let mut waiting = self.waiting();
        let number = waiting.0;
        waiting.0 += 1;
        waiting.1.insert(number, future);
        Waker { notes: Arc::clone(&self.notes), number }
    }

    /// Forgets a future that nobody awaits any more.
    pub(crate) fn forget(&self, number: u64) {
        let forgotten = self.waiting().1.remove(&number);
        drop(forgotten);
    }

    fn waiting(&self) -> MutexGuard<'_, (u64, HashMap<u64, Py<PyAny>>)> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Inbox {
    /// Ends the futures that are noted as done.
    fn _read(&self, py: Python<'_>) -> PyResult<()> {
        let mut bytes = [0; 64];
        while matches!((&self.receiver).read(&mut bytes), Ok(count) if count == bytes.len()) {}
        let done =
            std::mem::take(&mut *self.notes.done.lock().unwrap_or_else(PoisonError::into_inner));
        let mut result = Ok(());
        for number in done {
            let future = self.waiting().1.remove(&number);
            // A signal handler may raise in here: the other tasks must still wake.
            result = future.map_or(Ok(()), |future| end(future.bind(py))).and(result);
        }
        result
    }
}

/// Ends a future, unless it was cancelled.
fn end(future: &Bound<'_, PyAny>) -> PyResult<()> {
    if !future.call_method0("done")?.is_truthy()? {
        future.call_method1("set_result", (future.py().None(),))?;
    }
    Ok(())
}

/// The event loop that runs in this thread.
///
/// # Errors
/// `RuntimeError` if none does.
pub(crate) fn running(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    static GET: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let get = GET.get_or_try_init(py, || -> PyResult<_> {
        Ok(py.import("asyncio")?.getattr("get_running_loop")?.unbind())
    })?;
    get.bind(py).call0()
}
