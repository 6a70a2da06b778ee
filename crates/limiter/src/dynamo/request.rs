//! Why DynamoDB did not do what it was asked, sorted by what the caller can do about it.

use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};

use super::trouble::EmptyAnswer;
use crate::BoxError;

/// A request that failed. What DynamoDB said is the source.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// There is no such table in this account and region.
    #[error(
        "table {table} is not there; deploy template.yaml or create it with `sluicegate::dynamo::create_table`"
    )]
    MissingTable {
        /// Name of the table.
        table: String,
        /// What the SDK said.
        source: BoxError,
    },

    /// The credentials lack a permission.
    #[error(
        "the credentials may not {operation}; allow dynamodb:{operation} on table {table} and its indexes"
    )]
    AccessDenied {
        /// The API operation.
        operation: &'static str,
        /// Name of the table.
        table: String,
        /// What the SDK said.
        source: BoxError,
    },

    /// The table, or the account, takes no more requests at the moment.
    #[error("{operation} on table {table} was throttled; try again, more slowly")]
    Throttled {
        /// The API operation.
        operation: &'static str,
        /// Name of the table.
        table: String,
        /// What the SDK said.
        source: BoxError,
    },

    /// No answer came: out of reach, too slow, or the credentials are none.
    #[error(
        "no answer to {operation} on table {table}; check the endpoint, the network and the credentials"
    )]
    NoAnswer {
        /// The API operation.
        operation: &'static str,
        /// Name of the table.
        table: String,
        /// What the SDK said.
        source: BoxError,
    },

    /// Anything else: a request that is not acceptable, a failure of DynamoDB.
    #[error("{operation} failed for table {table}")]
    Failed {
        /// The API operation.
        operation: &'static str,
        /// Name of the table.
        table: String,
        /// What the SDK said.
        source: BoxError,
    },
}

impl RequestError {
    /// Sorts an error by its code.
    pub(crate) fn of<E, R>(operation: &'static str, table: &str, error: SdkError<E, R>) -> Self
    where
        E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
        R: std::fmt::Debug + Send + Sync + 'static,
    {
        let table = table.to_owned();
        let code = error.code().map(str::to_owned);
        let no_answer = matches!(error, SdkError::DispatchFailure(_) | SdkError::TimeoutError(_));
        let source = error.into();
        match code.as_deref() {
            _ if no_answer => Self::NoAnswer { operation, table, source },
            Some("ResourceNotFoundException") => Self::MissingTable { table, source },
            Some("AccessDeniedException") => Self::AccessDenied { operation, table, source },
            Some(
                "ProvisionedThroughputExceededException"
                | "RequestLimitExceeded"
                | "ThrottlingException",
            ) => Self::Throttled { operation, table, source },
            _ => Self::Failed { operation, table, source },
        }
    }

    /// An answer that says nothing of what was asked for.
    pub(crate) fn empty(operation: &'static str, table: &str) -> Self {
        Self::NoAnswer { operation, table: table.to_owned(), source: EmptyAnswer.into() }
    }

    /// A request that could not even be built.
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
        let error = SdkError::service_error(QueryError::generic(metadata), ());
        RequestError::of("Query", "t", error)
    }

    #[test]
    fn a_message_says_what_to_do_next() {
        for (code, message) in [
            (
                "ResourceNotFoundException",
                "table t is not there; deploy template.yaml or create it with `sluicegate::dynamo::create_table`",
            ),
            (
                "AccessDeniedException",
                "the credentials may not Query; allow dynamodb:Query on table t and its indexes",
            ),
            ("ThrottlingException", "Query on table t was throttled; try again, more slowly"),
            ("ValidationException", "Query failed for table t"),
        ] {
            let error = of(code);
            assert_eq!(error.to_string(), message);
            assert!(std::error::Error::source(&error).is_some());
        }
        let timeout: SdkError<QueryError, ()> = SdkError::timeout_error("3 s");
        let error = RequestError::of("Query", "t", timeout);
        assert!(matches!(error, RequestError::NoAnswer { .. }), "{error:?}");
    }
}
