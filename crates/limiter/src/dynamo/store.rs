//! A store of composite buckets on a table of DynamoDB.

use super::dynamo_table::DynamoTable;
use crate::composite::CompositeStore;

/// Balances on DynamoDB.
pub type DynamoStore = CompositeStore<DynamoTable>;

impl CompositeStore<DynamoTable> {
    /// The table `table` on DynamoDB. For calls on buckets, the client's own retries are turned
    /// off, whatever its settings: a write that may have been applied must not be repeated blindly.
    /// Stored limits, entities and usage are read and written through the client as it is given.
    #[must_use]
    pub fn new(client: aws_sdk_dynamodb::Client, table: impl AsRef<str>) -> Self {
        Self::with_table(DynamoTable::new(&client, table))
    }
}
