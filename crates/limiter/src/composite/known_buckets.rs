//! The newest known image of each bucket, and the lanes of its requests.
//!
//! An image is a guess: a plan made from it carries the conditions under which the plan is right.
//! So an image may be old or derived, and it may be evicted at any time. A refusal needs more: an
//! authoritative image that is recent, or that answers a call sent after the request entered.

use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock};

use sluicegate_core::{BucketId, Configuration, EpochMillis, QueueSettings};

use super::lane::Lane;
use super::newest_image::NewestImage;
use crate::lock::lock;

/// The most lanes of one child with its parents: requests may name any number of parents.
const PARENTS_MAX: usize = 16;

/// One bucket that this process knows.
#[derive(Debug, Default)]
pub(super) struct KnownBucket {
    pub(super) newest: Arc<NewestImage>,
    state: Mutex<KnownBucketState>,
    lane: OnceLock<Arc<Lane>>,
}

/// The state of a known bucket that a lock protects.
#[derive(Debug, Default)]
struct KnownBucketState {
    /// The configuration that `BucketRequest::configure` built last.
    configuration: Option<KnownConfiguration>,
    /// For each parent, the lane of the requests that take from this bucket and the parent's
    /// together.
    parent_lanes: Vec<(BucketId, Arc<Lane>)>,
}

/// A configuration. If it holds stored limits, they are current while two things hold:
/// `Directory::changes` still returns this number, and the clock is in this range.
pub(super) type KnownConfiguration = (Arc<Configuration>, Option<(u64, Range<EpochMillis>)>);

impl KnownBucket {
    /// The lane of the requests on this bucket alone.
    pub(super) fn lane(&self, bucket: &BucketId, settings: QueueSettings) -> Arc<Lane> {
        let new = || Lane::new(vec![bucket.clone()], vec![self.newest.clone()], settings, None);
        self.lane.get_or_init(new).clone()
    }

    /// The lane of the requests on this bucket and its parent's.
    pub(super) fn lane_with(
        &self,
        bucket: &BucketId,
        (parent, known_parent): (&BucketId, &Self),
        settings: QueueSettings,
    ) -> Arc<Lane> {
        let mut state = lock(&self.state);
        if let Some((_, lane)) = state.parent_lanes.iter().find(|(of, _)| of == parent) {
            return lane.clone();
        }
        let buckets = vec![bucket.clone(), parent.clone()];
        let images = vec![self.newest.clone(), known_parent.newest.clone()];
        let lane = Lane::new(buckets, images, settings, None);
        if state.parent_lanes.len() == PARENTS_MAX {
            state.parent_lanes.remove(0);
        }
        state.parent_lanes.push((parent.clone(), lane.clone()));
        lane
    }

    pub(super) fn configuration(&self) -> Option<KnownConfiguration> {
        lock(&self.state).configuration.clone()
    }

    pub(super) fn set_configuration(&self, known: KnownConfiguration) {
        lock(&self.state).configuration = Some(known);
    }
}
