//! The operations that the write paths need of a table: execute a plan, execute several in a
//! transaction, read items.
//!
//! A table executes and knows no policy. [`DynamoTable`](crate::dynamo::DynamoTable) sends plans to
//! DynamoDB; [`MemoryTable`](crate::store::MemoryTable) applies them to a map, for tests of this
//! limiter and of programs that use it. Both pass the same suite.

use std::future::Future;
use std::sync::Arc;

use serde_dynamo::Item;
use sluicegate_core::keys::ItemKey;
use sluicegate_core::{BucketId, CompositeBucket, CorrectionKey, EpochMillis, WritePlan};
use smol_str::SmolStr;

use crate::store_error::{BoxError, SetupError};

/// A table of composite buckets.
pub trait Table: Send + Sync + 'static {
    /// Executes one plan on one bucket.
    fn write(
        &self,
        bucket: &BucketId,
        plan: &WritePlan,
    ) -> impl Future<Output = Result<Written, WriteError>> + Send;

    /// Executes a plan on each of several buckets, all or none, and returns the write units. While
    /// the table remembers the token, the same plans under it are not applied twice. With a mark,
    /// the transaction also requires that there is no such mark, and writes it.
    fn transact_write(
        &self,
        writes: &[(BucketId, WritePlan)],
        mark: Option<&Mark>,
        token: &str,
    ) -> impl Future<Output = Result<f64, TransactError>> + Send;

    /// Reads items, in the order of their keys; at most 100.
    fn read(
        &self,
        keys: &[ItemKey],
        consistency: Consistency,
    ) -> impl Future<Output = Result<ReadItems, TableError>> + Send;
}

/// An item that shows that a correction of a bucket was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// The bucket.
    pub bucket: BucketId,
    /// The key of the correction.
    pub key: CorrectionKey,
    /// The time until which it is kept.
    pub until: EpochMillis,
    /// Tells this correction from others. The table keeps it, to notice a key that is used again.
    pub fingerprint: SmolStr,
}

impl Mark {
    /// The key of the item.
    #[must_use]
    pub fn item_key(&self) -> ItemKey {
        let BucketId { entity, resource } = self.bucket.clone();
        ItemKey::Mark(entity, resource, self.key.clone())
    }
}

/// The consistency of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consistency {
    /// The read sees every write that was acknowledged before it: one read unit per 4 KB.
    Strong,
    /// The read may lag by a moment: half a unit.
    Eventual,
}

/// A write that was done.
#[derive(Debug, Clone)]
pub struct Written {
    /// The item after it, if the table returns it.
    pub image: Option<Arc<CompositeBucket>>,
    /// Write units consumed, indexes included.
    pub write_units: f64,
}

/// The result of a read.
#[derive(Debug, Clone)]
pub struct ReadItems {
    /// The items, `None` where there is none.
    pub items: Vec<Option<Item>>,
    /// Read units consumed.
    pub read_units: f64,
}

/// The reason why a write was not done, or may not have been.
#[derive(Debug)]
pub enum WriteError {
    /// A condition does not hold; this is the current item.
    ConditionFailed(Option<Arc<CompositeBucket>>),
    /// Any other error.
    Table(TableError),
}

/// The reason why a transaction was not done, or may not have been.
#[derive(Debug)]
pub enum TransactError {
    /// One reason for each write, in their order. If all are `None`, the item of the mark was the
    /// reason, but not because the mark exists.
    Cancelled(Vec<Cancelled>),
    /// There is such a mark: nothing was done now.
    MarkExists {
        /// True if it has another fingerprint.
        key_was_reused: bool,
    },
    /// An error that concerns the whole transaction.
    Table(TableError),
}

/// The part of one write in the reason why its transaction was not done.
#[derive(Debug)]
pub enum Cancelled {
    /// This write was not the reason.
    None,
    /// A condition does not hold; this is the current item.
    ConditionFailed(Option<Arc<CompositeBucket>>),
    /// Any other error.
    Table(TableError),
}

/// An error of a table, other than a failed condition.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// Another write of the same item was in flight, or an earlier copy of this transaction; this
    /// call did nothing.
    #[error("another transaction was writing the same item")]
    Conflict,
    /// The table has no capacity for this now; nothing was done.
    #[error("the table is throttled")]
    Throttled(#[source] BoxError),
    /// There was no answer, or none that says if the write was done. The source is a
    /// [`StoreFailure`](crate::error::StoreFailure) if the table answered that it failed. It is a
    /// [`NoConnection`](crate::error::NoConnection) if no connection could be made, so that nothing
    /// was done.
    #[error("the table does not answer, or failed")]
    Unconfirmed(#[source] BoxError),
    /// Access is denied, the table does not exist, or the request is invalid: a repetition fails
    /// too.
    #[error(transparent)]
    Setup(#[from] SetupError),
}

impl From<TableError> for WriteError {
    fn from(table_error: TableError) -> Self {
        Self::Table(table_error)
    }
}

impl From<TableError> for TransactError {
    fn from(table_error: TableError) -> Self {
        Self::Table(table_error)
    }
}
