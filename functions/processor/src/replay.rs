//! Counts records from quarantine, each once.
//!
//! The code that reads and folds a delivery also reads and folds the stored record, but the record
//! cannot be counted as a delivery: watermarks only move forward, and have passed it. So one
//! transaction adds it to its windows and turns its entry from open to done. The entry, not the
//! watermark, prevents a second replay from counting it. A replay never moves a watermark: earlier
//! records that still wait for another delivery would then be taken for counted.
//!
//! The stream remains: it can deliver the record again for 24 hours, perhaps to a version that can
//! read a record that the version before could not. The watermark of each window tells if it was
//! counted:
//!
//! | entry | watermark | stream may deliver it again | the replay |
//! |---|---|---|---|
//! | of one window | at or past the record | | counts: the watermark was moved past it without counting, in the transaction that wrote the entry, and no delivery counts behind it |
//! | of a whole record | at the record | | closes the entry: only a delivery that counted the record put it there |
//! | of a whole record | past the record | | cannot tell: later records moved it, before or after another delivery counted this one. A person who knows can say so ([`Assume::Uncounted`]) |
//! | any | before the record, or none | yes | leaves it: that delivery would count it again |
//! | any | before the record, or none | no | counts: no delivery did, and none will |
//!
//! The condition in this table is part of the transaction, so that it holds when the transaction
//! counts.

mod transactions;

use std::cmp::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_sdk_dynamodb::types::ReturnConsumedCapacity;
use serde_json::value::RawValue;
use sluicegate_core::keys::ItemKey;
use sluicegate_core::{
    Batch, EpochMillis, QuarantineEntry, QuarantineState, WindowFold, WindowKind, WindowKinds, fold,
};

use crate::attempt;
use crate::expressions::{self, ReplayGuard};
use crate::processor::Processor;
use crate::refusal::Refusal;

/// A stream holds records for 24 hours; twice that leaves room for a delivery in flight.
const IN_REACH: Duration = Duration::from_secs(48 * 3_600);

/// The assumption about a record whose watermarks do not tell if it was counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Assume {
    /// No assumption: leave the record.
    #[default]
    Nothing,
    /// No delivery counted it since it was quarantined.
    Uncounted,
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
    Odd(String),
    /// It cannot be decided now if it was counted, for this reason; its entry stays.
    Undecided(String),
    /// The table refused the transaction, for this reason; its entry stays.
    Refused(String),
}

/// The position of one window's watermark relative to a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Evidence {
    /// The watermark is before the record, or there is none.
    Before,
    /// It is the record's own position.
    At,
    /// It is past the record.
    Past,
}

impl Processor {
    /// Counts a quarantined record in the windows that lack it and closes its entry, in one
    /// transaction (several if it names more than 200 limits, each noted in the entry). Costs a
    /// read of each window and two write units for every item.
    ///
    /// The windows are those of the processor's settings, or the one kind that the entry is of.
    pub async fn replay(&self, entry: &QuarantineEntry, assume: Assume) -> Replayed {
        let Ok(json) = RawValue::from_string(entry.record.clone()) else {
            return Replayed::Odd(entry.reason.clone());
        };
        let records = [json];
        let batch = Batch::read(&records);
        if let Some(odd) = batch.odd.into_iter().next() {
            return Replayed::Odd(odd.reason);
        }
        let kinds =
            entry.id.window.map_or_else(|| self.settings().windows.clone(), WindowKinds::from);
        let created = batch.oldest;
        let windows = fold(batch.counted, &kinds).windows;
        if windows.is_empty() {
            return self.close(entry, QuarantineState::Done, Replayed::NothingToCount).await;
        }
        let mut evidence = Vec::with_capacity(windows.len());
        for window in &windows {
            match self.evidence(window).await {
                Ok(found) => evidence.push(found),
                Err(refusal) => return Replayed::Refused(refusal.reason()),
            }
        }
        let created = created.or_else(|| Some(windows.first()?.records().first()?.at));
        let reach = created.map_or(Reach::Within, Reach::of);
        match judge(&evidence, entry.id.window, reach, assume) {
            Verdict::Count(relies) => self.count_again(entry, &windows, relies).await,
            Verdict::Counted => {
                self.close(entry, QuarantineState::Done, Replayed::CountedBefore).await
            }
            Verdict::Undecided(why) => Replayed::Undecided(why.to_owned()),
        }
    }

    /// Gives a quarantined record up: its entry stays closed as a tombstone, and no window counts
    /// it.
    pub async fn give_up(&self, entry: &QuarantineEntry) -> Replayed {
        self.close(entry, QuarantineState::Dropped, Replayed::GivenUp).await
    }

    async fn evidence(&self, window: &WindowFold<'_>) -> Result<Evidence, Refusal> {
        let output = self
            .client()
            .get_item()
            .table_name(&self.settings().table)
            .set_key(Some(expressions::key(&window.key())))
            .consistent_read(true)
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .send()
            .await
            .map_err(|error| Refusal::of(&error))?;
        if output.consumed_capacity.is_none() {
            return Err(Refusal::empty_answer());
        }
        let position = attempt::watermark(output.item.as_ref(), window)?;
        let own = window.records().first().map(|record| record.sequence);
        Ok(match position.cmp(&own) {
            Ordering::Less => Evidence::Before,
            Ordering::Equal => Evidence::At,
            Ordering::Greater => Evidence::Past,
        })
    }
}

/// The decision about a record.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Count(ReplayGuard),
    /// A delivery counted it.
    Counted,
    /// It cannot be decided now, for this reason.
    Undecided(&'static str),
}

/// Decides by the table at the top of this file. `of` is the window kind of an entry for one
/// window.
fn judge(evidence: &[Evidence], of: Option<WindowKind>, reach: Reach, assume: Assume) -> Verdict {
    if reach == Reach::Within && evidence.contains(&Evidence::Before) {
        return Verdict::Undecided(STILL_IN_REACH);
    }
    if of.is_none() && evidence.contains(&Evidence::At) {
        return Verdict::Counted;
    }
    if of.is_none() && evidence.contains(&Evidence::Past) && assume == Assume::Nothing {
        return Verdict::Undecided(PASSED);
    }
    Verdict::Count(match reach {
        Reach::Within => ReplayGuard::OnWatermark,
        Reach::Beyond => ReplayGuard::OnAge,
    })
}

/// Says if the stream may deliver a record again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    Within,
    Beyond,
}

impl Reach {
    /// The reach of a record that was created then.
    fn of(created: EpochMillis) -> Self {
        let limit_s = i64::try_from(IN_REACH.as_secs()).unwrap_or(i64::MAX);
        match now_s().saturating_sub(created.get() / 1_000) < limit_s {
            true => Self::Within,
            false => Self::Beyond,
        }
    }
}

const STILL_IN_REACH: &str = "the stream may deliver the record again, and count it by itself; \
                              replay it when it is two days old";
const PASSED: &str = "its windows have counted later records, and cannot tell whether another \
                      delivery counted this one too";

fn now_s() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Assume::{Nothing, Uncounted};
    use Evidence::{At, Before, Past};
    use Reach::{Beyond, Within};

    #[test]
    fn an_entry_of_one_window_needs_the_watermark_or_the_age() {
        let judge = |evidence, reach| judge(&[evidence], Some(WindowKind::Hour), reach, Nothing);
        for passed in [At, Past] {
            assert_eq!(judge(passed, Within), Verdict::Count(ReplayGuard::OnWatermark));
        }
        assert_eq!(judge(Before, Within), Verdict::Undecided(STILL_IN_REACH));
        assert_eq!(judge(Before, Beyond), Verdict::Count(ReplayGuard::OnAge));
    }

    #[test]
    fn an_entry_of_a_whole_record_may_have_been_counted() {
        let judge = |evidence: &[_], reach, assume| judge(evidence, None, reach, assume);
        assert_eq!(judge(&[At, Past], Within, Nothing), Verdict::Counted);
        assert_eq!(judge(&[Past, Past], Within, Nothing), Verdict::Undecided(PASSED));
        assert_eq!(judge(&[Past], Within, Uncounted), Verdict::Count(ReplayGuard::OnWatermark));
        assert_eq!(judge(&[Before, At], Within, Nothing), Verdict::Undecided(STILL_IN_REACH));
        assert_eq!(judge(&[Before, At], Beyond, Nothing), Verdict::Counted);
        assert_eq!(judge(&[Before], Beyond, Nothing), Verdict::Count(ReplayGuard::OnAge));
    }
}
