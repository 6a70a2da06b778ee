//! An estimate of how often other processes claim the refill of a bucket.

use crate::{ClaimInterval, CompositeBucket, EpochMillis};

/// An estimate of how often other processes claim the refill of a bucket, as two running shares in
/// 1024ths. A write without a claim shows in neither.
///
/// With many processes on one bucket every image is out of date. From earlier answers the queue
/// chooses one of three: to trust the image, to assume that another process has claimed since, or
/// to read first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct ContentionEstimate {
    /// The share of answers that showed a claim of another process within the last interval.
    claimed: u32,
    /// The share of answers that showed any claim since the image was taken.
    outdated: u32,
}

const WHOLE: u32 = 1_024;
/// An observation of a claim moves a share half of the way up to the whole; an observation of none
/// moves it down by a quarter. To expect claims that do not come costs one write, and so does
/// the opposite mistake. A share falls more slowly than it rises, because processes that share a
/// bucket do so for a while.
const UP: u32 = 2;
const DOWN: u32 = 4;

impl ContentionEstimate {
    /// The estimate of a bucket that no other process writes.
    pub const QUIET: Self = Self { claimed: 0, outdated: 0 };
    /// The estimate of a bucket whose refill another process claims all the time.
    pub const CLAIMED: Self = Self { claimed: WHOLE, outdated: WHOLE };

    /// Compares the item that was found with the older image that a plan was made from.
    pub(super) fn observe(
        &mut self,
        before: &CompositeBucket,
        found: &CompositeBucket,
        now: EpochMillis,
        interval: ClaimInterval,
    ) {
        let interval = i64::from(interval.0);
        if before.refilled_at.get() + interval >= now.get() {
            return;
        }
        shift(&mut self.outdated, found.refilled_at != before.refilled_at);
        shift(&mut self.claimed, found.refilled_at.get() + interval >= now.get());
    }

    /// True if another process usually claimed within the last interval.
    pub(super) const fn is_usually_claimed(self) -> bool {
        self.claimed * 2 >= WHOLE
    }

    /// True if another process has usually claimed since the image was taken.
    pub(super) const fn is_usually_outdated(self) -> bool {
        self.outdated * 2 >= WHOLE
    }
}

fn shift(share: &mut u32, happened: bool) {
    match happened {
        true => *share += (WHOLE - *share).div_ceil(UP),
        false => *share -= share.div_ceil(DOWN),
    }
}
