//! Takes tokens ahead of need, and gives back those that were not needed, in one call.
//!
//! The script decides how much is leased, so the bucket remembers the amounts of a lease beside its
//! id. A call whose answer was lost is sent again, and gets the result of the first attempt.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use sluicegate_core::{
    Amounts, BucketId, CompositeBucket, Configuration, EpochMillis, LeaseRange, LimitName,
    Millitokens, WritePath,
};

use super::RedisStore;
use super::acquire::{Failure, images, path_of, stand, unknown};
use super::range::{check_amounts, check_rules};
use super::reply::{Reply, Status};
use super::script::LEASE;
use super::script_bucket::ScriptBucket;
use super::value::id_text;
use crate::call::CallContext;
use crate::clock::Clock;
use crate::error::{AcquireError, AdjustError};
use crate::leasing_store::{
    Counting, LeaseCalls, LeaseError, LeaseOutcome, LeaseRequest, UnackedWrite,
};
use crate::store::{BoxFuture, BucketGrant, Corrected, Correction, Request};
use crate::table::TableError;

/// The values that tell a script of lost answers.
const SENT: &str = "sent";
const GIVEN_UP: &str = "given up";
/// Tells the script to count the tokens that were used.
const USED: &str = "used";

impl LeaseCalls for RedisStore {
    fn parts<'a>(
        &'a self,
        request: &'a Request,
        _clock: &'a dyn Clock,
    ) -> BoxFuture<'a, Result<Option<Vec<BucketGrant>>, AcquireError>> {
        async move {
            check_amounts(&request.amounts)?;
            let mut parts = Vec::new();
            for target in self.targets(request)? {
                // A parent is not asked for a limit that it does not have, and only the parent
                // knows.
                if target.bucket.entity != request.entity && !target.knows(&request.amounts) {
                    return Ok(None);
                }
                parts.push(target.unread(&request.amounts));
            }
            Ok(Some(parts))
        }
        .boxed()
    }

    /// They are named once, when the store is made.
    fn limits_now<'a>(
        &'a self,
        _bucket: &'a BucketId,
        before: &'a Arc<Configuration>,
        _deadline: Duration,
        _clock: &'a dyn Clock,
    ) -> BoxFuture<'a, Result<Arc<Configuration>, AcquireError>> {
        async move { Ok(before.clone()) }.boxed()
    }

    fn lease<'a>(
        &'a self,
        lease: &'a LeaseRequest<'a>,
        unacked: Option<UnackedWrite>,
        clock: &'a dyn Clock,
    ) -> BoxFuture<'a, Result<LeaseOutcome, LeaseError>> {
        self.send(lease, unacked, clock).boxed()
    }

    fn read_bucket<'a>(
        &'a self,
        lease: &'a LeaseRequest<'a>,
        _clock: &'a dyn Clock,
    ) -> BoxFuture<'a, Result<(Option<Arc<CompositeBucket>>, f64), AcquireError>> {
        async move {
            let image = self.bucket(lease.bucket, lease.deadline).await?;
            Ok((image.map(Arc::new), 0.0))
        }
        .boxed()
    }

    fn correct<'a>(
        &'a self,
        correction: &'a Correction<'a>,
        clock: &'a dyn Clock,
    ) -> BoxFuture<'a, Result<Corrected, AdjustError>> {
        Self::correct(self, correction, clock).boxed()
    }
}

impl RedisStore {
    /// Sends a request, or sends it again to find out the result of a write that was given up.
    async fn send(
        &self,
        lease: &LeaseRequest<'_>,
        given_up: Option<UnackedWrite>,
        clock: &dyn Clock,
    ) -> Result<LeaseOutcome, LeaseError> {
        let named = lease.named();
        if let Err(error) = lease.check(&named) {
            return Err(LeaseError { error, unacked: given_up, attempts: 0 });
        }
        let configuration = Arc::new(lease.configuration.clone());
        let targets = [ScriptBucket { bucket: lease.bucket.clone(), configuration }];
        let remembered = match &given_up {
            Some(unacked) => unacked.remembered.clone(),
            None => lease.last.cloned().into_iter().collect(),
        };
        let before: Vec<_> = remembered.iter().map(id_text).collect();
        let mut run = lease.run(given_up.as_ref(), clock);
        let reply = self.repeat(&mut run, &LEASE, |run, unanswered| {
            let mut call = self.call(&targets);
            call.arg(id_text(&run.id));
            call.arg(lease.ask(&targets[0], (self.clock_argument(clock), unanswered), &named));
            call.arg(match &given_up {
                Some(_) => GIVEN_UP,
                None if unanswered > 0 => SENT,
                None => "",
            });
            call.arg(before.join(" "));
            call.arg(match lease.counting {
                Counting::Leased => "",
                Counting::Used(_) => USED,
            });
            call
        });
        let (result, in_doubt) = match reply.await {
            Ok(reply) => (self.leased(lease, reply, &targets, &named), run.attempts > 1),
            Err(lost) => (Err(Failure::Error(lost.error)), lost.in_doubt),
        };
        let CallContext { attempts, ref id, .. } = run;
        let failure = match result {
            Ok(LeaseReply::Granted { leased, image, path }) => {
                let id = id.clone();
                let (write_units, read_units) = (0.0, 0.0);
                return Ok(LeaseOutcome {
                    id,
                    leased,
                    image,
                    path,
                    attempts,
                    write_units,
                    read_units,
                });
            }
            Ok(LeaseReply::Forgotten) => None,
            Err(failure) => Some(failure),
        };
        let is_ambiguous = failure.is_none();
        // An unexpected answer is never a refusal.
        let is_open = in_doubt || is_ambiguous || matches!(failure, Some(Failure::TableError(_)));
        let unacked = given_up.or_else(|| {
            let most = |(limit, want): (&LimitName, &LeaseRange)| (limit.clone(), want.most);
            let leased = lease.wanted.iter().map(most).collect();
            is_open.then(|| UnackedWrite {
                id: id.clone(),
                leased,
                remembered,
                is_ambiguous,
                lane: None,
            })
        });
        let unacked = unacked.map(|unacked| UnackedWrite { is_ambiguous, ..unacked });
        let error = match failure {
            None => AcquireError::Unavailable("the answer to a call was lost".into()),
            Some(Failure::Error(error)) => error,
            Some(Failure::TableError(table_error)) => run.end(table_error),
        };
        Err(LeaseError { error, unacked, attempts })
    }

    fn leased(
        &self,
        lease: &LeaseRequest<'_>,
        mut reply: Reply,
        targets: &[ScriptBucket],
        named: &Amounts,
    ) -> Result<LeaseReply, Failure> {
        let status = reply.status()?;
        if matches!(status, Status::Unknown | Status::Full) {
            return Err(unknown(status, &mut reply, targets)?.into());
        }
        let header = reply.header()?;
        self.note(header);
        match status {
            Status::Short => {
                let mut asked = named.clone();
                asked.retain(|_, least| *least > Millitokens::ZERO);
                return Err(short(&mut reply, targets, &asked, lease.returned, header.now)?.into());
            }
            Status::Ambiguous => return Ok(LeaseReply::Forgotten),
            _ => {}
        }
        let image = reply.bucket(lease.bucket)?;
        let mut leased = Amounts::new();
        for limit in targets[0].named(named) {
            let amount = reply.milli()?.unwrap_or_default();
            if amount > Millitokens::ZERO {
                leased.insert(limit.clone(), amount);
            }
        }
        let path = image.as_ref().filter(|_| status == Status::Granted).map(path_of);
        Ok(LeaseReply::Granted { leased, image: image.map(Arc::new), path })
    }
}

/// The reply to a request.
enum LeaseReply {
    Granted {
        leased: Amounts,
        image: Option<Arc<CompositeBucket>>,
        path: Option<WritePath>,
    },
    /// It can no longer be known if it was done.
    Forgotten,
}

impl LeaseRequest<'_> {
    /// Every limit that the request names, and the least that is wanted of it.
    fn named(&self) -> Amounts {
        let used = match self.counting {
            Counting::Leased => None,
            Counting::Used(used) => Some(used),
        };
        let others = self.returned.keys().chain(used.into_iter().flat_map(|used| used.keys()));
        let mut named: Amounts = others.map(|limit| (limit.clone(), Millitokens::ZERO)).collect();
        named.extend(self.wanted.iter().map(|(limit, want)| (limit.clone(), want.least)));
        named
    }

    fn check(&self, named: &Amounts) -> Result<(), AcquireError> {
        let most = self.wanted.iter().map(|(limit, want)| (limit.clone(), want.most)).collect();
        check_amounts(named)?;
        check_amounts(&most)?;
        check_amounts(self.returned)?;
        if let Counting::Used(used) = self.counting {
            check_amounts(used)?;
        }
        check_rules(&self.configuration.explicit)?;
        Ok(())
    }

    /// The amounts that the request asks of its bucket.
    fn ask(&self, target: &ScriptBucket, at: (i64, u32), named: &Amounts) -> Vec<u8> {
        target.ask(at, named, |limit| {
            let want = self.wanted.get(limit);
            let (least, most) = want.map_or((0, 0), |want| (want.least.get(), want.most.get()));
            let used = match self.counting {
                Counting::Leased => 0,
                Counting::Used(used) => used.of(limit).get(),
            };
            [least, most.max(least), self.returned.of(limit).get(), used]
        })
    }
}

#[cfg(test)]
#[path = "lease_tests.rs"]
mod tests;

/// A refusal, from the refusing bucket and the amounts that would have come back.
fn short(
    reply: &mut Reply,
    targets: &[ScriptBucket],
    amounts: &Amounts,
    returned: &Amounts,
    now: EpochMillis,
) -> Result<AcquireError, TableError> {
    let mut images = images(reply, targets)?;
    for image in images.iter_mut().flatten() {
        for (limit, bucket) in &mut Arc::make_mut(image).limits {
            let tokens = i128::from(bucket.tokens.get()) + i128::from(returned.of(limit).get());
            bucket.tokens = Millitokens::saturating(tokens);
        }
    }
    Ok(AcquireError::refused(stand(targets, &images, amounts, now)))
}
