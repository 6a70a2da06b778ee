//! The reasons why DynamoDB did not execute a request, sorted by what the caller can do about them.

use aws_sdk_dynamodb::config::http::HttpResponse;
use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use sluicegate_core::ErrorClass;

use super::table_error::{self, EmptyAnswer};
use crate::store_error::BoxError;

/// A request that failed. The source is DynamoDB's error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The table does not exist in this account and region.
    #[error(
        "table {table} does not exist; deploy template.yaml or create it with `sluicegate::dynamo::create_table`"
    )]
    MissingTable {
        /// Name of the table.
        table: String,
        /// The SDK's error.
        source: BoxError,
    },

    /// The credentials are not valid, have expired, or lack a permission.
    #[error(
        "access denied to {operation} on table {table}: renew the credentials if they have expired, otherwise allow dynamodb:{operation} on the table and its indexes"
    )]
    AccessDenied {
        /// The API operation.
        operation: &'static str,
        /// Name of the table.
        table: String,
        /// The SDK's error.
        source: BoxError,
    },

    /// The table, or the account, takes no more requests now.
    #[error("{operation} on table {table} was throttled; try again, more slowly")]
    Throttled {
        /// The API operation.
        operation: &'static str,
        /// Name of the table.
        table: String,
        /// The SDK's error.
        source: BoxError,
    },

    /// There was no answer: the endpoint is out of reach or too slow.
    #[error(
        "no answer to {operation} on table {table}; check the endpoint, the network and the credentials"
    )]
    NoAnswer {
        /// The API operation.
        operation: &'static str,
        /// Name of the table.
        table: String,
        /// The SDK's error.
        source: BoxError,
    },

    /// DynamoDB answered with an internal failure.
    #[error("DynamoDB failed at {operation} on table {table}; try again, or look at its health")]
    Internal {
        /// The API operation.
        operation: &'static str,
        /// Name of the table.
        table: String,
        /// The SDK's error.
        source: BoxError,
    },

    /// Any other error: there are no credentials or no region, or the request is invalid, or meets
    /// another write of the same item.
    #[error("{operation} failed for table {table}")]
    Failed {
        /// The API operation.
        operation: &'static str,
        /// Name of the table.
        table: String,
        /// The SDK's error.
        source: BoxError,
    },
}

impl RequestError {
    /// Sorts an error of a call on a table.
    pub(crate) fn of<E>(
        operation: &'static str,
        table: &str,
        error: SdkError<E, HttpResponse>,
    ) -> Self
    where
        E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
    {
        let table = table.to_owned();
        let class = table_error::class(&error);
        let is_sent = !table_error::is_of_caller(&error);
        let source = error.into();
        match class {
            None if is_sent => Self::NoAnswer { operation, table, source },
            Some(ErrorClass::NoTable) => Self::MissingTable { table, source },
            Some(ErrorClass::Denied) => Self::AccessDenied { operation, table, source },
            Some(ErrorClass::Throttled) => Self::Throttled { operation, table, source },
            Some(ErrorClass::StoreFailed) => Self::Internal { operation, table, source },
            None | Some(ErrorClass::Conflict | ErrorClass::Invalid | ErrorClass::Rejected) => {
                Self::Failed { operation, table, source }
            }
        }
    }

    /// An answer that lacks the requested data.
    pub(crate) fn empty(operation: &'static str, table: &str) -> Self {
        Self::NoAnswer { operation, table: table.to_owned(), source: EmptyAnswer.into() }
    }

    /// A request that could not be built.
    pub(crate) fn failed(
        operation: &'static str,
        table: &str,
        source: impl Into<BoxError>,
    ) -> Self {
        Self::Failed { operation, table: table.to_owned(), source: source.into() }
    }
}

#[cfg(test)]
mod tests {
    use aws_sdk_dynamodb::error::ErrorMetadata;
    use aws_sdk_dynamodb::operation::query::QueryError;

    use super::*;

    fn of(code: &str) -> RequestError {
        let metadata = ErrorMetadata::builder().code(code).message("why").build();
        let answer = HttpResponse::new(400.try_into().unwrap(), "".into());
        let error = SdkError::service_error(QueryError::generic(metadata), answer);
        RequestError::of("Query", "t", error)
    }

    #[test]
    fn a_message_says_what_to_do_next() {
        for (code, message) in [
            (
                "ResourceNotFoundException",
                "table t does not exist; deploy template.yaml or create it with `sluicegate::dynamo::create_table`",
            ),
            (
                "AccessDeniedException",
                "access denied to Query on table t: renew the credentials if they have expired, otherwise allow dynamodb:Query on the table and its indexes",
            ),
            (
                "ExpiredTokenException",
                "access denied to Query on table t: renew the credentials if they have expired, otherwise allow dynamodb:Query on the table and its indexes",
            ),
            (
                "InternalServerError",
                "DynamoDB failed at Query on table t; try again, or look at its health",
            ),
            ("ThrottlingException", "Query on table t was throttled; try again, more slowly"),
            ("ValidationException", "Query failed for table t"),
        ] {
            let error = of(code);
            assert_eq!(error.to_string(), message);
            assert!(std::error::Error::source(&error).is_some());
        }
        let timeout: SdkError<QueryError, HttpResponse> = SdkError::timeout_error("3 s");
        let error = RequestError::of("Query", "t", timeout);
        assert!(matches!(error, RequestError::NoAnswer { .. }), "{error:?}");
    }
}
