//! Making a request: what is said is collected, checked once, and sent.

use std::future::IntoFuture;
use std::time::Duration;

use futures_util::future::BoxFuture;
use sluicegate_core::{EntityId, LIMITS_MAX, Millitokens, Resource};
use smol_str::SmolStr;

use super::send::{attempt, wait_for};
use crate::call::as_deadline;
use crate::check::{amounts, rules};
use crate::clock::Clock;
use crate::error::{AcquireError, InvalidRequest, LimitExceeded, LimitStatus};
use crate::guard::Granted;
use crate::limit::Limit;
use crate::limiter::{Limiter, Mode};
use crate::permit::Permit;
use crate::store::{Cascade, Request, Store};

/// A request for tokens. Awaiting it takes everything that is asked, or nothing.
///
/// `L` is the limiter that is asked, a `&Limiter` that [`Limiter::acquire`] puts there. `()` is none
/// yet: such a request says what is wanted, and somebody else awaits it.
#[must_use = "a request does nothing until it is awaited"]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcquireRequest<L> {
    limiter: L,
    entity: SmolStr,
    resource: SmolStr,
    amounts: Vec<(SmolStr, i128)>,
    limits: Vec<Limit>,
    parent_limits: Option<Vec<Limit>>,
    cascade: Option<CascadeTo>,
    wait: Option<Duration>,
    deadline: Option<Duration>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum CascadeTo {
    No,
    Parent(SmolStr),
}

impl AcquireRequest<()> {
    /// Asks for nothing yet, on behalf of `entity` of `resource`. Names are checked when it is
    /// awaited.
    pub fn new(entity: impl AsRef<str>, resource: impl AsRef<str>) -> Self {
        Self {
            limiter: (),
            entity: SmolStr::new(entity),
            resource: SmolStr::new(resource),
            amounts: Vec::new(),
            limits: Vec::new(),
            parent_limits: None,
            cascade: None,
            wait: None,
            deadline: None,
        }
    }

    pub(crate) fn of<L>(self, limiter: L) -> AcquireRequest<L> {
        AcquireRequest {
            limiter,
            entity: self.entity,
            resource: self.resource,
            amounts: self.amounts,
            limits: self.limits,
            parent_limits: self.parent_limits,
            cascade: self.cascade,
            wait: self.wait,
            deadline: self.deadline,
        }
    }
}

impl<L> AcquireRequest<L> {
    /// Who asks.
    #[must_use]
    pub fn entity(&self) -> &str {
        &self.entity
    }

    /// For what.
    #[must_use]
    pub fn resource(&self) -> &str {
        &self.resource
    }

    /// Asks for `tokens` of a limit: from 1 to 10^15.
    pub fn consume(self, limit: impl AsRef<str>, tokens: i64) -> Self {
        self.ask(limit, i128::from(tokens) * 1_000)
    }

    /// Asks for thousandths of a token: from 1 to 10^18.
    pub fn consume_milli(self, limit: impl AsRef<str>, milli: i64) -> Self {
        self.ask(limit, milli.into())
    }

    fn ask(mut self, limit: impl AsRef<str>, milli: i128) -> Self {
        self.amounts.push((SmolStr::new(limit), milli));
        self
    }

    /// Limits of the bucket, at most 40. They win over stored ones in what they name, and nothing
    /// is read from the table when they name all that is asked.
    ///
    /// Use names of a fixed set: the bucket keeps every limit that it ever had, 40 at most, and
    /// each of them is claimed with every refill. One that is asked for and does not fit is refused
    /// with [`InvalidRequest::BucketFull`]; one that is not asked for is left out.
    pub fn limits(mut self, limits: impl IntoIterator<Item = Limit>) -> Self {
        self.limits.extend(limits);
        self
    }

    /// Takes from this parent's bucket of the same resource too, all or nothing over both. A limit
    /// that the parent does not have is not asked of it.
    pub fn cascade_to(mut self, parent: impl AsRef<str>) -> Self {
        self.cascade = Some(CascadeTo::Parent(SmolStr::new(parent)));
        self
    }

    /// Takes from no parent, whatever the table says, and does not read it.
    pub fn no_cascade(mut self) -> Self {
        self.cascade = Some(CascadeTo::No);
        self
    }

    /// Limits of the parent's bucket, where they differ from the entity's own.
    pub fn parent_limits(mut self, limits: impl IntoIterator<Item = Limit>) -> Self {
        self.parent_limits.get_or_insert_default().extend(limits);
        self
    }

    /// Waits for the tokens when they come within this time, first come first served among the
    /// waiting tasks of this limiter and its clones. The wait is the exact one of the refusal; with
    /// others on the bucket it may have to be repeated.
    pub fn wait_up_to(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// How long this call may take, and each correction of its lease; waiting for tokens is not
    /// counted. It holds for the first call of a process, too.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(as_deadline(deadline));
        self
    }
}

impl<S: Store, C: Clock> Limiter<S, C> {
    /// A request for tokens: name the amounts, then await it.
    pub fn acquire(
        &self,
        entity: impl AsRef<str>,
        resource: impl AsRef<str>,
    ) -> AcquireRequest<&Self> {
        AcquireRequest::new(entity, resource).of(self)
    }
}

impl<S: Store, C: Clock> AcquireRequest<&Limiter<S, C>> {
    /// How all limits stand to this request, without taking anything.
    ///
    /// # Errors
    /// As for awaiting it; a limit that is short is no error here.
    pub async fn peek(self) -> Result<Vec<LimitStatus>, AcquireError> {
        let limiter = self.limiter;
        let request = self.check()?;
        limiter.guard().look(&request).await
    }

    /// How long until what is asked can be had; zero: at once, `None`: never.
    ///
    /// # Errors
    /// As for awaiting it; a limit that is short is no error here.
    pub async fn time_until_available(self) -> Result<Option<Duration>, AcquireError> {
        Ok(LimitExceeded::new(self.peek().await?).retry_after)
    }

    fn check(self) -> Result<Request, InvalidRequest> {
        let entity = EntityId::try_from(self.entity)?;
        let resource = Resource::try_from(self.resource)?;
        let limits = rules(&self.limits)?;
        let parent_limits = self.parent_limits.as_deref().map(rules).transpose()?;
        let cascade = match self.cascade {
            None => self.limiter.options().cascade.clone(),
            Some(CascadeTo::No) => Cascade::No,
            Some(CascadeTo::Parent(parent)) => Cascade::To(EntityId::try_from(parent)?),
        };
        if cascade == Cascade::To(entity.clone()) {
            return Err(InvalidRequest::OwnParent(entity));
        }
        let amounts = amounts(&self.amounts, |amount| amount > Millitokens::ZERO)?;
        if amounts.len() > LIMITS_MAX {
            return Err(InvalidRequest::TooManyLimits { count: amounts.len(), max: LIMITS_MAX });
        }
        let deadline = self.limiter.guard().call_time(self.deadline);
        Ok(Request { entity, resource, amounts, limits, parent_limits, cascade, deadline })
    }

    async fn send(self) -> Result<Permit<S, C>, AcquireError> {
        let (wait, correction_time) =
            (self.wait, self.limiter.guard().correction_time(self.deadline));
        let (limiter, request) = self.checked()?;
        let result = match wait {
            Some(wait) => wait_for(limiter, &request, wait).await,
            None => attempt(limiter, &request).await,
        };
        let refused = match result {
            Ok(Granted::Store(grant)) => {
                return Ok(Permit::granted(limiter, correction_time, grant));
            }
            Ok(Granted::Degraded(degraded, parts)) => {
                return Ok(Permit::degraded_by(limiter, correction_time, degraded, parts));
            }
            Err(AcquireError::LimitExceeded(exceeded)) if limiter.mode() == Mode::Shadow => {
                exceeded
            }
            Err(AcquireError::NeverAdmissible(never)) if limiter.mode() == Mode::Shadow => {
                LimitExceeded::new(never.limits)
            }
            Err(error) => return Err(error),
        };
        limiter.counters().shadowed.increment();
        Ok(Permit::shadow(limiter, correction_time, refused))
    }
}

impl<'a, S: Store, C: Clock> AcquireRequest<&'a Limiter<S, C>> {
    /// How long a call may take, if that was said.
    pub(crate) const fn said_deadline(&self) -> Option<Duration> {
        self.deadline
    }

    /// The limiter, and a request for at least something.
    pub(crate) fn checked(self) -> Result<(&'a Limiter<S, C>, Request), InvalidRequest> {
        let limiter = self.limiter;
        let request = self.check()?;
        if request.amounts.is_empty() {
            return Err(InvalidRequest::Empty);
        }
        Ok((limiter, request))
    }
}

impl<'a, S: Store, C: Clock> IntoFuture for AcquireRequest<&'a Limiter<S, C>> {
    type Output = Result<Permit<S, C>, AcquireError>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}
