//! A table with buckets in both layouts: reads find either, writes go to composite buckets only.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use sluicegate_core::keys::ItemKey;
use sluicegate_core::{BucketId, CompositeBucket, WritePath, WritePlan};

use super::{Converted, too_many};
use crate::clock::{Clock, SystemClock};
use crate::dynamo::dynamo_table::DynamoTable;
use crate::table::{
    Cancelled, Consistency, Mark, ReadItems, Table, TableError, TransactError, WriteError, Written,
};

impl DynamoTable {
    /// The bucket after a conversion, by this call or another one; `None`: there was none to
    /// convert.
    async fn converted(
        &self,
        bucket: &BucketId,
    ) -> Result<Option<Arc<CompositeBucket>>, TableError> {
        Ok(match self.convert(bucket).await? {
            Converted::Nothing => None,
            Converted::Done { composite, .. } | Converted::Exists { composite } => Some(composite),
        })
    }

    /// The bucket, if a write did not find one: converted now, or by another call meanwhile.
    async fn found_after_all(
        &self,
        bucket: &BucketId,
    ) -> Result<Option<Arc<CompositeBucket>>, TableError> {
        if let Some(composite) = self.converted(bucket).await? {
            return Ok(Some(composite));
        }
        self.composite(bucket).await
    }

    /// The same table for code that handles the legacy items itself.
    fn plain(&self) -> Self {
        let mut plain = self.clone();
        plain.converts_legacy = false;
        plain
    }

    /// Writes to a composite bucket only. A caller that planned a write without knowing the legacy
    /// items gets the bucket that they were converted to, and decides again.
    // Boxed, as are those below: a case of few tables must not enlarge every caller's future.
    pub(in crate::dynamo) fn write_converting<'a>(
        &'a self,
        bucket: &'a BucketId,
        plan: &'a WritePlan,
    ) -> BoxFuture<'a, Result<Written, WriteError>> {
        Box::pin(async move {
            if plan.path == WritePath::Create
                && let Some(composite) = self.converted(bucket).await?
            {
                return Err(WriteError::ConditionFailed(Some(composite)));
            }
            match self.plain().write(bucket, plan).await {
                Err(WriteError::ConditionFailed(None)) => {
                    Err(WriteError::ConditionFailed(self.found_after_all(bucket).await?))
                }
                written => written,
            }
        })
    }

    /// As [`Self::write_converting`], for a transaction.
    pub(in crate::dynamo) fn transact_converting<'a>(
        &'a self,
        writes: &'a [(BucketId, WritePlan)],
        mark: Option<&'a Mark>,
        token: &'a str,
    ) -> BoxFuture<'a, Result<f64, TransactError>> {
        Box::pin(async move {
            let mut reasons = Vec::with_capacity(writes.len());
            for (bucket, plan) in writes {
                let is_new = plan.path == WritePath::Create;
                let composite = if is_new { self.converted(bucket).await? } else { None };
                reasons.push(match composite {
                    Some(composite) => Cancelled::ConditionFailed(Some(composite)),
                    None => Cancelled::None,
                });
            }
            if reasons.iter().any(|reason| matches!(reason, Cancelled::ConditionFailed(_))) {
                return Err(TransactError::Cancelled(reasons));
            }
            match self.transact(writes, mark, token).await {
                Err(TransactError::Cancelled(mut reasons)) => {
                    for ((bucket, _), reason) in writes.iter().zip(&mut reasons) {
                        if matches!(reason, Cancelled::ConditionFailed(None)) {
                            *reason =
                                Cancelled::ConditionFailed(self.found_after_all(bucket).await?);
                        }
                    }
                    Err(TransactError::Cancelled(reasons))
                }
                written => written,
            }
        })
    }

    /// Reads buckets; for one that does not exist, the bucket that its legacy items would become.
    pub(in crate::dynamo) fn read_both<'a>(
        &'a self,
        keys: &'a [ItemKey],
        consistency: Consistency,
    ) -> BoxFuture<'a, Result<ReadItems, TableError>> {
        Box::pin(async move {
            let mut found = self.plain().read(keys, consistency).await?;
            for (key, item) in keys.iter().zip(&mut found.items) {
                let (ItemKey::Bucket(entity, resource), None) = (key, &item) else { continue };
                let bucket = BucketId { entity: entity.clone(), resource: resource.clone() };
                let (legacy, read_units) = self.legacy(&bucket).await?;
                found.read_units += read_units;
                // They may have been converted since the bucket was not found, or during the read.
                let (composite, read_units) = self.get(key, Consistency::Strong).await?;
                found.read_units += read_units;
                *item = match legacy.filter(|_| composite.is_none()) {
                    Some(legacy) => {
                        let seen = legacy.seen(SystemClock.now());
                        Some(seen.map_err(|source| too_many(&legacy, source))?.to_item())
                    }
                    None => composite,
                };
            }
            Ok(found)
        })
    }
}
