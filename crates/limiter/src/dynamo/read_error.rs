//! Why a range of items could not be read.

use super::item::BrokenItem;
use super::request_error::RequestError;

/// The reason why something could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// An item is broken. The stream continues behind it.
    #[error(transparent)]
    Item(#[from] Box<BrokenItem>),

    /// DynamoDB repeatedly left items out of its answers. The stream ends.
    #[error("table {table} leaves {items} items out of BatchGetItem; try again, more slowly")]
    LeftOut {
        /// Name of the table.
        table: String,
        /// The number of items.
        items: usize,
    },

    /// DynamoDB did not execute the request. The stream ends.
    #[error(transparent)]
    Request(#[from] RequestError),
}
