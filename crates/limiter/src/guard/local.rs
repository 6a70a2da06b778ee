//! Buckets of one limiter, used while the store is unavailable.
//!
//! A bucket starts from the last grant of the store, or full if no grant is known, and follows the
//! same arithmetic. If a grant is known and nothing was corrected since, the limiter admits no more
//! than the store would have admitted to this limiter alone. Tokens taken from these buckets are
//! debited at the store later: see [`super::pending_debits`].

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use quick_cache::sync;
use sluicegate_core::{
    Amounts, BucketId, CompositeBucket, Configuration, EntityId, EpochMillis, LimitName,
    Millitokens, RequestId, Rules,
};

use super::local_bucket::{LastSeen, LocalBucket, LocalTarget, has_rules};
use super::pending_debits::PendingDebits;
use crate::call::new_id;
use crate::counters::Counters;
use crate::error::AcquireError;
use crate::lock::lock;
use crate::store::{BucketGrant, Cascade, Request};

/// The most grants of the store, and the most buckets, that are remembered; each takes about a
/// kilobyte. If both are forgotten, a bucket starts full.
const BUCKETS_MAX: usize = 100_000;

/// The buckets of one limiter and its clones.
#[derive(Debug)]
pub(super) struct LocalBuckets {
    seen: sync::Cache<BucketId, Arc<LastSeen>>,
    /// The number of noted grants and debits: while it does not change, `seen` need not be read.
    noted: AtomicU64,
    buckets: sync::Cache<BucketId, Arc<LocalSlot>>,
    pub(super) pending_debits: PendingDebits,
}

/// The slot of one bucket, empty until something was taken from it. Requests for other buckets use
/// other locks.
type LocalSlot = Mutex<Option<LocalBucket>>;

impl Default for LocalBuckets {
    fn default() -> Self {
        Self {
            seen: sync::Cache::new(BUCKETS_MAX),
            noted: AtomicU64::new(0),
            buckets: sync::Cache::new(BUCKETS_MAX),
            pending_debits: PendingDebits::default(),
        }
    }
}

impl LocalBuckets {
    /// Remembers a grant of the store. A parent is learned only from a request with
    /// `Cascade::Stored`.
    pub(super) fn remember(&self, request: &Request, parts: &[BucketGrant]) {
        let uncharged = parts.first().and_then(|own| own.uncharged_parent.as_deref());
        let buckets: Vec<_> = parts.iter().chain(uncharged).collect();
        for (n, part) in buckets.iter().enumerate() {
            let parent = if n == 0 && request.cascade == Cascade::Stored {
                buckets.get(1).map(|part| part.bucket.entity.clone())
            } else {
                self.seen.get(&part.bucket).and_then(|seen| seen.parent.clone())
            };
            let (image, configuration) = (part.image.clone(), part.configuration.clone());
            let seen = Arc::new(LastSeen { image, configuration, parent });
            self.seen.insert(part.bucket.clone(), seen);
        }
        self.noted.fetch_add(1, Ordering::Release);
    }

    /// Remembers the images of these buckets that leasing has, unless they are remembered already.
    pub(super) fn note_known(&self, request: &Request, parts: &[BucketGrant]) {
        let is_noted = |part: &BucketGrant| {
            let Some(image) = &part.image else { return true };
            let seen = self.seen.get(&part.bucket).and_then(|seen| seen.image.clone());
            seen.is_some_and(|seen| Arc::ptr_eq(&seen, image))
        };
        if !parts.iter().all(is_noted) {
            self.remember(request, parts);
        }
    }

    /// Notes that a debit was made at the store: subtracts it from the remembered last grant, if
    /// that grant is older than the debit. The next outage begins with the result.
    pub(super) fn note_debited(
        &self,
        bucket: &BucketId,
        id: &RequestId,
        amounts: &Amounts,
        now: EpochMillis,
    ) {
        let Some(seen) = self.seen.get(bucket) else { return };
        let Some(image) = seen.image.as_ref().filter(|image| !image.request_ids.contains(id))
        else {
            return;
        };
        let image = debited(image, amounts, now);
        let (configuration, parent) = (seen.configuration.clone(), seen.parent.clone());
        let seen = LastSeen { image: Some(Arc::new(image)), configuration, parent };
        self.seen.insert(bucket.clone(), Arc::new(seen));
        self.noted.fetch_add(1, Ordering::Release);
    }

    /// Takes the tokens from all buckets, or from none.
    pub(super) fn take(
        &self,
        request: &Request,
        now: EpochMillis,
        counters: &Counters,
    ) -> Result<Vec<BucketGrant>, AcquireError> {
        if let Some(part) = self.take_in_place(request, now, counters) {
            return Ok(vec![part]);
        }
        let targets = self.targets(request);
        let id = new_id();
        let slots: Vec<_> = targets.iter().map(|target| self.slot(&target.bucket)).collect();
        let mut buckets = lock_all(&slots);
        let images: Vec<_> = targets
            .iter()
            .zip(&buckets)
            .map(|(target, bucket)| self.newest_image(bucket.as_ref(), target, now))
            .collect();
        let mut taken = Vec::with_capacity(targets.len());
        for (target, image) in targets.iter().zip(&images) {
            match target.take(image.clone(), &id, now)? {
                Some(image) => taken.push(image),
                None => return Err(refuse(&targets, &images, &mut buckets, now)),
            }
        }
        let mut parts = Vec::with_capacity(targets.len());
        for ((target, image), slot) in targets.into_iter().zip(taken).zip(&mut buckets) {
            **slot = Some(target.local_bucket(image.clone()));
            let LocalTarget { bucket, amounts, configuration, .. } = target;
            self.pending_debits.add(&bucket, &amounts, &configuration, counters);
            parts.push(BucketGrant::new(bucket, amounts, Some(image), configuration));
        }
        Ok(parts)
    }

    /// Takes from a single bucket, and copies its image only if a permit still holds it. This works
    /// if an earlier request took from the bucket by the same limits: the usual case of an outage.
    /// `None`, and nothing is taken: this function cannot decide the request.
    fn take_in_place(
        &self,
        request: &Request,
        now: EpochMillis,
        counters: &Counters,
    ) -> Option<BucketGrant> {
        let (entity, resource) = (request.entity.clone(), request.resource.clone());
        let id = BucketId { entity, resource };
        let noted = self.noted.load(Ordering::Acquire);
        let slot = self.buckets.get(&id)?;
        // An image that a permit still shows, and a copy of it for this request to change.
        let mut copied: Option<(Arc<CompositeBucket>, Arc<CompositeBucket>)> = None;
        loop {
            let mut locked = lock(&slot);
            let bucket = locked.as_mut()?;
            if bucket.noted_when_checked != Some(noted) {
                let seen = self.seen.get(&id);
                if !bucket.is_newest(seen.as_ref()) {
                    return None;
                }
                bucket.has_parent = seen.is_some_and(|seen| seen.parent.is_some());
                bucket.noted_when_checked = Some(noted);
            }
            let has_parent = match &request.cascade {
                Cascade::No => false,
                Cascade::To(_) => true,
                Cascade::Stored => bucket.has_parent,
            };
            if has_parent || !has_rules(&bucket.configuration, &request.limits) {
                return None;
            }
            if let Some((shown, copy)) = copied.take()
                && Arc::ptr_eq(&shown, &bucket.image)
            {
                bucket.image = copy;
            }
            let Some(image) = Arc::get_mut(&mut bucket.image) else {
                // A permit still shows this image. Copy it without the lock. If another request
                // takes meanwhile, copy again.
                let shown = bucket.image.clone();
                drop(locked);
                let copy = Arc::new(shown.as_ref().clone());
                copied = Some((shown, copy));
                continue;
            };
            if !image.take_alone(&request.amounts, now) {
                return None;
            }
            let (image, configuration) = (bucket.image.clone(), bucket.configuration.clone());
            self.pending_debits.add(&id, &request.amounts, &configuration, counters);
            let amounts = request.amounts.clone();
            return Some(BucketGrant::new(id, amounts, Some(image), configuration));
        }
    }

    fn slot(&self, bucket: &BucketId) -> Arc<LocalSlot> {
        let Ok(slot) =
            self.buckets.get_or_insert_with(bucket, || Ok::<_, Infallible>(Arc::default()));
        slot
    }

    fn targets(&self, request: &Request) -> Vec<LocalTarget> {
        let bucket = |entity: &EntityId| BucketId {
            entity: entity.clone(),
            resource: request.resource.clone(),
        };
        let own = self.target(bucket(&request.entity), &request.limits, &request.amounts);
        let parent = match &request.cascade {
            Cascade::No => None,
            Cascade::To(parent) => Some(parent.clone()),
            Cascade::Stored => own.seen.as_ref().and_then(|seen| seen.parent.clone()),
        };
        let mut targets = vec![own];
        if let Some(parent) = parent {
            let explicit = request.parent_limits.as_ref().unwrap_or(&request.limits);
            let mut target = self.target(bucket(&parent), explicit, &request.amounts);
            // A parent is not asked for a limit that it does not have.
            let image = target.seen.as_ref().and_then(|seen| seen.image.as_deref());
            let has = |limit: &LimitName| target.configuration.has_limit(image, limit);
            target.amounts.retain(|limit, _| has(limit));
            if !target.amounts.is_empty() {
                targets.push(target);
            }
        }
        targets
    }

    /// Limits in the request win over those that the store reported.
    fn target(&self, bucket: BucketId, explicit: &Arc<Rules>, amounts: &Amounts) -> LocalTarget {
        let seen = self.seen.get(&bucket);
        let configuration = match seen.as_ref().map(|seen| &seen.configuration) {
            None => Arc::new(Configuration::explicit(explicit.clone())),
            Some(known) if has_rules(known, explicit) => known.clone(),
            Some(known) => {
                let mut rules = known.rules();
                rules.extend(explicit.iter().map(|(limit, rule)| (limit.clone(), *rule)));
                Arc::new(Configuration::explicit(rules))
            }
        };
        LocalTarget { bucket, amounts: amounts.clone(), configuration, seen }
    }

    /// The newest image: that of `own` if no grant and no debit was noted since, or else the one of
    /// the store's last grant less all debits.
    fn newest_image(
        &self,
        own: Option<&LocalBucket>,
        target: &LocalTarget,
        now: EpochMillis,
    ) -> Option<Arc<CompositeBucket>> {
        if let Some(own) = own.filter(|own| own.is_newest(target.seen.as_ref())) {
            return Some(own.image.clone());
        }
        let granted = target.seen.as_ref()?.image.as_ref()?;
        let amounts = self.pending_debits.of(&target.bucket);
        if amounts.is_empty() {
            return Some(granted.clone());
        }
        Some(Arc::new(debited(granted, &amounts, now)))
    }
}

/// The bucket after a debit at `now`. The refill up to `now` comes first, capped by the burst. If
/// the debit came first, refill that the cap cuts off would make up for it.
fn debited(image: &CompositeBucket, amounts: &Amounts, now: EpochMillis) -> CompositeBucket {
    let mut image = image.clone();
    for (limit, balance) in &mut image.limits {
        let tokens = balance.rule.effective(balance.tokens, image.refilled_at, now);
        let left = i128::from(tokens.get()) - i128::from(amounts.of(limit).get());
        balance.tokens = Millitokens::saturating(left);
    }
    image.refilled_at = image.refilled_at.max(now);
    image
}

/// Refuses a request, and brings the buckets to the limits of the request.
fn refuse(
    targets: &[LocalTarget],
    images: &[Option<Arc<CompositeBucket>>],
    buckets: &mut [MutexGuard<'_, Option<LocalBucket>>],
    now: EpochMillis,
) -> AcquireError {
    let mut limits = Vec::new();
    for ((target, image), slot) in targets.iter().zip(images).zip(buckets) {
        if let Some(image) = image.as_ref().and_then(|image| target.reconfigured(image, now)) {
            **slot = Some(target.local_bucket(image));
        }
        limits.extend(target.evaluate(image.as_deref(), now));
    }
    AcquireError::refused(limits)
}

/// Locks the slots in one order for all requests, so that two requests never deadlock.
fn lock_all(slots: &[Arc<LocalSlot>]) -> Vec<MutexGuard<'_, Option<LocalBucket>>> {
    let mut locked: Vec<_> = slots.iter().enumerate().collect();
    locked.sort_by_key(|(_, slot)| Arc::as_ptr(slot));
    let mut locked: Vec<_> = locked.into_iter().map(|(n, slot)| (n, lock(slot))).collect();
    locked.sort_by_key(|(n, _)| *n);
    locked.into_iter().map(|(_, guard)| guard).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sluicegate_core::Resource;

    use super::*;
    use crate::check::rules;
    use crate::limit::Limit;

    const NOW: i64 = 1_769_608_800_000;

    fn request(entity: &str, cascade: Cascade) -> Request {
        let amount = (LimitName::new("rpm").unwrap(), Millitokens::new(1_000).unwrap());
        Request {
            entity: EntityId::new(entity).unwrap(),
            resource: Resource::new("r").unwrap(),
            amounts: Amounts::from([amount]),
            limits: rules(&[Limit::quota("rpm", 1_000)]).unwrap().into(),
            parent_limits: None,
            cascade,
            deadline: Duration::from_secs(1),
        }
    }

    fn take(local: &LocalBuckets, request: &Request) -> Result<Vec<BucketGrant>, AcquireError> {
        local.take(request, EpochMillis::new(NOW).unwrap(), &Counters::default())
    }

    /// The only part of a grant.
    fn part(local: &LocalBuckets, entity: &str) -> BucketGrant {
        take(local, &request(entity, Cascade::No)).unwrap().remove(0)
    }

    /// A grant that takes nothing from the parent does not say that there is none.
    #[test]
    fn a_parent_is_known_although_the_last_grant_took_nothing_from_it() {
        let local = LocalBuckets::default();
        let part = |entity| part(&local, entity);
        let stored = request("u", Cascade::Stored);
        local.remember(&stored, &[part("u"), part("team")]);
        let uncharged_parent = Some(Arc::new(part("team")));
        local.remember(&stored, &[BucketGrant { uncharged_parent, ..part("u") }]);
        assert_eq!(take(&local, &stored).unwrap().len(), 2);
    }

    /// Another producer gave the parent's bucket the limit, which no request names.
    #[test]
    fn a_limit_that_only_the_bucket_of_the_parent_has_is_kept() {
        let local = LocalBuckets::default();
        let part = |entity| part(&local, entity);
        let bare = Request { limits: Arc::default(), ..request("u", Cascade::Stored) };
        let parent = BucketGrant { configuration: Arc::default(), ..part("team") };
        local.remember(&bare, &[part("u"), parent]);
        assert_eq!(take(&local, &bare).unwrap().len(), 2);
    }

    #[test]
    fn a_bucket_that_is_locked_holds_up_no_other() {
        let local = LocalBuckets::default();
        let parts = ["a", "b"].map(|entity| take(&local, &request(entity, Cascade::No)).unwrap());
        let [a, b] = parts.map(|parts| local.slot(&parts[0].bucket));
        assert!(!Arc::ptr_eq(&a, &b));
        let _locked = lock(&a);
        take(&local, &request("b", Cascade::No)).unwrap();
        take(&local, &request("c", Cascade::No)).unwrap();
    }

    /// Permits show what was left, and child and parent are taken from in both directions.
    #[test]
    fn requests_at_once_take_what_there_is_and_no_more() {
        let local = LocalBuckets::default();
        let parent = |entity| Cascade::To(EntityId::new(entity).unwrap());
        let asked = [
            request("a", Cascade::No),
            request("a", parent("b")),
            request("b", parent("a")),
            request("b", Cascade::No),
        ];
        let granted: Vec<Vec<BucketGrant>> = std::thread::scope(|scope| {
            let local = &local;
            let asking = asked.each_ref().map(|request| {
                scope.spawn(move || (0..1_000).filter_map(|_| take(local, request).ok()).collect())
            });
            let granted = asking.map(|asking| asking.join().unwrap());
            granted.into_iter().flat_map(|granted: Vec<Vec<BucketGrant>>| granted).collect()
        });
        for entity in ["a", "b"] {
            let parts = granted.iter().flatten();
            let of = parts.filter(|part| part.bucket.entity.as_str() == entity);
            assert_eq!(of.count(), 1_000, "{entity}");
        }
    }
}
