//! Sends a transaction, and tells a cancelled one from one that failed in another way.

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use aws_sdk_dynamodb::types::{
    CancellationReason, ConsumedCapacity, ReturnConsumedCapacity, TransactWriteItem,
};

use crate::write_error::WriteError;

/// The reason why a transaction was not done, or may not have been.
pub(crate) enum NotDone {
    /// It was cancelled: one reason for each item, in the order of the items.
    Cancelled(Vec<CancellationReason>),
    Failed(WriteError),
}

/// Executes a transaction. Returns its write units; zero if the answer's list of them is empty, as
/// some engines send it.
pub(crate) async fn transact(
    client: &Client,
    items: Vec<TransactWriteItem>,
) -> Result<f64, NotDone> {
    let request = client
        .transact_write_items()
        .set_transact_items(Some(items))
        .return_consumed_capacity(ReturnConsumedCapacity::Total);
    match request.send().await {
        Ok(output) => match output.consumed_capacity {
            Some(units) => Ok(units.iter().filter_map(ConsumedCapacity::capacity_units).sum()),
            None => Err(NotDone::Failed(WriteError::empty_answer())),
        },
        Err(error) => Err(match error.as_service_error() {
            Some(TransactWriteItemsError::TransactionCanceledException(cancelled)) => {
                NotDone::Cancelled(cancelled.cancellation_reasons().to_vec())
            }
            _ => NotDone::Failed(WriteError::of(&error)),
        }),
    }
}
