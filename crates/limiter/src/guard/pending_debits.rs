//! Debits of an outage: tokens that this process granted while the store was unavailable, to be
//! taken there afterwards.
//!
//! They are summed up for each bucket, so their number is bounded by the number of buckets and not
//! by the length of the outage.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use quick_cache::DefaultHashBuilder;
use sluicegate_core::{Amounts, BucketId, Configuration, RequestId};

use crate::call::new_id;
use crate::counters::Counters;
use crate::lock::lock;

/// The most buckets with pending debits. Grants of further buckets are not debited at the store.
const DEBTS_MAX: usize = 10_000;
/// Locks over the sums: several times as many as threads that grant at once.
const SHARDS: usize = 32;
/// Corrections in flight at once.
const AT_ONCE: usize = 16;

/// The pending debits.
#[derive(Debug, Default)]
pub(super) struct PendingDebits {
    /// Debits that are being sent. An id stands for one amount: later consumption is another debit.
    /// Locked before any shard.
    sent: Mutex<VecDeque<Debt>>,
    /// The other sums, each bucket in the shard of its hash.
    owed: [Mutex<Shard>; SHARDS],
    hasher: DefaultHashBuilder,
    /// The number of pending debits, sent or not.
    count: AtomicUsize,
    /// True if the warning was logged that there is no room.
    has_said_full: AtomicBool,
}

type Shard = HashMap<BucketId, Owed, DefaultHashBuilder>;

/// The pending consumption of one bucket.
#[derive(Debug, Clone)]
pub(super) struct Owed {
    pub(super) amounts: Amounts,
    pub(super) configuration: Arc<Configuration>,
}

/// A correction that must be made once.
#[derive(Debug, Clone)]
pub(super) struct Debt {
    pub(super) id: RequestId,
    pub(super) bucket: BucketId,
    pub(super) owed: Owed,
}

impl PendingDebits {
    fn sent(&self) -> MutexGuard<'_, VecDeque<Debt>> {
        lock(&self.sent)
    }

    fn shard(&self, bucket: &BucketId) -> MutexGuard<'_, Shard> {
        let shards = self.owed.len() as u64;
        lock(&self.owed[usize::try_from(self.hasher.hash_one(bucket) % shards).unwrap_or(0)])
    }

    /// True if there are any; read on every round, without a lock.
    pub(super) fn are_some(&self) -> bool {
        self.count.load(Ordering::SeqCst) > 0
    }

    /// The consumption of a bucket that is not known to be debited.
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

    /// Adds to the pending consumption of a bucket.
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
                    "no room: the consumption of further buckets is not debited later"
                );
            }
            return;
        }
        let owed = Owed { amounts: amounts.clone(), configuration: configuration.clone() };
        shard.insert(bucket.clone(), owed);
    }

    /// The debits to be sent next; the same ones until they are settled.
    pub(super) fn next(&self) -> Vec<Debt> {
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

    /// Removes a debit that was made, or never can be. False if it was removed before.
    pub(super) fn settle(&self, id: &RequestId) -> bool {
        let settled = remove(&mut self.sent(), id);
        if settled.is_some() {
            self.count.fetch_sub(1, Ordering::SeqCst);
        }
        settled.is_some()
    }

    /// Moves back a debit that could not be made, so that it does not hold up the others.
    pub(super) fn postpone(&self, id: &RequestId) {
        let mut sent = self.sent();
        let debt = remove(&mut sent, id);
        sent.extend(debt);
    }
}

fn remove(sent: &mut VecDeque<Debt>, id: &RequestId) -> Option<Debt> {
    // It is near the front, where it was taken from.
    let at = sent.iter().position(|debt| debt.id == *id)?;
    sent.remove(at)
}

impl Owed {
    /// Limits that only an earlier request brought stay: a bucket may have to be created from them.
    fn follow(&mut self, newest: &Arc<Configuration>) {
        if Arc::ptr_eq(&self.configuration, newest) || self.configuration == *newest {
            return;
        }
        let mut rules = self.configuration.rules();
        rules.extend(newest.rules());
        self.configuration = Arc::new(Configuration::explicit(rules));
    }
}

#[cfg(test)]
mod tests {
    use sluicegate_core::{EntityId, LimitName, Millitokens, Resource};

    use super::*;
    use crate::check::rules;
    use crate::limit::Limit;

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
    fn debit_in_flight_is_owed_until_it_is_known_to_be_taken() {
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
