//! The calls of a limiter on a store of composite buckets.

use std::time::Duration;

use sluicegate_core::keys::ItemKey;

use super::composite_store::CompositeStore;
use super::resolve::Lookup;
use super::settings::CascadeMode;
use crate::call::CallContext;
use crate::clock::Clock;
use crate::counters::Counters;
use crate::error::{AcquireError, AdjustError, LimitStatus};
use crate::leasing_store::LeaseCalls as _;
use crate::store::{Adjusted, Correction, Grant, Request, Store};
use crate::table::{Consistency, Table};

impl<T: Table> Store for CompositeStore<T> {
    async fn acquire(&self, request: &Request, clock: &dyn Clock) -> Result<Grant, AcquireError> {
        let mut run = CallContext::new(clock, request.deadline);
        let mut sides = self.sides(request, Lookup::WhereNeeded, &mut run).await?;
        let is_split = sides.len() > 1 && self.settings.cascade_mode == CascadeMode::Compensating;
        let (parts, path) = if is_split {
            self.side_by_side(sides, &mut run, clock, request.deadline).await?
        } else {
            self.take(&mut sides, &mut run).await?
        };
        let CallContext { attempts, write_units, read_units, .. } = run;
        Ok(Grant { parts, path, attempts, write_units, read_units })
    }

    async fn adjust(
        &self,
        correction: &Correction<'_>,
        clock: &dyn Clock,
    ) -> Result<Adjusted, AdjustError> {
        Ok(self.correct(correction, clock).await?.adjusted)
    }

    async fn peek(
        &self,
        request: &Request,
        clock: &dyn Clock,
    ) -> Result<Vec<LimitStatus>, AcquireError> {
        let mut run = CallContext::new(clock, request.deadline);
        let sides = self.sides(request, Lookup::Always, &mut run).await?;
        self.look_at(&sides, &mut run).await
    }

    async fn check(&self, clock: &dyn Clock, deadline: Duration) -> Result<(), AcquireError> {
        let mut run = CallContext::new(clock, deadline);
        let read = self.table.read(&[ItemKey::SchemaVersion], Consistency::Eventual);
        match run.in_time(read).await {
            Ok(_) => Ok(()),
            Err(table_error) => Err(run.end(table_error)),
        }
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }
}
