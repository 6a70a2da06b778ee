//! A permit whose corrections of one bucket have the results that a test sets.

use std::collections::VecDeque;

use futures_util::FutureExt as _;

use super::*;
use crate::clock::{Clock, TestClock};
use crate::composite::CompositeStore;
use crate::counters::Counters;
use crate::error::{AcquireError, LimitStatus};
use crate::limit::Limit;
use crate::memory::MemoryTable;
use crate::store::{BoxFuture, Correction, Grant, Request, Store};
use sluicegate_core::EpochMillis;

/// The result of a correction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Fate {
    Contended,
    /// Contended, after other tasks have run.
    ContendedLater,
    /// Done, after other tasks have run.
    Later,
    /// Not done, and no answer.
    Cut,
    /// Done, and no answer.
    Lost,
    /// Done, and the store cannot tell.
    Forgotten,
    /// Neither done nor answered.
    Hangs,
    /// Done, and the answer does not come.
    HangsAfter,
}

/// A store that corrects one bucket as a test sets.
pub(super) struct ScriptedStore {
    store: CompositeStore<MemoryTable>,
    entity: &'static str,
    fates: Mutex<VecDeque<Fate>>,
    corrections: Mutex<Vec<String>>,
}

impl Store for ScriptedStore {
    fn acquire<'a>(
        &'a self,
        request: &'a Request,
        clock: &'a dyn Clock,
    ) -> BoxFuture<'a, Result<Grant, AcquireError>> {
        async move { self.store.acquire(request, clock).await }.boxed()
    }

    fn adjust<'a>(
        &'a self,
        correction: &'a Correction<'a>,
        clock: &'a dyn Clock,
    ) -> BoxFuture<'a, Result<Adjusted, AdjustError>> {
        async move {
            let entity = correction.bucket.entity.to_string();
            let is_meant = entity == self.entity;
            self.corrections.lock().unwrap().push(entity);
            let fate = if is_meant { self.fates.lock().unwrap().pop_front() } else { None };
            let Some(fate) = fate else { return self.store.adjust(correction, clock).await };
            if matches!(fate, Fate::Later | Fate::ContendedLater) {
                tokio::task::yield_now().await;
            }
            let adjusted = match fate {
                Fate::Later | Fate::Lost | Fate::Forgotten | Fate::HangsAfter => {
                    self.store.adjust(correction, clock).await?
                }
                _ => Adjusted::default(),
            };
            match fate {
                Fate::Later => Ok(adjusted),
                Fate::Contended | Fate::ContendedLater => Err(AdjustError::Contended),
                Fate::Cut | Fate::Lost => Err(AdjustError::Unavailable("cut".into())),
                Fate::Forgotten => Err(AdjustError::Ambiguous("forgotten".into())),
                Fate::Hangs | Fate::HangsAfter => std::future::pending().await,
            }
        }
        .boxed()
    }

    fn peek<'a>(
        &'a self,
        request: &'a Request,
        clock: &'a dyn Clock,
    ) -> BoxFuture<'a, Result<Vec<LimitStatus>, AcquireError>> {
        async move { self.store.peek(request, clock).await }.boxed()
    }

    fn counters(&self) -> &Counters {
        self.store.counters()
    }
}

pub(super) struct ScriptedPermit {
    pub(super) permit: Permit,
}

impl ScriptedPermit {
    /// 60 tokens of a hundred, of the child and of the parent; the fates are those of the parent.
    pub(super) async fn of_two_buckets() -> Self {
        Self::new("parent", "parent").await
    }

    /// 60 tokens of a hundred, of one bucket; the fates are its own.
    pub(super) async fn of_one_bucket() -> Self {
        Self::new("child", "").await
    }

    async fn new(entity: &'static str, parent: &str) -> Self {
        let store = CompositeStore::with_table(MemoryTable::new());
        let (fates, corrections) = Default::default();
        let store = ScriptedStore { store, entity, fates, corrections };
        let clock = TestClock::at(EpochMillis::new(1_769_608_800_000).unwrap());
        let limiter = Limiter::builder(store).clock(clock).build();
        let limits = [Limit::quota("tpm", 100), Limit::quota("rpm", 100)];
        let request = limiter.acquire("child", "r").consume("tpm", 60).limits(limits);
        let request =
            if parent.is_empty() { request.no_cascade() } else { request.cascade_to(parent) };
        Self { permit: request.await.unwrap() }
    }

    pub(super) fn meets(&self, fates: &[Fate]) {
        self.permit.limiter.store::<ScriptedStore>().unwrap().fates.lock().unwrap().extend(fates);
    }

    /// The consumption of the child's and of the parent's limit, in tokens.
    pub(super) fn consumed(&self, limit: &str) -> (i64, i64) {
        let table = self.permit.limiter.store::<ScriptedStore>().unwrap().store.table();
        let limit = LimitName::new(limit).unwrap();
        let of = |part: &BucketGrant| {
            let consumed = table.bucket(&part.bucket).unwrap().limits[&limit].consumed.get();
            i64::try_from(consumed / 1_000).unwrap()
        };
        let consumed: Vec<_> = self.permit.parts.iter().map(of).collect();
        (consumed[0], consumed.get(1).copied().unwrap_or_default())
    }

    /// The entities whose buckets were corrected, or were to be, since the last call of this.
    pub(super) fn corrected(&self) -> Vec<String> {
        std::mem::take(
            &mut *self.permit.limiter.store::<ScriptedStore>().unwrap().corrections.lock().unwrap(),
        )
    }

    /// The balance of `tpm`, in tokens, as the permit knows it.
    pub(super) fn left(&self) -> Vec<i64> {
        let left = self.permit.remaining();
        left.iter().map(|remaining| remaining.available.get() / 1_000).collect()
    }
}
