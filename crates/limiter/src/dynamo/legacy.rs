//! Buckets in the older layout of one item per limit. They are found if there is no composite
//! bucket, and converted before the first write.
//!
//! A conversion is one transaction: a reader sees one layout or the other. A write of an older
//! producer in between makes the conversion start over with the new items.

mod both;
pub(super) mod listing;
mod scan;
mod transaction;

use std::collections::BTreeMap;
use std::sync::Arc;

use aws_sdk_dynamodb::types::ReturnConsumedCapacity;
use sluicegate_core::keys::KeyRange;
use sluicegate_core::{
    BucketId, CompositeBucket, Conversion, LegacyBucket, LegacyLimit, TooManyLimits,
};

pub use self::scan::{LegacyPage, Segment};
use self::transaction::Attempt;
use super::answers::{key, units};
use super::dynamo_table::DynamoTable;
use super::item::decode;
use super::table_error::{self, EmptyAnswer};
use super::{BrokenItem, stored_expressions as expressions};
use crate::clock::{Clock, SystemClock};
use crate::store_error::SetupError;
use crate::table::{Consistency, TableError};

/// The most transactions that one conversion attempts: each that fails met another producer's
/// write.
const ATTEMPTS: u32 = 3;

/// The result of converting a bucket.
#[derive(Debug, Clone)]
pub enum Converted {
    /// It has no items in the older layout.
    Nothing,
    /// It is now a composite bucket.
    Done {
        /// The bucket.
        composite: Arc<CompositeBucket>,
        /// Write units of the transaction, indexes included.
        write_units: f64,
    },
    /// There is a composite bucket beside its items, which were left as they are: an older producer
    /// wrote them after the conversion.
    Exists {
        /// The bucket.
        composite: Arc<CompositeBucket>,
    },
}

/// The reason why a bucket was not converted. Nothing was written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConvertError {
    /// An item cannot be read.
    #[error(transparent)]
    Item(#[from] Box<BrokenItem>),
    /// It has more limits than fit in a transaction.
    #[error("the bucket of {bucket} cannot be converted")]
    TooManyLimits {
        /// The bucket.
        bucket: BucketId,
        /// The number of its limits.
        source: TooManyLimits,
    },
    /// Its items were written between every read and its transaction.
    #[error("other producers keep writing its items; stop them, or try again")]
    Changed,
    /// The table did not execute the request.
    #[error(transparent)]
    TableError(#[from] TableError),
}

impl From<ConvertError> for TableError {
    fn from(error: ConvertError) -> Self {
        match error {
            ConvertError::TableError(table_error) => table_error,
            ConvertError::Changed => Self::Conflict,
            ConvertError::Item(_) | ConvertError::TooManyLimits { .. } => {
                SetupError::Inconvertible(error.into()).into()
            }
        }
    }
}

impl DynamoTable {
    /// Also finds buckets in the older layout of one item per limit, and converts each before the
    /// first write to it.
    ///
    /// A bucket that has a composite item costs nothing more. One that has none costs a consistent
    /// query and a second read when it is read, and a query before it is created. Switch this off
    /// once every bucket is converted. The cost of a conversion is not part of the cost of the
    /// request that caused it.
    ///
    /// ```no_run
    /// use sluicegate::dynamo::DynamoTable;
    /// use sluicegate::{DynamoStore, Limiter};
    ///
    /// # fn limiter(client: aws_sdk_dynamodb::Client) {
    /// let table = DynamoTable::new(&client, "sluicegate-limits").converting_legacy();
    /// let limiter = Limiter::new(DynamoStore::with_table(table));
    /// # drop(limiter);
    /// # }
    /// ```
    #[must_use]
    pub const fn converting_legacy(mut self) -> Self {
        self.converts_legacy = true;
        self
    }

    /// Converts a bucket, if it has items in the older layout and no composite one.
    ///
    /// # Errors
    /// [`ConvertError`] if it was not converted; no bucket is half converted.
    pub async fn convert(&self, bucket: &BucketId) -> Result<Converted, ConvertError> {
        for _ in 0..ATTEMPTS {
            let Some(legacy) = self.legacy(bucket).await?.0 else { return Ok(Converted::Nothing) };
            let conversion = conversion(&legacy)?;
            match self.convert_seen(&conversion).await? {
                Attempt::Changed => {}
                Attempt::Exists(composite) => {
                    // Another conversion was first, unless the items still exist.
                    let is_left = self.legacy(bucket).await?.0.is_some();
                    let beside = Converted::Exists { composite };
                    return Ok(if is_left { beside } else { Converted::Nothing });
                }
                Attempt::Done(write_units) => {
                    let limits = conversion.removals.len();
                    tracing::info!(%bucket, limits, "converted from one item per limit");
                    let composite = Arc::new(conversion.composite);
                    return Ok(Converted::Done { composite, write_units });
                }
            }
        }
        Err(ConvertError::Changed)
    }

    /// The result that [`convert`](Self::convert) would have now. Nothing is written:
    /// [`Converted::Done`] holds the bucket as it would be, and costs no write units.
    ///
    /// # Errors
    /// [`ConvertError`] when it could not be converted.
    pub async fn would_convert(&self, bucket: &BucketId) -> Result<Converted, ConvertError> {
        // In this order, a bucket that is converted in between is not taken for one beside its old
        // items.
        let composite = self.composite(bucket).await?;
        let Some(legacy) = self.legacy(bucket).await?.0 else { return Ok(Converted::Nothing) };
        let conversion = conversion(&legacy)?;
        Ok(match composite {
            Some(composite) => Converted::Exists { composite },
            None => {
                let composite = Arc::new(conversion.composite);
                Converted::Done { composite, write_units: 0.0 }
            }
        })
    }

    /// Reads the composite bucket.
    async fn composite(
        &self,
        bucket: &BucketId,
    ) -> Result<Option<Arc<CompositeBucket>>, TableError> {
        let (item, _) = self.get(&key(bucket), Consistency::Strong).await?;
        let image = item.as_ref().map(CompositeBucket::from_item).transpose();
        let image = image.map_err(|source| SetupError::BrokenItem {
            bucket: bucket.to_string(),
            source: source.into(),
        })?;
        Ok(image.flatten().map(Arc::new))
    }

    /// Reads the items of a bucket, and returns the read units.
    async fn legacy(&self, bucket: &BucketId) -> Result<(Option<LegacyBucket>, f64), ConvertError> {
        let query = expressions::query(KeyRange::legacy_items(bucket));
        let (mut limits, mut read_units, mut start) = (BTreeMap::new(), 0.0, None);
        loop {
            let request = self
                .client
                .query()
                .table_name(&*self.name)
                .key_condition_expression(&query.condition)
                .set_expression_attribute_names(Some(query.placeholders.names.clone()))
                .set_expression_attribute_values(Some(query.placeholders.values.clone()))
                .set_exclusive_start_key(start)
                .consistent_read(true)
                .return_consumed_capacity(ReturnConsumedCapacity::Total);
            let page = request.send().await.map_err(|error| table_error::of(&self.name, error))?;
            read_units += units(page.consumed_capacity.as_ref());
            for item in page.items.ok_or(EmptyAnswer).map_err(TableError::from)? {
                let found = decode(item, LegacyLimit::from_item)?;
                limits.extend(found.map(|(key, item)| (key.limit, item)));
            }
            start = page.last_evaluated_key;
            if start.is_none() {
                let found = LegacyBucket { bucket: bucket.clone(), limits };
                return Ok(((!found.limits.is_empty()).then_some(found), read_units));
            }
        }
    }
}

fn conversion(legacy: &LegacyBucket) -> Result<Conversion, ConvertError> {
    legacy.convert(SystemClock.now()).map_err(|source| too_many(legacy, source))
}

fn too_many(legacy: &LegacyBucket, source: TooManyLimits) -> ConvertError {
    ConvertError::TooManyLimits { bucket: legacy.bucket.clone(), source }
}
