//! Leasing tokens of one bucket and settling what became of earlier ones, in one write.
//!
//! A write whose answer was lost may still land. It is sent again under the same id with the very same
//! amounts, so that it does not matter which of the attempts lands; one that is never answered is
//! handed back as a [`Doubt`], and the next write on the bucket begins by settling it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sluicegate_core::{
    Amounts, BucketId, CompositeBucket, Configuration, LimitName, RequestId, Wanted, WritePath,
};

use super::CompositeStore;
use super::leasing::Leasing;
use super::run::Run;
use crate::clock::Clock;
use crate::error::AcquireError;
use crate::table::Table;

/// What to lease and what to settle with it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Order<'a> {
    pub(crate) bucket: &'a BucketId,
    pub(crate) configuration: &'a Configuration,
    /// How much of which limit; empty: only settle.
    pub(crate) wanted: &'a BTreeMap<LimitName, Wanted>,
    /// What comes back; no amount is negative.
    pub(crate) returned: &'a Amounts,
    pub(crate) counting: Counting<'a>,
    pub(crate) deadline: Duration,
}

/// What moves the counters of consumption.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Counting<'a> {
    /// What is leased less what comes back.
    Leased,
    /// So much.
    Used(&'a Amounts),
}

/// A write that was done, or that there was no reason for.
#[derive(Debug)]
pub(crate) struct Done {
    /// What was leased.
    pub(crate) leased: Amounts,
    /// The bucket after it, as far as it is known.
    pub(crate) image: Option<Arc<CompositeBucket>>,
    /// `None`: there was nothing to write.
    pub(crate) path: Option<WritePath>,
    pub(crate) attempts: u32,
    pub(crate) write_units: f64,
    pub(crate) read_units: f64,
}

/// A lease that was not granted.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) error: AcquireError,
    /// What is left open: until it is settled, nothing that the order returned or counted may be
    /// used again.
    pub(crate) doubt: Option<Doubt>,
    pub(crate) attempts: u32,
}

/// A write that may have been done, or may still be.
#[derive(Debug, Clone)]
pub(crate) struct Doubt {
    pub(super) id: RequestId,
    /// What it leases.
    pub(super) leased: Amounts,
    /// What the item remembered before it.
    pub(super) remembered: Vec<RequestId>,
    /// The item may have forgotten it: nobody will ever know.
    pub(super) is_lost: bool,
}

impl Doubt {
    /// Whether nobody can tell any more what became of it.
    pub(crate) const fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// The limits of its lease.
    pub(crate) fn limits(&self) -> impl Iterator<Item = &LimitName> {
        self.leased.keys()
    }
}

impl<T: Table> CompositeStore<T> {
    /// Leases and settles.
    pub(crate) async fn lease(&self, order: &Order<'_>, clock: &dyn Clock) -> Result<Done, Failed> {
        self.carry_out(order, None, Run::new(clock, order.deadline)).await
    }

    /// Finds out what became of a write that was not answered. The order is what it settled; what it
    /// leased is leased again where that is wanted and there. Otherwise the item is made to remember
    /// its id, so that it cannot land any more.
    pub(crate) async fn resolve(
        &self,
        order: &Order<'_>,
        doubt: Doubt,
        clock: &dyn Clock,
    ) -> Result<Done, Failed> {
        let run = Run::under(doubt.id.clone(), clock, order.deadline);
        self.carry_out(order, Some(doubt), run).await
    }

    /// The bucket as it is, by a read that sees every write; a refusal, without one, when the table
    /// said a moment ago that it is short. And the read units spent.
    pub(crate) async fn look(
        &self,
        order: &Order<'_>,
        clock: &dyn Clock,
    ) -> Result<(Option<Arc<CompositeBucket>>, f64), AcquireError> {
        let mut run = Run::new(clock, order.deadline);
        let mut leasing = Leasing::new(self, &mut run, order, None);
        let image = leasing.look().await?;
        Ok((image, run.read_units))
    }

    async fn carry_out(
        &self,
        order: &Order<'_>,
        doubt: Option<Doubt>,
        mut run: Run<'_>,
    ) -> Result<Done, Failed> {
        let mut leasing = Leasing::new(self, &mut run, order, doubt);
        let result = leasing.finish().await;
        let (doubt, image) = (leasing.doubt.take(), leasing.image.take());
        let Run { attempts, write_units, read_units, .. } = run;
        match result {
            Ok((leased, path)) => {
                Ok(Done { leased, image, path, attempts, write_units, read_units })
            }
            Err(error) => {
                if doubt.as_ref().is_some_and(Doubt::is_lost) {
                    self.counters.ambiguous.increment();
                }
                Err(Failed { error, doubt, attempts })
            }
        }
    }
}
