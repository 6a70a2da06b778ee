//! The calls of a limiter on a store of composite buckets.

use std::time::Duration;

use futures_util::FutureExt as _;
use sluicegate_core::evaluate;
use sluicegate_core::keys::ItemKey;

use super::bucket_request::BucketRequest;
use super::composite_store::CompositeStore;
use super::settings::CascadeMode;
use super::targets::Lookup;
use crate::call::CallContext;
use crate::clock::Clock;
use crate::cost::Cost;
use crate::counters::Counters;
use crate::error::{AcquireError, AdjustError, LimitStatus};
use crate::store::{Adjusted, BoxFuture, Correction, Grant, Request, Store};
use crate::table::{Consistency, Table};

impl<T: Table> Store for CompositeStore<T> {
    fn acquire<'a>(
        &'a self,
        request: &'a Request,
        clock: &'a dyn Clock,
    ) -> BoxFuture<'a, Result<Grant, AcquireError>> {
        async move {
            let mut context = CallContext::new(clock, request.deadline);
            let targets = self.find_targets(request, Lookup::WhereNeeded, &mut context).await?;
            let is_split =
                targets.len() > 1 && self.settings.cascade_mode == CascadeMode::Compensating;
            let (parts, path) = if is_split {
                self.side_by_side(targets, &mut context, request.deadline).await?
            } else {
                self.take(targets, &mut context).await?
            };
            Ok(Grant { parts, cost: Cost { path, ..context.cost } })
        }
        .boxed()
    }

    fn adjust<'a>(
        &'a self,
        correction: &'a Correction<'a>,
        clock: &'a dyn Clock,
    ) -> BoxFuture<'a, Result<Adjusted, AdjustError>> {
        async move { Ok(self.make_correction(correction, clock).await?.adjusted) }.boxed()
    }

    fn peek<'a>(
        &'a self,
        request: &'a Request,
        clock: &'a dyn Clock,
    ) -> BoxFuture<'a, Result<Vec<LimitStatus>, AcquireError>> {
        async move {
            let mut context = CallContext::new(clock, request.deadline);
            let targets = self.find_targets(request, Lookup::Always, &mut context).await?;
            let mut limits = Vec::new();
            for BucketRequest { bucket, amounts, configuration, known_bucket, .. } in &targets {
                let image = self.read_image(bucket, known_bucket, &mut context).await?;
                let (image, now) = (image.as_deref(), context.now());
                limits.extend(evaluate(bucket, image, amounts, configuration, now));
            }
            Ok(limits)
        }
        .boxed()
    }

    fn check<'a>(
        &'a self,
        clock: &'a dyn Clock,
        deadline: Duration,
    ) -> BoxFuture<'a, Result<(), AcquireError>> {
        async move {
            let mut context = CallContext::new(clock, deadline);
            let read = self.table.read(&[ItemKey::SchemaVersion], Consistency::Eventual);
            let result = context.in_time(read).await.map(drop);
            result.map_err(|table_error| context.fail_with(table_error))
        }
        .boxed()
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }
}
