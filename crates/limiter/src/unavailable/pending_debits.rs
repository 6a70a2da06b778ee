//! What this process granted while the store was away, to be taken there once it is back.
//!
//! Summed up for each bucket, so their number is bounded by that of the buckets and not by how long
//! an outage takes.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::{FutureExt as _, join_all};
use quick_cache::DefaultHashBuilder;
use sluicegate_core::{Amounts, BucketId, Configuration, RequestId};

use crate::clock::Clock;
use crate::counters::Counters;
use crate::error::AdjustError;
use crate::limiter::Limiter;
use crate::store::{Correction, Store, new_id};

/// Buckets that can owe something; what is granted of others is not taken from the store later.
const DEBTS_MAX: usize = 10_000;
/// Locks over what is owed: several times as many as threads that grant at once.
const SHARDS: usize = 32;
/// Corrections under way at once.
const AT_ONCE: usize = 16;

/// What is owed.
#[derive(Debug, Default)]
pub(super) struct PendingDebits {
    /// What is being taken. An id stands for one amount: what comes later is another debt. Locked
    /// before any shard.
    sent: Mutex<VecDeque<Debt>>,
    /// What is owed beside it, each bucket in the shard of its hash.
    owed: [Mutex<Shard>; SHARDS],
    hasher: DefaultHashBuilder,
    /// PendingDebits, sent or not.
    count: AtomicUsize,
    /// Whether a warning was logged that there is no room.
    has_said_full: AtomicBool,
}

type Shard = HashMap<BucketId, Owed, DefaultHashBuilder>;

/// What one bucket owes.
#[derive(Debug, Clone)]
struct Owed {
    amounts: Amounts,
    configuration: Arc<Configuration>,
}

/// A correction that is to be made once.
#[derive(Debug, Clone)]
struct Debt {
    id: RequestId,
    bucket: BucketId,
    owed: Owed,
}

impl PendingDebits {
    fn sent(&self) -> MutexGuard<'_, VecDeque<Debt>> {
        lock(&self.sent)
    }

    fn shard(&self, bucket: &BucketId) -> MutexGuard<'_, Shard> {
        let shards = self.owed.len() as u64;
        lock(&self.owed[usize::try_from(self.hasher.hash_one(bucket) % shards).unwrap_or(0)])
    }

    /// Whether there are any: asked on every round, without a lock.
    pub(super) fn are_some(&self) -> bool {
        self.count.load(Ordering::SeqCst) > 0
    }

    /// What a bucket owes, as far as nobody knows that it was taken.
    pub(super) fn of(&self, bucket: &BucketId) -> Amounts {
        let sent = self.sent();
        let shard = self.shard(bucket);
        let sent = sent.iter().filter(|debt| debt.bucket == *bucket).map(|debt| &debt.owed);
        let mut sum = Amounts::new();
        for owed in shard.get(bucket).into_iter().chain(sent) {
            sum += &owed.amounts;
        }
        sum
    }

    /// Adds to what a bucket owes.
    pub(super) fn owe(
        &self,
        bucket: &BucketId,
        amounts: &Amounts,
        configuration: &Arc<Configuration>,
        counters: &Counters,
    ) {
        let mut shard = self.shard(bucket);
        if let Some(owed) = shard.get_mut(bucket) {
            owed.amounts += amounts;
            owed.follow(configuration);
            return;
        }
        if self.count.fetch_add(1, Ordering::SeqCst) >= DEBTS_MAX {
            self.count.fetch_sub(1, Ordering::SeqCst);
            counters.uncommitted.increment();
            if !self.has_said_full.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    buckets = DEBTS_MAX,
                    "what more buckets consume is not taken from the store when it is back"
                );
            }
            return;
        }
        let owed = Owed { amounts: amounts.clone(), configuration: configuration.clone() };
        shard.insert(bucket.clone(), owed);
    }

    /// Some that are to be taken next, the same until they are.
    fn next(&self) -> Vec<Debt> {
        let mut sent = self.sent();
        if sent.len() < AT_ONCE {
            let debt = |(bucket, owed)| Debt { id: new_id(), bucket, owed };
            for shard in &self.owed {
                sent.extend(lock(shard).drain().map(debt));
            }
            self.has_said_full.store(false, Ordering::Relaxed);
        }
        sent.iter().take(AT_ONCE).cloned().collect()
    }

    /// One that was taken, or never can be. False: somebody has said so before.
    fn settle(&self, id: &RequestId) -> bool {
        let settled = remove(&mut self.sent(), id);
        if settled.is_some() {
            self.count.fetch_sub(1, Ordering::SeqCst);
        }
        settled.is_some()
    }

    /// One that could not be taken: the others come first, so that it holds up none of them.
    fn postpone(&self, id: &RequestId) {
        let mut sent = self.sent();
        let debt = remove(&mut sent, id);
        sent.extend(debt);
    }
}

fn remove(sent: &mut VecDeque<Debt>, id: &RequestId) -> Option<Debt> {
    // Near the front, where it was taken from.
    let at = sent.iter().position(|debt| debt.id == *id)?;
    sent.remove(at)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Owed {
    /// Limits that only an earlier request brought stay: a bucket may have to be made of them.
    fn follow(&mut self, newest: &Arc<Configuration>) {
        if Arc::ptr_eq(&self.configuration, newest) || self.configuration == *newest {
            return;
        }
        let mut rules = self.configuration.rules();
        rules.extend(newest.rules());
        self.configuration = Arc::new(Configuration::explicit(rules));
    }
}

impl<S: Store, C: Clock> Limiter<S, C> {
    /// Takes from the store what is owed, as far as it answers.
    pub(super) async fn settle(&self, debts: &PendingDebits) {
        while debts.are_some() {
            let next = debts.next();
            // Boxed, or the type would exceed the default `recursion_limit` of other crates.
            let corrections = next.iter().map(|debt| self.take_owed(debts, debt).boxed());
            let corrected = join_all(corrections).await;
            if corrected.contains(&false) {
                return;
            }
            self.outage().keeper_is_alive();
        }
    }

    /// False where it is to be tried again.
    async fn take_owed(&self, debts: &PendingDebits, debt: &Debt) -> bool {
        let Debt { id, bucket, owed } = debt;
        let correction = Correction {
            id,
            bucket,
            amounts: &owed.amounts,
            configuration: &owed.configuration,
            deadline: self.correction_time(None),
        };
        let result = self.correct(&correction).await;
        if matches!(
            result,
            Err(AdjustError::Unavailable(_) | AdjustError::Contended | AdjustError::Setup(_))
        ) {
            debts.postpone(id);
            return false;
        }
        if !debts.settle(id) {
            return true;
        }
        match result {
            Ok(adjusted) if adjusted.dropped.is_empty() => {
                self.outage().local().note_settled(bucket, id, &owed.amounts);
                self.counters().committed.increment();
            }
            lost => {
                self.counters().uncommitted.increment();
                tracing::warn!(%bucket, ?lost, "consumption could not be taken from the store");
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use sluicegate_core::{EntityId, LimitName, Millitokens, Resource};

    use super::*;
    use crate::limit::Limit;
    use crate::request::rules;

    fn bucket(entity: &str) -> BucketId {
        let (entity, resource) = (EntityId::new(entity).unwrap(), Resource::new("r").unwrap());
        BucketId { entity, resource }
    }

    fn owe(debts: &PendingDebits, entity: &str, limit: &str, milli: i64) {
        let configuration =
            Configuration::explicit(rules(&[Limit::per_minute(limit, 60)]).unwrap());
        let amounts = Amounts::from([amount(limit, milli)]);
        debts.owe(&bucket(entity), &amounts, &Arc::new(configuration), &Counters::default());
    }

    fn amount(limit: &str, milli: i64) -> (LimitName, Millitokens) {
        (LimitName::new(limit).unwrap(), Millitokens::new(milli).unwrap())
    }

    #[test]
    fn debts_that_cannot_be_taken_hold_up_no_other() {
        let debts = PendingDebits::default();
        for n in 0..2 * AT_ONCE {
            owe(&debts, &format!("broken-{n}"), "rpm", 1);
        }
        let broken = debts.next();
        broken.iter().for_each(|debt| debts.postpone(&debt.id));
        assert!(debts.next().iter().all(|debt| broken.iter().all(|one| one.id != debt.id)));
        debts.next().iter().for_each(|debt| assert!(debts.settle(&debt.id)));
        owe(&debts, "late", "rpm", 1);
        for round in 0..3 {
            let next = debts.next();
            if next.iter().any(|debt| debt.bucket == bucket("late")) {
                return;
            }
            assert!(round < 2, "what came later is never taken");
            debts.settle(&next[0].id);
            next[1..].iter().for_each(|debt| debts.postpone(&debt.id));
        }
    }

    #[test]
    fn what_is_on_its_way_is_owed_until_it_is_known_to_be_taken() {
        let debts = PendingDebits::default();
        owe(&debts, "u", "rpm", 5);
        let sent = debts.next();
        owe(&debts, "u", "rpm", 7);
        owe(&debts, "other", "rpm", 1);
        assert_eq!(debts.of(&bucket("u")), [amount("rpm", 12)].into());
        assert!(debts.settle(&sent[0].id) && !debts.settle(&sent[0].id));
        assert_eq!(debts.of(&bucket("u")), [amount("rpm", 7)].into());
        assert!(debts.are_some());
    }

    #[test]
    fn a_bucket_may_have_to_be_made_of_every_limit_that_is_owed() {
        let debts = PendingDebits::default();
        owe(&debts, "u", "rpm", 5);
        owe(&debts, "u", "tpm", 7);
        let owed = &debts.next()[0].owed;
        assert_eq!(owed.amounts, [amount("rpm", 5), amount("tpm", 7)].into());
        assert!(owed.amounts.keys().all(|limit| owed.configuration.rule(limit).is_some()));
    }
}
