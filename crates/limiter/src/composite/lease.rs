//! Leasing tokens of one bucket and settling what became of earlier ones, in one write.
//!
//! A write whose answer was lost may still land. It is sent again under the same id with the very same
//! amounts, so that it does not matter which of the attempts lands; one that is never answered is
//! handed back as a [`Doubt`], and the next write on the bucket begins by settling it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use sluicegate_core::{BucketId, CompositeBucket, Configuration};

use super::CompositeStore;
use super::leasing::Leasing;
use super::resolve::Lookup;
use super::run::Run;
use crate::clock::Clock;
use crate::error::{AcquireError, AdjustError};
use crate::lessor::{Corrected, Done, Doubt, Failed, Lends, Order};
use crate::store::{Correction, Part, Request};
use crate::table::Table;

impl<T: Table> Lends for CompositeStore<T> {
    async fn parts(
        &self,
        request: &Request,
        clock: &dyn Clock,
    ) -> Result<Option<Vec<Part>>, AcquireError> {
        let mut run = Run::new(clock, request.deadline);
        let mut sides = self.sides(request, Lookup::WhereNeeded, &mut run).await?;
        for side in &mut sides {
            let Some(image) = side.image() else { continue };
            if side.configuration.is_behind(&image) {
                let (bucket, entry) = (&side.bucket, &side.entry);
                let newer = self.updated(bucket, entry, &side.configuration, &image, &mut run);
                // A piece of its own: seldom there, and larger than what else waits.
                let newer = newer.boxed();
                side.configuration = newer.await.unwrap_or_else(|| side.configuration.clone());
            }
        }
        Ok(Some(sides.iter().map(|side| side.part(side.image())).collect()))
    }

    async fn limits_now(
        &self,
        bucket: &BucketId,
        before: &Arc<Configuration>,
        deadline: Duration,
        clock: &dyn Clock,
    ) -> Result<Arc<Configuration>, AcquireError> {
        if before.stored.is_none() {
            return Ok(before.clone());
        }
        self.limits(bucket, &before.explicit, &mut Run::new(clock, deadline)).await
    }

    async fn carry_out(
        &self,
        order: &Order<'_>,
        doubt: Option<Doubt>,
        clock: &dyn Clock,
    ) -> Result<Done, Failed> {
        let mut run = order.run(doubt.as_ref(), clock);
        let mut leasing = Leasing::new(self, &mut run, order, doubt);
        let result = leasing.finish().await;
        let (doubt, image) = (leasing.doubt.take(), leasing.image.take());
        let Run { id, attempts, write_units, read_units, .. } = run;
        match result {
            Ok((leased, path)) => {
                Ok(Done { id, leased, image, path, attempts, write_units, read_units })
            }
            Err(error) => {
                if doubt.as_ref().is_some_and(|doubt| doubt.is_lost) {
                    self.counters.ambiguous.increment();
                }
                Err(Failed { error, doubt, attempts })
            }
        }
    }

    async fn look(
        &self,
        order: &Order<'_>,
        clock: &dyn Clock,
    ) -> Result<(Option<Arc<CompositeBucket>>, f64), AcquireError> {
        let mut run = Run::new(clock, order.deadline);
        let mut leasing = Leasing::new(self, &mut run, order, None);
        let image = leasing.look().await?;
        Ok((image, run.read_units))
    }

    async fn correct(
        &self,
        correction: &Correction<'_>,
        clock: &dyn Clock,
    ) -> Result<Corrected, AdjustError> {
        let mut run = Run::under(correction.id.clone(), clock, correction.deadline);
        self.make(correction, &mut run).await
    }
}
