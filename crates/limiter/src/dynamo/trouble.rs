//! What an error of DynamoDB means for the write that met it.

use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};

use crate::BoxError;
use crate::table::{SetupError, Trouble};

/// Sorts an error of a call on a table.
pub(crate) fn of<E, R>(table: &str, error: SdkError<E, R>) -> Trouble
where
    E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
    R: std::fmt::Debug + Send + Sync + 'static,
{
    if let Some(code) = error.code() {
        let code = code.to_owned();
        return of_code(table, &code, error.into());
    }
    match &error {
        // No credentials, no region: the same in a moment.
        SdkError::ConstructionFailure(_) => SetupError::Rejected(error.into()).into(),
        SdkError::DispatchFailure(failure)
            if failure.is_user() || (failure.is_other() && failure.as_other().is_none()) =>
        {
            SetupError::Rejected(error.into()).into()
        }
        _ => Trouble::Away(error.into()),
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
