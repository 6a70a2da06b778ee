//! The context of one call: its id, its deadline, and its cost; and the effect of a failed request.

use std::future::Future;
use std::time::Duration;

use sluicegate_core::{EpochMillis, RequestId};
use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout, timeout_at};

use crate::clock::Clock;
use crate::cost::Cost;
use crate::error::AcquireError;
use crate::program_metrics;
use crate::store_error::BoxError;
use crate::table::TableError;

/// After this many attempted writes a call neither reads nor pauses any more.
const WRITES_MAX: u32 = 40;
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_millis(50);
/// A timer that is late by this much tells that the process had no processor time.
pub(crate) const STARVED_MIN: Duration = Duration::from_millis(20);
/// The time, after a late timer, to read an answer that may have arrived before it.
pub(crate) const UNREAD_TIME: Duration = Duration::from_millis(100);
/// Longer than any call, and short enough for an `Instant`.
const DEADLINE_MAX: Duration = Duration::from_secs(100 * 365 * 86_400);

pub(crate) struct CallContext<'a> {
    pub(crate) clock: &'a dyn Clock,
    pub(crate) id: RequestId,
    /// When the call began, by the clock that counts tokens.
    pub(crate) started_at: EpochMillis,
    /// The end of the time that this call has.
    pub(crate) ends_at: Instant,
    pub(crate) cost: Cost,
    pause: Duration,
    /// The duration of the quickest table call of this call, [`PAUSE_MAX`] at most.
    quickest: Duration,
    /// The newest error of the table, if no table call succeeded after it.
    table_error: Option<TableError>,
}

impl<'a> CallContext<'a> {
    pub(crate) fn new(clock: &'a dyn Clock, time: Duration) -> Self {
        Self::under(new_id(), clock, time)
    }

    /// A call that only reads: it needs no id of its own.
    #[cfg(feature = "leasing")]
    pub(crate) fn reading(clock: &'a dyn Clock, time: Duration) -> Self {
        Self::under(RequestId::from_bits(0), clock, time)
    }

    /// A call under an id that may have been used for the same call before.
    pub(crate) fn under(id: RequestId, clock: &'a dyn Clock, time: Duration) -> Self {
        Self {
            clock,
            id,
            started_at: clock.now(),
            ends_at: Instant::now() + clamped_time(time),
            cost: Cost::default(),
            pause: Duration::from_millis(1),
            quickest: PAUSE_MAX,
            table_error: None,
        }
    }

    /// Adds the cost of a read.
    pub(crate) fn spend_reads(&mut self, units: f64) {
        self.cost.read_units += units;
        program_metrics::spent(0.0, units);
    }

    pub(crate) fn now(&self) -> EpochMillis {
        self.clock.now()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.cost.attempts >= WRITES_MAX || !self.has_time_after(Duration::ZERO)
    }

    /// True if there is time for this pause before the deadline. Once a write was attempted, there
    /// must also be time for a table call as quick as the quickest: a write that the deadline cuts
    /// off would be in doubt. The first write is sent even so, because without it the caller would
    /// get no decision at all. (These are writes to Redis: on DynamoDB the lanes write, and only
    /// reads come here.)
    fn has_time_after(&self, pause: Duration) -> bool {
        let answer = if self.cost.attempts == 0 { Duration::ZERO } else { self.quickest };
        Instant::now() + pause + answer < self.ends_at
    }

    /// Waits for a random time that grows; false if there is no time left for it.
    pub(crate) async fn pause(&mut self) -> bool {
        let pause = self.pause.mul_f64(fastrand::f64());
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        let can_pause = self.cost.attempts < WRITES_MAX && self.has_time_after(pause);
        if can_pause {
            tokio::time::sleep(pause).await;
        }
        can_pause
    }

    /// True if the newest answer of the table was that it cannot do the call now.
    pub(crate) const fn was_busy(&self) -> bool {
        matches!(self.table_error, Some(TableError::Throttled(_) | TableError::Conflict))
    }

    /// Pauses if a repetition can help; false if it cannot, or there is no time left for one.
    pub(crate) async fn wait_out(&mut self, table_error: TableError) -> bool {
        let was_busy = self.was_busy();
        match table_error {
            // The deadline ended this table call, but the table had answered before, with a
            // conflict or throttling. That is no outage, so the earlier error stays.
            TableError::Unconfirmed(source) if was_busy && source.is::<Elapsed>() => {}
            table_error => self.table_error = Some(table_error),
        }
        !matches!(self.table_error, Some(TableError::Setup(_))) && self.pause().await
    }

    /// The error of a call that has no more time or attempts.
    pub(crate) fn error_of_last_failure(&mut self) -> AcquireError {
        match self.table_error.take() {
            Some(TableError::Unconfirmed(source)) => AcquireError::Unavailable(source),
            Some(TableError::Setup(error)) => error.into(),
            Some(TableError::Throttled(_) | TableError::Conflict) | None => {
                AcquireError::Contended { attempts: self.cost.attempts }
            }
        }
    }

    /// The error of a call that ends with this error of the table.
    pub(crate) fn fail_with(&mut self, table_error: TableError) -> AcquireError {
        self.table_error = Some(table_error);
        self.error_of_last_failure()
    }

    /// Runs a call on the table for the time that is left, as the function [`in_time`] does.
    pub(crate) async fn in_time<T, E: From<TableError>>(
        &mut self,
        call: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let start = Instant::now();
        let answer = in_time(self.ends_at, call).await;
        self.quickest = self.quickest.min(start.elapsed());
        match answer {
            Ok(Ok(result)) => {
                self.table_error = None;
                Ok(result)
            }
            Ok(error) => error,
            Err(elapsed) => Err(TableError::Unconfirmed(BoxError::from(elapsed)).into()),
        }
    }
}

/// Says if a request that ended with an error took effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// It has none and will have none.
    None,
    /// It may have taken effect, or may still.
    InDoubt,
    /// It may have taken effect. That can never be known.
    Ambiguous,
}

impl Effect {
    pub(crate) const fn of(is_in_doubt: bool) -> Self {
        if is_in_doubt { Self::InDoubt } else { Self::None }
    }
}

/// Awaits a future until this instant. If the timer is late, the process had no processor time: an
/// answer may have arrived unread, so the future gets [`UNREAD_TIME`] more.
pub(crate) async fn in_time<F: Future>(ends_at: Instant, future: F) -> Result<F::Output, Elapsed> {
    let mut future = std::pin::pin!(future);
    match timeout_at(ends_at, future.as_mut()).await {
        Err(_) if ends_at.elapsed() > STARVED_MIN => timeout(UNREAD_TIME, future).await,
        result => result,
    }
}

/// The time, cut so that `Instant + time` cannot overflow.
pub(crate) fn clamped_time(time: Duration) -> Duration {
    time.min(DEADLINE_MAX)
}

/// A new id, never used before: a bucket treats a request whose id it remembers as granted.
///
/// Every id comes from the operating system. A generator in the process would repeat its sequence
/// in each clone of the process (`fork`, Lambda's `SnapStart`, any snapshot of a virtual machine);
/// the kernel's generator is shared by forks and reseeded when a machine is resumed.
pub(crate) fn new_id() -> RequestId {
    // The call fails only on a system that has no such source.
    RequestId::from_bits(getrandom::u64().unwrap_or_else(|_| fastrand::u64(..)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;

    #[test]
    fn ids_differ_in_processes_that_were_cloned() {
        let clone = || {
            fastrand::seed(7);
            [new_id(), new_id()]
        };
        assert_ne!(clone(), clone());
    }

    #[tokio::test]
    async fn an_error_from_before_an_answer_is_no_outage() {
        let mut context = CallContext::new(&SystemClock, Duration::from_secs(60));
        let silent = || TableError::Unconfirmed("silent".into());
        assert!(context.wait_out(silent()).await);
        context.in_time(async { Ok::<_, TableError>(()) }).await.unwrap();
        assert!(matches!(context.error_of_last_failure(), AcquireError::Contended { .. }));
        assert!(context.wait_out(silent()).await);
        assert!(matches!(context.error_of_last_failure(), AcquireError::Unavailable(_)));
    }
}
