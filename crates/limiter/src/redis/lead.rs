//! Acquires tokens: for one request, or for several of the same shape in one call.
//!
//! If no call of its shape is in flight, a request leads and is sent at once. Otherwise it waits. A
//! leader includes it in a call, or it leads next, for all requests that wait.
//!
//! One call asks for the sum of a batch under one id. The script decides it as any acquire, and the
//! leader repeats it as any acquire if the answer is lost. If the sum does not fit, the leader looks
//! at the image of the buckets. It refuses the requests that do not fit alone, and sends the first
//! that fit together.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use sluicegate_core::{Amounts, EpochMillis, RequestId, WritePath};
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};

use super::RedisStore;
use super::acquire::{Decision, Failure, statuses};
use super::batches::{Batch, BatchPlace, BatchTurn, BatchWaiter, Shape};
use super::script::ACQUIRE;
use super::script_bucket::{Image, ScriptBucket};
use crate::call::{CallContext, new_id};
use crate::clock::Clock;
use crate::cost::Cost;
use crate::error::{AcquireError, LimitStatus};
use crate::store::{Correction, Grant, Request};

/// A request waits this time for a batch, or a quarter of its own time. Then it is sent alone: the
/// server may be far away, or the leader may be a future that its owner does not poll.
const PATIENCE: Duration = Duration::from_millis(250);

/// A request that may share a call.
struct BatchRequest<'a> {
    store: &'a RedisStore,
    shape: Arc<Shape>,
    amounts: &'a Amounts,
    /// False: it is sent alone.
    may_share: bool,
    time: Duration,
    now: EpochMillis,
}

/// A request that waits. If it is dropped, it gives back its grant and passes the lead on.
struct WaitingRequest<'a> {
    request: &'a BatchRequest<'a>,
    place: BatchPlace,
}

/// A request that leads. If it is dropped, it passes on the lead, and a call in flight too.
struct BatchLeader<'a> {
    request: &'a BatchRequest<'a>,
    batch: Batch,
    is_in_flight: bool,
    /// True if its call was not answered in time.
    has_timed_out: bool,
}

impl<'a> BatchLeader<'a> {
    fn new(request: &'a BatchRequest<'a>, batch: Batch) -> Self {
        Self { request, batch, is_in_flight: false, has_timed_out: false }
    }
}

impl RedisStore {
    pub(super) async fn take_together(
        &self,
        request: &Request,
        targets: Vec<ScriptBucket>,
        clock: &dyn Clock,
    ) -> Result<Grant, AcquireError> {
        let (amounts, time) = (&request.amounts, request.deadline);
        let mut run = CallContext::new(clock, time);
        let shape = Shape::new(targets, amounts);
        let place = self.batches.enter(&shape, amounts);
        let mut shared =
            BatchRequest { store: self, shape, amounts, may_share: true, time, now: run.began };
        let Some(place) = place else { return shared.lead(Batch::default(), &mut run).await };
        let turn = WaitingRequest { request: &shared, place }.turn(run.deadline).await;
        match turn {
            Some(BatchTurn::Done(result)) => result,
            Some(BatchTurn::Lead(batch)) => {
                let is_new = !batch.is_in_doubt;
                let batch =
                    if is_new { self.batches.gather(&shared.shape, amounts) } else { batch };
                shared.lead(batch, &mut run).await
            }
            None => {
                shared.may_share = false;
                shared.lead(Batch::default(), &mut run).await
            }
        }
    }
}

impl BatchRequest<'_> {
    /// Sends batches until its own request is decided.
    async fn lead(&self, batch: Batch, run: &mut CallContext<'_>) -> Result<Grant, AcquireError> {
        let mut leading = BatchLeader::new(self, batch);
        loop {
            match leading.decided(run).await? {
                Decision::Granted(images, path) => {
                    return Ok(leading.granted(&images, path, run.cost.attempts));
                }
                Decision::Short(images, now) => {
                    if let Some(refusal) = leading.short(&images, now) {
                        return Err(refusal);
                    }
                    run.id = new_id();
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
        let (deadline, clock) = (self.time, FixedClock(self.now));
        runtime.spawn(async move {
            let targets = &shape.targets;
            if let Some(id) = in_doubt {
                let mut run = CallContext::under(id, &clock, deadline);
                let reply = store.repeat(&mut run, &ACQUIRE, targets, |run, in_doubt| {
                    let sent = store.sent(&clock, 1 + in_doubt);
                    store.take_or_correct_call(targets, &amounts, &run.id, sent)
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
    async fn turn(mut self, deadline: Instant) -> Option<BatchTurn> {
        let left = deadline.saturating_duration_since(Instant::now());
        let patient = Instant::now() + PATIENCE.min(left / 4);
        if let Ok(turn) = timeout_at(patient, &mut self.place.receiver).await {
            return turn.ok();
        }
        if self.request.store.batches.leave(&self.request.shape, &self.place) {
            return None;
        }
        match timeout_at(deadline, &mut self.place.receiver).await {
            Ok(turn) => turn.ok(),
            Err(elapsed) => Some(BatchTurn::Done(Err(AcquireError::Unavailable(elapsed.into())))),
        }
    }
}

impl Drop for WaitingRequest<'_> {
    fn drop(&mut self) {
        self.place.receiver.close();
        match self.place.receiver.try_recv() {
            Ok(BatchTurn::Done(Ok(_))) => {
                self.request.return_later(None, self.request.amounts.clone());
            }
            Ok(BatchTurn::Lead(batch)) => {
                drop(BatchLeader::new(self.request, batch));
            }
            _ => {}
        }
    }
}

impl BatchLeader<'_> {
    /// Sends the batch until the server answers.
    async fn decided(&mut self, run: &mut CallContext<'_>) -> Result<Decision, AcquireError> {
        let BatchRequest { store, shape, amounts, .. } = self.request;
        let sum = self.batch.sum(amounts);
        match &self.batch.id {
            Some(id) => run.id = id.clone(),
            None => self.batch.id = Some(run.id.clone()),
        }
        let before = u32::from(self.batch.is_in_doubt);
        self.is_in_flight = true;
        let reply = store.repeat(run, &ACQUIRE, &shape.targets, |run, in_doubt| {
            let sent = store.sent(run.clock, before + in_doubt);
            store.take_or_correct_call(&shape.targets, &sum, &run.id, sent)
        });
        let reply = reply.await;
        self.is_in_flight = false;
        let reply = reply.map_err(|failure| {
            self.batch.is_in_doubt |= failure.in_doubt;
            self.has_timed_out = true;
            failure.error
        })?;
        self.batch.is_in_doubt = false;
        store.decision(reply, &shape.targets).map_err(|failure| match failure {
            Failure::Error(error) => error,
            Failure::TableError(table_error) => run.end(table_error),
        })
    }

    /// Grants the whole batch.
    fn granted(&mut self, images: &[Image], path: WritePath, attempts: u32) -> Grant {
        let request = self.request;
        let mut gone = std::mem::take(&mut self.batch.gone);
        for BatchWaiter { amounts, sender, .. } in self.batch.members.drain(..) {
            let grant = request.grant(&amounts, images, WritePath::Normal, attempts);
            if sender.send(BatchTurn::Done(Ok(grant))).is_err() {
                gone += &amounts;
            }
        }
        request.return_later(None, gone);
        request.grant(request.amounts, images, path, attempts)
    }

    /// Nothing was taken. This refuses members that do not fit alone, keeps the first that fit
    /// together, and puts the others back. Returns the leader's own refusal.
    fn short(&mut self, images: &[Image], now: EpochMillis) -> Option<AcquireError> {
        let BatchRequest { store, shape, amounts: own, .. } = self.request;
        let Batch { members, gone, .. } = std::mem::take(&mut self.batch);
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
                let _ = member.sender.send(BatchTurn::Done(Err(AcquireError::refused(limits))));
            } else {
                fitting.push(member);
            }
        }
        if is_alone || is_short(&limits) {
            self.batch.members = fitting;
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
                self.batch.members.push(member);
            }
        }
        // By the image the batch fits, but the script refused it. Send the leader's request alone.
        if !has_refused && others.is_empty() {
            others = std::mem::take(&mut self.batch.members);
        }
        store.batches.put_back(shape, others);
        None
    }
}

impl Drop for BatchLeader<'_> {
    fn drop(&mut self) {
        let request = self.request;
        let mut batch = std::mem::take(&mut self.batch);
        batch.is_in_doubt |= self.is_in_flight;
        if batch.is_in_doubt {
            batch.gone += request.amounts;
        }
        let left = if request.may_share {
            request.store.batches.pass(&request.shape, batch)
        } else {
            Some(batch).filter(|batch| batch.is_in_doubt)
        };
        // A server that did not answer in time is not asked again in the background.
        if let Some(Batch { id, gone, .. }) = left.filter(|_| !self.has_timed_out) {
            request.return_later(id, gone);
        }
    }
}

/// A clock that stands at the time of a call.
struct FixedClock(EpochMillis);

impl Clock for FixedClock {
    fn now(&self) -> EpochMillis {
        self.0
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}
