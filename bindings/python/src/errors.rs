//! The exceptions of the package.

use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;
use sluicegate::error::InvalidRequest;
use sluicegate::{AcquireError, AdjustError};

use crate::status::{LimitStatus, statuses};

create_exception!(_native, SluicegateError, PyException, "The base of all exceptions here.");
create_exception!(
    _native,
    LimitExceededError,
    SluicegateError,
    "A limit is short. `retry_after` is a `timedelta`, or `None` if waiting does not help; `limits` \
     has the status of each limit."
);
create_exception!(
    _native,
    NeverAdmissibleError,
    SluicegateError,
    "The request asks for more than a full bucket holds. `limits` has the status of each limit."
);
create_exception!(
    _native,
    ContendedError,
    SluicegateError,
    "Too many other writers at once: nothing was taken."
);
create_exception!(
    _native,
    UnavailableError,
    SluicegateError,
    "The store did not answer. After an adjustment it may be repeated."
);
create_exception!(
    _native,
    InvalidRequestError,
    PyValueError,
    "A name, an amount or a limit is not valid."
);
create_exception!(
    _native,
    SetupError,
    SluicegateError,
    "Permissions, the table or an item must be repaired first."
);

/// The exception for an acquire that was not granted.
pub(crate) fn of_acquire(py: Python<'_>, error: AcquireError) -> PyErr {
    let message = error.to_string();
    let (exception, limits, retry_after) = match error {
        AcquireError::LimitExceeded(exceeded) => {
            let error = LimitExceededError::new_err(message);
            (error, Some(exceeded.limits), Some(exceeded.retry_after))
        }
        AcquireError::NeverAdmissible(never) => {
            (NeverAdmissibleError::new_err(message), Some(never.limits), None)
        }
        AcquireError::Contended { .. } => (ContendedError::new_err(message), None, None),
        AcquireError::Unavailable(_) => (UnavailableError::new_err(message), None, None),
        AcquireError::InvalidRequest(invalid) => (invalid_request(&invalid), None, None),
        _ => (SetupError::new_err(message), None, None),
    };
    let value = exception.value(py);
    let told: PyResult<()> = (|| {
        if let Some(limits) = limits {
            let limits: Vec<LimitStatus> = statuses(py, &limits)?;
            value.setattr("limits", limits)?;
        }
        if let Some(retry_after) = retry_after {
            value.setattr("retry_after", retry_after)?;
        }
        Ok(())
    })();
    told.err().unwrap_or(exception)
}

/// The exception for an adjustment that was not made.
pub(crate) fn of_adjust(error: &AdjustError) -> PyErr {
    match error {
        AdjustError::InvalidRequest(invalid) => invalid_request(invalid),
        AdjustError::Setup(_) => SetupError::new_err(error.to_string()),
        AdjustError::Contended => ContendedError::new_err(error.to_string()),
        _ => UnavailableError::new_err(error.to_string()),
    }
}

pub(crate) fn invalid_request(invalid: &InvalidRequest) -> PyErr {
    InvalidRequestError::new_err(invalid.to_string())
}

pub(crate) fn invalid(error: impl ToString) -> PyErr {
    InvalidRequestError::new_err(error.to_string())
}
