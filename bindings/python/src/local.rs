//! The embedded engine in this process, with the processor that counts its usage windows.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use sluicegate_local::{Error, LocalLoop, LoopOptions, Storage, client};
use sluicegate_processor::Settings;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::errors::{SetupError, invalid, text};
use crate::limiter::Limiter;
use crate::options;
use crate::runtime::Home;

/// The embedded engine: a context in which its limiters work. Its end counts what was written.
#[pyclass(frozen, module = "sluicegate")]
pub(crate) struct Local {
    settings: Settings,
    storage: Storage,
    running: Mutex<Option<Running>>,
}

struct Running {
    home: Home,
    endpoint_url: String,
    end: oneshot::Sender<()>,
    engine: JoinHandle<Result<(), Error>>,
}

/// The embedded engine in this process, for tests and first steps, with its usage windows. It keeps
/// nothing, unless `data` names a file.
#[pyfunction]
#[pyo3(signature = (*, table="sluicegate-limits", windows="hour,day", data=None))]
pub(crate) fn local(
    table: &str,
    windows: &str,
    data: Option<std::path::PathBuf>,
) -> PyResult<Local> {
    let mut settings = Settings::new(table);
    settings.window_kinds = windows.parse().map_err(invalid)?;
    let storage = data.map_or(Storage::Temporary, Storage::File);
    Ok(Local { settings, storage, running: Mutex::new(None) })
}

#[pymethods]
impl Local {
    fn __enter__(slf: Py<Self>, py: Python<'_>) -> PyResult<Py<Self>> {
        let local = slf.get();
        if local.running().is_some() {
            return Err(PyRuntimeError::new_err("this engine runs already"));
        }
        let home = Home::here(py)?;
        let (settings, storage) = (local.settings.clone(), local.storage.clone());
        let options = LoopOptions { port: 0, storage, settings, observer: None };
        let engine = home.wait(py, LocalLoop::start(options))?.map_err(|error| failed(&error))?;
        let endpoint_url = engine.endpoint_url();
        let (end, ends) = oneshot::channel();
        let engine = home.runtime()?.spawn(async move {
            // A dropped sender ends it, too.
            let ends = async { _ = ends.await };
            engine.run_until(ends).await
        });
        let mut running = local.running();
        if running.is_some() {
            // Another thread was faster: this engine ends as its sender is dropped.
            return Err(PyRuntimeError::new_err("this engine runs already"));
        }
        *running = Some(Running { home, endpoint_url, end, engine });
        drop(running);
        Ok(slf)
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let Some(running) = self.running().take() else { return Ok(()) };
        if running.home.runtime().is_err() {
            // A child that was forked inside the block leaves it: the engine is the parent's.
            return Ok(());
        }
        _ = running.end.send(());
        match running.home.wait(py, running.engine)? {
            Ok(ended) => ended.map_err(|error| failed(&error)),
            Err(error) => Err(SetupError::new_err(error.to_string())),
        }
    }

    /// The endpoint of its DynamoDB, on loopback.
    #[getter]
    fn endpoint_url(&self) -> PyResult<String> {
        match &*self.running() {
            Some(running) => Ok(running.endpoint_url.clone()),
            None => Err(PyRuntimeError::new_err("the engine does not run: enter it by `with`")),
        }
    }

    /// The name of the table.
    #[getter]
    fn table(&self) -> &str {
        &self.settings.table
    }

    /// A limiter on its table.
    #[pyo3(signature = (**settings))]
    fn limiter(&self, py: Python<'_>, settings: Option<&Bound<'_, PyDict>>) -> PyResult<Limiter> {
        let (url, home) = (self.endpoint_url()?, Home::here(py)?);
        let settings = options::Settings::read(settings)?;
        Limiter::on_table(home, settings, client::dynamodb(&url), self.table())
    }
}

impl Local {
    fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn failed(error: &Error) -> PyErr {
    SetupError::new_err(format!("the embedded engine failed: {}", text(error)))
}
