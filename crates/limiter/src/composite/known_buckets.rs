//! The newest known image of each bucket, and the lanes of its requests.
//!
//! An image is a guess: a plan made from it carries the conditions under which the plan is right.
//! So an image may be old or derived, and it may be evicted at any time. A refusal needs more: an
//! authoritative image that is recent, or that answers a call sent after the request entered.

use std::convert::Infallible;
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock};

use quick_cache::sync::Cache;
use sluicegate_core::{BucketId, Configuration, EpochMillis, Known, QueueSettings};

use super::directory::Changes;
use super::lane::Lane;
use super::newest_image::NewestImage;

use crate::lock::lock;

/// The most lanes of one child with its parents: requests may name any number of parents.
const PARENTS_MAX: usize = 16;

/// All buckets that this process knows.
#[derive(Debug)]
pub(super) struct KnownBuckets {
    entries: Cache<BucketId, Arc<Entry>>,
}

impl KnownBuckets {
    pub(super) fn new(most: usize) -> Self {
        Self { entries: Cache::new(most) }
    }

    pub(super) fn entry(&self, bucket: &BucketId) -> Arc<Entry> {
        let Ok(entry) =
            self.entries.get_or_insert_with(bucket, || Ok::<_, Infallible>(Arc::default()));
        entry
    }
}

/// One bucket.
#[derive(Debug, Default)]
pub(super) struct Entry {
    known: Arc<NewestImage>,
    state: Mutex<EntryState>,
    lane: OnceLock<Arc<Lane>>,
}

/// The state of an entry that a lock protects.
#[derive(Debug, Default)]
struct EntryState {
    configuration: Option<KnownConfiguration>,
    /// For each parent, the requests that take from this bucket and the parent's in one
    /// transaction.
    cascades: Vec<(BucketId, Arc<Lane>)>,
}

/// A configuration as it was last put together, and the stored levels that it was made from.
#[derive(Debug, Clone)]
pub(super) struct KnownConfiguration {
    pub(super) configuration: Arc<Configuration>,
    /// `None`: it holds explicit limits alone.
    pub(super) made_from: Option<MadeFrom>,
}

/// The stored levels of a bucket as they were known.
#[derive(Debug, Clone)]
pub(super) struct MadeFrom {
    pub(super) changes: Changes,
    /// The time in which the answers for all levels are valid.
    pub(super) valid: Range<EpochMillis>,
}

impl Entry {
    fn lock(&self) -> std::sync::MutexGuard<'_, EntryState> {
        lock(&self.state)
    }

    pub(super) fn known(&self) -> Option<Known> {
        self.known.known()
    }

    pub(super) fn learn_if_newer(&self, new: Known) {
        self.known.learn_if_newer(new);
    }

    /// The lane of the requests on this bucket alone.
    pub(super) fn lane(&self, bucket: &BucketId, settings: QueueSettings) -> Arc<Lane> {
        let new = || Lane::new(vec![bucket.clone()], vec![self.known.clone()], settings);
        self.lane.get_or_init(|| Arc::new(new())).clone()
    }

    /// A new lane for a single request on this bucket; other requests do not share its writes.
    pub(super) fn lane_of_its_own(&self, bucket: &BucketId, settings: QueueSettings) -> Arc<Lane> {
        Arc::new(Lane::new(vec![bucket.clone()], vec![self.known.clone()], settings))
    }

    /// The lane of the requests on this bucket and its parent's.
    pub(super) fn lane_with(
        &self,
        bucket: &BucketId,
        (parent, entry): (&BucketId, &Self),
        settings: QueueSettings,
    ) -> Arc<Lane> {
        let mut state = self.lock();
        if let Some((_, lane)) = state.cascades.iter().find(|(of, _)| of == parent) {
            return lane.clone();
        }
        let buckets = vec![bucket.clone(), parent.clone()];
        let lane = Lane::new(buckets, vec![self.known.clone(), entry.known.clone()], settings);
        let lane = Arc::new(lane);
        if state.cascades.len() == PARENTS_MAX {
            state.cascades.remove(0);
        }
        state.cascades.push((parent.clone(), lane.clone()));
        lane
    }

    pub(super) fn configuration(&self) -> Option<KnownConfiguration> {
        self.lock().configuration.clone()
    }

    pub(super) fn set_configuration(&self, known: KnownConfiguration) {
        self.lock().configuration = Some(known);
    }
}
