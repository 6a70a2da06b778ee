//! A request for tokens of one bucket.

use crate::{Amounts, BucketId, ClaimInterval, Configuration, RequestId};

/// A request for tokens of one bucket.
#[derive(Debug, Clone, Copy)]
pub struct Acquire<'a> {
    /// The bucket.
    pub bucket: &'a BucketId,
    /// The amounts, of at most [`LIMITS_MAX`](crate::LIMITS_MAX) limits; every amount is positive.
    pub amounts: &'a Amounts,
    /// The limits that the bucket should have.
    pub configuration: &'a Configuration,
    /// The id of the request.
    pub id: &'a RequestId,
    /// For this long after a claim, writers take tokens without a claim of their own.
    pub interval: ClaimInterval,
    /// The assumption about writes that the image does not show.
    pub hint: RefillHint,
}

/// The assumption of a decision about writes that its image does not show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RefillHint {
    /// The item is as the image shows it.
    TrustImage,
    /// Another process claimed refill within the last interval, although the image does not show
    /// it. With many processes on one bucket every image is out of date. A write that requires the
    /// refill time of its image would then fail most of the time.
    AssumeClaimed,
}
