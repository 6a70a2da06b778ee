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
pub(super) struct Owed {
    pub(super) amounts: Amounts,
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

    /// What a bucket owes that is not being taken.
    pub(super) fn of(&self, bucket: &BucketId) -> Option<Owed> {
        self.books().owed.get(bucket).cloned()
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
            for (limit, amount) in amounts {
                match owed.amounts.get_mut(limit) {
                    Some(sum) => *sum = plus(*sum, *amount),
                    None => _ = owed.amounts.insert(limit.clone(), *amount),
                }
            }
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
        if sent.is_empty() {
            let debt = |(bucket, owed)| Debt { id: new_id(), bucket, owed };
            sent.extend(owed.drain().map(debt));
            *has_said_full = false;
        }
        sent.iter().take(AT_ONCE).cloned().collect()
    }

    /// One that was taken, or never can be.
    fn settle(&self, id: &RequestId) {
        let mut books = self.books();
        // Near the front, where it was taken from.
        let at = books.sent.iter().position(|debt| debt.id == *id);
        at.and_then(|at| books.sent.remove(at));
        let are_some = !(books.sent.is_empty() && books.owed.is_empty());
        self.are_some.store(are_some, Ordering::SeqCst);
    }
}

fn plus(sum: Millitokens, more: Millitokens) -> Millitokens {
    Millitokens::saturating(i128::from(sum.get()) + i128::from(more.get()))
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
        match self.correct(&correction).await {
            Ok(adjusted) if adjusted.dropped.is_empty() => self.counters().committed.increment(),
            Err(AdjustError::Unavailable(_) | AdjustError::Contended | AdjustError::Setup(_)) => {
                return false;
            }
            lost => {
                self.counters().uncommitted.increment();
                tracing::warn!(%bucket, ?lost, "consumption could not be taken from the store");
            }
        }
        debts.settle(id);
        true
    }
}
