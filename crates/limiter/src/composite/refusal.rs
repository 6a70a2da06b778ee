//! When an acquire may say "no", and to what.

use sluicegate_core::{CompositeBucket, EpochMillis, Millitokens, Wait};

use super::acquire::Acquiring;
use super::promises::Whose;
use super::side::Side;
use crate::error::{AcquireError, LimitExceeded, LimitStatus, NeverAdmissible};
use crate::table::Table;

impl<T: Table> Acquiring<'_, '_, '_, T> {
    /// "No" after losing to somebody who claimed a moment ago and left too little. What has accrued
    /// since is a few milliseconds' worth, for which everybody on the bucket writes.
    ///
    /// A claim from before the call counts as what was known of the bucket then.
    pub(super) fn outrun(&self) -> Option<AcquireError> {
        let now = self.run.now();
        let may_bring =
            |side: &Side| side.may_reconfigure && self.reconfiguration(side, now).is_some();
        if self.sides.iter().any(may_bring) {
            return None;
        }
        let interval = u128::from(self.store.settings.claim_interval.0);
        let before_ms = interval.min(self.store.settings.deny_cache.as_millis());
        let claimed_at = |side: &Side| {
            let at = side.image().filter(|_| side.is_fresh)?.refilled_at;
            let age_ms = u128::from(at.get().abs_diff(now.get()));
            let may_refuse = age_ms < before_ms || at >= self.run.began && age_ms < interval;
            may_refuse.then_some(at)
        };
        let limits = |side: &Side| {
            let as_of = claimed_at(side).unwrap_or(now);
            let mut limits = side.standings(side.image().map(AsRef::as_ref), as_of);
            limits.iter_mut().for_each(|limit| limit.wait = counted_from(now, as_of, limit.wait));
            limits
        };
        let is_outrun = |side: &Side| claimed_at(side).is_some() && is_short(&limits(side));
        self.sides.iter().any(is_outrun).then(|| no(self.sides.iter().flat_map(limits).collect()))
    }

    /// "No", if the image of every short side may say it.
    pub(super) fn refusal(&self, now: EpochMillis) -> Option<AcquireError> {
        let limits = |side: &Side| side.standings(side.image().map(AsRef::as_ref), now);
        self.refusal_by(limits, now)
    }

    /// The same, because of what other requests of this process are about to take.
    pub(super) fn refusal_for_others(&self, now: EpochMillis) -> Option<AcquireError> {
        let limits = |side: &Side| {
            let left = self.left(side);
            side.standings(left.as_ref().or(side.image().map(AsRef::as_ref)), now)
        };
        self.refusal_by(limits, now)
    }

    /// A side's image less what is promised to others; `None`: nothing is.
    pub(super) fn left(&self, side: &Side) -> Option<CompositeBucket> {
        let whose = if self.promises.is_empty() { Whose::Everybody } else { Whose::UnderWay };
        side.entry.less_promised(side.image()?, whose)
    }

    /// Whether more is promised to others than this side's image has: some of them will be refused,
    /// and what they give up may be enough.
    pub(super) fn is_overdrawn(&self, index: usize) -> bool {
        let side = &self.sides[index];
        let is_negative = |left: CompositeBucket| {
            let (refilled_at, now) = (left.refilled_at, self.run.now());
            left.limits.iter().any(|(limit, bucket)| {
                let worth = bucket.rule.effective(bucket.tokens, refilled_at, now);
                side.amounts.contains_key(limit) && worth < Millitokens::ZERO
            })
        };
        self.left(side).is_some_and(is_negative)
    }

    fn refusal_by(
        &self,
        limits: impl Fn(&Side) -> Vec<LimitStatus>,
        now: EpochMillis,
    ) -> Option<AcquireError> {
        let sides: Vec<_> = self.sides.iter().map(|side| (side, limits(side))).collect();
        let may_refuse = |side: &Side| {
            let deny_cache = self.store.settings.deny_cache;
            // What was known before a write whose answer was lost does not tell whether it landed.
            let may_be_old = self.doubt.is_none();
            let known = side.known.as_ref().filter(|_| may_be_old);
            side.is_fresh || known.is_some_and(|known| known.may_refuse(now, deny_cache))
        };
        if sides.iter().any(|(side, limits)| is_short(limits) && !may_refuse(side)) {
            return None;
        }
        Some(no(sides.into_iter().flat_map(|(_, limits)| limits).collect()))
    }
}

/// "No", or "never".
pub(crate) fn no(limits: Vec<LimitStatus>) -> AcquireError {
    if limits.iter().any(|limit| limit.wait == Wait::ExceedsBurst) {
        return NeverAdmissible { limits }.into();
    }
    LimitExceeded::new(limits).into()
}

/// A wait as of another instant, as one from `now` on; what is there by now is worth another try.
pub(super) fn counted_from(now: EpochMillis, as_of: EpochMillis, wait: Wait) -> Wait {
    let Wait::Millis(millis) = wait else { return wait };
    let passed = i128::from(now.get()) - i128::from(as_of.get());
    let left = (i128::from(millis) - passed).max(1);
    Wait::Millis(u64::try_from(left).unwrap_or(u64::MAX))
}

fn is_short(limits: &[LimitStatus]) -> bool {
    limits.iter().any(LimitStatus::is_violated)
}
