//! The native part of the Python package `sluicegate`.
//!
//! It is thin: names and rules are those of the library, and every decision is made there.

mod acquire;
mod admin;
mod amounts;
mod call;
mod decimals;
mod errors;
mod event_loop;
mod limit;
mod limiter;
mod local;
mod logging;
mod options;
mod permit;
mod prepared;
mod prices;
mod runtime;
mod status;
mod usage;

#[pyo3::pymodule]
mod _native {
    #[pymodule_export]
    use crate::acquire::Acquire;
    #[pymodule_export]
    use crate::admin::Entity;
    #[pymodule_export]
    use crate::call::Call;
    #[pymodule_export]
    use crate::errors::{
        AmbiguousError, ContendedError, InvalidLimitError, InvalidRequestError, LimitExceededError,
        NeverAdmissibleError, SetupError, SluicegateError, UnavailableError, UnknownPriceError,
    };
    #[pymodule_export]
    use crate::limit::Limit;
    #[pymodule_export]
    use crate::limiter::{Limiter, dynamodb, memory, redis};
    #[pymodule_export]
    use crate::local::{Local, local};
    #[pymodule_export]
    use crate::permit::Permit;
    #[pymodule_export]
    use crate::prepared::Prepared;
    #[pymodule_export]
    use crate::prices::{PriceBook, Usage};
    #[pymodule_export]
    use crate::status::LimitStatus;
    #[pymodule_export]
    use crate::usage::{Budget, UsageWindow};

    /// An exception that a program makes itself has the attributes, too. Logs go to Python.
    #[pymodule_init]
    fn init(module: &pyo3::Bound<'_, pyo3::types::PyModule>) -> pyo3::PyResult<()> {
        use pyo3::types::PyAnyMethods as _;
        // It fails if the module was loaded before; then they go there already.
        let _ = tracing::subscriber::set_global_default(crate::logging::ToPython);
        crate::runtime::count_forks(module.py())?;
        let exceeded = module.getattr("LimitExceededError")?;
        exceeded.setattr("retry_after", module.py().None())?;
        for error in [exceeded, module.getattr("NeverAdmissibleError")?] {
            error.setattr("limits", pyo3::types::PyTuple::empty(module.py()))?;
        }
        Ok(())
    }
}
