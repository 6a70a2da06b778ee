//! Keeps records that cannot be counted, so that nothing is ever given up silently.
//!
//! An entry is put only if there is none: a redelivery does not duplicate an open one, and does not
//! reopen one that was counted since (done). If a window cannot take records that are valid in
//! themselves, the entries and the window's watermark move in one transaction. A later delivery
//! then cannot count the records that a replay of the quarantine will count.

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::operation::put_item::PutItemError;
use aws_sdk_dynamodb::operation::transact_write_items::{
    TransactWriteItemsError, TransactWriteItemsOutput,
};
use aws_sdk_dynamodb::types::{
    ConsumedCapacity, Put, ReturnConsumedCapacity, ReturnValuesOnConditionCheckFailure,
    TransactWriteItem, Update,
};
use tokio::time::Instant;

use crate::attempt::{self, Attempt, WindowWriter};
use crate::backoff::Backoff;
use crate::entry::Entry;
use crate::expressions;
use crate::refusal::{Refusal, is_failed_condition};
use crate::settings::Settings;

/// An entry that is in the quarantine.
#[derive(Debug)]
pub(crate) struct PutOutcome {
    /// False if an earlier delivery put it there.
    pub(crate) is_new: bool,
    pub(crate) write_units: f64,
}

/// Puts an entry unless there is one.
pub(crate) async fn put(
    client: &Client,
    settings: &Settings,
    entry: &Entry,
    deadline: Instant,
) -> Result<PutOutcome, Refusal> {
    let mut backoff = Backoff::until(deadline);
    let mut maybe_ours = false;
    loop {
        let (condition, names) = expressions::absent();
        let request = client
            .put_item()
            .table_name(&settings.table)
            .set_item(Some(entry.item()))
            .condition_expression(condition)
            .set_expression_attribute_names(Some(names))
            .return_consumed_capacity(ReturnConsumedCapacity::Total);
        let refusal = match tokio::time::timeout_at(deadline, request.send()).await {
            Err(_) => return Err(Refusal::out_of_time()),
            Ok(Ok(output)) => match attempt::units(output.consumed_capacity) {
                Some(write_units) => return Ok(PutOutcome { is_new: true, write_units }),
                None => Refusal::empty_answer(),
            },
            Ok(Err(error)) => match error.as_service_error() {
                Some(PutItemError::ConditionalCheckFailedException(_)) => {
                    return Ok(PutOutcome {
                        is_new: maybe_ours,
                        write_units: attempt::REFUSED_UNITS,
                    });
                }
                _ => Refusal::of(&error),
            },
        };
        match refusal {
            Refusal::Transient { maybe_done, .. } => maybe_ours |= maybe_done,
            refusal => return Err(refusal),
        }
        if !backoff.pause().await {
            return Err(refusal);
        }
    }
}

/// Keeps entries and moves the watermark of their window past them, both or neither. Entries that
/// exist already are removed from the list.
pub(crate) async fn pass_over(
    window: WindowWriter<'_>,
    built: expressions::Update,
    entries: &mut Vec<Entry>,
) -> Attempt {
    loop {
        let items = match transaction(window, &built, entries) {
            Ok(items) => items,
            Err(refusal) => return Attempt::Refused(refusal),
        };
        let request = window
            .client
            .transact_write_items()
            .set_transact_items(Some(items))
            .return_consumed_capacity(ReturnConsumedCapacity::Total);
        let error = match tokio::time::timeout_at(window.deadline, request.send()).await {
            Err(_) => return Attempt::Refused(Refusal::out_of_time()),
            Ok(Ok(output)) => return Attempt::of_answer(units_of(&output)),
            Ok(Err(error)) => error,
        };
        let Some(TransactWriteItemsError::TransactionCanceledException(cancelled)) =
            error.as_service_error()
        else {
            return Attempt::Refused(Refusal::of(&error).repairable());
        };
        let reasons = cancelled.cancellation_reasons();
        // The window's own reason comes last.
        if let Some(reason) =
            reasons.get(entries.len()).filter(|reason| is_failed_condition(reason))
        {
            return attempt::behind(reason.item(), window.fold);
        }
        let before = entries.len();
        let mut refused = reasons.iter().map(is_failed_condition);
        entries.retain(|_| !refused.next().unwrap_or(false));
        if entries.len() == before {
            return Attempt::Refused(Refusal::of_reasons(reasons).repairable());
        }
    }
}

fn transaction(
    window: WindowWriter<'_>,
    built: &expressions::Update,
    entries: &[Entry],
) -> Result<Vec<TransactWriteItem>, Refusal> {
    let (condition, names) = expressions::absent();
    let mut items = Vec::with_capacity(entries.len() + 1);
    for entry in entries {
        let put = Put::builder()
            .table_name(&window.settings.table)
            .set_item(Some(entry.item()))
            .condition_expression(&condition)
            .set_expression_attribute_names(Some(names.clone()))
            .build()
            .map_err(|error| Refusal::Setup(error.to_string()))?;
        items.push(TransactWriteItem::builder().put(put).build());
    }
    let update = Update::builder()
        .table_name(&window.settings.table)
        .set_key(Some(expressions::key(&window.fold.key())))
        .update_expression(&built.expression)
        .condition_expression(&built.condition)
        .set_expression_attribute_names(Some(built.names.clone()))
        .set_expression_attribute_values(Some(built.values.clone()))
        .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
        .build()
        .map_err(|error| Refusal::Setup(error.to_string()))?;
    items.push(TransactWriteItem::builder().update(update).build());
    Ok(items)
}

/// The write units of a transaction; an engine may name none.
fn units_of(output: &TransactWriteItemsOutput) -> Option<f64> {
    let capacity = output.consumed_capacity.as_ref()?;
    Some(capacity.iter().filter_map(ConsumedCapacity::capacity_units).sum())
}
