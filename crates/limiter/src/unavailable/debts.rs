//! What this process granted while the store was away, to be taken there once it is back.
//!
//! Summed up for each bucket, so their number is bounded by that of the buckets and not by how long
//! an outage takes.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::{FutureExt as _, join_all};
use quick_cache::DefaultHashBuilder;
use sluicegate_core::{Amounts, BucketId, Configuration, Millitokens, RequestId};

use crate::clock::Clock;
use crate::counters::Counters;
use crate::error::AdjustError;
use crate::limiter::Limiter;
use crate::store::{Correction, Store, new_id};

/// Buckets that can owe something; what is granted of others is not taken from the store later.
const DEBTS_MAX: usize = 10_000;
/// Corrections under way at once.
const AT_ONCE: usize = 16;

/// What is owed.
#[derive(Debug, Default)]
pub(super) struct Debts {
    books: Mutex<Books>,
    /// Whether there is any: asked on every round, without the lock.
    are_some: AtomicBool,
}

#[derive(Debug, Default)]
struct Books {
    owed: HashMap<BucketId, Owed, DefaultHashBuilder>,
    /// What is being taken. An id stands for one amount: what comes later is another debt.
    sent: VecDeque<Debt>,
    /// Whether a warning was logged that there is no room.
    has_said_full: bool,
}

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

impl Debts {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there are any.
    pub(super) fn are_some(&self) -> bool {
        self.are_some.load(Ordering::SeqCst)
    }

    /// What a bucket owes, as far as nobody knows that it was taken.
    pub(super) fn of(&self, bucket: &BucketId) -> Amounts {
        let books = self.books();
        let sent = books.sent.iter().filter(|debt| debt.bucket == *bucket).map(|debt| &debt.owed);
        let mut sum = Amounts::new();
        for owed in books.owed.get(bucket).into_iter().chain(sent) {
            add(&mut sum, &owed.amounts);
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
        let mut books = self.books();
        if let Some(owed) = books.owed.get_mut(bucket) {
            add(&mut owed.amounts, amounts);
            owed.follow(configuration);
            return;
        }
        if books.owed.len() + books.sent.len() >= DEBTS_MAX {
            counters.uncommitted.increment();
            if !std::mem::replace(&mut books.has_said_full, true) {
                tracing::warn!(
                    buckets = DEBTS_MAX,
                    "what more buckets consume is not taken from the store when it is back"
                );
            }
            return;
        }
        let owed = Owed { amounts: amounts.clone(), configuration: configuration.clone() };
        books.owed.insert(bucket.clone(), owed);
        self.are_some.store(true, Ordering::SeqCst);
    }

    /// Some that are to be taken next, the same until they are.
    fn next(&self) -> Vec<Debt> {
        let mut books = self.books();
        let Books { owed, sent, has_said_full } = &mut *books;
        if sent.len() < AT_ONCE {
            let debt = |(bucket, owed)| Debt { id: new_id(), bucket, owed };
            sent.extend(owed.drain().map(debt));
            *has_said_full = false;
        }
        sent.iter().take(AT_ONCE).cloned().collect()
    }

    /// One that was taken, or never can be. False: somebody has said so before.
    fn settle(&self, id: &RequestId) -> bool {
        let mut books = self.books();
        let settled = books.remove(id);
        let are_some = !(books.sent.is_empty() && books.owed.is_empty());
        self.are_some.store(are_some, Ordering::SeqCst);
        settled.is_some()
    }

    /// One that could not be taken: the others come first, so that it holds up none of them.
    fn postpone(&self, id: &RequestId) {
        let mut books = self.books();
        let debt = books.remove(id);
        books.sent.extend(debt);
    }
}

impl Books {
    fn remove(&mut self, id: &RequestId) -> Option<Debt> {
        // Near the front, where it was taken from.
        let at = self.sent.iter().position(|debt| debt.id == *id)?;
        self.sent.remove(at)
    }
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

fn add(sums: &mut Amounts, amounts: &Amounts) {
    for (limit, more) in amounts {
        match sums.get_mut(limit) {
            Some(sum) => {
                *sum = Millitokens::saturating(i128::from(sum.get()) + i128::from(more.get()));
            }
            None => _ = sums.insert(limit.clone(), *more),
        }
    }
}

impl<S: Store, C: Clock> Limiter<S, C> {
    /// Takes from the store what is owed, as far as it answers.
    pub(super) async fn settle(&self, debts: &Debts) {
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
    async fn take_owed(&self, debts: &Debts, debt: &Debt) -> bool {
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
            Ok(adjusted) if adjusted.dropped.is_empty() => self.counters().committed.increment(),
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
    use sluicegate_core::{EntityId, LimitName, Resource};

    use super::*;
    use crate::limit::Limit;
    use crate::request::rules;

    fn bucket(entity: &str) -> BucketId {
        let (entity, resource) = (EntityId::new(entity).unwrap(), Resource::new("r").unwrap());
        BucketId { entity, resource }
    }

    fn owe(debts: &Debts, entity: &str, limit: &str, milli: i64) {
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
        let debts = Debts::default();
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
        let debts = Debts::default();
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
        let debts = Debts::default();
        owe(&debts, "u", "rpm", 5);
        owe(&debts, "u", "tpm", 7);
        let owed = &debts.next()[0].owed;
        assert_eq!(owed.amounts, [amount("rpm", 5), amount("tpm", 7)].into());
        assert!(owed.amounts.keys().all(|limit| owed.configuration.rule(limit).is_some()));
    }
}
