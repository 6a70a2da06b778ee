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
use super::leased_bucket::{COARSE_MS, LeasedBucket};
use super::leaser::{Leaser, WriteKind};
use super::limit_ledger::{LimitLedger, signed, unsigned};
use super::spent::Spent;
use super::times::Times;
use crate::call::new_id;
use crate::clock::Clock;
use crate::error::{AcquireError, AdjustError};
use crate::leasing_store::{Counting, LeaseRequest};
use crate::store::Correction;

/// A commit starts when a twenty-fifth of the threshold is left. Callers take from this part while the
/// commit is in flight. A larger part would cause more commits.
const LEFT: u64 = 25;

impl Leaser {
    /// Debits the tokens that were handed out, and hands out those that are needed.
    pub(super) async fn commit(
        &self,
        bucket: &LeasedBucket,
        need: &[Demand],
        kind: WriteKind,
        threshold: u32,
        deadline: Duration,
    ) -> Result<Spent, AcquireError> {
        let until = Instant::now() + deadline;
        let mut spent = Spent::default();
        if kind == WriteKind::SettleAll
            && let Some(ledger) = bucket.ledger().as_mut()
        {
            bucket.drop_pools(ledger, self.now_ms());
        }
        // First a commit that was not answered, then one of the tokens handed out since.
        for _ in 0..2 {
            let left = until.saturating_duration_since(Instant::now());
            let asked = self.times();
            let committed = self.commit_once(bucket, asked, left).await?;
            let Some((committed, image)) = committed else { break };
            spent.add(committed);
            if kind == WriteKind::Renew {
                let left = until.saturating_duration_since(Instant::now());
                let image = self.bring_limits(bucket, image, &mut spent, left).await?;
                self.grant(bucket, image.as_deref(), threshold, asked);
                if !need.is_empty() && takes(bucket, need, asked) {
                    return Ok(spent);
                }
            }
        }
        if need.is_empty() {
            return Ok(spent);
        }
        let Some(configuration) =
            bucket.ledger().as_ref().map(|ledger| ledger.configuration.clone())
        else {
            return Err(AcquireError::Contended { attempts: 0 });
        };
        let wanted = wanted(bucket, need);
        let mut lease = LeaseRequest {
            bucket: &bucket.id(),
            configuration: &configuration,
            wanted: &wanted,
            returned: &Amounts::new(),
            counting: Counting::Leased,
            last: None,
            deadline: until.saturating_duration_since(Instant::now()),
        };
        let asked = self.times();
        let (image, read_units) = self.store.read_bucket(&lease, &self.clock).await?;
        spent.read_units += read_units;
        let left = until.saturating_duration_since(Instant::now());
        let image = self.bring_limits(bucket, image, &mut spent, left).await?;
        self.grant(bucket, image.as_deref(), threshold, asked);
        if takes(bucket, need, asked) {
            return Ok(spent);
        }
        // The need exceeds the threshold or the balance.
        lease.deadline = until.saturating_duration_since(Instant::now());
        let result = self.store.lease(&lease, None, &self.clock).await;
        match result {
            Ok(outcome) => {
                self.meter.count(1);
                // The tokens in the pools were granted on the earlier balance.
                self.grant(bucket, outcome.image.as_deref(), threshold, asked);
                spent.add(self.spent(outcome));
                Ok(spent)
            }
            Err(failed) => {
                self.meter.wrote(failed.attempts);
                // If it leased any tokens, no caller got them.
                if failed.unacked.is_some() {
                    self.meter.ambiguous();
                }
                Err(failed.error)
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

    /// Makes one commit, if there is anything to commit; returns its cost and the balance after it.
    async fn commit_once(
        &self,
        bucket: &LeasedBucket,
        times: Times,
        deadline: Duration,
    ) -> Result<Option<(Spent, Option<Arc<CompositeBucket>>)>, AcquireError> {
        let opened = bucket.ledger().as_mut().and_then(|ledger| {
            bucket.catch_up(ledger, times);
            self.meter.decided(ledger, bucket, times.now);
            let age = ledger.unreported_for_ms(times.now);
            let commit = bucket.commit_to_send(ledger, times.now)?;
            self.meter.commit_age(age);
            Some((commit, ledger.configuration.clone()))
        });
        let Some((Commit { id, amounts }, configuration)) = opened else { return Ok(None) };
        let correction = Correction {
            id: &id,
            bucket: &bucket.id(),
            amounts: &amounts,
            configuration: &configuration,
            deadline,
        };
        let start = Instant::now();
        let result = self.store.correct(&correction, &self.clock).await;
        let mut ledger = bucket.ledger();
        let Some(ledger) = ledger.as_mut() else { return Ok(None) };
        match result {
            Ok(corrected) => {
                self.note_duration(start.elapsed());
                self.meter.wrote(corrected.attempts);
                ledger.unfinished().commit = None;
                let write_units = corrected.adjusted.write_units;
                let attempts = corrected.attempts;
                let spent = Spent { attempts, write_units, ..Spent::default() };
                Ok(Some((spent, corrected.image)))
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
                    _ => bucket.undo_commit(ledger, times.now),
                }
                Err(not_committed(error))
            }
        }
    }

    /// Brings changed limits to a bucket. A commit is a correction, which leaves the limits as they
    /// are. So this leases a thousandth of a token, which the same write gives back.
    async fn bring_limits(
        &self,
        bucket: &LeasedBucket,
        image: Option<Arc<CompositeBucket>>,
        spent: &mut Spent,
        deadline: Duration,
    ) -> Result<Option<Arc<CompositeBucket>>, AcquireError> {
        let configuration = bucket.ledger().as_ref().map(|ledger| ledger.configuration.clone());
        let (Some(configuration), Some(before)) = (configuration, &image) else { return Ok(image) };
        let mut limits = bucket.layout.limits.iter();
        // A limit that the item lacks may have no room in it.
        let limit = limits.find(|limit| {
            configuration.rule(limit).is_some() && before.limits.contains_key(*limit)
        });
        let Some(limit) = limit.filter(|_| !configuration.is_followed_by(before)) else {
            return Ok(image);
        };
        let least = Millitokens::saturating(1);
        let lease = LeaseRequest {
            bucket: &bucket.id(),
            configuration: &configuration,
            wanted: &BTreeMap::from([(limit.clone(), LeaseRange { least, most: least })]),
            returned: &Amounts::from([(limit.clone(), least)]),
            counting: Counting::Used(&Amounts::new()),
            last: None,
            deadline,
        };
        match self.store.lease(&lease, None, &self.clock).await {
            Ok(outcome) => {
                let after = outcome.image.clone();
                spent.add(self.spent(outcome));
                Ok(after)
            }
            Err(failed) => {
                self.meter.wrote(failed.attempts);
                match failed.error {
                    // The bucket is in debt, and the refusal wrote the limits; or the next commit
                    // tries again. Requests that wait for tokens must not fail for this.
                    AcquireError::LimitExceeded(_)
                    | AcquireError::Contended { .. }
                    | AcquireError::Unavailable(_) => Ok(image),
                    error => Err(error),
                }
            }
        }
    }

    /// Fills the pools from the known balances.
    fn grant(
        &self,
        bucket: &LeasedBucket,
        image: Option<&CompositeBucket>,
        threshold: u32,
        asked: Times,
    ) {
        let mut ledger = bucket.ledger();
        let Some(ledger) = ledger.as_mut() else { return };
        let times = self.times();
        bucket.catch_up(ledger, times);
        let threshold = u64::from(threshold).saturating_mul(1_000).min(POOL_MAX / 4);
        let max_age_ms = self.settings.max_age_ms();
        let until_ms = asked.now.saturating_add(max_age_ms);
        let until_ms = times.until_ms(&asked, until_ms, max_age_ms);
        // The deadline is shortened before tokens that end earlier are put there.
        bucket.atomic.end_by(until_ms.saturating_sub(COARSE_MS));
        let (configuration, now) = (&ledger.configuration, self.clock.now());
        let limits = evaluate(&bucket.id(), image, Amounts::EMPTY, configuration, now);
        for index in 0..ledger.limit_ledgers.len() {
            let limit = &bucket.layout.limits[index];
            let in_flight = ledger.committing(limit);
            let limit_ledger = &mut ledger.limit_ledgers[index];
            let status = limits.iter().find(|status| status.limit == *limit);
            let balance = status.map_or(0, |status| status.available.get());
            let open = limit_ledger.used.saturating_add(in_flight);
            let allowed = unsigned(signed(threshold).saturating_sub(open));
            let target = allowed.min(unsigned(balance.saturating_sub(open)));
            limit_ledger.fill(&bucket.atomic.slots[index].pool, target, until_ms);
            limit_ledger.set_last_lease(2 * threshold / LEFT);
            limit_ledger.expect(times.now, self.settings.max_age_ms());
        }
        bucket.tell(ledger, times);
    }
}

impl LeasedBucket {
    /// The commit to send: the one in doubt, or else a new one of the tokens handed out. `None`:
    /// there is nothing to commit.
    fn commit_to_send(&self, ledger: &mut BucketLedger, now_ms: i64) -> Option<Commit> {
        if ledger.commit().is_none() {
            let amount = |(limit, limit_ledger): (&LimitName, &mut LimitLedger)| {
                let used = std::mem::take(&mut limit_ledger.used);
                (used != 0).then(|| (limit.clone(), Millitokens::saturating(used.into())))
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

    /// Puts the amounts of a commit back, for the next one.
    fn undo_commit(&self, ledger: &mut BucketLedger, now_ms: i64) {
        let Some(commit) = ledger.unfinished().commit.take() else { return };
        for (limit, limit_ledger) in self.layout.limits.iter().zip(&mut ledger.limit_ledgers) {
            let in_flight = commit.amounts.of(limit).get();
            limit_ledger.used = limit_ledger.used.saturating_add(in_flight);
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

/// The least amounts that serve the need, and no more.
pub(super) fn wanted(bucket: &LeasedBucket, need: &[Demand]) -> BTreeMap<LimitName, LeaseRange> {
    let want = |demand: &Demand| {
        let amount = Millitokens::saturating(signed(demand.milli).into());
        (
            bucket.layout.limits[usize::from(demand.slot)].clone(),
            LeaseRange { least: amount, most: amount },
        )
    };
    need.iter().map(want).collect()
}

fn not_committed(error: AdjustError) -> AcquireError {
    match error {
        AdjustError::Setup(error) => error.into(),
        AdjustError::InvalidRequest(error) => error.into(),
        AdjustError::Contended => AcquireError::Contended { attempts: 0 },
        error => AcquireError::Unavailable(error.into()),
    }
}

/// Takes the tokens that the store was asked for, however long its answer took.
fn takes(bucket: &LeasedBucket, need: &[Demand], asked: Times) -> bool {
    bucket.atomic.take(need, asked.now) != TakeResult::NotTaken
}

#[cfg(test)]
mod tests {
    use sluicegate_core::{EntityId, Resource};

    use super::*;
    use crate::leasing::interner::BucketLayout;

    #[test]
    fn use_noticed_at_the_end_is_open_since_then() {
        let (resource, limits) =
            (Resource::new("r").unwrap(), vec![LimitName::new("rps").unwrap()]);
        let bucket = LeasedBucket::new(
            EntityId::new("u").unwrap(),
            BucketLayout { resource, limits }.into(),
        );
        let mut ledger = BucketLedger::new(1, Arc::default(), 0);
        ledger.limit_ledgers[0].fill(&bucket.atomic.slots[0].pool, 10, 1_000);
        bucket.tell(&ledger, Times::default());
        assert_ne!(bucket.atomic.take(&[Demand { slot: 0, milli: 1 }], 0), TakeResult::NotTaken);
        bucket.drop_pools(&mut ledger, 500);
        assert_eq!((ledger.limit_ledgers[0].used, ledger.unreported_for_ms(500)), (1, Some(0)));
    }
}
