//! Watches the buckets of which tokens are held: gives back tokens that are too old or not needed,
//! and at the end all tokens. When `max_keys` buckets are held, it makes room for others.

use std::cmp::Reverse;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use sluicegate_core::BucketId;
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

use super::bucket_map;
use super::leased_bucket::{LeasedBucket, WriteTurn};
use super::leaser::{Leaser, WriteKind};
use super::limit_ledger::LimitLedger;
use crate::clock::Clock;
use crate::error::AcquireError;

/// The number of inspections per `max_age`.
const INSPECTIONS: u64 = 4;
/// The references to a bucket during an inspection, beside those of the map: those of the watched
/// list and of the inspection.
const INSPECTION_REFERENCES: usize = 2;
/// The number of buckets that the task inspects before it yields.
const INSPECTED_AT_ONCE: usize = 256;
/// The most writes in flight while many buckets are settled.
const SETTLING_MAX: usize = 32;
/// At most a quarter of `max_keys` buckets are evicted at once.
const EVICTED_PART: usize = 4;

/// The pause between attempts to settle a bucket, as long as there is time.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// The result of settling.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct SettleReport {
    /// The number of buckets that held tokens or had something to settle, and are now settled.
    pub settled: usize,
    /// The buckets that could not be settled, with the reason. Their unused tokens are missing at
    /// the store until it refills them; use that was not counted is missing from the usage.
    pub unsettled: Vec<(BucketId, AcquireError)>,
}

impl Leaser {
    /// Starts the background task, unless it runs. It inspects the watched buckets from time to
    /// time, and ends when no bucket is watched.
    pub(super) fn inspect_soon(self: &Arc<Self>) {
        let Ok(inspecting) = self.inspecting.clone().try_lock_owned() else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let every = Duration::from_millis(self.settings.max_age_ms().unsigned_abs() / INSPECTIONS);
        let (leaser, mut sleep) = (Arc::downgrade(self), self.clock.sleep(every));
        runtime.spawn(async move {
            let mut inspecting = Some(inspecting);
            while inspecting.is_some() {
                sleep.await;
                let Some(leaser) = leaser.upgrade() else { return };
                leaser.inspect_all(&mut inspecting).await;
                sleep = leaser.clock.sleep(every);
            }
        });
    }

    /// Inspects every watched bucket. Drops the lock if no bucket is watched any more.
    async fn inspect_all(self: &Arc<Self>, inspecting: &mut Option<OwnedMutexGuard<u32>>) {
        let (times, watched) = (self.times(), self.watched().clone());
        // The clock was set back since the last inspection. Another task may have noticed it.
        let was_set_back = inspecting.as_deref_mut().is_some_and(|set_backs| {
            std::mem::replace(set_backs, times.set_backs) != times.set_backs
        });
        let mut gone = Vec::with_capacity(watched.len());
        for buckets in watched.chunks(INSPECTED_AT_ONCE) {
            gone.extend(buckets.iter().map(|bucket| self.inspect(bucket, was_set_back)));
            tokio::task::yield_now().await;
        }
        self.make_room(&watched, times.now);
        let mut watched = self.watched();
        // A bucket that was added meanwhile is at the end of the list, and stays.
        let mut gone = gone.into_iter();
        watched.retain(|_| !gone.next().unwrap_or(false));
        self.buckets.sweep(watched.len());
        if watched.is_empty() {
            // Under the lock of the list: a task that adds a bucket later can start the next task.
            *inspecting = None;
        }
    }

    /// Inspects one bucket; true if it is no longer watched.
    fn inspect(self: &Arc<Self>, bucket: &Arc<LeasedBucket>, was_set_back: bool) -> bool {
        let mut times = self.times();
        times.is_set_back |= was_set_back;
        let mut guard = bucket.ledger();
        let Some(ledger) = guard.as_mut() else { return true };
        bucket.catch_up(ledger, times);
        self.meter.count(ledger.count_takes(&bucket.atomic, times.now));
        if bucket.must_settle(ledger, &self.settings, times.now) {
            let kind =
                if ledger.is_empty(times.now) { WriteKind::SettleAll } else { WriteKind::Renew };
            drop(guard);
            if let Some(turn) = bucket.try_turn() {
                let leaser = self.clone();
                tokio::spawn(async move { leaser.write_in_background(&turn, kind).await });
            }
            return false;
        }
        // The bucket stays watched while a task writes, the store must be told something, a lease
        // lasts, or the pool holds tokens.
        if ledger.is_in_use()
            || ledger.has_unreported(&self.settings)
            || !ledger.is_empty(times.now)
            || !bucket.atomic.unwatch()
        {
            return false;
        }
        *guard = None;
        // A prepared call may refer to the bucket. Then the bucket keeps its name, so that other
        // requests take from the same one.
        if Arc::strong_count(bucket) <= bucket_map::OWN_REFERENCES + INSPECTION_REFERENCES {
            self.buckets.forget(bucket);
        }
        true
    }

    /// Writes for an inspection. In an outage, the first failure is a warning.
    async fn write_in_background(&self, turn: &WriteTurn, kind: WriteKind) {
        let result = self.write(turn, &[], kind, self.settings.deadline).await;
        let Err(error) = result else { return };
        let (bucket, is_outage) = (turn.bucket.id(), matches!(error, AcquireError::Unavailable(_)));
        if is_outage && self.has_warned.swap(true, Ordering::Relaxed) {
            tracing::debug!(%bucket, %error, "leased tokens are not settled yet");
        } else {
            tracing::warn!(%bucket, %error, "leased tokens are not settled yet");
        }
    }

    /// Settles one bucket for each request that found no room. No request waits for it: until then,
    /// requests for other buckets are writes of their own. It takes the longest idle first and
    /// spares buckets used since `since_ms`. A bucket that cannot be settled stays.
    fn make_room(self: &Arc<Self>, watched: &[Arc<LeasedBucket>], since_ms: i64) {
        let wanted = self.turned_away.swap(0, Ordering::Relaxed);
        // Many of these requests may have been for one bucket.
        let wanted = wanted.min(self.settings.max_keys / EVICTED_PART + 1);
        if wanted == 0 {
            return;
        }
        let Ok(evicting) = self.evicting.clone().try_lock_owned() else { return };
        let now_ms = self.now_ms();
        let idle_for = |bucket: &Arc<LeasedBucket>| {
            let idle_ms = bucket.ledger().as_ref()?.used_at.age_ms(now_ms);
            (idle_ms > now_ms - since_ms).then(|| (idle_ms, bucket.clone()))
        };
        let mut idle: Vec<_> = watched.iter().filter_map(idle_for).collect();
        if idle.len() > wanted {
            idle.select_nth_unstable_by_key(wanted, |(idle_ms, _)| Reverse(*idle_ms));
            idle.truncate(wanted);
        }
        let leaser = self.clone();
        tokio::spawn(async move {
            futures_util::stream::iter(idle)
                .for_each_concurrent(SETTLING_MAX, |(_, bucket)| leaser.evict(bucket))
                .await;
            drop(evicting);
        });
    }

    /// Settles a bucket, so that the next inspection drops it. If a request comes meanwhile, the
    /// bucket leases again and stays.
    async fn evict(self: &Arc<Self>, bucket: Arc<LeasedBucket>) {
        let Some(turn) = bucket.try_turn() else { return };
        let deadline = self.settings.deadline;
        if let Err(error) = self.write(&turn, &[], WriteKind::SettleAll, deadline).await {
            tracing::debug!(bucket = %bucket.id(), %error, "no room was made for others yet");
            return;
        }
        let mut ledger = turn.ledger();
        bucket.catch_up(&mut ledger, self.times());
        ledger.limit_ledgers.iter_mut().for_each(LimitLedger::forget_empty);
    }

    async fn settle(
        self: Arc<Self>,
        bucket: Arc<LeasedBucket>,
        until: Instant,
    ) -> Result<(), AcquireError> {
        let turn = bucket.ledger().as_mut().map(|ledger| bucket.wait_for_turn(ledger));
        let Some(turn) = turn else { return Ok(()) };
        let Ok(turn) = tokio::time::timeout_at(until, turn).await else {
            return Err(AcquireError::Contended { attempts: 0 });
        };
        let mut pause = PAUSE_MIN;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let settled = self.write(&turn, &[], WriteKind::SettleAll, left).await;
            // The next attempt sends a write in doubt again, and then settles the rest.
            let may_repeat = matches!(
                settled,
                Err(AcquireError::Unavailable(_) | AcquireError::Contended { .. })
            );
            if !may_repeat || Instant::now() + pause >= until {
                return settled.map(drop);
            }
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(PAUSE_MAX);
        }
    }

    /// Settles everything that is held.
    pub(super) async fn settle_all(self: &Arc<Self>, deadline: Duration) -> SettleReport {
        let until = Instant::now() + deadline;
        let watched = self.watched().clone();
        let each = watched.into_iter().map(|bucket| async move {
            // In a task of its own, so that a write in flight goes on if the caller stops waiting.
            let settling = tokio::spawn(self.clone().settle(bucket.clone(), until)).await;
            let gone = |_| Err(AcquireError::Unavailable("the runtime was shut down".into()));
            settling.unwrap_or_else(gone).map_err(|error| (bucket.id(), error))
        });
        let results: Vec<_> =
            futures_util::stream::iter(each).buffer_unordered(SETTLING_MAX).collect().await;
        let settled = results.iter().filter(|result| result.is_ok()).count();
        SettleReport { settled, unsettled: results.into_iter().filter_map(Result::err).collect() }
    }
}

impl Drop for Leaser {
    fn drop(&mut self) {
        let watched = self.watched.get_mut().unwrap_or_else(PoisonError::into_inner);
        let buckets = watched.iter().filter(|bucket| bucket.is_unsettled(&self.settings)).count();
        if buckets > 0 {
            tracing::warn!(
                buckets,
                "a limiter was dropped with tokens that are not settled: call `shutdown` before"
            );
        }
    }
}
