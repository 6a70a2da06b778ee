//! A table in memory: applies plans to a map, by the same functions that the model checker uses.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex};

use sluicegate_core::keys::ItemKey;
use sluicegate_core::{BucketId, CompositeBucket, WritePlan};

use crate::lock::lock;
use crate::table::{
    Cancelled, Consistency, Mark, ReadItems, Table, TableError, TransactError, WriteError, Written,
};

/// The number of transaction tokens that are remembered. DynamoDB remembers them for ten minutes,
/// and there is no clock here. A caller repeats its token at once, long before so many others come.
const TOKENS_MAX: usize = 100_000;

/// Buckets in memory that end with the process: the table of a
/// [`MemoryStore`](crate::MemoryStore).
///
/// It holds buckets only: no stored limits and no entities. A repeated transaction is done once, as
/// long as fewer than 100,000 others come in between (fewer, if corrections have keys).
#[derive(Debug, Default)]
pub struct MemoryTable {
    buckets: Mutex<HashMap<BucketId, Arc<CompositeBucket>>>,
    /// Tokens and marks.
    tokens: Mutex<TransactionTokens>,
}

/// The newest tokens of transactions that were done.
#[derive(Debug, Default)]
struct TransactionTokens {
    known: HashSet<Arc<str>>,
    by_age: VecDeque<Arc<str>>,
}

impl TransactionTokens {
    fn remember(&mut self, token: &str) {
        if self.by_age.len() >= TOKENS_MAX
            && let Some(oldest) = self.by_age.pop_front()
        {
            self.known.remove(&oldest);
        }
        let token: Arc<str> = token.into();
        self.known.insert(token.clone());
        self.by_age.push_back(token);
    }
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

    /// Puts a bucket, or removes it.
    pub fn set(&self, bucket: &BucketId, image: Option<CompositeBucket>) {
        match image {
            Some(image) => _ = self.lock().insert(bucket.clone(), Arc::new(image)),
            None => _ = self.lock().remove(bucket),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<BucketId, Arc<CompositeBucket>>> {
        lock(&self.buckets)
    }
}

impl Table for MemoryTable {
    async fn write(&self, bucket: &BucketId, plan: &WritePlan) -> Result<Written, WriteError> {
        let mut buckets = self.lock();
        let before = buckets.get(bucket);
        let Some(after) = plan.apply(before.map(AsRef::as_ref)) else {
            return Err(WriteError::ConditionFailed(before.cloned()));
        };
        let after = Arc::new(after);
        buckets.insert(bucket.clone(), after.clone());
        Ok(Written { image: Some(after), write_units: 1.0 })
    }

    async fn transact_write(
        &self,
        writes: &[(BucketId, WritePlan)],
        mark: Option<&Mark>,
        token: &str,
    ) -> Result<f64, TransactError> {
        let mut buckets = self.lock();
        let mut tokens = lock(&self.tokens);
        if tokens.known.contains(token) {
            return Ok(0.0);
        }
        // Kept like a token, and no other token has these characters.
        let mark = mark.map(|mark| {
            let key = mark.item_key().pk() + &mark.item_key().sk();
            let with_fingerprint = format!("{key} {}", mark.fingerprint);
            [key, with_fingerprint]
        });
        if let Some([key, with_fingerprint]) = &mark
            && tokens.known.contains(key.as_str())
        {
            let key_was_reused = !tokens.known.contains(with_fingerprint.as_str());
            return Err(TransactError::MarkExists { key_was_reused });
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
                Err(before) => Cancelled::ConditionFailed(before),
            });
            return Err(TransactError::Cancelled(reasons.collect()));
        }
        for ((bucket, _), after) in writes.iter().zip(after.into_iter().flatten()) {
            buckets.insert(bucket.clone(), Arc::new(after));
        }
        tokens.remember(token);
        for token in mark.iter().flatten() {
            tokens.remember(token);
        }
        Ok(writes.iter().map(|_| 2.0).sum::<f64>() + mark.map_or(0.0, |_| 2.0))
    }

    async fn read(
        &self,
        keys: &[ItemKey],
        _consistency: Consistency,
    ) -> Result<ReadItems, TableError> {
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

#[cfg(test)]
mod tests {
    use sluicegate_core::{
        Acquire, Amounts, ClaimInterval, Configuration, Decision, EntityId, EpochMillis, LimitName,
        Millitokens, RefillHint, Resource, decide,
    };

    use super::*;
    use crate::call::new_id;
    use crate::check::rules;
    use crate::limit::Limit;

    /// One token of a bucket that does not exist.
    fn write() -> (BucketId, WritePlan) {
        let (entity, resource) = (EntityId::new("u").unwrap(), Resource::new("r").unwrap());
        let bucket = BucketId { entity, resource };
        let amount = (LimitName::new("rpm").unwrap(), Millitokens::new(1_000).unwrap());
        let rules = rules(&[Limit::per_minute("rpm", 60)]).unwrap();
        let acquire = Acquire {
            bucket: &bucket,
            amounts: &Amounts::from([amount]),
            configuration: &Configuration::explicit(rules),
            id: &new_id(),
            interval: ClaimInterval(0),
            hint: RefillHint::TrustImage,
        };
        let Decision::Write(plan) = decide(None, acquire, EpochMillis::MIN) else { panic!() };
        (bucket, plan)
    }

    #[tokio::test]
    async fn it_remembers_the_newest_tokens_and_no_more_than_it_may() {
        let (table, writes) = (MemoryTable::new(), [write()]);
        table.transact_write(&[], None, "oldest").await.unwrap();
        for n in 0..TOKENS_MAX {
            table.transact_write(&[], None, &n.to_string()).await.unwrap();
        }
        table.transact_write(&writes, None, "5").await.unwrap();
        assert!(table.bucket(&writes[0].0).is_none(), "the transaction was done before");
        let remembered = {
            let tokens = table.tokens.lock().unwrap();
            (tokens.known.len(), tokens.by_age.len())
        };
        assert_eq!(remembered, (TOKENS_MAX, TOKENS_MAX));
        table.transact_write(&writes, None, "oldest").await.unwrap();
        assert!(table.bucket(&writes[0].0).is_some());
    }
}
