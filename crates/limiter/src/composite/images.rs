//! The newest image of each bucket, and what its history says about other writers.
//!
//! An image is a guess: every plan made from it carries the conditions under which it is right. So
//! it may be old, evicted or derived at any time; only "no" must not be said from one like that.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quick_cache::sync::Cache;
use sluicegate_core::{
    BucketId, Change, ClaimInterval, CompositeBucket, Configuration, EpochMillis, RulesHash,
    WritePlan, is_clock_ahead,
};
use tokio::sync::{Notify, Semaphore};

use super::directory::Changes;
use super::promises::{Promised, Whose};

/// How often the same limits of requests are brought to an item for refusals, in milliseconds.
const BRINGS_EVERY_MS: u64 = 60_000;
/// How long nobody else may have claimed before it is tried again after another writer came first, in
/// milliseconds: a process that claims all the time brings limits itself, within the minute for which
/// it believes older ones, and one that does not leaves the item alone for longer than this.
const QUIET_MS: u64 = 4_000;

/// What is known of a bucket.
#[derive(Debug, Clone)]
pub(super) struct Known {
    /// The item; `None`: there was none.
    pub(super) image: Option<Arc<CompositeBucket>>,
    /// When the answer came.
    pub(super) as_of: EpochMillis,
    /// Whether the table itself said so, by an answer that sees every write.
    pub(super) is_authoritative: bool,
}

impl Known {
    /// Whether both are one and the same answer.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let is_same_image = match (&self.image, &other.image) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        };
        is_same_image
            && self.as_of == other.as_of
            && self.is_authoritative == other.is_authoritative
    }

    /// Whether "no" may be said from it.
    pub(super) fn may_refuse(&self, now: EpochMillis, deny_cache: Duration) -> bool {
        let age_ms = now.get().saturating_sub(self.as_of.get());
        self.is_authoritative
            && u128::try_from(age_ms).is_ok_and(|age| age <= deny_cache.as_millis())
            && !deny_cache.is_zero()
    }
}

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
#[derive(Debug)]
pub(super) struct Entry {
    state: Mutex<State>,
    /// One claim at a time: tasks of one process would lose the lock to one another.
    pub(super) claims: Semaphore,
    pub(super) rivals: Rivals,
    /// Told of every promise that is kept or given up.
    pub(super) answered: Notify,
    /// How often the table answered anything about it.
    answers: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    known: Option<Known>,
    promised: Promised,
    resolved: Option<Resolved>,
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

impl Default for Entry {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            claims: Semaphore::new(1),
            rivals: Rivals::default(),
            answered: Notify::new(),
            answers: AtomicU64::new(0),
        }
    }
}

impl Entry {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn known(&self) -> Option<Known> {
        self.lock().known.clone()
    }

    /// Answers so far: where they do not move, the table is silent.
    pub(super) fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }

    /// Notes an answer that says nothing about the item.
    pub(super) fn note_answer(&self) {
        self.answers.fetch_add(1, Ordering::Relaxed);
    }

    /// Keeps what an answer said, unless something newer is known: answers overtake each other.
    pub(super) fn learn(&self, new: Known) {
        self.note_answer();
        let mut state = self.lock();
        let old = state.known.as_ref().and_then(|known| known.image.as_ref());
        let is_older = match (old, &new.image) {
            (Some(old), Some(image)) => {
                image.refilled_at < old.refilled_at && !is_clock_ahead(old, new.as_of)
            }
            _ => false,
        };
        if !is_older {
            state.known = Some(new);
        }
    }

    /// Changes what is promised.
    pub(super) fn promise(&self, change: impl FnOnce(&mut Promised)) {
        change(&mut self.lock().promised);
    }

    /// The image less what is promised to other requests; `None`: nothing is.
    pub(super) fn less_promised(
        &self,
        image: &CompositeBucket,
        whose: Whose,
    ) -> Option<CompositeBucket> {
        self.lock().promised.taken_from(image, whose)
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

    pub(super) fn moves(&self) -> bool {
        self.moved.load(Ordering::Relaxed) * 2 >= WHOLE
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
