//! The reasons why tokens were not granted, sorted by what the caller can do about them.

use std::time::Duration;

use sluicegate_core::{AmountOf, EntityId, LimitName, Millitokens, Wait};
pub use sluicegate_core::{
    InvalidCalendar, ItemError, LimitStatus, NameError, OutOfRange, UnknownZone,
};

pub use crate::limit::InvalidLimit;
pub use crate::store_error::{BoxError, NoConnection, SetupError, StoreFailure};

/// The reason why an acquire granted nothing. No balance changed, except where
/// [`Unavailable`](Self::Unavailable), [`Contended`](Self::Contended) and
/// [`CascadeMode::Compensating`](crate::settings::CascadeMode::Compensating) say otherwise. If the
/// answer to a write was lost and the bucket has forgotten the write, a refused request may have
/// taken tokens, too; the limiter counts it as [ambiguous](crate::guide#lost-answers).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// A limit is short now: a gateway answers 429 with `Retry-After`.
    #[error(transparent)]
    LimitExceeded(#[from] LimitExceeded),
    /// The request asks for more than the bucket can ever hold: 400, because waiting does not help.
    #[error(transparent)]
    NeverAdmissible(#[from] NeverAdmissible),
    /// Other writers, or a throttled store, prevented the write until attempts or time ran out:
    /// 503, the same request may pass in a moment. A write that the deadline ended may take effect:
    /// then tokens are taken although nothing was granted.
    #[error(
        "the bucket was contended or the store throttled for {attempts} attempts: ask again in a moment"
    )]
    Contended {
        /// Writes attempted.
        attempts: u32,
    },
    /// The store did not answer in time, or answered that it failed (the source is a
    /// [`StoreFailure`] then); or an earlier answer was lost, and the store answers now (then the
    /// source is an `AcquireError`): 503. A write whose answer was lost may take effect: then
    /// tokens are taken although nothing was granted.
    #[error("{}", unavailable(.0))]
    Unavailable(#[source] BoxError),
    /// The request is invalid: 500, because the program that made it is wrong; 400 if the invalid
    /// part came from a client, as names of entities and amounts may. Nothing was taken. The store
    /// was asked only if a limit is unknown to this process, or its bucket has no room for a limit.
    #[error(transparent)]
    InvalidRequest(#[from] InvalidRequest),
    /// Permissions, the table or an item must be repaired first: 500.
    #[error(transparent)]
    Setup(#[from] SetupError),
}

impl AcquireError {
    /// `LimitExceeded`, or `NeverAdmissible` if waiting does not help.
    pub(crate) fn refused(limits: Vec<LimitStatus>) -> Self {
        if limits.iter().any(|limit| limit.wait == Wait::ExceedsBurst) {
            return NeverAdmissible { limits }.into();
        }
        LimitExceeded::new(limits).into()
    }

    /// The status of the limits of a refusal; an error that is no refusal stays as it is.
    pub(crate) fn into_refused(self) -> Result<Vec<LimitStatus>, Self> {
        match self {
            Self::LimitExceeded(exceeded) => Ok(exceeded.limits),
            Self::NeverAdmissible(never) => Ok(never.limits),
            other => Err(other),
        }
    }

    /// A copy, for each of the requests that shared a call.
    #[cfg(feature = "redis")]
    pub(crate) fn copy(&self) -> Self {
        match self {
            Self::LimitExceeded(refusal) => refusal.clone().into(),
            Self::NeverAdmissible(refusal) => refusal.clone().into(),
            Self::Contended { attempts } => Self::Contended { attempts: *attempts },
            Self::Unavailable(source) => Self::Unavailable(match source.downcast_ref::<Self>() {
                Some(error) => error.copy().into(),
                None => crate::store_error::copy_of(source),
            }),
            Self::InvalidRequest(error) => error.clone().into(),
            Self::Setup(error) => error.copy().into(),
        }
    }
}

fn unavailable(source: &BoxError) -> &'static str {
    if source.is::<StoreFailure>() {
        "the store answered that it failed: look at its error below, and at the store's health"
    } else if source.is::<AcquireError>() || source.is::<AdjustError>() {
        "an answer of the store was lost, so tokens may have been taken; the error below came after it"
    } else {
        "the store did not answer: check the network, the endpoint and the store's health"
    }
}

/// At least one limit of the request is short.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimitExceeded {
    /// Every limit of the request; [`LimitStatus::is_violated`] marks those that are short.
    pub limits: Vec<LimitStatus>,
    /// The time after which to ask again. It is the shortest time, in whole milliseconds, after
    /// which every limit has enough, unless other requests take or return tokens meanwhile. `None`:
    /// waiting does not help, because a quota without refill is short or, in shadow mode, the
    /// request asks for more than a full bucket holds.
    pub retry_after: Option<Duration>,
}

impl LimitExceeded {
    /// The refusal of a request whose limits have this status; some of them are short.
    #[must_use]
    pub fn new(limits: Vec<LimitStatus>) -> Self {
        let mut retry_after = Some(Duration::ZERO);
        for limit in &limits {
            retry_after = match limit.wait {
                Wait::None => retry_after,
                Wait::Millis(millis) => {
                    retry_after.map(|so_far| so_far.max(Duration::from_millis(millis)))
                }
                Wait::NoRefill | Wait::ExceedsBurst => None,
            };
        }
        Self { limits, retry_after }
    }

    /// The limits that are short.
    pub fn violations(&self) -> impl Iterator<Item = &LimitStatus> {
        self.limits.iter().filter(|limit| limit.is_violated())
    }
}

impl std::error::Error for LimitExceeded {}

impl std::fmt::Display for LimitExceeded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("limit exceeded:")?;
        for (n, limit) in self.violations().enumerate() {
            write!(f, "{} {limit}", if n == 0 { "" } else { ";" })?;
        }
        match self.retry_after {
            Some(after) => write!(f, "; ask again in {} ms", after.as_millis()),
            None if self.violations().any(|limit| limit.wait == Wait::ExceedsBurst) => {
                f.write_str("; a full bucket holds less")
            }
            None => f.write_str("; it does not refill"),
        }
    }
}

/// The request asks for more of a limit than its bucket can ever hold.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NeverAdmissible {
    /// Every limit of the request; those asked for more than their burst are violated.
    pub limits: Vec<LimitStatus>,
}

impl std::error::Error for NeverAdmissible {}

impl std::fmt::Display for NeverAdmissible {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("never admissible, whatever the wait:")?;
        let beyond = |limit: &&LimitStatus| limit.wait == Wait::ExceedsBurst;
        for (n, limit) in self.limits.iter().filter(beyond).enumerate() {
            let comma = if n == 0 { "" } else { ";" };
            let show = |amount: Millitokens| limit.limit.show(amount);
            let (asked, burst) = (show(limit.asked), show(limit.rule.burst()));
            write!(
                f,
                "{comma} {} of {} asked for {asked}, a full bucket holds {burst}",
                limit.limit, limit.entity
            )?;
        }
        f.write_str("; ask for less or raise the limit's burst")
    }
}

/// The reason why a request is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidRequest {
    /// The name of an entity or resource cannot be part of a key.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The name of a limit cannot be part of an attribute name.
    #[error(transparent)]
    LimitName(NameError),
    /// A limit that came with the request is invalid.
    #[error(transparent)]
    Limit(#[from] InvalidLimit),
    /// A call was prepared by a limiter that does not [lease](crate::LimiterBuilder::leasing).
    #[error("only a limiter that leases prepares calls: build it with `leasing`")]
    NotLeasing,
    /// The request names no amount.
    #[error("the request asks for no tokens: consume at least one limit")]
    Empty,
    /// An amount is zero or too large, or negative in an acquire.
    #[error(
        "{limit}={}: give more than zero and at most {}; only a correction may be negative",
        AmountOf::new(limit.as_str(), *milli).plain(),
        AmountOf::new(limit.as_str(), Millitokens::MAX.into()).plain()
    )]
    Amount {
        /// The limit.
        limit: LimitName,
        /// The requested amount, in millitokens.
        milli: i128,
    },
    /// A correction names a negative amount as what was used.
    #[error("{0} is negative: name what was used in the end, or give back by an adjustment")]
    NegativeTotal(LimitName),
    /// A limit is named twice in one request.
    #[error("limit {0} is named twice")]
    DuplicateLimit(LimitName),
    /// There are more limits than a bucket can have: in one list, in a request, or in a request
    /// together with the limits that the program gave to a Redis store.
    #[error("{count} limits: a bucket can have at most {max}")]
    TooManyLimits {
        /// The number of limits.
        count: usize,
        /// The most that are allowed.
        max: usize,
    },
    /// The bucket has the most limits that it can have, and this one is not among them. A gateway
    /// answers 500, or 400 if a client names limits. Stored limits that are deleted leave the
    /// bucket.
    #[error(
        "the bucket of {entity} has the maximum of {max} limits, and {limit} is not among them: name limits from a fixed set; to remove an unused limit from the bucket, store that limit in the table, then delete the stored limit"
    )]
    BucketFull {
        /// The entity whose bucket it is.
        entity: EntityId,
        /// The limit that it has no room for.
        limit: LimitName,
        /// The most limits that it can have.
        max: usize,
    },
    /// Neither the request nor the table nor the bucket knows the limit.
    #[error(
        "unknown limit {0}: define it with the request or for the limiter; on DynamoDB, it may be stored instead"
    )]
    UnknownLimit(LimitName),
    /// A limit or an amount that the store cannot count exactly.
    #[error("{limit}: {what} is {value}: this store counts exactly up to {max}")]
    BeyondStore {
        /// The limit.
        limit: LimitName,
        /// The quantity, with its unit.
        what: &'static str,
        /// Its value.
        value: i128,
        /// The largest value that is allowed.
        max: i128,
    },
    /// A Redis cluster may keep the buckets of these two entities on different nodes, where no
    /// script sees both.
    #[error("{parent} is not the stored parent of {entity}: store the parent of each entity")]
    CrossSlot {
        /// The entity that asked.
        entity: EntityId,
        /// The parent that the request named.
        parent: EntityId,
    },
    /// An entity cannot be its own parent.
    #[error("{0} cannot be its own parent")]
    OwnParent(EntityId),
}

impl InvalidRequest {
    /// True if the invalid part is a name or an amount, which a gateway takes from its client's
    /// request: it answers 400. False for limits, which belong to the program: 500.
    #[must_use]
    pub const fn is_of_client(&self) -> bool {
        matches!(
            self,
            Self::Name(_) | Self::OwnParent(_) | Self::Amount { .. } | Self::NegativeTotal(_)
        )
    }
}

/// The reason why the store is unavailable, if a correction was not sent to it.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct NotSent(BoxError);

/// The reason why a correction was not made, or may not have been made.
///
/// If the call [may be repeated](Self::may_be_repeated), its permit counts the correction as not
/// made: the same call completes it in each bucket.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdjustError {
    /// The answer was lost. Either the item no longer shows if the tokens were given back, or the
    /// time ran out first. Do not repeat the correction: it may have taken effect or may still do
    /// so.
    #[error("the answer was lost: the correction may or may not have been made")]
    Ambiguous(#[source] BoxError),
    /// Other writers, or a throttled table, prevented the write until its attempts or its time ran
    /// out; nothing was done.
    #[error("the bucket was contended or the store throttled: adjust again in a moment")]
    Contended,
    /// The store did not answer in time; or it answered that it failed (the source is a
    /// [`StoreFailure`]); or an earlier answer was lost, and the store answers now (the source is
    /// an `AdjustError`). A debit may have been made, and so may any correction with a key. A
    /// permit sends the debit again as the same write, which takes effect once unless the bucket
    /// has forgotten its id.
    #[error("{}", unavailable(.0))]
    Unavailable(#[source] BoxError),
    /// The correction is invalid.
    #[error(transparent)]
    InvalidRequest(#[from] InvalidRequest),
    /// Permissions, the table or an item must be repaired first; nothing was done.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// Of a child's and its parent's bucket, one was corrected and the other was not.
    #[error("the bucket of {corrected} was corrected, that of {failed} was not")]
    Partial {
        /// The entity whose bucket was corrected, or may have been; it is not corrected again.
        corrected: EntityId,
        /// The entity whose bucket was not corrected, or may not have been.
        failed: EntityId,
        /// The reason.
        source: Box<AdjustError>,
    },
}

impl AdjustError {
    /// True if the same call on the same permit completes the correction. Otherwise the correction
    /// counts as made ([`Ambiguous`](Self::Ambiguous)) or can never be made.
    ///
    /// [`Limiter::adjust`](crate::Limiter::adjust) has no permit that remembers the correction: see
    /// [`may_have_been_made`](Self::may_have_been_made).
    #[must_use]
    pub fn may_be_repeated(&self) -> bool {
        match self {
            Self::Ambiguous(_) | Self::InvalidRequest(_) => false,
            Self::Contended | Self::Unavailable(_) | Self::Setup(_) => true,
            Self::Partial { source, .. } => source.may_be_repeated(),
        }
    }

    /// True if the failed correction, or after [`Partial`](Self::Partial) that of the bucket that
    /// failed, may have been made: without a permit or a key, the same call may make it twice.
    #[must_use]
    pub fn may_have_been_made(&self) -> bool {
        match self {
            Self::Ambiguous(_) => true,
            Self::Unavailable(source) => !source.is::<NotSent>(),
            Self::Partial { source, .. } => source.may_have_been_made(),
            Self::Contended | Self::InvalidRequest(_) | Self::Setup(_) => false,
        }
    }

    /// The store is unavailable, and no write was sent to it. A [`StoreFailure`] stays the source.
    pub(crate) fn not_sent(source: impl Into<BoxError>) -> Self {
        let source = source.into();
        let is_failure = source.is::<StoreFailure>();
        Self::Unavailable(if is_failure { source } else { NotSent(source).into() })
    }

    /// The error of a correction whose call failed. The call asked for no tokens, so no limit can
    /// be short.
    pub(crate) fn of_call(error: AcquireError) -> Self {
        match error {
            AcquireError::InvalidRequest(invalid) => invalid.into(),
            AcquireError::Setup(setup) => setup.into(),
            AcquireError::Unavailable(source) => Self::Unavailable(source),
            AcquireError::Contended { .. }
            | AcquireError::LimitExceeded(_)
            | AcquireError::NeverAdmissible(_) => Self::Contended,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_after_a_lost_one_is_not_called_silence() {
        let contended = AcquireError::Contended { attempts: 2 };
        let acquire = AcquireError::Unavailable(contended.into()).to_string();
        let adjust = AdjustError::Unavailable(AdjustError::Contended.into()).to_string();
        assert!(acquire.starts_with("an answer of the store was lost"), "{acquire}");
        assert_eq!(adjust, acquire);
        let silent = AdjustError::Unavailable("timed out".into()).to_string();
        assert!(silent.starts_with("the store did not answer"), "{silent}");
    }
}
