//! When an acquire may say "no", and to what.

use sluicegate_core::{EpochMillis, Wait};

use super::acquire::Acquiring;
use super::side::Side;
use crate::error::{AcquireError, LimitExceeded, LimitStatus, NeverAdmissible};
use crate::table::Table;

impl<T: Table> Acquiring<'_, '_, '_, T> {
    /// "No" after losing to somebody who claimed a moment ago and left too little. What has accrued
    /// since is a few milliseconds' worth, for which everybody on the bucket writes.
    pub(super) fn outrun(&self) -> Option<AcquireError> {
        let now = self.run.now();
        let interval = u64::from(self.store.settings.claim_interval.0);
        let claimed_at = |side: &Side| {
            let at = side.image().filter(|_| side.is_fresh)?.refilled_at;
            (at.get().abs_diff(now.get()) < interval).then_some(at)
        };
        let limits = |side: &Side| {
            let as_of = claimed_at(side).unwrap_or(now);
            side.standings(side.image().map(AsRef::as_ref), as_of)
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

    fn refusal_by(
        &self,
        limits: impl Fn(&Side) -> Vec<LimitStatus>,
        now: EpochMillis,
    ) -> Option<AcquireError> {
        let sides: Vec<_> = self.sides.iter().map(|side| (side, limits(side))).collect();
        let may_refuse = |side: &Side| {
            let deny_cache = self.store.settings.deny_cache;
            side.is_fresh
                || side.known.as_ref().is_some_and(|known| known.may_refuse(now, deny_cache))
        };
        if sides.iter().any(|(side, limits)| is_short(limits) && !may_refuse(side)) {
            return None;
        }
        Some(no(sides.into_iter().flat_map(|(_, limits)| limits).collect()))
    }
}

fn no(limits: Vec<LimitStatus>) -> AcquireError {
    if limits.iter().any(|limit| limit.wait == Wait::ExceedsBurst) {
        return NeverAdmissible { limits }.into();
    }
    LimitExceeded::new(limits).into()
}

fn is_short(limits: &[LimitStatus]) -> bool {
    limits.iter().any(LimitStatus::is_violated)
}
