//! Builds a request: collects the amounts and limits, and checks them.

use std::time::Duration;

use sluicegate_core::{Amounts, EntityId, LIMITS_MAX, Millitokens, Resource};
use smol_str::SmolStr;

use crate::call::clamped_time;
use crate::check::checked_amounts;
use crate::error::{AcquireError, InvalidRequest, LimitExceeded, LimitStatus};
use crate::limit_set::{IntoLimits, LimitSet, NamedLimits};
use crate::limiter::Limiter;
use crate::store::{Cascade, Request};

/// A request for tokens. Awaiting it takes all the tokens, or none.
///
/// `L` is the limiter that is asked: [`Limiter::acquire`] makes it a `&Limiter`. `()` stands for no
/// limiter yet: such a request is only a description, and other code [binds](Self::bind) it to a
/// limiter.
#[must_use = "a request does nothing until it is awaited"]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcquireRequest<L> {
    pub(crate) limiter: L,
    entity: SmolStr,
    resource: SmolStr,
    /// The amount asked for of each limit, in millitokens, unchecked.
    pub(crate) amounts: Vec<(SmolStr, i128)>,
    pub(crate) terms: RequestTerms,
    /// The time for which the request waits for tokens.
    pub(crate) wait: Option<Duration>,
    pub(crate) deadline: Option<Duration>,
}

/// The limits and the parent that a request names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct RequestTerms {
    limits: NamedLimits,
    parent_limits: Option<NamedLimits>,
    cascade: Option<CascadeTo>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum CascadeTo {
    No,
    Parent(SmolStr),
}

impl AcquireRequest<()> {
    /// A request of `entity` for `resource`, for no tokens yet. Names are checked when it is
    /// awaited.
    pub fn new(entity: impl AsRef<str>, resource: impl AsRef<str>) -> Self {
        Self {
            limiter: (),
            entity: SmolStr::new(entity),
            resource: SmolStr::new(resource),
            amounts: Vec::new(),
            terms: RequestTerms::default(),
            wait: None,
            deadline: None,
        }
    }

    /// The same request for this limiter: `request.bind(&limiter).await`.
    pub fn bind<L>(self, limiter: L) -> AcquireRequest<L> {
        let Self { limiter: (), entity, resource, amounts, terms, wait, deadline } = self;
        AcquireRequest { limiter, entity, resource, amounts, terms, wait, deadline }
    }
}

impl<L> AcquireRequest<L> {
    /// The entity that asks.
    #[must_use]
    pub fn entity(&self) -> &str {
        &self.entity
    }

    /// The resource that it asks for.
    #[must_use]
    pub fn resource(&self) -> &str {
        &self.resource
    }

    /// Asks for `tokens` of a limit: from 1 to 10^15.
    pub fn consume(self, limit: impl AsRef<str>, tokens: i64) -> Self {
        self.add_amount(limit, i128::from(tokens) * 1_000)
    }

    /// Asks for thousandths of a token: from 1 to 10^18.
    pub fn consume_milli(self, limit: impl AsRef<str>, milli: i64) -> Self {
        self.add_amount(limit, milli.into())
    }

    /// Asks for the amounts of several limits, as a price book estimates them. Zeros are left out.
    pub fn consume_all(mut self, amounts: &Amounts) -> Self {
        let asked = amounts.iter().filter(|(_, amount)| **amount != Millitokens::ZERO);
        self.amounts.reserve(amounts.len());
        self.amounts
            .extend(asked.map(|(limit, amount)| (SmolStr::new(limit.as_str()), (*amount).into())));
        self
    }

    fn add_amount(mut self, limit: impl AsRef<str>, milli: i128) -> Self {
        self.amounts.push((SmolStr::new(limit), milli));
        self
    }

    /// Limits of the bucket, at most 40: a list, or a [`LimitSet`](crate::LimitSet) that was
    /// checked once. A limit named here wins over a stored one. If every requested limit is named
    /// here, an acquire does not read stored limits, with two exceptions: the bucket has no room
    /// for a requested limit (a stored limit may have been deleted, which makes room), or
    /// [`parent_limits`](Self::parent_limits) leaves out a requested limit.
    ///
    /// Use names of a fixed set: the bucket keeps every limit that a request ever named, 40 at
    /// most, and a write that refills the bucket writes all of them. A requested limit that does
    /// not fit is refused with [`InvalidRequest::BucketFull`]; other limits that do not fit are
    /// left out.
    pub fn limits(mut self, limits: impl IntoLimits) -> Self {
        limits.add_to(&mut self.terms.limits);
        self
    }

    pub(crate) fn without_default_limits(mut self) -> Self {
        self.terms.limits.exclude_defaults();
        self
    }

    /// Takes from this parent's bucket of the same resource too: from both or from none, as
    /// [`CascadeMode`](crate::settings::CascadeMode) says. The parent is not asked for a limit that
    /// it does not have.
    pub fn cascade_to(mut self, parent: impl AsRef<str>) -> Self {
        self.terms.cascade = Some(CascadeTo::Parent(SmolStr::new(parent)));
        self
    }

    /// Takes from no parent, whatever the entity's record in the table says. The record is not
    /// read.
    pub fn no_cascade(mut self) -> Self {
        self.terms.cascade = Some(CascadeTo::No);
        self
    }

    /// Limits of the parent's bucket, if they differ from the entity's own.
    pub fn parent_limits(mut self, limits: impl IntoLimits) -> Self {
        limits.add_to(self.terms.parent_limits.get_or_insert_default());
        self
    }

    /// Waits for the tokens if they come within this time, first come first served among the tasks
    /// of this limiter and its clones that wait for the same entity and resource. The first of them
    /// asks again when the `retry_after` of its refusal is over, and once a minute until then; if
    /// other callers use the bucket, it may have to wait again.
    pub fn wait_up_to(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// The most time for this call, and for each correction of its permit.
    /// [`LimiterBuilder::deadline`](crate::LimiterBuilder::deadline) says which time counts. This
    /// deadline also replaces the longer connect deadline of a process's first call.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(clamped_time(deadline));
        self
    }
}

impl Limiter {
    /// A request for tokens: name the amounts, then await it.
    ///
    /// # Panics
    /// Awaiting it panics outside a runtime of tokio with `enable_time`.
    pub fn acquire(
        &self,
        entity: impl AsRef<str>,
        resource: impl AsRef<str>,
    ) -> AcquireRequest<&Self> {
        AcquireRequest::new(entity, resource).bind(self)
    }
}

impl AcquireRequest<&Limiter> {
    /// The status of all limits for this request; takes nothing.
    ///
    /// # Errors
    /// As for awaiting it; a limit that is short is no error here.
    pub async fn peek(self) -> Result<Vec<LimitStatus>, AcquireError> {
        let limiter = self.limiter;
        let request = self.check()?;
        limiter.guard().peek(&request).await
    }

    /// The time until the tokens are available; zero: now, `None`: never.
    ///
    /// # Errors
    /// As for awaiting it; a limit that is short is no error here.
    pub async fn time_until_available(self) -> Result<Option<Duration>, AcquireError> {
        let mut limits = self.peek().await?;
        // A limit that the request does not name may be in debt; it does not count.
        limits.retain(|limit| limit.asked > Millitokens::ZERO);
        Ok(LimitExceeded::new(limits).retry_after)
    }

    /// The parent of all entities, if the limiter has one and the request names none.
    #[cfg(feature = "leasing")]
    pub(crate) fn common_parent(&self) -> Option<&EntityId> {
        match &self.limiter.options().cascade {
            Cascade::To(parent) if self.terms.cascade.is_none() => Some(parent),
            _ => None,
        }
    }

    /// The request with valid types. It may ask for nothing, as a peek does.
    fn check(self) -> Result<Request, InvalidRequest> {
        let entity = EntityId::try_from(self.entity)?;
        let resource = Resource::try_from(self.resource)?;
        let terms = self.terms;
        let limits = terms.limits.check(&self.limiter.options().limits)?;
        let none = LimitSet::default();
        let parent_limits =
            terms.parent_limits.as_ref().map(|named| named.check(&none)).transpose()?;
        let cascade = match terms.cascade {
            // The entity may be the limiter's common parent, which has no parent.
            None => match self.limiter.options().cascade.clone() {
                Cascade::To(parent) if parent == entity => Cascade::No,
                cascade => cascade,
            },
            Some(CascadeTo::No) => Cascade::No,
            Some(CascadeTo::Parent(parent)) => Cascade::To(EntityId::try_from(parent)?),
        };
        if cascade == Cascade::To(entity.clone()) {
            return Err(InvalidRequest::OwnParent(entity));
        }
        let amounts = checked_amounts(&self.amounts, |amount| amount > Millitokens::ZERO)?;
        if amounts.len() > LIMITS_MAX {
            return Err(InvalidRequest::TooManyLimits { count: amounts.len(), max: LIMITS_MAX });
        }
        let deadline = self.limiter.guard().call_deadline(self.deadline);
        Ok(Request { entity, resource, amounts, limits, parent_limits, cascade, deadline })
    }
}

impl<'a> AcquireRequest<&'a Limiter> {
    /// The limiter, and the checked request.
    ///
    /// # Errors
    /// The first mistake; [`InvalidRequest::Empty`] for no tokens.
    pub(crate) fn into_request(self) -> Result<(&'a Limiter, Request), InvalidRequest> {
        let limiter = self.limiter;
        let request = self.check()?;
        if request.amounts.is_empty() {
            return Err(InvalidRequest::Empty);
        }
        Ok((limiter, request))
    }
}
