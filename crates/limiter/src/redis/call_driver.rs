//! Acquires tokens: for one request, or for several of the same shape in one call.
//!
//! A task drives the calls of a shape. It starts with a request that no task would send, and ends
//! when no request waits. Requests that arrive while a call is in flight wait, and share the next
//! call. A request that waits too long is sent alone.
//!
//! One call asks for the sum of the requests that share it, under one id. The script decides it as
//! any acquire, and the driver repeats it as any acquire if the answer is lost. If the sum does not
//! fit, the driver looks at the image of the buckets. It refuses the requests that do not fit
//! alone, and sends the first that fit together. Once these are granted, it refuses those behind
//! them: if they waited for tokens that accrue meanwhile, more and more would wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use sluicegate_core::{Amounts, EpochMillis, WritePath};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::RecvError;
use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout, timeout_at};

use super::RedisStore;
use super::acquire::{Decision, Failure, statuses};
use super::script::ACQUIRE;
use super::script_bucket::{Image, ScriptBucket};
use super::shared_calls::{CallResult, CallWaiter, Shape};
use crate::call::{CallContext, clamped_time, in_time, new_id};
use crate::clock::Clock;
use crate::cost::Cost;
use crate::error::{AcquireError, LimitStatus};
use crate::store::{Correction, Grant, Request};

/// A request waits this time for a shared call, or a quarter of its own time. Then it is sent
/// alone: the server may be far away, or the driver in a runtime that nobody runs any more.
const PATIENCE: Duration = Duration::from_millis(250);
/// The time for giving tokens back.
const RETURN_TIME: Duration = Duration::from_secs(5);
/// A caller waits this much longer than its deadline. The driver ends a call at the deadline of its
/// last member, and its error names the cause. The caller's own timer cannot name it.
const DRIVER_ERROR_TIME: Duration = Duration::from_millis(10);

/// Sends the calls of a shape, in a task of its own: the answer to a call is awaited although its
/// callers leave, or are not polled.
struct CallDriver {
    store: RedisStore,
    shape: Arc<Shape>,
    clock: Arc<dyn Clock>,
    /// True until no request waits. False too if it sends only one request, alone.
    drives: bool,
}

/// A request that waits. If it is dropped, it waits no more, or gives back what it was granted.
struct WaitingRequest<'a> {
    store: &'a RedisStore,
    shape: &'a Arc<Shape>,
    request: &'a Request,
    clock: &'a dyn Clock,
    ticket: u64,
    /// See [`CallWaiter::attempts_while_busy`].
    attempts_while_busy: Arc<AtomicU32>,
    receiver: oneshot::Receiver<CallResult>,
    /// True once its caller has a result.
    has_ended: bool,
}

impl RedisStore {
    /// Takes tokens for a request, in a call that it may share.
    pub(super) async fn take_shared(
        &self,
        request: &Request,
        shape: &Arc<Shape>,
        clock: &dyn Clock,
    ) -> Result<Grant, AcquireError> {
        let (sender, receiver) = oneshot::channel();
        let ticket = self.shared_calls.ticket();
        let mut waiting = WaitingRequest {
            store: self,
            shape,
            request,
            clock,
            ticket,
            attempts_while_busy: Arc::default(),
            receiver,
            has_ended: false,
        };
        let now = Instant::now();
        let ends_at = now + clamped_time(request.deadline);
        let (amounts, attempts_while_busy) =
            (request.amounts.clone(), waiting.attempts_while_busy.clone());
        let waiter = CallWaiter { ticket, amounts, ends_at, attempts_while_busy, sender };
        let is_first = self.shared_calls.enter(shape, waiter);
        if is_first {
            tokio::spawn(self.driver(shape, clock, true).drive());
        } else {
            let patient = now + PATIENCE.min(request.deadline / 4);
            if let Ok(result) = timeout_at(patient, &mut waiting.receiver).await {
                return waiting.end(Ok(result));
            }
            if let Some(waiter) = self.shared_calls.leave(shape, ticket) {
                let driver = self.driver(shape, clock, false);
                tokio::spawn(async move { driver.decide(vec![waiter]).await });
            }
        }
        let mut result = in_time(ends_at, &mut waiting.receiver).await;
        if result.is_err() {
            result = timeout(DRIVER_ERROR_TIME, &mut waiting.receiver).await;
        }
        waiting.end(result)
    }

    fn driver(&self, shape: &Arc<Shape>, clock: &dyn Clock, drives: bool) -> CallDriver {
        CallDriver { store: self.share(), shape: shape.clone(), clock: clock.share(), drives }
    }

    /// Gives tokens back in a background task. Without a runtime, or if the correction fails, the
    /// tokens stay taken.
    fn return_later(&self, shape: &Arc<Shape>, amounts: Amounts, clock: Arc<dyn Clock>) {
        let Ok(runtime) = Handle::try_current() else { return };
        let (store, shape) = (self.share(), shape.clone());
        runtime.spawn(async move {
            let amounts = &-&amounts;
            for ScriptBucket { bucket, configuration } in &shape.targets {
                let id = &new_id();
                let correction = Correction {
                    id,
                    bucket,
                    amounts,
                    configuration,
                    mark: None,
                    is_repeated: false,
                    deadline: RETURN_TIME,
                };
                let _ = store.correct(&correction, &*clock).await;
            }
        });
    }
}

impl WaitingRequest<'_> {
    fn end(&mut self, result: Result<Result<CallResult, RecvError>, Elapsed>) -> CallResult {
        match result {
            Ok(result) => {
                self.has_ended = true;
                let ended = "the runtime that sent the call ended: try again";
                result.unwrap_or_else(|_| Err(AcquireError::Unavailable(ended.into())))
            }
            // The other members of its call have more time. If the server answers, this is no
            // outage.
            Err(elapsed) => Err(match self.attempts_while_busy.load(Ordering::Relaxed) {
                0 => AcquireError::Unavailable(elapsed.into()),
                // An attempt may be in flight.
                attempts => AcquireError::Unavailable(AcquireError::Contended { attempts }.into()),
            }),
        }
    }
}

impl Drop for WaitingRequest<'_> {
    fn drop(&mut self) {
        if self.has_ended || self.store.shared_calls.leave(self.shape, self.ticket).is_some() {
            return;
        }
        self.receiver.close();
        if let Ok(Ok(_)) = self.receiver.try_recv() {
            let amounts = self.request.amounts.clone();
            self.store.return_later(self.shape, amounts, self.clock.share());
        }
    }
}

impl CallDriver {
    /// Sends calls until no request waits.
    async fn drive(mut self) {
        while let Some(members) = self.store.shared_calls.gather(&self.shape) {
            self.decide(members).await;
            // Callers that have their answer may ask again, and then share the next call.
            tokio::task::yield_now().await;
        }
        self.drives = false;
    }

    /// Sends calls until all members are decided, or wait again.
    async fn decide(&self, mut members: Vec<CallWaiter>) {
        let (store, targets) = (&self.store, &self.shape.targets);
        // The members that do not fit beside those before them, with their refusals.
        let mut behind: Vec<(CallWaiter, Vec<LimitStatus>)> = Vec::new();
        end_late(&mut members, || {
            let late = "the request was not sent before its deadline: try again, or give it longer";
            AcquireError::Unavailable(late.into())
        });
        while let Some(ends_at) = members.iter().map(|member| member.ends_at).max() {
            let mut sum = members[0].amounts.clone();
            members[1..].iter().for_each(|member| sum += &member.amounts);
            let mut context = CallContext::new(&*self.clock, Duration::ZERO);
            context.ends_at = ends_at;
            let reply = store.repeat(&mut context, &ACQUIRE, targets, |context, in_doubt| {
                let attempts_while_busy =
                    if context.was_busy() { context.cost.attempts } else { 0 };
                members.iter().for_each(|member| {
                    member.attempts_while_busy.store(attempts_while_busy, Ordering::Relaxed)
                });
                let sent = store.sent(context.clock, in_doubt);
                store.take_or_correct_call(targets, &sum, &context.id, sent)
            });
            let decision = match reply.await {
                Ok(reply) => store.decision(reply, targets),
                Err(failure) => Err(Failure::Error(failure.into_error())),
            };
            let error = match decision {
                Ok(Decision::Granted(images, path)) => {
                    self.grant(members, &images, path, context.cost.attempts);
                    for (member, limits) in behind {
                        member.answer(Err(AcquireError::refused(limits)));
                    }
                    return;
                }
                Ok(Decision::Short(images, now)) => {
                    let attempts = context.cost.attempts;
                    (members, behind) = self.divide(members, behind, &images, (now, attempts));
                    continue;
                }
                Err(Failure::Error(error)) => error,
                Err(Failure::TableError(table_error)) => context.fail_with(table_error),
            };
            let last = members.pop();
            for member in members {
                member.answer(Err(error.copy()));
            }
            if let Some(last) = last {
                last.answer(Err(error));
            }
            break;
        }
        let behind = behind.into_iter().map(|(member, _)| member).collect();
        self.store.shared_calls.put_back(&self.shape, behind);
    }

    /// Grants all members. Gives back the shares of those that have left.
    fn grant(&self, members: Vec<CallWaiter>, images: &[Image], path: WritePath, attempts: u32) {
        #[cfg(feature = "leasing")]
        for (target, image) in self.shape.targets.iter().zip(images) {
            self.store.learn_if_known(&target.bucket, image.as_ref());
        }
        let (mut path, mut gone) = (path, Amounts::new());
        for member in members {
            let buckets = self.shape.targets.iter().zip(images);
            let parts = buckets.map(|(target, image)| target.part(&member.amounts, image));
            let mut parts: Vec<_> = parts.collect();
            // A parent that has none of the limits was not asked.
            if let [own, parent] = parts.as_mut_slice()
                && parent.amounts.is_empty()
            {
                own.uncharged_parent = Some(Arc::new(parent.clone()));
                parts.truncate(1);
            }
            let cost = Cost { path: Some(path), attempts, ..Cost::default() };
            gone += &member.answer(Ok(Grant { parts, cost }));
            // One write is counted once.
            path = WritePath::Claim;
        }
        if !gone.is_empty() {
            self.store.return_later(&self.shape, gone, self.clock.clone());
        }
    }

    /// Divides the members after the server refused their sum, of which nothing was taken, and
    /// those behind them. Leaves out those whose callers have left, and refuses those that do not
    /// fit alone. Returns the first that fit together, and those behind them.
    fn divide(
        &self,
        members: Vec<CallWaiter>,
        behind: Vec<(CallWaiter, Vec<LimitStatus>)>,
        images: &[Image],
        (now, attempts): (EpochMillis, u32),
    ) -> (Vec<CallWaiter>, Vec<(CallWaiter, Vec<LimitStatus>)>) {
        let statuses = |amounts: &Amounts| statuses(&self.shape.targets, images, amounts, now);
        let is_short = |limits: &[LimitStatus]| limits.iter().any(LimitStatus::is_violated);
        let sent = members.len();
        let sent_alone = (sent == 1).then(|| members[0].ticket);
        let (mut all, mut has_refused) = (members, false);
        all.extend(behind.into_iter().map(|(member, _)| member));
        all.sort_unstable_by_key(|member| member.ticket);
        all.retain(|member| !member.sender.is_closed());
        all.iter().for_each(|member| member.attempts_while_busy.store(0, Ordering::Relaxed));
        // The server answers, so this is no outage.
        end_late(&mut all, || AcquireError::Contended { attempts });
        let (mut sum, mut first, mut behind) = (Amounts::new(), Vec::new(), Vec::new());
        for member in all {
            let mut limits = statuses(&member.amounts);
            if sent_alone == Some(member.ticket) || is_short(&limits) {
                has_refused = true;
                member.answer(Err(AcquireError::refused(limits)));
                continue;
            }
            limits.iter_mut().for_each(|status| status.take(sum.of(&status.limit), now));
            if is_short(&limits) {
                behind.push((member, limits));
            } else {
                sum += &member.amounts;
                first.push(member);
            }
        }
        // By the image as many fit as were sent, but the script refused their sum. Send the first
        // request alone.
        if !has_refused && first.len() >= sent {
            self.store.shared_calls.put_back(&self.shape, first.split_off(1));
        }
        (first, behind)
    }
}

/// Ends the requests whose time is over.
fn end_late(members: &mut Vec<CallWaiter>, error: impl Fn() -> AcquireError) {
    for late in members.extract_if(.., |member| !member.may_be_sent()) {
        late.answer(Err(error()));
    }
}

impl Drop for CallDriver {
    /// The runtime ended: nobody sends the requests that wait.
    fn drop(&mut self) {
        if self.drives {
            self.store.shared_calls.stop(&self.shape);
        }
    }
}
