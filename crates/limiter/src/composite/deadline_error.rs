//! The error of a request whose time is over: an outage, or contention; and copies of one error of the
//! table for each of the requests that it concerns.

use crate::error::AcquireError;
use crate::store_error::{BoxError, SetupError, StoreFailure, described};
use crate::table::TableError;

/// The error of a request that has no more time. Between the store and the guard, a bare `Contended`
/// says that nothing was taken, or that the lane gives it back if a lost write did take it. A `Contended` in an `Unavailable` says that a write is in doubt although
/// the store answers: tokens may have been taken, but this is no outage. `Guard::take_by` unwraps it, so
/// to the caller `Contended` does not say that nothing was taken.
pub(super) fn error_at_deadline(
    is_in_doubt: bool,
    table_error: Option<&TableError>,
    is_silent: bool,
    attempts: u32,
) -> AcquireError {
    let contended = AcquireError::Contended { attempts };
    match table_error {
        Some(TableError::Unreachable(cause)) => AcquireError::Unavailable(source(cause)),
        Some(_) if is_in_doubt => AcquireError::Unavailable(contended.into()),
        Some(_) => contended,
        None if is_silent || is_in_doubt => {
            AcquireError::Unavailable("the table did not answer in time".into())
        }
        None => contended,
    }
}

/// The error of an unusable table, for each of the requests of one write.
pub(super) fn setup_error(table_error: Option<&TableError>) -> SetupError {
    let Some(TableError::Setup(error)) = table_error else {
        return SetupError::Rejected("the table does not say why".into());
    };
    match error {
        SetupError::NoTable(table) => SetupError::NoTable(table.clone()),
        SetupError::Denied(why) => SetupError::Denied(source(why)),
        SetupError::BrokenItem { bucket, source } => {
            SetupError::BrokenItem { bucket: bucket.clone(), source: source.clone() }
        }
        SetupError::Rejected(why) => SetupError::Rejected(source(why)),
        SetupError::Inconvertible(why) => SetupError::Rejected(why.to_string().into()),
    }
}

/// A copy of an error's source, for each of the requests of one write.
fn source(of: &BoxError) -> BoxError {
    let text = described(of);
    if of.is::<StoreFailure>() { StoreFailure(text.into()).into() } else { text.into() }
}
