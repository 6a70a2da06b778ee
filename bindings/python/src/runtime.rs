//! The runtime that all limiters of a process share.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::IntoPyDict as _;
use tokio::runtime::{Builder, Runtime};

/// The time between looks for a signal, such as Ctrl-C.
const SIGNALS_EVERY: Duration = Duration::from_millis(100);

/// The threads of the runtime: they wait for the network most of the time.
const THREADS: usize = 2;

/// The process in which an object was made, and its runtime.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Home {
    forks: u32,
    runtime: &'static Runtime,
}

/// The forks between the first process and this one. To ask for the process's id would take longer than
/// a decision in memory.
static FORKS: AtomicU32 = AtomicU32::new(0);

pub(crate) fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

#[pyfunction]
fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Counts the forks from now on: Python tells each child, also of a program in C that forks as Python
/// requires.
pub(crate) fn count_forks(py: Python<'_>) -> PyResult<()> {
    let hook = [("after_in_child", wrap_pyfunction!(count_fork, py)?)].into_py_dict(py)?;
    py.import("os")?.call_method("register_at_fork", (), Some(&hook)).map(drop)
}

/// The runtime of this process. It is never dropped: in a child of a fork, the parent's has no threads.
/// The lock is held with the interpreter's lock only, so a fork never copies it locked.
static NEWEST: Mutex<Option<Home>> = Mutex::new(None);

impl Home {
    /// This process, with a runtime of its own.
    ///
    /// # Errors
    /// If the threads cannot be started.
    pub(crate) fn here(_: Python<'_>) -> PyResult<Self> {
        let mut newest = NEWEST.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(home) = newest.filter(|home| home.is_here()) {
            return Ok(home);
        }
        let mut builder = Builder::new_multi_thread();
        let runtime =
            builder.worker_threads(THREADS).thread_name("sluicegate").enable_all().build();
        let runtime = Box::leak(Box::new(runtime?));
        Ok(*newest.insert(Self { forks: forks(), runtime }))
    }

    fn is_here(&self) -> bool {
        self.forks == forks()
    }

    /// The runtime.
    ///
    /// # Errors
    /// After a fork: the threads of the runtime are in the other process.
    pub(crate) fn runtime(self) -> PyResult<&'static Runtime> {
        if self.is_here() {
            return Ok(self.runtime);
        }
        Err(PyRuntimeError::new_err(
            "this limiter was made before a fork, and its threads are in the other process: make a limiter in each process",
        ))
    }

    /// Runs a future in the background, unless this is another process.
    pub(crate) fn spawn(self, future: impl Future<Output = ()> + Send + 'static) {
        if self.is_here() {
            self.runtime.spawn(future);
        }
    }

    /// Runs a future to its end, without the interpreter's lock.
    ///
    /// # Errors
    /// After a fork. The exception of a signal handler, such as `KeyboardInterrupt`; then the future or
    /// its output is dropped.
    pub(crate) fn wait<F>(self, py: Python<'_>, future: F) -> PyResult<F::Output>
    where
        F: Future + Send,
        F::Output: Send,
    {
        let runtime = self.runtime()?;
        // The future is dropped inside.
        let _in_runtime = runtime.enter();
        let mut future = pin!(future);
        loop {
            let slice = async { tokio::time::timeout(SIGNALS_EVERY, future.as_mut()).await };
            match py.detach(|| runtime.block_on(slice)) {
                Ok(output) => {
                    py.check_signals()?;
                    return Ok(output);
                }
                Err(_) => py.check_signals()?,
            }
        }
    }
}
