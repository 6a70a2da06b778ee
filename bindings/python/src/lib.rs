//! The native part of the Python package `sluicegate`.
//!
//! It is thin: names and rules are those of the library, and every decision is made there.

mod acquire;
mod amounts;
mod errors;
mod limiter;
mod permit;
mod prepared;
mod runtime;
mod status;

#[pyo3::pymodule]
mod _native {
    #[pymodule_export]
    use crate::acquire::Acquire;
    #[pymodule_export]
    use crate::errors::{
        ContendedError, InvalidRequestError, LimitExceededError, NeverAdmissibleError, SetupError,
        SluicegateError, UnavailableError,
    };
    #[pymodule_export]
    use crate::limiter::Limiter;
    #[pymodule_export]
    use crate::permit::Permit;
    #[pymodule_export]
    use crate::prepared::Prepared;
    #[pymodule_export]
    use crate::status::LimitStatus;
}
