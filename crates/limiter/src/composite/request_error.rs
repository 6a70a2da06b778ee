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
//! | any other `Unavailable` | an outage | an outage, which the outage policy did not bridge |

use crate::call::CallContext;
use crate::error::AcquireError;
use crate::store_error::{SetupError, copy_of};
use crate::table::TableError;

/// The error of a request that has no more time: `Contended`, alone or inside `Unavailable`, or an
/// outage. `is_silent`: a call was in flight when the time was over, and the table has answered no
/// call since the request entered.
pub(super) fn error_at_deadline(
    is_in_doubt: bool,
    is_silent: bool,
    table_error: Option<&TableError>,
    context: &CallContext<'_>,
) -> AcquireError {
    let contended = AcquireError::Contended { attempts: context.cost.attempts };
    match table_error {
        Some(TableError::Unconfirmed(cause)) => AcquireError::Unavailable(copy_of(cause)),
        Some(_) => unavailable_if_in_doubt(is_in_doubt, contended),
        None if is_silent || is_in_doubt => {
            AcquireError::Unavailable("the table did not answer in time".into())
        }
        None => contended,
    }
}

/// Wraps an error in `Unavailable` if tokens may have been taken.
pub(super) fn unavailable_if_in_doubt(is_in_doubt: bool, error: AcquireError) -> AcquireError {
    if is_in_doubt { AcquireError::Unavailable(error.into()) } else { error }
}

/// The error of an unusable table, for each of the requests of one write.
pub(super) fn setup_error(table_error: Option<&TableError>) -> SetupError {
    match table_error {
        Some(TableError::Setup(error)) => error.copy(),
        _ => SetupError::Rejected("the table does not say why".into()),
    }
}
