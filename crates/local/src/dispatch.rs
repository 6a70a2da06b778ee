//! Dispatches DynamoDB's operations by name to the engine in this process.

use dynoxide::{Database, DynoxideError};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Answers `operation` as JSON; `None` for an operation that the engine lacks.
pub(crate) fn answer(
    database: &Database,
    operation: &str,
    body: &[u8],
) -> Option<Result<String, DynoxideError>> {
    /// A line for each operation: its name and the engine's method.
    macro_rules! operations {
        ($($name:literal => $method:ident),* $(,)?) => {
            match operation {
                $($name => call(body, |request| database.$method(request)),)*
                _ => return None,
            }
        };
    }
    if matches!(operation, "CreateTable" | "DeleteTable")
        && let Some(refusal) = reserved(body)
    {
        return Some(Err(refusal));
    }
    Some(operations! {
        "BatchExecuteStatement" => batch_execute_statement,
        "BatchGetItem" => batch_get_item,
        "BatchWriteItem" => batch_write_item,
        "CreateTable" => create_table,
        "DeleteItem" => delete_item,
        "DeleteTable" => delete_table,
        "DescribeStream" => describe_stream,
        "DescribeTable" => describe_table,
        "DescribeTimeToLive" => describe_time_to_live,
        "ExecuteStatement" => execute_statement,
        "ExecuteTransaction" => execute_transaction,
        "GetItem" => get_item,
        "GetRecords" => get_records,
        "GetShardIterator" => get_shard_iterator,
        "ListStreams" => list_streams,
        "ListTables" => list_tables,
        "ListTagsOfResource" => list_tags_of_resource,
        "PutItem" => put_item,
        "Query" => query,
        "Scan" => scan,
        "TagResource" => tag_resource,
        "TransactGetItems" => transact_get_items,
        "TransactWriteItems" => transact_write_items,
        "UntagResource" => untag_resource,
        "UpdateItem" => update_item,
        "UpdateTable" => update_table,
        "UpdateTimeToLive" => update_time_to_live,
    })
}

/// The reason why the table named in `body` is not allowed. The engine keeps each table under its
/// own name in SQLite, beside its own tables: deleting one of those would break it.
fn reserved(body: &[u8]) -> Option<DynoxideError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Named {
        table_name: String,
    }
    let Named { table_name } = serde_json::from_slice(body).ok()?;
    let lower = table_name.to_ascii_lowercase();
    let is_reserved = lower.starts_with('_') || lower.starts_with("sqlite_");
    is_reserved.then(|| {
        DynoxideError::ValidationException(format!(
            "the engine reserves the name {table_name}, as all that begin with '_' or 'sqlite_': take another"
        ))
    })
}

fn call<Q: DeserializeOwned, A: Serialize>(
    body: &[u8],
    operation: impl FnOnce(Q) -> Result<A, DynoxideError>,
) -> Result<String, DynoxideError> {
    let request = serde_json::from_slice(body).map_err(|error| unreadable(&error.to_string()))?;
    let answer = operation(request)?;
    serde_json::to_string(&answer)
        .map_err(|error| DynoxideError::InternalServerError(error.to_string()))
}

/// The error for a value that DynamoDB would read and then refuse; the engine's request types mark
/// it.
fn unreadable(why: &str) -> DynoxideError {
    match why.split_once(':') {
        Some((mark, why)) if mark.starts_with("VALIDATION") => {
            DynoxideError::ValidationException(why.to_owned())
        }
        Some((mark, why)) if mark.starts_with("SERIALIZATION") => {
            DynoxideError::SerializationException(why.to_owned())
        }
        _ => DynoxideError::SerializationException(why.to_owned()),
    }
}
