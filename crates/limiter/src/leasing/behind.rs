//! Write-behind: hands out tokens of the known balance and debits them afterwards.
//!
//! Tokens in the pools plus tokens handed out and not debited never exceed the threshold. Tokens
//! that a commit is debiting count as not debited. A commit is a correction, which is never
//! refused; the balance that it returns limits what may be handed out next.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sluicegate_core::{Amounts, CompositeBucket, LeaseRange, LimitName, Millitokens, evaluate};
use tokio::time::Instant;

use super::atomic_bucket::{Demand, POOL_MAX, TakeResult};
use super::bucket_ledger::{BucketLedger, Commit};
use super::leased_bucket::{COARSE_MS, LeasedBucket, WriteTurn};
use super::leaser::{Leaser, WriteKind};
use super::limit_ledger::{LimitLedger, signed, unsigned};
use super::times::Times;
use crate::call::new_id;
use crate::clock::Clock;
use crate::cost::Cost;
use crate::error::{AcquireError, AdjustError};
use crate::guard::MaybeOutage as _;
use crate::leasing_store::LeaseRequest;
use crate::store::Correction;

/// A commit starts when a twenty-fifth of the threshold is left. Callers take from this part while the
/// commit is in flight. A larger part would cause more commits.
const LEFT: u64 = 25;
/// The most commits that settle a bucket: the one in doubt, debits, debits that were dropped, and
/// tokens that come back.
const SETTLING_COMMITS_MAX: usize = 4;

impl Leaser {
    /// Debits the tokens that were handed out, and hands out those that are needed.
    pub(super) async fn commit(
        &self,
        turn: &WriteTurn,
        need: &[Demand],
        kind: WriteKind,
        threshold: u32,
        deadline: Duration,
    ) -> Result<Cost, AcquireError> {
        let until = Instant::now() + deadline;
        let mut spent = Cost::default();
        if kind == WriteKind::SettleAll {
            turn.bucket.drop_pools(&mut turn.ledger(), self.now_ms());
        }
        let is_served = self.commit_pending(turn, need, kind, threshold, until, &mut spent).await?;
        // If nothing was handed out since the last answer, no commit shows the refill since.
        let reads_ahead = kind == WriteKind::Renew && spent == Cost::default();
        if !is_served && (!need.is_empty() || reads_ahead) {
            self.lease_beyond_threshold(turn, need, threshold, until, &mut spent).await?;
        }
        Ok(spent)
    }

    /// Commits first a commit in doubt, and then the tokens handed out since. Returns true if the
    /// balance after a commit served the need.
    async fn commit_pending(
        &self,
        turn: &WriteTurn,
        need: &[Demand],
        kind: WriteKind,
        threshold: u32,
        until: Instant,
        spent: &mut Cost,
    ) -> Result<bool, AcquireError> {
        for _ in 0..if kind == WriteKind::SettleAll { SETTLING_COMMITS_MAX } else { 2 } {
            let asked_at = self.times();
            let committed = self.commit_once(turn, asked_at, left(until)).await?;
            let Some((committed, mut image, dropped)) = committed else { break };
            *spent += committed;
            if !dropped.is_empty() {
                image = self.add_dropped(turn, &dropped, spent, until).await?.or(image);
            }
            if kind == WriteKind::Renew {
                let image = self.write_limits(turn, image, spent, left(until)).await?;
                self.grant(turn, image.as_deref(), threshold, asked_at);
                if !need.is_empty() && try_take_as_of(turn, need, asked_at) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Serves the need from the balance that a read returns. If the need exceeds the threshold or
    /// that balance, leases exactly the needed tokens.
    async fn lease_beyond_threshold(
        &self,
        turn: &WriteTurn,
        need: &[Demand],
        threshold: u32,
        until: Instant,
        spent: &mut Cost,
    ) -> Result<(), AcquireError> {
        let configuration = turn.ledger().configuration.clone();
        let wanted = turn.bucket.exact_ranges(need);
        let mut lease = LeaseRequest {
            bucket: &turn.bucket.id(),
            configuration: &configuration,
            wanted: &wanted,
            returned: &Amounts::new(),
            counted: None,
            last: None,
            deadline: Duration::ZERO,
        };
        loop {
            lease.deadline = left(until);
            let asked_at = self.times();
            let (image, read_units) = self.store.read_bucket(&lease, &self.clock).await?;
            spent.read_units += read_units;
            let image = self.write_limits(turn, image, spent, left(until)).await?;
            self.grant(turn, image.as_deref(), threshold, asked_at);
            if need.is_empty() || try_take_as_of(turn, need, asked_at) {
                return Ok(());
            }
            lease.deadline = left(until);
            match self.store.lease(&lease, None, &self.clock).await {
                Ok(outcome) => {
                    let (covers, attempts) = (outcome.covers(&wanted), outcome.cost.attempts);
                    self.meter.count(u64::from(covers));
                    // The lease changed the balance by which the pools were filled.
                    self.grant(turn, outcome.image.as_deref(), threshold, asked_at);
                    *spent += self.spent(outcome);
                    if covers {
                        return Ok(());
                    }
                    if left(until).is_zero() {
                        return Err(AcquireError::Contended { attempts });
                    }
                }
                Err(failed) => {
                    self.meter.wrote(failed.attempts);
                    // If it leased any tokens, no caller got them.
                    if failed.in_doubt.is_some() {
                        self.meter.ambiguous();
                    }
                    return Err(failed.error);
                }
            }
        }
    }

    /// The tokens of a limit that were handed out and not debited, in millitokens. A commit in doubt
    /// counts as not debited. Negative if more was given back.
    pub(super) fn undebited(&self, bucket: &LeasedBucket, slot: u16) -> i64 {
        let (mut ledger, times) = (bucket.ledger(), self.times());
        let Some(ledger) = ledger.as_mut() else { return 0 };
        bucket.catch_up(ledger, times);
        let committing = ledger.committing(&bucket.layout.limits[usize::from(slot)]);
        ledger.limit_ledgers[usize::from(slot)].used.saturating_add(committing)
    }

    /// Makes one commit, if there is anything to commit. Returns its cost, the balance after it,
    /// and the debits that were dropped, because the bucket lacks limits that it should have.
    async fn commit_once(
        &self,
        turn: &WriteTurn,
        times: Times,
        deadline: Duration,
    ) -> Result<Option<(Cost, Option<Arc<CompositeBucket>>, Amounts)>, AcquireError> {
        let bucket = &turn.bucket;
        let (Commit { id, amounts }, configuration) = {
            let ledger = &mut *turn.ledger();
            bucket.catch_up(ledger, times);
            self.meter.count(ledger.count_takes(&bucket.atomic, times.now));
            let age = ledger.unreported_for_ms(times.now);
            let Some(commit) = bucket.commit_to_send(ledger, times.now) else { return Ok(None) };
            self.meter.commit_age(age);
            (commit, ledger.configuration.clone())
        };
        let correction = Correction {
            mark: None,
            id: &id,
            bucket: &bucket.id(),
            amounts: &amounts,
            configuration: &configuration,
            is_repeated: false,
            deadline,
        };
        let start = Instant::now();
        let result = self.store.correct(&correction, &self.clock).await;
        let ledger = &mut *turn.ledger();
        match result {
            Ok(corrected) => {
                self.note_duration(start.elapsed());
                self.meter.wrote(corrected.attempts);
                ledger.unfinished().commit = None;
                let write_units = corrected.adjusted.write_units;
                let attempts = corrected.attempts;
                let spent = Cost { attempts, write_units, ..Cost::default() };
                let is_dropped = |(limit, amount): &(LimitName, Millitokens)| {
                    *amount > Millitokens::ZERO
                        && corrected.adjusted.dropped.contains(limit)
                        && ledger.configuration.rule(limit).is_some()
                };
                let dropped = amounts.into_iter().filter(is_dropped).collect();
                Ok(Some((spent, corrected.image, dropped)))
            }
            Err(error) => {
                self.meter.wrote(1);
                match &error {
                    // The next attempt sends the same id, so it takes effect once.
                    AdjustError::Unavailable(_) => {}
                    // It may have given tokens back, so it is not sent again.
                    AdjustError::Ambiguous(_) => {
                        self.meter.ambiguous();
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
    async fn add_dropped(
        &self,
        turn: &WriteTurn,
        dropped: &Amounts,
        spent: &mut Cost,
        until: Instant,
    ) -> Result<Option<Arc<CompositeBucket>>, AcquireError> {
        turn.bucket.put_into_used(&mut turn.ledger(), dropped, self.now_ms());
        let mut image = None;
        for (limit, amount) in dropped {
            match self.touch(turn, limit, spent, left(until)).await {
                Ok(after) => image = after,
                // It is there: yet another request has added it, and left a debt.
                Err(AcquireError::LimitExceeded(_)) => {}
                Err(AcquireError::InvalidRequest(invalid)) => {
                    tracing::warn!(bucket = %turn.bucket.id(), %invalid, "consumption was not counted");
                    let lost = -&Amounts::from([(limit.clone(), *amount)]);
                    turn.bucket.put_into_used(&mut turn.ledger(), &lost, self.now_ms());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(image)
    }

    /// Leases a millitoken of a limit and returns it in the same write, which brings the item to the
    /// limits that it should have. Returns the balance after it.
    async fn touch(
        &self,
        turn: &WriteTurn,
        limit: &LimitName,
        spent: &mut Cost,
        deadline: Duration,
    ) -> Result<Option<Arc<CompositeBucket>>, AcquireError> {
        let configuration = turn.ledger().configuration.clone();
        let least = Millitokens::saturating(1);
        let lease = LeaseRequest {
            bucket: &turn.bucket.id(),
            configuration: &configuration,
            wanted: &BTreeMap::from([(limit.clone(), LeaseRange { least, most: least })]),
            returned: &Amounts::from([(limit.clone(), least)]),
            counted: Some(Amounts::EMPTY),
            last: None,
            deadline,
        };
        match self.store.lease(&lease, None, &self.clock).await {
            Ok(outcome) => {
                let image = outcome.image.clone();
                *spent += self.spent(outcome);
                Ok(image)
            }
            Err(failed) => {
                self.meter.wrote(failed.attempts);
                Err(failed.error)
            }
        }
    }

    /// Writes changed limits, which a commit cannot do.
    async fn write_limits(
        &self,
        turn: &WriteTurn,
        image: Option<Arc<CompositeBucket>>,
        spent: &mut Cost,
        deadline: Duration,
    ) -> Result<Option<Arc<CompositeBucket>>, AcquireError> {
        let configuration = turn.ledger().configuration.clone();
        let Some(before) = &image else { return Ok(image) };
        let mut limits = turn.bucket.layout.limits.iter();
        // Only a limit that the bucket has: a full bucket takes no other.
        let limit = limits.find(|limit| {
            configuration.rule(limit).is_some() && before.limits.contains_key(*limit)
        });
        // A level that was deleted by hand looks like an old copy: a lease reads the levels again.
        let is_current = configuration.is_followed_by(before) && !configuration.is_behind(before);
        let Some(limit) = limit.filter(|_| !is_current) else {
            return Ok(image);
        };
        match self.touch(turn, limit, spent, deadline).await {
            // The bucket is in debt, and the refusal wrote the limits; or the next commit tries
            // again. Requests that wait for tokens must not fail for this.
            Err(
                AcquireError::LimitExceeded(_)
                | AcquireError::Contended { .. }
                | AcquireError::Unavailable(_),
            ) => Ok(image),
            result => result,
        }
    }

    /// Fills the pools from the known balances.
    fn grant(
        &self,
        turn: &WriteTurn,
        image: Option<&CompositeBucket>,
        threshold: u32,
        asked_at: Times,
    ) {
        let bucket = &turn.bucket;
        let ledger = &mut *turn.ledger();
        let times = self.times();
        bucket.catch_up(ledger, times);
        let threshold = u64::from(threshold).saturating_mul(1_000).min(POOL_MAX / 4);
        let until_ms = times.until_ms(&asked_at, asked_at.new_until_ms());
        // The deadline is shortened before tokens that end earlier are put into the pools.
        bucket.atomic.end_by(until_ms.saturating_sub(COARSE_MS));
        let (configuration, now) = (&ledger.configuration, self.clock.now());
        let limits = evaluate(&bucket.id(), image, Amounts::EMPTY, configuration, now);
        for index in 0..ledger.limit_ledgers.len() {
            let limit = &bucket.layout.limits[index];
            let in_flight = ledger.committing(limit);
            let limit_ledger = &mut ledger.limit_ledgers[index];
            let status = limits.iter().find(|status| status.limit == *limit);
            // A bucket that lacks the limit would drop the debit. An exact lease adds the limit first.
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

impl LeasedBucket {
    /// The commit to send: the one in doubt, or else a new one of the tokens handed out. `None`:
    /// there is nothing to commit.
    fn commit_to_send(&self, ledger: &mut BucketLedger, now_ms: i64) -> Option<Commit> {
        if ledger.commit().is_none() {
            // A commit that gives tokens back is not sent again after a lost answer. So debits, which
            // are, go first and alone.
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

/// Takes the needed tokens, if they were young enough when the store was asked. The duration of its
/// answer does not count.
fn try_take_as_of(turn: &WriteTurn, need: &[Demand], asked_at: Times) -> bool {
    turn.bucket.atomic.take(need, asked_at.now) != TakeResult::NotTaken
}

fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

#[cfg(test)]
mod tests {
    use sluicegate_core::{EntityId, Resource};

    use super::*;
    use crate::leasing::interner::BucketLayout;

    #[test]
    fn use_noticed_at_the_end_is_unreported_since_then() {
        let (resource, limits) =
            (Resource::new("r").unwrap(), vec![LimitName::new("rps").unwrap()]);
        let bucket = LeasedBucket::new(
            EntityId::new("u").unwrap(),
            BucketLayout { resource, limits }.into(),
        );
        let mut ledger = BucketLedger::new(1, Arc::default(), 0);
        ledger.limit_ledgers[0].fill(&bucket.atomic.slots[0].pool, 10, 1_000);
        bucket.set_marks(&ledger, Times::default());
        assert_ne!(bucket.atomic.take(&[Demand { slot: 0, milli: 1 }], 0), TakeResult::NotTaken);
        bucket.drop_pools(&mut ledger, 500);
        assert_eq!((ledger.limit_ledgers[0].used, ledger.unreported_for_ms(500)), (1, Some(0)));
    }
}
