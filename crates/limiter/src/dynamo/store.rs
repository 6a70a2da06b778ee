//! A store of composite buckets on a table of DynamoDB.

use super::dynamo_table::DynamoTable;
use crate::composite::CompositeStore;

/// Balances on DynamoDB.
pub type DynamoStore = CompositeStore<DynamoTable>;

impl CompositeStore<DynamoTable> {
    /// The table `table` on DynamoDB. Acquires, corrections and peeks do not use the client's own
    /// retries, whatever its settings: a write that may have been applied must not be repeated
    /// blindly. The calls that store limits and entities, or read usage, use the client as it is
    /// given.
    #[must_use]
    pub fn new(client: aws_sdk_dynamodb::Client, table: impl AsRef<str>) -> Self {
        Self::with_table(DynamoTable::new(&client, table))
    }
}
