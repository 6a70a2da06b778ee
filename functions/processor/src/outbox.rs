//! Delivers the alerts of the outbox, each at least once.
//!
//! An entry stays open in the table until the destination accepts its alert, or until it is given
//! up. No query reads open entries alone: they come with the minutely read of the thresholds, and
//! from the claims of this process. After each delivery, the process marks the entry: it stores
//! the result. If a process ends before the mark, the alert is delivered again, with the same id. A
//! process that cannot mark an entry repeats the mark, not the delivery.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::Region;
use aws_sdk_dynamodb::types::{Delete, Put, TransactWriteItem};
use futures_util::StreamExt;
use futures_util::stream::{self, FuturesUnordered};
use sluicegate_core::keys::AlertId;
use sluicegate_core::{EpochMillis, OutboxEntry, OutboxState};
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::cloud_event::Event;
use crate::expressions;
use crate::sender::Sender;
use crate::transact::{NotDone, transact};
use crate::write_error::{WriteError, is_failed_condition};

/// Deliveries at once.
const DELIVERIES_AT_ONCE: usize = 8;
/// After this many failed deliveries an entry is given up, and a person must look at it. With the
/// longest pause of about an hour, that takes about a day.
const ATTEMPTS_MAX: u32 = 30;
/// If this many deliveries of a turn fail and none succeeds, the turn delivers no more, and the
/// destination is left alone for the pause after a first failure. Each delivery may have taken
/// until its timeout, and the stream waits for the turn. Before the first success, the failed
/// deliveries and those in flight are at most this many. So when deliveries end in this way, none
/// is in flight, and none is abandoned that the destination might have accepted.
///
/// A turn also repeats no more marks after this many of them have failed.
const FAILURES_MAX: usize = 8;
/// The time for which one turn begins deliveries and marks. It is short, because the stream waits
/// for the turn.
const TURN_TIME: Duration = Duration::from_secs(10);
/// The time for which a mark is repeated.
const MARK_TIME: Duration = Duration::from_secs(2);
/// The time for which a delivered entry is kept.
const SENT_KEPT_S: i64 = 7 * 86_400;

/// The open entries that a process knows of, and the way to the destination.
#[derive(Debug)]
pub(crate) struct Outbox {
    sender: Sender,
    waiting: Mutex<Entries>,
    /// Entries whose mark failed, in the state that the next attempt must store.
    unmarked: Mutex<Entries>,
    /// True if the last read of the table was not complete: newer entries may wait there.
    has_unread: AtomicBool,
    /// A task holds this lock while it delivers, so that one task of this process delivers at a
    /// time. It guards the time until which the destination is left alone.
    turn: tokio::sync::Mutex<Instant>,
}

/// The order of the open entries in the table.
type OrderKey = (EpochMillis, AlertId);
type Entries = BTreeMap<OrderKey, OutboxEntry>;

/// The deliveries of one turn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Deliveries {
    /// Alerts that the destination accepted.
    pub sent: u64,
    /// Failed deliveries, and failed repetitions of marks. They are tried again later.
    pub failed: u64,
    /// Alerts that were given up: a person must look at them.
    pub given_up: u64,
}

impl Outbox {
    pub(crate) fn new(sender: Sender) -> Self {
        let turn = tokio::sync::Mutex::new(Instant::now());
        let (waiting, unmarked) = (Mutex::default(), Mutex::default());
        Self { sender, waiting, unmarked, has_unread: AtomicBool::new(false), turn }
    }

    /// Takes in the open entries that a read of the table found. A read that is not complete ends
    /// with the newest of them, and tells nothing of newer ones.
    pub(crate) fn learn_read(
        &self,
        found: impl IntoIterator<Item = OutboxEntry>,
        is_complete: bool,
    ) {
        let found: Entries = found.into_iter().map(|entry| (order_key(&entry), entry)).collect();
        let last = found.last_key_value().map(|(key, _)| *key).filter(|_| !is_complete);
        let is_read = |key: &OrderKey| last.is_none_or(|last| *key <= last);
        self.has_unread.store(!is_complete, Ordering::Relaxed);
        // An entry that the read did not find is closed or deleted, and needs no mark. One that was
        // claimed during the read comes back with the next one.
        lock(&self.unmarked).retain(|key, _| !is_read(key) || found.contains_key(key));
        let mut waiting = lock(&self.waiting);
        waiting.retain(|key, _| !is_read(key));
        waiting.extend(found);
    }

    /// True if entries wait, as far as this process knows.
    pub(crate) fn has_waiting(&self) -> bool {
        self.has_unread.load(Ordering::Relaxed) || !lock(&self.waiting).is_empty()
    }

    /// True if all entries that this process read are closed, but not all were read.
    pub(crate) fn must_read_on(&self) -> bool {
        self.has_unread.load(Ordering::Relaxed) && lock(&self.waiting).is_empty()
    }

    /// Adds entries that wait in the table.
    pub(crate) fn add(&self, new: impl IntoIterator<Item = OutboxEntry>) {
        lock(&self.waiting).extend(new.into_iter().map(|entry| (order_key(&entry), entry)));
    }

    /// Delivers the entries that are due, and then repeats the marks that failed. After `TURN_TIME`
    /// it begins no more of either. It waits for those in flight, and abandons them at `deadline`.
    ///
    /// If another task of this process is delivering, it does nothing. While the destination is
    /// left alone, it only repeats marks.
    pub(crate) async fn deliver(
        &self,
        client: &Client,
        table: &str,
        deadline: Instant,
    ) -> Deliveries {
        let mut deliveries = Deliveries::default();
        let Ok(mut left_alone_until) = self.turn.try_lock() else { return deliveries };
        let until = Instant::now() + TURN_TIME;
        let (due, unmarked) = self.due_and_unmarked();
        let mut due = due.into_iter();
        let mut begun = FuturesUnordered::new();
        let mut failures = 0;
        while Instant::now() >= *left_alone_until {
            let may_begin = match deliveries.sent {
                0 => DELIVERIES_AT_ONCE.min(FAILURES_MAX - failures),
                _ => DELIVERIES_AT_ONCE,
            };
            while begun.len() < may_begin && Instant::now() < until {
                let Some(entry) = due.next() else { break };
                begun.push(self.deliver_one(client, table, entry));
            }
            let Ok(Some(one)) = tokio::time::timeout_at(deadline, begun.next()).await else {
                break;
            };
            deliveries.sent += one.sent;
            deliveries.failed += one.failed;
            deliveries.given_up += one.given_up;
            failures += usize::from(one.failed + one.given_up > 0);
            if deliveries.sent == 0 && failures == FAILURES_MAX {
                *left_alone_until = Instant::now() + self.sender.pause(1);
            }
        }
        let marks = self.repeat_marks(client, table, unmarked, until);
        deliveries.failed += tokio::time::timeout_at(deadline, marks).await.unwrap_or_default();
        deliveries
    }

    /// Repeats marks. Returns the number of those that failed again.
    async fn repeat_marks(
        &self,
        client: &Client,
        table: &str,
        unmarked: Vec<(OutboxEntry, OutboxEntry)>,
        until: Instant,
    ) -> u64 {
        let failed = &AtomicUsize::new(0);
        let marks = unmarked.into_iter().map(|(found, new)| async move {
            if Instant::now() < until
                && failed.load(Ordering::Relaxed) < FAILURES_MAX
                && !self.mark(client, table, &found, &new).await
            {
                failed.fetch_add(1, Ordering::Relaxed);
            }
        });
        stream::iter(marks).buffer_unordered(DELIVERIES_AT_ONCE).count().await;
        u64::try_from(failed.load(Ordering::Relaxed)).unwrap_or(u64::MAX)
    }

    /// The entries to deliver, and the marks to repeat. Entries with fewer attempts come first, so
    /// that alerts that the destination never accepts hold up no new one. A mark is an entry as it
    /// was found, with its new state.
    fn due_and_unmarked(&self) -> (Vec<OutboxEntry>, Vec<(OutboxEntry, OutboxEntry)>) {
        let (waiting, unmarked) = (lock(&self.waiting), lock(&self.unmarked));
        let (mut due, mut marks) = (Vec::new(), Vec::new());
        for (key, found) in waiting.iter().filter(|(_, entry)| is_due(entry)) {
            match unmarked.get(key) {
                Some(tried) if is_due(tried) => due.push(tried.clone()),
                Some(tried) => marks.push((found.clone(), tried.clone())),
                None => due.push(found.clone()),
            }
        }
        due.sort_by_key(attempts);
        (due, marks)
    }

    async fn deliver_one(&self, client: &Client, table: &str, entry: OutboxEntry) -> Deliveries {
        let id = entry.alert.id().to_string();
        let sent = self.sender.send(Event::new(&source(client, table), &entry)).await;
        let Err(reason) = sent else {
            let expires_at_s = Some(now().get() / 1_000 + SENT_KEPT_S);
            let state = OutboxState::Sent;
            let closed = OutboxEntry { state, reason: None, expires_at_s, ..entry.clone() };
            self.mark(client, table, &entry, &closed).await;
            return Deliveries { sent: 1, ..Deliveries::default() };
        };
        let attempts = attempts(&entry) + 1;
        if attempts >= ATTEMPTS_MAX {
            tracing::error!(
                id,
                reason,
                "an alert is given up: once the destination is repaired, `sluicegate alerts retry` delivers it"
            );
            let closed =
                OutboxEntry { state: OutboxState::Failed, reason: Some(reason), ..entry.clone() };
            self.mark(client, table, &entry, &closed).await;
            return Deliveries { given_up: 1, ..Deliveries::default() };
        }
        tracing::warn!(id, attempts, reason, "an alert was not delivered, it is tried again later");
        let pause = i64::try_from(self.sender.pause(attempts).as_millis()).unwrap_or(i64::MAX);
        let next_at = EpochMillis::new(now().get().saturating_add(pause));
        let state = OutboxState::Open { attempts, next_at: next_at.unwrap_or(EpochMillis::MAX) };
        let later = OutboxEntry { state, reason: Some(reason), ..entry.clone() };
        self.mark(client, table, &entry, &later).await;
        Deliveries { failed: 1, ..Deliveries::default() }
    }

    /// Marks an open entry, unless another process closed it. If the mark cannot be written, this
    /// returns false, and a later turn repeats the mark.
    async fn mark(
        &self,
        client: &Client,
        table: &str,
        old: &OutboxEntry,
        new: &OutboxEntry,
    ) -> bool {
        let mut backoff = Backoff::until(Instant::now() + MARK_TIME);
        let error = loop {
            match write_mark(client, table, old, new).await {
                Ok(is_open) => {
                    lock(&self.unmarked).remove(&order_key(old));
                    lock(&self.waiting).remove(&order_key(old));
                    if is_open && matches!(new.state, OutboxState::Open { .. }) {
                        self.add([new.clone()]);
                    }
                    return true;
                }
                Err(WriteError::Transient { .. }) if backoff.pause().await => {}
                Err(error) => break error,
            }
        };
        lock(&self.unmarked).insert(order_key(new), new.clone());
        let reason = error.reason();
        tracing::warn!(reason, "an alert could not be marked, the mark is repeated");
        false
    }
}

/// The number of deliveries of an open entry that failed.
fn attempts(entry: &OutboxEntry) -> u32 {
    match entry.state {
        OutboxState::Open { attempts, .. } => attempts,
        OutboxState::Sent | OutboxState::Failed => 0,
    }
}

fn is_due(entry: &OutboxEntry) -> bool {
    match entry.state {
        OutboxState::Open { next_at, .. } => next_at <= now(),
        OutboxState::Sent | OutboxState::Failed => false,
    }
}

fn lock(of: &Mutex<Entries>) -> MutexGuard<'_, Entries> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The source of a table's events. Tables of the same name in different regions have different
/// sources.
fn source(client: &Client, table: &str) -> String {
    let region = client.config().region().map_or("", Region::as_ref);
    // The name of a table may be an ARN; `/` and `:` are fine in a path.
    format!("/sluicegate/{region}/{table}")
}

/// Replaces an open entry in the table; false if the entry is no longer open.
async fn write_mark(
    client: &Client,
    table: &str,
    old: &OutboxEntry,
    new: &OutboxEntry,
) -> Result<bool, WriteError> {
    let put = Put::builder().table_name(table).set_item(Some(new.to_item().into()));
    let (condition, names) = expressions::present();
    let mut items = Vec::new();
    if new.key() == old.key() {
        let put = put.condition_expression(condition).set_expression_attribute_names(Some(names));
        items.push(TransactWriteItem::builder().put(put.build()?).build());
    } else {
        let delete = Delete::builder()
            .table_name(table)
            .set_key(Some(expressions::key(&old.key())))
            .condition_expression(condition)
            .set_expression_attribute_names(Some(names));
        let delete = delete.build()?;
        items.push(TransactWriteItem::builder().delete(delete).build());
        items.push(TransactWriteItem::builder().put(put.build()?).build());
    }
    match transact(client, items).await {
        Ok(_) => Ok(true),
        Err(NotDone::Cancelled(reasons)) if reasons.first().is_some_and(is_failed_condition) => {
            Ok(false)
        }
        Err(NotDone::Cancelled(reasons)) => Err(WriteError::of_reasons(&reasons)),
        Err(NotDone::Failed(error)) => Err(error),
    }
}

fn order_key(entry: &OutboxEntry) -> OrderKey {
    (entry.at, entry.alert.id())
}

/// The time of this process.
pub(crate) fn now() -> EpochMillis {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = i64::try_from(now.as_millis()).ok().and_then(|now| EpochMillis::new(now).ok());
    now.unwrap_or(EpochMillis::MAX)
}

#[cfg(test)]
mod tests {
    use sluicegate_core::fixtures::{at, bucket, name};
    use sluicegate_core::{Alert, Threshold, WindowKind};

    use super::*;
    use crate::destination::Destination;

    fn entry(second: i64, attempts: u32) -> OutboxEntry {
        let at = at(1_769_608_800_000 + second * 1_000);
        let alert = Alert {
            bucket: bucket("team-7", "gpt-4"),
            limit: name("usd"),
            window: WindowKind::Hour.containing(at),
            threshold: Threshold::Percent(80),
            sum_milli: 1,
            amount: None,
        };
        let state = OutboxState::Open { attempts, next_at: at };
        OutboxEntry { state, ..OutboxEntry::new(alert, at) }
    }

    fn outbox() -> Outbox {
        let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        let destination = Destination::new("http://127.0.0.1:9/", secret).unwrap();
        Outbox::new(Sender::new(destination, &aws_config::SdkConfig::builder().build()))
    }

    #[test]
    fn entries_that_failed_often_wait_for_new_ones() {
        let outbox = outbox();
        outbox.add([entry(1, 7), entry(2, 0), entry(3, 7), entry(4, 1)]);
        let (due, marks) = outbox.due_and_unmarked();
        assert_eq!(due, [entry(2, 0), entry(4, 1), entry(1, 7), entry(3, 7)]);
        assert!(marks.is_empty());
    }

    #[test]
    fn a_read_that_ends_early_tells_nothing_of_newer_entries() {
        let outbox = outbox();
        let waiting = || lock(&outbox.waiting).values().cloned().collect::<Vec<_>>();
        outbox.add([1, 3, 5].map(|second| entry(second, 0)));
        for second in [1, 5] {
            let sent = OutboxEntry { state: OutboxState::Sent, ..entry(second, 0) };
            lock(&outbox.unmarked).insert(order_key(&sent), sent);
        }
        outbox.learn_read([entry(2, 0), entry(4, 0)], false);
        assert_eq!(waiting(), [2, 4, 5].map(|second| entry(second, 0)));
        let (due, marks) = outbox.due_and_unmarked();
        assert_eq!((due.len(), marks.len()), (2, 1), "the mark of the newest is kept");
        outbox.learn_read([entry(4, 0)], true);
        assert_eq!(waiting(), [entry(4, 0)]);
    }
}
