//! The error of a request that was neither granted nor refused. If one error of the table concerns
//! several requests, each gets a copy. An error means one thing between the store and the guard,
//! and sometimes another to the caller of the limiter:
//!
//! | error | from the store to the guard | from the guard to the caller |
//! |---|---|---|
//! | `Contended` | nothing was taken | tokens may have been taken |
//! | `Unavailable` with `Contended` inside | tokens may have been taken; the store answers | (the guard unwraps it: `Contended`) |
//! | `Setup` | nothing was taken | nothing was taken |
//! | `Unavailable` with `Setup` inside | tokens may have been taken; the store answers | the same |
//! | any other `Unavailable` | an outage | an outage; the policy is `Deny`, or it is `Local` and the process knows no limit to decide by |
//!
//! So a caller of the limiter must expect that tokens were taken after each of them but `Setup`.
//! With `CascadeMode::Compensating`, tokens may also have been taken from the other of two buckets.
//! Then `Contended` and `Setup` are wrapped in `Unavailable`, too; an `InvalidRequest` is not.

use crate::call::CallContext;
use crate::error::AcquireError;
use crate::store_error::{SetupError, copy_of};
use crate::table::TableError;

/// The error of a request that has no more time.
///
/// * `table_error` is the error of the lane's last call that was answered or given up as silent
///   (`Unconfirmed`). It may be older than the request.
/// * `is_silent`: a call was in flight when the time was over, and the table has answered no call
///   since the request entered.
pub(super) fn error_at_deadline(
    is_in_doubt: bool,
    is_silent: bool,
    table_error: Option<&TableError>,
    context: &CallContext<'_>,
) -> AcquireError {
    let contended = AcquireError::Contended { attempts: context.cost.attempts };
    match table_error {
        Some(TableError::Unconfirmed(cause)) => AcquireError::Unavailable(copy_of(cause)),
        // The table's newest answer was throttling or a conflict. (If the table is silent, that
        // answer is older than the request, and does not count.)
        Some(_) if !is_silent => unavailable_if_in_doubt(is_in_doubt, contended),
        _ if is_silent || is_in_doubt => {
            AcquireError::Unavailable("the table did not answer in time".into())
        }
        // For example in a pause.
        _ => contended,
    }
}

/// Wraps `Contended` and `Setup` in `Unavailable` if tokens may have been taken.
pub(super) fn unavailable_if_in_doubt(is_in_doubt: bool, error: AcquireError) -> AcquireError {
    match error {
        AcquireError::Contended { .. } | AcquireError::Setup(_) if is_in_doubt => {
            AcquireError::Unavailable(error.into())
        }
        error => error,
    }
}

/// The error of an unusable table, for each of the requests of one write.
pub(super) fn setup_error(table_error: Option<&TableError>) -> SetupError {
    match table_error {
        Some(TableError::Setup(error)) => error.copy(),
        _ => SetupError::Rejected("the table does not say why".into()),
    }
}
