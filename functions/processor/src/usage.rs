//! Writes one usage window: every record of a fold is counted, was counted before, or goes to
//! quarantine.
//!
//! The watermark is the only knowledge of the window. If the guard refuses an update, the answer
//! holds the watermark, and the next update begins behind it, so nothing is ever read.

use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::types::{ReturnConsumedCapacity, ReturnValuesOnConditionCheckFailure};
use sluicegate_core::{SequenceNumber, WindowUpdate};

use crate::attempt::{Attempt, REFUSED_UNITS, WindowWriter, behind, units};
use crate::backoff::Backoff;
use crate::entry::{self, Entry};
use crate::refusal::Refusal;
use crate::report::{Failure, Quarantined};
use crate::{expressions, quarantine};

/// The result of settling one window.
#[derive(Debug, Default)]
pub(crate) struct Settled {
    /// Records that another delivery had settled, by their indexes in the fold.
    pub(crate) duplicates: Vec<usize>,
    /// Updates written.
    pub(crate) writes: u64,
    pub(crate) write_units: f64,
    /// Records that the window cannot take.
    pub(crate) quarantined: Vec<Quarantined>,
    pub(crate) failure: Option<Failure>,
}

/// An attempted write. If its reply was lost, it may have been done: then the watermark is at `to`.
struct Tried {
    to: SequenceNumber,
    /// False if it puts records into quarantine instead.
    counts: bool,
    /// Its entries in the quarantine.
    aside: Vec<Quarantined>,
}

impl WindowWriter<'_> {
    /// Settles all records of the fold, or returns the failure.
    pub(crate) async fn settle(self) -> Settled {
        let mut settled = Settled::default();
        let mut backoff = Backoff::until(self.deadline);
        let mut watermark = None;
        let mut doubt: Option<Tried> = None;
        while let Some(update) = self.fold.after(watermark.as_ref()) {
            let (attempt, tried) = self.attempt(watermark.as_ref(), &update).await;
            match attempt {
                Attempt::Done(units) => {
                    settled.write_units += units;
                    watermark = Some(tried.to);
                    settled.note(tried);
                }
                Attempt::Behind(position) if Some(position) > watermark => {
                    settled.write_units += REFUSED_UNITS;
                    match doubt.take() {
                        Some(tried) if tried.to == position => settled.note(tried),
                        // Records that this invocation settled lie before the old watermark.
                        _ => settled.duplicates.extend(
                            self.settled_by(watermark.as_ref())..self.settled_by(Some(&position)),
                        ),
                    }
                    watermark = Some(position);
                }
                Attempt::Behind(_) => {
                    let why = "the table refused a watermark that its answer does not show; \
                               look at the window's item";
                    return settled.failed(update.first, Refusal::Setup(why.to_owned()));
                }
                Attempt::Refused(refusal @ Refusal::Transient { maybe_done, .. }) => {
                    if maybe_done {
                        doubt = Some(tried);
                    }
                    if !backoff.pause().await {
                        return settled.failed(update.first, refusal);
                    }
                }
                Attempt::Refused(refusal) => return settled.failed(update.first, refusal),
            }
        }
        settled
    }

    /// Makes an update, or quarantines the records that the window will never take.
    async fn attempt(
        self,
        watermark: Option<&SequenceNumber>,
        update: &WindowUpdate,
    ) -> (Attempt, Tried) {
        match self.count(update).await {
            Attempt::Refused(Refusal::Invalid(reason)) => {
                self.keep_aside(watermark, update, &reason).await
            }
            attempt => (attempt, Tried { to: update.last, counts: true, aside: Vec::new() }),
        }
    }

    /// The number of records of the fold that a window with this watermark has settled.
    fn settled_by(self, watermark: Option<&SequenceNumber>) -> usize {
        self.fold.records().len() - self.fold.pending(watermark).len()
    }

    fn expiry_s(self) -> Option<i64> {
        self.settings.retention.expiry_s(self.fold.window().end_s(), self.now_s)
    }

    async fn count(self, update: &WindowUpdate) -> Attempt {
        let built = expressions::count(self.fold, update, self.expiry_s());
        let request = self
            .client
            .update_item()
            .table_name(&self.settings.table)
            .set_key(Some(expressions::key(&self.fold.key())))
            .update_expression(built.expression)
            .condition_expression(built.condition)
            .set_expression_attribute_names(Some(built.names))
            .set_expression_attribute_values(Some(built.values))
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
            .return_consumed_capacity(ReturnConsumedCapacity::Total);
        let error = match tokio::time::timeout_at(self.deadline, request.send()).await {
            Err(_) => return Attempt::Refused(Refusal::out_of_time()),
            Ok(Ok(output)) => return Attempt::of_answer(units(output.consumed_capacity)),
            Ok(Err(error)) => error,
        };
        match error.as_service_error() {
            Some(UpdateItemError::ConditionalCheckFailedException(failed)) => {
                behind(failed.item(), self.fold)
            }
            _ => Attempt::Refused(Refusal::of(&error)),
        }
    }

    /// Puts the first records of an update that the window will never take into quarantine, and
    /// moves the watermark past them; their other windows count them.
    async fn keep_aside(
        self,
        watermark: Option<&SequenceNumber>,
        update: &WindowUpdate,
        reason: &str,
    ) -> (Attempt, Tried) {
        let records = &self.fold.pending(watermark)[..update.events];
        let entries = records.iter().map(|record| Entry::of_window(self.fold, record, reason));
        let mut entries = entry::first_that_fit(entries);
        // An entry is at most a tenth of a transaction's size, so there is always one.
        let to = records[..entries.len()].last().map_or(update.first, |record| record.sequence);
        let built = expressions::pass_over(self.fold, &update.first, &to, self.expiry_s());
        let told = |Entry { key, reason, .. }: &Entry| (key.clone(), reason.clone());
        let all: Vec<_> = entries.iter().map(told).collect();
        let attempt = quarantine::pass_over(self, built, &mut entries).await;
        // An entry that existed already is reported too, like that of an unreadable record: no
        // window counts it.
        let aside = all.into_iter().map(|(key, reason)| {
            let is_new = entries.iter().any(|entry| entry.key == key);
            Quarantined { key, reason, is_new }
        });
        (attempt, Tried { to, counts: false, aside: aside.collect() })
    }
}

impl Settled {
    fn note(&mut self, done: Tried) {
        self.writes += u64::from(done.counts);
        self.quarantined.extend(done.aside);
    }

    fn failed(mut self, first: SequenceNumber, refusal: Refusal) -> Self {
        self.failure = Some(Failure { first: Some(first), reason: refusal.reason() });
        self
    }
}
