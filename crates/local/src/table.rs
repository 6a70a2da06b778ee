//! Sets up the table of Sluicegate on a local engine, as producers set it up on DynamoDB.

pub use sluicegate::dynamo::{create_table, stream_arn};
