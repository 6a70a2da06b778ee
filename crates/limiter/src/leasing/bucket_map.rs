//! The buckets of the process by name.

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use quick_cache::DefaultHashBuilder;
use scc::hash_map::Entry;
use scc::{Equivalent, HashMap};
use sluicegate_core::BucketId;

use super::key_ref::KeyRef;
use super::leased_bucket::LeasedBucket;

/// The map has room for an eighth more buckets than may be held, and 64 more.
const SPARE: usize = 8;
const SPARE_MIN: usize = 64;
/// The number of unwatched buckets that may gather before they are swept out.
const SWEEP_MIN: usize = 1_024;
/// The references that the map has to a bucket.
pub(super) const OWN_REFERENCES: usize = 1;

/// A bucket is its own key, so the map holds nothing but pointers and stays small.
pub(super) struct Named(Arc<LeasedBucket>);

impl Hash for Named {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.key().hash(state);
    }
}

impl PartialEq for Named {
    fn eq(&self, other: &Self) -> bool {
        self.0.key() == other.0.key()
    }
}

impl Eq for Named {}

impl Equivalent<Named> for KeyRef<'_> {
    fn equivalent(&self, name: &Named) -> bool {
        *self == name.0.key()
    }
}

pub(super) struct Buckets {
    by_name: HashMap<Named, (), DefaultHashBuilder>,
    /// The number of buckets in the map. The map itself would have to count them.
    named: AtomicUsize,
    max: usize,
    /// The number that was left after the last sweep.
    swept_to: AtomicUsize,
}

impl Buckets {
    /// A map with room for the watched buckets, and for those that are about to be watched.
    pub(super) fn new(max_keys: usize) -> Self {
        Self {
            by_name: HashMap::default(),
            named: AtomicUsize::new(0),
            max: max_keys.saturating_add(max_keys / SPARE).saturating_add(SPARE_MIN),
            swept_to: AtomicUsize::new(0),
        }
    }

    /// Calls `found` with the bucket of this name. Holds the map's lock meanwhile: the closure must
    /// not touch the map.
    #[inline]
    pub(super) fn with<R>(
        &self,
        key: &KeyRef<'_>,
        found: impl FnOnce(&Arc<LeasedBucket>) -> R,
    ) -> Option<R> {
        self.by_name.read_sync(key, |Named(bucket), ()| found(bucket))
    }

    pub(super) fn get(&self, key: &KeyRef<'_>) -> Option<Arc<LeasedBucket>> {
        self.with(key, Arc::clone)
    }

    /// Finds the bucket of that name, or adds a new one. If there is no room, returns a new one that
    /// no other request finds.
    pub(super) fn get_or_insert(
        &self,
        id: &BucketId,
        new: impl FnOnce() -> LeasedBucket,
    ) -> Arc<LeasedBucket> {
        if let Some(found) = self.get(&KeyRef::of(id)) {
            return found;
        }
        let new = Arc::new(new());
        if self.named.load(Ordering::Relaxed) >= self.max {
            return new;
        }
        match self.by_name.entry_sync(Named(new.clone())) {
            Entry::Occupied(found) => found.key().0.clone(),
            Entry::Vacant(place) => {
                // Counted before it can be found, so that no task uncounts it earlier.
                self.named.fetch_add(1, Ordering::Relaxed);
                place.insert_entry(());
                new
            }
        }
    }

    /// Puts this bucket under its name. Returns false if another watched bucket has the name.
    pub(super) fn take_name(&self, bucket: &Arc<LeasedBucket>) -> bool {
        loop {
            match self.by_name.entry_sync(Named(bucket.clone())) {
                Entry::Occupied(found) if Arc::ptr_eq(&found.key().0, bucket) => return true,
                Entry::Occupied(found) if found.key().0.atomic.is_watched() => return false,
                Entry::Occupied(found) => {
                    drop(found.remove_entry());
                    self.named.fetch_sub(1, Ordering::Relaxed);
                }
                Entry::Vacant(place) => {
                    self.named.fetch_add(1, Ordering::Relaxed);
                    place.insert_entry(());
                    return true;
                }
            }
        }
    }

    /// Forgets an unwatched bucket, if the map has it.
    pub(super) fn forget(&self, bucket: &Arc<LeasedBucket>) {
        let Some(found) = self.by_name.get_sync(&bucket.key()) else { return };
        if Arc::ptr_eq(&found.key().0, bucket) && !bucket.atomic.is_watched() {
            drop(found.remove_entry());
            self.named.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Forgets all buckets that are neither watched nor referenced, if there may be many.
    pub(super) fn sweep(&self, watched: usize) {
        let known = watched.max(self.swept_to.load(Ordering::Relaxed));
        let named = || self.named.load(Ordering::Relaxed);
        if named() < known.saturating_add(known / SPARE).saturating_add(SWEEP_MIN) {
            return;
        }
        self.by_name.retain_sync(|Named(bucket), ()| {
            let is_kept = bucket.atomic.is_watched() || Arc::strong_count(bucket) > OWN_REFERENCES;
            if !is_kept {
                self.named.fetch_sub(1, Ordering::Relaxed);
            }
            is_kept
        });
        self.swept_to.store(named(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: usize) -> BucketId {
        new(n).id()
    }

    fn new(n: usize) -> LeasedBucket {
        LeasedBucket::of(&format!("u{n}"), &["rpm"])
    }

    #[test]
    fn one_bucket_has_a_name_and_keeps_it_while_it_is_watched() {
        let buckets = Buckets::new(1);
        let first = buckets.get_or_insert(&id(1), || new(1));
        assert!(Arc::ptr_eq(&first, &buckets.get_or_insert(&id(1), || new(1))));
        let second = Arc::new(new(1));
        second.atomic.watch();
        assert!(buckets.take_name(&second), "no tokens are held of the first");
        assert!(Arc::ptr_eq(&second, &buckets.get(&KeyRef::of(&id(1))).unwrap()));
        assert!(!buckets.take_name(&first), "the second holds some");
        buckets.forget(&second);
        assert!(buckets.get(&KeyRef::of(&id(1))).is_some(), "it is watched");
        assert!(second.atomic.unwatch());
        buckets.forget(&first);
        assert!(buckets.get(&KeyRef::of(&id(1))).is_some(), "that was the other one");
        buckets.forget(&second);
        assert!(buckets.get(&KeyRef::of(&id(1))).is_none());
    }

    #[test]
    fn without_room_a_bucket_has_no_name_until_tokens_are_held() {
        let buckets = Buckets::new(0);
        for n in 0..SPARE_MIN {
            buckets.get_or_insert(&id(n), || new(n));
            assert!(buckets.get(&KeyRef::of(&id(n))).is_some());
        }
        let late = buckets.get_or_insert(&id(SPARE_MIN), || new(SPARE_MIN));
        assert!(buckets.get(&late.key()).is_none());
        assert!(buckets.take_name(&late));
        assert!(buckets.get(&late.key()).is_some());
    }

    #[test]
    fn unused_buckets_are_swept_out() {
        let buckets = Buckets::new(2 * SWEEP_MIN);
        let in_hand = buckets.get_or_insert(&id(0), || new(0));
        buckets.get_or_insert(&id(1), || new(1)).atomic.watch();
        for n in 2..SWEEP_MIN {
            buckets.get_or_insert(&id(n), || new(n));
        }
        buckets.sweep(1);
        assert!(buckets.get(&KeyRef::of(&id(2))).is_some(), "there are too few yet");
        buckets.get_or_insert(&id(SWEEP_MIN), || new(SWEEP_MIN));
        buckets.sweep(1);
        assert!((2..=SWEEP_MIN).all(|n| buckets.get(&KeyRef::of(&id(n))).is_none()));
        assert!(Arc::ptr_eq(&in_hand, &buckets.get(&KeyRef::of(&id(0))).unwrap()));
        assert!(buckets.get(&KeyRef::of(&id(1))).is_some());
    }
}
