//! Refuses requests: as they enter, while a write is composed, after an outrun, and after they were
//! passed over. `compose.rs` may hold a refusal back until a write of returns for leavers is
//! answered.

use super::bucket::QueueBucket;
use super::member::Member;
use super::place::Placement;
use super::request::{BucketDemand, Outcome, Purpose};
use super::state::{Flight, Upkeep, WriteQueue};
use crate::decide::{Assessment, assess};
use crate::status::{LimitStatus, evaluate_with_returned};
use crate::{Acquire, EpochMillis, RefillHint, Wait};

impl<W> WriteQueue<W> {
    /// Refuses an acquire as it enters, if a recent image shows that it is short, also while a
    /// write is in flight. Nothing is refused here while a waiting request gives tokens back, while
    /// the shared write gives tokens back or is in doubt, or while upkeep is in flight.
    pub(super) fn refusal_at_entry(&self, member: &Member<W>, now: EpochMillis) -> Option<Outcome> {
        let returns_tokens =
            self.shared.as_ref().is_some_and(|shared| shared.draft.returns_tokens());
        let has_upkeep_in_flight = matches!(self.flight, Some(Flight::Upkeep(..)));
        let is_known = self.buckets.iter().all(|bucket| bucket.known.is_some());
        let is_in_doubt = self.shared.as_ref().is_some_and(|shared| shared.is_in_doubt);
        let can_refuse_now = is_known && !returns_tokens && !has_upkeep_in_flight && !is_in_doubt;
        if member.request.purpose != Purpose::Acquire
            || !can_refuse_now
            || self.waiting.iter().any(Member::returns_tokens)
        {
            return None;
        }
        if let Some(Placement::Resolved(outcome @ Outcome::Refused(_))) =
            self.placement_if_not_grantable(member, now)
        {
            return Some(outcome);
        }
        None
    }

    /// Judges this request by the images alone, as if it were the only request of the draft.
    /// Returns the next step if a bucket needs a repair or is short; otherwise `None`. The first
    /// that applies:
    ///
    /// - A bucket needs a repair: the repair.
    /// - The request is short, and an item does not follow the request's limits yet: the upkeep
    ///   that changes the item, if it is due (`due_reconfiguration`). If no refusal may be based on
    ///   the image of that bucket, a read.
    /// - An image shows that it is short, and no refusal may be based on that image
    ///   (`may_refuse_by_image`): a read.
    /// - Otherwise the refusal.
    pub(super) fn placement_if_not_grantable(
        &self,
        member: &Member<W>,
        now: EpochMillis,
    ) -> Option<Placement> {
        let mut is_short = false;
        let mut may_refuse = true;
        for (index, bucket) in self.buckets.iter().enumerate() {
            let acquire = self.acquire_of(member, index);
            match assess(bucket.image(), acquire, member.lease_return(), now) {
                Assessment::Short(_) => {
                    is_short = true;
                    may_refuse &= self.may_refuse_by_image(member, index, now);
                }
                Assessment::Repair(plan) => {
                    return Some(Placement::Upkeep(Upkeep::Repair, index, plan));
                }
                _ => {}
            }
        }
        if !is_short {
            return None;
        }
        let may_reconfigure = |(index, _): &(usize, &QueueBucket)| member.may_reconfigure[*index];
        for (index, bucket) in self.buckets.iter().enumerate().filter(may_reconfigure) {
            let acquire = self.acquire_of(member, index);
            if let Some(plan) = bucket.due_reconfiguration(acquire, now) {
                // If the image may be out of date, read first: a read costs less than a write that
                // fails.
                return Some(match self.may_refuse_by_image(member, index, now) {
                    true => Placement::Upkeep(Upkeep::Reconfigure, index, plan),
                    false => Placement::Read,
                });
            }
        }
        if !may_refuse {
            return Some(Placement::Read);
        }
        Some(Placement::Resolved(Outcome::Refused(self.evaluate(member, |_| now))))
    }

    /// The demand of a request on a bucket, in the form that `assess` takes.
    pub(super) fn acquire_of<'a>(&'a self, member: &'a Member<W>, index: usize) -> Acquire<'a> {
        let BucketDemand { amounts, configuration } = &member.request.demands[index];
        Acquire {
            bucket: &self.buckets[index].id,
            amounts,
            configuration,
            id: &member.request.id,
            interval: self.settings.interval,
            hint: RefillHint::TrustImage,
        }
    }

    /// True if the request may be refused by the known image of a bucket. Either the image comes
    /// from a call sent after the request entered, or it is recent and no abandoned write of this
    /// queue may have changed the bucket since. (While the shared write is in doubt, nothing is
    /// composed, and nothing is refused at entry. Lost writes of other queues are not considered: a
    /// recent image may miss them, as it may miss writes of other processes.)
    fn may_refuse_by_image(&self, member: &Member<W>, index: usize, now: EpochMillis) -> bool {
        let is_recent = || {
            let known = self.buckets[index].known.as_ref();
            known.is_some_and(|known| {
                known.is_recent_enough_to_refuse(now, self.settings.refusal_age_max_ms)
            })
        };
        member.has_fresh_image[index] || self.abandoned.is_empty() && is_recent()
    }

    /// Refuses a request whose write was outrun, if some bucket has too little for it and the last
    /// claim there is recent. Refill since that claim does not count: otherwise every process would
    /// write again, to claim a few milliseconds of refill.
    ///
    /// A claim is recent if it is younger than the claim interval. If it was made before this
    /// request came (`started_at`), it must be younger than `refusal_age_max_ms`, too.
    pub(super) fn refusal_after_outrun(
        &self,
        member: &Member<W>,
        now: EpochMillis,
    ) -> Option<Outcome> {
        if !member.was_outrun
            || !member.may_be_refused()
            || self.has_abandoned_write(&member.request.id)
        {
            return None;
        }
        let interval = u64::from(self.settings.interval.0);
        let earlier_claim_age_max_ms = interval.min(self.settings.refusal_age_max_ms);
        let recent_claim_at = |index: usize| {
            let image = self.buckets[index].image().filter(|_| member.has_fresh_image[index])?;
            let at = image.refilled_at;
            if image.has_boundary(at, now) {
                // After the claim came a boundary, which refills a whole amount: that is worth a
                // write.
                return None;
            }
            let age_ms = at.get().abs_diff(now.get());
            let is_recent_claim = age_ms < earlier_claim_age_max_ms
                || at >= member.request.started_at && age_ms < interval;
            is_recent_claim.then_some(at)
        };
        self.refusal_as_of(member, recent_claim_at, now)
    }

    /// Refuses a request that was passed over (the requests before it took the tokens that it
    /// needs), if a later answer shows that those requests left too little. The balance counts
    /// refill up to the time at which the request was passed over: its caller did not ask to wait
    /// for refill that accrues while it is in the queue. Later refill counts only if a write has
    /// claimed it. After a boundary of a calendar the request is not refused here.
    pub(super) fn refusal_if_passed_over(
        &self,
        member: &Member<W>,
        now: EpochMillis,
    ) -> Option<Outcome> {
        let passed_over_at = member.passed_over_at?;
        let as_of = |index: usize| {
            self.buckets[index]
                .image()
                .map_or(passed_over_at, |image| image.refilled_at.max(passed_over_at))
        };
        let cannot_tell = |(index, bucket): (usize, &QueueBucket)| {
            !member.has_fresh_image[index]
                || bucket.image().is_some_and(|image| image.has_boundary(as_of(index), now))
        };
        if self.buckets.iter().enumerate().any(cannot_tell) {
            return None;
        }
        self.refusal_as_of(member, |index| Some(as_of(index)), now)
    }

    /// A refusal by the balances at the instants `as_of`, if one of them is short. Its waits count
    /// from `now` on. A bucket without an instant refuses nothing. While an item must first be
    /// brought to the request's limits, there is no refusal.
    fn refusal_as_of(
        &self,
        member: &Member<W>,
        as_of: impl Fn(usize) -> Option<EpochMillis>,
        now: EpochMillis,
    ) -> Option<Outcome> {
        let mut is_short = false;
        for (index, bucket) in self.buckets.iter().enumerate() {
            let acquire = self.acquire_of(member, index);
            if member.may_reconfigure[index] && bucket.due_reconfiguration(acquire, now).is_some() {
                return None;
            }
            let assess_at = |at| assess(bucket.image(), acquire, member.lease_return(), at);
            is_short |= matches!(as_of(index).map(assess_at), Some(Assessment::Short(_)));
        }
        if !is_short {
            return None;
        }
        let as_of = |index| as_of(index).unwrap_or(now);
        let mut limits = self.evaluate(member, as_of);
        for (index, of_bucket) in limits.iter_mut().enumerate() {
            for status in of_bucket {
                status.wait = counted_from(now, as_of(index), status.wait);
            }
        }
        Some(Outcome::Refused(limits))
    }

    /// The status of the limits of a request by the images alone.
    fn evaluate(
        &self,
        member: &Member<W>,
        as_of: impl Fn(usize) -> EpochMillis,
    ) -> Vec<Vec<LimitStatus>> {
        let of_bucket = |(index, bucket): (usize, &QueueBucket)| {
            let BucketDemand { amounts, configuration } = &member.request.demands[index];
            let asked = (amounts, member.lease_return());
            let (image, now) = (bucket.image(), as_of(index));
            let mut all = evaluate_with_returned(&bucket.id, image, asked, configuration, now);
            all.retain(|status| amounts.contains_key(&status.limit));
            all
        };
        self.buckets.iter().enumerate().map(of_bucket).collect()
    }
}

/// A wait that began at `as_of`, counted from `now` on; a wait that is over becomes a millisecond.
fn counted_from(now: EpochMillis, as_of: EpochMillis, wait: Wait) -> Wait {
    let Wait::Millis(millis) = wait else { return wait };
    let passed = i128::from(now.get()) - i128::from(as_of.get());
    let left = (i128::from(millis) - passed).max(1);
    Wait::Millis(u64::try_from(left).unwrap_or(u64::MAX))
}
