//! One bucket of which this process holds tokens: the atomics from which threads take, and the
//! ledger with the age of those tokens and the use that the store does not know.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};

use sluicegate_core::{Amounts, BucketId, Configuration, EntityId, LimitName, Millitokens};
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

use super::atomic_bucket::{AtomicBucket, DEMAND_MAX, Demand, Demands};
use super::bucket_ledger::BucketLedger;
use super::interner::{BucketLayout, Interner};
use super::key_ref::KeyRef;
use super::limit_ledger::LimitLedger;
use super::settings::{LeaseMode, LeaseSettings};
use super::times::Times;
use crate::clock::COARSE_RESOLUTION;
use crate::lock::lock;
use crate::store::BucketGrant;

/// A take reads a clock that may be this late.
#[expect(clippy::cast_possible_truncation, reason = "a few milliseconds")]
pub(super) const COARSE_MS: i64 = COARSE_RESOLUTION.as_millis() as i64;

#[derive(Debug)]
#[repr(C)]
pub(super) struct LeasedBucket {
    /// First the fields that every take reads: it then touches the fewest cache lines.
    pub(super) atomic: AtomicBucket,
    pub(super) layout: Arc<BucketLayout>,
    pub(super) entity: EntityId,
    /// `None`: the background task does not watch the bucket.
    ledger: Mutex<Option<BucketLedger>>,
}

/// One bucket of a request, with its leased bucket and its demands.
#[derive(Clone)]
pub(super) struct LeasedPart {
    pub(super) grant: BucketGrant,
    pub(super) bucket: Arc<LeasedBucket>,
    pub(super) demands: Demands,
}

/// The right to write a bucket. Dropping it calls `tidy`, which does nothing while another task
/// writes or waits.
pub(super) struct WriteTurn {
    pub(super) bucket: Arc<LeasedBucket>,
    write_lock: Option<OwnedMutexGuard<()>>,
}

/// The locked ledger of a bucket that a task may write.
pub(super) struct LedgerGuard<'a>(MutexGuard<'a, Option<BucketLedger>>);

impl WriteTurn {
    pub(super) fn ledger(&self) -> LedgerGuard<'_> {
        LedgerGuard(self.bucket.ledger())
    }
}

impl Drop for WriteTurn {
    fn drop(&mut self) {
        self.write_lock = None;
        if let Some(ledger) = self.bucket.ledger().as_mut() {
            ledger.tidy();
        }
    }
}

/// The background task keeps a ledger while a task holds or awaits the write lock.
const IN_USE: &str = "a bucket that a task may write has a ledger";

impl Deref for LedgerGuard<'_> {
    type Target = BucketLedger;

    fn deref(&self) -> &BucketLedger {
        self.0.as_ref().unwrap_or_else(|| unreachable!("{IN_USE}"))
    }
}

impl DerefMut for LedgerGuard<'_> {
    fn deref_mut(&mut self) -> &mut BucketLedger {
        self.0.as_mut().unwrap_or_else(|| unreachable!("{IN_USE}"))
    }
}

impl LeasedBucket {
    pub(super) fn new(entity: EntityId, layout: Arc<BucketLayout>) -> Self {
        Self {
            atomic: AtomicBucket::new(layout.limits.len()),
            layout,
            entity,
            ledger: Mutex::default(),
        }
    }

    pub(super) fn id(&self) -> BucketId {
        BucketId { entity: self.entity.clone(), resource: self.layout.resource.clone() }
    }

    pub(super) fn key(&self) -> KeyRef<'_> {
        KeyRef { entity: self.entity.as_str(), resource: self.layout.resource.as_str() }
    }

    pub(super) fn ledger(&self) -> MutexGuard<'_, Option<BucketLedger>> {
        lock(&self.ledger)
    }

    /// Notes the limits of the newest request, for the next lease. Does nothing while another
    /// thread holds the ledger, because the next request brings the same limits.
    pub(super) fn follow(&self, configuration: &Arc<Configuration>, interner: &Interner) {
        if let Ok(mut ledger) = self.ledger.try_lock()
            && let Some(ledger) = ledger.as_mut()
        {
            ledger.follow(configuration, interner);
        }
    }

    /// Gets the right to write the bucket, if no other task has it.
    pub(super) fn try_turn(self: &Arc<Self>) -> Option<WriteTurn> {
        let lock = self.ledger().as_mut()?.write_lock();
        let write_lock = lock.try_lock_owned().ok()?;
        Some(WriteTurn { bucket: self.clone(), write_lock: Some(write_lock) })
    }

    /// Waits for the right to write the bucket, until all tasks before this one have written. The
    /// bucket counts as in use from the call on, not from the first poll.
    pub(super) fn wait_for_turn(
        self: &Arc<Self>,
        ledger: &mut BucketLedger,
    ) -> impl Future<Output = WriteTurn> + use<> {
        let (bucket, lock) = (self.clone(), ledger.write_lock());
        async move { WriteTurn { bucket, write_lock: Some(lock.lock_owned().await) } }
    }

    /// True if the store has answered a write of the bucket since `start`.
    pub(super) fn was_answered_since(&self, start: Instant) -> bool {
        self.ledger().as_ref().and_then(BucketLedger::last_reply_at).is_some_and(|at| at >= start)
    }

    /// The amounts by slot. `None`: some limit cannot be leased.
    pub(super) fn demands(&self, amounts: &Amounts) -> Option<Demands> {
        let demand = |(limit, amount): (&LimitName, &Millitokens)| {
            let milli = u64::try_from(amount.get()).ok().filter(|milli| *milli < DEMAND_MAX)?;
            Some(Demand { slot: self.slot(limit)?, milli })
        };
        amounts.iter().map(demand).collect()
    }

    pub(super) fn slot(&self, limit: &LimitName) -> Option<u16> {
        let slot = self.layout.limits.iter().position(|known| known == limit)?;
        u16::try_from(slot).ok()
    }

    /// Notes the changes of the pools, and updates their marks.
    pub(super) fn catch_up(&self, ledger: &mut BucketLedger, times: Times) {
        ledger.start_unreported_age(times.now);
        for (limit_ledger, slot) in ledger.limit_ledgers.iter_mut().zip(self.atomic.slots.iter()) {
            if times.is_set_back {
                limit_ledger.expire_all();
            }
            limit_ledger.catch_up(&slot.pool, times.now);
        }
        self.set_marks(ledger, times);
    }

    /// Sets the deadline, the renewal time and the low marks from the ledger.
    pub(super) fn set_marks(&self, ledger: &BucketLedger, times: Times) {
        let ends =
            ledger.limit_ledgers.iter().filter_map(|limit_ledger| limit_ledger.until_ms(times.now));
        // Takes read a clock that may be late.
        let deadline = ends.min().unwrap_or(i64::MIN).saturating_sub(COARSE_MS);
        // Rare requests need no tokens in advance.
        let is_busy = |limit_ledger: &LimitLedger| {
            limit_ledger.expected(times.renew_ms) >= limit_ledger.largest_request().max(1)
        };
        let renew_ms = if ledger.limit_ledgers.iter().any(is_busy) { times.renew_ms } else { 0 };
        self.atomic.set_times(deadline, u32::try_from(renew_ms).unwrap_or(u32::MAX));
        for (limit_ledger, slot) in ledger.limit_ledgers.iter().zip(self.atomic.slots.iter()) {
            // A renewal starts at half the last lease at most.
            let half = limit_ledger.last_lease() / 2;
            let low = limit_ledger.expected(2 * times.renew_ms).min(half);
            slot.low.store(low, Ordering::Relaxed);
        }
    }

    /// True if the background task must settle the bucket now.
    pub(super) fn must_settle(
        &self,
        ledger: &BucketLedger,
        settings: &LeaseSettings,
        now_ms: i64,
    ) -> bool {
        let half = settings.max_age_ms() / 2;
        if !ledger.has_unreported(settings) {
            return false;
        }
        let is_empty = ledger.is_empty(now_ms);
        match settings.mode {
            // Most buckets get another request before that. Its lease then settles too, and saves
            // this write.
            LeaseMode::Strict(_) => {
                is_empty && ledger.ends_ms().is_none_or(|end| now_ms > end.saturating_add(half))
            }
            LeaseMode::WriteBehind { .. } => {
                is_empty || ledger.unreported_for_ms(now_ms).is_some_and(|age| age > half)
            }
        }
    }

    /// True if the bucket holds debited tokens, or if the store must be told something else. Takes
    /// the ledger away.
    pub(super) fn is_unsettled(&self, settings: &LeaseSettings) -> bool {
        let Some(mut ledger) = self.ledger().take() else { return false };
        for (limit_ledger, slot) in ledger.limit_ledgers.iter_mut().zip(self.atomic.slots.iter()) {
            // By then everything in the pool is too old, so it must go back.
            limit_ledger.catch_up(&slot.pool, i64::MAX);
        }
        ledger.has_unreported(settings)
    }
}

#[cfg(test)]
impl LeasedBucket {
    /// The bucket of this entity and the resource `r`, with a slot for each of these limits.
    pub(super) fn of(entity: &str, limits: &[&str]) -> Self {
        let limits = limits.iter().map(|limit| limit.parse().unwrap()).collect();
        let layout = BucketLayout { resource: "r".parse().unwrap(), limits };
        Self::new(entity.parse().unwrap(), Arc::new(layout))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
    fn a_bucket_is_small() {
        // 200 with the two counts of an `Arc`, and 208 with the allocator's header: see ADR 10.
        assert_eq!(size_of::<LeasedBucket>(), 184);
    }
}
