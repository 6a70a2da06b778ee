//! Write-behind: hands out tokens of the known balance and debits them afterwards.
//!
//! Tokens in the pools plus tokens handed out and not debited never exceed the threshold. Tokens
//! that a commit is debiting count as not debited. A commit is a correction, which is never
//! refused; the balance that it returns limits what may be handed out next.

use std::collections::BTreeMap;
use std::sync::Arc;

use sluicegate_core::{
    Amounts, CompositeBucket, LeaseRange, LeaseTerms, LimitName, Millitokens, evaluate,
};
use tokio::time::Instant;

use super::atomic_bucket::{POOL_MAX, TakeResult};
use super::bucket_ledger::{BucketLedger, Commit};
use super::leased_bucket::{COARSE_MS, LeasedBucket};
use super::leaser::{BucketWrite, Leaser, WriteKind};
use super::limit_ledger::{LimitLedger, signed, unsigned};
use super::settings::LeaseMode;
use super::times::Times;
use crate::call::new_id;
use crate::cost::Cost;
use crate::error::{AcquireError, AdjustError};
use crate::guard::MaybeOutage as _;
use crate::store::Correction;

/// A commit starts when a twenty-fifth of the threshold is left. Callers take from this part while
/// the commit is in flight. A larger part would cause more commits.
const LEFT: u64 = 25;
/// The most commits that settle a bucket: the one in doubt, debits, debits that were dropped, and
/// tokens that come back.
const SETTLING_COMMITS_MAX: usize = 4;

/// The balance at the store, as an answer showed it.
type Balance = Option<Arc<CompositeBucket>>;

impl BucketWrite<'_> {
    /// Debits the tokens that were handed out, and hands out those that are needed.
    pub(super) async fn commit(&mut self) -> Result<(), AcquireError> {
        if self.kind == WriteKind::SettleAll {
            self.turn.bucket.drop_pools(&mut self.turn.ledger(), self.leaser.now_ms());
        }
        let is_served = self.commit_pending().await?;
        // If nothing was handed out since the last answer, no commit shows the refill since.
        let reads_ahead = self.kind == WriteKind::Renew && self.spent == Cost::default();
        if !is_served && (!self.need.is_empty() || reads_ahead) {
            self.lease_beyond_threshold().await?;
        }
        Ok(())
    }

    /// Commits first a commit in doubt, and then the tokens handed out since. Returns true if the
    /// balance after a commit served the need.
    async fn commit_pending(&mut self) -> Result<bool, AcquireError> {
        for _ in 0..if self.kind == WriteKind::SettleAll { SETTLING_COMMITS_MAX } else { 2 } {
            let asked_at = self.leaser.times();
            let Some((mut balance, dropped)) = self.commit_once(asked_at).await? else { break };
            if !dropped.is_empty() {
                balance = self.add_dropped(&dropped).await?.or(balance);
            }
            if self.kind == WriteKind::Renew && self.serve_from(balance, asked_at).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Serves the need from the balance that a read returns. If the need exceeds the threshold or
    /// that balance, leases exactly the needed tokens.
    async fn lease_beyond_threshold(&mut self) -> Result<(), AcquireError> {
        let configuration = self.turn.ledger().configuration.clone();
        let wanted = self.turn.bucket.exact_ranges(self.need);
        let terms = Arc::new(LeaseTerms { wanted, ..LeaseTerms::default() });
        let asked = terms.least();
        loop {
            let asked_at = self.leaser.times();
            let (store, clock) = (&self.leaser.store, &self.leaser.clock);
            let left = self.left();
            let read = store.refuse_or_read(&self.id, &configuration, &asked, left, clock).await;
            let (balance, read_units) = read?;
            self.leaser.note_answer();
            self.spent.read_units += read_units;
            if self.serve_from(balance, asked_at).await? || self.need.is_empty() {
                return Ok(());
            }
            let leased = self.send(&configuration, &terms, None).await;
            let outcome = leased.map_err(|failed| {
                // If it leased any tokens, no caller got them.
                if failed.in_doubt.is_some() {
                    self.leaser.meter.ambiguous();
                }
                failed.error
            })?;
            let covers = outcome.covers(&terms.wanted);
            self.leaser.meter.count(u64::from(covers));
            // The lease changed the balance by which the pools were filled.
            self.grant(outcome.image.as_deref(), asked_at);
            self.spent += outcome.cost;
            if covers {
                return Ok(());
            }
            if self.left().is_zero() {
                return Err(AcquireError::Contended { attempts: outcome.cost.attempts });
            }
        }
    }

    /// Makes one commit, if there is anything to commit. Returns the balance after it, and the
    /// debits that were dropped, because the bucket lacks limits that it should have.
    async fn commit_once(
        &mut self,
        times: Times,
    ) -> Result<Option<(Balance, Amounts)>, AcquireError> {
        let (leaser, bucket) = (self.leaser, &self.turn.bucket);
        let (Commit { id, amounts }, configuration) = {
            let ledger = &mut *self.turn.ledger();
            bucket.catch_up(ledger, times);
            leaser.meter.count(ledger.count_takes(&bucket.atomic, times.now));
            let age = ledger.unreported_for_ms(times.now);
            let Some(commit) = bucket.commit_to_send(ledger, times.now) else { return Ok(None) };
            leaser.meter.commit_age(age);
            (commit, ledger.configuration.clone())
        };
        let correction = Correction {
            mark: None,
            id: &id,
            bucket: &self.id,
            amounts: &amounts,
            configuration: &configuration,
            is_repeated: false,
            deadline: self.left(),
        };
        let start = Instant::now();
        let result = leaser.store.correct(&correction, &leaser.clock).await;
        leaser.meter.wrote(result.as_ref().map_or(1, |corrected| corrected.attempts));
        let ledger = &mut *self.turn.ledger();
        match result {
            Ok(corrected) => {
                leaser.note_answer();
                leaser.note_duration(start.elapsed());
                ledger.unfinished().commit = None;
                self.spent.attempts += corrected.attempts;
                self.spent.write_units += corrected.adjusted.write_units;
                let is_dropped = |(limit, amount): &(LimitName, Millitokens)| {
                    *amount > Millitokens::ZERO
                        && corrected.adjusted.dropped.contains(limit)
                        && ledger.configuration.rule(limit).is_some()
                };
                Ok(Some((corrected.image, amounts.into_iter().filter(is_dropped).collect())))
            }
            Err(error) => {
                match &error {
                    // The next attempt sends the same id, so it takes effect once.
                    AdjustError::Unavailable(_) => {}
                    // It may have given tokens back, so it is not sent again.
                    AdjustError::Ambiguous(_) => {
                        leaser.meter.ambiguous();
                        ledger.unfinished().commit = None;
                    }
                    // The next commit makes it.
                    _ => {
                        ledger.unfinished().commit = None;
                        bucket.put_into_used(ledger, &amounts, times.now);
                    }
                }
                Err(not_committed(error))
            }
        }
    }

    /// Adds the limits whose debits a commit dropped: another request made the bucket anew, without
    /// them. The next commit debits them. Returns the balance after it.
    async fn add_dropped(&mut self, dropped: &Amounts) -> Result<Balance, AcquireError> {
        let (bucket, leaser) = (&self.turn.bucket, self.leaser);
        bucket.put_into_used(&mut self.turn.ledger(), dropped, leaser.now_ms());
        let mut balance = None;
        for (limit, amount) in dropped {
            match self.touch(limit).await {
                Ok(after) => balance = after,
                // It is there: yet another request has added it, and left a debt.
                Err(AcquireError::LimitExceeded(_)) => {}
                Err(AcquireError::InvalidRequest(invalid)) => {
                    tracing::warn!(bucket = %self.id, %invalid, "consumption was not counted");
                    let lost = -&Amounts::from([(limit.clone(), *amount)]);
                    bucket.put_into_used(&mut self.turn.ledger(), &lost, leaser.now_ms());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(balance)
    }

    /// Leases a millitoken of a limit and returns it in the same write, which brings the item to
    /// the limits that it should have. Returns the balance after it.
    async fn touch(&mut self, limit: &LimitName) -> Result<Balance, AcquireError> {
        let configuration = self.turn.ledger().configuration.clone();
        let least = Millitokens::saturating(1);
        let wanted = BTreeMap::from([(limit.clone(), LeaseRange { least, most: least })]);
        let returned = Amounts::from([(limit.clone(), least)]);
        let terms = LeaseTerms { wanted, returned, counted: Some(Amounts::new()) };
        let touched = self.send(&configuration, &Arc::new(terms), None).await;
        let outcome = touched.map_err(|failed| failed.error)?;
        self.spent += outcome.cost;
        Ok(outcome.image)
    }

    /// Writes changed limits, which a commit cannot do. Returns the balance after it.
    async fn write_limits(&mut self, balance: Balance) -> Result<Balance, AcquireError> {
        let configuration = self.turn.ledger().configuration.clone();
        let Some(before) = &balance else { return Ok(balance) };
        let mut limits = self.turn.bucket.layout.limits.iter();
        // Only a limit that the bucket has: a full bucket takes no other.
        let limit = limits.find(|limit| {
            configuration.rule(limit).is_some() && before.limits.contains_key(*limit)
        });
        // A level that was deleted by hand looks like an old copy: a lease reads the levels again.
        let is_current = configuration.is_followed_by(before) && !configuration.is_behind(before);
        let Some(limit) = limit.filter(|_| !is_current) else { return Ok(balance) };
        match self.touch(limit).await {
            // The bucket is in debt, and the refusal wrote the limits; or the next commit tries
            // again. Requests that wait for tokens must not fail for this.
            Err(
                AcquireError::LimitExceeded(_)
                | AcquireError::Contended { .. }
                | AcquireError::Unavailable(_),
            ) => Ok(balance),
            result => result,
        }
    }

    /// Writes changed limits, fills the pools from a balance, and takes the needed tokens. True if
    /// some were needed, and were young enough when the store was asked: the duration of its answer
    /// does not count.
    async fn serve_from(
        &mut self,
        balance: Balance,
        asked_at: Times,
    ) -> Result<bool, AcquireError> {
        let balance = self.write_limits(balance).await?;
        self.grant(balance.as_deref(), asked_at);
        let take = || self.turn.bucket.atomic.take(self.need, asked_at.now);
        Ok(!self.need.is_empty() && take() != TakeResult::NotTaken)
    }

    /// Fills the pools from the known balances.
    fn grant(&self, image: Option<&CompositeBucket>, asked_at: Times) {
        let LeaseMode::WriteBehind { threshold } = self.leaser.settings.mode else { return };
        let bucket = &self.turn.bucket;
        let ledger = &mut *self.turn.ledger();
        let times = self.leaser.times();
        bucket.catch_up(ledger, times);
        let threshold = u64::from(threshold).saturating_mul(1_000).min(POOL_MAX / 4);
        let until_ms = times.until_ms(&asked_at, asked_at.new_until_ms());
        // The deadline is shortened before tokens that end earlier are put into the pools.
        bucket.atomic.end_by(until_ms.saturating_sub(COARSE_MS));
        let configuration = &ledger.configuration;
        let now = self.leaser.store.now(&self.leaser.clock);
        let limits = evaluate(&self.id, image, Amounts::EMPTY, configuration, now);
        for index in 0..ledger.limit_ledgers.len() {
            let limit = &bucket.layout.limits[index];
            let in_flight = ledger.committing(limit);
            let limit_ledger = &mut ledger.limit_ledgers[index];
            let status = limits.iter().find(|status| status.limit == *limit);
            // A bucket that lacks the limit would drop the debit. An exact lease adds the limit
            // first.
            let is_missing = image.is_some_and(|image| !image.limits.contains_key(limit));
            let status = status.filter(|_| !is_missing);
            let balance = status.map_or(0, |status| status.available.get());
            let undebited = limit_ledger.used.saturating_add(in_flight);
            let allowed = unsigned(signed(threshold).saturating_sub(undebited));
            let target = allowed.min(unsigned(balance.saturating_sub(undebited)));
            limit_ledger.fill(&bucket.atomic.slots[index].pool, target, until_ms);
            // A renewal starts at half of this at most.
            limit_ledger.set_last_lease(2 * (threshold / LEFT));
            limit_ledger.expect(times.now, times.max_age_ms);
        }
        bucket.set_marks(ledger, times);
    }
}

impl Leaser {
    /// The tokens of a limit that were handed out and not debited, in millitokens. A commit in
    /// doubt counts as not debited. Negative if more was given back.
    pub(super) fn undebited(&self, bucket: &LeasedBucket, slot: u16) -> i64 {
        let (mut ledger, times) = (bucket.ledger(), self.times());
        let Some(ledger) = ledger.as_mut() else { return 0 };
        bucket.catch_up(ledger, times);
        let committing = ledger.committing(&bucket.layout.limits[usize::from(slot)]);
        ledger.limit_ledgers[usize::from(slot)].used.saturating_add(committing)
    }
}

impl LeasedBucket {
    /// The commit to send: the one in doubt, or else a new one of the tokens handed out. `None`:
    /// there is nothing to commit.
    fn commit_to_send(&self, ledger: &mut BucketLedger, now_ms: i64) -> Option<Commit> {
        if ledger.commit().is_none() {
            // A commit that gives tokens back is not sent again after a lost answer. So debits,
            // which are, go first and alone.
            let has_debit = ledger.limit_ledgers.iter().any(|limit_ledger| limit_ledger.used > 0);
            let amount = |(limit, limit_ledger): (&LimitName, &mut LimitLedger)| {
                let is_sent = limit_ledger.used > 0 || (!has_debit && limit_ledger.used < 0);
                let used = if is_sent { std::mem::take(&mut limit_ledger.used) } else { 0 };
                is_sent.then(|| (limit.clone(), Millitokens::saturating(used.into())))
            };
            let limits = self.layout.limits.iter();
            let amounts: Amounts =
                limits.zip(ledger.limit_ledgers.iter_mut()).filter_map(amount).collect();
            if amounts.is_empty() {
                return None;
            }
            ledger.unfinished().commit = Some(Commit { id: new_id(), amounts });
            ledger.restart_unreported_age(now_ms);
        }
        ledger.commit().cloned()
    }

    fn put_into_used(&self, ledger: &mut BucketLedger, amounts: &Amounts, now_ms: i64) {
        for (limit, limit_ledger) in self.layout.limits.iter().zip(&mut ledger.limit_ledgers) {
            limit_ledger.used = limit_ledger.used.saturating_add(amounts.of(limit).get());
        }
        ledger.restart_unreported_age(now_ms);
    }

    /// Empties the pools: nothing more is handed out of the known balance.
    fn drop_pools(&self, ledger: &mut BucketLedger, now_ms: i64) {
        ledger.start_unreported_age(now_ms);
        for (limit_ledger, slot) in ledger.limit_ledgers.iter_mut().zip(self.atomic.slots.iter()) {
            limit_ledger.catch_up(&slot.pool, now_ms);
            limit_ledger.fill(&slot.pool, 0, now_ms.saturating_sub(1));
        }
    }
}

fn not_committed(error: AdjustError) -> AcquireError {
    match error {
        AdjustError::Setup(error) => error.into(),
        AdjustError::InvalidRequest(error) => error.into(),
        AdjustError::Contended => AcquireError::Contended { attempts: 0 },
        error if error.outage().is_some() => AcquireError::Unavailable(error.into()),
        // The store answers. The commit is in doubt, as a write of an acquire may be.
        _ => AcquireError::Unavailable(AcquireError::Contended { attempts: 0 }.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leasing::atomic_bucket::Demand;

    #[test]
    fn use_noticed_at_the_end_is_unreported_since_then() {
        let bucket = LeasedBucket::of("u", &["rps"]);
        let mut ledger = BucketLedger::new(1, Arc::default(), 0);
        ledger.limit_ledgers[0].fill(&bucket.atomic.slots[0].pool, 10, 1_000);
        bucket.set_marks(&ledger, Times::default());
        assert_ne!(bucket.atomic.take(&[Demand { slot: 0, milli: 1 }], 0), TakeResult::NotTaken);
        bucket.drop_pools(&mut ledger, 500);
        assert_eq!((ledger.limit_ledgers[0].used, ledger.unreported_for_ms(500)), (1, Some(0)));
    }
}
