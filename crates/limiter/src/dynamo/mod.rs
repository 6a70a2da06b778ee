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
mod table_error;
mod terms;
mod transact;

pub use execute::DynamoTable;
pub use item::BrokenItem;
pub use legacy::{ConvertError, Converted, LegacyPage, Segment};
pub use readers::{ReadError, Reader};
pub use request::RequestError;
pub use stored::{ConfigError, ConfigStore, SchemaVersion};
pub use table::{TableSetupError, create_table, stream_arn};
