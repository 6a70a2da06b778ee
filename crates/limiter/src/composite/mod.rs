//! A store of composite buckets on any [`Table`]: what is known, what to do, and the table to do it.
//!
//! The decisions are `sluicegate-core`'s and the writes the table's; here is the loop between them,
//! and the memory that makes a warm acquire one write and no read.

mod acquire;
mod adjust;
mod compensating;
mod directory;
mod images;
mod lease;
mod leasing;
mod promises;
mod reads;
mod refusal;
mod resolve;
mod run;
mod settings;
mod side;
mod write;

use std::sync::Arc;
use std::time::Duration;

use serde_dynamo::Item;
use sluicegate_core::keys::{ItemKey, LimitsScope};
use sluicegate_core::{
    Amounts, BucketId, CompositeBucket, EntityId, EpochMillis, Millitokens, RequestId,
    StoredLimits, WritePlan,
};

use self::acquire::Acquiring;
use self::directory::Directory;
use self::images::Images;
pub(crate) use self::refusal::no;
use self::resolve::Lookup;
pub(crate) use self::run::Run;
use self::side::Side;
use crate::clock::Clock;
use crate::counters::Counters;
use crate::dynamo::DynamoTable;
use crate::error::{AcquireError, AdjustError, LimitStatus};
use crate::lessor::Lends as _;
use crate::store::{Adjusted, Correction, Grant, Request, Store};
use crate::table::{
    Cancelled, Consistency, SetupError, Table, TogetherError, Trouble, WriteError, Written,
};

pub use self::settings::{CascadeMode, Certainty, Settings};

/// A store of composite buckets.
#[derive(Debug)]
pub struct CompositeStore<T> {
    table: T,
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
        Self::on(DynamoTable::new(&client, table))
    }
}

impl<T: Table> CompositeStore<T> {
    /// A bucket as the table has it now.
    async fn read_bucket(
        &self,
        bucket: &BucketId,
        run: &mut Run<'_>,
    ) -> Result<Option<Arc<CompositeBucket>>, Trouble> {
        let BucketId { entity, resource } = bucket.clone();
        let keys = [ItemKey::Bucket(entity, resource)];
        let found = run.in_time(self.table.read(&keys, Consistency::Strong)).await?;
        run.read_units += found.read_units;
        Ok(image(bucket, found.items.first().and_then(Option::as_ref))?)
    }

    /// A store on this table.
    #[must_use]
    pub fn on(table: T) -> Self {
        Self::with_settings(table, Settings::default())
    }

    /// A store on this table that works differently.
    #[must_use]
    pub fn with_settings(table: T, settings: Settings) -> Self {
        let images = Images::new(settings.buckets_max);
        let (directory, counters) = (Directory::default(), Counters::default());
        Self { table, settings, images, directory, counters }
    }

    /// The table.
    #[must_use]
    pub const fn table(&self) -> &T {
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

    /// Sends one plan, as the settings have it.
    async fn write(
        &self,
        run: &mut Run<'_>,
        bucket: &BucketId,
        plan: &WritePlan,
    ) -> Result<Written, WriteError> {
        if self.settings.certainty == Certainty::Remembered {
            return run.in_time(self.table.write(bucket, plan)).await;
        }
        let writes = [(bucket.clone(), plan.clone())];
        let token = run.token();
        loop {
            let trouble = match run.in_time(self.table.write_together(&writes, &token)).await {
                Ok(write_units) => return Ok(Written { image: None, write_units }),
                Err(TogetherError::Trouble(trouble)) => trouble,
                Err(TogetherError::Cancelled(reasons)) => {
                    return Err(match reasons.into_iter().next() {
                        Some(Cancelled::Refused(image)) => WriteError::Refused(image),
                        Some(Cancelled::Trouble(trouble)) => WriteError::Trouble(trouble),
                        // Cancelled for no reason: as good as another writer in the way.
                        Some(Cancelled::None) | None => WriteError::Trouble(Trouble::Conflict),
                    });
                }
            };
            // The same again under the same token is done once.
            let may_repeat = matches!(trouble, Trouble::Away(_) | Trouble::Conflict);
            if !may_repeat || !run.pause().await {
                return Err(trouble.into());
            }
        }
    }
}

impl<T: Table> Store for CompositeStore<T> {
    async fn acquire(&self, request: &Request, clock: &dyn Clock) -> Result<Grant, AcquireError> {
        let mut run = Run::new(clock, request.deadline);
        let sides = self.sides(request, Lookup::WhereNeeded, &mut run).await?;
        let (parts, path) = match <[Side; 2]>::try_from(sides) {
            Ok(both) if self.settings.cascade_mode == CascadeMode::Compensating => {
                self.side_by_side(both, &mut run, clock, request.deadline).await?
            }
            Ok(both) => Acquiring::new(self, &mut run, both.into()).finish().await?,
            Err(one) => Acquiring::new(self, &mut run, one).finish().await?,
        };
        let Run { attempts, write_units, read_units, .. } = run;
        Ok(Grant { parts, path: Some(path), attempts, write_units, read_units })
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
        let mut run = Run::new(clock, request.deadline);
        let sides = self.sides(request, Lookup::Always, &mut run).await?;
        Acquiring::new(self, &mut run, sides).look().await
    }

    async fn check(&self, clock: &dyn Clock, deadline: Duration) -> Result<(), AcquireError> {
        let mut run = Run::new(clock, deadline);
        let read = self.table.read(&[ItemKey::SchemaVersion], Consistency::Eventual);
        match run.in_time(read).await {
            Ok(_) => Ok(()),
            Err(trouble) => Err(run.end(trouble)),
        }
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }
}

pub(crate) fn negated(amounts: &Amounts) -> Amounts {
    amounts
        .iter()
        // The range is symmetric: what can be taken can be given back.
        .filter_map(|(limit, amount)| {
            let back = Millitokens::new(-amount.get()).ok()?;
            Some((limit.clone(), back))
        })
        .collect()
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

/// Whether so many others wrote since the item remembered `before` that it may have forgotten `id`.
fn is_overrun(before: &[RequestId], now: &CompositeBucket, id: &RequestId) -> bool {
    let mut others = now.request_ids.iter().filter(|seen| *seen != id);
    let is_full = now.request_ids.len() >= RequestId::REMEMBERED;
    is_full && !others.any(|seen| before.contains(seen))
}
