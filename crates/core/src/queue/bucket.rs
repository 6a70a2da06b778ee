//! The state of one bucket in a queue: its known image, and the upkeep of its limits.

use std::sync::Arc;

use super::contention::ContentionEstimate;
use super::settings::QueueSettings;
use crate::{
    Acquire, BucketId, Change, CompositeBucket, Configuration, EpochMillis, RulesHash, WritePlan,
    is_refill_time_ahead, reconfigure,
};

/// The queue brings an item to the same explicit limits (limits that came with a request) at most
/// once in this time, in milliseconds.
const RECONFIGURE_EVERY_MS: u64 = 60_000;
/// After an upkeep write that changes the item's limits was outrun, the queue tries it again only
/// if no process has claimed for this many milliseconds. A process that claims more often than this
/// learns of newer limits within a minute, and writes them itself.
const QUIET_MS: u64 = 4_000;

/// The newest image of a bucket that is known, from an answer or computed from a write.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct KnownImage {
    /// The item; `None`: there was no item.
    pub image: Option<Arc<CompositeBucket>>,
    /// The time of the answer that has the image; of a derived image, of the answer that
    /// acknowledged the write.
    pub as_of: EpochMillis,
    /// True if the table itself returned it, with the answer to a write or to a strongly consistent
    /// read, or acknowledged it as a new item.
    pub is_authoritative: bool,
}

impl KnownImage {
    /// True if both come from one and the same answer.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let address = |known: &Self| known.image.as_ref().map(Arc::as_ptr);
        address(self) == address(other)
            && self.as_of == other.as_of
            && self.is_authoritative == other.is_authoritative
    }

    /// True if this image is recent enough to refuse a request that came after it.
    #[must_use]
    pub fn is_recent_enough_to_refuse(&self, now: EpochMillis, refusal_age_max_ms: u64) -> bool {
        let age_ms = now.get().saturating_sub(self.as_of.get());
        self.is_authoritative
            && refusal_age_max_ms > 0
            && u64::try_from(age_ms).is_ok_and(|age| age <= refusal_age_max_ms)
    }

    /// True if this image certainly shows an earlier state than `other`: its last claim is older.
    /// A refill time of `other` that is far ahead proves nothing. Images of the same claim are not
    /// told apart. To take the older one is safe, because a plan has conditions.
    #[must_use]
    pub fn is_older_than(&self, other: &Self) -> bool {
        let (Some(this), Some(other)) = (&self.image, &other.image) else { return false };
        this.refilled_at < other.refilled_at && !is_refill_time_ahead(other, self.as_of)
    }
}

/// One bucket of a queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct QueueBucket {
    pub(super) id: BucketId,
    pub(super) known: Option<KnownImage>,
    /// The last image that was adopted from another lane. It is not adopted again: this lane's
    /// answers since then are newer, even if their refill time is older. (An item gets an older
    /// refill time when its table is restored, or when an older copy of another region wins.) The
    /// answer to a call in flight replaces an image that was adopted meanwhile, even if the answer
    /// is older. So such an image is not noted here, and can be adopted again.
    pub(super) adopted: Option<KnownImage>,
    pub(super) contention: ContentionEstimate,
    /// The last reconfiguring write: the limits that the refused request named, and the time of the
    /// write.
    reconfigured: Option<(RulesHash, EpochMillis)>,
    /// The limits of such a write while it is in flight.
    reconfiguring: Option<RulesHash>,
    reconfigure_outrun: Option<ReconfigureOutrun>,
}

/// The outrun of a reconfiguring write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct ReconfigureOutrun {
    /// The item's refill time as last seen.
    refilled_at: EpochMillis,
    /// When that refill time was first seen.
    since: EpochMillis,
}

impl QueueBucket {
    pub(super) const fn new(id: BucketId) -> Self {
        let contention = ContentionEstimate::QUIET;
        Self {
            id,
            known: None,
            adopted: None,
            contention,
            reconfigured: None,
            reconfiguring: None,
            reconfigure_outrun: None,
        }
    }

    pub(super) fn image(&self) -> Option<&CompositeBucket> {
        self.known.as_ref()?.image.as_deref()
    }

    /// True if the last claim no longer serves later writers.
    pub(super) fn needs_claim(&self, settings: QueueSettings, now: EpochMillis) -> bool {
        let interval = i64::from(settings.interval.0);
        self.image().is_some_and(|image| now.get() - image.refilled_at.get() > interval)
    }

    /// True if a whole interval has passed since the table's last answer on the bucket.
    pub(super) fn has_old_answer(&self, settings: QueueSettings, now: EpochMillis) -> bool {
        let interval = i64::from(settings.interval.0);
        self.known.as_ref().is_some_and(|known| now.get() - known.as_of.get() > interval)
    }

    /// The write that brings the item to the limits of a refused request, if the write is due.
    /// After such a write was outrun, none is due until nobody has claimed for `QUIET_MS`.
    /// Otherwise a write that brings newer stored limits is due at once. A write that only brings
    /// limits of requests is due at most once a minute for the same limits: else two processes with
    /// different limits would rewrite the item at every refusal.
    pub(super) fn due_reconfiguration(
        &self,
        acquire: Acquire<'_>,
        now: EpochMillis,
    ) -> Option<WritePlan> {
        let plan = reconfigure(self.image()?, acquire, now)?;
        let is_within = |at: EpochMillis, ms| now.get().abs_diff(at.get()) < ms;
        if self.reconfigure_outrun.is_some_and(|outrun| is_within(outrun.since, QUIET_MS)) {
            return None;
        }
        let is_stored = |change: &Change| matches!(change, Change::ConfigVersions(_));
        let is_repeated = |(before, at): &(RulesHash, EpochMillis)| {
            is_within(*at, RECONFIGURE_EVERY_MS)
                && *before == RulesHash::of(&*acquire.configuration.explicit)
        };
        let is_due = plan.changes.iter().any(is_stored)
            || !self.reconfigured.as_ref().is_some_and(is_repeated);
        is_due.then_some(plan)
    }

    /// Notes that the write in flight brought the item to its limits.
    pub(super) fn note_reconfigured(&mut self, now: EpochMillis) {
        self.reconfigured = self.reconfiguring.take().map(|hash| (hash, now));
        self.reconfigure_outrun = None;
    }

    /// Notes the limits to which the write in flight is to bring the item.
    pub(super) fn note_reconfiguring(&mut self, configuration: &Configuration) {
        self.reconfiguring = Some(RulesHash::of(&*configuration.explicit));
    }

    pub(super) fn note_outrun_reconfiguration(&mut self, now: EpochMillis) {
        let refilled_at = self.image().map(|image| image.refilled_at);
        self.reconfigure_outrun =
            refilled_at.map(|refilled_at| ReconfigureOutrun { refilled_at, since: now });
    }

    /// Begins the quiet time after an outrun reconfiguring write anew, if any process has claimed
    /// since.
    pub(super) fn restart_quiet_time_if_claimed(&mut self, now: EpochMillis) {
        let refilled_at = self.image().map(|image| image.refilled_at);
        if let (Some(outrun), Some(refilled_at)) = (&mut self.reconfigure_outrun, refilled_at)
            && outrun.refilled_at != refilled_at
        {
            *outrun = ReconfigureOutrun { refilled_at, since: now };
        }
    }
}
