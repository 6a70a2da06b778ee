//! Puts records that cannot be counted into quarantine, so that none is ever given up silently.
//!
//! An entry is put only if there is none with its key. So a redelivery neither duplicates an open
//! entry nor reopens a closed one. `window_writer.rs` puts the entries of records that one window
//! cannot accept.

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::operation::put_item::PutItemError;
use aws_sdk_dynamodb::types::ReturnConsumedCapacity;
use tokio::time::Instant;

use crate::answer;
use crate::backoff::Backoff;
use crate::expressions;
use crate::new_quarantine_entry::NewQuarantineEntry;
use crate::settings::Settings;
use crate::write_error::WriteError;

/// The result of putting an entry that is now in the quarantine.
#[derive(Debug)]
pub(crate) struct PutOutcome {
    /// False if an earlier delivery put it there. True also if an attempt of this delivery may
    /// have put it, because its answer was lost.
    pub(crate) is_new: bool,
    pub(crate) write_units: f64,
}

/// Puts an entry unless there is one.
pub(crate) async fn put(
    client: &Client,
    settings: &Settings,
    entry: &NewQuarantineEntry,
    deadline: Instant,
) -> Result<PutOutcome, WriteError> {
    let mut backoff = Backoff::until(deadline);
    // True after a lost reply: the entry that the condition finds may be this one.
    let mut may_be_ours = false;
    loop {
        let (condition, names) = expressions::absent();
        let request = client
            .put_item()
            .table_name(&settings.table)
            .set_item(Some(entry.item()))
            .condition_expression(condition)
            .set_expression_attribute_names(Some(names))
            .return_consumed_capacity(ReturnConsumedCapacity::Total);
        let error = match tokio::time::timeout_at(deadline, request.send()).await {
            Err(_) => return Err(WriteError::out_of_time()),
            Ok(Ok(output)) => match answer::units(output.consumed_capacity) {
                Some(write_units) => return Ok(PutOutcome { is_new: true, write_units }),
                None => WriteError::empty_answer(),
            },
            Ok(Err(error)) => match error.as_service_error() {
                Some(PutItemError::ConditionalCheckFailedException(_)) => {
                    return Ok(PutOutcome {
                        is_new: may_be_ours,
                        write_units: answer::FAILED_CONDITION_UNITS,
                    });
                }
                _ => WriteError::of(&error),
            },
        };
        match error {
            WriteError::Transient { maybe_done, .. } => may_be_ours |= maybe_done,
            error => return Err(error),
        }
        if !backoff.pause().await {
            return Err(error);
        }
    }
}
