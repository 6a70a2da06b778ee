//! Counts records from quarantine, each once.
//!
//! A recount reads and groups the stored record with the code that reads and groups a delivery. It
//! cannot write the windows as a delivery does, because their watermarks may be past the record and
//! only move forward. Instead, one transaction adds the record to its windows and turns its entry
//! from open to done. (If the record has more limits than a transaction holds, there are several,
//! and each notes in the entry how many limits are counted.) The state of the entry prevents a
//! second recount from counting the record. A recount never moves a watermark: a moved watermark
//! would hide earlier records that still wait for another delivery.
//!
//! The stream can deliver the record again for 24 hours, perhaps to a version of the processor that
//! can read a record that its predecessor could not. The recount therefore reads the watermarks of
//! the record's windows first. Then it takes the first row of this table that applies. A row
//! applies if at least one window of the record is as the row says, and then decides for all
//! windows:
//!
//! | entry | watermark | recount |
//! |---|---|---|
//! | any | below the record, or none, and the stream may deliver the record again | leaves the entry open: that delivery would count the record |
//! | of a whole record | past the record | leaves the entry open: the watermark does not tell if a delivery counted the record before it counted later ones, also if another window has the record. With [`IfUnknown::Count`], the recount counts |
//! | of a whole record | at the record | closes the entry, or counts in the other windows: only a delivery that counted the record moved the watermark there. A window whose watermark is below the record does not have it, because that delivery failed there (the record is too old for the first row) |
//! | of one window | at or past the record | counts: the transaction that wrote the entry advanced the watermark to the record or past it without counting it, and no delivery counts a record at or below a watermark |
//! | any | below the record, or none | counts: no delivery counted the record, and none will |
//!
//! A recount of a whole record never counts in a window whose watermark is at the record. A window
//! that expired or was deleted has no watermark.
//!
//! While the stream may deliver the record again, the transaction has the condition that each
//! watermark is at or past the record. Afterwards it has no condition on the windows.

mod transactions;

use std::cmp::Ordering;
use std::time::Duration;

use aws_sdk_dynamodb::types::ReturnConsumedCapacity;
use serde_json::value::RawValue;
use sluicegate_core::keys::{self, ItemKey};
use sluicegate_core::{
    Batch, EpochMillis, Layouts, QuarantineEntry, QuarantineState, WindowGroup, WindowKind,
    WindowKinds, group_by_window,
};

use crate::answer;
use crate::expressions::{self, WindowCondition};
use crate::outbox::now;
use crate::processor::Processor;
use crate::write_error::WriteError;

/// A stream holds records for 24 hours; twice that leaves room for a delivery in flight.
const REDELIVERY_TIME: Duration = Duration::from_secs(48 * 3_600);

/// The action if the watermarks do not tell whether a record was counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IfUnknown {
    /// Leave its entry open.
    #[default]
    Leave,
    /// Count it: the operator knows that no delivery counted it since it was quarantined.
    Count,
}

/// The result of a recount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recounted {
    /// It was counted in these windows, and its entry is closed.
    Counted(Vec<ItemKey>),
    /// A delivery counted it before; its entry is closed.
    AlreadyCounted,
    /// It is readable and consumed nothing; its entry is closed.
    NothingToCount,
    /// It was given up; its entry is closed.
    GivenUp,
    /// The entry is not as it was read: it is closed or gone, or another recount has counted some
    /// of its limits.
    Closed,
    /// It still cannot be counted, for this reason; its entry stays open.
    Uncountable(String),
    /// The recount cannot tell yet if a delivery counted the record or will count it, for this
    /// reason; its entry stays open.
    Undecided(String),
    /// A request failed, or its answer was lost, for this reason. Recount again: if the transaction
    /// was done, the entry is closed.
    Failed(String),
}

/// The position of one window's watermark relative to a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WatermarkOrder {
    /// The watermark is below the record, or there is none.
    NotReached,
    /// The watermark is the record's own position.
    AtRecord,
    /// The watermark is past the record.
    PastRecord,
}

/// A window of the record, as a recount found it.
struct FoundWindow {
    order: WatermarkOrder,
    exists: bool,
    /// The time from which it may be deleted, in epoch seconds; `None`: it does not expire.
    expiry_s: Option<i64>,
}

impl Processor {
    /// Counts a quarantined record in the windows that may lack it and closes its entry, in one
    /// transaction. If the record names more than 200 limits, there are several transactions, and
    /// each but the last notes its progress in the entry. A recount costs a read of each window,
    /// and at least two write units for each item of a transaction.
    ///
    /// The windows are those of the processor's settings, or the one kind that the entry is of.
    pub async fn recount(&self, entry: &QuarantineEntry, if_unknown: IfUnknown) -> Recounted {
        let Ok(json) = RawValue::from_string(entry.record.clone()) else {
            return Recounted::Uncountable(entry.reason.clone());
        };
        let records = [json];
        // The processor that quarantined the record counted its layout, so no layout is left out
        // here.
        let batch = Batch::read(&records, Layouts::CompositeAndSharded);
        if let Some(uncountable) = batch.uncountable.into_iter().next() {
            return Recounted::Uncountable(uncountable.reason);
        }
        let kinds =
            entry.id.kind.map_or_else(|| self.settings().window_kinds.clone(), WindowKinds::from);
        let created = batch.oldest;
        let groups = group_by_window(batch.countable, &kinds).groups;
        if groups.is_empty() {
            return self.close(entry, QuarantineState::Done, Recounted::NothingToCount).await;
        }
        let mut found = Vec::with_capacity(groups.len());
        for group in groups {
            match self.look_at_window(&group).await {
                Ok(window) => found.push((group, window)),
                Err(error) => return Recounted::Failed(error.reason()),
            }
        }
        let orders: Vec<_> = found.iter().map(|(_, window)| window.order).collect();
        let created = created.or_else(|| Some(found.first()?.0.records().first()?.at));
        let may_be_redelivered = created.is_none_or(may_be_redelivered);
        match choose(&orders, entry.id.kind, may_be_redelivered, if_unknown) {
            Choice::Count(condition) => {
                let is_whole = entry.id.kind.is_none();
                found.retain(|(_, window)| !is_whole || window.order != WatermarkOrder::AtRecord);
                self.count_quarantined(entry, &found, condition).await
            }
            Choice::AlreadyCounted => {
                self.close(entry, QuarantineState::Done, Recounted::AlreadyCounted).await
            }
            Choice::Undecided(reason) => Recounted::Undecided(reason.to_owned()),
        }
    }

    /// Gives a quarantined record up: its entry stays closed as a tombstone, and no window counts
    /// it.
    pub async fn give_up(&self, entry: &QuarantineEntry) -> Recounted {
        self.close(entry, QuarantineState::Dropped, Recounted::GivenUp).await
    }

    async fn look_at_window(&self, group: &WindowGroup<'_>) -> Result<FoundWindow, WriteError> {
        let output = self
            .client()
            .get_item()
            .table_name(&self.settings().table)
            .set_key(Some(expressions::key(&group.key())))
            .consistent_read(true)
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .send()
            .await
            .map_err(|error| WriteError::of(&error))?;
        if output.consumed_capacity.is_none() {
            return Err(WriteError::empty_answer());
        }
        let watermark = answer::watermark(output.item.as_ref(), group)?;
        let record = group.records().first().map(|record| record.sequence);
        let order = match watermark.cmp(&record) {
            Ordering::Less => WatermarkOrder::NotReached,
            Ordering::Equal => WatermarkOrder::AtRecord,
            Ordering::Greater => WatermarkOrder::PastRecord,
        };
        let expiry = output.item.as_ref().and_then(|item| item.get(keys::TTL)?.as_n().ok());
        let expiry_s = expiry.and_then(|seconds| seconds.parse().ok());
        Ok(FoundWindow { order, exists: output.item.is_some(), expiry_s })
    }
}

/// The choice for a record.
#[derive(Debug, PartialEq, Eq)]
enum Choice {
    /// To count it in the windows that may lack it.
    Count(WindowCondition),
    /// A delivery counted it in every window.
    AlreadyCounted,
    /// The watermarks do not tell, for this reason.
    Undecided(&'static str),
}

/// Chooses by the table at the top of this file. `only_kind` is the window kind of an entry for one
/// window.
fn choose(
    orders: &[WatermarkOrder],
    only_kind: Option<WindowKind>,
    may_be_redelivered: bool,
    if_unknown: IfUnknown,
) -> Choice {
    if may_be_redelivered && orders.contains(&WatermarkOrder::NotReached) {
        return Choice::Undecided(MAY_BE_REDELIVERED);
    }
    let is_whole = only_kind.is_none();
    let is_unknown = is_whole && orders.contains(&WatermarkOrder::PastRecord);
    if is_unknown && if_unknown == IfUnknown::Leave {
        return Choice::Undecided(WATERMARK_PASSED);
    }
    if is_whole && orders.iter().all(|order| *order == WatermarkOrder::AtRecord) {
        return Choice::AlreadyCounted;
    }
    Choice::Count(match may_be_redelivered {
        true => WindowCondition::AtOrPastRecord,
        false => WindowCondition::None,
    })
}

/// True if the stream may again deliver a record with this creation time.
fn may_be_redelivered(created: EpochMillis) -> bool {
    let limit_s = i64::try_from(REDELIVERY_TIME.as_secs()).unwrap_or(i64::MAX);
    now().get() / 1_000 - created.get() / 1_000 < limit_s
}

const MAY_BE_REDELIVERED: &str = "the stream may deliver the record again, and that delivery counts it; \
                              try again when the record is two days old";
const WATERMARK_PASSED: &str = "one of its windows has counted later records, and cannot tell whether \
                      another delivery counted this one too";

#[cfg(test)]
mod tests {
    use super::*;
    use IfUnknown::{Count, Leave};
    use WatermarkOrder::{AtRecord, NotReached, PastRecord};

    #[test]
    fn an_entry_of_one_window_needs_the_watermark_or_the_age() {
        let choose = |order, may_be_redelivered| {
            choose(&[order], Some(WindowKind::Hour), may_be_redelivered, Leave)
        };
        for order in [AtRecord, PastRecord] {
            assert_eq!(choose(order, true), Choice::Count(WindowCondition::AtOrPastRecord));
        }
        assert_eq!(choose(NotReached, true), Choice::Undecided(MAY_BE_REDELIVERED));
        assert_eq!(choose(NotReached, false), Choice::Count(WindowCondition::None));
    }

    #[test]
    fn an_entry_of_a_whole_record_may_have_been_counted() {
        let young = |orders: &[_], if_unknown| choose(orders, None, true, if_unknown);
        let old = |orders: &[_]| choose(orders, None, false, Leave);
        let count_young = Choice::Count(WindowCondition::AtOrPastRecord);
        assert_eq!(young(&[AtRecord, AtRecord], Count), Choice::AlreadyCounted);
        // The delivery that counted it in one window may have found the other past it.
        assert_eq!(young(&[AtRecord, PastRecord], Leave), Choice::Undecided(WATERMARK_PASSED));
        assert_eq!(young(&[AtRecord, PastRecord], Count), count_young);
        assert_eq!(young(&[PastRecord, PastRecord], Leave), Choice::Undecided(WATERMARK_PASSED));
        assert_eq!(young(&[PastRecord], Count), count_young);
        assert_eq!(young(&[NotReached, AtRecord], Leave), Choice::Undecided(MAY_BE_REDELIVERED));
        assert_eq!(old(&[NotReached, AtRecord]), Choice::Count(WindowCondition::None));
        assert_eq!(old(&[NotReached]), Choice::Count(WindowCondition::None));
    }
}
