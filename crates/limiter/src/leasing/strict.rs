//! Strict mode: tokens are debited before they are handed out. One write settles old tokens and
//! leases more.

use std::collections::BTreeMap;
use std::time::Duration;

use sluicegate_core::Millitokens;
use tokio::time::Instant;

use super::atomic_bucket::Demand;
use super::lease_plan::LeasePlan;
use super::leased_bucket::LeasedBucket;
use super::leaser::{Leaser, WriteKind};
use super::settings::Accounting;
use super::spent::Spent;
use crate::error::AcquireError;
use crate::leasing_store::{Counting, LeaseOutcome, LeaseRequest, UnackedWrite};

impl Leaser {
    /// Leases the tokens that are needed and those that can be used, and settles.
    pub(super) async fn lease(
        &self,
        bucket: &LeasedBucket,
        need: &[Demand],
        kind: WriteKind,
        accounting: Accounting,
        deadline: Duration,
    ) -> Result<Spent, AcquireError> {
        let until = Instant::now() + deadline;
        let mut spent = self.resolve_unacked(bucket, kind, accounting, deadline).await?;
        let times = self.times();
        let planned = bucket.ledger().as_mut().map(|ledger| {
            let unreported_for = ledger.unreported_for_ms(times.now);
            let plan = match kind {
                WriteKind::Renew => bucket.plan(ledger, need, &self.settings, times),
                WriteKind::SettleAll => bucket.plan_settle_all(ledger, times),
            };
            self.meter.decided(ledger, bucket, times.now);
            (plan, ledger.configuration.clone(), ledger.last_answered_id(), unreported_for)
        });
        // The ledger exists while a task holds the turn.
        let Some((plan, configuration, answered, unreported_for)) = planned else {
            return Err(AcquireError::Contended { attempts: 0 });
        };
        let counting = counting(accounting, &plan);
        if !plan.is_worth_a_write(counting) {
            if let Some(ledger) = bucket.ledger().as_mut() {
                bucket.undo(ledger, &plan, self.settings.max_age_ms(), times);
            }
            return Ok(spent);
        }
        if accounting == Accounting::AtSettle {
            self.meter.commit_age(unreported_for);
        }
        let lease = LeaseRequest {
            bucket: &bucket.id(),
            configuration: &configuration,
            wanted: &plan.wanted,
            returned: &plan.returned,
            counting,
            last: last_answered_id.as_ref(),
            deadline: until.saturating_duration_since(Instant::now()),
        };
        let start = Instant::now();
        let result = self.store.lease(&lease, None, &self.clock).await;
        let mut ledger = bucket.ledger();
        let Some(ledger) = ledger.as_mut() else { return Ok(spent) };
        match result {
            Ok(outcome) => {
                self.note_duration(start.elapsed());
                self.meter.count(u64::from(!need.is_empty()));
                self.meter.leased(&outcome.leased, &plan.returned);
                if outcome.path.is_some() {
                    ledger.note_answered(&outcome.id);
                }
                bucket.conclude(
                    ledger,
                    &plan,
                    need,
                    &outcome,
                    self.settings.max_age_ms(),
                    self.times(),
                );
                spent.add(self.spent(outcome));
                Ok(spent)
            }
            Err(failed) => {
                self.meter.wrote(failed.attempts);
                match failed.unacked {
                    Some(unacked) if unacked.is_ambiguous => self.meter.ambiguous(),
                    Some(unacked) => ledger.unfinished().unacked = Some(Box::new((unacked, plan))),
                    None => bucket.undo(ledger, &plan, self.settings.max_age_ms(), self.times()),
                }
                Err(failed.error)
            }
        }
    }

    /// Finds out the result of a write in doubt, if there is one.
    async fn resolve_unacked(
        &self,
        bucket: &LeasedBucket,
        kind: WriteKind,
        accounting: Accounting,
        deadline: Duration,
    ) -> Result<Spent, AcquireError> {
        let taken = bucket.ledger().as_mut().and_then(|ledger| {
            let unacked = ledger.unfinished().unacked.take()?;
            Some((unacked, ledger.configuration.clone()))
        });
        let Some((unacked, configuration)) = taken else { return Ok(Spent::default()) };
        let (unacked, plan) = *unacked;
        let returned = returned_with(&plan, &unacked);
        let nothing = BTreeMap::new();
        let lease = LeaseRequest {
            bucket: &bucket.id(),
            configuration: &configuration,
            wanted: if kind == WriteKind::Renew { &plan.wanted } else { &nothing },
            returned: &returned,
            counting: counting(accounting, &plan),
            // The lost write names it.
            last: None,
            deadline,
        };
        let result = self.store.lease(&lease, Some(unacked), &self.clock).await;
        let mut ledger = bucket.ledger();
        let Some(ledger) = ledger.as_mut() else { return Ok(Spent::default()) };
        match result {
            Ok(outcome) => {
                self.meter.leased(&outcome.leased, &plan.returned);
                ledger.note_answered(&outcome.id);
                bucket.conclude(
                    ledger,
                    &plan,
                    &[],
                    &outcome,
                    self.settings.max_age_ms(),
                    self.times(),
                );
                Ok(self.spent(outcome))
            }
            Err(failed) => {
    /// Counts the attempts of a write; returns its cost.
                self.meter.wrote(failed.attempts);
                match failed.unacked {
                    Some(unacked) if !unacked.is_ambiguous => {
                        ledger.unfinished().unacked = Some(Box::new((unacked, plan)));
                    }
                    _ => self.meter.ambiguous(),
                }
                Err(failed.error)
            }
        }
    }

    pub(super) fn spent(&self, outcome: LeaseOutcome) -> Spent {
        self.meter.wrote(outcome.attempts);
        let LeaseOutcome { path, attempts, write_units, read_units, .. } = outcome;
        Spent { path, attempts, write_units, read_units }
    }
}

fn counting(accounting: Accounting, plan: &LeasePlan) -> Counting<'_> {
    match accounting {
        Accounting::AtLease => Counting::Leased,
        Accounting::AtSettle => Counting::Used(&plan.used),
    }
}

/// The amounts to give back, with the limits of a lease that must not take effect any more. The
/// item must remember the id of that lease, even when there is nothing else to write.
fn returned_with(plan: &LeasePlan, unacked: &UnackedWrite) -> sluicegate_core::Amounts {
    let mut returned = plan.returned.clone();
    for limit in unacked.limits() {
        returned.entry(limit.clone()).or_insert(Millitokens::ZERO);
    }
    returned
}
