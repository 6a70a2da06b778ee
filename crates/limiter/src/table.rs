//! What the write paths need of a table: execute a plan, execute some together, read items.
//!
//! A table executes and knows no policy. [`DynamoTable`](crate::DynamoTable) sends plans to
//! DynamoDB; [`MemoryTable`](crate::MemoryTable) applies them to a map, for tests of programs that
//! use a limiter and for the model of this one. Both pass the same suite.

use std::future::Future;
use std::sync::Arc;

use serde_dynamo::Item;
use sluicegate_core::keys::ItemKey;
use sluicegate_core::{BucketId, CompositeBucket, WritePlan};

use crate::store_error::{BoxError, SetupError};

/// A table of composite buckets.
pub trait Table: Send + Sync + 'static {
    /// Executes one plan on one bucket.
    fn write(
        &self,
        bucket: &BucketId,
        plan: &WritePlan,
    ) -> impl Future<Output = Result<Written, WriteError>> + Send;

    /// Executes a plan on each of some buckets, all or none. The same token with the same plans
    /// never applies them twice.
    fn transact_write(
        &self,
        writes: &[(BucketId, WritePlan)],
        token: &str,
    ) -> impl Future<Output = Result<f64, TransactError>> + Send;

    /// Reads items, in the order of their keys; at most 100.
    fn read(
        &self,
        keys: &[ItemKey],
        consistency: Consistency,
    ) -> impl Future<Output = Result<ReadItems, TableError>> + Send;
}

/// Whether a read sees every write that was acknowledged before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consistency {
    /// It does: one read unit per 4 KB.
    Strong,
    /// It may lag by a moment: half a unit.
    Eventual,
}

/// A write that was done.
#[derive(Debug, Clone)]
pub struct Written {
    /// The item after it, where the table says so.
    pub image: Option<Arc<CompositeBucket>>,
    /// Write units that it cost, indexes included.
    pub write_units: f64,
}

/// What was read.
#[derive(Debug, Clone)]
pub struct ReadItems {
    /// The items, `None` where there is none.
    pub items: Vec<Option<Item>>,
    /// Read units that it cost.
    pub read_units: f64,
}

/// Why a write was not done.
#[derive(Debug)]
pub enum WriteError {
    /// A condition does not hold; this is what stands there.
    Refused(Option<Arc<CompositeBucket>>),
    /// Something else.
    Table(TableError),
}

/// Why some writes were not done together.
#[derive(Debug)]
pub enum TransactError {
    /// Each by itself, in the order of the writes; at least one says why.
    Cancelled(Vec<Cancelled>),
    /// Something that concerns all of them.
    Table(TableError),
}

/// What one write of a transaction has to do with its end.
#[derive(Debug)]
pub enum Cancelled {
    /// Nothing.
    None,
    /// A condition does not hold; this is what stands there.
    Refused(Option<Arc<CompositeBucket>>),
    /// Something else.
    Table(TableError),
}

/// What keeps a table from doing what it is told.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// Another write of the same item was under way; nothing was done.
    #[error("another transaction was writing the same item")]
    Conflict,
    /// The table has no capacity for this now; nothing was done.
    #[error("the table is throttled")]
    Throttled(#[source] BoxError),
    /// No answer came, or none that says whether it was done: the source is a [`StoreFailure`]
    /// where the table answered that it failed.
    #[error("the table does not answer, or failed")]
    Unreachable(#[source] BoxError),
    /// The caller may not, there is no such table, or the request is not acceptable: the same in a
    /// moment.
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
