//! Reads buckets, as they are stored or as the status of their limits.

use std::sync::Arc;
use std::time::Duration;

use sluicegate_core::{BucketId, CompositeBucket};

use super::RedisStore;
use super::range::check_amounts;
use super::reply::Reply;
use super::script::{Call, PEEK};
use super::script_bucket::ScriptBucket;
use super::value::push;
use crate::call::CallContext;
use crate::clock::{Clock, SystemClock};
use crate::error::{AcquireError, LimitStatus};
use crate::store::Request;

impl RedisStore {
    /// A bucket as it is stored; `None`: there is none. Its expiry and the versions of
    /// its stored limits are not among the fields.
    ///
    /// # Errors
    /// [`AcquireError::Unavailable`], [`AcquireError::Contended`] or [`AcquireError::Setup`].
    pub async fn bucket(
        &self,
        bucket: &BucketId,
        deadline: Duration,
    ) -> Result<Option<CompositeBucket>, AcquireError> {
        self.read(bucket, deadline, &SystemClock).await
    }

    /// A bucket as it is stored, for a limiter with this clock.
    pub(super) async fn read(
        &self,
        bucket: &BucketId,
        deadline: Duration,
        clock: &dyn Clock,
    ) -> Result<Option<CompositeBucket>, AcquireError> {
        let targets = [ScriptBucket { bucket: bucket.clone(), configuration: Arc::default() }];
        let mut context = CallContext::new(clock, deadline);
        let reply = self.repeat(&mut context, &PEEK, &[], |_, _| self.peek_call(&targets, clock));
        let mut reply = reply.await.map_err(|failure| failure.error)?;
        let mut read = || {
            reply.status()?;
            reply.header()?;
            reply.bucket(bucket)
        };
        read().map_err(|table_error| context.fail_with(table_error))
    }

    /// The status of the limits of all buckets of a request.
    pub(super) async fn peek_statuses(
        &self,
        request: &Request,
        clock: &dyn Clock,
    ) -> Result<Vec<LimitStatus>, AcquireError> {
        check_amounts(&request.amounts)?;
        let targets = self.targets(request)?;
        let mut context = CallContext::new(clock, request.deadline);
        let reply = self.repeat(&mut context, &PEEK, &[], |_, _| self.peek_call(&targets, clock));
        let mut reply = reply.await.map_err(|failure| failure.error)?;
        let all = |reply: &mut Reply| {
            reply.status()?;
            let now = reply.header()?.now;
            let mut limits = Vec::new();
            for target in &targets {
                let image = reply.bucket(&target.bucket)?;
                limits.extend(target.evaluate(image.as_ref(), &request.amounts, now));
            }
            Ok(limits)
        };
        all(&mut reply).map_err(|table_error| context.fail_with(table_error))
    }

    fn peek_call(&self, targets: &[ScriptBucket], clock: &dyn Clock) -> Call {
        let (mut call, mut now) = (self.call(targets), Vec::new());
        push(&mut now, self.clock_argument(clock));
        call.arg(now);
        call
    }
}
