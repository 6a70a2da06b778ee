//! A table in memory: plans applied to a map, by the same words that a model checker uses.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use sluicegate_core::keys::ItemKey;
use sluicegate_core::{BucketId, CompositeBucket, WritePlan};

use crate::table::{
    Cancelled, Consistency, ReadItems, Table, TogetherError, Trouble, WriteError, Written,
};

/// Buckets in memory, gone with the process: for tests of programs that use a limiter.
///
/// It holds buckets only: no stored limits and no entities.
#[derive(Debug, Default)]
pub struct MemoryTable {
    buckets: Mutex<HashMap<BucketId, Arc<CompositeBucket>>>,
    tokens: Mutex<Vec<String>>,
}

impl MemoryTable {
    /// An empty table.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The bucket as it is stored.
    #[must_use]
    pub fn bucket(&self, bucket: &BucketId) -> Option<Arc<CompositeBucket>> {
        self.lock().get(bucket).cloned()
    }

    /// Puts a bucket, or takes it away.
    pub fn set(&self, bucket: &BucketId, image: Option<CompositeBucket>) {
        match image {
            Some(image) => _ = self.lock().insert(bucket.clone(), Arc::new(image)),
            None => _ = self.lock().remove(bucket),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<BucketId, Arc<CompositeBucket>>> {
        self.buckets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table for MemoryTable {
    async fn write(&self, bucket: &BucketId, plan: &WritePlan) -> Result<Written, WriteError> {
        let mut buckets = self.lock();
        let before = buckets.get(bucket);
        let Some(after) = plan.apply(before.map(AsRef::as_ref)) else {
            return Err(WriteError::Refused(before.cloned()));
        };
        let after = Arc::new(after);
        buckets.insert(bucket.clone(), after.clone());
        Ok(Written { image: Some(after), write_units: 1.0 })
    }

    async fn write_together(
        &self,
        writes: &[(BucketId, WritePlan)],
        token: &str,
    ) -> Result<f64, TogetherError> {
        let mut buckets = self.lock();
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        if tokens.iter().any(|seen| seen == token) {
            return Ok(0.0);
        }
        let after: Vec<_> = writes
            .iter()
            .map(|(bucket, plan)| {
                let before = buckets.get(bucket);
                plan.apply(before.map(AsRef::as_ref)).ok_or_else(|| before.cloned())
            })
            .collect();
        if after.iter().any(Result::is_err) {
            let reasons = after.into_iter().map(|after| match after {
                Ok(_) => Cancelled::None,
                Err(before) => Cancelled::Refused(before),
            });
            return Err(TogetherError::Cancelled(reasons.collect()));
        }
        for ((bucket, _), after) in writes.iter().zip(after.into_iter().flatten()) {
            buckets.insert(bucket.clone(), Arc::new(after));
        }
        tokens.push(token.to_owned());
        Ok(writes.iter().map(|_| 2.0).sum())
    }

    async fn read(
        &self,
        keys: &[ItemKey],
        _consistency: Consistency,
    ) -> Result<ReadItems, Trouble> {
        let buckets = self.lock();
        let item = |key: &ItemKey| match key {
            ItemKey::Bucket(entity, resource) => {
                let bucket = BucketId { entity: entity.clone(), resource: resource.clone() };
                buckets.get(&bucket).map(|bucket| bucket.to_item())
            }
            _ => None,
        };
        let items: Vec<_> = keys.iter().map(item).collect();
        let read_units = keys.iter().map(|_| 1.0).sum();
        Ok(ReadItems { items, read_units })
    }
}
