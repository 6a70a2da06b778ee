//! Takes tokens ahead of need, and gives back those that were not needed, in one call.
//!
//! The script decides how much is leased, so the bucket remembers the amounts of a lease beside its
//! id. The store sends a call in doubt again, and gets the result of the first attempt.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use sluicegate_core::{
    Amounts, BucketId, CompositeBucket, Configuration, EpochMillis, LeaseRange, LeaseTerms,
    LimitName, Millitokens, RequestId, WritePath,
};

use super::RedisStore;
use super::acquire::{Failure, images, invalid_limit, path_of, statuses};
use super::range::{check_amounts, check_rules};
use super::reply::{Reply, Status};
use super::script::{Call, LEASE};
use super::script_bucket::{ScriptBucket, SentAt};
use super::value::id_text;
use crate::call::Effect;
use crate::clock::Clock;
use crate::cost::Cost;
use crate::error::{AcquireError, AdjustError};
use crate::leasing_store::{LeaseCalls, LeaseError, LeaseInDoubt, LeaseOutcome, LeaseRequest};
use crate::store::{BoxFuture, BucketGrant, Corrected, Correction, Request};
use crate::table::TableError;

/// Tells the script that an earlier attempt of the call is in doubt.
const REPEATS: &str = "repeats";
/// Tells the script that an earlier call under the id is in doubt.
const RESOLVES: &str = "resolves";
/// Tells the script to count the tokens that were used.
const USED: &str = "used";

impl LeaseCalls for RedisStore {
    fn parts<'a>(
        &'a self,
        request: &'a Request,
        _deadline: Duration,
        _clock: &'a dyn Clock,
    ) -> BoxFuture<'a, Result<Option<Vec<BucketGrant>>, AcquireError>> {
        async move {
            check_amounts(&request.amounts)?;
            let mut parts = Vec::new();
            for ScriptBucket { bucket, configuration } in self.targets(request)? {
                let is_parent = bucket.entity != request.entity;
                // Only the script knows the limits of a parent's bucket, so this request cannot be
                // leased.
                if is_parent
                    && request.amounts.keys().any(|limit| configuration.rule(limit).is_none())
                {
                    return Ok(None);
                }
                let parent_limits = request.parent_limits.as_ref().filter(|_| is_parent);
                let named = parent_limits.unwrap_or(&request.limits);
                let configuration = Arc::new(self.configured.apart(&bucket, named));
                let (amounts, image) = (request.amounts.clone(), self.images.get(&bucket));
                parts.push(BucketGrant::new(bucket, amounts, image, configuration));
            }
            Ok(Some(parts))
        }
        .boxed()
    }

    /// Redis stores neither limits nor parents.
    fn changes(&self) -> u64 {
        0
    }

    /// Limits on Redis are set when the store is made, so they do not change. `before` has none of
    /// them if a call that was prepared for another entity gave the bucket its limits.
    fn limits_now<'a>(
        &'a self,
        bucket: &'a BucketId,
        before: &'a Arc<Configuration>,
        _deadline: Duration,
        _clock: &'a dyn Clock,
    ) -> BoxFuture<'a, Result<Arc<Configuration>, AcquireError>> {
        async move {
            match before.stored {
                None => Ok(before.clone()),
                Some(_) => Ok(Arc::new(self.configured.of(bucket, &before.explicit)?)),
            }
        }
        .boxed()
    }

    fn lease<'a>(
        &'a self,
        lease: &'a LeaseRequest<'a>,
        in_doubt: Option<LeaseInDoubt>,
        clock: &'a dyn Clock,
    ) -> BoxFuture<'a, Result<LeaseOutcome, LeaseError>> {
        self.lease_or_resolve(lease, in_doubt, clock).boxed()
    }

    fn refuse_or_read<'a>(
        &'a self,
        bucket: &'a BucketId,
        _configuration: &'a Configuration,
        _asked: &'a Amounts,
        deadline: Duration,
        clock: &'a dyn Clock,
    ) -> BoxFuture<'a, Result<(Option<Arc<CompositeBucket>>, f64), AcquireError>> {
        async move {
            let image = self.read(bucket, deadline, clock).await?.map(Arc::new);
            self.learn(bucket, image.as_ref());
            Ok((image, 0.0))
        }
        .boxed()
    }

    fn correct<'a>(
        &'a self,
        correction: &'a Correction<'a>,
        clock: &'a dyn Clock,
    ) -> BoxFuture<'a, Result<Corrected, AdjustError>> {
        async move {
            let corrected = Self::correct(self, correction, clock).await?;
            self.learn(correction.bucket, corrected.image.as_ref());
            Ok(corrected)
        }
        .boxed()
    }
}

impl RedisStore {
    /// Remembers a bucket as a script left it, for requests that are decided without a call.
    fn learn(&self, bucket: &BucketId, image: Option<&Arc<CompositeBucket>>) {
        match image {
            Some(image) => self.images.insert(bucket.clone(), image.clone()),
            None => _ = self.images.remove(bucket),
        }
    }

    /// As `learn`, if the bucket is remembered. A program that does not lease remembers none.
    pub(super) fn learn_if_known(&self, bucket: &BucketId, image: Option<&Arc<CompositeBucket>>) {
        if self.images.contains_key(bucket) {
            self.learn(bucket, image);
        }
    }

    /// Leases and settles. With `in_doubt`, sends that write again under its id to find out its
    /// result.
    async fn lease_or_resolve(
        &self,
        lease: &LeaseRequest<'_>,
        in_doubt: Option<LeaseInDoubt>,
        clock: &dyn Clock,
    ) -> Result<LeaseOutcome, LeaseError> {
        let named = lease.named();
        if let Err(error) = lease.check(&named) {
            return Err(LeaseError { error, in_doubt, attempts: 0 });
        }
        let configuration = match self.configured.of(lease.bucket, &lease.configuration.explicit) {
            Ok(configuration) => Arc::new(configuration),
            Err(error) => return Err(LeaseError { error: error.into(), in_doubt, attempts: 0 }),
        };
        let target = ScriptBucket { bucket: lease.bucket.clone(), configuration };
        let remembered = match &in_doubt {
            Some(in_doubt) => in_doubt.remembered.clone(),
            None => lease.last.cloned().into_iter().collect(),
        };
        let is_resolving = in_doubt.is_some();
        let mut context = lease.call_context(in_doubt.as_ref(), clock);
        // The number of attempts in doubt before the last one.
        let mut lost = 0;
        let reply = self.repeat(
            &mut context,
            &LEASE,
            std::slice::from_ref(&target),
            |context, attempts_in_doubt| {
                lost = attempts_in_doubt;
                let write = LeaseWrite {
                    id: &context.id,
                    sent: self.sent(clock, attempts_in_doubt),
                    is_resolving,
                    remembered: &remembered,
                };
                self.lease_call(lease, &target, &named, &write)
            },
        );
        let (result, is_in_doubt) = match reply.await {
            Ok(reply) => (self.read_lease(lease, reply, &target, &named), lost > 0),
            Err(failure) => {
                let in_doubt = failure.in_doubt;
                (Err(Failure::Error(failure.into_error())), in_doubt)
            }
        };
        let (id, attempts) = (context.id.clone(), context.cost.attempts);
        let (error, effect) = match result {
            Ok(LeaseReply::Granted { leased, image, path }) => {
                self.learn(lease.bucket, image.as_ref());
                return Ok(LeaseOutcome {
                    id,
                    leased,
                    image,
                    cost: Cost { path, attempts, ..Cost::default() },
                });
            }
            Ok(LeaseReply::Ambiguous) => {
                // The server answered, so this is no outage.
                let error = AcquireError::Contended { attempts: context.cost.attempts };
                (AcquireError::Unavailable(error.into()), Effect::Ambiguous)
            }
            Err(Failure::Error(error)) => (error, Effect::of(is_in_doubt)),
            // An unexpected reply leaves the write in doubt.
            Err(Failure::TableError(table_error)) => {
                (context.fail_with(table_error), Effect::InDoubt)
            }
        };
        let in_doubt = in_doubt_after(in_doubt, effect, lease, id, remembered);
        Err(LeaseError { error, in_doubt, attempts })
    }

    fn lease_call(
        &self,
        lease: &LeaseRequest<'_>,
        target: &ScriptBucket,
        named: &Amounts,
        write: &LeaseWrite<'_>,
    ) -> Call {
        let mut call = self.call(std::slice::from_ref(target));
        call.arg(id_text(write.id));
        call.arg(lease.packed_request(target, write.sent, named));
        call.arg(match write {
            LeaseWrite { is_resolving: true, .. } => RESOLVES,
            LeaseWrite { sent: SentAt { attempts_in_doubt: 1.., .. }, .. } => REPEATS,
            _ => "",
        });
        let before: Vec<_> = write.remembered.iter().map(id_text).collect();
        call.arg(before.join(" "));
        call.arg(if lease.terms.counted.is_some() { USED } else { "" });
        call
    }

    fn read_lease(
        &self,
        lease: &LeaseRequest<'_>,
        mut reply: Reply,
        target: &ScriptBucket,
        named: &Amounts,
    ) -> Result<LeaseReply, Failure> {
        let targets = std::slice::from_ref(target);
        let status = reply.status()?;
        if matches!(status, Status::UnknownLimit | Status::BucketFull) {
            return Err(invalid_limit(status, &mut reply, targets)?.into());
        }
        let header = reply.header()?;
        self.count_warnings(header);
        match status {
            Status::Short => {
                let mut asked = named.clone();
                asked.retain(|_, least| *least > Millitokens::ZERO);
                return Err(refusal(
                    &mut reply,
                    targets,
                    &asked,
                    &lease.terms.returned,
                    header.now,
                )?
                .into());
            }
            Status::Ambiguous => return Ok(LeaseReply::Ambiguous),
            _ => {}
        }
        let image = reply.bucket(lease.bucket)?;
        let mut leased = Amounts::new();
        for limit in target.named(named) {
            let amount = reply.milli()?.unwrap_or_default();
            if amount > Millitokens::ZERO {
                leased.insert(limit.clone(), amount);
            }
        }
        let path = image.as_ref().filter(|_| status == Status::Granted).map(path_of);
        Ok(LeaseReply::Granted { leased, image: image.map(Arc::new), path })
    }
}

/// The parts of a call that a repetition or a resolution changes.
struct LeaseWrite<'a> {
    id: &'a RequestId,
    sent: SentAt,
    /// True if the write belongs to an earlier call that got no answer.
    is_resolving: bool,
    /// The ids that the bucket remembered before the write.
    remembered: &'a [RequestId],
}

/// The write whose result the caller must still find out; `None`: there is none.
fn in_doubt_after(
    before: Option<LeaseInDoubt>,
    effect: Effect,
    lease: &LeaseRequest<'_>,
    id: RequestId,
    remembered: Vec<RequestId>,
) -> Option<LeaseInDoubt> {
    let is_ambiguous = effect == Effect::Ambiguous;
    if let Some(before) = before {
        return Some(LeaseInDoubt { is_ambiguous, ..before });
    }
    if effect == Effect::None {
        return None;
    }
    let most = |(limit, want): (&LimitName, &LeaseRange)| (limit.clone(), want.most);
    let leased = lease.terms.wanted.iter().map(most).collect();
    Some(LeaseInDoubt { id, leased, remembered, is_ambiguous, lane: None })
}

/// The reply to a request.
enum LeaseReply {
    Granted {
        leased: Amounts,
        image: Option<Arc<CompositeBucket>>,
        path: Option<WritePath>,
    },
    /// The bucket cannot tell any more if it was done.
    Ambiguous,
}

impl LeaseRequest<'_> {
    /// Every limit that the request names, and the least that is wanted of it.
    fn named(&self) -> Amounts {
        let LeaseTerms { wanted, returned, counted } = &**self.terms;
        let counted = counted.iter().flat_map(|counted| counted.keys());
        let others = returned.keys().chain(counted);
        let mut named: Amounts = others.map(|limit| (limit.clone(), Millitokens::ZERO)).collect();
        named.extend(wanted.iter().map(|(limit, want)| (limit.clone(), want.least)));
        named
    }

    fn check(&self, named: &Amounts) -> Result<(), AcquireError> {
        let LeaseTerms { wanted, returned, counted } = &**self.terms;
        let most = wanted.iter().map(|(limit, want)| (limit.clone(), want.most)).collect();
        check_amounts(named)?;
        check_amounts(&most)?;
        check_amounts(returned)?;
        counted.as_ref().map_or(Ok(()), check_amounts)?;
        check_rules(&self.configuration.explicit)?;
        Ok(())
    }

    /// The argument for its bucket, with four amounts of each limit.
    fn packed_request(&self, target: &ScriptBucket, sent: SentAt, named: &Amounts) -> Vec<u8> {
        let LeaseTerms { wanted, returned, counted } = &**self.terms;
        target.packed_request(sent, named, |limit| {
            let want = wanted.get(limit);
            let (least, most) = want.map_or((0, 0), |want| (want.least.get(), want.most.get()));
            let counted = counted.as_ref().map_or(0, |counted| counted.of(limit).get());
            [least, most.max(least), returned.of(limit).get(), counted]
        })
    }
}

/// The refusal of a request that gives these amounts back.
fn refusal(
    reply: &mut Reply,
    targets: &[ScriptBucket],
    amounts: &Amounts,
    returned: &Amounts,
    now: EpochMillis,
) -> Result<AcquireError, TableError> {
    let mut images = images(reply, targets)?;
    // The balances of the refusing bucket do not include `returned`; add it.
    for image in images.iter_mut().flatten() {
        for (limit, balance) in &mut Arc::make_mut(image).limits {
            let tokens = i128::from(balance.tokens.get()) + i128::from(returned.of(limit).get());
            balance.tokens = Millitokens::saturating(tokens);
        }
    }
    Ok(AcquireError::refused(statuses(targets, &images, amounts, now)))
}

#[cfg(test)]
#[path = "lease_tests.rs"]
mod tests;
