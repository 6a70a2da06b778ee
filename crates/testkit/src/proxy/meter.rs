//! Capacity units of the requests that pass a proxy, as the engine reports them.

use bytes::Bytes;
use serde_json::{Value, json};

const READS: [&str; 5] = ["BatchGetItem", "GetItem", "Query", "Scan", "TransactGetItems"];
const WRITES: [&str; 5] =
    ["BatchWriteItem", "DeleteItem", "PutItem", "TransactWriteItems", "UpdateItem"];

/// Capacity units.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Units {
    /// Units of reads.
    pub read: f64,
    /// Units of writes, failed conditions included.
    pub write: f64,
}

/// True if the operation changes items.
pub(super) fn is_write(operation: &str) -> bool {
    WRITES.contains(&operation)
}

/// The request, changed so that its answer reports its cost; `None` if it has no cost.
pub(super) fn asking(operation: &str, body: &[u8]) -> Option<Bytes> {
    if !READS.contains(&operation) && !is_write(operation) {
        return None;
    }
    let mut request: Value = serde_json::from_slice(body).ok()?;
    request["ReturnConsumedCapacity"] = json!("TOTAL");
    Some(request.to_string().into())
}

impl Units {
    /// Adds the cost of a request from its answer.
    pub(super) fn add(&mut self, operation: &str, answer: &[u8]) {
        let Ok(answer) = serde_json::from_slice::<Value>(answer) else { return };
        let units = match &answer["ConsumedCapacity"] {
            Value::Array(tables) => tables.iter().map(total).sum(),
            Value::Null => failed(&answer),
            table => total(table),
        };
        let is_read = READS.contains(&operation);
        *(if is_read { &mut self.read } else { &mut self.write }) += units;
    }
}

fn total(table: &Value) -> f64 {
    table["CapacityUnits"].as_f64().unwrap_or_default()
}

/// The cost of a failed write. DynamoDB charges a write whose condition fails by the size of the
/// item; here an item counts as a kilobyte at most. A cancelled transaction is charged twice that
/// for each of its items.
fn failed(answer: &Value) -> f64 {
    let kind = answer["__type"].as_str().unwrap_or_default();
    if kind.ends_with("ConditionalCheckFailedException") {
        return 1.0;
    }
    answer["CancellationReasons"]
        .as_array()
        .map_or(0.0, |reasons| reasons.iter().map(|_| 2.0).sum())
}
