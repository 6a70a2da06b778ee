//! The runtime that all limiters of a process share.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3_async_runtimes::tokio::get_runtime;

/// The time between looks for a signal, such as Ctrl-C.
const SIGNALS_EVERY: Duration = Duration::from_millis(100);

/// The process in which an object was made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Home(u32);

impl Home {
    pub(crate) fn here() -> Self {
        Self(std::process::id())
    }

    /// # Errors
    /// After a fork: the threads of the runtime are in the other process.
    pub(crate) fn check(self) -> PyResult<()> {
        if self.0 == std::process::id() {
            return Ok(());
        }
        Err(PyRuntimeError::new_err(
            "this limiter was made before a fork, and its threads are in the other process: make a limiter in each process",
        ))
    }
}

/// Runs a future to its end, without the interpreter's lock.
///
/// # Errors
/// The exception of a signal handler, such as `KeyboardInterrupt`; then the future is dropped.
pub(crate) fn wait<F>(py: Python<'_>, future: F) -> PyResult<F::Output>
where
    F: Future + Send,
    F::Output: Send,
{
    let mut future = pin!(future);
    loop {
        let slice = async { tokio::time::timeout(SIGNALS_EVERY, future.as_mut()).await };
        match py.detach(|| get_runtime().block_on(slice)) {
            Ok(output) => return Ok(output),
            Err(_) => py.check_signals()?,
        }
    }
}
