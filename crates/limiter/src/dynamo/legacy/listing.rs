//! Lists buckets of both layouts: the items of one legacy bucket are adjacent, and become one
//! bucket.

use std::collections::BTreeMap;
use std::pin::Pin;

use aws_sdk_dynamodb::Client;
use futures_util::stream::{self, Stream, StreamExt};
use serde_dynamo::Item;
use sluicegate_core::keys::{ItemKey, LegacyKey, PK, SK};
use sluicegate_core::{BucketId, CompositeBucket, ItemError, LegacyBucket, LegacyLimit};

use crate::clock::{Clock, SystemClock};
use crate::dynamo::answers::text;
use crate::dynamo::item::Attributes;
use crate::dynamo::{ReadError, fetch, stored_expressions as expressions};
use crate::table::Consistency;

/// An item of either layout.
pub(in crate::dynamo) enum Row {
    Composite(CompositeBucket),
    Legacy(LegacyKey, LegacyLimit),
}

pub(in crate::dynamo) fn row(item: &Item) -> Result<Option<Row>, ItemError> {
    if let Some(composite) = CompositeBucket::from_item(item)? {
        return Ok(Some(Row::Composite(composite)));
    }
    Ok(LegacyLimit::from_item(item)?.map(|(key, bucket)| Row::Legacy(key, bucket)))
}

/// Merges rows by their keys, each bucket once: legacy rows that are left beside a composite bucket
/// are skipped.
struct Merge<S> {
    rows: Pin<Box<S>>,
    /// The legacy bucket whose rows are being read.
    group: Option<LegacyBucket>,
    /// Read and not yet returned, because the group comes first.
    next: Option<CompositeBucket>,
    /// Composite buckets whose legacy rows may still come: only rows of longer names lie between
    /// them.
    seen: Vec<BucketId>,
}

pub(in crate::dynamo) fn merged(
    rows: impl Stream<Item = Result<Row, ReadError>> + Send,
) -> impl Stream<Item = Result<CompositeBucket, ReadError>> + Send {
    let start = Merge { rows: Box::pin(rows), group: None, next: None, seen: Vec::new() };
    stream::unfold(start, async |mut merge| merge.next().await.map(|bucket| (bucket, merge)))
}

impl<S: Stream<Item = Result<Row, ReadError>>> Merge<S> {
    async fn next(&mut self) -> Option<Result<CompositeBucket, ReadError>> {
        if let Some(composite) = self.next.take() {
            return Some(Ok(composite));
        }
        loop {
            let merged_row = match self.rows.next().await {
                None => return self.group.take().map(|group| Ok(composite(&group))),
                Some(Err(error)) => return Some(Err(error)),
                Some(Ok(Row::Composite(composite))) => self.composite(composite),
                Some(Ok(Row::Legacy(key, bucket))) => self.legacy(key, bucket),
            };
            if let Some(composite) = merged_row {
                return Some(Ok(composite));
            }
        }
    }

    fn composite(&mut self, new: CompositeBucket) -> Option<CompositeBucket> {
        let id = new.id();
        if self.seen.contains(&id) {
            return None;
        }
        self.seen.retain(|seen| may_have_rows_behind(seen, &id));
        // Its own legacy rows before it date from before its conversion.
        let group = self.group.take().filter(|group| group.bucket != id);
        self.seen.push(id);
        match group {
            Some(group) => {
                self.next = Some(new);
                Some(composite(&group))
            }
            None => Some(new),
        }
    }

    fn legacy(&mut self, key: LegacyKey, bucket: LegacyLimit) -> Option<CompositeBucket> {
        if self.seen.contains(&key.bucket) {
            return None;
        }
        if let Some(group) = self.group.as_mut().filter(|group| group.bucket == key.bucket) {
            group.limits.insert(key.limit, bucket);
            return None;
        }
        let limits = BTreeMap::from([(key.limit, bucket)]);
        let before = self.group.replace(LegacyBucket { bucket: key.bucket, limits });
        before.as_ref().map(composite)
    }
}

fn composite(legacy: &LegacyBucket) -> CompositeBucket {
    legacy.composite(SystemClock.now())
}

/// True if legacy rows of `seen` may come after those of `other`: `#` follows its name.
fn may_have_rows_behind(seen: &BucketId, other: &BucketId) -> bool {
    other.entity.as_str().starts_with(seen.entity.as_str())
        && other.resource.as_str().starts_with(seen.resource.as_str())
}

/// The items of keys from an index, with the composite bucket that legacy items may have become
/// since. The composite bucket is read last: items that are gone were converted before that.
pub(in crate::dynamo) async fn with_composites(
    client: &Client,
    table: &str,
    keys: Vec<Attributes>,
) -> Result<Vec<Attributes>, ReadError> {
    let bucket_of = |item: &Attributes| {
        let key = LegacyKey::parse(&text(item, PK), &text(item, SK));
        key.ok().flatten().map(|key| key.bucket)
    };
    let mut buckets: Vec<_> = keys.iter().filter_map(bucket_of).collect();
    buckets.dedup();
    let items = fetch::in_order(client, table, keys.clone(), Consistency::Eventual).await?;
    let composites = buckets.into_iter().map(|id| ItemKey::Bucket(id.entity, id.resource));
    let composites = composites.map(|key| expressions::key(&key)).collect();
    let composites = fetch::in_order(client, table, composites, Consistency::Strong).await?;
    let mut composites = composites.into_iter().peekable();
    let mut items = items.into_iter().peekable();
    let mut merged = Vec::with_capacity(keys.len());
    for key in keys {
        if let Some(bucket) = bucket_of(&key) {
            let composite = expressions::key(&ItemKey::Bucket(bucket.entity, bucket.resource));
            merged.extend(composites.next_if(|item| is_of(item, &composite)));
        }
        merged.extend(items.next_if(|item| is_of(item, &key)));
    }
    Ok(merged)
}

fn is_of(item: &Attributes, key: &Attributes) -> bool {
    [PK, SK].iter().all(|name| item.get(*name) == key.get(*name))
}

#[cfg(test)]
mod tests {
    use futures_util::TryStreamExt;
    use sluicegate_core::{EntityId, EpochMillis, LimitName, Millitokens, Refill, Resource, Rule};

    use super::*;

    fn legacy(entity: &str, limits: &[&str]) -> LegacyBucket {
        let refill = Refill::new(Millitokens::ZERO, 1_000).unwrap();
        let item = LegacyLimit {
            rule: Rule::new(Millitokens::ZERO, refill).unwrap(),
            tokens: Millitokens::ZERO,
            refilled_at: EpochMillis::MIN,
            consumed: None,
            expires_at_s: None,
        };
        let (entity, resource) = (EntityId::new(entity), Resource::new("gpt-4"));
        let bucket = BucketId { entity: entity.unwrap(), resource: resource.unwrap() };
        let limits = limits.iter().map(|limit| (LimitName::new(limit).unwrap(), item)).collect();
        LegacyBucket { bucket, limits }
    }

    fn row(entity: &str, limit: &str) -> Row {
        let LegacyBucket { bucket, mut limits } = legacy(entity, &[limit]);
        let (limit, item) = limits.pop_first().unwrap();
        Row::Legacy(LegacyKey { bucket, limit }, item)
    }

    #[tokio::test]
    async fn a_bucket_that_is_converted_between_two_pages_is_told_once() {
        let converted = Row::Composite(composite(&legacy("b", &["rpd", "rpm"])));
        let rows = [row("a", "rpm"), row("b", "rpd"), converted, row("b", "rpm"), row("c", "rpm")];
        let listed: Vec<_> = merged(stream::iter(rows.map(Ok))).try_collect().await.unwrap();
        let listed: Vec<_> =
            listed.iter().map(|bucket| (bucket.entity.as_str(), bucket.limits.len())).collect();
        assert_eq!(listed, [("a", 1), ("b", 2), ("c", 1)]);
    }
}
