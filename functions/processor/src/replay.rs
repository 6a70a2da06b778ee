//! Counts records from quarantine, each once.
//!
//! A replay reads and groups the stored record with the code that reads and groups a delivery. It
//! cannot write the windows as a delivery does, because their watermarks are past the record and
//! only move forward. Instead, one transaction adds the record to its windows and turns its entry
//! from open to done. The state of the entry prevents a second replay from counting the record. A
//! replay never moves a watermark: a moved watermark would hide earlier records that still wait for
//! another delivery.
//!
//! The stream can deliver the record again for 24 hours, perhaps to a version of the processor that
//! can read a record that its predecessor could not. The replay therefore reads the watermarks of
//! the record's windows first. It acts by the first row that applies to any of them:
//!
//! | entry | watermark | the stream may deliver it again | replay |
//! |---|---|---|---|
//! | any | before the record, or none | yes | leaves the entry open: that delivery would count the record |
//! | of a whole record | at the record | yes or no | closes the entry: only a delivery that counted the record moved the watermark there |
//! | of a whole record | past the record | yes or no | leaves the entry open: the watermark does not tell if a delivery counted the record before it counted later ones. With [`IfUnknown::Count`], the replay counts |
//! | of one window | at or past the record | yes or no | counts: the transaction that wrote the entry moved the watermark past the record without counting it, and no delivery counts a record below a watermark |
//! | any | before the record, or none | no | counts: no delivery counted the record, and none will |
//!
//! A transaction that counts has the watermark of the row as its condition, unless the stream cannot
//! deliver the record again.

mod transactions;

use std::cmp::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_sdk_dynamodb::types::ReturnConsumedCapacity;
use serde_json::value::RawValue;
use sluicegate_core::keys::ItemKey;
use sluicegate_core::{
    Batch, EpochMillis, QuarantineEntry, QuarantineState, WindowGroup, WindowKind, WindowKinds,
    fold,
};

use crate::attempt;
use crate::expressions::{self, ReplayGuard};
use crate::processor::Processor;
use crate::write_error::WriteError;

/// A stream holds records for 24 hours; twice that leaves room for a delivery in flight.
const REDELIVERY_TIME: Duration = Duration::from_secs(48 * 3_600);

/// The action for a record whose watermarks do not tell if it was counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IfUnknown {
    /// Leave its entry open.
    #[default]
    Leave,
    /// Count it: the operator knows that no delivery counted it since it was quarantined.
    Count,
}

/// The result of a replay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Replayed {
    /// It was counted in these windows, and its entry is closed.
    Counted(Vec<ItemKey>),
    /// Another delivery had counted it; its entry is closed.
    CountedBefore,
    /// It is readable and consumed nothing; its entry is closed.
    NothingToCount,
    /// It was given up; its entry is closed.
    GivenUp,
    /// The entry was closed already, perhaps in this moment.
    Closed,
    /// It still cannot be counted, for this reason; its entry stays.
    Malformed(String),
    /// The replay cannot tell yet if it was or will be counted, for this reason; its entry stays.
    Undecided(String),
    /// The table refused the transaction, for this reason; its entry stays.
    Refused(String),
}

/// The position of one window's watermark relative to a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WatermarkOrder {
    /// The watermark is before the record, or there is none.
    Before,
    /// It is the record's own position.
    At,
    /// It is past the record.
    Past,
}

impl Processor {
    /// Counts a quarantined record in the windows that lack it and closes its entry, in one
    /// transaction (several if it names more than 200 limits, each noted in the entry). It costs a
    /// read of each window and two write units for every item.
    ///
    /// The windows are those of the processor's settings, or the one kind that the entry is of.
    pub async fn replay(&self, entry: &QuarantineEntry, if_unknown: IfUnknown) -> Replayed {
        let Ok(json) = RawValue::from_string(entry.record.clone()) else {
            return Replayed::Malformed(entry.reason.clone());
        };
        let records = [json];
        let batch = Batch::read(&records);
        if let Some(malformed) = batch.uncountable.into_iter().next() {
            return Replayed::Malformed(malformed.reason);
        }
        let kinds =
            entry.id.kind.map_or_else(|| self.settings().window_kinds.clone(), WindowKinds::from);
        let created = batch.oldest;
        let windows = fold(batch.records, &kinds).groups;
        if windows.is_empty() {
            return self.close(entry, QuarantineState::Done, Replayed::NothingToCount).await;
        }
        let mut orders = Vec::with_capacity(windows.len());
        for window in &windows {
            match self.watermark_order(window).await {
                Ok(order) => orders.push(order),
                Err(error) => return Replayed::Refused(error.reason()),
            }
        }
        let created = created.or_else(|| Some(windows.first()?.records().first()?.at));
        let may_be_redelivered = created.is_none_or(may_be_redelivered);
        match decide(&orders, entry.id.kind, may_be_redelivered, if_unknown) {
            Decision::Count(guard) => self.count_quarantined(entry, &windows, guard).await,
            Decision::CountedBefore => {
                self.close(entry, QuarantineState::Done, Replayed::CountedBefore).await
            }
            Decision::Undecided(reason) => Replayed::Undecided(reason.to_owned()),
        }
    }

    /// Gives a quarantined record up: its entry stays closed as a tombstone, and no window counts
    /// it.
    pub async fn give_up(&self, entry: &QuarantineEntry) -> Replayed {
        self.close(entry, QuarantineState::Dropped, Replayed::GivenUp).await
    }

    async fn watermark_order(
        &self,
        window: &WindowGroup<'_>,
    ) -> Result<WatermarkOrder, WriteError> {
        let output = self
            .client()
            .get_item()
            .table_name(&self.settings().table)
            .set_key(Some(expressions::key(&window.key())))
            .consistent_read(true)
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .send()
            .await
            .map_err(|error| WriteError::of(&error))?;
        if output.consumed_capacity.is_none() {
            return Err(WriteError::empty_answer());
        }
        let watermark = attempt::watermark(output.item.as_ref(), window)?;
        let record = window.records().first().map(|record| record.sequence);
        Ok(match watermark.cmp(&record) {
            Ordering::Less => WatermarkOrder::Before,
            Ordering::Equal => WatermarkOrder::At,
            Ordering::Greater => WatermarkOrder::Past,
        })
    }
}

/// The decision about a record.
#[derive(Debug, PartialEq, Eq)]
enum Decision {
    Count(ReplayGuard),
    /// A delivery counted it.
    CountedBefore,
    /// The watermarks do not tell, for this reason.
    Undecided(&'static str),
}

/// Decides by the table at the top of this file. `of` is the window kind of an entry for one
/// window.
fn decide(
    orders: &[WatermarkOrder],
    of: Option<WindowKind>,
    may_be_redelivered: bool,
    if_unknown: IfUnknown,
) -> Decision {
    if may_be_redelivered && orders.contains(&WatermarkOrder::Before) {
        return Decision::Undecided(MAY_BE_REDELIVERED);
    }
    if of.is_none() && orders.contains(&WatermarkOrder::At) {
        return Decision::CountedBefore;
    }
    let is_unknown = of.is_none() && orders.contains(&WatermarkOrder::Past);
    if is_unknown && if_unknown == IfUnknown::Leave {
        return Decision::Undecided(WATERMARK_PASSED);
    }
    Decision::Count(match may_be_redelivered {
        true => ReplayGuard::OnWatermark,
        false => ReplayGuard::OnAge,
    })
}

/// True if the stream may deliver a record again that was created then.
fn may_be_redelivered(created: EpochMillis) -> bool {
    let limit_s = i64::try_from(REDELIVERY_TIME.as_secs()).unwrap_or(i64::MAX);
    now_s().saturating_sub(created.get() / 1_000) < limit_s
}

const MAY_BE_REDELIVERED: &str = "the stream may deliver the record again, and count it by itself; \
                              replay it when it is two days old";
const WATERMARK_PASSED: &str = "its windows have counted later records, and cannot tell whether another \
                      delivery counted this one too";

fn now_s() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use IfUnknown::{Count, Leave};
    use WatermarkOrder::{At, Before, Past};

    #[test]
    fn an_entry_of_one_window_needs_the_watermark_or_the_age() {
        let decide = |order, may_be_redelivered| {
            decide(&[order], Some(WindowKind::Hour), may_be_redelivered, Leave)
        };
        for order in [At, Past] {
            assert_eq!(decide(order, true), Decision::Count(ReplayGuard::OnWatermark));
        }
        assert_eq!(decide(Before, true), Decision::Undecided(MAY_BE_REDELIVERED));
        assert_eq!(decide(Before, false), Decision::Count(ReplayGuard::OnAge));
    }

    #[test]
    fn an_entry_of_a_whole_record_may_have_been_counted() {
        let young = |orders: &[_], if_unknown| decide(orders, None, true, if_unknown);
        let old = |orders: &[_]| decide(orders, None, false, Leave);
        assert_eq!(young(&[At, Past], Leave), Decision::CountedBefore);
        assert_eq!(young(&[Past, Past], Leave), Decision::Undecided(WATERMARK_PASSED));
        assert_eq!(young(&[Past], Count), Decision::Count(ReplayGuard::OnWatermark));
        assert_eq!(young(&[Before, At], Leave), Decision::Undecided(MAY_BE_REDELIVERED));
        assert_eq!(old(&[Before, At]), Decision::CountedBefore);
        assert_eq!(old(&[Before]), Decision::Count(ReplayGuard::OnAge));
    }
}
