//! The buckets that the newest requests by names stood for, so that the next ones need not find them
//! again (ADR 28).

use std::sync::Arc;

use metrics::Counter;
use quick_cache::sync::Cache;
use sluicegate_core::{Amounts, BucketId, LimitName, Millitokens};
use smallvec::SmallVec;
use smol_str::SmolStr;

use super::atomic_bucket::{Demand, Demands, POOL_MAX};
use super::key_ref::KeyRef;
use super::leased_part::{FOUND_MS, LeasedPart};
use crate::request::Terms;
use crate::store::BucketGrant;

/// The most entities with a resource whose requests are remembered: a few megabytes.
const REMEMBERED_MAX: usize = 4_096;

/// The newest request by names, for each entity and resource, that was granted from held tokens.
pub(super) struct ResolvedRequests(Cache<BucketId, Arc<Resolved>>);

impl ResolvedRequests {
    pub(super) fn get(&self, key: &KeyRef<'_>) -> Option<Arc<Resolved>> {
        self.0.get(key)
    }

    pub(super) fn insert(&self, resolved: Resolved) {
        if let Some(own) = resolved.parts.first() {
            self.0.insert(own.grant.bucket.clone(), Arc::new(resolved));
        }
    }
}

impl Default for ResolvedRequests {
    fn default() -> Self {
        Self(Cache::new(REMEMBERED_MAX))
    }
}

/// The buckets of a request, and all that is needed to grant the next one like it.
pub(super) struct Resolved {
    pub(super) terms: Terms,
    /// With the amounts of the request that was resolved.
    pub(super) parts: Vec<LeasedPart>,
    /// How often the store had answered for each bucket.
    replies: SmallVec<[u16; 2]>,
    /// How often this process had changed stored limits or parents.
    own_changes: u64,
    /// Epoch milliseconds.
    until_ms: i64,
    /// True if a limit was nearly used up at its last refill.
    pub(super) may_be_near_limit: bool,
    /// A counter for each limit of the request.
    pub(super) granted: SmallVec<[Counter; 2]>,
}

/// The demands of a request on each of its buckets.
pub(super) type DemandsOfParts = SmallVec<[Demands; 1]>;

impl Resolved {
    /// The number of own changes is from before the buckets were looked up.
    pub(super) fn new(
        (terms, own_changes): (Terms, u64),
        parts: Vec<LeasedPart>,
        granted: SmallVec<[Counter; 2]>,
        may_be_near_limit: bool,
        now_ms: i64,
    ) -> Self {
        let replies = parts.iter().map(|part| part.bucket.atomic.replies()).collect();
        let until_ms = now_ms.saturating_add(FOUND_MS);
        Self { terms, parts, replies, own_changes, until_ms, may_be_near_limit, granted }
    }

    /// True if the buckets are as known. This process's own changes are noticed at once, and what it
    /// learns of others' changes half a second later, as by a prepared call.
    pub(super) fn is_current(&self, own_changes: u64, now_ms: i64) -> bool {
        // With its answer, the store returned a newer image of the bucket.
        let is_newest =
            |(part, replies): (&LeasedPart, &u16)| part.bucket.atomic.replies() == *replies;
        self.own_changes == own_changes
            && (0..=FOUND_MS).contains(&self.until_ms.saturating_sub(now_ms))
            && self.parts.iter().zip(&self.replies).all(is_newest)
    }

    /// These amounts by slot, for each bucket. `None`: they are not of the same limits, or not valid.
    pub(super) fn demands(&self, amounts: &[(SmolStr, i128)]) -> Option<DemandsOfParts> {
        let demand = |(limit, known): (&LimitName, &Demand)| {
            let (_, milli) = amounts.iter().find(|(name, _)| name == limit.as_str())?;
            let milli =
                u64::try_from(*milli).ok().filter(|milli| (1..POOL_MAX / 4).contains(milli))?;
            Some(Demand { milli, ..*known })
        };
        let of_part = |part: &LeasedPart| {
            part.grant.amounts.keys().zip(&part.demands).map(demand).collect::<Option<Demands>>()
        };
        // Every limit of the own bucket is found, so with as many amounts none is named twice.
        let is_complete = self.parts.first().is_some_and(|own| own.demands.len() == amounts.len());
        if is_complete { self.parts.iter().map(of_part).collect() } else { None }
    }

    /// The parts of a grant of these demands.
    pub(super) fn grants(&self, demands: &[Demands]) -> Vec<BucketGrant> {
        let grant = |(part, demands): (&LeasedPart, &Demands)| {
            let amount = |(limit, demand): (&LimitName, &Demand)| {
                (limit.clone(), Millitokens::saturating(demand.milli.into()))
            };
            let LeasedPart { grant, .. } = part;
            let amounts: Amounts = grant.amounts.keys().zip(demands).map(amount).collect();
            let (bucket, configuration) = (grant.bucket.clone(), grant.configuration.clone());
            BucketGrant { bucket, amounts, image: grant.image.clone(), configuration }
        };
        self.parts.iter().zip(demands).map(grant).collect()
    }
}
