//! A store of composite buckets on any [`Table`]: what is known, what to do, and the table to do it.
//!
//! The decisions are `sluicegate-core`'s and the writes the table's; here is the loop between them,
//! and the memory that makes a warm acquire one write and no read.

mod acquire;
mod adjust;
mod directory;
mod images;
mod promises;
mod reads;
mod refusal;
mod resolve;
mod run;
mod side;
mod write;

use std::sync::Arc;
use std::time::Duration;

use serde_dynamo::Item;
use sluicegate_core::keys::LimitsScope;
use sluicegate_core::{
    Amounts, BucketId, ClaimInterval, CompositeBucket, EntityId, RequestId, WritePath, WritePlan,
    standings,
};

use self::acquire::Acquiring;
use self::adjust::Adjusting;
use self::directory::Directory;
use self::images::Images;
use self::resolve::Lookup;
use self::run::Run;
use self::side::Side;
use crate::clock::Clock;
use crate::counters::Counters;
use crate::dynamo::DynamoTable;
use crate::error::{AcquireError, AdjustError, LimitExceeded, LimitStatus, NeverAdmissible};
use crate::store::{Adjusted, Correction, Grant, Part, Request, Store, new_id};
use crate::table::{Cancelled, SetupError, Table, TogetherError, Trouble, WriteError, Written};

/// How a store of composite buckets works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// How long a claim of refill serves the writers behind it; 100 ms. For a table that is further
    /// away than 20 ms there and back, five times that: a claim that is known too late serves
    /// nobody, and writers queue to make their own.
    pub claim_interval: ClaimInterval,
    /// How old an image may be that "no" is said from; 1 s. Zero: every "no" comes from the table.
    pub deny_cache: Duration,
    /// How a child's and its parent's buckets are written together.
    pub cascade_mode: CascadeMode,
    /// How a write whose answer was lost is told from one that did not happen.
    pub certainty: Certainty,
    /// Buckets that are remembered; 100,000. A bucket takes about a kilobyte.
    pub buckets_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            claim_interval: ClaimInterval::default(),
            deny_cache: Duration::from_secs(1),
            cascade_mode: CascadeMode::default(),
            certainty: Certainty::default(),
            buckets_max: 100_000,
        }
    }
}

/// How a child's and its parent's buckets are written together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CascadeMode {
    /// In one transaction, both or neither: four write units.
    #[default]
    Transaction,
    /// Side by side, and what was taken from one is given back when the other refuses: two write
    /// units. For a moment, and for good when the process dies between the two, tokens are taken
    /// from one bucket only: it admits less, never more.
    Compensating,
}

/// How a write whose answer was lost is told from one that did not happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Certainty {
    /// The item remembers the last four requests. When four others wrote in between it cannot tell:
    /// see [`Counters::ambiguous`](crate::Counters).
    #[default]
    Remembered,
    /// Every write is a transaction under a token of its own, which DynamoDB remembers for ten
    /// minutes: certain, at twice the write units.
    Transactional,
}

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

    /// Forgets what it believes of stored limits, because somebody changed them.
    pub(crate) fn forget_limits(&self, scope: &LimitsScope) {
        self.directory.forget_limits(scope);
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

    async fn side_by_side(
        &self,
        sides: Vec<Side>,
        run: &mut Run<'_>,
        clock: &dyn Clock,
        deadline: Duration,
    ) -> Result<(Vec<Part>, WritePath), AcquireError> {
        let mut runs = [Run::new(clock, deadline), Run::new(clock, deadline)];
        let [first, second] = &mut runs;
        let mut sides = sides.into_iter().map(|side| vec![side]);
        let child = Acquiring::new(self, first, sides.next().unwrap_or_default()).finish();
        let parent = Acquiring::new(self, second, sides.next().unwrap_or_default()).finish();
        let (child, parent) = tokio::join!(child, parent);
        for part in &runs {
            run.attempts += part.attempts;
            run.write_units += part.write_units;
            run.read_units += part.read_units;
        }
        match (child, parent) {
            (Ok((mut parts, path)), Ok((parents, _))) => {
                parts.extend(parents);
                Ok((parts, path))
            }
            (Ok((taken, _)), Err(refusal)) => {
                Err(self.compensate(taken, refusal, clock, deadline).await)
            }
            (Err(refusal), Ok((taken, _))) => {
                Err(self.compensate(taken, refusal, clock, deadline).await)
            }
            (Err(child), Err(parent)) => Err(joined(child, parent)),
        }
    }

    /// Gives back what is known to have been taken, and says why.
    async fn compensate(
        &self,
        taken: Vec<Part>,
        refusal: AcquireError,
        clock: &dyn Clock,
        deadline: Duration,
    ) -> AcquireError {
        let mut granted = Vec::new();
        for part in taken {
            let back = negated(&part.amounts);
            let correction = Correction {
                id: &new_id(),
                bucket: &part.bucket,
                amounts: &back,
                configuration: &part.configuration,
                deadline,
            };
            if let Err(error) = self.adjust(&correction, clock).await {
                tracing::warn!(bucket = %part.bucket, %error, "tokens of a refused request were not given back");
            }
            let image = part.image.as_deref();
            let of_request = standings(image, &part.amounts, &part.configuration, clock.now())
                .into_iter()
                .filter(|standing| part.amounts.contains_key(&standing.limit))
                .map(|mut standing| {
                    // It had what was asked: that is why it is being given back.
                    standing.wait = sluicegate_core::Wait::None;
                    LimitStatus::new(&part.bucket.entity, standing)
                });
            granted.extend(of_request);
        }
        match refusal {
            AcquireError::LimitExceeded(mut exceeded) => {
                exceeded.limits.extend(granted);
                AcquireError::LimitExceeded(exceeded)
            }
            AcquireError::NeverAdmissible(mut never) => {
                never.limits.extend(granted);
                AcquireError::NeverAdmissible(never)
            }
            other => other,
        }
    }
}

impl<T: Table> Store for CompositeStore<T> {
    async fn acquire(&self, request: &Request, clock: &dyn Clock) -> Result<Grant, AcquireError> {
        let mut run = Run::new(clock, request.deadline);
        let sides = self.sides(request, Lookup::WhereNeeded, &mut run).await?;
        let is_transaction = self.settings.cascade_mode == CascadeMode::Transaction;
        let (parts, path) = if sides.len() == 1 || is_transaction {
            Acquiring::new(self, &mut run, sides).finish().await?
        } else {
            self.side_by_side(sides, &mut run, clock, request.deadline).await?
        };
        let Run { attempts, write_units, read_units, .. } = run;
        Ok(Grant { parts, path, attempts, write_units, read_units })
    }

    async fn adjust(
        &self,
        correction: &Correction<'_>,
        clock: &dyn Clock,
    ) -> Result<Adjusted, AdjustError> {
        let mut run = Run::under(correction.id.clone(), clock, correction.deadline);
        Adjusting::new(self, &mut run, correction).finish().await
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

    fn counters(&self) -> &Counters {
        &self.counters
    }
}

/// Two refusals in one answer.
fn joined(child: AcquireError, parent: AcquireError) -> AcquireError {
    match (child, parent) {
        (AcquireError::LimitExceeded(child), AcquireError::LimitExceeded(parent)) => {
            LimitExceeded::new([child.limits, parent.limits].concat()).into()
        }
        (AcquireError::NeverAdmissible(child), AcquireError::NeverAdmissible(parent)) => {
            NeverAdmissible { limits: [child.limits, parent.limits].concat() }.into()
        }
        // What cannot be repaired by waiting comes first.
        (AcquireError::LimitExceeded(_), parent) => parent,
        (child, _) => child,
    }
}

pub(crate) fn negated(amounts: &Amounts) -> Amounts {
    amounts
        .iter()
        // The range is symmetric: what can be taken can be given back.
        .filter_map(|(limit, amount)| {
            let back = sluicegate_core::Millitokens::new(-amount.get()).ok()?;
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
