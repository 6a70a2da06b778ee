//! Debits of an outage: tokens that this process granted while the store was unavailable, and that
//! it must take from the store afterwards.
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

/// The most pending debits; a bucket has several if it was granted more while one was being made.
/// Grants beyond that are not debited at the store.
const PENDING_DEBITS_MAX: usize = 10_000;
/// The number of locks over the sums: several times the number of threads that grant at once.
const STRIPES: usize = 32;
/// Corrections in flight at once.
const AT_ONCE: usize = 16;

/// The pending debits.
#[derive(Debug, Default)]
pub(super) struct PendingDebits {
    /// Debits that have an id, the next ones first. An id stands for one amount: later consumption
    /// is another debit. This lock is taken before that of any stripe.
    numbered: Mutex<VecDeque<PendingDebit>>,
    /// The sums that have no id yet, each bucket in the stripe of its hash.
    unnumbered: [Mutex<Stripe>; STRIPES],
    hasher: DefaultHashBuilder,
    /// The number of pending debits, with an id or without.
    count: AtomicUsize,
    /// True if a warning was logged that there is no room.
    has_said_full: AtomicBool,
}

type Stripe = HashMap<BucketId, PendingAmounts, DefaultHashBuilder>;

/// The pending consumption of one bucket.
#[derive(Debug, Clone)]
pub(super) struct PendingAmounts {
    pub(super) amounts: Amounts,
    pub(super) configuration: Arc<Configuration>,
}

/// A correction that must be made once.
#[derive(Debug, Clone)]
pub(super) struct PendingDebit {
    pub(super) id: RequestId,
    pub(super) bucket: BucketId,
    pub(super) pending: PendingAmounts,
}

impl PendingDebits {
    fn numbered(&self) -> MutexGuard<'_, VecDeque<PendingDebit>> {
        lock(&self.numbered)
    }

    fn stripe(&self, bucket: &BucketId) -> MutexGuard<'_, Stripe> {
        let stripes = self.unnumbered.len() as u64;
        lock(&self.unnumbered[usize::try_from(self.hasher.hash_one(bucket) % stripes).unwrap_or(0)])
    }

    /// True if there are pending debits. Takes no lock: the recovery task asks on every round.
    pub(super) fn are_some(&self) -> bool {
        self.count.load(Ordering::SeqCst) > 0
    }

    /// The consumption of a bucket that is not known to be debited.
    pub(super) fn of(&self, bucket: &BucketId) -> Amounts {
        let numbered = self.numbered();
        let stripe = self.stripe(bucket);
        let numbered =
            numbered.iter().filter(|debit| debit.bucket == *bucket).map(|debit| &debit.pending);
        let mut sum = Amounts::new();
        for pending in stripe.get(bucket).into_iter().chain(numbered) {
            sum += &pending.amounts;
        }
        sum
    }

    /// Adds to the pending consumption of a bucket.
    pub(super) fn add(
        &self,
        bucket: &BucketId,
        amounts: &Amounts,
        configuration: &Arc<Configuration>,
        counters: &Counters,
    ) {
        let mut stripe = self.stripe(bucket);
        if let Some(pending) = stripe.get_mut(bucket) {
            pending.amounts += amounts;
            pending.follow(configuration);
            return;
        }
        if self.count.fetch_add(1, Ordering::SeqCst) >= PENDING_DEBITS_MAX {
            self.count.fetch_sub(1, Ordering::SeqCst);
            counters.outage_debits_lost.increment();
            if !self.has_said_full.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    buckets = PENDING_DEBITS_MAX,
                    "no room: the consumption of further buckets is not debited later"
                );
            }
            return;
        }
        let pending =
            PendingAmounts { amounts: amounts.clone(), configuration: configuration.clone() };
        stripe.insert(bucket.clone(), pending);
    }

    /// The debits to be sent next; the same ones until they are removed or postponed.
    pub(super) fn next(&self) -> Vec<PendingDebit> {
        let mut numbered = self.numbered();
        if numbered.len() < AT_ONCE {
            let debit = |(bucket, pending)| PendingDebit { id: new_id(), bucket, pending };
            for stripe in &self.unnumbered {
                numbered.extend(lock(stripe).drain().map(debit));
            }
            self.has_said_full.store(false, Ordering::Relaxed);
        }
        numbered.iter().take(AT_ONCE).cloned().collect()
    }

    /// Removes a debit that was made, or never can be. False if it was removed before.
    pub(super) fn remove(&self, id: &RequestId) -> bool {
        let removed = take_out(&mut self.numbered(), id);
        if removed.is_some() {
            self.count.fetch_sub(1, Ordering::SeqCst);
        }
        removed.is_some()
    }

    /// Moves back a debit that could not be made, so that it does not hold up the others.
    pub(super) fn postpone(&self, id: &RequestId) {
        let mut numbered = self.numbered();
        let debit = take_out(&mut numbered, id);
        numbered.extend(debit);
    }
}

fn take_out(numbered: &mut VecDeque<PendingDebit>, id: &RequestId) -> Option<PendingDebit> {
    // The debit is near the front: `next` returns the first ones.
    let at = numbered.iter().position(|debit| debit.id == *id)?;
    numbered.remove(at)
}

impl PendingAmounts {
    /// Takes over the newest limits, and keeps limits that only an earlier request brought: the
    /// bucket may have to be created from them.
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

    fn add(pending_debits: &PendingDebits, entity: &str, limit: &str, milli: i64) {
        let rules = rules(&[Limit::per_minute(limit, 60)]).unwrap();
        let configuration = Arc::new(Configuration::explicit(rules));
        let amounts = Amounts::from([amount(limit, milli)]);
        pending_debits.add(&bucket(entity), &amounts, &configuration, &Counters::default());
    }

    fn amount(limit: &str, milli: i64) -> (LimitName, Millitokens) {
        (LimitName::new(limit).unwrap(), Millitokens::new(milli).unwrap())
    }

    #[test]
    fn debits_that_cannot_be_taken_hold_up_no_other() {
        let pending_debits = PendingDebits::default();
        for n in 0..2 * AT_ONCE {
            add(&pending_debits, &format!("broken-{n}"), "rpm", 1);
        }
        let broken = pending_debits.next();
        broken.iter().for_each(|debit| pending_debits.postpone(&debit.id));
        assert!(
            pending_debits.next().iter().all(|debit| broken.iter().all(|one| one.id != debit.id))
        );
        pending_debits.next().iter().for_each(|debit| assert!(pending_debits.remove(&debit.id)));
        add(&pending_debits, "late", "rpm", 1);
        for round in 0..3 {
            let next = pending_debits.next();
            if next.iter().any(|debit| debit.bucket == bucket("late")) {
                return;
            }
            assert!(round < 2, "what came later is never taken");
            pending_debits.remove(&next[0].id);
            next[1..].iter().for_each(|debit| pending_debits.postpone(&debit.id));
        }
    }

    #[test]
    fn debit_in_flight_is_pending_until_it_is_known_to_be_taken() {
        let pending_debits = PendingDebits::default();
        add(&pending_debits, "u", "rpm", 5);
        let sent = pending_debits.next();
        add(&pending_debits, "u", "rpm", 7);
        add(&pending_debits, "other", "rpm", 1);
        assert_eq!(pending_debits.of(&bucket("u")), [amount("rpm", 12)].into());
        assert!(pending_debits.remove(&sent[0].id) && !pending_debits.remove(&sent[0].id));
        assert_eq!(pending_debits.of(&bucket("u")), [amount("rpm", 7)].into());
        assert!(pending_debits.are_some());
    }

    #[test]
    fn bucket_is_made_of_every_limit_with_a_pending_debit() {
        let pending_debits = PendingDebits::default();
        add(&pending_debits, "u", "rpm", 5);
        add(&pending_debits, "u", "tpm", 7);
        let pending = &pending_debits.next()[0].pending;
        assert_eq!(pending.amounts, [amount("rpm", 5), amount("tpm", 7)].into());
        assert!(pending.amounts.keys().all(|limit| pending.configuration.rule(limit).is_some()));
    }
}
