//! Places a request: into the write that is being drafted, into a later one, or out of the queue.

use super::bucket::QueueBucket;
use super::draft::Draft;
use super::member::Member;
use super::request::{BucketDemand, Outcome, Purpose};
use super::settings::GUARDED_ATTEMPTS;
use super::state::{Flight, Upkeep, WriteQueue};
use crate::decide::{Assessment, assess};
use crate::status::{LimitStatus, evaluate_after};
use crate::{Amounts, CompositeBucket, Configuration, EpochMillis, LimitName, Wait, WritePlan};

/// The place of a request.
pub(super) enum Placed {
    /// Into this write.
    In,
    /// Into a later one.
    Later,
    /// The same, because requests before it take what it needs.
    Skipped,
    /// It is resolved.
    Out(Outcome),
    /// It cannot be decided from this image.
    Read,
    /// This has to be written first.
    Upkeep(Upkeep, usize, WritePlan),
}

impl<W> WriteQueue<W> {
    pub(super) fn place(
        &self,
        draft: &mut Draft,
        member: &mut Member<W>,
        now: EpochMillis,
    ) -> Placed {
        match member.request.purpose.clone() {
            Purpose::Acquire => self.place_acquire(draft, member, now),
            Purpose::Lease(terms) => self.place_lease(&terms, draft, member, now),
            Purpose::Correct | Purpose::GiveBack => self.place_correction(draft, member),
        }
    }

    /// Refuses a request that an image of a moment ago cannot serve, whatever is in flight.
    pub(super) fn refused_at_once(&self, member: &Member<W>, now: EpochMillis) -> Option<Outcome> {
        let gives_back = self.batch.as_ref().is_some_and(|batch| batch.gives_back);
        let has_upkeep_in_flight = matches!(self.flight, Some(Flight::Upkeep(..)));
        let is_known = self.buckets.iter().all(|bucket| bucket.known.is_some());
        let is_unacked = self.batch.as_ref().is_some_and(|batch| batch.ids_before_loss.is_some());
        let can_refuse_now = is_known && !gives_back && !has_upkeep_in_flight && !is_unacked;
        if member.request.purpose != Purpose::Acquire
            || !can_refuse_now
            || self.waiting.iter().any(Member::gives_back)
        {
            return None;
        }
        if let Some(Placed::Out(outcome @ Outcome::Refused(_))) = self.place_of_short(member, now) {
            return Some(outcome);
        }
        None
    }

    fn place_acquire(&self, draft: &mut Draft, member: &Member<W>, now: EpochMillis) -> Placed {
        let mut floors = Vec::with_capacity(self.buckets.len());
        for (index, bucket) in self.buckets.iter().enumerate() {
            let wanted = &member.request.buckets[index];
            let configuration = wanted.configuration.as_ref();
            let image = bucket.image();
            let is_behind = image.is_some_and(|image| configuration.is_behind(image));
            if member.request.may_reread_limits && is_behind {
                return Placed::Out(Outcome::OutdatedLimits(index));
            }
            let demand = &draft.demands[index];
            if !shares(demand.configuration.as_deref(), configuration) || draft.is_forced {
                return Placed::Later;
            }
            if draft.corrects && !follows(bucket, configuration, &wanted.amounts) {
                return Placed::Later;
            }
            let Some(least) = demand.floors_with(&wanted.amounts) else { return Placed::Later };
            let mut ask = bucket.ask(wanted, &member.request.id, self.settings);
            ask.amounts = &least;
            match assess(image, ask, &demand.returned, self.accrued_until(draft, index, now)) {
                Assessment::Covered => floors.push(least),
                Assessment::Short(_) | Assessment::Repair(_) => {
                    let covers = assess(image, ask, &demand.returned, now);
                    let or_else = match covers {
                        Assessment::Covered => Placed::Later,
                        _ => Placed::Skipped,
                    };
                    return self.place_of_short(member, now).unwrap_or(or_else);
                }
                Assessment::Unknown(_) | Assessment::Full(_) if !member.seen_since_entry[index] => {
                    return Placed::Read;
                }
                Assessment::Unknown(limit) => return Placed::Out(Outcome::Unknown(limit)),
                Assessment::Full(limit) => return Placed::Out(Outcome::Full(index, limit)),
            }
        }
        for ((demand, wanted), floors) in
            draft.demands.iter_mut().zip(&member.request.buckets).zip(floors)
        {
            demand.grant(&wanted.amounts, floors);
            demand.configuration.get_or_insert_with(|| wanted.configuration.clone());
        }
        draft.acquires = true;
        Placed::In
    }

    /// Until when accrual counts for a request of a write.
    ///
    /// Refill since the last claim has to be claimed, and a process that claims with every write
    /// comes first each time. After a loss only the first request of a write may need it.
    fn accrued_until(&self, draft: &Draft, index: usize, now: EpochMillis) -> EpochMillis {
        let interval = i64::from(self.settings.interval.0);
        let is_recent = |at: &EpochMillis| (0..interval).contains(&(now.get() - at.get()));
        let claimed_at = self.buckets[index].image().map(|image| image.refilled_at);
        let is_later_request = self.outruns_in_a_row > 0 && draft.acquires;
        claimed_at.filter(is_recent).filter(|_| is_later_request).unwrap_or(now)
    }

    /// The place of a request that the images alone cannot serve; `None`: they can.
    pub(super) fn place_of_short(&self, member: &Member<W>, now: EpochMillis) -> Option<Placed> {
        let mut is_short = false;
        let mut images_may_refuse = true;
        for (index, bucket) in self.buckets.iter().enumerate() {
            let ask = bucket.ask(&member.request.buckets[index], &member.request.id, self.settings);
            match assess(bucket.image(), ask, member.returned(), now) {
                Assessment::Short(_) => {
                    is_short = true;
                    images_may_refuse &= self.image_may_refuse(member, index, now);
                }
                Assessment::Repair(plan) => {
                    return Some(Placed::Upkeep(Upkeep::Repair, index, plan));
                }
                _ => {}
            }
        }
        if !is_short {
            return None;
        }
        let may_reconfigure = |(index, _): &(usize, &QueueBucket)| member.may_reconfigure[*index];
        for (index, bucket) in self.buckets.iter().enumerate().filter(may_reconfigure) {
            let ask = bucket.ask(&member.request.buckets[index], &member.request.id, self.settings);
            if let Some(plan) = bucket.reconfiguration(ask, now) {
                // A read costs less than a write that fails.
                return Some(match self.image_may_refuse(member, index, now) {
                    true => Placed::Upkeep(Upkeep::Reconfigure, index, plan),
                    false => Placed::Read,
                });
            }
        }
        if !images_may_refuse {
            return Some(Placed::Read);
        }
        Some(Placed::Out(Outcome::Refused(self.evaluate(member, |_| now))))
    }

    /// True if the image of a bucket may refuse a request: the table said so since it entered, or
    /// a moment ago and no lost write may have changed it since.
    fn image_may_refuse(&self, member: &Member<W>, index: usize, now: EpochMillis) -> bool {
        let is_recent = || {
            let known = self.buckets[index].known.as_ref();
            known.is_some_and(|known| {
                known.is_recent_enough_to_refuse(now, self.settings.deny_cache_ms)
            })
        };
        member.seen_since_entry[index] || self.unacked.is_empty() && is_recent()
    }

    /// Refuses a request that lost to another process which claimed a moment ago and left too little.
    /// The refill since then is a few milliseconds' worth, for which every process would write.
    ///
    /// A claim from before the call counts as what was known of the bucket then.
    pub(super) fn refusal_after_lost_race(
        &self,
        member: &Member<W>,
        now: EpochMillis,
    ) -> Option<Outcome> {
        if !member.was_outrun || !member.takes() || self.is_unacked(&member.request.id) {
            return None;
        }
        let interval = u64::from(self.settings.interval.0);
        let before_ms = interval.min(self.settings.deny_cache_ms);
        let claimed_at = |index: usize| {
            let at =
                self.buckets[index].image().filter(|_| member.seen_since_entry[index])?.refilled_at;
            let age_ms = at.get().abs_diff(now.get());
            let is_recent_claim =
                age_ms < before_ms || at >= member.request.began && age_ms < interval;
            is_recent_claim.then_some(at)
        };
        let mut is_short = false;
        for (index, bucket) in self.buckets.iter().enumerate() {
            let ask = bucket.ask(&member.request.buckets[index], &member.request.id, self.settings);
            if member.may_reconfigure[index] && bucket.reconfiguration(ask, now).is_some() {
                return None;
            }
            is_short |= claimed_at(index).is_some_and(|at| {
                matches!(assess(bucket.image(), ask, member.returned(), at), Assessment::Short(_))
            });
        }
        let as_of = |index| claimed_at(index).unwrap_or(now);
        is_short.then(|| self.refusal_as_of(member, as_of, now))
    }

    /// Refuses a request that those before it left too little, as the table said since. What has accrued
    /// after its turn is for those who come later: nobody waits for refill unasked.
    pub(super) fn refusal_after_turn(
        &self,
        member: &Member<W>,
        now: EpochMillis,
    ) -> Option<Outcome> {
        let turn = member.skipped_at?;
        let as_of = |index: usize| {
            self.buckets[index].image().map_or(turn, |image| image.refilled_at.max(turn))
        };
        let mut is_short = false;
        for (index, bucket) in self.buckets.iter().enumerate() {
            let ask = bucket.ask(&member.request.buckets[index], &member.request.id, self.settings);
            if !member.seen_since_entry[index]
                || member.may_reconfigure[index] && bucket.reconfiguration(ask, now).is_some()
            {
                return None;
            }
            let assessment = assess(bucket.image(), ask, member.returned(), as_of(index));
            is_short |= matches!(assessment, Assessment::Short(_));
        }
        is_short.then(|| self.refusal_as_of(member, as_of, now))
    }

    /// A refusal as of earlier instants.
    fn refusal_as_of(
        &self,
        member: &Member<W>,
        as_of: impl Fn(usize) -> EpochMillis,
        now: EpochMillis,
    ) -> Outcome {
        let mut limits = self.evaluate(member, &as_of);
        for (index, of_bucket) in limits.iter_mut().enumerate() {
            for status in of_bucket {
                status.wait = counted_from(now, as_of(index), status.wait);
            }
        }
        Outcome::Refused(limits)
    }

    /// The status of the limits of a request by the images alone.
    fn evaluate(
        &self,
        member: &Member<W>,
        as_of: impl Fn(usize) -> EpochMillis,
    ) -> Vec<Vec<LimitStatus>> {
        let of_bucket = |(index, bucket): (usize, &QueueBucket)| {
            let BucketDemand { amounts, configuration } = &member.request.buckets[index];
            let demand = (amounts, member.returned());
            let (image, now) = (bucket.image(), as_of(index));
            let mut all = evaluate_after(&bucket.id, image, demand, configuration, now);
            all.retain(|status| amounts.contains_key(&status.limit));
            all
        };
        self.buckets.iter().enumerate().map(of_bucket).collect()
    }

    fn place_correction(&self, draft: &mut Draft, member: &mut Member<W>) -> Placed {
        member.is_forced |= member.attempts >= GUARDED_ATTEMPTS;
        let is_forced = member.is_forced && member.is_debit();
        let mixes = draft.is_forced != is_forced && (draft.acquires || draft.corrects);
        if mixes && (is_forced || member.is_debit()) {
            return Placed::Later;
        }
        let mut corrections = Vec::with_capacity(self.buckets.len());
        member.dropped.clear();
        for (index, bucket) in self.buckets.iter().enumerate() {
            let wanted = &member.request.buckets[index];
            let image = bucket.image();
            let is_shown = |image: &CompositeBucket| image.request_ids.contains(&member.request.id);
            let tells = !self.unusable_ids.contains(&member.request.id);
            if member.request.purpose == Purpose::Correct && tells && image.is_some_and(is_shown) {
                return Placed::Out(Outcome::Done(member.done(None, self.images(), false)));
            }
            let has = |limit: &LimitName| match image {
                Some(image) => image.limits.contains_key(limit),
                None => wanted.configuration.rule(limit).is_some(),
            };
            let (there, gone): (Amounts, Amounts) =
                wanted.amounts.clone().into_iter().partition(|(limit, _)| has(limit));
            if !gone.is_empty() && !member.seen_since_entry[index] {
                return Placed::Read;
            }
            member.dropped.extend(gone.into_iter().map(|(limit, _)| limit));
            let of_acquires = draft.demands[index].configuration.as_deref();
            let may_share = match (of_acquires, image) {
                (Some(configuration), Some(_)) => follows(bucket, configuration, Amounts::EMPTY),
                (Some(configuration), None) => shares(Some(configuration), &wanted.configuration),
                (None, _) => true,
            };
            if !may_share {
                return Placed::Later;
            }
            corrections.push(there);
        }
        if corrections.iter().all(|amounts| amounts.is_empty()) {
            return Placed::Out(Outcome::Done(member.done(None, self.images(), false)));
        }
        let mut demands = draft.demands.clone();
        for (index, there) in corrections.iter().enumerate() {
            if !demands[index].correct(there) {
                return Placed::Later;
            }
            if self.buckets[index].image().is_none() {
                let configuration = &member.request.buckets[index].configuration;
                demands[index].configuration.get_or_insert_with(|| configuration.clone());
            }
        }
        draft.demands = demands;
        draft.corrects = true;
        draft.debits |= member.is_debit();
        draft.is_forced |= is_forced;
        Placed::In
    }
}

impl<W> WriteQueue<W> {
    /// True if the items still follow the limits of a write that corrects and takes.
    pub(super) fn follow(&self, draft: &Draft) -> bool {
        self.buckets.iter().zip(&draft.demands).all(|(bucket, demand)| {
            demand
                .configuration
                .as_ref()
                .is_none_or(|configuration| follows(bucket, configuration, &demand.floors))
        })
    }
}

/// True if requests with these limits can go in one write.
pub(super) fn shares(first: Option<&Configuration>, other: &Configuration) -> bool {
    first.is_none_or(|first| std::ptr::eq(first, other) || first == other)
}

/// True if the item follows a configuration: otherwise a write with it may remove or change what
/// a correction concerns.
pub(super) fn follows(
    bucket: &QueueBucket,
    configuration: &Configuration,
    amounts: &Amounts,
) -> bool {
    bucket.image().is_none_or(|image| {
        let mut differences = configuration.compare(image);
        differences.fit(image, amounts);
        differences.is_empty()
    })
}

/// A wait that began at `as_of`, counted from `now` on; one that is over becomes a millisecond.
fn counted_from(now: EpochMillis, as_of: EpochMillis, wait: Wait) -> Wait {
    let Wait::Millis(millis) = wait else { return wait };
    let passed = i128::from(now.get()) - i128::from(as_of.get());
    let left = (i128::from(millis) - passed).max(1);
    Wait::Millis(u64::try_from(left).unwrap_or(u64::MAX))
}
