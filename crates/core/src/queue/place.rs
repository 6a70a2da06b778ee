//! Places a request: into the write that is being drafted, into a later one, or out of the queue.

use super::bucket::QueueBucket;
use super::draft::Draft;
use super::member::Member;
use super::request::{Outcome, Purpose};
use super::settings::ATTEMPTS_BEFORE_FORCED;
use super::state::{Upkeep, WriteQueue};
use crate::decide::{Assessment, assess};
use crate::{Acquire, Amounts, CompositeBucket, Configuration, EpochMillis, LimitName, WritePlan};

/// The place of a request.
pub(super) enum Placement {
    /// Into this write.
    In,
    /// Into a later one.
    Later,
    /// Into a later one, because requests before it take the tokens that it needs.
    PassedOver,
    /// It is resolved.
    Resolved(Outcome),
    /// It cannot be decided from this image.
    Read,
    /// Before it can be decided, this upkeep of this bucket has to be written.
    Upkeep(Upkeep, usize, WritePlan),
}

impl<W> WriteQueue<W> {
    pub(super) fn place(
        &self,
        draft: &mut Draft,
        member: &mut Member<W>,
        now: EpochMillis,
    ) -> Placement {
        match member.request.purpose.clone() {
            Purpose::Acquire => self.place_acquire(draft, member, now),
            Purpose::Lease(terms) => self.place_lease(&terms, draft, member, now),
            Purpose::Correct | Purpose::ReturnForLeaver => self.place_correction(draft, member),
        }
    }

    fn place_acquire(&self, draft: &mut Draft, member: &Member<W>, now: EpochMillis) -> Placement {
        let mut must_cover = Vec::with_capacity(self.buckets.len());
        for (index, bucket) in self.buckets.iter().enumerate() {
            let demand = &member.request.demands[index];
            let configuration = demand.configuration.as_ref();
            let image = bucket.image();
            let is_behind = image.is_some_and(|image| configuration.is_behind(image));
            if member.request.may_send_back_for_limits && is_behind {
                return Placement::Resolved(Outcome::OutdatedLimits(index));
            }
            let drafted = &draft.buckets[index];
            if !may_join(drafted.configuration.as_deref(), configuration) || draft.is_forced {
                return Placement::Later;
            }
            if draft.corrects && !item_follows(bucket, configuration, &demand.amounts) {
                return Placement::Later;
            }
            let Some(must_cover_now) = drafted.must_cover_with(&demand.amounts) else {
                return Placement::Later;
            };
            let acquire = Acquire { amounts: &must_cover_now, ..self.acquire_of(member, index) };
            let refilled_until = self.refill_counts_until(draft, index, now);
            match assess(image, acquire, &drafted.returned, refilled_until) {
                Assessment::Covered => must_cover.push(must_cover_now),
                Assessment::Short(_) | Assessment::Repair(_) => {
                    // `refill_counts_until` may withhold refill. If the request fits with all of
                    // it, the request waits for that refill alone, and was not passed over.
                    let fallback = match assess(image, acquire, &drafted.returned, now) {
                        Assessment::Covered => Placement::Later,
                        _ => Placement::PassedOver,
                    };
                    return self.placement_if_not_grantable(member, now).unwrap_or(fallback);
                }
                Assessment::UnknownLimit(_) | Assessment::NoRoom(_)
                    if !member.has_fresh_image[index] =>
                {
                    return Placement::Read;
                }
                Assessment::UnknownLimit(limit) => {
                    return Placement::Resolved(Outcome::UnknownLimit(limit));
                }
                Assessment::NoRoom(limit) => {
                    return Placement::Resolved(Outcome::NoRoom(index, limit));
                }
            }
        }
        for ((drafted, demand), must_cover) in
            draft.buckets.iter_mut().zip(&member.request.demands).zip(must_cover)
        {
            drafted.grant(&demand.amounts, must_cover);
            drafted.configuration.get_or_insert_with(|| demand.configuration.clone());
        }
        draft.acquires = true;
        Placement::In
    }

    /// The instant up to which refill counts for the next request of a draft.
    ///
    /// To use refill since the last claim, a write must claim, and then it fails if any other
    /// process claims first. So after an outrun (`outruns_in_a_row`), all but the first acquire or
    /// lease of a draft count refill only up to the last claim, unless that claim is at least one
    /// claim interval old.
    fn refill_counts_until(&self, draft: &Draft, index: usize, now: EpochMillis) -> EpochMillis {
        let interval = i64::from(self.settings.interval.0);
        let is_recent = |at: &EpochMillis| (0..interval).contains(&(now.get() - at.get()));
        let claimed_at = self.buckets[index].image().map(|image| image.refilled_at);
        let is_later_request = self.outruns_in_a_row > 0 && draft.acquires;
        claimed_at.filter(is_recent).filter(|_| is_later_request).unwrap_or(now)
    }

    fn place_correction(&self, draft: &mut Draft, member: &mut Member<W>) -> Placement {
        member.is_forced |= member.attempts >= ATTEMPTS_BEFORE_FORCED;
        let is_forced = member.is_forced && member.corrects_upwards();
        // A forced write has no conditions on the balance. A request that takes must not lose them
        // by sharing a forced write; one that only gives back needs none.
        let mixes = draft.is_forced != is_forced && (draft.acquires || draft.corrects);
        if mixes && (is_forced || member.corrects_upwards()) {
            return Placement::Later;
        }
        let mut corrections = Vec::with_capacity(self.buckets.len());
        member.dropped.clear();
        for (index, bucket) in self.buckets.iter().enumerate() {
            let demand = &member.request.demands[index];
            let image = bucket.image();
            let is_shown = |image: &CompositeBucket| image.request_ids.contains(&member.request.id);
            let is_usable = !self.unusable_ids.contains(&member.request.id);
            if member.request.purpose == Purpose::Correct
                && is_usable
                && image.is_some_and(is_shown)
            {
                member.dropped = self.lacking(&member.request);
                return Placement::Resolved(Outcome::Done(member.done(self.images())));
            }
            let has = |limit: &LimitName| match image {
                Some(image) => image.limits.contains_key(limit),
                None => demand.configuration.rule(limit).is_some(),
            };
            let (there, missing): (Amounts, Amounts) =
                demand.amounts.clone().into_iter().partition(|(limit, _)| has(limit));
            if !missing.is_empty() && !member.has_fresh_image[index] {
                return Placement::Read;
            }
            member.dropped.extend(missing.into_iter().map(|(limit, _)| limit));
            let cannot_share = |drafted: &Configuration| match image {
                Some(_) => !item_follows(bucket, drafted, Amounts::EMPTY),
                None => !may_join(Some(drafted), &demand.configuration),
            };
            if draft.buckets[index].configuration.as_deref().is_some_and(cannot_share) {
                return Placement::Later;
            }
            corrections.push(there);
        }
        if corrections.iter().all(|amounts| amounts.is_empty()) {
            return Placement::Resolved(Outcome::Done(member.done(self.images())));
        }
        let mut drafted = draft.buckets.clone();
        for (index, there) in corrections.iter().enumerate() {
            if !drafted[index].correct(there) {
                return Placement::Later;
            }
            if self.buckets[index].image().is_none() {
                let configuration = &member.request.demands[index].configuration;
                drafted[index].configuration.get_or_insert_with(|| configuration.clone());
            }
        }
        draft.buckets = drafted;
        draft.corrects = true;
        draft.corrects_upwards |= member.corrects_upwards();
        draft.is_forced |= is_forced;
        Placement::In
    }
}

/// True if requests with these limits can go in one write.
pub(super) fn may_join(first: Option<&Configuration>, other: &Configuration) -> bool {
    first.is_none_or(|first| std::ptr::eq(first, other) || first == other)
}

/// True if there is no item, or it follows the configuration. Otherwise a write with this
/// configuration may remove or change a limit that a correction concerns.
pub(super) fn item_follows(
    bucket: &QueueBucket,
    configuration: &Configuration,
    amounts: &Amounts,
) -> bool {
    bucket.image().is_none_or(|image| {
        let mut differences = configuration.compare(image);
        differences.drop_unasked_if_crowded(image, amounts);
        differences.is_empty()
    })
}
