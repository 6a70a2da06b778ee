//! The store that hands out held tokens and asks another store for the rest.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt as _;
use sluicegate_core::{
    Amounts, CompositeBucket, Configuration, EpochMillis, LimitName, Millitokens, Wait, evaluate,
};
use smallvec::SmallVec;
use tokio::time::Instant;

use super::atomic_bucket::{DEMAND_MAX, TakeResult};
use super::key_ref::KeyRef;
use super::leased::Leased;
use super::leased_bucket::{LeasedBucket, LeasedPart};
use super::leaser::WriteKind;
use super::request_buckets::Taken;
use super::settings::LeaseMode;
use crate::call::new_id;
use crate::clock::Clock;
use crate::cost::Cost;
use crate::counters::Counters;
use crate::error::{AcquireError, AdjustError, LimitStatus};
use crate::store::{Adjusted, BoxFuture, BucketGrant, Correction, Grant, Request, Store};

impl Leased {
    /// Takes from every bucket, or from none. Returns `None` if the request must go to the store.
    async fn take_all(
        &self,
        parts: &[LeasedPart],
        until: Instant,
    ) -> Option<Result<Cost, AcquireError>> {
        let now_ms = self.leaser.now_coarse_ms();
        let mut total = Cost::default();
        let mut taken = Taken { from: self, parts: &[] };
        for (n, part) in parts.iter().enumerate() {
            taken.parts = &parts[..n];
            let configuration = &part.grant.configuration;
            if self.leaser.take(&part.bucket, &part.demands, None, now_ms) {
                part.bucket.follow(configuration, &self.leaser.interner);
                continue;
            }
            match self.leaser.need(&part.bucket, &part.demands, configuration, until).await? {
                Ok(spent) => total += spent,
                Err(error) => return Some(Err(self.with_others(error, parts, n, until).await)),
            }
        }
        // The request is granted: the tokens stay taken.
        taken.parts = &[];
        Some(Ok(total))
    }

    /// Takes held tokens, leases more, or asks the store. A prepared bucket in `own`
    /// replaces the found one of the same name if nobody watches that: the map forgot the first.
    pub(super) async fn take(
        &self,
        request: &Request,
        own: &[LeasedPart],
        clock: &dyn Clock,
    ) -> Result<Grant, AcquireError> {
        let until = Instant::now() + request.deadline;
        let mut parts = self.parts_of(request, request.deadline).await?;
        for (part, own) in parts.iter_mut().flatten().zip(own) {
            let (found, own) = (&part.bucket, &own.bucket);
            let is_same = found.entity == own.entity && found.layout == own.layout;
            if is_same && !found.atomic.is_watched() {
                part.bucket = own.clone();
            }
        }
        if let Some(parts) = parts {
            let replies = || parts.iter().map(|part| part.bucket.atomic.replies());
            let replies_before: SmallVec<[u16; 2]> = replies().collect();
            match self.take_all(&parts, until).await {
                Some(Ok(cost)) => {
                    let has_leased = !replies().eq(replies_before);
                    let mut parts: Vec<_> = parts.into_iter().map(|part| part.grant).collect();
                    if has_leased {
                        self.renew_images(&mut parts, request);
                    }
                    return Ok(Grant { parts, cost });
                }
                Some(Err(error)) => return Err(error),
                None => {}
            }
        }
        let deadline = until.saturating_duration_since(Instant::now());
        let request = Request { deadline, ..request.clone() };
        self.leaser.store.acquire(&request, clock).await
    }

    /// Completes a refusal, so that it names every limit of the request, and each bucket that is
    /// short.
    async fn with_others(
        &self,
        error: AcquireError,
        parts: &[LeasedPart],
        refused: usize,
        until: Instant,
    ) -> AcquireError {
        let mut refusal = match error.into_refused() {
            Ok(limits) => limits,
            Err(error) => return error,
        };
        let mut limits = Vec::new();
        for (n, part) in parts.iter().enumerate() {
            if n == refused {
                limits.append(&mut refusal);
                continue;
            }
            let mut others = self.evaluate(part, part.grant.image.as_deref());
            // The tokens that this request took are given back in a moment.
            if n < refused || part.bucket.atomic.holds(&part.demands) {
                others.iter_mut().for_each(|limit| limit.wait = Wait::None);
            } else if part.grant.image.is_none() || others.iter().any(LimitStatus::is_violated) {
                others = self.read_status(part, until).await.unwrap_or(others);
            }
            limits.append(&mut others);
        }
        AcquireError::refused(limits)
    }

    /// The status of the limits of a bucket, from this image of it.
    fn evaluate(&self, part: &LeasedPart, image: Option<&CompositeBucket>) -> Vec<LimitStatus> {
        let (grant, now) = (&part.grant, self.leaser.store.now(&self.leaser.clock));
        let mut limits = evaluate(&grant.bucket, image, &grant.amounts, &grant.configuration, now);
        limits.retain(|status| grant.amounts.contains_key(&status.limit));
        limits.iter_mut().for_each(|limit| self.add_held_tokens(&part.bucket, limit));
        limits
    }

    /// Reads the status of the limits of a bucket from the store. `None`: the store did not answer.
    async fn read_status(&self, part: &LeasedPart, until: Instant) -> Option<Vec<LimitStatus>> {
        let BucketGrant { bucket, configuration, amounts, .. } = &part.grant;
        let left = until.saturating_duration_since(Instant::now());
        let (store, clock) = (&self.leaser.store, &self.leaser.clock);
        let read = store.refuse_or_read(bucket, configuration, amounts, left, clock).await;
        let mut limits = match read {
            Ok((image, _)) => return Some(self.evaluate(part, image.as_deref())),
            Err(error) => error.into_refused().ok()?,
        };
        limits.iter_mut().for_each(|limit| self.add_held_tokens(&part.bucket, limit));
        Some(limits)
    }

    /// Adjusts a limit's status to the view of this process.
    fn add_held_tokens(&self, bucket: &LeasedBucket, limit: &mut LimitStatus) {
        let own = self.leaser.held_tokens(bucket, &limit.limit);
        limit.available = Millitokens::saturating(i128::from(limit.available.get()) + own);
        if limit.wait == Wait::ExceedsBurst {
            return;
        }
        if limit.available >= limit.asked {
            limit.wait = Wait::None;
        } else if own != 0 {
            let now = self.leaser.store.now(&self.leaser.clock);
            limit.wait = limit.rule.wait_for(limit.asked, limit.available, now, now);
        }
    }

    /// Splits a correction of a held bucket into the part for the pools and the rest for the store.
    fn split(
        &self,
        bucket: &Arc<LeasedBucket>,
        configuration: &Arc<Configuration>,
        amounts: &Amounts,
    ) -> (Amounts, Amounts) {
        // A pool takes no more than the burst: the store drops what is above it.
        let room = |limit: &LimitName| -> Option<u64> {
            let burst = configuration.rule(limit)?.burst().get().unsigned_abs();
            let held = bucket.atomic.slots[usize::from(bucket.slot(limit)?)].pool.tokens();
            Some(burst.saturating_sub(held).min(DEMAND_MAX - 1))
        };
        let fits = |(limit, by): &(LimitName, Millitokens)| {
            *by < Millitokens::ZERO
                && room(limit).is_some_and(|room| by.get().unsigned_abs() <= room)
        };
        let (back, rest): (Amounts, Amounts) = amounts.clone().into_iter().partition(fits);
        if back.is_empty()
            || bucket.atomic.is_watched() && !self.leaser.is_shut()
            || self.leaser.watch(bucket, configuration, |_| ()).is_some()
        {
            return (back, rest);
        }
        (Amounts::new(), amounts.clone())
    }

    /// Repeats a correction that takes and gives back. The earlier attempt gave nothing back: it
    /// wrote at most the debits, and the tokens of the others were to go into the pools.
    async fn repeat_mixed(
        &self,
        correction: &Correction<'_>,
        clock: &dyn Clock,
    ) -> Result<Adjusted, AdjustError> {
        let is_debit = |(_, by): &(LimitName, Millitokens)| *by > Millitokens::ZERO;
        let (debits, back): (Amounts, Amounts) =
            correction.amounts.clone().into_iter().partition(is_debit);
        let debit = Correction { amounts: &debits, ..*correction };
        let mut adjusted = self.leaser.store.adjust(&debit, clock).await?;
        let id = &new_id();
        let back = Correction { id, amounts: &back, is_repeated: false, ..*correction };
        adjusted.add(self.adjust(&back, clock).await?);
        Ok(adjusted)
    }

    /// In write-behind mode, debits what was handed out before tokens are given back at the store.
    /// Otherwise the bucket could hold more than its burst, and the excess would be lost. Takes at
    /// most half of the correction's time.
    async fn commit_before_refund(&self, correction: &Correction<'_>) {
        if !matches!(self.leaser.settings.mode, LeaseMode::WriteBehind { .. }) {
            return;
        }
        let Some(bucket) = self.leaser.buckets.get(&KeyRef::of(correction.bucket)) else { return };
        let given_back = |(_, by): &(&LimitName, &Millitokens)| **by < Millitokens::ZERO;
        let back = correction.amounts.iter().filter(given_back);
        let back: Amounts = back.map(|(limit, by)| (limit.clone(), *by)).collect();
        let demands = bucket.demands(&-&back).unwrap_or_default();
        if !demands.iter().any(|demand| self.leaser.undebited(&bucket, demand.slot) > 0) {
            return;
        }
        let (leaser, time) = (self.leaser.clone(), correction.deadline / 2);
        // In a task of its own, so that a write in flight goes on if the caller leaves.
        let committed = tokio::spawn(async move {
            let turn = bucket.ledger().as_mut().map(|ledger| bucket.wait_for_turn(ledger));
            let Some(turn) = turn else { return };
            let turn = turn.await;
            if leaser.is_shut() {
                return;
            }
            if let Err(error) = leaser.write(&turn, &[], WriteKind::Renew, time).await {
                tracing::debug!(bucket = %bucket.id(), %error, "not debited before a refund");
            }
        });
        _ = tokio::time::timeout(time, committed).await;
    }

    fn take_back(
        &self,
        bucket: &Arc<LeasedBucket>,
        configuration: &Arc<Configuration>,
        back: &Amounts,
    ) {
        let demands = bucket.demands(&-back).unwrap_or_default();
        self.leaser.put_back(bucket, &demands, configuration);
    }
}

impl Store for Leased {
    fn acquire<'a>(
        &'a self,
        request: &'a Request,
        clock: &'a dyn Clock,
    ) -> BoxFuture<'a, Result<Grant, AcquireError>> {
        self.take(request, &[], clock).boxed()
    }

    fn adjust<'a>(
        &'a self,
        correction: &'a Correction<'a>,
        clock: &'a dyn Clock,
    ) -> BoxFuture<'a, Result<Adjusted, AdjustError>> {
        async move {
            if correction.mark.is_some() {
                let until = Instant::now() + correction.deadline;
                self.commit_before_refund(correction).await;
                let deadline = until.saturating_duration_since(Instant::now());
                // Only the store can tell if it was made.
                let correction = &Correction { deadline, ..*correction };
                let adjusted = self.leaser.store.adjust(correction, clock).await;
                let count = |bucket: &Arc<LeasedBucket>| bucket.atomic.count_reply();
                _ = self.leaser.buckets.with(&KeyRef::of(correction.bucket), count);
                return adjusted;
            }
            if correction.is_repeated
                && correction.amounts.values().any(|by| *by > Millitokens::ZERO)
                && correction.amounts.values().any(|by| *by < Millitokens::ZERO)
            {
                return self.repeat_mixed(correction, clock).await;
            }
            // Not added: a new one would have slots for the limits of this correction alone.
            let Some(bucket) = self.leaser.buckets.get(&KeyRef::of(correction.bucket)) else {
                return self.leaser.store.adjust(correction, clock).await;
            };
            let configuration = Arc::new(correction.configuration.clone());
            let (back, rest) = self.split(&bucket, &configuration, correction.amounts);
            let mut adjusted = Adjusted::default();
            // The store comes first: if it fails, no pool may have changed.
            if !rest.is_empty() {
                let rest = Correction { amounts: &rest, ..*correction };
                let result = self.leaser.store.adjust(&rest, clock).await;
                bucket.atomic.count_reply();
                if matches!(result, Err(AdjustError::Ambiguous(_))) {
                    // The correction counts as made, and is not repeated.
                    self.take_back(&bucket, &configuration, &back);
                }
                adjusted = result?;
            }
            self.take_back(&bucket, &configuration, &back);
            Ok(adjusted)
        }
        .boxed()
    }

    fn adjust_held(&self, correction: &Correction<'_>) -> Option<Adjusted> {
        if correction.mark.is_some() || correction.is_repeated {
            return None;
        }
        let bucket = self.leaser.buckets.get(&KeyRef::of(correction.bucket))?;
        let configuration = Arc::new(correction.configuration.clone());
        let (back, rest) = self.split(&bucket, &configuration, correction.amounts);
        if !rest.is_empty() {
            let demands = bucket.demands(&rest)?;
            if !self.leaser.take(&bucket, &demands, None, self.leaser.now_coarse_ms()) {
                return None;
            }
        }
        self.take_back(&bucket, &configuration, &back);
        Some(Adjusted::default())
    }

    fn peek<'a>(
        &'a self,
        request: &'a Request,
        clock: &'a dyn Clock,
    ) -> BoxFuture<'a, Result<Vec<LimitStatus>, AcquireError>> {
        async move {
            let mut limits = self.leaser.store.peek(request, clock).await?;
            for limit in &mut limits {
                let resource = request.resource.as_str();
                let key = KeyRef { entity: limit.entity.as_str(), resource };
                let Some(bucket) = self.leaser.buckets.get(&key) else { continue };
                self.add_held_tokens(&bucket, limit);
            }
            Ok(limits)
        }
        .boxed()
    }

    fn check<'a>(
        &'a self,
        clock: &'a dyn Clock,
        deadline: Duration,
    ) -> BoxFuture<'a, Result<(), AcquireError>> {
        self.leaser.store.check(clock, deadline)
    }

    fn acquire_held(&self, request: &Request) -> Option<Grant> {
        let key = KeyRef { entity: request.entity.as_str(), resource: request.resource.as_str() };
        let is_held = |bucket: &Arc<LeasedBucket>| bucket.atomic.is_watched();
        self.leaser.buckets.with(&key, is_held).filter(|is_held| *is_held)?;
        // Nothing is looked up in the store, and nothing is leased.
        let parts = self.known_parts(request).filter(|parts| !parts.is_empty())?;
        let now_ms = self.leaser.now_coarse_ms();
        for (n, part) in parts.iter().enumerate() {
            if part.bucket.atomic.take(&part.demands, now_ms) == TakeResult::NotTaken {
                parts[..n].iter().for_each(|taken| self.give_back(taken));
                return None;
            }
        }
        let parts = parts.into_iter().map(|part| part.grant).collect();
        // Tokens that were held cost nothing now.
        Some(Grant { parts, cost: Cost::default() })
    }

    fn known_by_leasing(&self, request: &Request) -> Option<Vec<BucketGrant>> {
        Some(self.known_parts(request)?.into_iter().map(|part| part.grant).collect())
    }

    fn now(&self, clock: &dyn Clock) -> EpochMillis {
        self.leaser.store.now(clock)
    }

    fn answered_lease_calls(&self) -> u64 {
        self.leaser.answers.load(Ordering::Relaxed)
    }

    fn inner(&self) -> Option<&dyn Store> {
        Some(&*self.leaser.store)
    }

    fn counters(&self) -> &Counters {
        self.leaser.store.counters()
    }
}

#[cfg(test)]
mod tests {
    use sluicegate_core::{EntityId, Refill, Resource, Rule, Rules};

    use super::*;
    use crate::settings::Cascade;
    use crate::{DynamoStore, LeaseSettings, Limiter, MemoryStore, SystemClock};

    /// A burst on a key that is not held makes thousands of them.
    #[test]
    fn a_request_that_waits_takes_little_memory() {
        let config = aws_sdk_dynamodb::Config::builder().behavior_version_latest().build();
        let client = aws_sdk_dynamodb::Client::from_conf(config);
        let store = DynamoStore::new(client, "t");
        let limiter = Limiter::builder(store).leasing(LeaseSettings::default()).build();
        let request = Request {
            entity: EntityId::new("u").unwrap(),
            resource: Resource::new("r").unwrap(),
            amounts: Amounts::new(),
            limits: Arc::default(),
            parent_limits: None,
            cascade: Cascade::No,
            deadline: Duration::from_secs(1),
        };
        let waiting = limiter.leased().unwrap().take(&request, &[], &SystemClock);
        assert!(size_of_val(&waiting) <= 2_048, "{} bytes", size_of_val(&waiting));
    }

    #[test]
    fn split_sends_a_refund_to_the_store_that_is_too_large_for_a_demand() {
        let limiter = Limiter::builder(MemoryStore::new()).leasing(LeaseSettings::default());
        let (limiter, burst) = (limiter.build(), Millitokens::new(1 << 50).unwrap());
        let (name, refill) = (LimitName::new("rpm").unwrap(), Refill::new(burst, 1_000).unwrap());
        let rules = Rules::from([(name.clone(), Rule::new(burst, refill).unwrap())]);
        let bucket = Arc::new(LeasedBucket::of("u", &["rpm"]));
        let refund = Amounts::from([(name, Millitokens::saturating(-i128::from(DEMAND_MAX)))]);
        let configuration = Arc::new(Configuration::explicit(rules));
        let parts = limiter.leased().unwrap().split(&bucket, &configuration, &refund);
        assert_eq!(parts, (Amounts::new(), refund));
    }
}
