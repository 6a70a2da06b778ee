//! The exceptions of the package.

use std::time::Duration;

use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;
use sluicegate::dynamo::{ConfigError, ReadError, RequestError};
use sluicegate::error::InvalidRequest;
use sluicegate::types::Wait;
use sluicegate::{AcquireError, AdjustError};

use crate::status::{LimitStatus, statuses};

create_exception!(
    sluicegate,
    SluicegateError,
    PyException,
    "The base of all exceptions here, but for `InvalidRequestError` and `InvalidLimitError`."
);
create_exception!(
    sluicegate,
    LimitExceededError,
    SluicegateError,
    "A limit is short. `retry_after` is a `timedelta`, or `None` if waiting does not help; `limits` \
     has the status of each limit."
);
create_exception!(
    sluicegate,
    NeverAdmissibleError,
    SluicegateError,
    "The request asks for more than a full bucket holds. `limits` has the status of each limit."
);
create_exception!(
    sluicegate,
    ContendedError,
    SluicegateError,
    "Too many other writers at once. A write that the deadline ended may still take its tokens."
);
create_exception!(
    sluicegate,
    UnavailableError,
    SluicegateError,
    "The store did not answer. A correction of a permit may be repeated: it is made once."
);
create_exception!(
    sluicegate,
    UnknownPriceError,
    SluicegateError,
    "The price book has no price of the model at that time."
);
create_exception!(
    sluicegate,
    AmbiguousError,
    SluicegateError,
    "The answer to a correction was lost. It may have been made, and counts as made: repeat nothing."
);
create_exception!(
    sluicegate,
    InvalidRequestError,
    PyValueError,
    "A name, an amount or a limit is not valid."
);
create_exception!(
    sluicegate,
    InvalidLimitError,
    InvalidRequestError,
    "A limit is unknown or not valid: the program must name others. Its client is not the cause."
);
create_exception!(
    sluicegate,
    SetupError,
    SluicegateError,
    "Permissions, the table or an item must be repaired first."
);

/// The message of an error and of its sources.
pub(crate) fn text(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let said = error.to_string();
        // Some errors say their source already.
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        source = error.source();
    }
    text
}

/// The longest `timedelta`.
const TIMEDELTA_MAX: Duration = Duration::from_secs(999_999_999 * 86_400);

/// The exception for an acquire that was not granted.
pub(crate) fn of_acquire(py: Python<'_>, error: AcquireError) -> PyErr {
    let message = text(&error);
    let (exception, limits, retry_after) = match error {
        AcquireError::LimitExceeded(exceeded) => {
            let error = LimitExceededError::new_err(message);
            let retry_after = exceeded.retry_after.map(|after| after.min(TIMEDELTA_MAX));
            (error, Some(exceeded.limits), Some(retry_after))
        }
        AcquireError::NeverAdmissible(mut never) => {
            // A limit that is only short at the moment is not the reason.
            for status in never.limits.iter_mut().filter(|it| it.wait != Wait::ExceedsBurst) {
                status.wait = Wait::None;
            }
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
        AdjustError::Setup(_) => SetupError::new_err(text(error)),
        AdjustError::Contended => ContendedError::new_err(text(error)),
        _ if !error.may_be_repeated() => AmbiguousError::new_err(text(error)),
        _ => UnavailableError::new_err(text(error)),
    }
}

/// The exception for stored data that was not read or changed.
pub(crate) fn of_config(error: &ConfigError) -> PyErr {
    match error {
        ConfigError::Request(request) => of_request(request),
        ConfigError::Item(_) => SetupError::new_err(text(error)),
        _ => invalid(error),
    }
}

/// The exception for usage windows that were not read.
pub(crate) fn of_read(error: &ReadError) -> PyErr {
    match error {
        ReadError::Item(_) => SetupError::new_err(text(error)),
        ReadError::Request(request) => of_request(request),
        _ => UnavailableError::new_err(text(error)),
    }
}

fn of_request(error: &RequestError) -> PyErr {
    let message = text(error);
    match error {
        RequestError::Throttled { .. } | RequestError::NoAnswer { .. } => {
            UnavailableError::new_err(message)
        }
        _ => SetupError::new_err(message),
    }
}

pub(crate) fn invalid_request(invalid: &InvalidRequest) -> PyErr {
    let message = invalid.to_string();
    match invalid {
        InvalidRequest::Empty | InvalidRequest::NotLeasing | InvalidRequest::CrossSlot { .. } => {
            InvalidRequestError::new_err(message)
        }
        invalid if invalid.is_of_client() => InvalidRequestError::new_err(message),
        _ => InvalidLimitError::new_err(message),
    }
}

pub(crate) fn invalid(error: impl ToString) -> PyErr {
    InvalidRequestError::new_err(error.to_string())
}
