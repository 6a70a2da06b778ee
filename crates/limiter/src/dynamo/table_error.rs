//! Sorts an error of DynamoDB by its meaning for the write that met it.

use std::io::ErrorKind;

use aws_sdk_dynamodb::config::http::HttpResponse;
use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use sluicegate_core::ErrorClass;

use crate::store_error::{BoxError, NoConnection, SetupError, StoreFailure};
use crate::table::{TableError, WriteError};

/// An answer of 200 without the requested data: it may come from something other than DynamoDB, so
/// the call counts as not answered.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the answer is empty: it does not say what was done")]
pub(crate) struct EmptyAnswer;

impl From<EmptyAnswer> for TableError {
    fn from(empty: EmptyAnswer) -> Self {
        Self::Unconfirmed(empty.into())
    }
}

impl From<EmptyAnswer> for WriteError {
    fn from(empty: EmptyAnswer) -> Self {
        Self::Table(empty.into())
    }
}

/// Sorts an error of a call on a table.
pub(crate) fn of<E>(table: &str, error: SdkError<E, HttpResponse>) -> TableError
where
    E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
{
    match class(&error) {
        Some(class) => of_class(table, class, error.into()),
        // There are no credentials or no region: a repetition fails too.
        None if is_of_caller(&error) => SetupError::Rejected(error.into()).into(),
        None if has_no_connection(&error) => {
            TableError::Unconfirmed(NoConnection(error.into()).into())
        }
        None => TableError::Unconfirmed(error.into()),
    }
}

/// True if the request was not sent because no connection could be made. The calls of a table are
/// not repeated by the SDK, so no earlier attempt of the call was sent either.
fn has_no_connection(error: &(dyn std::error::Error + 'static)) -> bool {
    std::iter::successors(Some(error), |error| error.source()).any(|error| {
        let io_error = error.downcast_ref::<std::io::Error>();
        io_error.is_some_and(|error| error.kind() == ErrorKind::ConnectionRefused)
            // The SDK's default client says so for names that do not resolve and for failed
            // handshakes, too. The type behind it is of hyper-util, which is no dependency here.
            || error.to_string() == "client error (Connect)"
    })
}

/// True if the request could not be sent for a reason that lies with the caller.
pub(super) fn is_of_caller<E>(error: &SdkError<E, HttpResponse>) -> bool {
    match error {
        SdkError::ConstructionFailure(_) => true,
        SdkError::DispatchFailure(failure) => {
            failure.is_user() || (failure.is_other() && failure.as_other().is_none())
        }
        _ => false,
    }
}

/// Sorts the code of one item of a cancelled transaction.
pub(crate) fn of_reason(table: &str, code: &str, source: BoxError) -> TableError {
    of_class(table, ErrorClass::of_reason(code), source)
}

/// `None`: there is no answer.
pub(super) fn class<E: ProvideErrorMetadata>(
    error: &SdkError<E, HttpResponse>,
) -> Option<ErrorClass> {
    let status = error.raw_response().map_or(0, |answer| answer.status().as_u16());
    ErrorClass::of_answer(error.code(), status)
}

fn of_class(table: &str, class: ErrorClass, source: BoxError) -> TableError {
    match class {
        ErrorClass::Conflict => TableError::Conflict,
        ErrorClass::Throttled => TableError::Throttled(source),
        ErrorClass::NoTable => SetupError::NoTable(table.to_owned()).into(),
        ErrorClass::Denied => SetupError::Denied(source).into(),
        ErrorClass::Invalid | ErrorClass::Rejected => SetupError::Rejected(source).into(),
        ErrorClass::StoreFailed => TableError::Unconfirmed(StoreFailure(source).into()),
    }
}
