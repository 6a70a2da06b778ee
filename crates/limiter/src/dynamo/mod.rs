//! The table on DynamoDB.

mod expressions;
mod execute;
mod trouble;

pub use execute::DynamoTable;
