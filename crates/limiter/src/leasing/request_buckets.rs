//! The buckets of a request that leases: finds them, takes from all of them or none, and gives
//! back.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use sluicegate_core::{Configuration, LimitName};

use super::atomic_bucket::Demand;
use super::interner::BucketLayout;
use super::key_ref::KeyRef;
use super::leased::Leased;
use super::leased_bucket::{LeasedBucket, LeasedPart};
use crate::error::AcquireError;
use crate::store::{BucketGrant, Request};

/// The tokens taken for a request that is not granted yet. Dropping it gives them back, also when
/// the caller stops waiting.
pub(super) struct Taken<'a> {
    pub(super) from: &'a Leased,
    pub(super) parts: &'a [LeasedPart],
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.parts.iter().for_each(|taken| self.from.give_back(taken));
    }
}

/// The tokens to take from one bucket.
pub(super) struct Debit<'a> {
    pub(super) bucket: &'a Arc<LeasedBucket>,
    pub(super) demands: &'a [Demand],
    pub(super) configuration: &'a Arc<Configuration>,
}

impl Leased {
    /// Finds a bucket of a request, or adds one with a slot for each of its limits and of the
    /// requested limits. `None`: some limit cannot be leased.
    pub(super) fn part_of(&self, grant: BucketGrant) -> Option<LeasedPart> {
        let id = &grant.bucket;
        let bucket = self.leaser.buckets.get_or_insert(id, || {
            let mut limits: Vec<LimitName> = grant.configuration.rules().into_keys().collect();
            limits.extend(grant.amounts.keys().cloned());
            limits.sort();
            limits.dedup();
            let layout = BucketLayout { resource: id.resource.clone(), limits };
            LeasedBucket::new(id.entity.clone(), self.leaser.interner.shared(layout))
        });
        let demands = bucket.demands(&grant.amounts)?;
        Some(LeasedPart { grant, bucket, demands })
    }

    /// The buckets of a request; `None`: some of it cannot be leased.
    pub(super) async fn parts_of(
        &self,
        request: &Request,
        deadline: Duration,
    ) -> Result<Option<Vec<LeasedPart>>, AcquireError> {
        let grants = self.leaser.store.parts(request, deadline, &self.leaser.clock).await?;
        Ok(grants.and_then(|grants| grants.into_iter().map(|grant| self.part_of(grant)).collect()))
    }

    /// The buckets of a request; empty if some of it cannot be leased. `None`: they are not known
    /// without a call.
    pub(super) fn known_parts(&self, request: &Request) -> Option<Vec<LeasedPart>> {
        let parts = self.parts_of(request, Duration::ZERO).now_or_never()?.ok()?;
        Some(parts.unwrap_or_default())
    }

    /// Replaces the images and limits of a request's buckets by the newest ones, as far as they are
    /// known.
    pub(super) fn renew_images(&self, grants: &mut [BucketGrant], request: &Request) {
        for newest in self.known_parts(request).unwrap_or_default() {
            let BucketGrant { bucket, image: Some(image), configuration, .. } = newest.grant else {
                continue;
            };
            if let Some(grant) = grants.iter_mut().find(|grant| grant.bucket == bucket) {
                (grant.image, grant.configuration) = (Some(image), configuration);
            }
        }
    }

    /// The parts of a grant with the balances that this process sees.
    pub(crate) fn with_held_tokens(&self, mut parts: Vec<BucketGrant>) -> Vec<BucketGrant> {
        for part in &mut parts {
            if let Some(bucket) = self.leaser.buckets.get(&KeyRef::of(&part.bucket)) {
                self.leaser.add_held_tokens(&bucket, part);
            }
        }
        parts
    }

    /// Leases more in the background.
    #[cold]
    pub(super) fn lease_soon(&self, part: &LeasedPart) {
        self.leaser.renew_soon(&part.bucket, Some(&part.grant.configuration));
    }

    /// Gives the tokens back.
    pub(super) fn give_back(&self, part: &LeasedPart) {
        self.leaser.put_back(&part.bucket, &part.demands, &part.grant.configuration);
    }

    /// Takes held tokens from every bucket, or from none. `first` replaces the first bucket and its
    /// limits.
    pub(super) fn take_held(
        &self,
        parts: &[LeasedPart],
        first: Option<(&Arc<LeasedBucket>, &Arc<Configuration>)>,
    ) -> bool {
        let debit = |n: usize| {
            let LeasedPart { grant, bucket, demands } = &parts[n];
            let own = (bucket, &grant.configuration);
            let (bucket, configuration) = first.filter(|_| n == 0).unwrap_or(own);
            Debit { bucket, demands, configuration }
        };
        self.take_each(parts.len(), debit, self.leaser.now_coarse_ms())
    }

    /// Takes these debits, or none of them.
    #[inline]
    pub(super) fn take_each<'a>(
        &self,
        count: usize,
        debit: impl Fn(usize) -> Debit<'a>,
        now_ms: i64,
    ) -> bool {
        // Tokens that this thread takes and puts back are missing for other threads meanwhile.
        if count > 1
            && !(0..count).map(&debit).all(|debit| debit.bucket.atomic.holds(debit.demands))
        {
            return false;
        }
        for n in 0..count {
            let Debit { bucket, demands, configuration } = debit(n);
            if !self.leaser.take(bucket, demands, Some(configuration), now_ms) {
                for Debit { bucket, demands, configuration } in (0..n).map(debit) {
                    self.leaser.put_back(bucket, demands, configuration);
                }
                return false;
            }
        }
        true
    }
}
