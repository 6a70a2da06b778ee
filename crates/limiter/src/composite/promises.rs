//! Tokens that requests of this process are about to take: the image still shows them.
//!
//! Without this account all tasks of a process write for the same few tokens, and queue for claims
//! that cannot serve them.

use std::sync::Arc;

use sluicegate_core::{Amounts, Bucket, CompositeBucket, Millitokens};

use super::images::Entry;

/// What is promised of one bucket.
#[derive(Debug, Default)]
pub(super) struct Promised {
    /// To requests that wait to write.
    queued: Amounts,
    /// To writes under way.
    sent: Amounts,
}

/// Whose promises count for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    /// Everybody's: it has none itself.
    Everybody,
    /// Those under way: it has one, and all that were made fit.
    UnderWay,
}

impl Promised {
    pub(super) fn taken_from(
        &self,
        image: &CompositeBucket,
        whose: Whose,
    ) -> Option<CompositeBucket> {
        let queued = (whose == Whose::Everybody).then_some(&self.queued);
        let mut left = None;
        for (limit, amount) in self.sent.iter().chain(queued.into_iter().flatten()) {
            if !image.limits.contains_key(limit) {
                continue;
            }
            let limits = &mut left.get_or_insert_with(|| image.clone()).limits;
            if let Some(Bucket { tokens, .. }) = limits.get_mut(limit) {
                *tokens = plus(*tokens, *amount, -1);
            }
        }
        left
    }
}

/// A request's own part of the promises, until it is answered.
#[derive(Debug)]
pub(super) struct Promise {
    entry: Arc<Entry>,
    amounts: Amounts,
    is_sent: bool,
}

impl Promise {
    pub(super) fn new(entry: &Arc<Entry>, amounts: &Amounts) -> Self {
        entry.promise(|promised| add(&mut promised.queued, amounts, 1));
        Self { entry: entry.clone(), amounts: amounts.clone(), is_sent: false }
    }

    /// Notes that its write is on its way, or no longer.
    pub(super) fn set_sent(&mut self, is_sent: bool) {
        if std::mem::replace(&mut self.is_sent, is_sent) != is_sent {
            let sign = if is_sent { 1 } else { -1 };
            self.entry.promise(|promised| {
                add(&mut promised.sent, &self.amounts, sign);
                add(&mut promised.queued, &self.amounts, -sign);
            });
            // A write that sets out is no answer: those who wait for one would refuse too early.
            if !is_sent {
                self.entry.answered.notify_waiters();
            }
        }
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        let (amounts, is_sent) = (&self.amounts, self.is_sent);
        self.entry.promise(|Promised { sent, queued }| {
            add(if is_sent { sent } else { queued }, amounts, -1);
        });
        self.entry.answered.notify_waiters();
    }
}

fn add(sums: &mut Amounts, amounts: &Amounts, sign: i128) {
    for (limit, amount) in amounts {
        let sum = plus(sums.get(limit).copied().unwrap_or_default(), *amount, sign);
        if sum > Millitokens::ZERO {
            sums.insert(limit.clone(), sum);
        } else {
            sums.remove(limit);
        }
    }
}

fn plus(sum: Millitokens, amount: Millitokens, sign: i128) -> Millitokens {
    Millitokens::saturating(i128::from(sum.get()) + sign * i128::from(amount.get()))
}
