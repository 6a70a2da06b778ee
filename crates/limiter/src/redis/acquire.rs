//! Builds a call that takes or corrects, and reads the reply to an acquire.

use std::sync::Arc;

use sluicegate_core::{Amounts, CompositeBucket, EpochMillis, LIMITS_MAX, RequestId, WritePath};

use super::RedisStore;
use super::range::check_amounts;
use super::reply::{Reply, Status};
use super::script::Call;
use super::script_bucket::{Image, ScriptBucket, SentAt};
use super::shared_calls::Shape;
use super::value::{id_text, kept_s};
use crate::clock::Clock;
use crate::error::{AcquireError, InvalidRequest, LimitStatus};
use crate::store::{Grant, Request};
use crate::table::TableError;

/// The result of an acquire, with an image of each bucket.
pub(super) enum Decision {
    Granted(Vec<Image>, WritePath),
    /// Some limit had less than the request asked for, at this time.
    Short(Vec<Image>, EpochMillis),
}

/// The reason why nothing was done.
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
        let shape = Shape::new(self.targets(request)?, &request.amounts);
        self.take_shared(request, &shape, clock).await
    }

    /// A call that takes these amounts of every bucket, or corrects by them.
    pub(super) fn take_or_correct_call(
        &self,
        targets: &[ScriptBucket],
        amounts: &Amounts,
        id: &RequestId,
        sent: SentAt,
    ) -> Call {
        let mut call = self.call(targets);
        call.arg(id_text(id));
        for target in targets {
            let kept = kept_s(&target.configuration.explicit);
            call.arg(kept.map_or_else(String::new, |seconds| seconds.to_string()));
            call.arg(target.packed_request(sent, amounts, |limit| [amounts.of(limit).get()]));
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
            if matches!(status, Status::UnknownLimit | Status::BucketFull) {
                return Err(invalid_limit(status, &mut reply, targets)?.into());
            }
            let header = reply.header()?;
            self.count_warnings(header);
            now = Some(header.now).filter(|_| status == Status::Short);
        }
        let images = images(&mut reply, targets)?;
        if let Some(now) = now {
            return Ok(Decision::Short(images, now));
        }
        let image = images.first().and_then(Option::as_deref);
        let path = image.filter(|_| status == Status::Granted).map_or(WritePath::Claim, path_of);
        Ok(Decision::Granted(images, path))
    }
}

/// The path of a bucket's write: if the bucket remembers one id, that write created it.
pub(super) fn path_of(image: &CompositeBucket) -> WritePath {
    match image.request_ids.len() {
        1 => WritePath::Create,
        _ => WritePath::Claim,
    }
}

pub(super) fn images(
    reply: &mut Reply,
    targets: &[ScriptBucket],
) -> Result<Vec<Image>, TableError> {
    targets.iter().map(|target| Ok(reply.bucket(&target.bucket)?.map(Arc::new))).collect()
}

/// The status of the requested limits, with the exact wait of each.
pub(super) fn statuses(
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

/// The error for a limit that is unknown, or that the bucket has no room for.
pub(super) fn invalid_limit(
    status: Status,
    reply: &mut Reply,
    targets: &[ScriptBucket],
) -> Result<InvalidRequest, TableError> {
    let (target, limit) = (reply.int()?, reply.limit()?);
    Ok(match status {
        Status::BucketFull => {
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
