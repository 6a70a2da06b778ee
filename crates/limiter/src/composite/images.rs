//! The newest image of each bucket, and what its history says about other writers.
//!
//! An image is a guess: every plan made from it carries the conditions under which it is right. So
//! it may be old, evicted or derived at any time; only "no" must not be said from one like that.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use quick_cache::sync::Cache;
use sluicegate_core::{
    BucketId, Change, ClaimInterval, CompositeBucket, Configuration, EpochMillis, Known, Policy,
    RulesHash, WritePlan,
};

use super::directory::Changes;
use super::lane::Lane;

/// How often the same limits of requests are brought to an item for refusals, in milliseconds.
const BRINGS_EVERY_MS: u64 = 60_000;
/// How long nobody else may have claimed before it is tried again after another writer came first, in
/// milliseconds: a process that claims all the time brings limits itself, within the minute for which
/// it believes older ones, and one that does not leaves the item alone for longer than this.
const QUIET_MS: u64 = 4_000;

/// All buckets that this process knows.
#[derive(Debug)]
pub(super) struct Images {
    entries: Cache<BucketId, Arc<Entry>>,
}

impl Images {
    pub(super) fn new(most: usize) -> Self {
        Self { entries: Cache::new(most) }
    }

    pub(super) fn entry(&self, bucket: &BucketId) -> Arc<Entry> {
        if let Some(entry) = self.entries.get(bucket) {
            return entry;
        }
        let made = self
            .entries
            .get_or_insert_with(bucket, || Ok::<_, std::convert::Infallible>(Arc::default()));
        match made {
            Ok(entry) => entry,
            Err(never) => match never {},
        }
    }
}

/// One bucket.
#[derive(Debug, Default)]
pub(super) struct Entry {
    known: Arc<Shared>,
    state: Mutex<State>,
    lane: OnceLock<Arc<Lane>>,
    pub(super) rivals: Rivals,
}

/// What is known of a bucket, to all of its lanes.
#[derive(Debug, Default)]
pub(super) struct Shared(Mutex<Option<Known>>);

#[derive(Debug, Default)]
struct State {
    resolved: Option<Resolved>,
    /// The requests that take from this bucket and its parent's together.
    cascade: Option<(BucketId, Arc<Lane>)>,
    /// The limits of requests that were brought to the item for a refusal, and when.
    brought: Option<(RulesHash, EpochMillis)>,
    /// The item's refill time when another writer came before one that was to bring a configuration,
    /// and since when it is that.
    lost: Option<(EpochMillis, EpochMillis)>,
}

/// A configuration put together, and until when it need not be again.
#[derive(Debug, Clone)]
pub(super) struct Resolved {
    pub(super) configuration: Arc<Configuration>,
    /// The stored levels that it was made from; `None`: it holds explicit limits alone.
    pub(super) made_from: Option<MadeFrom>,
}

/// What was known of the stored levels of a bucket.
#[derive(Debug, Clone)]
pub(super) struct MadeFrom {
    pub(super) changes: Changes,
    /// From when on, and until when, all of them are believed.
    pub(super) believed: Range<EpochMillis>,
}

impl Shared {
    pub(super) fn known(&self) -> Option<Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Keeps what an answer said, unless something newer is known: answers overtake each other.
    pub(super) fn learn(&self, new: Known) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.as_ref().is_none_or(|old| !new.is_older_than(old)) {
            *known = Some(new);
        }
    }
}

impl Entry {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn known(&self) -> Option<Known> {
        self.known.known()
    }

    pub(super) fn learn(&self, new: Known) {
        self.known.learn(new);
    }

    /// The lane of the requests on this bucket alone.
    pub(super) fn lane(&self, bucket: &BucketId, policy: Policy) -> Arc<Lane> {
        let new = || Lane::new(vec![bucket.clone()], vec![self.known.clone()], policy);
        self.lane.get_or_init(|| Arc::new(new())).clone()
    }

    /// The lane of the requests on this bucket and its parent's.
    pub(super) fn lane_with(
        &self,
        bucket: &BucketId,
        (parent, entry): (&BucketId, &Self),
        policy: Policy,
    ) -> Arc<Lane> {
        let mut state = self.lock();
        if let Some((of, lane)) = &state.cascade
            && of == parent
        {
            return lane.clone();
        }
        let buckets = vec![bucket.clone(), parent.clone()];
        let lane = Lane::new(buckets, vec![self.known.clone(), entry.known.clone()], policy);
        let lane = Arc::new(lane);
        state.cascade = Some((parent.clone(), lane.clone()));
        lane
    }

    /// Whether an item may be brought to its configuration for a refusal: newer stored limits always;
    /// the same limits of requests once a minute, or processes whose requests disagree would write
    /// one refusal after another.
    pub(super) fn may_bring(
        &self,
        plan: &WritePlan,
        image: &CompositeBucket,
        configuration: &Configuration,
        now: EpochMillis,
    ) -> bool {
        let is_stored = |change: &Change| matches!(change, Change::ConfigVersions(_));
        let hash = || RulesHash::of(&configuration.explicit);
        let is_repeated = |(before, at): &(RulesHash, EpochMillis)| {
            now.get().abs_diff(at.get()) < BRINGS_EVERY_MS && *before == hash()
        };
        let mut state = self.lock();
        if let Some((claimed_at, since)) = &mut state.lost {
            if *claimed_at != image.refilled_at {
                (*claimed_at, *since) = (image.refilled_at, now);
            }
            if now.get().abs_diff(since.get()) < QUIET_MS {
                return false;
            }
        }
        plan.changes.iter().any(is_stored) || !state.brought.as_ref().is_some_and(is_repeated)
    }

    /// Notes that another writer came before one that was to bring a configuration.
    pub(super) fn note_lost(&self, found: Option<&CompositeBucket>, now: EpochMillis) {
        self.lock().lost = found.map(|found| (found.refilled_at, now));
    }

    /// Notes that an item was brought to its configuration for a refusal.
    pub(super) fn note_brought(&self, configuration: &Configuration, now: EpochMillis) {
        let mut state = self.lock();
        state.brought = Some((RulesHash::of(&configuration.explicit), now));
        state.lost = None;
    }

    pub(super) fn resolved(&self) -> Option<Resolved> {
        self.lock().resolved.clone()
    }

    pub(super) fn resolve(&self, resolved: Resolved) {
        self.lock().resolved = Some(resolved);
    }
}

/// How often other processes write the bucket, as two running shares in 1024ths.
///
/// With many processes on one bucket every image is out of date. Whether to trust it, to presume
/// that somebody claimed meanwhile, or to read first is decided by what was found before.
#[derive(Debug, Default)]
pub(super) struct Rivals {
    /// How often somebody had claimed within the last interval.
    claimed: AtomicU32,
    /// How often the item had moved on at all.
    moved: AtomicU32,
}

const WHOLE: u32 = 1_024;
/// One observation that rivals are there moves a share by half of the way, one that they are not by a
/// quarter: both mistakes cost a write, and who shares a bucket does so for a while.
const UP: u32 = 2;
const DOWN: u32 = 4;

impl Rivals {
    /// Notes what stood in the table when a stale image was used.
    pub(super) fn observe(
        &self,
        stale: &CompositeBucket,
        found: &CompositeBucket,
        now: EpochMillis,
        interval: ClaimInterval,
    ) {
        let interval = i64::from(interval.0);
        if stale.refilled_at.get() + interval >= now.get() {
            return;
        }
        shift(&self.moved, found.refilled_at != stale.refilled_at);
        shift(&self.claimed, found.refilled_at.get() + interval >= now.get());
    }

    pub(super) fn claimed_lately(&self) -> bool {
        self.claimed.load(Ordering::Relaxed) * 2 >= WHOLE
    }
}

fn shift(share: &AtomicU32, happened: bool) {
    let old = share.load(Ordering::Relaxed);
    let target = if happened { WHOLE } else { 0 };
    // A lost update between two tasks loses one observation.
    let new =
        if target > old { old + (target - old).div_ceil(UP) } else { old - old.div_ceil(DOWN) };
    share.store(new, Ordering::Relaxed);
}
