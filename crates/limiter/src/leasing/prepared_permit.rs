//! The tokens that a prepared call took.

use std::time::Duration;

use sluicegate_core::EntityId;

use super::found::Found;
use super::leased::Leased;
use super::leased_bucket::LeasedBucket;
use crate::degraded::Degraded;
use crate::error::{InvalidRequest, LimitExceeded};
use crate::limiter::Limiter;
use crate::permit::Permit;
use crate::store::{BucketGrant, Cascade, Request};

/// A request that is checked once and made many times.
pub(super) struct PreparedRequest {
    pub(super) limiter: Limiter,
    pub(super) leased: Leased,
    pub(super) request: Request,
    /// The parent of all entities but itself, if the limiter has one and the request names none.
    pub(super) common_parent: Option<EntityId>,
    /// The deadline that the request set.
    pub(super) deadline: Option<Duration>,
    /// The time for which it waits for tokens.
    pub(super) wait: Option<Duration>,
}

impl PreparedRequest {
    /// True if the request for this entity has the parent that was found when it was prepared.
    pub(super) fn serves(&self, entity: &str) -> bool {
        match (&self.common_parent, &self.request.cascade) {
            (_, Cascade::Stored) => false,
            (Some(parent), cascade) => (*cascade == Cascade::No) == (parent.as_str() == entity),
            (None, Cascade::To(parent)) => parent.as_str() != entity,
            (None, Cascade::No) => true,
        }
    }

    /// The request on behalf of another entity.
    pub(super) fn request_for(&self, entity: &str) -> Result<Request, InvalidRequest> {
        let entity = EntityId::new(entity)?;
        let cascade = match &self.common_parent {
            Some(parent) if *parent == entity => Cascade::No,
            Some(parent) => Cascade::To(parent.clone()),
            None => self.request.cascade.clone(),
        };
        if cascade == Cascade::To(entity.clone()) {
            return Err(InvalidRequest::OwnParent(entity));
        }
        Ok(Request { entity, cascade, ..self.request.clone() })
    }

    /// A permit of tokens that were held.
    pub(super) fn permit(&self, grants: Vec<BucketGrant>) -> Permit {
        let grants = self.leased.with_held_tokens(grants);
        Permit::uncorrected(&self.limiter, self.correction_deadline(), grants.into())
    }

    pub(super) fn correction_deadline(&self) -> Duration {
        self.limiter.guard().correction_deadline(self.deadline)
    }

    /// Tokens that were held, with the newest known images and limits of their buckets.
    fn held(&self, grants: impl Iterator<Item = BucketGrant>) -> Vec<BucketGrant> {
        let mut parts: Vec<_> = grants.collect();
        let Some(first) = parts.first() else { return parts };
        let request = Request { entity: first.bucket.entity.clone(), ..self.request.clone() };
        // Those of the lookup may be old.
        parts.iter_mut().for_each(|part| part.image = None);
        self.leased.renew_images(&mut parts, &request);
        parts
    }
}

/// The tokens that a prepared call took. Dropping it keeps them consumed.
#[must_use = "dropping a permit keeps the tokens consumed"]
pub struct PreparedPermit<'a> {
    pub(super) of: &'a PreparedRequest,
    pub(super) from: Source<'a>,
}

/// The buckets that a permit took from.
pub(super) enum Source<'a> {
    Prepared(&'a Found),
    /// Another entity's bucket, and the other prepared buckets.
    Other(EntityId, &'a Found),
    /// The permit of a request that was resolved for this one acquire.
    Permit(Box<Permit>),
}

impl PreparedPermit<'_> {
    /// The reason for a grant without the store, if it was one: see [`Permit::degraded`].
    #[must_use]
    pub fn degraded(&self) -> Option<&Degraded> {
        self.permit()?.degraded()
    }

    /// In shadow mode, the refusal that the request would have got: see [`Permit::shadowed`].
    #[must_use]
    pub fn shadowed(&self) -> Option<&LimitExceeded> {
        self.permit()?.shadowed()
    }

    fn permit(&self) -> Option<&Permit> {
        if let Source::Permit(permit) = &self.from { Some(permit) } else { None }
    }

    /// Gives the tokens back to the process, which gives them to other requests or back to the
    /// bucket. After a shutdown, or if `max_keys` buckets are held, they stay consumed. To give
    /// them back to the store, use [`into_permit`](Self::into_permit).
    pub fn release(self) {
        let leased = &self.of.leased;
        match &self.from {
            Source::Prepared(found) => {
                found.parts.iter().for_each(|part| leased.give_back(part));
            }
            Source::Other(entity, found) => {
                self.give_back_of(entity, found);
                found.parts.iter().skip(1).for_each(|part| leased.give_back(part));
            }
            Source::Permit(permit) => {
                let part_of = |grant: &BucketGrant| leased.part_of(grant.clone());
                let parts = permit.debited().iter().filter_map(part_of);
                parts.for_each(|part| leased.give_back(&part));
            }
        }
    }

    /// Gives back the tokens of another entity's own bucket.
    fn give_back_of(&self, entity: &EntityId, found: &Found) {
        let (leaser, part) = (&self.of.leased.leaser, found.first_part(entity.clone()));
        // The bucket may have been forgotten, or come back with other slots.
        let new = || LeasedBucket::new(entity.clone(), found.parts[0].bucket.layout.clone());
        let bucket = leaser.buckets.get_or_insert(&part.bucket, new);
        let demands = bucket.demands(&part.amounts).unwrap_or_default();
        leaser.put_back(&bucket, &demands, &found.for_others);
    }

    /// The tokens as a [`Permit`], to be adjusted.
    #[must_use]
    pub fn into_permit(self) -> Permit {
        let held = match self.from {
            Source::Prepared(found) => {
                self.of.held(found.parts.iter().map(|part| part.grant.clone()))
            }
            Source::Other(entity, found) => {
                let others = found.parts.iter().skip(1).map(|part| part.grant.clone());
                self.of.held(std::iter::once(found.first_part(entity)).chain(others))
            }
            Source::Permit(permit) => return *permit,
        };
        self.of.permit(held)
    }
}

impl std::fmt::Debug for PreparedPermit<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PreparedPermit").field("of", &self.of.request).finish_non_exhaustive()
    }
}
