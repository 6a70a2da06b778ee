//! The table on DynamoDB.

mod execute;
mod expressions;
mod trouble;

pub use execute::DynamoTable;
