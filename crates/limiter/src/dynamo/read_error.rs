//! Why a range of items could not be read.

use super::item::BrokenItem;
use super::request::RequestError;

/// Why something could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// An item is broken. The stream goes on behind it.
    #[error(transparent)]
    Item(#[from] Box<BrokenItem>),

    /// DynamoDB left items out of its answers again and again. The stream ends.
    #[error("table {table} leaves {items} items out of BatchGetItem; try again, more slowly")]
    LeftOut {
        /// Name of the table.
        table: String,
        /// How many.
        items: usize,
    },

    /// DynamoDB did not do what it was asked. The stream ends.
    #[error(transparent)]
    Request(#[from] RequestError),
}
