//! Counting what quarantine kept, once.
//!
//! The stored record is read and folded by the very code that reads and folds a delivery, but it
//! cannot be counted as one: watermarks only move forward, and have passed it. So one transaction
//! adds it to its windows and turns its entry from open to done; the entry, not the watermark, is
//! what keeps it from being counted twice by a replay. It never moves a watermark: records before it
//! that still wait for another delivery would be taken for counted.
//!
//! What remains is the stream, which can deliver the record again for 24 hours, perhaps to a version
//! that can read what the one before could not. The watermark of each window says what is known of
//! that:
//!
//! | entry | watermark | stream may deliver it again | the replay |
//! |---|---|---|---|
//! | of one window | at or past the record | | counts: the watermark was moved past it without counting, in the transaction that wrote the entry, and no delivery counts behind it |
//! | of a whole record | at the record | | closes the entry: only a delivery that counted the record put it there |
//! | of a whole record | past the record | | cannot tell: later records moved it, before or after another delivery counted this one. A person who knows says so ([`Assume::Uncounted`]) |
//! | any | before the record, or none | yes | leaves it: that delivery would count it again |
//! | any | before the record, or none | no | counts: nobody did, and nobody will |
//!
//! The condition that the table gives is part of the transaction, so that it holds when it counts.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use aws_sdk_dynamodb::types::{TransactWriteItem, Update};
use serde_json::value::RawValue;
use sluicegate_core::keys::{ItemKey, watermark_attribute};
use sluicegate_core::{
    Batch, EpochMillis, LimitName, QuarantineEntry, QuarantineState, SequenceNumber, WindowFold,
    WindowKinds, fold,
};

use crate::expressions;
use crate::processor::Processor;
use crate::refusal::{Refusal, one_line};
use crate::settings::Retention;

/// A stream holds records for 24 hours; twice that leaves room for a delivery under way.
const IN_REACH: Duration = Duration::from_secs(48 * 3_600);
/// How long a closed entry stands, so that no delivery opens it again.
const TOMBSTONE: Retention = Retention::Days(7);
/// Limits of one transaction: an update names at most about 300.
const LIMITS_PER_TRANSACTION: usize = 200;

/// What to take for granted of a record that watermarks cannot tell about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Assume {
    /// Nothing: leave it.
    #[default]
    Nothing,
    /// That no delivery counted it since it was quarantined.
    Uncounted,
}

/// What a replay came to.
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
    /// It is still odd, for this reason; its entry stays.
    Odd(String),
    /// Whether it was counted cannot be told now, for this reason; its entry stays.
    Undecided(String),
    /// The table did not take it, for this reason; its entry stays.
    Refused(String),
}

/// What one window says of a record.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Evidence {
    /// The watermark is before the record, or there is none.
    Before,
    /// It is the record's own position.
    At,
    Past,
}

/// What the transaction relies on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Relies {
    /// On a watermark at or past the record: no delivery counts behind it.
    OnWatermark,
    /// On the record's age: no stream delivers it.
    OnAge,
}

impl Processor {
    /// Counts a quarantined record in the windows that it is missing from and closes its entry, in
    /// one transaction (several where it names more than 200 limits, each noted in the entry). Costs
    /// a read of each window and two write units for every item.
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
        let is_in_reach = created.is_none_or(is_in_reach);
        let relies = if is_in_reach { Relies::OnWatermark } else { Relies::OnAge };
        let is_before = |found: &Evidence| *found == Evidence::Before;
        if is_in_reach && evidence.iter().any(is_before) {
            return Replayed::Undecided(STILL_IN_REACH.to_owned());
        }
        if entry.id.window.is_none() {
            if evidence.contains(&Evidence::At) {
                return self.close(entry, QuarantineState::Done, Replayed::CountedBefore).await;
            }
            if evidence.contains(&Evidence::Past) && assume == Assume::Nothing {
                return Replayed::Undecided(PASSED.to_owned());
            }
        }
        self.count_again(entry, &windows, relies).await
    }

    /// Gives a quarantined record up: its entry stays closed as a tombstone, and nothing counts it.
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
            .send()
            .await
            .map_err(|error| Refusal::of(&error))?;
        let item = output.item.unwrap_or_default();
        let Some(watermark) = item.get(&watermark_attribute(window.stream())) else {
            return Ok(Evidence::Before);
        };
        let position = watermark.as_s().ok().and_then(|digits| SequenceNumber::parse(digits).ok());
        let position = position.ok_or_else(|| {
            let (pk, sk) = (window.key().pk(), window.key().sk());
            Refusal::Setup(format!("the watermark of {pk} / {sk} is no position; repair the item"))
        })?;
        let own = window.records().first().map(|record| record.sequence);
        Ok(match own {
            Some(own) if position == own => Evidence::At,
            Some(own) if position > own => Evidence::Past,
            _ => Evidence::Before,
        })
    }

    async fn count_again(
        &self,
        entry: &QuarantineEntry,
        windows: &[WindowFold<'_>],
        relies: Relies,
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
        relies: Relies,
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
        let request = self.client().transact_write_items().set_transact_items(Some(items));
        let Err(error) = request.send().await else { return Ok(()) };
        let Some(TransactWriteItemsError::TransactionCanceledException(cancelled)) =
            error.as_service_error()
        else {
            return Err(Replayed::Refused(Refusal::of(&error).reason()));
        };
        let reasons = cancelled.cancellation_reasons();
        let is_refused = |at: usize| {
            reasons.get(at).is_some_and(|reason| reason.code() == Some("ConditionalCheckFailed"))
        };
        if is_refused(0) {
            return Err(Replayed::Closed);
        }
        if (1..reasons.len()).any(is_refused) {
            return Err(Replayed::Undecided(STILL_IN_REACH.to_owned()));
        }
        let told = reasons.iter().find(|reason| reason.code() != Some("None"));
        let code = told.and_then(|reason| reason.code()).unwrap_or("TransactionCanceled");
        let message = told.and_then(|reason| reason.message()).unwrap_or_default();
        Err(Replayed::Refused(one_line(&format!("{code}: {message}"), 400)))
    }

    /// Closes an entry without counting it.
    async fn close(
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

const STILL_IN_REACH: &str = "the stream may deliver the record again, and count it by itself; \
                              replay it when it is two days old";
const PASSED: &str = "its windows have counted later records, and cannot tell whether another \
                      delivery counted this one too";

/// Which of a record's limits one transaction counts.
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

fn now_s() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_secs()).unwrap_or(i64::MAX)
}

fn is_in_reach(created: EpochMillis) -> bool {
    let reach_s = i64::try_from(IN_REACH.as_secs()).unwrap_or(i64::MAX);
    now_s().saturating_sub(created.get() / 1_000) < reach_s
}

fn expiry_s(now_s: i64) -> Option<i64> {
    TOMBSTONE.expiry_s(now_s, now_s)
}
