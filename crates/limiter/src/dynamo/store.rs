//! A store of composite buckets on a table of DynamoDB.

use super::dynamo_table::DynamoTable;
use crate::composite::CompositeStore;

/// Balances on DynamoDB.
pub type DynamoStore = CompositeStore<DynamoTable>;

impl CompositeStore<DynamoTable> {
    /// The table `table` on DynamoDB. The calls of a limiter do not use the client's own retries,
    /// whatever its settings: a write that may have been applied must not be repeated blindly.
    /// [`DynamoTable::config`] and [`DynamoTable::reader`] use the client as it is given.
    #[must_use]
    pub fn new(client: aws_sdk_dynamodb::Client, table: impl AsRef<str>) -> Self {
        Self::with_table(DynamoTable::new(&client, table))
    }
}
