//! Leases: a request that takes as much as is wanted and there, and settles earlier ones in the
//! same write.

use super::draft::Draft;
use super::lease_terms::LeaseTerms;
use super::member::Member;
use super::place::{Placed, item_follows, may_join};
use super::request::Outcome;
use super::state::{Upkeep, WriteQueue};
use crate::decide::{Assessment, assess};
use crate::lease_size::lease_size;
use crate::{Amounts, CompositeBucket, Configuration, EpochMillis, LimitName};

impl<W> WriteQueue<W> {
    /// Sizes a lease by what is there, and puts it into the write. Nothing is taken before it in
    /// the same write: its size would be a guess.
    pub(super) fn place_lease(
        &self,
        terms: &LeaseTerms,
        draft: &mut Draft,
        member: &mut Member<W>,
        now: EpochMillis,
    ) -> Placed {
        member.leased.clear();
        let (bucket, demand) = (&self.buckets[0], &member.request.buckets[0]);
        let (configuration, id) = (demand.configuration.as_ref(), &member.request.id);
        let image = bucket.image();
        if member.request.may_reread_limits
            && image.is_some_and(|image| configuration.is_behind(image))
        {
            return Placed::Out(Outcome::OutdatedLimits(0));
        }
        if self.is_shown(id) && !self.unusable_ids.contains(id) {
            // It was done, and this queue no longer knows what it took.
            return Placed::Out(Outcome::Ambiguous);
        }
        let drafted = &draft.buckets[0];
        if draft.acquires
            || draft.takes_more
            || draft.is_forced
            || !may_join(drafted.configuration.as_deref(), configuration)
        {
            return Placed::Later;
        }
        let mut returned = drafted.returned.clone();
        returned += &terms.returned;
        let mut leased =
            lease_size(&bucket.id, image, &terms.wanted, &returned, configuration, now);
        if draft.corrects && !item_follows(bucket, configuration, &leased) {
            return Placed::Later;
        }
        if !leased.is_empty() {
            let acquire = bucket.acquire_of(demand, id, self.settings);
            let acquire = crate::Acquire { amounts: &leased, ..acquire };
            let assessment = assess(image, acquire, &returned, now);
            let placed = match assessment {
                Assessment::Covered => None,
                Assessment::Short(_) => {
                    Some(self.repair_or_place_if_short(member, now).unwrap_or(Placed::Later))
                }
                // Also for a limit of which the lease needs nothing.
                Assessment::Repair(plan) => {
                    let repair = Placed::Upkeep(Upkeep::Repair, 0, plan);
                    Some(self.repair_or_place_if_short(member, now).unwrap_or(repair))
                }
                Assessment::Unknown(_) | Assessment::NoRoom(_) if !member.seen_since_entry[0] => {
                    Some(Placed::Read)
                }
                Assessment::Unknown(limit) => Some(Placed::Out(Outcome::Unknown(limit))),
                Assessment::NoRoom(limit) => Some(Placed::Out(Outcome::NoRoom(0, limit))),
            };
            match placed {
                // A lost write of this lease may still happen. Its settlement, written alone,
                // fences it.
                Some(Placed::Out(_)) if self.is_unacked(id) => leased.clear(),
                Some(placed) => return placed,
                None => {}
            }
        }
        let counted = terms.counted(&leased);
        let (returned, counted) = match leased.is_empty() {
            true => settled(image, configuration, terms, counted),
            false => (terms.returned.clone(), counted),
        };
        if leased.is_empty() && returned.is_empty() {
            return Placed::Out(Outcome::Done(member.done(None, self.images(), false)));
        }
        draft.acquires |= !leased.is_empty();
        draft.corrects |= leased.is_empty();
        let drafted = &mut draft.buckets[0];
        drafted.lease(&leased, &returned, &counted);
        drafted.configuration.get_or_insert_with(|| demand.configuration.clone());
        member.leased = leased;
        Placed::In
    }

    /// True if a write that carries the request may have taken effect, or may still.
    pub(super) fn is_unacked(&self, id: &crate::RequestId) -> bool {
        self.unacked.iter().any(|write| write.has(id))
    }

    /// The most that a lease took whose outcome is not known: a write that carries it may have
    /// taken effect, or may still. It is asked again under the same id.
    #[must_use]
    pub fn lease_in_doubt(&self, id: &crate::RequestId) -> Option<Amounts> {
        let shared = self.shared.as_ref();
        let members = shared.filter(|shared| shared.is_in_doubt || self.is_asking());
        let mut members = members.into_iter().flat_map(|shared| &shared.members);
        let member = members.find(|member| member.request.id == *id);
        let in_shared = member.map(|member| member.leased.clone());
        let mut requests = self.unacked.iter().flat_map(|write| &write.requests);
        in_shared.or_else(|| {
            requests.find(|request| request.id == *id).map(|request| request.leased.clone())
        })
    }
}

/// The settlement of a lease that takes nothing, for those of its limits that the bucket has. A
/// refund to an item that is gone does not fit: gone is expired, hence full.
fn settled(
    image: Option<&CompositeBucket>,
    configuration: &Configuration,
    terms: &LeaseTerms,
    mut counted: Amounts,
) -> (Amounts, Amounts) {
    let has = |limit: &LimitName| match image {
        Some(image) => image.limits.contains_key(limit),
        None => configuration.rule(limit).is_some(),
    };
    counted.retain(|limit, _| has(limit));
    let mut returned = terms.returned.clone();
    returned.retain(|limit, _| has(limit));
    for limit in counted.keys() {
        returned.entry(limit.clone()).or_default();
    }
    (returned, counted)
}
