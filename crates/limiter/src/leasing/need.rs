//! Gets tokens that are not held. A request waits for its turn to write, or until another request's
//! write serves it.

use std::sync::Arc;

use sluicegate_core::Configuration;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::atomic_bucket::Demand;
use super::bucket_ledger::BucketLedger;
use super::leased_bucket::{LeasedBucket, WriteTurn};
use super::leaser::{Leaser, WriteKind};
use super::waiters::WaiterResult;
use crate::cost::Cost;
use crate::error::AcquireError;

/// A request that waits for its answer. A grant that no caller takes is given back.
struct PendingWaiter<'a> {
    leaser: &'a Arc<Leaser>,
    bucket: &'a Arc<LeasedBucket>,
    demands: &'a [Demand],
    configuration: &'a Arc<Configuration>,
    answer: oneshot::Receiver<WaiterResult>,
}

impl Leaser {
    /// Gets the tokens from the store, and more if they can be used.
    ///
    /// Returns `None` if the caller must ask the store itself: the limiter is shut down; the process
    /// holds `max_keys` buckets; another bucket has this name; or the store answered no write of
    /// this bucket in half the request's time. In the last case only a call of its own tells an
    /// outage from a throttled table.
    pub(super) async fn need(
        self: &Arc<Self>,
        bucket: &Arc<LeasedBucket>,
        demands: &[Demand],
        configuration: &Arc<Configuration>,
        until: Instant,
    ) -> Option<Result<Cost, AcquireError>> {
        let start = Instant::now();
        let wait_time = self.wait_time(until);
        let enter = |ledger: &mut BucketLedger| {
            ledger.follow(configuration, &self.interner);
            let turn = bucket.wait_for_turn(ledger);
            (turn, ledger.unfinished().waiters.enter(demands, wait_time))
        };
        let (turn, answer) = self.watch(bucket, configuration, enter)?;
        let contended = || AcquireError::Contended { attempts: 0 };
        let Some(answer) = answer else { return Some(Err(contended())) };
        self.meter.waited();
        let half = start + until.saturating_duration_since(start) / 2;
        let place = |answer| PendingWaiter { leaser: self, bucket, demands, configuration, answer };
        let mut turn = std::pin::pin!(place(answer).wait(turn));
        let (turn, is_late) = match tokio::time::timeout_at(half, &mut turn).await {
            Ok(turn) => (Ok(turn), false),
            Err(_) if bucket.was_answered_since(start) => {
                (tokio::time::timeout_at(until, turn).await, true)
            }
            Err(_) => return None,
        };
        let Ok(turn) = turn else { return Some(Err(contended())) };
        let Some(turn) = turn else {
            // Another request's write served this one, and may have left few tokens.
            if bucket.atomic.is_low() {
                self.renew_soon(bucket, None);
            }
            return Some(Ok(Cost::default()));
        };
        if self.is_shut() {
            return None;
        }
        if self.take(bucket, demands, None, self.now_coarse_ms()) {
            return Some(Ok(Cost::default()));
        }
        // The write runs in a task of its own. If the caller leaves, other requests get the tokens.
        let (answer, answered) = oneshot::channel();
        let mut place = place(answered);
        let (leaser, bucket, demands) = (self.clone(), bucket.clone(), demands.to_vec());
        let configuration = configuration.clone();
        tokio::spawn(async move {
            let left = until.saturating_duration_since(Instant::now());
            let result = leaser.write(&turn, &demands, WriteKind::Renew, left).await;
            drop(turn);
            if let Err(Ok(_)) = answer.send(result) {
                leaser.put_back(&bucket, &demands, &configuration);
            }
        });
        let gone = || AcquireError::Unavailable("the runtime was shut down".into());
        let result = (&mut place.answer).await.unwrap_or_else(|_| Err(gone()));
        Some(match result {
            // Other requests used up the time. The store may well be available.
            Err(AcquireError::Unavailable(_)) if is_late => Err(contended()),
            result => result,
        })
    }
}

impl PendingWaiter<'_> {
    /// Waits for the right to write. `None`: another request's write has served this one.
    async fn wait(mut self, turn: impl Future<Output = WriteTurn>) -> Option<WriteTurn> {
        let turn = tokio::select! {
            Ok(_) = &mut self.answer => return None,
            turn = turn => turn,
        };
        // The previous task may have served this request just before it ended its turn.
        self.answer.try_recv().is_err().then_some(turn)
    }
}

impl Drop for PendingWaiter<'_> {
    fn drop(&mut self) {
        self.answer.close();
        if let Ok(Ok(_)) = self.answer.try_recv() {
            self.leaser.put_back(self.bucket, self.demands, self.configuration);
        }
        if let Some(ledger) = self.bucket.ledger().as_mut() {
            ledger.tidy();
        }
    }
}
