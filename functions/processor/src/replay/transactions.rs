//! The transactions of a replay: windows and entry change in one transaction, or neither does.

use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use aws_sdk_dynamodb::types::{ReturnConsumedCapacity, TransactWriteItem, Update};
use sluicegate_core::keys::ItemKey;
use sluicegate_core::{LimitName, QuarantineEntry, QuarantineState, WindowFold};

use super::{Replayed, STILL_IN_REACH, now_s};
use crate::expressions;
use crate::expressions::ReplayGuard;
use crate::processor::Processor;
use crate::refusal::{Refusal, is_failed_condition};
use crate::settings::Retention;

/// How long a closed entry is kept, so that no delivery opens it again.
const TOMBSTONE: Retention = Retention::Days(7);
/// Limits of one transaction: an update names at most about 300.
const LIMITS_PER_TRANSACTION: usize = 200;

/// The part of a record's limits that one transaction counts.
#[derive(Clone, Copy)]
struct Step {
    before: usize,
    after: usize,
    of: usize,
}

impl Step {
    const fn is_last(self) -> bool {
        self.after == self.of
    }
}

impl Processor {
    /// Adds the limits that the entry does not note as counted, a part in each transaction.
    pub(super) async fn count_again(
        &self,
        entry: &QuarantineEntry,
        windows: &[WindowFold<'_>],
        relies: ReplayGuard,
    ) -> Replayed {
        let limits = windows.first().and_then(|window| window.after(None));
        let limits = limits.map(|update| update.consumed_milli).unwrap_or_default();
        let mut counted = entry.counted_limits.min(limits.len());
        loop {
            let next = (counted + LIMITS_PER_TRANSACTION).min(limits.len());
            let step = Step { before: counted, after: next, of: limits.len() };
            let items = self.transaction(entry, windows, &limits[counted..next], step, relies);
            let items = match items {
                Ok(items) => items,
                Err(refusal) => return Replayed::Refused(refusal.reason()),
            };
            if let Err(ended) = self.transact(items).await {
                return ended;
            }
            counted = next;
            if counted == limits.len() {
                return Replayed::Counted(windows.iter().map(WindowFold::key).collect());
            }
        }
    }

    fn transaction(
        &self,
        entry: &QuarantineEntry,
        windows: &[WindowFold<'_>],
        limits: &[(LimitName, i128)],
        step: Step,
        relies: ReplayGuard,
    ) -> Result<Vec<TransactWriteItem>, Refusal> {
        let now_s = now_s();
        let closing = match step.is_last() {
            true => expressions::close(step.before, QuarantineState::Done, expiry_s(now_s)),
            false => expressions::note_counted(step.before, step.after),
        };
        let mut items = vec![self.update(&entry.key(), closing)?];
        for window in windows {
            let expiry_s = self.settings().retention.expiry_s(window.window().end_s(), now_s);
            let events = usize::from(step.before == 0);
            let built = expressions::count_again(window, limits, events, expiry_s, relies);
            items.push(self.update(&window.key(), built)?);
        }
        Ok(items)
    }

    fn update(
        &self,
        key: &ItemKey,
        built: expressions::Update,
    ) -> Result<TransactWriteItem, Refusal> {
        let condition = Some(built.condition).filter(|condition| !condition.is_empty());
        let update = Update::builder()
            .table_name(&self.settings().table)
            .set_key(Some(expressions::key(key)))
            .update_expression(built.expression)
            .set_condition_expression(condition)
            .set_expression_attribute_names(Some(built.names))
            .set_expression_attribute_values(Some(built.values))
            .build()
            .map_err(|error| Refusal::Setup(error.to_string()))?;
        Ok(TransactWriteItem::builder().update(update).build())
    }

    /// Executes a transaction whose first item is the entry.
    async fn transact(&self, items: Vec<TransactWriteItem>) -> Result<(), Replayed> {
        let request = self
            .client()
            .transact_write_items()
            .set_transact_items(Some(items))
            .return_consumed_capacity(ReturnConsumedCapacity::Total);
        let error = match request.send().await {
            Ok(output) if output.consumed_capacity.is_some() => return Ok(()),
            Ok(_) => return Err(Replayed::Refused(Refusal::empty_answer().reason())),
            Err(error) => error,
        };
        let Some(TransactWriteItemsError::TransactionCanceledException(cancelled)) =
            error.as_service_error()
        else {
            return Err(Replayed::Refused(Refusal::of(&error).reason()));
        };
        let reasons = cancelled.cancellation_reasons();
        if reasons.first().is_some_and(is_failed_condition) {
            return Err(Replayed::Closed);
        }
        if reasons.iter().any(is_failed_condition) {
            return Err(Replayed::Undecided(STILL_IN_REACH.to_owned()));
        }
        Err(Replayed::Refused(Refusal::of_reasons(reasons).reason()))
    }

    /// Closes an entry without counting it.
    pub(super) async fn close(
        &self,
        entry: &QuarantineEntry,
        state: QuarantineState,
        closed: Replayed,
    ) -> Replayed {
        let built = expressions::close(entry.counted_limits, state, expiry_s(now_s()));
        let item = match self.update(&entry.key(), built) {
            Ok(item) => item,
            Err(refusal) => return Replayed::Refused(refusal.reason()),
        };
        match self.transact(vec![item]).await {
            Ok(()) => closed,
            Err(ended) => ended,
        }
    }
}

fn expiry_s(now_s: i64) -> Option<i64> {
    TOMBSTONE.expiry_s(now_s, now_s)
}
