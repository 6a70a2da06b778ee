//! Leases tokens of one bucket and settles earlier leases, in one write.
//!
//! A lease enters the queue of its bucket as every request does. If the outcome is not known when
//! the time is up, the caller gets a [`LeaseInDoubt`], with which the lease enters again under the
//! same id.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt as _;
use sluicegate_core::{
    Acquire, Amounts, BucketDemand, BucketId, CompositeBucket, Configuration, LIMITS_MAX,
    LeaseTerms, Outcome, Purpose, QueuedRequest, RefillHint, evaluate, reconfigure,
};

use super::bucket_request::BucketRequest;
use super::composite_store::CompositeStore;
use super::lane::Lane;
use super::request_error::{error_at_deadline, setup_error};
use super::table_call::Resolved;
use super::targets::Lookup;
use crate::call::CallContext;
use crate::clock::Clock;
use crate::cost::Cost;
use crate::error::{AcquireError, AdjustError, InvalidRequest, LimitStatus};
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
            let mut targets = self.targets(request, Lookup::WhereNeeded, &mut context).await?;
            self.follow_newer_limits(&mut targets, &mut context).await;
            let part = |target: BucketRequest| {
                let image = target.image();
                target.into_part(image)
            };
            Ok(Some(targets.into_iter().map(part).collect()))
        }
        .boxed()
    }

    fn own_changes(&self) -> u64 {
        self.own_changes.load(Ordering::Acquire)
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
            self.limits(bucket, &before.explicit, &mut CallContext::reading(clock, deadline)).await
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
            // The lane that sent a lost write knows its outcome, even if the cache has forgotten
            // the lane.
            let lane = in_doubt.and_then(|in_doubt| in_doubt.lane);
            let lane = lane.unwrap_or_else(|| {
                self.entry(lease.bucket).lane(lease.bucket, self.queue_settings())
            });
            let result = self.lease_from(&lane, lease, &mut context).await;
            let CallContext { id, cost, .. } = context;
            match result {
                Ok(sluicegate_core::Done { leased, images, path, .. }) => {
                    let image = images.into_iter().next().flatten();
                    Ok(LeaseOutcome { id, leased, image, cost: Cost { path, ..cost } })
                }
                Err((error, is_ambiguous)) => {
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

    fn read_bucket<'a>(
        &'a self,
        lease: &'a LeaseRequest<'a>,
        clock: &'a dyn Clock,
    ) -> BoxFuture<'a, Result<(Option<Arc<CompositeBucket>>, f64), AcquireError>> {
        async move {
            let mut context = CallContext::new(clock, lease.deadline);
            let entry = self.entry(lease.bucket);
            let (now, refusal_age_max_ms) =
                (context.now(), self.queue_settings().refusal_age_max_ms);
            if let Some(known) = entry
                .newest
                .known()
                .filter(|known| known.is_recent_enough_to_refuse(now, refusal_age_max_ms))
            {
                let least = terms(lease).least();
                let image = known.image.as_deref();
                let mut asked = evaluate(lease.bucket, image, &least, lease.configuration, now);
                asked.retain(|status| least.contains_key(&status.limit));
                let acquire = Acquire {
                    bucket: lease.bucket,
                    amounts: &least,
                    configuration: lease.configuration,
                    id: &context.id,
                    interval: self.settings.claim_interval,
                    hint: RefillHint::TrustImage,
                };
                let is_behind =
                    image.is_some_and(|image| reconfigure(image, acquire, now).is_some());
                if !is_behind && asked.iter().any(LimitStatus::is_violated) {
                    return Err(AcquireError::refused(asked));
                }
            }
            let image = self.read_image(lease.bucket, &entry, &mut context).await?;
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

impl<T: Table> CompositeStore<T> {
    /// Carries out a lease. The flag beside an error is true if the outcome can never be known.
    async fn lease_from(
        &self,
        lane: &Arc<Lane>,
        lease: &LeaseRequest<'_>,
        context: &mut CallContext<'_>,
    ) -> Result<sluicegate_core::Done, (AcquireError, bool)> {
        let bucket = lease.bucket;
        let terms = Arc::new(terms(lease));
        let mut configuration = Arc::new(lease.configuration.clone());
        let (mut may_reread_limits, mut may_look_for_limit) = (true, true);
        loop {
            let request = || QueuedRequest {
                id: context.id.clone(),
                purpose: Purpose::Lease(terms.clone()),
                buckets: vec![BucketDemand {
                    amounts: terms.least(),
                    configuration: configuration.clone(),
                }],
                started_at: context.started_at,
                may_reread_limits,
            };
            let resolved = lane.submit(self, &request, context.deadline, context.clock).await;
            let Resolved { outcome, cost, table_error } = match resolved {
                Ok(resolved) => resolved,
                Err(left) => return Err((error_at_deadline(left, context), false)),
            };
            context.cost += cost;
            let error: AcquireError = match outcome {
                Outcome::Done(done) => return Ok(done),
                Outcome::Refused(limits) => AcquireError::refused(limits.concat()),
                Outcome::OutdatedLimits(_) => {
                    may_reread_limits = false;
                    let entry = self.entry(bucket);
                    if let Some(image) = entry.newest.known().and_then(|known| known.image) {
                        let newer = self.newer_configuration(
                            bucket,
                            &entry,
                            &configuration,
                            &image,
                            context,
                        );
                        configuration = newer.boxed().await.unwrap_or(configuration);
                    }
                    continue;
                }
                // As for an acquire. The id stays, as a lost lease may have it.
                Outcome::UnknownLimit(_) | Outcome::NoRoom(..) if may_look_for_limit => {
                    may_look_for_limit = false;
                    let (bucket, entry) = (bucket.clone(), self.entry(bucket));
                    let amounts = terms.least();
                    let mut target = BucketRequest { bucket, amounts, configuration, entry };
                    let read = self.read_limits_again(&mut target, context).boxed().await;
                    read.map_err(|error| (error, false))?;
                    configuration = target.configuration;
                    continue;
                }
                Outcome::UnknownLimit(limit) => InvalidRequest::UnknownLimit(limit).into(),
                Outcome::NoRoom(_, limit) => {
                    let (entity, max) = (bucket.entity.clone(), LIMITS_MAX);
                    InvalidRequest::BucketFull { entity, limit, max }.into()
                }
                Outcome::Ambiguous => {
                    // The table answered, so this is no outage.
                    let lost = AcquireError::Contended { attempts: context.cost.attempts };
                    return Err((AcquireError::Unavailable(lost.into()), true));
                }
                Outcome::Contended { .. } => {
                    AcquireError::Contended { attempts: context.cost.attempts }
                }
                Outcome::Failed { .. } => AcquireError::Setup(setup_error(table_error.as_deref())),
            };
            return Err((error, false));
        }
    }
}

fn terms(lease: &LeaseRequest<'_>) -> LeaseTerms {
    LeaseTerms {
        wanted: lease.wanted.clone(),
        returned: lease.returned.clone(),
        counted: lease.counted.cloned(),
    }
}
