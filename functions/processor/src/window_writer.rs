//! Writes one usage window: counts or quarantines each record of its group, unless another delivery
//! did that before.
//!
//! The writer never reads the window. If the condition of an update fails, the answer holds the
//! watermark, and the next update begins after it. If alerts are on, the answer to an update also
//! holds the whole window, at no extra cost.
//!
//! If DynamoDB can never apply an update to this window (a `ValidationException`: a sum of the
//! window is not a number, or one record alone names more limits than an expression holds), one
//! transaction quarantines records of the update, from the first on, as many as fit into it, and
//! advances the watermark to the last of them. A later delivery then cannot count the records that
//! a recount will count.

use std::collections::BTreeMap;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::types::{
    Put, ReturnConsumedCapacity, ReturnValue, ReturnValuesOnConditionCheckFailure,
    TransactWriteItem,
};
use sluicegate_core::{SequenceNumber, WindowGroup, WindowUpdate, calendar_amounts};
use tokio::time::Instant;

use crate::answer::{FAILED_CONDITION_UNITS, WindowItem, WriteAnswer, units};
use crate::backoff::Backoff;
use crate::expressions;
use crate::new_quarantine_entry::{self, NewQuarantineEntry};
use crate::outcome::{Failure, Quarantined};
use crate::settings::{Settings, Switch};
use crate::transact::{NotDone, transact};
use crate::write_error::{WriteError, is_failed_condition};

/// Writes the group of one window.
#[derive(Clone, Copy)]
pub(crate) struct WindowWriter<'a> {
    pub(crate) client: &'a Client,
    pub(crate) settings: &'a Settings,
    pub(crate) group: &'a WindowGroup<'a>,
    pub(crate) now_s: i64,
    pub(crate) deadline: Instant,
}

/// The result of writing one window.
#[derive(Debug, Default)]
pub(crate) struct WindowResult {
    /// Records that the watermark showed as done, by their indexes in the group.
    pub(crate) duplicates: Vec<usize>,
    /// Updates written.
    pub(crate) writes: u64,
    pub(crate) write_units: f64,
    /// Records that the window cannot accept.
    pub(crate) quarantined: Vec<Quarantined>,
    pub(crate) failure: Option<Failure>,
    /// The window's item in the newest answer that has it, for the claims of alerts
    /// (`alert_claims.rs`). With alerts on, it is missing only after a `failure`, or if no record
    /// of the group was ever counted.
    pub(crate) item: Option<WindowItem>,
    /// Alerts that were put into the outbox.
    pub(crate) alerts: u64,
}

/// A write that was sent. If its reply is lost, and the next condition fails because the watermark
/// is `last`, its records are counted or quarantined: by this write or by another delivery.
struct SentWrite {
    last: SequenceNumber,
    /// False if it puts records into quarantine instead.
    adds_usage: bool,
    /// Its entries in the quarantine.
    entries: Vec<Quarantined>,
}

impl WindowWriter<'_> {
    /// Writes all records of the group, or returns the failure.
    pub(crate) async fn write(self) -> WindowResult {
        let mut result = WindowResult::default();
        let mut backoff = Backoff::until(self.deadline);
        let mut watermark = None;
        let mut lost_reply: Option<SentWrite> = None;
        while let Some(update) = self.group.next_update(watermark.as_ref()) {
            let (answer, write) = self.send(watermark.as_ref(), &update).await;
            match answer {
                WriteAnswer::Done { write_units, item } => {
                    result.write_units += write_units;
                    result.item = item.or(result.item);
                    watermark = Some(write.last);
                    result.add(write);
                }
                WriteAnswer::ConditionFailed { watermark: found, item }
                    if Some(found) > watermark =>
                {
                    result.write_units += FAILED_CONDITION_UNITS;
                    result.item = item.or(result.item);
                    match lost_reply.take() {
                        Some(write) if write.last == found => result.add(write),
                        // Another delivery advanced the watermark to `found`. An earlier write of
                        // ours whose reply was lost may have counted some of the records up to
                        // there. The answer does not tell which, so all are reported as duplicates.
                        _ => result.duplicates.extend(
                            self.records_done_at(watermark.as_ref())
                                ..self.records_done_at(Some(&found)),
                        ),
                    }
                    watermark = Some(found);
                }
                WriteAnswer::ConditionFailed { .. } => {
                    let reason = "the table refused this write, although the watermark in its \
                                  answer is below the first record; look at the window's item";
                    let error = WriteError::NeedsOperator(reason.to_owned());
                    return result.failed(update.first, error);
                }
                WriteAnswer::FailedOrLost(error @ WriteError::Transient { maybe_done, .. }) => {
                    if maybe_done {
                        lost_reply = Some(write);
                    }
                    if !backoff.pause().await {
                        return result.failed(update.first, error);
                    }
                }
                WriteAnswer::FailedOrLost(error) => return result.failed(update.first, error),
            }
        }
        result
    }

    /// Sends an update. If the window will never accept it, quarantines its first records instead.
    async fn send(
        self,
        watermark: Option<&SequenceNumber>,
        update: &WindowUpdate,
    ) -> (WriteAnswer, SentWrite) {
        match self.send_update(watermark, update).await {
            WriteAnswer::FailedOrLost(WriteError::Invalid(reason)) => {
                self.quarantine_as_many_as_fit(watermark, update, &reason).await
            }
            answer => {
                let (last, entries) = (update.last, Vec::new());
                (answer, SentWrite { last, adds_usage: true, entries })
            }
        }
    }

    /// The number of records of the group that a window with this watermark is done with: it
    /// counted them, or the quarantine has them.
    fn records_done_at(self, watermark: Option<&SequenceNumber>) -> usize {
        self.group.records().len() - self.group.pending(watermark).len()
    }

    fn expiry_s(self) -> Option<i64> {
        self.settings.retention.expiry_s(self.group.window().end_s(), self.now_s)
    }

    /// Sends an update, which adds usage to the window. If alerts are on, it also stores, for each
    /// calendar limit whose period is this kind of window, the amount that the limit has for a
    /// period, and returns the window.
    async fn send_update(
        self,
        watermark: Option<&SequenceNumber>,
        update: &WindowUpdate,
    ) -> WriteAnswer {
        let (amounts, returned) = match self.settings.alerts {
            Switch::Off => (BTreeMap::new(), ReturnValue::None),
            Switch::On => {
                let records = &self.group.pending(watermark)[..update.record_count];
                let amounts = calendar_amounts(records, self.group.window().kind());
                let amounts = amounts.into_iter().filter_map(|(limit, of)| Some((limit, of?)));
                (amounts.collect(), ReturnValue::AllNew)
            }
        };
        let built = expressions::counting_update(self.group, update, self.expiry_s(), &amounts);
        let request = self
            .client
            .update_item()
            .table_name(&self.settings.table)
            .set_key(Some(expressions::key(&self.group.key())))
            .update_expression(built.expression)
            .condition_expression(built.condition)
            .set_expression_attribute_names(Some(built.names))
            .set_expression_attribute_values(Some(built.values))
            .return_values(returned)
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
            .return_consumed_capacity(ReturnConsumedCapacity::Total);
        let error = match tokio::time::timeout_at(self.deadline, request.send()).await {
            Err(_) => return WriteAnswer::FailedOrLost(WriteError::out_of_time()),
            Ok(Ok(output)) => {
                return WriteAnswer::done_or_lost(
                    units(output.consumed_capacity),
                    output.attributes,
                );
            }
            Ok(Err(error)) => error,
        };
        match error.as_service_error() {
            Some(UpdateItemError::ConditionalCheckFailedException(failed)) => {
                WriteAnswer::of_failed_condition(failed.item(), self.group)
            }
            _ => WriteAnswer::FailedOrLost(WriteError::of(&error)),
        }
    }

    /// Quarantines the first records of an update that the window will never accept, and advances
    /// the watermark to the last of them. Each of them still counts in its other windows.
    async fn quarantine_as_many_as_fit(
        self,
        watermark: Option<&SequenceNumber>,
        update: &WindowUpdate,
        reason: &str,
    ) -> (WriteAnswer, SentWrite) {
        let records = &self.group.pending(watermark)[..update.record_count];
        let entries = records
            .iter()
            .map(|record| NewQuarantineEntry::refused_by_window(self.group, record, reason));
        let mut to_put = new_quarantine_entry::first_that_fit(entries);
        // One entry is far smaller than a transaction may be, so at least one fits.
        let last = records[..to_put.len()].last().map_or(update.first, |record| record.sequence);
        let built =
            expressions::advance_watermark(self.group, &update.first, &last, self.expiry_s());
        let key_and_reason = |NewQuarantineEntry { key, reason, .. }: &NewQuarantineEntry| {
            (key.clone(), reason.clone())
        };
        let all: Vec<_> = to_put.iter().map(key_and_reason).collect();
        let answer = self.put_and_advance(built, &mut to_put).await;
        // Entries that existed already are reported too, with `is_new: false`, as `quarantine::put`
        // does.
        let entries = all.into_iter().map(|(key, reason)| {
            let is_new = to_put.iter().any(|entry| entry.key == key);
            Quarantined { key, reason, is_new }
        });
        let entries = entries.collect();
        (answer, SentWrite { last, adds_usage: false, entries })
    }

    /// Puts entries and advances the watermark to the last of their records, both or neither.
    /// Entries that exist already are removed from the list.
    async fn put_and_advance(
        self,
        built: expressions::Update,
        entries: &mut Vec<NewQuarantineEntry>,
    ) -> WriteAnswer {
        loop {
            let items = match self.transaction(&built, entries) {
                Ok(items) => items,
                Err(error) => return WriteAnswer::FailedOrLost(error),
            };
            let transaction = transact(self.client, items);
            let reasons = match tokio::time::timeout_at(self.deadline, transaction).await {
                Err(_) => return WriteAnswer::FailedOrLost(WriteError::out_of_time()),
                Ok(Ok(write_units)) => return WriteAnswer::Done { write_units, item: None },
                Ok(Err(NotDone::Failed(error))) => {
                    return WriteAnswer::FailedOrLost(error.invalid_as_needs_operator());
                }
                Ok(Err(NotDone::Cancelled(reasons))) => reasons,
            };
            // The window's own reason comes last.
            if let Some(reason) =
                reasons.get(entries.len()).filter(|reason| is_failed_condition(reason))
            {
                return WriteAnswer::of_failed_condition(reason.item(), self.group);
            }
            let sent = entries.len();
            let mut exists = reasons.iter().map(is_failed_condition);
            entries.retain(|_| !exists.next().unwrap_or(false));
            if entries.len() == sent {
                let error = WriteError::of_reasons(&reasons);
                return WriteAnswer::FailedOrLost(error.invalid_as_needs_operator());
            }
        }
    }

    fn transaction(
        self,
        built: &expressions::Update,
        entries: &[NewQuarantineEntry],
    ) -> Result<Vec<TransactWriteItem>, WriteError> {
        let (condition, names) = expressions::absent();
        let mut items = Vec::with_capacity(entries.len() + 1);
        for entry in entries {
            let put = Put::builder()
                .table_name(&self.settings.table)
                .set_item(Some(entry.item()))
                .condition_expression(&condition)
                .set_expression_attribute_names(Some(names.clone()))
                .build()?;
            items.push(TransactWriteItem::builder().put(put).build());
        }
        items.push(built.clone().into_transact_item(&self.settings.table, &self.group.key())?);
        Ok(items)
    }
}

impl WindowResult {
    fn add(&mut self, write: SentWrite) {
        self.writes += u64::from(write.adds_usage);
        self.quarantined.extend(write.entries);
    }

    fn failed(mut self, first: SequenceNumber, error: WriteError) -> Self {
        self.failure = Some(Failure { first: Some(first), reason: error.reason() });
        self
    }
}
