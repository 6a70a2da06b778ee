//! The store that hands out what it holds and asks another for the rest.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use sluicegate_core::{Amounts, BucketId, Configuration, LimitName, Millitokens, Wait};
use tokio::time::Instant;

use super::Leased;
use super::bucket::Bucket;
use super::cell::{Ask, Took};
use super::engine::Spent;
use super::keys::KeyRef;
use super::names::Kind;
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

impl Wants {
    pub(super) fn limits(&self) -> Option<&Arc<Configuration>> {
        Some(&self.part.configuration)
    }
}

/// What was taken of a request that is not granted yet: given back where it never is, also because
/// nobody waits for it any more.
struct Taken<'a, S: Lessor, C: Clock> {
    from: &'a Leased<S, C>,
    wants: &'a [Wants],
}

impl<S: Lessor, C: Clock> Drop for Taken<'_, S, C> {
    fn drop(&mut self) {
        self.wants.iter().for_each(|taken| self.from.give_back(taken, None));
    }
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
            let kind = Kind { resource: id.resource.clone(), limits };
            Bucket::new(id.entity.clone(), self.engine.names.shared(kind))
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

    /// The buckets of a request, none where some of it cannot be leased; `None`: they are not known
    /// without asking somebody.
    pub(super) fn known_wants(&self, request: &Request) -> Option<Vec<Wants>> {
        let request = Request { deadline: Duration::ZERO, ..request.clone() };
        let wants = self.wanted_by(&request).now_or_never()?.ok()?;
        Some(wants.unwrap_or_default())
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
            let configuration = Some(&want.part.configuration);
            if !self.engine.take(bucket(n), &want.asks, configuration, now_ms) {
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
        until: Instant,
    ) -> Option<Result<Spent, AcquireError>> {
        let now_ms = self.engine.rough_ms();
        let mut total = Spent::default();
        let mut taken = Taken { from: self, wants: &[] };
        for (n, want) in wants.iter().enumerate() {
            taken.wants = &wants[..n];
            let configuration = &want.part.configuration;
            if self.engine.take(&want.bucket, &want.asks, None, now_ms) {
                want.bucket.follow(configuration, &self.engine.names);
                continue;
            }
            let needed = self.engine.need(&want.bucket, &want.asks, configuration, until).await;
            match needed {
                Some(Ok(spent)) => total.add(spent),
                Some(Err(error)) => return Some(Err(self.with_others(error, wants, n))),
                None => return None,
            }
        }
        taken.wants = &[];
        Some(Ok(total))
    }

    /// Takes from the buckets of a request, or from the store where they cannot be leased from.
    pub(super) async fn acquire_wanted(
        &self,
        wants: Option<Vec<Wants>>,
        request: &Request,
        until: Instant,
        clock: &dyn Clock,
    ) -> Result<Grant, AcquireError> {
        if let Some(wants) = wants {
            match self.take_all(&wants, until).await {
                Some(Ok(spent)) => {
                    return Ok(spent.granted(wants.into_iter().map(|want| want.part)));
                }
                Some(Err(error)) => return Err(error),
                None => {}
            }
        }
        let deadline = until.saturating_duration_since(Instant::now());
        let request = Request { deadline, ..request.clone() };
        // A piece of its own: seldom there, and thirty times as large as what else a request holds.
        self.engine.store.acquire(&request, clock).boxed().await
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

    /// The bucket of a correction, and its limits.
    fn corrected(&self, correction: &Correction<'_>) -> (Arc<Bucket>, Arc<Configuration>) {
        let configuration = Arc::new(correction.configuration.clone());
        (self.bucket(correction.bucket, &configuration, &Amounts::new()), configuration)
    }

    /// What of a correction goes back to the pools, and what does not.
    fn split(
        &self,
        bucket: &Arc<Bucket>,
        configuration: &Arc<Configuration>,
        amounts: &Amounts,
    ) -> (Amounts, Amounts) {
        let fits = |(limit, by): &(LimitName, Millitokens)| {
            *by < Millitokens::ZERO
                && by.get().unsigned_abs() < super::REFUND_MAX
                && bucket.slot(limit).is_some()
        };
        let (back, rest): (Amounts, Amounts) = amounts.clone().into_iter().partition(fits);
        if back.is_empty() || self.engine.looks_after(bucket, configuration) {
            return (back, rest);
        }
        (Amounts::new(), amounts.clone())
    }

    fn take_back(&self, bucket: &Arc<Bucket>, configuration: &Arc<Configuration>, back: &Amounts) {
        let asks = bucket.asks(&crate::composite::negated(back)).unwrap_or_default();
        self.engine.put_back(bucket, &asks, configuration);
    }
}

impl<S: Lessor, C: Clock> Store for Leased<S, C> {
    async fn acquire(&self, request: &Request, clock: &dyn Clock) -> Result<Grant, AcquireError> {
        let until = Instant::now() + request.deadline;
        let wants = self.wanted_by(request).await?;
        self.acquire_wanted(wants, request, until, clock).await
    }

    async fn adjust(
        &self,
        correction: &Correction<'_>,
        clock: &dyn Clock,
    ) -> Result<Adjusted, AdjustError> {
        let (bucket, configuration) = self.corrected(correction);
        let (back, rest) = self.split(&bucket, &configuration, correction.amounts);
        let mut adjusted = Adjusted::default();
        // Before anything is given back to the pools.
        if !rest.is_empty() {
            let rest = Correction { amounts: &rest, ..*correction };
            let result = self.engine.store.adjust(&rest, clock).await;
            if matches!(result, Err(AdjustError::Unavailable(_)))
                && let Some(books) = bucket.books().as_mut()
            {
                books.doubt(correction.id);
            }
            adjusted = result?;
        }
        self.take_back(&bucket, &configuration, &back);
        Ok(adjusted)
    }

    fn adjust_held(&self, correction: &Correction<'_>) -> Option<Adjusted> {
        let (bucket, configuration) = self.corrected(correction);
        let (back, rest) = self.split(&bucket, &configuration, correction.amounts);
        if !rest.is_empty() {
            let asks = bucket.asks(&rest)?;
            let is_doubtful =
                bucket.books().as_ref().is_some_and(|books| books.is_doubtful(correction.id));
            if is_doubtful || !self.engine.take(&bucket, &asks, None, self.engine.rough_ms()) {
                return None;
            }
        }
        self.take_back(&bucket, &configuration, &back);
        Some(Adjusted::default())
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
        // A parent or limits that have to be looked up first are not waited for, and nothing is leased.
        let wants = self.known_wants(request).filter(|wants| !wants.is_empty())?;
        let now_ms = self.engine.rough_ms();
        let mut taken = Taken { from: self, wants: &[] };
        for (n, want) in wants.iter().enumerate() {
            taken.wants = &wants[..n];
            if want.bucket.cell.take(&want.asks, now_ms) == Took::Nothing {
                return None;
            }
        }
        taken.wants = &[];
        drop(taken);
        Some(Spent::default().granted(wants.into_iter().map(|want| want.part)))
    }

    fn counters(&self) -> &Counters {
        self.engine.store.counters()
    }
}

#[cfg(test)]
mod tests {
    use sluicegate_core::{EntityId, Resource, Rules};

    use super::*;
    use crate::{Cascade, DynamoStore, LeasedLimiter, SystemClock};

    /// A burst on a key that is not held is thousands of them.
    #[test]
    fn a_request_that_waits_takes_little_memory() {
        let config = aws_sdk_dynamodb::Config::builder().behavior_version_latest().build();
        let client = aws_sdk_dynamodb::Client::from_conf(config);
        let limiter = LeasedLimiter::leased(DynamoStore::new(client, "t"));
        let request = Request {
            entity: EntityId::new("u").unwrap(),
            resource: Resource::new("r").unwrap(),
            amounts: Amounts::new(),
            limits: Rules::new(),
            parent_limits: None,
            cascade: Cascade::No,
            deadline: Duration::from_secs(1),
        };
        let waiting = limiter.store().acquire(&request, &SystemClock);
        assert!(size_of_val(&waiting) <= 2_048, "{} bytes", size_of_val(&waiting));
    }
}
