//! Acquires tokens and reads buckets.

use std::sync::Arc;
use std::time::Duration;

use sluicegate_core::{
    Amounts, BucketId, CompositeBucket, EpochMillis, LIMITS_MAX, RequestId, WritePath, evaluate,
};

use super::RedisStore;
use super::range::check_amounts;
use super::reply::{Reply, Status};
use super::script::{Call, PEEK};
use super::script_bucket::{Image, ScriptBucket};
use super::value::{id_text, kept_s, push};
use crate::call::CallContext;
use crate::clock::{Clock, SystemClock};
use crate::error::{AcquireError, InvalidRequest, LimitStatus};
use crate::store::{Grant, Request};
use crate::table::TableError;

/// The result of an acquire, with an image of each bucket.
pub(super) enum Decision {
    Granted(Vec<Image>, WritePath),
    /// Some limit had less than the request asked for, at this time.
    Short(Vec<Image>, EpochMillis),
}

/// An answer that nothing was done, and why.
pub(super) enum Failure {
    Error(AcquireError),
    TableError(TableError),
}

impl From<TableError> for Failure {
    fn from(table_error: TableError) -> Self {
        Self::TableError(table_error)
    }
}

impl<E: Into<AcquireError>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Error(error.into())
    }
}

impl RedisStore {
    pub(super) async fn take(
        &self,
        request: &Request,
        clock: &dyn Clock,
    ) -> Result<Grant, AcquireError> {
        check_amounts(&request.amounts)?;
        let targets = self.targets(request)?;
        self.take_together(request, targets, clock).await
    }

    /// A call that takes these amounts of every bucket, or corrects by them.
    pub(super) fn taking(
        &self,
        targets: &[ScriptBucket],
        amounts: &Amounts,
        id: &RequestId,
        at: (i64, u32),
    ) -> Call {
        let mut call = self.call(targets);
        call.arg(id_text(id));
        for target in targets {
            let kept = kept_s(&target.configuration.explicit);
            call.arg(kept.map_or_else(String::new, |seconds| seconds.to_string()));
            call.arg(target.ask(at, amounts, |limit| [amounts.of(limit).get()]));
        }
        call
    }

    /// Reads the result of an acquire.
    pub(super) fn decision(
        &self,
        mut reply: Reply,
        targets: &[ScriptBucket],
    ) -> Result<Decision, Failure> {
        let (mut status, mut now) = (Status::Granted, None);
        if !reply.is_usual() {
            status = reply.status()?;
            if matches!(status, Status::Unknown | Status::Full) {
                return Err(unknown(status, &mut reply, targets)?.into());
            }
            let header = reply.header()?;
            self.note(header);
            now = Some(header.now).filter(|_| status == Status::Short);
        }
        let images = images(&mut reply, targets)?;
        if let Some(now) = now {
            return Ok(Decision::Short(images, now));
        }
        let image = images.first().and_then(Option::as_deref);
        let path = image.filter(|_| status == Status::Granted).map_or(WritePath::Normal, path_of);
        Ok(Decision::Granted(images, path))
    }

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
        let targets = [ScriptBucket { bucket: bucket.clone(), configuration: Arc::default() }];
        let mut run = CallContext::new(&SystemClock, deadline);
        let reply = self.repeat(&mut run, &PEEK, |_, _| self.peek_call(&targets, &SystemClock));
        let mut reply = reply.await.map_err(|lost| lost.error)?;
        let mut read = || {
            reply.status()?;
            reply.header()?;
            reply.bucket(bucket)
        };
        read().map_err(|table_error| run.end(table_error))
    }

    fn peek_call(&self, targets: &[ScriptBucket], clock: &dyn Clock) -> Call {
        let (mut call, mut now) = (self.call(targets), Vec::new());
        push(&mut now, self.clock_argument(clock));
        call.arg(now);
        call
    }

    /// The status of the limits of all buckets of a request.
    pub(super) async fn look(
        &self,
        request: &Request,
        clock: &dyn Clock,
    ) -> Result<Vec<LimitStatus>, AcquireError> {
        check_amounts(&request.amounts)?;
        let targets = self.targets(request)?;
        let mut run = CallContext::new(clock, request.deadline);
        let reply = self.repeat(&mut run, &PEEK, |_, _| self.peek_call(&targets, clock));
        let mut reply = reply.await.map_err(|lost| lost.error)?;
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
        all(&mut reply).map_err(|table_error| run.end(table_error))
    }
}

impl ScriptBucket {
    fn evaluate(
        &self,
        image: Option<&CompositeBucket>,
        amounts: &Amounts,
        now: EpochMillis,
    ) -> Vec<LimitStatus> {
        evaluate(&self.bucket, image, amounts, &self.configuration, now)
    }
}

/// The path of a bucket's write: if the bucket remembers one id, that write created it.
pub(super) fn path_of(image: &CompositeBucket) -> WritePath {
    match image.request_ids.len() {
        1 => WritePath::Create,
        _ => WritePath::Normal,
    }
}

pub(super) fn images(
    reply: &mut Reply,
    targets: &[ScriptBucket],
) -> Result<Vec<Image>, TableError> {
    targets.iter().map(|target| Ok(reply.bucket(&target.bucket)?.map(Arc::new))).collect()
}

/// The status of the requested limits, with the exact wait of each.
pub(super) fn stand(
    targets: &[ScriptBucket],
    images: &[Image],
    amounts: &Amounts,
    now: EpochMillis,
) -> Vec<LimitStatus> {
    let of_target = |(target, image): (&ScriptBucket, &Image)| {
        let mut limits = target.evaluate(image.as_deref(), amounts, now);
        limits.retain(|status| amounts.contains_key(&status.limit));
        limits
    };
    targets.iter().zip(images).flat_map(of_target).collect()
}

/// A limit that is unknown, or that there is no room for.
pub(super) fn unknown(
    status: Status,
    reply: &mut Reply,
    targets: &[ScriptBucket],
) -> Result<InvalidRequest, TableError> {
    let (target, limit) = (reply.int()?, reply.limit()?);
    Ok(match status {
        Status::Full => {
            let target = &targets[usize::from(target != 1).min(targets.len() - 1)];
            let (entity, max) = (target.bucket.entity.clone(), LIMITS_MAX);
            InvalidRequest::BucketFull { entity, limit, max }
        }
        _ => InvalidRequest::UnknownLimit(limit),
    })
}

#[cfg(test)]
#[path = "acquire_tests.rs"]
mod tests;
