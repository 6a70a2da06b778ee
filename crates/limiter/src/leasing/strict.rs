//! Strict mode: tokens are debited before they are handed out. One write settles old tokens and
//! leases more.

use std::collections::BTreeMap;
use std::sync::Arc;

use sluicegate_core::{Configuration, LeaseTerms};
use tokio::time::Instant;

use super::lease_plan::LeasePlan;
use super::leaser::{BucketWrite, WriteKind};
use super::settings::{Accounting, LeaseMode};
use crate::error::AcquireError;
use crate::leasing_store::{LeaseError, LeaseInDoubt};

impl BucketWrite<'_> {
    /// Leases the tokens that are needed and those that can be used, and settles. A lease in doubt
    /// comes first, and its tokens go into the pools: the request that needed them has had its
    /// answer.
    ///
    /// Makes another lease for a request that waits if the last one counts as lost, was not done,
    /// or got too little ([`LeaseOutcome::covers`]). A write that settles a deleted limit leases
    /// nothing, so only the first new one settles such limits: while their permits give tokens
    /// back, requests would never get others.
    ///
    /// [`LeaseOutcome::covers`]: crate::leasing_store::LeaseOutcome::covers
    pub(super) async fn lease(&mut self) -> Result<(), AcquireError> {
        let mut settles_deleted = true;
        while let Some((plan, configuration, in_doubt)) = self.next_plan(settles_deleted) {
            let is_repeated = in_doubt.is_some();
            let (result, needs_another) = self.write_plan(plan, &configuration, in_doubt).await;
            let has_time = || !self.need.is_empty() && Instant::now() < self.until;
            match result {
                Ok(()) if is_repeated => {}
                Err(_) if needs_another && has_time() => settles_deleted &= is_repeated,
                result => return result,
            }
        }
        Ok(())
    }

    /// The plan of the next write, the limits by which it is sent, and the lost write if the plan
    /// repeats one. `None`: there is nothing to write.
    fn next_plan(
        &self,
        settles_deleted: bool,
    ) -> Option<(LeasePlan, Arc<Configuration>, Option<LeaseInDoubt>)> {
        let (leaser, bucket) = (self.leaser, &self.turn.bucket);
        let ledger = &mut *self.turn.ledger();
        if let Some(lost) = ledger.unfinished().in_doubt.take() {
            let (in_doubt, plan) = *lost;
            return Some((plan, ledger.configuration.clone(), Some(in_doubt)));
        }
        let (times, settings) = (leaser.times(), &leaser.settings);
        let unreported_for = ledger.unreported_for_ms(times.now);
        let plan = bucket.plan(ledger, self.need, (self.kind, settles_deleted), settings, times);
        leaser.meter.count(ledger.count_takes(&bucket.atomic, times.now));
        let counts = self.counts_use();
        let has_lease = !plan.wanted.is_empty() || !plan.returned.is_empty();
        if !has_lease && (!counts || plan.used.is_empty()) {
            bucket.undo(ledger, &plan, times);
            return None;
        }
        if counts {
            leaser.meter.commit_age(unreported_for);
        }
        Some((plan, ledger.configuration.clone(), None))
    }

    fn counts_use(&self) -> bool {
        self.leaser.settings.mode == LeaseMode::Strict(Accounting::AtSettle)
    }

    /// Sends a plan, or finds out the result of one in doubt, and notes it. True beside an error:
    /// another lease must be made.
    async fn write_plan(
        &mut self,
        plan: LeasePlan,
        configuration: &Configuration,
        in_doubt: Option<LeaseInDoubt>,
    ) -> (Result<(), AcquireError>, bool) {
        let is_repeated = in_doubt.is_some();
        let leases = !is_repeated || self.kind == WriteKind::Renew;
        let wanted = if leases { plan.wanted.clone() } else { BTreeMap::new() };
        // Zero for each limit of a lost lease: so the store writes, and remembers its id, even if
        // nothing else is settled.
        let mut returned = plan.returned.clone();
        for limit in in_doubt.iter().flat_map(|in_doubt| in_doubt.leased.keys()) {
            returned.entry(limit.clone()).or_default();
        }
        let counted = self.counts_use().then(|| plan.used.clone());
        let terms = Arc::new(LeaseTerms { wanted, returned, counted });
        let start = Instant::now();
        let result = self.send(configuration, &terms, in_doubt).await;
        let (leaser, bucket) = (self.leaser, &self.turn.bucket);
        let ledger = &mut *self.turn.ledger();
        // Read under the lock: a task that notices later that the clock was set back finds the
        // leased tokens in the ledger.
        let times = leaser.times();
        match result {
            Ok(outcome) => {
                leaser.note_answer();
                if !is_repeated {
                    leaser.note_duration(start.elapsed());
                }
                let is_short = !is_repeated && !outcome.covers(&plan.wanted);
                let need = if is_repeated || is_short { &[] } else { self.need };
                leaser.meter.count(u64::from(!need.is_empty()));
                leaser.meter.leased(&outcome.leased, &plan.returned);
                if is_repeated || outcome.cost.path.is_some() {
                    ledger.note_answered(&outcome.id);
                }
                bucket.conclude(ledger, &plan, need, &outcome, times);
                self.spent += outcome.cost;
                let attempts = outcome.cost.attempts;
                let result =
                    if is_short { Err(AcquireError::Contended { attempts }) } else { Ok(()) };
                (result, is_short)
            }
            Err(LeaseError { error, in_doubt, .. }) => {
                let needs_another = match in_doubt {
                    // A refusal is about the tokens that the lost lease needed, and another lease
                    // may need fewer.
                    None => {
                        bucket.undo(ledger, &plan, times);
                        is_repeated
                    }
                    Some(in_doubt) if in_doubt.is_ambiguous => {
                        leaser.meter.ambiguous();
                        true
                    }
                    // A lost lease ahead of need gives up early: a request that waits for tokens
                    // sends it again.
                    Some(in_doubt) => {
                        ledger.unfinished().in_doubt = Some(Box::new((in_doubt, plan)));
                        is_repeated && matches!(error, AcquireError::Contended { .. })
                    }
                };
                (Err(error), needs_another)
            }
        }
    }
}
