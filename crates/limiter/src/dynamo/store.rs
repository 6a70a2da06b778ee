//! A store of composite buckets on a table of DynamoDB.

use super::dynamo_table::DynamoTable;
use crate::composite::CompositeStore;

/// Balances on DynamoDB.
pub type DynamoStore = CompositeStore<DynamoTable>;

impl CompositeStore<DynamoTable> {
    /// The table `table` on DynamoDB. The client's own retries are turned off, whatever its
    /// settings: a write that may have been applied must not be repeated blindly.
    #[must_use]
    pub fn new(client: aws_sdk_dynamodb::Client, table: impl AsRef<str>) -> Self {
        Self::with_table(DynamoTable::new(&client, table))
    }
}
