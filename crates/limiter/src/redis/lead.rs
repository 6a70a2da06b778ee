//! Acquires tokens: for one request, or for several of the same shape in one call.
//!
//! If no call of its shape is in flight, a request leads and is sent at once. Otherwise it waits. A
//! leader includes it in a call, or it leads next, for all requests that wait.
//!
//! One call asks for the sum of the requests that share it, under one id. The script decides it as
//! any acquire, and the leader repeats it as any acquire if the answer is lost. If the sum does not
//! fit, the leader looks at the image of the buckets. It refuses the requests that do not fit
//! alone, and sends the first that fit together.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::future::BoxFuture;
use sluicegate_core::{Amounts, EpochMillis, RequestId, WritePath};
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};

use super::RedisStore;
use super::acquire::{Decision, Failure, statuses};
use super::script::ACQUIRE;
use super::script_bucket::{Image, ScriptBucket};
use super::shared_calls::{CallPlace, CallTurn, CallWaiter, Shape, SharedCall};
use crate::call::{CallContext, new_id};
use crate::clock::Clock;
use crate::cost::Cost;
use crate::error::{AcquireError, LimitStatus};
use crate::store::{Correction, Grant, Request};

/// A request waits this time for a shared call, or a quarter of its own time. Then it is sent
/// alone: the server may be far away, or the leader may be a future that its owner does not poll.
const PATIENCE: Duration = Duration::from_millis(250);

/// Once the system's clock has moved on by this much, a [`SteppedClock`] moves on with it.
const STOPPED_MIN: Duration = Duration::from_secs(1);

/// A request that may share a call.
struct SharedRequest<'a> {
    store: &'a RedisStore,
    shape: Arc<Shape>,
    amounts: &'a Amounts,
    /// False: it is sent alone.
    may_share: bool,
    time: Duration,
    clock: &'a dyn Clock,
}

/// A request that waits. If it is dropped, it gives back its grant and passes the lead on.
struct WaitingRequest<'a> {
    request: &'a SharedRequest<'a>,
    place: CallPlace,
}

/// A request that leads. If it is dropped, it passes on the lead, and a call in flight too.
struct CallLeader<'a> {
    request: &'a SharedRequest<'a>,
    call: SharedCall,
    is_in_flight: bool,
    /// True if its call was not answered in time.
    has_timed_out: bool,
}

impl<'a> CallLeader<'a> {
    fn new(request: &'a SharedRequest<'a>, call: SharedCall) -> Self {
        Self { request, call, is_in_flight: false, has_timed_out: false }
    }
}

impl RedisStore {
    pub(super) async fn take_shared(
        &self,
        request: &Request,
        targets: Vec<ScriptBucket>,
        clock: &dyn Clock,
    ) -> Result<Grant, AcquireError> {
        let (amounts, time) = (&request.amounts, request.deadline);
        let mut context = CallContext::new(clock, time);
        let shape = Shape::new(targets, amounts);
        let place = self.shared_calls.enter(&shape, amounts);
        let mut shared =
            SharedRequest { store: self, shape, amounts, may_share: true, time, clock };
        let Some(place) = place else {
            return shared.lead(SharedCall::default(), &mut context).await;
        };
        let turn = WaitingRequest { request: &shared, place }.turn(context.deadline).await;
        match turn {
            Some(CallTurn::Done(result)) => result,
            Some(CallTurn::Lead(call)) => {
                let is_new = !call.is_in_doubt;
                let call =
                    if is_new { self.shared_calls.gather(&shared.shape, amounts) } else { call };
                shared.lead(call, &mut context).await
            }
            None => {
                shared.may_share = false;
                shared.lead(SharedCall::default(), &mut context).await
            }
        }
    }
}

impl SharedRequest<'_> {
    /// Sends calls until its own request is decided.
    async fn lead(
        &self,
        call: SharedCall,
        context: &mut CallContext<'_>,
    ) -> Result<Grant, AcquireError> {
        let mut leading = CallLeader::new(self, call);
        loop {
            match leading.decided(context).await? {
                Decision::Granted(images, path) => {
                    return Ok(leading.granted(&images, path, context.cost.attempts));
                }
                Decision::Short(images, now) => {
                    if let Some(refusal) = leading.short(&images, now) {
                        return Err(refusal);
                    }
                    context.id = new_id();
                }
            }
        }
    }

    fn grant(&self, amounts: &Amounts, images: &[Image], path: WritePath, attempts: u32) -> Grant {
        let parts = self
            .shape
            .targets
            .iter()
            .zip(images)
            .map(|(target, image)| target.part(amounts, image));
        // A parent that has none of the limits was not asked.
        let parts = parts.filter(|part| !part.amounts.is_empty()).collect();
        Grant { parts, cost: Cost { path: Some(path), attempts, ..Cost::default() } }
    }

    /// Gives tokens back in a background task. For a call in doubt it first asks for the result.
    ///
    /// Without a runtime, or if the correction fails, the tokens stay taken.
    fn return_later(&self, in_doubt: Option<RequestId>, amounts: Amounts) {
        let Ok(runtime) = Handle::try_current() else { return };
        if amounts.is_empty() {
            return;
        }
        let (store, shape) = (self.store.share(), self.shape.clone());
        let (deadline, clock) = (self.time, SteppedClock::at(self.clock.now()));
        runtime.spawn(async move {
            let targets = &shape.targets;
            if let Some(id) = in_doubt {
                let mut context = CallContext::under(id, &clock, deadline);
                let reply = store.repeat(&mut context, &ACQUIRE, targets, |context, in_doubt| {
                    let sent = store.sent(&clock, 1 + in_doubt);
                    store.take_or_correct_call(targets, &amounts, &context.id, sent)
                });
                let decision = reply.await.ok().map(|reply| store.decision(reply, targets));
                if !matches!(decision, Some(Ok(Decision::Granted(..)))) {
                    return;
                }
            }
            let amounts = &-&amounts;
            for ScriptBucket { bucket, configuration } in targets {
                let id = &new_id();
                let correction =
                    Correction { id, bucket, amounts, configuration, mark: None, deadline };
                let _ = store.correct(&correction, &clock).await;
            }
        });
    }
}

impl WaitingRequest<'_> {
    /// Waits for the leader. `None`: the request must be sent alone.
    async fn turn(mut self, deadline: Instant) -> Option<CallTurn> {
        let left = deadline.saturating_duration_since(Instant::now());
        let patient = Instant::now() + PATIENCE.min(left / 4);
        if let Ok(turn) = timeout_at(patient, &mut self.place.receiver).await {
            return turn.ok();
        }
        if self.request.store.shared_calls.leave(&self.request.shape, &self.place) {
            return None;
        }
        match timeout_at(deadline, &mut self.place.receiver).await {
            Ok(turn) => turn.ok(),
            Err(elapsed) => Some(CallTurn::Done(Err(AcquireError::Unavailable(elapsed.into())))),
        }
    }
}

impl Drop for WaitingRequest<'_> {
    fn drop(&mut self) {
        self.place.receiver.close();
        match self.place.receiver.try_recv() {
            Ok(CallTurn::Done(Ok(_))) => {
                self.request.return_later(None, self.request.amounts.clone());
            }
            Ok(CallTurn::Lead(call)) => {
                drop(CallLeader::new(self.request, call));
            }
            _ => {}
        }
    }
}

impl CallLeader<'_> {
    /// Sends the call until the server answers.
    async fn decided(&mut self, context: &mut CallContext<'_>) -> Result<Decision, AcquireError> {
        let SharedRequest { store, shape, amounts, .. } = self.request;
        let sum = self.call.sum(amounts);
        match &self.call.id {
            Some(id) => context.id = id.clone(),
            None => self.call.id = Some(context.id.clone()),
        }
        let before = u32::from(self.call.is_in_doubt);
        self.is_in_flight = true;
        let reply = store.repeat(context, &ACQUIRE, &shape.targets, |context, in_doubt| {
            let sent = store.sent(context.clock, before + in_doubt);
            store.take_or_correct_call(&shape.targets, &sum, &context.id, sent)
        });
        let reply = reply.await;
        self.is_in_flight = false;
        let reply = reply.map_err(|failure| {
            self.call.is_in_doubt |= failure.in_doubt;
            self.has_timed_out = true;
            failure.error
        })?;
        self.call.is_in_doubt = false;
        store.decision(reply, &shape.targets).map_err(|failure| match failure {
            Failure::Error(error) => error,
            Failure::TableError(table_error) => context.fail_with(table_error),
        })
    }

    /// Grants all requests of the call.
    fn granted(&mut self, images: &[Image], path: WritePath, attempts: u32) -> Grant {
        let request = self.request;
        let mut gone = std::mem::take(&mut self.call.gone);
        for CallWaiter { amounts, sender, .. } in self.call.members.drain(..) {
            let grant = request.grant(&amounts, images, WritePath::Claim, attempts);
            if sender.send(CallTurn::Done(Ok(grant))).is_err() {
                gone += &amounts;
            }
        }
        request.return_later(None, gone);
        request.grant(request.amounts, images, path, attempts)
    }

    /// Nothing was taken. This refuses members that do not fit alone, keeps the first that fit
    /// together, and puts the others back. Returns the leader's own refusal.
    fn short(&mut self, images: &[Image], now: EpochMillis) -> Option<AcquireError> {
        let SharedRequest { store, shape, amounts: own, .. } = self.request;
        let SharedCall { members, gone, .. } = std::mem::take(&mut self.call);
        let statuses = |amounts: &Amounts| statuses(&shape.targets, images, amounts, now);
        let is_short = |limits: &[LimitStatus]| limits.iter().any(LimitStatus::is_violated);
        let (limits, is_alone) = (statuses(own), members.is_empty() && gone.is_empty());
        let mut fitting = Vec::with_capacity(members.len());
        let mut has_refused = false;
        for member in members {
            let limits = statuses(&member.amounts);
            if is_short(&limits) {
                has_refused = true;
                // A caller that left gets no refusal.
                let _ = member.sender.send(CallTurn::Done(Err(AcquireError::refused(limits))));
            } else {
                fitting.push(member);
            }
        }
        if is_alone || is_short(&limits) {
            self.call.members = fitting;
            return Some(AcquireError::refused(limits));
        }
        let (mut sum, mut others) = ((*own).clone(), Vec::new());
        for member in fitting {
            let mut with = sum.clone();
            with += &member.amounts;
            if is_short(&statuses(&with)) {
                others.push(member);
            } else {
                sum = with;
                self.call.members.push(member);
            }
        }
        // By the image the sum fits, but the script refused it. Send the leader's request alone.
        if !has_refused && others.is_empty() {
            others = std::mem::take(&mut self.call.members);
        }
        store.shared_calls.put_back(shape, others);
        None
    }
}

impl Drop for CallLeader<'_> {
    fn drop(&mut self) {
        let request = self.request;
        let mut call = std::mem::take(&mut self.call);
        call.is_in_doubt |= self.is_in_flight;
        if call.is_in_doubt {
            call.gone += request.amounts;
        }
        let left = if request.may_share {
            request.store.shared_calls.pass(&request.shape, call)
        } else {
            Some(call).filter(|call| call.is_in_doubt)
        };
        // A server that did not answer in time is not asked again in the background.
        if let Some(SharedCall { id, gone, .. }) = left.filter(|_| !self.has_timed_out) {
            request.return_later(id, gone);
        }
    }
}

/// A clock for a task that outlives the caller's clock. It stands at the time at which it was made.
/// Once [`STOPPED_MIN`] has passed, it adds the passed time: the process may have been stopped, and a
/// write with an old time would earn refill twice.
struct SteppedClock {
    made_at: EpochMillis,
    by_system: SystemTime,
}

impl SteppedClock {
    fn at(made_at: EpochMillis) -> Self {
        Self { made_at, by_system: SystemTime::now() }
    }
}

impl Clock for SteppedClock {
    fn now(&self) -> EpochMillis {
        let passed = self.by_system.elapsed().unwrap_or_default();
        let passed = if passed < STOPPED_MIN { Duration::ZERO } else { passed };
        let millis = i64::try_from(passed.as_millis()).unwrap_or(i64::MAX);
        let now = EpochMillis::new(self.made_at.get().saturating_add(millis));
        now.unwrap_or(EpochMillis::MAX)
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}
