//! Taking tokens ahead of need, and giving back those that nobody needed, in one write.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sluicegate_core::{
    Amounts, BucketId, CompositeBucket, Configuration, LimitName, Millitokens, WritePath,
};

use super::RedisStore;
use super::acquire::{Failure, short, unknown};
use super::range::{check_amounts, check_rules};
use super::repeat::Again;
use super::reply::{Reply, Status};
use super::script::LEASE;
use super::sides::{Side, amount};
use crate::clock::Clock;
use crate::composite::Run;
use crate::error::AcquireError;

/// What to lease and what to settle with it.
#[derive(Debug, Clone, Copy)]
pub struct LeaseOrder<'a> {
    /// Which bucket.
    pub bucket: &'a BucketId,
    /// Its limits.
    pub configuration: &'a Configuration,
    /// How much of which limit; empty: only settle.
    pub wanted: &'a BTreeMap<LimitName, LeaseWant>,
    /// Tokens of earlier leases that come back; every amount is positive. What no longer fits is
    /// lost.
    pub returned: &'a Amounts,
    /// What moves the counters of consumption.
    pub counting: LeaseCounting<'a>,
    /// How long the whole call may take.
    pub deadline: Duration,
}

/// How much of a limit to lease: a quarter of what is there, within these bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseWant {
    /// Without this the lease is refused.
    pub least: Millitokens,
    /// More than this is of no use.
    pub most: Millitokens,
}

/// What moves the counters of consumption.
#[derive(Debug, Clone, Copy)]
pub enum LeaseCounting<'a> {
    /// What is leased less what comes back.
    Leased,
    /// So much.
    Used(&'a Amounts),
}

/// A lease that was granted.
#[derive(Debug, Clone)]
pub struct Leased {
    /// What was leased.
    pub leased: Amounts,
    /// The bucket after it, as far as the order names its limits.
    pub image: Arc<CompositeBucket>,
    /// `None`: there was nothing to write.
    pub path: Option<WritePath>,
    /// Calls attempted.
    pub attempts: u32,
}

/// A lease that was not granted.
#[derive(Debug)]
pub struct LeaseFailed {
    /// Why not.
    pub error: AcquireError,
    /// Whether it may have been done all the same: then what it returned is gone.
    pub in_doubt: bool,
    /// Calls attempted.
    pub attempts: u32,
}

impl RedisStore {
    /// Leases and settles. A call whose answer was lost is not sent again: only the answer tells how
    /// much was leased, and nobody may hand out what no answer says was taken.
    ///
    /// # Errors
    /// [`LeaseFailed`]. Unless it is in doubt nothing was leased, returned or counted.
    pub async fn lease(
        &self,
        order: &LeaseOrder<'_>,
        clock: &dyn Clock,
    ) -> Result<Leased, LeaseFailed> {
        let LeaseOrder { bucket, configuration, wanted, .. } = *order;
        let refused = |error: AcquireError| LeaseFailed { error, in_doubt: false, attempts: 0 };
        let named = order.named();
        check(order, &named).map_err(refused)?;
        let side = Side { bucket: bucket.clone(), configuration: Arc::new(configuration.clone()) };
        let sides = [side];
        let mut run = Run::new(clock, order.deadline);
        let reply = self.repeat(&mut run, &LEASE, Again::No, |run, _| {
            let mut call = self.call(&sides, clock);
            call.text(run.id.as_str());
            sides[0].name(&mut call, &named, |limit| {
                let want = wanted.get(limit).copied();
                let counted = match order.counting {
                    LeaseCounting::Leased => None,
                    LeaseCounting::Used(used) => Some(amount(used, limit)),
                };
                let (least, most) = want.map_or((0, 0), |want| (want.least.get(), want.most.get()));
                [Some(least), Some(most.max(least)), Some(amount(order.returned, limit)), counted]
            });
            call
        });
        let reply = reply.await.map_err(|lost| LeaseFailed {
            error: lost.error,
            in_doubt: lost.in_doubt,
            attempts: lost.attempts,
        })?;
        let attempts = run.attempts;
        self.leased(reply, &sides, &named, attempts).map_err(|failure| {
            let (error, in_doubt) = match failure {
                Failure::Error(error) => (error, false),
                // Whatever it says, it is no refusal.
                Failure::Trouble(trouble) => (run.end(trouble), true),
            };
            LeaseFailed { error, in_doubt, attempts }
        })
    }

    fn leased(
        &self,
        mut reply: Reply,
        sides: &[Side],
        named: &Amounts,
        attempts: u32,
    ) -> Result<Leased, Failure> {
        let status = reply.status()?;
        if matches!(status, Status::Unknown | Status::Full) {
            return Err(unknown(status, &mut reply, sides)?.into());
        }
        let header = reply.header()?;
        self.note(header);
        if status == Status::Short {
            return Err(short(&mut reply, sides, named, header.now)?.into());
        }
        let (image, is_new) = sides[0].read(&mut reply, named)?;
        let mut leased = Amounts::new();
        for limit in sides[0].named(named) {
            let amount = reply.milli()?.unwrap_or_default();
            if amount > Millitokens::ZERO {
                leased.insert(limit.clone(), amount);
            }
        }
        let path = (status == Status::Granted).then_some(if is_new {
            WritePath::Create
        } else {
            WritePath::Normal
        });
        Ok(Leased { leased, image: Arc::new(image), path, attempts })
    }
}

impl LeaseOrder<'_> {
    /// Every limit that it names, and the least that is wanted of it.
    fn named(&self) -> Amounts {
        let used = match self.counting {
            LeaseCounting::Leased => None,
            LeaseCounting::Used(used) => Some(used),
        };
        let others = self.returned.keys().chain(used.into_iter().flat_map(Amounts::keys));
        let mut named: Amounts = others.map(|limit| (limit.clone(), Millitokens::ZERO)).collect();
        named.extend(self.wanted.iter().map(|(limit, want)| (limit.clone(), want.least)));
        named
    }
}

fn check(order: &LeaseOrder<'_>, named: &Amounts) -> Result<(), AcquireError> {
    let most = order.wanted.iter().map(|(limit, want)| (limit.clone(), want.most)).collect();
    check_amounts(named)?;
    check_amounts(&most)?;
    check_amounts(order.returned)?;
    if let LeaseCounting::Used(used) = order.counting {
        check_amounts(used)?;
    }
    check_rules(&order.configuration.explicit)?;
    Ok(())
}
