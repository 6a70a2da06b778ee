//! Sorts a server's error by its meaning for a call: nothing was done, it may have been done, or a
//! person must act.

use redis::{ErrorKind, RedisError, ServerErrorKind, make_extension_error};
use sluicegate_core::ItemError;

use crate::store_error::{BoxError, SetupError, StoreFailure};
use crate::table::TableError;

/// The prefix of a script's error for a value that is not a bucket.
const BROKEN: &str = "BROKEN";

pub(super) fn of(error: RedisError) -> TableError {
    use ServerErrorKind::{
        Ask, BusyLoading, ClusterDown, MasterDown, Moved, NoPerm, ReadOnly, TryAgain,
    };
    let error = of_command(error);
    match error.kind() {
        ErrorKind::Server(Moved | Ask | TryAgain) => TableError::Conflict,
        // A server that starts, or a failover in progress.
        ErrorKind::Server(BusyLoading | ClusterDown | MasterDown | ReadOnly) => failed(error),
        ErrorKind::Server(NoPerm) | ErrorKind::AuthenticationFailed => {
            SetupError::Denied(error.into()).into()
        }
        ErrorKind::Server(_) | ErrorKind::Extension => of_code(error),
        ErrorKind::Io | ErrorKind::Parse | ErrorKind::ClusterConnectionNotFound => {
            TableError::Unconfirmed(error.into())
        }
        _ => SetupError::Rejected(error.into()).into(),
    }
}

/// The error of the command inside a script. Redis before 7 wraps it: `Error running script
/// (call to f_30c1): @user_script:226: @user_script: 226: -READONLY You can't`.
fn of_command(error: RedisError) -> RedisError {
    let detail = error.detail().and_then(|detail| detail.strip_prefix("Error running script"));
    let Some((_, mut inner)) = detail.and_then(|detail| detail.split_once("): ")) else {
        return error;
    };
    while let Some((_, rest)) =
        inner.strip_prefix("@user_script:").and_then(|rest| rest.split_once(": "))
    {
        inner = rest;
    }
    match inner.trim_start_matches('-').split_once(' ') {
        Some((code, detail)) if code.bytes().all(|byte| byte.is_ascii_uppercase()) => {
            make_extension_error(code.to_owned(), Some(detail.to_owned()))
        }
        // An error of Lua itself.
        _ => error,
    }
}

fn of_code(error: RedisError) -> TableError {
    let detail = error.detail().unwrap_or_default();
    match error.code() {
        Some("NOAUTH" | "WRONGPASS") => SetupError::Denied(error.into()).into(),
        // It cannot save a write, has no memory or too few replicas to keep it, or has become a
        // replica: it can serve no request.
        Some("MISCONF" | "OOM" | "NOREPLICAS" | "READONLY") => failed(error),
        // Another client's script takes its time.
        Some("BUSY") => TableError::Throttled(error.into()),
        Some("WRONGTYPE") => broken("this name", "the value", "a string"),
        Some(BROKEN) => {
            // The server appends the position in the script.
            let detail = detail.rsplit_once(" script: ").map_or(detail, |(detail, _)| detail);
            let (field, bucket) = detail.split_once(" of ").unwrap_or((detail, "this name"));
            broken(bucket, field, "what a bucket has there")
        }
        _ => SetupError::Rejected(error.into()).into(),
    }
}

/// A value that is not a bucket.
pub(super) fn broken(bucket: &str, attribute: &str, expected: &'static str) -> TableError {
    let source = ItemError::WrongType { attribute: attribute.to_owned(), expected };
    SetupError::BrokenItem { bucket: bucket.to_owned(), source: source.into() }.into()
}

fn failed(error: RedisError) -> TableError {
    TableError::Unconfirmed(StoreFailure(error.into()).into())
}

/// True if the server is a replica, which serves no request.
pub(super) fn is_read_only(error: RedisError) -> bool {
    let error = of_command(error);
    error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly) || error.code() == Some("READONLY")
}

/// An answer that none of the scripts gives.
pub(super) fn odd(answer: BoxError) -> TableError {
    SetupError::Rejected(answer).into()
}

/// True if a call that ended with this error may have been done nevertheless.
pub(super) fn leaves_in_doubt(table_error: &TableError) -> bool {
    // A script that answers with an error has written nothing.
    matches!(table_error, TableError::Unconfirmed(source) if !source.is::<StoreFailure>())
        && !was_not_sent(table_error)
}

/// True if a call that ended with this error did not leave the process.
pub(super) fn was_not_sent(table_error: &TableError) -> bool {
    let TableError::Unconfirmed(source) = table_error else { return false };
    source.downcast_ref().is_some_and(|error: &RedisError| {
        error.is_connection_refusal() || error.kind() == ErrorKind::ClusterConnectionNotFound
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_serves_nobody_has_failed_and_done_nothing() {
        for code in ["MISCONF", "NOREPLICAS", "OOM", "READONLY"] {
            let table_error = of(make_extension_error(code.to_owned(), Some("why".to_owned())));
            assert!(!leaves_in_doubt(&table_error), "{table_error:?}");
            let TableError::Unconfirmed(source) = table_error else {
                panic!("{code}: {table_error:?}")
            };
            assert!(source.is::<StoreFailure>(), "{source:?}");
        }
        let other = of(make_extension_error("ELSE".to_owned(), None));
        assert!(matches!(other, TableError::Setup(SetupError::Rejected(_))), "{other:?}");
    }

    fn said(detail: &str) -> TableError {
        of(make_extension_error("ERR".to_owned(), Some(detail.to_owned())))
    }

    #[test]
    fn the_error_of_a_command_counts_where_the_server_wraps_it() {
        let wrapped = "Error running script (call to f_30c1): @user_script:226: ";
        for error in ["@user_script: 226: -READONLY You can't write", "NOREPLICAS Not enough"] {
            assert!(
                matches!(said(&format!("{wrapped}{error}")), TableError::Unconfirmed(_)),
                "{error}"
            );
        }
        let wrong = said(&format!("{wrapped}WRONGTYPE Operation against a key"));
        assert!(matches!(wrong, TableError::Setup(SetupError::BrokenItem { .. })), "{wrong:?}");
        let lua = said(&format!("{wrapped}attempt to compare nil with number"));
        assert!(matches!(lua, TableError::Setup(SetupError::Rejected(_))), "{lua:?}");
    }
}
