//! A request that waits for its turn until the tokens are there.

use std::time::Duration;

use futures_util::future::{BoxFuture, Either, select};
use sluicegate_core::{BucketId, EpochMillis};

use crate::clock::Clock;
use crate::error::{AcquireError, LimitExceeded};
use crate::guard::Granted;
use crate::limiter::Limiter;
use crate::store::Request;

/// The request at the head of a line asks at least this often. So it learns of a raised limit at
/// most a minute later than a new request does.
const ASKS_EVERY: Duration = Duration::from_secs(60);

/// Asks at once if no other request waits for this bucket. Otherwise, or if it is refused and the
/// tokens will be there in time, the request waits for its turn. In its turn it asks until it is
/// granted, fails, or has too little time left. If its turn does not come in time, it asks once.
pub(crate) async fn wait_for<'a>(
    limiter: &Limiter,
    request: &Request,
    wait: Duration,
    ask: &(dyn Fn() -> BoxFuture<'a, Result<Granted, AcquireError>> + Sync),
) -> Result<Granted, AcquireError> {
    let clock = limiter.clock();
    let mut budget = WaitBudget::new(clock, wait);
    let bucket = BucketId { entity: request.entity.clone(), resource: request.resource.clone() };
    let line = limiter.turns().of(&bucket);
    if line.is_empty() {
        match ask().await {
            Err(AcquireError::LimitExceeded(exceeded)) if budget.lasts_for(&exceeded) => {}
            result => return result,
        }
    }
    let place = line.join();
    // A request ahead in the line may wait for longer than this request can.
    let time_over = clock.sleep(budget.left());
    let Either::Left((_turn, _)) = select(std::pin::pin!(place.turn()), time_over).await else {
        return ask().await;
    };
    loop {
        match ask().await {
            Err(AcquireError::LimitExceeded(exceeded)) if budget.lasts_for(&exceeded) => {
                let wait = exceeded.retry_after.unwrap_or_default();
                budget.sleep(wait.min(ASKS_EVERY)).await;
            }
            result => return result,
        }
    }
}

/// The time for which a request still waits. It never grows: a clock that is set back does not make
/// the request wait longer.
struct WaitBudget<'c> {
    clock: &'c dyn Clock,
    seen: EpochMillis,
    left: Duration,
}

impl<'c> WaitBudget<'c> {
    fn new(clock: &'c dyn Clock, wait: Duration) -> Self {
        Self { clock, seen: clock.now(), left: wait }
    }

    fn left(&mut self) -> Duration {
        self.spend(Duration::ZERO)
    }

    async fn sleep(&mut self, time: Duration) {
        self.clock.sleep(time).await;
        self.spend(time);
    }

    /// Subtracts the time that has passed, at least `least`. Returns the time that is left.
    fn spend(&mut self, least: Duration) -> Duration {
        let now = self.clock.now();
        let passed_ms = u64::try_from(now.get() - self.seen.get()).unwrap_or(0);
        self.seen = now;
        self.left = self.left.saturating_sub(Duration::from_millis(passed_ms).max(least));
        self.left
    }

    fn lasts_for(&mut self, exceeded: &LimitExceeded) -> bool {
        let left = self.left();
        exceeded.retry_after.is_some_and(|after| after <= left)
    }
}
