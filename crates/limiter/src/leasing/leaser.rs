//! Holds the buckets of the process, and gets tokens for a request: from the pools, or from the
//! store.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use sluicegate_core::{BucketId, Configuration, LeaseTerms, LimitName, Millitokens};
use tokio::time::Instant;

use super::atomic_bucket::{Demand, PutResult, TakeResult};
use super::bucket_ledger::BucketLedger;
use super::bucket_map::Buckets;
use super::interner::Interner;
use super::leased_bucket::{LeasedBucket, WriteTurn};
use super::metrics::Meter;
use super::settings::{LeaseMode, LeaseSettings};
use super::times::Times;
use super::waiters::WaitTime;
use crate::clock::{Clock as _, SharedClock};
use crate::cost::Cost;
use crate::error::AcquireError;
use crate::leasing_store::{LeaseCalls, LeaseError, LeaseInDoubt, LeaseOutcome, LeaseRequest};
use crate::lock::lock;
use crate::store::BucketGrant;

/// The pause after a renewal in the background that brought no tokens.
const RENEW_PAUSE: Duration = Duration::from_millis(50);

/// Leases tokens, hands them out and settles them.
pub(super) struct Leaser {
    pub(super) store: Arc<dyn LeaseCalls>,
    pub(super) clock: SharedClock,
    pub(super) settings: LeaseSettings,
    pub(super) buckets: Buckets,
    pub(super) interner: Interner,
    /// The buckets that the background task inspects: see [`Leaser::inspect_soon`].
    pub(super) watched: Mutex<Vec<Arc<LeasedBucket>>>,
    /// The background task holds this lock. The number is that of the clock's set-backs at its last
    /// inspection. A task that ends with its runtime releases the lock.
    pub(super) inspecting: Arc<tokio::sync::Mutex<u32>>,
    /// The number of requests since the last inspection that found no room for their bucket.
    pub(super) turned_away: AtomicUsize,
    /// Held while buckets are evicted.
    pub(super) evicting: Arc<tokio::sync::Mutex<()>>,
    /// A warning was logged since the store answered a write.
    pub(super) has_warned: AtomicBool,
    is_shut: AtomicBool,
    /// See [`Store::answered_lease_calls`](crate::store::Store::answered_lease_calls).
    pub(super) answers: AtomicU64,
    /// The average duration of a write, in milliseconds.
    write_ms: AtomicI64,
    last_reading: Mutex<LastReading>,
    pub(super) meter: Meter,
}

/// The last reading of the clock.
#[derive(Debug)]
struct LastReading {
    /// The time that it showed.
    ms: i64,
    /// The number of times that it showed less than before.
    set_backs: u32,
}

/// Marks that a task is about to lease more. The mark ends when this is dropped, at the latest with
/// the task's runtime.
struct Renewing(Arc<LeasedBucket>);

impl Drop for Renewing {
    fn drop(&mut self) {
        self.0.atomic.is_renewing.store(false, Ordering::Release);
    }
}

/// The purpose of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WriteKind {
    /// To settle the tokens that can no longer be handed out, and to lease more.
    Renew,
    /// To settle everything that is held.
    SettleAll,
}

/// One write of a bucket, by the task that has the turn for it: see `strict.rs` and `behind.rs`.
pub(super) struct BucketWrite<'a> {
    pub(super) leaser: &'a Leaser,
    pub(super) turn: &'a WriteTurn,
    pub(super) id: BucketId,
    /// The tokens that a request waits for; empty: none does.
    pub(super) need: &'a [Demand],
    pub(super) kind: WriteKind,
    pub(super) until: Instant,
    /// The cost so far, that of failed attempts included.
    pub(super) spent: Cost,
}

impl BucketWrite<'_> {
    /// Makes the write, by the mode.
    async fn make(&mut self) -> Result<(), AcquireError> {
        if self.kind == WriteKind::Renew {
            self.look_up_limits().await?;
        }
        match self.leaser.settings.mode {
            LeaseMode::Strict(_) => self.lease().await,
            LeaseMode::WriteBehind { .. } => self.commit().await,
        }
    }

    pub(super) fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// Sends a lease; with `in_doubt`, again. Counts its attempts.
    pub(super) async fn send(
        &mut self,
        configuration: &Configuration,
        terms: &Arc<LeaseTerms>,
        in_doubt: Option<LeaseInDoubt>,
    ) -> Result<LeaseOutcome, LeaseError> {
        let last = self.turn.ledger().last_answered_id();
        let (bucket, last, deadline) = (&self.id, last.as_ref(), self.left());
        let lease = LeaseRequest { bucket, configuration, terms, last, deadline };
        let result = self.leaser.store.lease(&lease, in_doubt, &self.leaser.clock).await;
        let attempts = match &result {
            Ok(outcome) => outcome.cost.attempts,
            Err(failed) => failed.attempts,
        };
        self.leaser.meter.wrote(attempts);
        if result.is_err() {
            self.spent.attempts += attempts;
        }
        result
    }

    /// Looks up the current limits of the bucket and takes them over.
    async fn look_up_limits(&self) -> Result<(), AcquireError> {
        let before = self.turn.ledger().configuration.clone();
        let (store, clock) = (&self.leaser.store, &self.leaser.clock);
        let now = store.limits_now(&self.id, &before, self.left(), clock).await?;
        let mut ledger = self.turn.ledger();
        // A request that came meanwhile has newer limits.
        if Arc::ptr_eq(&ledger.configuration, &before) {
            ledger.follow(&now, &self.leaser.interner);
        }
        Ok(())
    }
}

impl Leaser {
    pub(super) fn new(
        store: Arc<dyn LeaseCalls>,
        clock: SharedClock,
        settings: LeaseSettings,
    ) -> Self {
        Self {
            store,
            clock,
            buckets: Buckets::new(settings.max_keys),
            settings,
            interner: Interner::default(),
            watched: Mutex::default(),
            inspecting: Arc::default(),
            turned_away: AtomicUsize::new(0),
            evicting: Arc::default(),
            has_warned: AtomicBool::new(false),
            is_shut: AtomicBool::new(false),
            answers: AtomicU64::new(0),
            write_ms: AtomicI64::new(0),
            last_reading: Mutex::new(LastReading { ms: i64::MIN, set_backs: 0 }),
            meter: Meter::default(),
        }
    }

    pub(super) fn now_ms(&self) -> i64 {
        self.clock.now().get()
    }

    /// The time by which a take decides: at most
    /// [`COARSE_RESOLUTION`](crate::clock::COARSE_RESOLUTION) late.
    #[inline]
    pub(super) fn now_coarse_ms(&self) -> i64 {
        self.clock.now_coarse().get()
    }

    pub(super) fn times(&self) -> Times {
        // The 2 ms are for the tasks that a write wakes.
        let renew_ms = 2 * self.write_ms.load(Ordering::Relaxed) + 2;
        let max_age_ms = self.settings.max_age_ms();
        let renew_ms = renew_ms.min(max_age_ms / 4);
        // The clock is read under the lock. Otherwise a later reading by another thread would look
        // like a set-back.
        let mut last = lock(&self.last_reading);
        let now = self.now_ms();
        let is_set_back = now < last.ms;
        last.ms = now;
        if is_set_back {
            last.set_backs = last.set_backs.wrapping_add(1);
        }
        Times { now, renew_ms, is_set_back, set_backs: last.set_backs, max_age_ms }
    }

    /// The wait time of a request that comes now and waits until `until`.
    pub(super) fn wait_time(&self, until: Instant) -> WaitTime {
        let left = until.saturating_duration_since(Instant::now()).as_millis();
        let set_backs = lock(&self.last_reading).set_backs;
        let came_ms = self.now_ms();
        let until_ms = came_ms.saturating_add(i64::try_from(left).unwrap_or(i64::MAX));
        WaitTime { came_ms, until_ms, set_backs }
    }

    pub(super) fn watched(&self) -> MutexGuard<'_, Vec<Arc<LeasedBucket>>> {
        lock(&self.watched)
    }

    /// Takes the tokens if they are held. If few are left, leases more in the background, by the
    /// limits of `configuration`.
    #[inline]
    pub(super) fn take(
        self: &Arc<Self>,
        bucket: &Arc<LeasedBucket>,
        demands: &[Demand],
        configuration: Option<&Arc<Configuration>>,
        now_ms: i64,
    ) -> bool {
        match bucket.atomic.take(demands, now_ms) {
            TakeResult::Taken => true,
            TakeResult::TakenAndLow => {
                self.renew_soon(bucket, configuration);
                true
            }
            TakeResult::NotTaken => false,
        }
    }

    /// Leases more in the background, unless a task already does.
    #[cold]
    pub(super) fn renew_soon(
        self: &Arc<Self>,
        bucket: &Arc<LeasedBucket>,
        configuration: Option<&Arc<Configuration>>,
    ) {
        let is_renewing = &bucket.atomic.is_renewing;
        if is_renewing.load(Ordering::Relaxed) || self.is_shut() {
            return;
        }
        // Outside a runtime, the request that finds the pool empty leases.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if is_renewing.swap(true, Ordering::AcqRel) {
            return;
        }
        // The task that gives back may have ended with another runtime.
        self.inspect_soon();
        if let Some(configuration) = configuration {
            bucket.follow(configuration, &self.interner);
        }
        let (leaser, renewing) = (self.clone(), Renewing(bucket.clone()));
        runtime.spawn(async move {
            let Renewing(bucket) = &renewing;
            if let Some(turn) = bucket.try_turn().filter(|_| !leaser.is_shut()) {
                let (deadline, before) = (leaser.settings.deadline, bucket.atomic.held());
                if let Err(error) = leaser.write(&turn, &[], WriteKind::Renew, deadline).await {
                    tracing::debug!(bucket = %bucket.id(), %error, "no tokens were leased ahead");
                }
                drop(turn);
                // Requests that never wait would have it ask again and again.
                if bucket.atomic.held() <= before {
                    tokio::time::sleep(RENEW_PAUSE).await;
                }
            }
        });
    }

    /// Has the background task watch a bucket, and calls `then` with its ledger. Returns `None`
    /// after a shutdown, if `max_keys` buckets are held, or if another bucket has the name.
    pub(super) fn watch<R>(
        self: &Arc<Self>,
        bucket: &Arc<LeasedBucket>,
        configuration: &Arc<Configuration>,
        then: impl FnOnce(&mut BucketLedger) -> R,
    ) -> Option<R> {
        let mut ledger = bucket.ledger();
        if self.is_shut() {
            return None;
        }
        if let Some(ledger) = ledger.as_mut() {
            self.inspect_soon();
            return Some(then(ledger));
        }
        let mut watched = self.watched();
        // Checked again under the lock: the shutdown settles the buckets that it finds watched.
        if self.is_shut() {
            return None;
        }
        if watched.len() >= self.settings.max_keys {
            self.turned_away.fetch_add(1, Ordering::Relaxed);
            self.buckets.forget(bucket);
            return None;
        }
        bucket.atomic.watch();
        // Without a name, no request would find this bucket and its tokens would lie idle.
        if !self.buckets.take_name(bucket) && bucket.atomic.unwatch() {
            return None;
        }
        watched.push(bucket.clone());
        drop(watched);
        let limits = bucket.layout.limits.len();
        let now_ms = self.now_ms();
        let mut new = BucketLedger::new(limits, self.interner.same(configuration), now_ms);
        // The ledger before this one, if there was one, has counted the takes so far.
        new.count_takes(&bucket.atomic, now_ms);
        let done = then(ledger.insert(new));
        drop(ledger);
        self.inspect_soon();
        Some(done)
    }

    /// Gives tokens back to the pools that they were taken from.
    pub(super) fn put_back(
        self: &Arc<Self>,
        bucket: &Arc<LeasedBucket>,
        demands: &[Demand],
        configuration: &Arc<Configuration>,
    ) {
        for demand in demands {
            // Tokens that do not fit stay consumed. So do those of a bucket that cannot be watched.
            if bucket.atomic.put(demand.slot, demand.milli) == PutResult::Unwatched {
                _ = self.watch(bucket, configuration, |_| ());
            }
        }
    }

    /// The tokens of a limit that this process holds, in millitokens. In write-behind mode, the
    /// negative of those that it handed out, less those given back, and did not debit yet.
    pub(super) fn held_tokens(&self, bucket: &LeasedBucket, limit: &LimitName) -> i128 {
        let Some(slot) = bucket.slot(limit) else { return 0 };
        match self.settings.mode {
            LeaseMode::Strict(_) => bucket.atomic.slots[usize::from(slot)].pool.tokens().into(),
            LeaseMode::WriteBehind { .. } => -i128::from(self.undebited(bucket, slot)),
        }
    }

    /// Turns the image of a grant into the balances of now, as this process sees them: those of the
    /// store and the tokens that it [holds](Self::held_tokens).
    pub(super) fn add_held_tokens(&self, bucket: &LeasedBucket, grant: &mut BucketGrant) {
        let Some(image) = &mut grant.image else { return };
        let (image, now) = (Arc::make_mut(image), self.store.now(&self.clock));
        let since = image.refilled_at;
        image.refilled_at = now.max(since);
        for (limit, balance) in &mut image.limits {
            let tokens = balance.rule.effective(balance.tokens, since, now);
            // After the refill: what the burst cut off cannot make up for tokens handed out.
            let held = match grant.amounts.contains_key(limit) {
                true => self.held_tokens(bucket, limit),
                false => 0,
            };
            balance.tokens = Millitokens::saturating(i128::from(tokens.get()) + held);
        }
    }

    /// Makes one write, by the mode, and hands out the tokens that are needed.
    pub(super) async fn write(
        &self,
        turn: &WriteTurn,
        need: &[Demand],
        kind: WriteKind,
        deadline: Duration,
    ) -> Result<Cost, AcquireError> {
        let (id, until) = (turn.bucket.id(), Instant::now() + deadline);
        let spent = Cost::default();
        let mut write = BucketWrite { leaser: self, turn, id, need, kind, until, spent };
        let result = write.make().await.map(|()| write.spent);
        // Without an attempt, there was nothing to write.
        if result.as_ref().is_ok_and(|cost| cost.attempts > 0) {
            self.has_warned.store(false, Ordering::Relaxed);
        }
        let mut ledger = turn.ledger();
        let unfinished = ledger.unfinished();
        if !matches!(result, Err(AcquireError::Unavailable(_))) {
            unfinished.last_reply_at = Some(Instant::now());
            turn.bucket.atomic.count_reply();
            if !need.is_empty() {
                self.note_answer();
            }
        }
        unfinished.waiters.serve(&turn.bucket.atomic, self.wait_time(Instant::now()));
        result
    }

    /// Counts an answer of the store.
    pub(super) fn note_answer(&self) {
        self.answers.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn note_duration(&self, elapsed: Duration) {
        let elapsed_ms = i64::try_from(elapsed.as_millis()).unwrap_or(i64::MAX / 8);
        let before = self.write_ms.load(Ordering::Relaxed);
        // A lost update loses one observation.
        self.write_ms.store((3 * before + elapsed_ms + 3) / 4, Ordering::Relaxed);
    }

    /// Ends leasing: later requests go to the store.
    pub(super) fn shut(&self) {
        self.is_shut.store(true, Ordering::Release);
    }

    pub(super) fn is_shut(&self) -> bool {
        self.is_shut.load(Ordering::Acquire)
    }
}
