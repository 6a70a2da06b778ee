//! Strict mode: tokens are debited before they are handed out. One write settles old tokens and
//! leases more.

use std::collections::BTreeMap;
use std::time::Duration;

use sluicegate_core::{Amounts, Millitokens};
use tokio::time::Instant;

use super::atomic_bucket::Demand;
use super::lease_plan::LeasePlan;
use super::leased_bucket::WriteTurn;
use super::leaser::{Leaser, WriteKind};
use super::settings::Accounting;
use crate::cost::Cost;
use crate::error::AcquireError;
use crate::leasing_store::{LeaseError, LeaseInDoubt, LeaseOutcome, LeaseRequest};

/// The attempt of a lease. A write that settles a deleted limit leases nothing, so only the first
/// one settles such limits: while their permits give tokens back, requests would never get others.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Attempt {
    First,
    Later,
}

impl Leaser {
    /// Leases the tokens that are needed and those that can be used, and settles. Makes another
    /// lease in two cases: the store cannot tell whether the lease was done, so the lease counts as
    /// lost; or the lease got too little ([`LeaseOutcome::covers`]).
    pub(super) async fn lease(
        &self,
        turn: &WriteTurn,
        need: &[Demand],
        kind: WriteKind,
        accounting: Accounting,
        deadline: Duration,
    ) -> Result<Cost, AcquireError> {
        let until = Instant::now() + deadline;
        let mut attempt = Attempt::First;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let (result, needs_another) =
                self.lease_once(turn, need, kind, accounting, (attempt, left)).await;
            if result.is_ok() || !needs_another || need.is_empty() || Instant::now() >= until {
                return result;
            }
            attempt = Attempt::Later;
        }
    }

    /// The flag beside the result is true if another lease must be made for the needed tokens.
    async fn lease_once(
        &self,
        turn: &WriteTurn,
        need: &[Demand],
        kind: WriteKind,
        accounting: Accounting,
        (attempt, deadline): (Attempt, Duration),
    ) -> (Result<Cost, AcquireError>, bool) {
        let (until, bucket) = (Instant::now() + deadline, &turn.bucket);
        let is_needed = !need.is_empty();
        let resolved = self.resolve_in_doubt(turn, kind, accounting, is_needed, deadline).await;
        let mut spent = match resolved {
            (Ok(spent), _) => spent,
            failed => return failed,
        };
        let times = self.times();
        let (plan, configuration, last_answered_id, unreported_for) = {
            let ledger = &mut *turn.ledger();
            let unreported_for = ledger.unreported_for_ms(times.now);
            let mut plan = match kind {
                WriteKind::Renew => bucket.withdraw_and_plan(ledger, need, &self.settings, times),
                WriteKind::SettleAll => bucket.plan_settle_all(ledger, times),
            };
            if attempt == Attempt::Later {
                bucket.keep_deleted(ledger, &mut plan);
            }
            self.meter.count(ledger.count_takes(&bucket.atomic, times.now));
            (plan, ledger.configuration.clone(), ledger.last_answered_id(), unreported_for)
        };
        let counted = (accounting == Accounting::AtSettle).then_some(&plan.used);
        let has_lease = !plan.wanted.is_empty() || !plan.returned.is_empty();
        if !has_lease && counted.is_none_or(|used| used.is_empty()) {
            bucket.undo(&mut turn.ledger(), &plan, times);
            return (Ok(spent), false);
        }
        if accounting == Accounting::AtSettle {
            self.meter.commit_age(unreported_for);
        }
        let lease = LeaseRequest {
            bucket: &bucket.id(),
            configuration: &configuration,
            wanted: &plan.wanted,
            returned: &plan.returned,
            counted,
            last: last_answered_id.as_ref(),
            deadline: until.saturating_duration_since(Instant::now()),
        };
        let start = Instant::now();
        let result = self.store.lease(&lease, None, &self.clock).await;
        if result.is_ok() {
            self.note_duration(start.elapsed());
        }
        let is_ambiguous = result.as_ref().is_err_and(LeaseError::is_ambiguous);
        let is_short = result.as_ref().is_ok_and(|outcome| !outcome.covers(&plan.wanted));
        let need = if is_short { &[] } else { need };
        match self.finish(turn, plan, need, false, result) {
            Ok(Cost { attempts, .. }) if is_short => {
                (Err(AcquireError::Contended { attempts }), true)
            }
            Ok(cost) => {
                spent += cost;
                (Ok(spent), false)
            }
            Err(error) => (Err(error), is_ambiguous),
        }
    }

    /// Finds out the result of a write in doubt, if there is one; returns also if another lease must
    /// be made.
    async fn resolve_in_doubt(
        &self,
        turn: &WriteTurn,
        kind: WriteKind,
        accounting: Accounting,
        is_needed: bool,
        deadline: Duration,
    ) -> (Result<Cost, AcquireError>, bool) {
        let until = Instant::now() + deadline;
        let (in_doubt, configuration) = {
            let ledger = &mut *turn.ledger();
            let Some(in_doubt) = ledger.unfinished().in_doubt.take() else {
                return (Ok(Cost::default()), false);
            };
            (in_doubt, ledger.configuration.clone())
        };
        let (in_doubt, plan) = *in_doubt;
        let returned = returned_with(&plan, &in_doubt);
        let nothing = BTreeMap::new();
        let mut lease = LeaseRequest {
            bucket: &turn.bucket.id(),
            configuration: &configuration,
            wanted: if kind == WriteKind::Renew { &plan.wanted } else { &nothing },
            returned: &returned,
            counted: (accounting == Accounting::AtSettle).then_some(&plan.used),
            // The lost write names it.
            last: None,
            deadline,
        };
        let mut tried = 0;
        let mut result = self.store.lease(&lease, Some(in_doubt), &self.clock).await;
        // If the lost lease was ahead of need, the store gives up early. A request that waits for
        // tokens does not.
        while let Err(LeaseError { error: AcquireError::Contended { .. }, in_doubt, attempts }) =
            &mut result
            && is_needed
            && Instant::now() < until
            && in_doubt.as_ref().is_some_and(|in_doubt| !in_doubt.is_ambiguous)
        {
            self.meter.wrote(*attempts);
            tried += *attempts;
            lease.deadline = until.saturating_duration_since(Instant::now());
            result = self.store.lease(&lease, in_doubt.take(), &self.clock).await;
        }
        // If nothing is in doubt any more, the lost lease was not done. A refusal is about the tokens
        // that it needed, and another lease may need fewer.
        let is_over = |error: &LeaseError| error.in_doubt.is_none() || error.is_ambiguous();
        let needs_another = result.as_ref().is_err_and(is_over);
        // The request that needed tokens has had its answer, so all of them go into the pools.
        let cost = self.finish(turn, plan, &[], true, result);
        let cost = cost.map(|cost| Cost { attempts: cost.attempts + tried, ..cost });
        (cost, needs_another)
    }

    /// Notes the result of a write; returns its cost.
    fn finish(
        &self,
        turn: &WriteTurn,
        plan: LeasePlan,
        need: &[Demand],
        is_repeated: bool,
        result: Result<LeaseOutcome, LeaseError>,
    ) -> Result<Cost, AcquireError> {
        let ledger = &mut *turn.ledger();
        match result {
            Ok(outcome) => {
                self.meter.count(u64::from(!need.is_empty()));
                self.meter.leased(&outcome.leased, &plan.returned);
                if is_repeated || outcome.cost.path.is_some() {
                    ledger.note_answered(&outcome.id);
                }
                turn.bucket.conclude(ledger, &plan, need, &outcome, self.times());
                Ok(self.spent(outcome))
            }
            Err(failed) => {
                self.meter.wrote(failed.attempts);
                match failed.in_doubt {
                    Some(in_doubt) if !in_doubt.is_ambiguous => {
                        ledger.unfinished().in_doubt = Some(Box::new((in_doubt, plan)));
                    }
                    Some(_) => self.meter.ambiguous(),
                    None => turn.bucket.undo(ledger, &plan, self.times()),
                }
                Err(failed.error)
            }
        }
    }

    /// Counts the attempts of a write; returns its cost.
    pub(super) fn spent(&self, outcome: LeaseOutcome) -> Cost {
        self.meter.wrote(outcome.cost.attempts);
        outcome.cost
    }
}

/// The returned amounts, and zero for each limit of the lost lease. So the store writes, and
/// remembers its id, even if nothing else is settled.
fn returned_with(plan: &LeasePlan, in_doubt: &LeaseInDoubt) -> Amounts {
    let mut returned = plan.returned.clone();
    for limit in in_doubt.leased.keys() {
        returned.entry(limit.clone()).or_insert(Millitokens::ZERO);
    }
    returned
}
