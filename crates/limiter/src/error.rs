//! Why tokens were not granted, sorted by what the caller can do about it.

use std::time::Duration;

pub use sluicegate_core::LimitStatus;
use sluicegate_core::{EntityId, InTokens, LimitName, Millitokens, NameError, Wait};

use crate::table::{SetupError, StoreFailure};
use crate::{BoxError, InvalidLimit};

/// Why an acquire granted nothing. Whatever it says, no balance changed, except where
/// [`Unavailable`](Self::Unavailable) and [`Contended`](Self::Contended) say otherwise.
#[derive(Debug, thiserror::Error)]
pub enum AcquireError {
    /// A limit is short at this moment: a gateway answers 429 with `Retry-After`.
    #[error(transparent)]
    LimitExceeded(#[from] LimitExceeded),
    /// More was asked than the bucket can ever hold: 400, because waiting does not help.
    #[error(transparent)]
    NeverAdmissible(#[from] NeverAdmissible),
    /// Other writers, or a throttled store, were in the way until attempts or time ran out: 503,
    /// the same request may pass in a moment. A write that the deadline cut off may stand; then the
    /// tokens are taken, never given twice.
    #[error(
        "the bucket was contended or the store throttled for {attempts} attempts: ask again in a moment"
    )]
    Contended {
        /// Writes attempted.
        attempts: u32,
    },
    /// The store did not answer in time, or answered that it failed (the source is a
    /// [`StoreFailure`](crate::StoreFailure) then): 503. A write whose answer was lost may stand; then
    /// the tokens are taken, never given twice.
    #[error("{}", unavailable(.0))]
    Unavailable(#[source] BoxError),
    /// The request makes no sense: 500, because the program that made it is wrong; 400 where what
    /// is wrong came from a client, as names of entities and amounts may. No call was made, unless a
    /// limit is unknown to the table too or the bucket is full of others; nothing was taken.
    #[error(transparent)]
    InvalidRequest(#[from] InvalidRequest),
    /// Permissions, the table or an item must be repaired first: 500.
    #[error(transparent)]
    Setup(#[from] SetupError),
}

fn unavailable(source: &BoxError) -> &'static str {
    if source.is::<StoreFailure>() {
        "the store answered that it failed: look at what it said, and at its health"
    } else {
        "the store did not answer: check the network, the endpoint and the store's health"
    }
}

/// At least one limit of the request is short.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitExceeded {
    /// Every limit of the request; [`LimitStatus::is_violated`] marks those that are short.
    pub limits: Vec<LimitStatus>,
    /// When to ask again: at this instant every limit has what is asked, one millisecond before
    /// some limit has not, unless others take or give meanwhile. `None`: a quota without refill, or,
    /// in shadow mode, more than a full bucket holds.
    pub retry_after: Option<Duration>,
}

impl LimitExceeded {
    pub(crate) fn new(limits: Vec<LimitStatus>) -> Self {
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

/// More was asked of some limit than its bucket can ever hold.
#[derive(Debug, Clone, PartialEq, Eq)]
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
            let (asked, burst) = (InTokens(limit.asked), InTokens(limit.rule.burst()));
            write!(
                f,
                "{comma} {} of {} asked for {asked}, a full bucket holds {burst}",
                limit.limit, limit.entity
            )?;
        }
        f.write_str("; ask for less or raise the limit's burst")
    }
}

/// A request that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRequest {
    /// An entity or resource has a name that keys cannot carry.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A limit has a name that attributes cannot carry.
    #[error(transparent)]
    LimitName(NameError),
    /// A limit that came with the request cannot be.
    #[error(transparent)]
    Limit(#[from] InvalidLimit),
    /// Nothing is asked.
    #[error("nothing is asked: consume at least one limit")]
    Empty,
    /// An amount is zero, negative or too large.
    #[error("{limit}: {milli} millitokens cannot be asked: give from 1 to {}", Millitokens::MAX)]
    Amount {
        /// Of which limit.
        limit: LimitName,
        /// How much was asked, in millitokens.
        milli: i128,
    },
    /// A limit is named twice in one request.
    #[error("limit {0} is named twice")]
    DuplicateLimit(LimitName),
    /// More limits than one item can be asked about in one expression.
    #[error("{count} limits: a bucket can have at most {max}")]
    TooManyLimits {
        /// How many.
        count: usize,
        /// How many are allowed.
        max: usize,
    },
    /// The bucket has as many limits as it can have, and this one is not among them. A gateway
    /// answers 500, or 400 where a client names limits. Stored limits that are deleted leave the
    /// bucket.
    #[error(
        "the bucket of {entity} has {max} limits, which is the most, and {limit} is not among them: name limits from a fixed set; those that nobody uses leave when they are stored and deleted"
    )]
    BucketFull {
        /// Whose bucket.
        entity: EntityId,
        /// The limit that it has no room for.
        limit: LimitName,
        /// How many it has at most.
        max: usize,
    },
    /// Neither the request nor the table nor the bucket knows the limit.
    #[error("unknown limit {0}: pass it with `limits` or store it")]
    UnknownLimit(LimitName),
    /// A limit or an amount that the store cannot count exactly.
    #[error("{limit}: {what} is {value}: this store counts exactly up to {max}")]
    BeyondStore {
        /// Of which limit.
        limit: LimitName,
        /// Which quantity, with its unit.
        what: &'static str,
        /// How much it is.
        value: i128,
        /// The most that it can be.
        max: i128,
    },
    /// A cluster keeps the buckets of these two on different nodes, and no script sees both.
    #[error("{parent} is not the parent of {entity} that the store knows: say who is whose parent")]
    CrossSlot {
        /// Who asked.
        entity: EntityId,
        /// The parent that the request named.
        parent: EntityId,
    },
    /// An entity cannot be its own parent.
    #[error("{0} cannot be its own parent")]
    OwnParent(EntityId),
}

/// Why a correction did not happen, or may not have.
///
/// Where it [may be repeated](Self::may_be_repeated) it counts as not made: the same call completes
/// it in each bucket.
#[derive(Debug, thiserror::Error)]
pub enum AdjustError {
    /// The answer was lost. Either the item no longer shows whether the tokens were given back, or the
    /// time ran out first. Do not repeat it: the attempt may have landed or may still land.
    #[error("the answer was lost: the tokens may or may not have been given back")]
    Ambiguous(#[source] BoxError),
    /// Others were in the way until time ran out; nothing was done.
    #[error("the bucket was contended or the store throttled: adjust again in a moment")]
    Contended,
    /// The store did not answer in time, or answered that it failed (the source is a
    /// [`StoreFailure`](crate::StoreFailure) then). What was to be taken may have been; the lease
    /// sends it again as the same write, which is done once.
    #[error("{}", unavailable(.0))]
    Unavailable(#[source] BoxError),
    /// The correction makes no sense.
    #[error(transparent)]
    InvalidRequest(#[from] InvalidRequest),
    /// Permissions, the table or an item must be repaired first; nothing was done.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// Of a child's and its parent's bucket one was corrected and the other was not.
    #[error("the bucket of {corrected} was corrected, that of {failed} was not: {source}")]
    Partial {
        /// Whose bucket was corrected; or may have been, and is not corrected again.
        corrected: EntityId,
        /// Whose bucket was not, or may not have been.
        failed: EntityId,
        /// Why not.
        source: Box<AdjustError>,
    },
}

impl AdjustError {
    /// Whether the same call on the same lease completes what is missing. Otherwise the correction
    /// counts as made ([`Ambiguous`](Self::Ambiguous)) or never can be.
    #[must_use]
    pub fn may_be_repeated(&self) -> bool {
        match self {
            Self::Ambiguous(_) | Self::InvalidRequest(_) => false,
            Self::Contended | Self::Unavailable(_) | Self::Setup(_) => true,
            Self::Partial { source, .. } => source.may_be_repeated(),
        }
    }
}
