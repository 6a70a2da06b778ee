//! The code that speaks DynamoDB: the table, its stored configuration, and its readers.
//!
//! `sluicegate_core` decides the meaning of an item; this module reads and sends items.

mod answers;
mod budget;
mod create_table;
mod dynamo_table;
mod expressions;
mod fetch;
mod item;
mod legacy;
mod read_error;
mod readers;
mod request_error;
mod resources;
mod schema_version;
mod store;
mod stored;
mod stored_alerts;
mod stored_expressions;
mod table_error;
mod terms;
mod transact;

pub use budget::{Budget, Lasts};
pub use create_table::{TableSetupError, create_table, stream_arn};
pub use dynamo_table::DynamoTable;
pub use item::BrokenItem;
pub use legacy::{ConvertError, Converted, LegacyPage, Segment};
pub use read_error::ReadError;
pub use readers::Reader;
pub use request_error::RequestError;
pub use schema_version::SchemaVersion;
pub use store::DynamoStore;
pub use stored::{ConfigError, ConfigStore};
