//! Makes room for other buckets when `max_keys` buckets are held.
//!
//! No request waits for it. The buckets that have been idle longest are settled in the background.
//! Until then, requests for other buckets are writes of their own. A bucket that cannot be settled
//! stays.

use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::StreamExt as _;

use super::leased_bucket::LeasedBucket;
use super::leaser::{Leaser, WriteKind};
use super::limit_ledger::LimitLedger;
use super::watch::SETTLING_MAX;

/// At most a quarter of `max_keys` buckets are settled at once.
const PART: usize = 4;

impl Leaser {
    /// Settles one bucket for each request that found no room. It takes the longest idle first and
    /// spares buckets used since `since_ms`.
    pub(super) fn make_room(self: &Arc<Self>, watched: &[Arc<LeasedBucket>], since_ms: i64) {
        let wanted = self.turned_away.swap(0, Ordering::Relaxed);
        // Many of these requests may have been for one bucket.
        let wanted = wanted.min(self.settings.max_keys / PART + 1);
        if wanted == 0 {
            return;
        }
        let Ok(evicting) = self.evicting.clone().try_lock_owned() else { return };
        let now_ms = self.now_ms();
        let idle_for = |bucket: &Arc<LeasedBucket>| {
            let idle_ms = bucket.ledger().as_ref()?.used_at.age_ms(now_ms);
            (idle_ms > now_ms - since_ms).then(|| (idle_ms, bucket.clone()))
        };
        let mut idle: Vec<_> = watched.iter().filter_map(idle_for).collect();
        if idle.len() > wanted {
            idle.select_nth_unstable_by_key(wanted, |(idle_ms, _)| Reverse(*idle_ms));
            idle.truncate(wanted);
        }
        let leaser = self.clone();
        tokio::spawn(async move {
            futures_util::stream::iter(idle)
                .for_each_concurrent(SETTLING_MAX, |(_, bucket)| leaser.evict(bucket))
                .await;
            drop(evicting);
        });
    }

    /// Settles a bucket, so that the next inspection drops it. If a request comes meanwhile, the
    /// bucket leases again and stays.
    async fn evict(self: &Arc<Self>, bucket: Arc<LeasedBucket>) {
        let Some(turn) = bucket.try_turn() else { return };
        let deadline = self.settings.deadline;
        if let Err(error) = self.write(&turn, &[], WriteKind::SettleAll, deadline).await {
            tracing::debug!(bucket = %bucket.id(), %error, "no room was made for others yet");
            return;
        }
        let mut ledger = turn.ledger();
        bucket.catch_up(&mut ledger, self.times());
        ledger.limit_ledgers.iter_mut().for_each(LimitLedger::forget_empty);
    }
}
