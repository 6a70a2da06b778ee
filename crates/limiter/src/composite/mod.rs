//! A store of composite buckets on any [`Table`]: what is known, what to do, and the table to do it.
//!
//! The decisions are `sluicegate-core`'s and the writes the table's; here is the loop between them,
//! and the memory that makes a warm acquire one write and no read.

mod acquire;
mod adjust;
mod bucket_request;
mod calls;
mod compensating;
mod directory;
mod images;
mod lane;
mod lease;
mod refusal;
mod resolve;
mod run;
mod settings;

use std::sync::Arc;
use std::time::Duration;

use serde_dynamo::Item;
use sluicegate_core::keys::{ItemKey, LimitsScope};
use sluicegate_core::{
    BucketId, CompositeBucket, EntityId, EpochMillis, Known, Policy, StoredLimits, evaluate,
};

use self::bucket_request::BucketRequest;
use self::directory::Directory;
use self::images::Images;
pub(crate) use self::lane::Lane;
pub(crate) use self::refusal::no;
use self::resolve::Lookup;
pub(crate) use self::run::CallContext;
use crate::clock::Clock;
use crate::counters::Counters;
use crate::dynamo::DynamoTable;
use crate::error::{AcquireError, AdjustError, LimitStatus};
use crate::leasing_store::LeaseCalls as _;
use crate::store::{Adjusted, Correction, Grant, Request, Store};
use crate::table::{Consistency, SetupError, Table, TableError};

pub use self::settings::{CascadeMode, Certainty, Settings};

/// A store of composite buckets.
#[derive(Debug)]
pub struct CompositeStore<T> {
    table: Arc<T>,
    settings: Settings,
    images: Images,
    directory: Directory,
    counters: Counters,
}

impl CompositeStore<DynamoTable> {
    /// The table `table` on DynamoDB. The client's own retries are turned off, whatever it says: a
    /// write that may have been applied must not be repeated blindly.
    #[must_use]
    pub fn new(client: aws_sdk_dynamodb::Client, table: impl AsRef<str>) -> Self {
        Self::with_table(DynamoTable::new(&client, table))
    }
}

impl<T: Table> CompositeStore<T> {
    /// A bucket as the table has it now.
    async fn read_bucket(
        &self,
        bucket: &BucketId,
        run: &mut CallContext<'_>,
    ) -> Result<Option<Arc<CompositeBucket>>, TableError> {
        let BucketId { entity, resource } = bucket.clone();
        let keys = [ItemKey::Bucket(entity, resource)];
        let found = run.in_time(self.table.read(&keys, Consistency::Strong)).await?;
        run.read_units += found.read_units;
        Ok(image(bucket, found.items.first().and_then(Option::as_ref))?)
    }

    /// How all limits of these buckets stand, by a read that sees every write.
    async fn look_at(
        &self,
        sides: &[BucketRequest],
        run: &mut CallContext<'_>,
    ) -> Result<Vec<LimitStatus>, AcquireError> {
        let mut limits = Vec::new();
        for side in sides {
            let image = loop {
                match self.read_bucket(&side.bucket, run).await {
                    Ok(image) => break image,
                    Err(table_error) => {
                        if !run.wait_out(table_error).await {
                            return Err(run.given_up());
                        }
                    }
                }
            };
            let now = run.now();
            side.entry.learn(Known { image: image.clone(), as_of: now, is_authoritative: true });
            let (image, configuration) = (image.as_deref(), &side.configuration);
            limits.extend(evaluate(&side.bucket, image, &side.amounts, configuration, now));
        }
        Ok(limits)
    }

    /// The lane of the requests on these buckets.
    fn lane(&self, sides: &[BucketRequest]) -> Arc<Lane> {
        let policy = self.policy();
        match sides {
            [child, parent] => {
                child.entry.lane_with(&child.bucket, (&parent.bucket, &parent.entry), policy)
            }
            sides => sides[0].entry.lane(&sides[0].bucket, policy),
        }
    }

    fn policy(&self) -> Policy {
        let deny_cache_ms = self.settings.deny_cache.as_millis();
        Policy {
            interval: self.settings.claim_interval,
            deny_cache_ms: u64::try_from(deny_cache_ms).unwrap_or(u64::MAX),
            is_transactional: self.settings.certainty == Certainty::Transactional,
        }
    }

    /// A store on this table.
    #[must_use]
    pub fn with_table(table: T) -> Self {
        Self::with_settings(table, Settings::default())
    }

    /// A store on this table that works differently.
    #[must_use]
    pub fn with_settings(table: T, settings: Settings) -> Self {
        let images = Images::new(settings.buckets_max);
        let (directory, counters) = (Directory::default(), Counters::default());
        let table = Arc::new(table);
        Self { table, settings, images, directory, counters }
    }

    /// The table.
    #[must_use]
    pub fn table(&self) -> &T {
        &self.table
    }

    /// Forgets what it believes of an entity's record, because somebody changed it.
    pub(crate) fn forget_entity(&self, entity: &EntityId) {
        self.directory.forget_entity(entity);
    }

    /// Takes over stored limits that this process changed just now; `None`: nobody knows what is
    /// stored.
    pub(crate) fn note_limits(
        &self,
        scope: &LimitsScope,
        stored: Option<&StoredLimits>,
        now: EpochMillis,
    ) {
        match stored {
            Some(stored) => self.directory.note_limits(stored, now),
            None => self.directory.forget_limits(scope),
        }
    }
}

impl<T: Table> Store for CompositeStore<T> {
    async fn acquire(&self, request: &Request, clock: &dyn Clock) -> Result<Grant, AcquireError> {
        let mut run = CallContext::new(clock, request.deadline);
        let mut sides = self.sides(request, Lookup::WhereNeeded, &mut run).await?;
        let is_split = sides.len() > 1 && self.settings.cascade_mode == CascadeMode::Compensating;
        let (parts, path) = if is_split {
            self.side_by_side(sides, &mut run, clock, request.deadline).await?
        } else {
            self.take(&mut sides, &mut run).await?
        };
        let CallContext { attempts, write_units, read_units, .. } = run;
        Ok(Grant { parts, path, attempts, write_units, read_units })
    }

    async fn adjust(
        &self,
        correction: &Correction<'_>,
        clock: &dyn Clock,
    ) -> Result<Adjusted, AdjustError> {
        Ok(self.correct(correction, clock).await?.adjusted)
    }

    async fn peek(
        &self,
        request: &Request,
        clock: &dyn Clock,
    ) -> Result<Vec<LimitStatus>, AcquireError> {
        let mut run = CallContext::new(clock, request.deadline);
        let sides = self.sides(request, Lookup::Always, &mut run).await?;
        self.look_at(&sides, &mut run).await
    }

    async fn check(&self, clock: &dyn Clock, deadline: Duration) -> Result<(), AcquireError> {
        let mut run = CallContext::new(clock, deadline);
        let read = self.table.read(&[ItemKey::SchemaVersion], Consistency::Eventual);
        match run.in_time(read).await {
            Ok(_) => Ok(()),
            Err(table_error) => Err(run.end(table_error)),
        }
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }
}

fn image(
    bucket: &BucketId,
    item: Option<&Item>,
) -> Result<Option<Arc<CompositeBucket>>, SetupError> {
    let Some(item) = item else { return Ok(None) };
    CompositeBucket::from_item(item).map(|image| image.map(Arc::new)).map_err(|source| {
        SetupError::BrokenItem { bucket: bucket.to_string(), source: source.into() }
    })
}
