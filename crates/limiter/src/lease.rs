//! What an acquire returns: tokens that are taken already, to be corrected or given back.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sluicegate_core::{Amounts, EntityId, LimitName, Millitokens, Rule, WritePath};

use crate::clock::Clock;
use crate::composite::negated;
use crate::error::{AdjustError, InvalidRequest, LimitExceeded};
use crate::limiter::Limiter;
use crate::store::{Adjusted, Correction, Grant, Part, Store};

/// Tokens that were taken before the guarded work starts.
///
/// Dropping it keeps the consumption as it is, at once and without a call.
pub struct Lease<S, C> {
    limiter: Limiter<S, C>,
    deadline: Duration,
    parts: Vec<Part>,
    /// What each part has taken by now: what was acquired and what was adjusted since.
    taken: Mutex<Vec<Amounts>>,
    shadowed: Option<LimitExceeded>,
    cost: Cost,
}

/// What an acquire took to be granted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    /// The path of the last write; `None` when nothing was written (shadow mode).
    pub path: Option<WritePath>,
    /// Writes attempted.
    pub attempts: u32,
    /// Write units spent, refused attempts included (each counted as one unit).
    pub write_units: f64,
    /// Read units spent.
    pub read_units: f64,
}

/// What one limit has left.
#[derive(Debug, Clone, PartialEq)]
pub struct Remaining {
    /// Whose limit.
    pub entity: EntityId,
    /// Its name.
    pub limit: LimitName,
    /// Its rule.
    pub rule: Rule,
    /// What is left, in millitokens; negative while a debt stands.
    pub available: Millitokens,
    /// The share of the burst that is left, from 0 to 1.
    pub share: f64,
}

impl<S: Store, C: Clock> Lease<S, C> {
    pub(crate) fn granted(limiter: &Limiter<S, C>, deadline: Duration, grant: Grant) -> Self {
        let Grant { parts, path, attempts, write_units, read_units } = grant;
        let taken = Mutex::new(parts.iter().map(|part| part.amounts.clone()).collect());
        let cost = Cost { path: Some(path), attempts, write_units, read_units };
        Self { limiter: limiter.clone(), deadline, parts, taken, shadowed: None, cost }
    }

    pub(crate) fn shadow(
        limiter: &Limiter<S, C>,
        deadline: Duration,
        exceeded: LimitExceeded,
    ) -> Self {
        let cost = Cost { path: None, attempts: 0, write_units: 0.0, read_units: 0.0 };
        let (parts, taken) = (Vec::new(), Mutex::default());
        Self { limiter: limiter.clone(), deadline, parts, taken, shadowed: Some(exceeded), cost }
    }

    /// Adds `by` tokens to what was consumed of a limit, or takes off where it is negative. Any
    /// limit of the bucket can be named, and never is this refused: a balance may go below zero,
    /// which the next acquires wait out. One write unit, and one more for a parent's bucket.
    ///
    /// # Errors
    /// [`AdjustError`]. [`Ambiguous`](AdjustError::Ambiguous) only where tokens were to be given
    /// back.
    pub async fn adjust(&self, limit: impl AsRef<str>, by: i64) -> Result<Adjusted, AdjustError> {
        self.adjust_wide(limit.as_ref(), i128::from(by) * 1_000).await
    }

    /// As [`adjust`](Self::adjust), in thousandths of a token.
    ///
    /// # Errors
    /// [`AdjustError`].
    pub async fn adjust_milli(
        &self,
        limit: impl AsRef<str>,
        by_milli: i64,
    ) -> Result<Adjusted, AdjustError> {
        self.adjust_wide(limit.as_ref(), by_milli.into()).await
    }

    async fn adjust_wide(&self, limit: &str, milli: i128) -> Result<Adjusted, AdjustError> {
        let limit = LimitName::new(limit).map_err(InvalidRequest::LimitName)?;
        let amount = i64::try_from(milli).ok().and_then(|milli| Millitokens::new(milli).ok());
        let Some(amount) = amount else {
            return Err(InvalidRequest::Amount { limit, milli }.into());
        };
        if amount == Millitokens::ZERO || self.parts.is_empty() {
            return Ok(Adjusted::default());
        }
        let knows = |part: &Part| {
            let image = part.image.as_ref();
            part.configuration.rule(&limit).is_some()
                || image.is_some_and(|image| image.limits.contains_key(&limit))
        };
        let is_known = self.parts.iter().any(knows);
        let amounts = Amounts::from([(limit.clone(), amount)]);
        // The parent may lack a limit; the entity's own bucket is asked in any case.
        let corrections = self.parts.iter().enumerate().map(|(index, part)| {
            if index == 0 || knows(part) { amounts.clone() } else { Amounts::new() }
        });
        let adjusted = self.correct(|_| corrections.collect()).await?;
        if !is_known && adjusted.dropped.contains(&limit) {
            return Err(InvalidRequest::UnknownLimit(limit).into());
        }
        Ok(adjusted)
    }

    /// Gives back everything that was acquired and adjusted: the work did not happen.
    ///
    /// # Errors
    /// [`AdjustError`]. What was not given back stays consumed, the restrictive direction.
    pub async fn release(self) -> Result<Adjusted, AdjustError> {
        self.give_back().await
    }

    /// As [`release`](Self::release), for a lease that is shared. What is given back is so once,
    /// however many give it back and whoever stops waiting for it; what is adjusted afterwards is
    /// consumed again.
    ///
    /// # Errors
    /// [`AdjustError`]. After [`Ambiguous`](AdjustError::Ambiguous) nothing is left to give back;
    /// after any other, it can be tried again.
    pub async fn give_back(&self) -> Result<Adjusted, AdjustError> {
        self.correct(|taken| taken.iter().map(negated).collect()).await
    }

    /// Corrects each part by its amounts, side by side. They are made from what is taken now.
    async fn correct(
        &self,
        corrections: impl FnOnce(&[Amounts]) -> Vec<Amounts>,
    ) -> Result<Adjusted, AdjustError> {
        let corrections: Vec<Amounts> = {
            let mut taken = self.taken();
            let corrections = corrections(&taken).iter().map(nonzero).collect::<Vec<_>>();
            // What goes back is noted before the call, and what is added after it: whenever a
            // caller stops waiting in between, less can be given back than was taken, never more.
            for (taken, amounts) in taken.iter_mut().zip(&corrections) {
                note(taken, amounts.iter().filter(is_decrease));
            }
            corrections
        };
        let each = self.parts.iter().zip(&corrections).enumerate().map(
            |(index, (part, amounts))| async move {
                if amounts.is_empty() {
                    return Ok::<_, AdjustError>(Adjusted::default());
                }
                let correction = Correction {
                    bucket: &part.bucket,
                    amounts,
                    configuration: &part.configuration,
                    deadline: self.deadline,
                };
                let result = self.limiter.store().adjust(&correction, self.limiter.clock()).await;
                self.settle(index, amounts, &result);
                result
            },
        );
        let mut total = Adjusted::default();
        for result in futures_util::future::join_all(each).await {
            let adjusted = result?;
            total.dropped.extend(adjusted.dropped);
            total.is_forced |= adjusted.is_forced;
            total.write_units += adjusted.write_units;
        }
        Ok(total)
    }

    /// Notes what a correction came to, beyond the decreases that are noted already.
    fn settle(&self, index: usize, amounts: &Amounts, result: &Result<Adjusted, AdjustError>) {
        let mut taken = self.taken();
        let Some(taken) = taken.get_mut(index) else { return };
        let undo = |(limit, _): &(&LimitName, &Millitokens)| match result {
            Ok(adjusted) => adjusted.dropped.contains(limit),
            Err(AdjustError::Ambiguous(_)) => false,
            Err(_) => true,
        };
        let undone = amounts.iter().filter(is_decrease).filter(undo);
        note(taken, negated(&undone.map(|(limit, by)| (limit.clone(), *by)).collect()).iter());
        if result.is_ok() {
            note(taken, amounts.iter().filter(|change| !is_decrease(change) && !undo(change)));
        }
    }

    fn taken(&self) -> MutexGuard<'_, Vec<Amounts>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the limits of the request have left, as of the grant and what was adjusted since;
    /// nothing where it is not known.
    #[must_use]
    pub fn remaining(&self) -> Vec<Remaining> {
        let now = self.limiter.clock().now();
        let taken = self.taken();
        let of_part = |(part, taken): (&Part, &Amounts)| -> Vec<Remaining> {
            let remaining = |(limit, granted): (&LimitName, &Millitokens)| {
                let image = part.image.as_ref()?;
                let bucket = image.limits.get(limit)?;
                let rule = bucket.rule;
                let adjusted = taken.get(limit).map_or(0, |taken| taken.get()) - granted.get();
                // After the cap: what a full bucket would have earned meanwhile is not there to
                // forgive an adjustment.
                let worth = rule.effective(bucket.tokens, image.refilled_at, now);
                let available = clamped(worth.get().saturating_sub(adjusted)).min(rule.burst());
                let share = share(available, rule.burst());
                let (entity, limit) = (part.bucket.entity.clone(), limit.clone());
                Some(Remaining { entity, limit, rule, available, share })
            };
            part.amounts.iter().filter_map(remaining).collect()
        };
        self.parts.iter().zip(taken.iter()).flat_map(of_part).collect()
    }

    /// Whether a limit of the request is nearly used up: see [`Limiter::near_share`].
    #[must_use]
    pub fn is_near_limit(&self) -> bool {
        let near = self.limiter.options().near_share;
        self.remaining().iter().any(|remaining| remaining.share <= near)
    }

    /// In shadow mode: why the request would have been refused. Then nothing was taken, and
    /// adjusting or releasing does nothing.
    #[must_use]
    pub const fn shadowed(&self) -> Option<&LimitExceeded> {
        self.shadowed.as_ref()
    }

    /// What it took to be granted.
    #[must_use]
    pub const fn cost(&self) -> Cost {
        self.cost
    }
}

impl<S, C> std::fmt::Debug for Lease<S, C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { parts, taken, shadowed, .. } = self;
        let buckets: Vec<_> = parts.iter().map(|part| &part.bucket).collect();
        f.debug_struct("Lease")
            .field("buckets", &buckets)
            .field("taken", taken)
            .field("shadowed", shadowed)
            .finish_non_exhaustive()
    }
}

fn is_decrease((_, by): &(&LimitName, &Millitokens)) -> bool {
    **by < Millitokens::ZERO
}

/// Adds changes to what is taken.
fn note<'a>(taken: &mut Amounts, changes: impl Iterator<Item = (&'a LimitName, &'a Millitokens)>) {
    for (limit, by) in changes {
        let so_far = taken.entry(limit.clone()).or_default();
        *so_far = clamped(so_far.get().saturating_add(by.get()));
    }
}

fn clamped(milli: i64) -> Millitokens {
    let end = if milli < 0 { Millitokens::MIN } else { Millitokens::MAX };
    Millitokens::new(milli).unwrap_or(end)
}

fn nonzero(amounts: &Amounts) -> Amounts {
    let is_nonzero = |(_, amount): &(&LimitName, &Millitokens)| **amount != Millitokens::ZERO;
    amounts.iter().filter(is_nonzero).map(|(limit, amount)| (limit.clone(), *amount)).collect()
}

#[expect(clippy::cast_precision_loss, reason = "a share needs no more than a double's precision")]
fn share(available: Millitokens, burst: Millitokens) -> f64 {
    if burst <= Millitokens::ZERO {
        return 0.0;
    }
    (available.get().max(0) as f64 / burst.get() as f64).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::TestClock;
    use crate::composite::CompositeStore;
    use crate::counters::Counters;
    use crate::error::{AcquireError, LimitStatus};
    use crate::limit::Limit;
    use crate::memory::MemoryTable;
    use crate::store::Request;
    use futures_util::FutureExt;
    use sluicegate_core::EpochMillis;
    use tokio::sync::Semaphore;

    /// A store in which corrections wait until a test lets them through.
    struct Gated {
        store: CompositeStore<MemoryTable>,
        gate: Semaphore,
    }

    impl Store for Gated {
        async fn acquire(
            &self,
            request: &Request,
            clock: &dyn Clock,
        ) -> Result<Grant, AcquireError> {
            self.store.acquire(request, clock).await
        }

        async fn adjust(
            &self,
            correction: &Correction<'_>,
            clock: &dyn Clock,
        ) -> Result<Adjusted, AdjustError> {
            let Ok(permit) = self.gate.acquire().await else {
                return Err(AdjustError::Contended);
            };
            permit.forget();
            self.store.adjust(correction, clock).await
        }

        async fn peek(
            &self,
            request: &Request,
            clock: &dyn Clock,
        ) -> Result<Vec<LimitStatus>, AcquireError> {
            self.store.peek(request, clock).await
        }

        fn counters(&self) -> &Counters {
            self.store.counters()
        }
    }

    async fn lease() -> Lease<Gated, TestClock> {
        let store =
            Gated { store: CompositeStore::on(MemoryTable::new()), gate: Semaphore::new(0) };
        let clock = TestClock::at(EpochMillis::new(1_769_608_800_000).unwrap());
        let limits = [Limit::per_minute("tpm", 100)];
        let limiter = Limiter::with_clock(store, clock);
        limiter.acquire("u", "r").consume("tpm", 60).limits(limits).await.unwrap()
    }

    fn consumed(lease: &Lease<Gated, TestClock>) -> i64 {
        let store = &lease.limiter.store().store;
        let bucket = store.table().bucket(&lease.parts[0].bucket).unwrap();
        bucket.limits.values().map(|limit| limit.consumed.get()).sum()
    }

    #[tokio::test]
    async fn two_holders_give_back_once() {
        let lease = lease().await;
        let (mut first, mut second) = (Box::pin(lease.give_back()), Box::pin(lease.give_back()));
        assert!((&mut first).now_or_never().is_none());
        lease.limiter.store().gate.add_permits(2);
        assert_eq!(second.as_mut().await.unwrap(), Adjusted::default());
        first.await.unwrap();
        assert_eq!(consumed(&lease), 0);
    }

    #[tokio::test]
    async fn whoever_stops_waiting_may_keep_tokens_and_gains_none() {
        let lease = lease().await;
        assert!(lease.give_back().now_or_never().is_none());
        assert!(lease.adjust("tpm", 5).now_or_never().is_none());
        lease.limiter.store().gate.add_permits(9);
        lease.give_back().await.unwrap();
        assert_eq!(consumed(&lease), 60_000);

        lease.adjust("tpm", 5).await.unwrap();
        assert_eq!(lease.remaining()[0].available.get(), 95_000);
        lease.give_back().await.unwrap();
        assert_eq!(consumed(&lease), 60_000);
    }

    #[tokio::test]
    async fn what_failed_can_be_given_back_again() {
        let lease = lease().await;
        lease.limiter.store().gate.close();
        for _ in 0..2 {
            assert!(matches!(lease.give_back().await, Err(AdjustError::Contended)));
            assert_eq!(lease.remaining()[0].available.get(), 40_000);
        }
    }
}
