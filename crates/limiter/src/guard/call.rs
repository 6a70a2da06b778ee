//! Wraps store calls: breaker check, classification of the result, fallback policy.

use std::sync::Arc;
use std::time::Instant;

use futures_util::future::BoxFuture;

use super::answer::{MaybeOutage, came_from_store, is_answer};
use super::breaker::CallPass;
use super::store_guard::Guard;
use crate::clock::Clock;
use crate::degraded::{Cause, Degraded, OnUnavailable};
use crate::error::{AcquireError, AdjustError, LimitStatus};
use crate::program_metrics;
use crate::store::{Adjusted, BucketGrant, Correction, Grant, Request};
use crate::store_error::{BoxError, described};

/// How an acquire was granted.
#[derive(Debug)]
pub(crate) enum Granted {
    /// By a call on the store, or from tokens that this process holds.
    Normal(Grant),
    /// Without the store: from buckets of this process, or from none.
    Degraded(Degraded, Vec<BucketGrant>),
}

impl Guard {
    /// Probes the store: before the first request, or while it is unavailable.
    pub(crate) async fn probe(&self) -> Result<(), AcquireError> {
        let checked = self.store.check(&self.clock, self.settings.connect_deadline).await;
        if is_answer(&checked) {
            self.health.note_connection();
            self.health.breaker.note_probe_answer();
        }
        checked
    }

    /// Acquires from the store. If the store is unavailable, the limiter's policy decides.
    pub(crate) async fn take(self: &Arc<Self>, request: &Request) -> Result<Granted, AcquireError> {
        self.take_with(request, || self.store.acquire(request, &self.clock)).await
    }

    /// As [`take`](Self::take), with `acquire` as the call on the store.
    pub(crate) async fn take_with<'a>(
        self: &Arc<Self>,
        request: &Request,
        acquire: impl FnOnce() -> BoxFuture<'a, Result<Grant, AcquireError>>,
    ) -> Result<Granted, AcquireError> {
        let Some(pass) = self.begin_call() else {
            if let Some(grant) = self.store.acquire_held(request) {
                return Ok(Granted::Normal(grant));
            }
            let not_asked_error = self.health.not_asked_error();
            let cause = Cause::NotAsked { since: not_asked_error.since };
            return self.decide_without_store(request, cause, || not_asked_error.into());
        };
        let (begin, answers) = (Instant::now(), self.store.answered_lease_calls());
        let result = self.watch_call(&pass, request.deadline, acquire()).await;
        match &result {
            // Held tokens say nothing about the store, unless it answered a call of leasing
            // meanwhile.
            Ok(grant) if grant.is_held() && self.store.answered_lease_calls() == answers => {
                drop(pass)
            }
            result => {
                program_metrics::call_took("acquire", begin.elapsed());
                self.note(pass, result);
            }
        }
        match result {
            Ok(grant) => {
                if !grant.is_held() && self.settings.on_unavailable == OnUnavailable::Local {
                    self.health.local().remember(request, &grant.parts);
                }
                Ok(Granted::Normal(grant))
            }
            Err(error) if error.outage().is_some() => {
                let AcquireError::Unavailable(source) = error else { return Err(error) };
                let cause = Cause::CallFailed(described(&source).into());
                self.decide_without_store(request, cause, || source)
            }
            // The store answers, but tokens may have been taken: so the error is wrapped
            // (`composite/undecided_error.rs`). To the caller of the limiter, every `Contended`
            // says that tokens may have been taken, so it needs no wrapping. A `Setup` says that
            // nothing was taken, so a wrapped one stays wrapped.
            Err(AcquireError::Unavailable(source)) => Err(match source.downcast_ref() {
                Some(AcquireError::Contended { attempts }) => {
                    AcquireError::Contended { attempts: *attempts }
                }
                _ => AcquireError::Unavailable(source),
            }),
            Err(error) => Err(error),
        }
    }

    /// Corrects a bucket, if the store is available.
    pub(crate) async fn correct(
        self: &Arc<Self>,
        correction: &Correction<'_>,
    ) -> Result<Adjusted, AdjustError> {
        let Some(pass) = self.begin_call() else {
            return Err(AdjustError::not_sent(self.health.not_asked_error()));
        };
        // A correction of held tokens says nothing about the store, so the pass is dropped.
        if let Some(adjusted) = self.store.adjust_held(correction) {
            return Ok(adjusted);
        }
        let begin = Instant::now();
        let call = self.store.adjust(correction, &self.clock);
        let result = self.watch_call(&pass, correction.deadline, call).await;
        program_metrics::call_took("correct", begin.elapsed());
        self.note(pass, &result);
        result
    }

    /// Reads buckets, if the store is available.
    pub(crate) async fn peek(
        self: &Arc<Self>,
        request: &Request,
    ) -> Result<Vec<LimitStatus>, AcquireError> {
        let Some(pass) = self.begin_call() else {
            return Err(AcquireError::Unavailable(self.health.not_asked_error().into()));
        };
        let begin = Instant::now();
        let call = self.store.peek(request, &self.clock);
        let result = self.watch_call(&pass, request.deadline, call).await;
        program_metrics::call_took("peek", begin.elapsed());
        self.note(pass, &result);
        result
    }

    /// Permission to call the store; `None`: the store counts as unavailable. In that case, and for
    /// a trial, this starts the recovery task.
    fn begin_call(self: &Arc<Self>) -> Option<CallPass<'_>> {
        let pass = self.health.breaker.take_pass();
        // A task must probe an unavailable store, and must be able to overtake a trial call that
        // hangs.
        if pass.as_ref().is_none_or(CallPass::is_trial) {
            self.start_recovery();
        }
        pass
    }

    /// Notes whether the store answered a call.
    pub(super) fn note<T, E: MaybeOutage>(
        self: &Arc<Self>,
        pass: CallPass<'_>,
        result: &Result<T, E>,
    ) {
        let invalid = result.as_ref().err().and_then(MaybeOutage::invalid);
        if invalid.is_some_and(|invalid| !came_from_store(invalid)) {
            return;
        }
        let Some(source) = result.as_ref().err().and_then(MaybeOutage::outage) else {
            self.health.note_connection();
            if pass.note_answer() {
                program_metrics::breaker(false);
                tracing::info!("the store answers again");
            }
            return;
        };
        self.health.note_lease_answers(self.store.answered_lease_calls());
        if pass.note_failure(self.clock.now()) {
            self.counters().outages.increment();
            program_metrics::breaker(true);
            let policy = self.settings.on_unavailable;
            tracing::warn!(
                error = described(source),
                ?policy,
                "the store is unavailable: calls are decided without it until it answers a probe"
            );
            self.start_recovery();
        }
    }

    fn decide_without_store(
        self: &Arc<Self>,
        request: &Request,
        cause: Cause,
        error: impl FnOnce() -> BoxError,
    ) -> Result<Granted, AcquireError> {
        self.counters().undecided_by_store.increment();
        let policy = self.settings.on_unavailable;
        let parts = match policy {
            OnUnavailable::Deny => return Err(AcquireError::Unavailable(error())),
            OnUnavailable::Allow => Vec::new(),
            OnUnavailable::Local => {
                if let Some(known) = self.store.known_by_leasing(request) {
                    self.health.local().note_known(request, &known);
                }
                let now = self.store.now(&self.clock);
                let parts = self.health.local().take(request, now, self.counters())?;
                // The recovery task debits these tokens later. If the store was not asked,
                // `begin_call` has started the task. If the task ended before this debit was added,
                // it is started again.
                if matches!(cause, Cause::CallFailed(_)) || !self.health.has_recovery() {
                    self.start_recovery();
                }
                parts
            }
        };
        self.counters().degraded.increment();
        Ok(Granted::Degraded(Degraded { policy, cause }, parts))
    }
}
