//! Acquires tokens: for one request, or for several of the same shape in one call.
//!
//! If no call of its shape is in flight, a request leads and is sent at once. Otherwise it waits
//! until a leader has had it decided, or leads itself for all that wait. One call asks for the sum
//! of a batch under one id. So the script decides it as any acquire, and a lost answer is asked for
//! again in the same way. If the sum does not fit, the image of the buckets shows which requests do
//! not fit either, and the first that fit are sent next.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use sluicegate_core::{Amounts, EpochMillis, RequestId, WritePath};
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};

use super::RedisStore;
use super::acquire::{Decision, Failure, stand};
use super::lanes::{Batch, BatchPlace, BatchTurn, BatchWaiter, Shape};
use super::script::ACQUIRE;
use super::script_bucket::{Image, ScriptBucket};
use crate::call::{CallContext, new_id};
use crate::clock::Clock;
use crate::error::{AcquireError, LimitStatus};
use crate::store::{Correction, Grant, Request};

/// A request that no call included within this time, or within a quarter of its own, goes alone.
/// The server may be far away, or the leader may be a future that its owner does not poll.
const PATIENCE: Duration = Duration::from_millis(250);

/// A request.
struct Asking<'a> {
    store: &'a RedisStore,
    shape: Arc<Shape>,
    amounts: &'a Amounts,
    /// False: it goes alone.
    is_in_lane: bool,
    time: Duration,
    now: EpochMillis,
}

/// A request that waits. If it is dropped, it gives back its grant and passes the lead on.
struct Waiting<'a> {
    asking: &'a Asking<'a>,
    place: BatchPlace,
}

/// A request that leads. If it is dropped, it passes on the lead, and a call in flight too.
struct BatchLeader<'a> {
    asking: &'a Asking<'a>,
    batch: Batch,
    is_in_flight: bool,
    /// True if its call was not answered in time.
    has_given_up: bool,
}

impl<'a> BatchLeader<'a> {
    fn new(asking: &'a Asking<'a>, batch: Batch) -> Self {
        Self { asking, batch, is_in_flight: false, has_given_up: false }
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
        let place = self.lanes.enter(&shape, amounts);
        let mut asking =
            Asking { store: self, shape, amounts, is_in_lane: true, time, now: run.began };
        let Some(place) = place else { return asking.lead(Batch::default(), &mut run).await };
        let turn = Waiting { asking: &asking, place }.turn(run.deadline).await;
        match turn {
            Some(BatchTurn::Done(result)) => result,
            Some(BatchTurn::Lead(batch)) => {
                let is_new = !batch.is_in_doubt;
                let batch = if is_new { self.lanes.gather(&asking.shape, amounts) } else { batch };
                asking.lead(batch, &mut run).await
            }
            None => {
                asking.is_in_lane = false;
                asking.lead(Batch::default(), &mut run).await
            }
        }
    }
}

impl Asking<'_> {
    /// Sends batches until its own request is decided.
    async fn lead(&self, batch: Batch, run: &mut CallContext<'_>) -> Result<Grant, AcquireError> {
        let mut leading = BatchLeader::new(self, batch);
        loop {
            match leading.decided(run).await? {
                Decision::Granted(images, path) => {
                    return Ok(leading.granted(&images, path, run.attempts));
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
        Grant { parts, path: Some(path), attempts, write_units: 0.0, read_units: 0.0 }
    }

    /// Gives back these amounts in a task. For a call in doubt, it first asks for the result.
    /// Without a runtime, or if they cannot be given back, they stay taken.
    fn return_later(&self, in_doubt: Option<RequestId>, amounts: Amounts) {
        let Ok(runtime) = Handle::try_current() else { return };
        if amounts.is_empty() {
            return;
        }
        let (store, shape) = (self.store.share(), self.shape.clone());
        let (deadline, clock) = (self.time, Then(self.now));
        runtime.spawn(async move {
            let targets = &shape.targets;
            if let Some(id) = in_doubt {
                let mut run = CallContext::under(id, &clock, deadline);
                let reply = store.repeat(&mut run, &ACQUIRE, |run, unanswered| {
                    store.taking(
                        targets,
                        &amounts,
                        &run.id,
                        (store.clock_argument(&clock), 1 + unanswered),
                    )
                });
                let decision = reply.await.ok().map(|reply| store.decision(reply, targets));
                if !matches!(decision, Some(Ok(Decision::Granted(..)))) {
                    return;
                }
            }
            let amounts = &-&amounts;
            for ScriptBucket { bucket, configuration } in targets {
                let id = &new_id();
                let correction = Correction { id, bucket, amounts, configuration, deadline };
                let _ = store.correct(&correction, &clock).await;
            }
        });
    }
}

impl Waiting<'_> {
    /// Waits; `None`: it goes alone.
    async fn turn(mut self, deadline: Instant) -> Option<BatchTurn> {
        let left = deadline.saturating_duration_since(Instant::now());
        let patient = Instant::now() + PATIENCE.min(left / 4);
        if let Ok(turn) = timeout_at(patient, &mut self.place.receiver).await {
            return turn.ok();
        }
        if self.asking.store.lanes.leave(&self.asking.shape, &self.place) {
            return None;
        }
        match timeout_at(deadline, &mut self.place.receiver).await {
            Ok(turn) => turn.ok(),
            Err(elapsed) => Some(BatchTurn::Done(Err(AcquireError::Unavailable(elapsed.into())))),
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.place.receiver.close();
        match self.place.receiver.try_recv() {
            Ok(BatchTurn::Done(Ok(_))) => {
                self.asking.return_later(None, self.asking.amounts.clone());
            }
            Ok(BatchTurn::Lead(batch)) => {
                drop(BatchLeader::new(self.asking, batch));
            }
            _ => {}
        }
    }
}

impl BatchLeader<'_> {
    /// Sends the batch until it is answered.
    async fn decided(&mut self, run: &mut CallContext<'_>) -> Result<Decision, AcquireError> {
        let Asking { store, shape, amounts, .. } = self.asking;
        let sum = self.batch.sum(amounts);
        match &self.batch.id {
            Some(id) => run.id = id.clone(),
            None => self.batch.id = Some(run.id.clone()),
        }
        let before = u32::from(self.batch.is_in_doubt);
        self.is_in_flight = true;
        let reply = store.repeat(run, &ACQUIRE, |run, unanswered| {
            store.taking(
                &shape.targets,
                &sum,
                &run.id,
                (store.clock_argument(run.clock), before + unanswered),
            )
        });
        let reply = reply.await;
        self.is_in_flight = false;
        let reply = reply.map_err(|lost| {
            self.batch.is_in_doubt |= lost.in_doubt;
            self.has_given_up = true;
            lost.error
        })?;
        self.batch.is_in_doubt = false;
        store.decision(reply, &shape.targets).map_err(|failure| match failure {
            Failure::Error(error) => error,
            Failure::TableError(table_error) => run.end(table_error),
        })
    }

    /// Grants the whole batch.
    fn granted(&mut self, images: &[Image], path: WritePath, attempts: u32) -> Grant {
        let asking = self.asking;
        let mut gone = std::mem::take(&mut self.batch.gone);
        for BatchWaiter { amounts, sender, .. } in self.batch.members.drain(..) {
            let grant = asking.grant(&amounts, images, WritePath::Normal, attempts);
            if sender.send(BatchTurn::Done(Ok(grant))).is_err() {
                gone += &amounts;
            }
        }
        asking.return_later(None, gone);
        asking.grant(asking.amounts, images, path, attempts)
    }

    /// Handles a refused sum: nothing was taken. Refuses the requests that do not fit by
    /// themselves, and keeps the first that fit together for the next call. The others wait on.
    /// Returns the refusal of the leader's own request.
    fn short(&mut self, images: &[Image], now: EpochMillis) -> Option<AcquireError> {
        let Asking { store, shape, amounts: own, .. } = self.asking;
        let Batch { members, gone, .. } = std::mem::take(&mut self.batch);
        let stand = |amounts: &Amounts| stand(&shape.targets, images, amounts, now);
        let is_short = |limits: &[LimitStatus]| limits.iter().any(LimitStatus::is_violated);
        let (limits, is_alone) = (stand(own), members.is_empty() && gone.is_empty());
        let mut fitting = Vec::with_capacity(members.len());
        let mut has_refused = false;
        for member in members {
            let limits = stand(&member.amounts);
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
            if is_short(&stand(&with)) {
                others.push(member);
            } else {
                sum = with;
                self.batch.members.push(member);
            }
        }
        // If the script sees less than its image shows, the leader goes by itself.
        if !has_refused && others.is_empty() {
            others = std::mem::take(&mut self.batch.members);
        }
        store.lanes.put_back(shape, others);
        None
    }
}

impl Drop for BatchLeader<'_> {
    fn drop(&mut self) {
        let asking = self.asking;
        let mut batch = std::mem::take(&mut self.batch);
        batch.is_in_doubt |= self.is_in_flight;
        if batch.is_in_doubt {
            batch.gone += asking.amounts;
        }
        let left = match asking.is_in_lane {
            true => asking.store.lanes.pass(&asking.shape, batch),
            false => Some(batch).filter(|batch| batch.is_in_doubt),
        };
        // A server that did not answer in time is not asked again in the background.
        if let Some(Batch { id, gone, .. }) = left.filter(|_| !self.has_given_up) {
            asking.return_later(id, gone);
        }
    }
}

/// A clock that stands at the time of a call.
struct Then(EpochMillis);

impl Clock for Then {
    fn now(&self) -> EpochMillis {
        self.0
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}
