//! The store that hands out what it holds and asks another for the rest.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use sluicegate_core::{Amounts, BucketId, Configuration, LimitName, Millitokens, Wait};

use super::Leased;
use super::bucket::Bucket;
use super::cell::Ask;
use super::engine::Spent;
use super::keys::KeyRef;
use crate::clock::Clock;
use crate::counters::Counters;
use crate::error::{AcquireError, AdjustError, LimitStatus};
use crate::lessor::Lessor;
use crate::store::{Adjusted, Correction, Grant, Part, Request, Store};

/// One bucket of a request.
pub(super) struct Wants {
    pub(super) part: Part,
    pub(super) bucket: Arc<Bucket>,
    pub(super) asks: Vec<Ask>,
}

impl<S: Lessor, C: Clock> Leased<S, C> {
    /// The bucket with a slot for each of its limits and of what is asked.
    fn bucket(
        &self,
        id: &BucketId,
        configuration: &Configuration,
        amounts: &Amounts,
    ) -> Arc<Bucket> {
        self.engine.buckets.get_or_insert(id, || {
            let mut limits: Vec<LimitName> = configuration.rules().into_keys().collect();
            limits.extend(amounts.keys().cloned());
            limits.sort();
            limits.dedup();
            Bucket::new(id.clone(), self.names.shared(limits))
        })
    }

    pub(super) fn wants(&self, part: Part) -> Option<Wants> {
        let bucket = self.bucket(&part.bucket, &part.configuration, &part.amounts);
        let asks = bucket.asks(&part.amounts)?;
        Some(Wants { part, bucket, asks })
    }

    /// The buckets of a request; `None`: some of it cannot be leased.
    pub(super) async fn wanted_by(
        &self,
        request: &Request,
    ) -> Result<Option<Vec<Wants>>, AcquireError> {
        let parts = self.engine.store.parts(request, &self.engine.clock).await?;
        Ok(parts.and_then(|parts| parts.into_iter().map(|part| self.wants(part)).collect()))
    }

    /// Gives back what was wanted, to this bucket instead if there is one.
    pub(super) fn give_back(&self, wants: &Wants, instead: Option<&Arc<Bucket>>) {
        let bucket = instead.unwrap_or(&wants.bucket);
        self.engine.put_back(bucket, &wants.asks, &wants.part.configuration);
    }

    /// Gives back what was taken of a part.
    pub(super) fn give_back_part(&self, part: Part) {
        if let Some(want) = self.wants(part) {
            self.give_back(&want, None);
        }
    }

    /// Takes from every bucket, or from none, what is held; from this one instead of the first.
    pub(super) fn take_held(&self, wants: &[Wants], first: Option<&Arc<Bucket>>) -> bool {
        let now_ms = self.engine.rough_ms();
        let bucket = |n: usize| first.filter(|_| n == 0).unwrap_or(&wants[n].bucket);
        for (n, want) in wants.iter().enumerate() {
            if !self.engine.take(bucket(n), &want.asks, now_ms) {
                (0..n).for_each(|taken| self.give_back(&wants[taken], Some(bucket(taken))));
                return false;
            }
        }
        true
    }

    /// Takes from every bucket, or from none.
    pub(super) async fn take_all(
        &self,
        wants: &[Wants],
        request: &Request,
    ) -> Option<Result<Spent, AcquireError>> {
        let now_ms = self.engine.rough_ms();
        let mut total = Spent::default();
        for (n, want) in wants.iter().enumerate() {
            if self.engine.take(&want.bucket, &want.asks, now_ms) {
                continue;
            }
            let configuration = &self.names.same(&want.part.configuration);
            let needed =
                self.engine.need(&want.bucket, &want.asks, configuration, request.deadline).await;
            match needed {
                Some(Ok(spent)) => total.add(spent),
                Some(Err(error)) => {
                    wants[..n].iter().for_each(|taken| self.give_back(taken, None));
                    return Some(Err(self.with_others(error, wants, n)));
                }
                None => {
                    wants[..n].iter().for_each(|taken| self.give_back(taken, None));
                    return None;
                }
            }
        }
        Some(Ok(total))
    }

    /// Takes from the buckets of a request, or from the store where they cannot be leased from.
    pub(super) async fn acquire_wanted(
        &self,
        wants: Option<Vec<Wants>>,
        request: &Request,
        clock: &dyn Clock,
    ) -> Result<Grant, AcquireError> {
        if let Some(wants) = wants {
            match self.take_all(&wants, request).await {
                Some(Ok(spent)) => {
                    return Ok(spent.granted(wants.into_iter().map(|want| want.part)));
                }
                Some(Err(error)) => return Err(error),
                // As many buckets are held as may be.
                None => {}
            }
        }
        self.engine.store.acquire(request, clock).await
    }

    /// A refusal names every limit of the request, those of the other bucket as not short.
    fn with_others(&self, error: AcquireError, wants: &[Wants], refused: usize) -> AcquireError {
        let AcquireError::LimitExceeded(mut exceeded) = error else { return error };
        let now = self.engine.clock.now();
        for (n, Wants { part, .. }) in wants.iter().enumerate() {
            if n == refused {
                continue;
            }
            let image = part.image.as_deref();
            let standings =
                sluicegate_core::standings(image, &part.amounts, &part.configuration, now);
            let asked = standings.into_iter().filter(|s| part.amounts.contains_key(&s.limit));
            exceeded.limits.extend(asked.map(|mut standing| {
                standing.wait = Wait::None;
                LimitStatus::new(&part.bucket.entity, standing)
            }));
        }
        exceeded.into()
    }

    /// Corrects what is held; what it cannot is left to the store.
    fn correct(&self, bucket: &Arc<Bucket>, correction: &Correction<'_>) -> Amounts {
        let mut left = Amounts::new();
        let is_doubtful =
            bucket.books().as_ref().is_some_and(|books| books.is_doubtful(correction.id));
        for (limit, by) in correction.amounts {
            let milli = by.get().unsigned_abs();
            let ask = bucket.slot(limit).map(|slot| Ask { slot, milli });
            let is_done = by.get() < 0
                || match ask {
                    Some(ask) if !is_doubtful => {
                        let now_ms = self.engine.rough_ms();
                        self.engine.take(bucket, &[ask], now_ms)
                    }
                    _ => false,
                };
            if !is_done {
                left.insert(limit.clone(), *by);
            }
        }
        left
    }
}

impl<S: Lessor, C: Clock> Store for Leased<S, C> {
    async fn acquire(&self, request: &Request, clock: &dyn Clock) -> Result<Grant, AcquireError> {
        let wants = self.wanted_by(request).await?;
        self.acquire_wanted(wants, request, clock).await
    }

    async fn adjust(
        &self,
        correction: &Correction<'_>,
        clock: &dyn Clock,
    ) -> Result<Adjusted, AdjustError> {
        let is_refund = |(_, by): &(&LimitName, &Millitokens)| **by < Millitokens::ZERO;
        let configuration = Arc::new(correction.configuration.clone());
        let bucket = self.bucket(correction.bucket, &configuration, &Amounts::new());
        let mut left = self.correct(&bucket, correction);
        // What the pools cannot take in goes to the store, before anything is given back to them.
        let (back, strange): (Amounts, Amounts) =
            owned(correction.amounts.iter().filter(is_refund)).into_iter().partition(
                |(limit, by)| {
                    bucket.slot(limit).is_some() && by.get().unsigned_abs() < super::REFUND_MAX
                },
            );
        left.extend(strange);
        let mut adjusted = Adjusted::default();
        if !left.is_empty() {
            let rest = Correction { amounts: &left, ..*correction };
            let result = self.engine.store.adjust(&rest, clock).await;
            if let Err(error) = result {
                if matches!(error, AdjustError::Unavailable(_))
                    && let Some(books) = bucket.books().as_mut()
                {
                    books.doubt(correction.id);
                }
                let taken = correction.amounts.iter().filter(|change| !is_refund(change));
                let taken = owned(taken.filter(|(limit, _)| !left.contains_key(*limit)));
                let asks = bucket.asks(&taken).unwrap_or_default();
                self.engine.put_back(&bucket, &asks, &configuration);
                return Err(error);
            }
            adjusted = result?;
        }
        let asks = bucket.asks(&crate::composite::negated(&back)).unwrap_or_default();
        self.engine.put_back(&bucket, &asks, &configuration);
        Ok(adjusted)
    }

    async fn peek(
        &self,
        request: &Request,
        clock: &dyn Clock,
    ) -> Result<Vec<LimitStatus>, AcquireError> {
        let mut limits = self.engine.store.peek(request, clock).await?;
        for limit in &mut limits {
            let resource = request.resource.clone();
            let id = BucketId { entity: limit.entity.clone(), resource };
            let Some(bucket) = self.engine.buckets.get(&id) else { continue };
            let Some(slot) = bucket.slot(&limit.limit) else { continue };
            let held = bucket.cell.slots[usize::from(slot)].pool.tokens();
            let available = i128::from(limit.available.get()) + i128::from(held);
            limit.available = Millitokens::saturating(available);
            if limit.available >= limit.asked && limit.wait != Wait::ExceedsBurst {
                limit.wait = Wait::None;
            }
        }
        Ok(limits)
    }

    async fn check(&self, clock: &dyn Clock, deadline: Duration) -> Result<(), AcquireError> {
        self.engine.store.check(clock, deadline).await
    }

    fn acquire_held(&self, request: &Request) -> Option<Grant> {
        let key = KeyRef { entity: request.entity.as_str(), resource: &request.resource };
        self.engine
            .buckets
            .with(&key, |bucket| bucket.cell.is_watched())
            .filter(|is_held| *is_held)?;
        // A parent or limits that have to be looked up first are not waited for.
        let wants = self.wanted_by(request).now_or_never()?.ok()??;
        let is_taken = self.take_held(&wants, None);
        is_taken.then(|| Spent::default().granted(wants.into_iter().map(|want| want.part)))
    }

    fn counters(&self) -> &Counters {
        self.engine.store.counters()
    }
}

fn owned<'a>(amounts: impl Iterator<Item = (&'a LimitName, &'a Millitokens)>) -> Amounts {
    amounts.map(|(limit, by)| (limit.clone(), *by)).collect()
}
