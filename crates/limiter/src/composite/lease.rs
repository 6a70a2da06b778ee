//! Leases tokens of one bucket and settles earlier leases, in one write.
//!
//! A lease enters the queue of its bucket as every request does. If the outcome is not known when
//! the time is up, the caller gets a [`LeaseInDoubt`], with which the lease enters again under the
//! same id.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use sluicegate_core::{
    Acquire, Amounts, BucketId, CompositeBucket, Configuration, Purpose, RefillHint, evaluate,
    reconfigure,
};

use super::bucket_request::{BucketRequest, take_out_uncharged};
use super::composite_store::CompositeStore;
use super::targets::Lookup;
use crate::call::{CallContext, Effect};
use crate::clock::Clock;
use crate::cost::Cost;
use crate::error::{AcquireError, AdjustError, LimitStatus};
use crate::leasing_store::{LeaseCalls, LeaseError, LeaseInDoubt, LeaseOutcome, LeaseRequest};
use crate::store::{BoxFuture, BucketGrant, Corrected, Correction, Request};
use crate::table::Table;

impl<T: Table> LeaseCalls for CompositeStore<T> {
    fn parts<'a>(
        &'a self,
        request: &'a Request,
        deadline: Duration,
        clock: &'a dyn Clock,
    ) -> BoxFuture<'a, Result<Option<Vec<BucketGrant>>, AcquireError>> {
        async move {
            let mut context = CallContext::reading(clock, deadline);
            let mut targets = self.find_targets(request, Lookup::WhereNeeded, &mut context).await?;
            self.follow_newer_limits(&mut targets, &mut context).await;
            targets.iter_mut().for_each(BucketRequest::leave_out_what_parent_lacks);
            take_out_uncharged(&mut targets);
            let part = |target: BucketRequest| {
                let image = target.image();
                target.into_part(image)
            };
            Ok(Some(targets.into_iter().map(part).collect()))
        }
        .boxed()
    }

    fn changes(&self) -> u64 {
        self.directory.changes()
    }

    fn limits_now<'a>(
        &'a self,
        bucket: &'a BucketId,
        before: &'a Arc<Configuration>,
        deadline: Duration,
        clock: &'a dyn Clock,
    ) -> BoxFuture<'a, Result<Arc<Configuration>, AcquireError>> {
        async move {
            if before.stored.is_none() {
                return Ok(before.clone());
            }
            let context = &mut CallContext::reading(clock, deadline);
            let (bucket, amounts, explicit) = (bucket.clone(), Amounts::EMPTY, &before.explicit);
            let target = self.target(bucket, amounts, explicit, Lookup::Always, false, context);
            Ok(target.await?.0.configuration)
        }
        .boxed()
    }

    fn lease<'a>(
        &'a self,
        lease: &'a LeaseRequest<'a>,
        in_doubt: Option<LeaseInDoubt>,
        clock: &'a dyn Clock,
    ) -> BoxFuture<'a, Result<LeaseOutcome, LeaseError>> {
        async move {
            let mut context = lease.call_context(in_doubt.as_ref(), clock);
            let known_bucket = self.known_bucket(lease.bucket);
            // The lane that sent a lost write knows its outcome, even if the cache has forgotten
            // the lane.
            let lane = in_doubt.and_then(|in_doubt| in_doubt.lane);
            let lane =
                lane.unwrap_or_else(|| known_bucket.lane(lease.bucket, self.queue_settings()));
            let target = BucketRequest::new(
                lease.bucket.clone(),
                lease.terms.least(),
                Arc::new(lease.configuration.clone()),
                known_bucket,
            );
            let purpose = Purpose::Lease(lease.terms.clone());
            let result = self.submit_until_done(&lane, &purpose, &mut [target], &mut context).await;
            let CallContext { id, cost, .. } = context;
            match result {
                Ok(sluicegate_core::Done { leased, images, path, .. }) => {
                    let image = images.into_iter().next().flatten();
                    Ok(LeaseOutcome { id, leased, image, cost: Cost { path, ..cost } })
                }
                Err((error, effect)) => {
                    let is_ambiguous = effect == Effect::Ambiguous;
                    let leased = lane.lock().queue.lease_in_doubt(&id);
                    let leased = leased.or_else(|| is_ambiguous.then(Amounts::new));
                    let remembered = Vec::new();
                    let in_doubt = leased.map(|leased| LeaseInDoubt {
                        id,
                        leased,
                        remembered,
                        is_ambiguous,
                        lane: Some(lane.clone()),
                    });
                    Err(LeaseError { error, in_doubt, attempts: cost.attempts })
                }
            }
        }
        .boxed()
    }

    fn refuse_or_read<'a>(
        &'a self,
        bucket: &'a BucketId,
        configuration: &'a Configuration,
        asked: &'a Amounts,
        deadline: Duration,
        clock: &'a dyn Clock,
    ) -> BoxFuture<'a, Result<(Option<Arc<CompositeBucket>>, f64), AcquireError>> {
        async move {
            let mut context = CallContext::new(clock, deadline);
            let known_bucket = self.known_bucket(bucket);
            let (now, refusal_age_max_ms) =
                (context.now(), self.queue_settings().refusal_age_max_ms);
            if let Some(known) = known_bucket
                .newest
                .known()
                .filter(|known| known.is_recent_enough_to_refuse(now, refusal_age_max_ms))
            {
                let image = known.image.as_deref();
                let mut limits = evaluate(bucket, image, asked, configuration, now);
                limits.retain(|status| asked.contains_key(&status.limit));
                let acquire = Acquire {
                    bucket,
                    amounts: asked,
                    configuration,
                    id: &context.id,
                    interval: self.settings.claim_interval,
                    hint: RefillHint::TrustImage,
                };
                let must_reconfigure =
                    image.is_some_and(|image| reconfigure(image, acquire, now).is_some());
                if !must_reconfigure && limits.iter().any(LimitStatus::is_violated) {
                    return Err(AcquireError::refused(limits));
                }
            }
            let image = self.read_image(bucket, &known_bucket, &mut context).await?;
            Ok((image, context.cost.read_units))
        }
        .boxed()
    }

    fn correct<'a>(
        &'a self,
        correction: &'a Correction<'a>,
        clock: &'a dyn Clock,
    ) -> BoxFuture<'a, Result<Corrected, AdjustError>> {
        self.make_correction(correction, clock).boxed()
    }
}
