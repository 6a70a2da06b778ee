//! Leases: a lease takes as many tokens as it wants and the bucket can spare, and settles earlier
//! leases in the same write.

use super::draft::Draft;
use super::lease_terms::LeaseTerms;
use super::member::Member;
use super::place::{Placement, item_follows, may_join};
use super::request::Outcome;
use super::state::{Upkeep, WriteQueue};
use crate::decide::{Assessment, assess};
use crate::lease_size::lease_size;
use crate::{Acquire, Amounts, CompositeBucket, Configuration, EpochMillis, LimitName};

impl<W> WriteQueue<W> {
    /// Sizes a lease by the balance, and puts it into the draft. If a request of the draft takes
    /// tokens, the lease waits for a later write: its size would be a guess.
    pub(super) fn place_lease(
        &self,
        terms: &LeaseTerms,
        draft: &mut Draft,
        member: &mut Member<W>,
        now: EpochMillis,
    ) -> Placement {
        member.leased.clear();
        let (bucket, demand) = (&self.buckets[0], &member.request.demands[0]);
        let (configuration, id) = (demand.configuration.as_ref(), &member.request.id);
        let image = bucket.image();
        if member.request.may_send_back_for_limits
            && image.is_some_and(|image| configuration.is_behind(image))
        {
            return Placement::Resolved(Outcome::OutdatedLimits(0));
        }
        if self.is_shown(id) && !self.unusable_ids.contains(id) {
            // The lease took effect, but this queue does not know how much it took.
            return Placement::Resolved(Outcome::Ambiguous);
        }
        let drafted = &draft.buckets[0];
        if draft.acquires
            || draft.corrects_upwards
            || draft.is_forced
            || !may_join(drafted.configuration.as_deref(), configuration)
        {
            return Placement::Later;
        }
        let mut returned = drafted.returned.clone();
        returned += &terms.returned;
        let mut leased =
            lease_size(&bucket.id, image, &terms.wanted, &returned, configuration, now);
        if image.is_some_and(|image| terms.settles_any_of(&configuration.compare(image).removed)) {
            // A write that leases would remove the limit, and the stream of changes would not show
            // what is settled. This one only settles, and a later one leases.
            leased.clear();
        }
        if draft.corrects && !item_follows(bucket, configuration, &leased) {
            return Placement::Later;
        }
        if !leased.is_empty() {
            let acquire = Acquire { amounts: &leased, ..self.acquire_of(member, 0) };
            let assessment = assess(image, acquire, &returned, now);
            let placed = match assessment {
                Assessment::Covered => None,
                Assessment::Short(_) => {
                    Some(self.placement_if_not_grantable(member, now).unwrap_or(Placement::Later))
                }
                // The repair may only make room for a limit that the lease merely wants, so a
                // refusal of what it needs comes first.
                Assessment::Repair(plan) => {
                    let repair = Placement::Upkeep(Upkeep::Repair, 0, plan);
                    Some(self.placement_if_not_grantable(member, now).unwrap_or(repair))
                }
                Assessment::UnknownLimit(_) | Assessment::NoRoom(_)
                    if !member.has_fresh_image[0] =>
                {
                    Some(Placement::Read)
                }
                Assessment::UnknownLimit(limit) => {
                    Some(Placement::Resolved(Outcome::UnknownLimit(limit)))
                }
                Assessment::NoRoom(limit) => Some(Placement::Resolved(Outcome::NoRoom(0, limit))),
            };
            match placed {
                // A lost write of this lease may still happen. The settlement is then written
                // alone, to fence that write.
                Some(Placement::Resolved(_)) if self.has_abandoned_write(id) => leased.clear(),
                Some(placed) => return placed,
                None => {}
            }
        }
        let counted = terms.counted(&leased);
        let (returned, counted) = match leased.is_empty() {
            true => {
                let in_doubt = self.lease_in_doubt(id).unwrap_or_default();
                settled(image, configuration, terms, counted, &in_doubt)
            }
            false => (terms.returned.clone(), counted),
        };
        if leased.is_empty() && returned.is_empty() {
            return Placement::Resolved(Outcome::Done(member.done(self.images())));
        }
        draft.acquires |= !leased.is_empty();
        draft.corrects |= leased.is_empty();
        let drafted = &mut draft.buckets[0];
        drafted.lease(&leased, &returned, &counted);
        drafted.configuration.get_or_insert_with(|| demand.configuration.clone());
        member.leased = leased;
        Placement::In
    }

    /// True if an abandoned write carries the request.
    pub(super) fn has_abandoned_write(&self, id: &crate::RequestId) -> bool {
        self.abandoned.iter().any(|write| write.has(id))
    }

    /// The most that a lease may have taken, if a write in flight or in doubt carries it, or if it
    /// has ended and its caller has not been told. Its caller enters it again under the same id.
    #[must_use]
    pub fn lease_in_doubt(&self, id: &crate::RequestId) -> Option<Amounts> {
        if let Some((_, leased)) = self.ended_without_caller.iter().find(|(known, _)| known == id) {
            return Some(leased.clone().unwrap_or_default());
        }
        let shared = self.shared.as_ref();
        let members = shared.filter(|shared| shared.is_in_doubt || self.has_call_in_flight());
        let mut members = members.into_iter().flat_map(|shared| &shared.members);
        let member = members.find(|member| member.request.id == *id);
        let in_shared = member.map(|member| member.leased.clone());
        let mut requests = self.abandoned.iter().flat_map(|write| &write.requests);
        in_shared.or_else(|| {
            requests.find(|request| request.id == *id).map(|request| request.leased.clone())
        })
    }
}

/// The returned and counted amounts of a lease that takes nothing, for those of its limits that the
/// bucket has. If there is no item, the bucket is full, so the returned tokens do not fit.
///
/// `in_doubt` holds the amounts that a lost write of this lease may have taken. Each of their
/// limits gets a returned amount, zero if nothing is returned, so that a write happens and fences
/// the lost one.
fn settled(
    image: Option<&CompositeBucket>,
    configuration: &Configuration,
    terms: &LeaseTerms,
    mut counted: Amounts,
    in_doubt: &Amounts,
) -> (Amounts, Amounts) {
    let has = |limit: &LimitName| match image {
        Some(image) => image.limits.contains_key(limit),
        None => configuration.rule(limit).is_some(),
    };
    counted.retain(|limit, _| has(limit));
    let mut returned = terms.returned.clone();
    returned.retain(|limit, _| has(limit));
    for limit in counted.keys().chain(in_doubt.keys().filter(|limit| has(limit))) {
        returned.entry(limit.clone()).or_default();
    }
    (returned, counted)
}
