//! Everything that speaks DynamoDB: the table itself, what is configured in it, what it knows.
//!
//! What an item means is decided in `sluicegate_core`; here it is asked for and sent.

mod execute;
mod expressions;
mod fetch;
mod item;
mod legacy;
mod readers;
mod request;
mod stored;
mod stored_expressions;
mod table;
mod terms;
mod transact;
mod trouble;

pub use execute::DynamoTable;
pub use item::BrokenItem;
pub use legacy::{ConvertError, Converted, LegacyPage, Segment};
pub use readers::{ReadError, Reader};
pub use request::RequestError;
pub use stored::{ConfigError, ConfigStore, SchemaVersion};
pub use table::{TableError, create_table, stream_arn};
