//! Remembers the buckets of recent requests by names, so that a similar request skips the lookup
//! (ADR 28). An entry serves only requests of the same entity and resource, with the same terms and
//! amounts of the same limits.

use std::sync::{Arc, Weak};

use metrics::Counter;
use quick_cache::sync::Cache;
use sluicegate_core::{Amounts, BucketId, LimitName, Millitokens};
use smallvec::SmallVec;
use smol_str::SmolStr;

use super::atomic_bucket::{DEMAND_MAX, Demand, Demands};
use super::found::FOUND_MS;
use super::leased_bucket::{LeasedBucket, LeasedPart};
use super::leaser::Leaser;
use crate::request::RequestTerms;
use crate::store::BucketGrant;

/// The most pairs of an entity and a resource that are remembered. With few limits they take a few
/// megabytes.
pub(super) const REMEMBERED_MAX: usize = 4_096;

/// The newest request of each entity and resource that was granted from held tokens.
pub(super) type RememberedRequests = Cache<BucketId, Arc<RememberedRequest>>;

/// The buckets of a request, and all that is needed to grant the next one like it.
pub(super) struct RememberedRequest {
    pub(super) leaser: Arc<Leaser>,
    pub(super) terms: RequestTerms,
    pub(super) parts: Vec<RememberedPart>,
    /// The store's number of changes before the lookup.
    pub(super) changes: u64,
    /// The end of its use, epoch milliseconds.
    pub(super) until_ms: i64,
    /// True if a limit was nearly used up at its last refill, apart from held tokens.
    pub(super) may_be_near_limit: bool,
    /// One for each limit of the request.
    pub(super) granted_counters: SmallVec<[Counter; 2]>,
}

/// One of the buckets. The amounts are those of the remembered request.
pub(super) struct RememberedPart {
    pub(super) grant: BucketGrant,
    /// Weak: the bucket may be forgotten, as if no request remembered it.
    bucket: Weak<LeasedBucket>,
    demands: Demands,
    /// The reply count of the bucket after the lookup. An answer that came during the lookup goes
    /// unnoticed, until the next one or the end of the entry.
    replies: u16,
}

/// The tokens to take from one bucket.
pub(super) struct HeldDebit {
    pub(super) bucket: Arc<LeasedBucket>,
    pub(super) demands: Demands,
}

impl From<LeasedPart> for RememberedPart {
    fn from(LeasedPart { grant, bucket, demands }: LeasedPart) -> Self {
        Self { grant, demands, replies: bucket.atomic.replies(), bucket: Arc::downgrade(&bucket) }
    }
}

impl RememberedRequest {
    /// True if the buckets need not be looked up again. A change that this process made counts at
    /// once. So does a change of stored limits that it noticed. A parent that it read from the
    /// table counts at the next lookup, at most half a second later.
    pub(super) fn is_current(&self, changes: u64, now_ms: i64) -> bool {
        self.changes == changes && (0..=FOUND_MS).contains(&self.until_ms.saturating_sub(now_ms))
    }

    /// The tokens to take for these amounts. `None`: they are not valid or of other limits, or a
    /// bucket is gone or has a newer image.
    pub(super) fn debits(&self, amounts: &[(SmolStr, i128)]) -> Option<SmallVec<[HeldDebit; 1]>> {
        // Every limit of the own bucket is found, so with as many amounts none is named twice.
        let is_complete = self.parts.first().is_some_and(|own| own.demands.len() == amounts.len());
        if is_complete { self.parts.iter().map(|part| part.debit(amounts)).collect() } else { None }
    }

    /// The parts of a grant of these demands, with the balances that this process sees. If the
    /// store has answered since the lookup, tokens may have moved from the known image into the
    /// pools: then the balances stay those of the image.
    pub(super) fn grants_with_held(&self, demands: &[Demands]) -> Vec<BucketGrant> {
        let grant = |(part, demands): (&RememberedPart, &Demands)| {
            let amount = |(limit, demand): (&LimitName, &Demand)| {
                (limit.clone(), Millitokens::saturating(demand.milli.into()))
            };
            let amounts: Amounts = part.grant.amounts.keys().zip(demands).map(amount).collect();
            let mut grant = BucketGrant { amounts, ..part.grant.clone() };
            let bucket = part.bucket.upgrade();
            if let Some(bucket) = bucket.filter(|bucket| bucket.atomic.replies() == part.replies) {
                self.leaser.add_held_tokens(&bucket, &mut grant);
            }
            grant
        };
        self.parts.iter().zip(demands).map(grant).collect()
    }
}

impl RememberedPart {
    fn debit(&self, amounts: &[(SmolStr, i128)]) -> Option<HeldDebit> {
        let bucket = self.bucket.upgrade()?;
        // With its answer, the store returned a newer image.
        if bucket.atomic.replies() != self.replies {
            return None;
        }
        let demand = |(limit, known): (&LimitName, &Demand)| {
            let (_, milli) = amounts.iter().find(|(name, _)| name == limit.as_str())?;
            let milli =
                u64::try_from(*milli).ok().filter(|milli| (1..DEMAND_MAX).contains(milli))?;
            Some(Demand { milli, ..*known })
        };
        let demands = self.grant.amounts.keys().zip(&self.demands).map(demand);
        Some(HeldDebit { bucket, demands: demands.collect::<Option<_>>()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LeaseSettings, Limiter, MemoryStore};

    /// A request for 1 of `a` and 2 of `b`, and its bucket.
    fn remembered() -> (RememberedRequest, Arc<LeasedBucket>) {
        let bucket = Arc::new(LeasedBucket::of("u", &["a", "b"]));
        let milli = [1, 2].map(|milli| Millitokens::new(milli).unwrap());
        let amounts: Amounts = bucket.layout.limits.iter().cloned().zip(milli).collect();
        let demands = bucket.demands(&amounts).unwrap();
        let grant = BucketGrant::new(bucket.id(), amounts, None, Arc::default());
        let part = LeasedPart { grant, bucket: bucket.clone(), demands };
        let limiter = Limiter::builder(MemoryStore::new()).leasing(LeaseSettings::default());
        let limiter = limiter.build();
        let request = RememberedRequest {
            leaser: limiter.leased().unwrap().leaser.clone(),
            terms: RequestTerms::default(),
            parts: vec![part.into()],
            changes: 7,
            until_ms: 10_000,
            may_be_near_limit: false,
            granted_counters: SmallVec::new(),
        };
        (request, bucket)
    }

    fn amounts(given: &[(&str, i128)]) -> Vec<(SmolStr, i128)> {
        given.iter().map(|(limit, milli)| (SmolStr::new(limit), *milli)).collect()
    }

    #[test]
    fn an_entry_serves_amounts_of_its_limits_in_any_order() {
        let (request, _bucket) = remembered();
        let debits = request.debits(&amounts(&[("b", 20), ("a", 10)])).unwrap();
        let milli: Vec<_> = debits[0].demands.iter().map(|demand| demand.milli).collect();
        assert_eq!(milli, [10, 20]);
        for other in [
            &[("a", 1)][..],
            &[("a", 1), ("a", 1)],
            &[("a", 1), ("b", 1), ("c", 1)],
            &[("a", 1), ("c", 1)],
            &[("a", 0), ("b", 1)],
            &[("a", -1), ("b", 1)],
            &[("a", DEMAND_MAX.into()), ("b", 1)],
            &[("a", i128::MAX), ("b", 1)],
            &[],
        ] {
            assert!(request.debits(&amounts(other)).is_none(), "{other:?}");
        }
    }

    #[test]
    fn an_entry_ends_with_time_changes_answers_and_its_bucket() {
        let (request, bucket) = remembered();
        let is_current = |now_ms| request.is_current(7, now_ms);
        assert!(is_current(10_000) && is_current(10_000 - FOUND_MS));
        assert!(!is_current(10_001), "half a second is over");
        assert!(!is_current(9_999 - FOUND_MS), "the clock was set back");
        assert!(!request.is_current(8, 10_000));
        let asked = amounts(&[("a", 1), ("b", 1)]);
        assert!(request.debits(&asked).is_some());
        bucket.atomic.count_reply();
        assert!(request.debits(&asked).is_none());
        let (request, bucket) = remembered();
        drop(bucket);
        assert!(request.debits(&asked).is_none());
    }
}
