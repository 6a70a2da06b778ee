//! What an error of DynamoDB means for the write that met it.

use aws_sdk_dynamodb::config::http::HttpResponse;
use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};

use crate::BoxError;
use crate::table::{SetupError, Trouble, WriteError};

/// An answer of 200 that says nothing of what was asked for: it may come from something else than
/// DynamoDB, so the call counts as not answered.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the answer is empty: it does not say what was done")]
pub(crate) struct EmptyAnswer;

impl From<EmptyAnswer> for Trouble {
    fn from(empty: EmptyAnswer) -> Self {
        Self::Away(empty.into())
    }
}

impl From<EmptyAnswer> for WriteError {
    fn from(empty: EmptyAnswer) -> Self {
        Self::Trouble(empty.into())
    }
}

/// Sorts an error of a call on a table.
pub(crate) fn of<E>(table: &str, error: SdkError<E, HttpResponse>) -> Trouble
where
    E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
{
    let status = error.raw_response().map_or(0, |answer| answer.status().as_u16());
    if let Some(code) = error.code() {
        let code = code.to_owned();
        return match of_code(table, &code, error.into()) {
            Trouble::Away(source) => of_status(status, source),
            trouble => trouble,
        };
    }
    match &error {
        // No credentials, no region: the same in a moment.
        SdkError::ConstructionFailure(_) => SetupError::Rejected(error.into()).into(),
        SdkError::DispatchFailure(failure)
            if failure.is_user() || (failure.is_other() && failure.as_other().is_none()) =>
        {
            SetupError::Rejected(error.into()).into()
        }
        _ => of_status(status, error.into()),
    }
}

const REQUEST_TIMEOUT: u16 = 408;
const TOO_MANY_REQUESTS: u16 = 429;

/// Sorts what nobody has a name for. Who answers with 4xx is there, and takes the caller to be wrong:
/// that must not pass for an outage, in which everything is admitted.
fn of_status(status: u16, source: BoxError) -> Trouble {
    match status {
        REQUEST_TIMEOUT => Trouble::Away(source),
        TOO_MANY_REQUESTS => Trouble::Throttled(source),
        400..500 => SetupError::Rejected(source).into(),
        _ => Trouble::Away(source),
    }
}

/// Sorts an error code of DynamoDB, or the code of one item of a cancelled transaction.
pub(crate) fn of_code(table: &str, code: &str, source: BoxError) -> Trouble {
    match code {
        "TransactionConflict"
        | "TransactionConflictException"
        | "TransactionInProgressException" => Trouble::Conflict,
        "ProvisionedThroughputExceededException"
        | "ProvisionedThroughputExceeded"
        | "ThrottlingException"
        | "ThrottlingError"
        | "Throttling"
        | "RequestLimitExceeded" => Trouble::Throttled(source),
        "ResourceNotFoundException" => SetupError::NoTable(table.to_owned()).into(),
        "AccessDeniedException"
        | "AccessDenied"
        | "UnrecognizedClientException"
        | "IncompleteSignatureException"
        | "InvalidSignatureException"
        | "MissingAuthenticationTokenException"
        | "MissingAuthenticationToken"
        | "ExpiredTokenException"
        | "InvalidClientTokenId" => SetupError::Denied(source).into(),
        "ValidationException"
        | "ValidationError"
        | "IdempotentParameterMismatchException"
        | "ItemCollectionSizeLimitExceededException" => SetupError::Rejected(source).into(),
        _ => Trouble::Away(source),
    }
}
