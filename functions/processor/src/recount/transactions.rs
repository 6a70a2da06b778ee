//! The transactions of a recount: each changes the windows and the entry, or neither.

use aws_sdk_dynamodb::types::TransactWriteItem;
use sluicegate_core::{LimitName, QuarantineEntry, QuarantineState, WindowGroup};

use super::{FoundWindow, Recounted};
use crate::expressions;
use crate::expressions::{WindowCondition, WindowExpiry};
use crate::outbox::now;
use crate::processor::Processor;
use crate::settings::Retention;
use crate::transact::{self, NotDone};
use crate::write_error::{WriteError, is_failed_condition};

/// A closed entry is kept this long, so that no delivery opens it again.
const TOMBSTONE: Retention = Retention::Days(7);
/// Limits of one transaction: an update names at most about 300.
const LIMITS_PER_TRANSACTION: usize = 200;

const WINDOW_CHANGED: &str = "one of its windows changed meanwhile: try again";

/// The limits of a record that one transaction counts: those from `before` to `after`.
#[derive(Clone, Copy)]
struct Step {
    before: usize,
    after: usize,
    total: usize,
    /// True if no transaction of this recount came before it.
    is_first: bool,
}

impl Step {
    const fn is_last(self) -> bool {
        self.after == self.total
    }
}

impl Processor {
    /// Adds the limits that the entry does not note as counted, some in each transaction.
    pub(super) async fn count_quarantined(
        &self,
        entry: &QuarantineEntry,
        groups: &[(WindowGroup<'_>, FoundWindow)],
        condition: WindowCondition,
    ) -> Recounted {
        let limits = groups.first().and_then(|(group, _)| group.next_update(None));
        let limits = limits.map(|update| update.consumed_milli).unwrap_or_default();
        let start = entry.counted_limits.min(limits.len());
        let mut counted = start;
        loop {
            let next = (counted + LIMITS_PER_TRANSACTION).min(limits.len());
            let is_first = counted == start;
            let step = Step { before: counted, after: next, total: limits.len(), is_first };
            let items = self.transaction(entry, groups, &limits[counted..next], step, condition);
            let items = match items {
                Ok(items) => items,
                Err(error) => return Recounted::Failed(error.reason()),
            };
            if let Err(ended) = self.transact(items).await {
                return ended;
            }
            counted = next;
            if counted == limits.len() {
                return Recounted::Counted(groups.iter().map(|(group, _)| group.key()).collect());
            }
        }
    }

    fn transaction(
        &self,
        entry: &QuarantineEntry,
        groups: &[(WindowGroup<'_>, FoundWindow)],
        limits: &[(LimitName, i128)],
        step: Step,
        condition: WindowCondition,
    ) -> Result<Vec<TransactWriteItem>, WriteError> {
        let (table, now_s) = (&self.settings().table, now().get() / 1_000);
        let closing = match step.is_last() {
            true => expressions::close(step.before, QuarantineState::Done, expiry_s(now_s)),
            false => expressions::note_counted(step.before, step.after),
        };
        let mut items = vec![closing.into_transact_item(table, &entry.key())?];
        for (group, found) in groups {
            let soonest_s = now_s + i64::from(Retention::MIN_DAYS) * 86_400;
            let expiry = match found.exists {
                // It would be deleted with what is counted now.
                true => match found.expiry_s {
                    Some(from) if step.is_first && from < soonest_s => {
                        WindowExpiry::Moved { from, to: soonest_s }
                    }
                    _ => WindowExpiry::Kept,
                },
                false => WindowExpiry::New(
                    self.settings().retention.expiry_s(group.window().end_s(), now_s),
                ),
            };
            let record_count = usize::from(step.before == 0);
            let built =
                expressions::count_quarantined(group, limits, record_count, expiry, condition);
            items.push(built.into_transact_item(table, &group.key())?);
        }
        Ok(items)
    }

    /// Executes a transaction whose first item is the entry.
    async fn transact(&self, items: Vec<TransactWriteItem>) -> Result<(), Recounted> {
        Err(match transact::transact(self.client(), items).await {
            Ok(_) => return Ok(()),
            Err(NotDone::Failed(error)) => Recounted::Failed(error.reason()),
            Err(NotDone::Cancelled(reasons)) => {
                if reasons.first().is_some_and(is_failed_condition) {
                    Recounted::Closed
                } else if reasons.iter().any(is_failed_condition) {
                    Recounted::Undecided(WINDOW_CHANGED.to_owned())
                } else {
                    Recounted::Failed(WriteError::of_reasons(&reasons).reason())
                }
            }
        })
    }

    /// Closes an entry without counting it.
    pub(super) async fn close(
        &self,
        entry: &QuarantineEntry,
        state: QuarantineState,
        closed: Recounted,
    ) -> Recounted {
        let built = expressions::close(entry.counted_limits, state, expiry_s(now().get() / 1_000));
        let item = match built.into_transact_item(&self.settings().table, &entry.key()) {
            Ok(item) => item,
            Err(error) => return Recounted::Failed(error.reason()),
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
