//! The source of time: the system, or a test that moves it by hand.
//!
//! All code that counts tokens reads a [`Clock`], so a test that holds a [`TestClock`] decides when
//! everything happens.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::BoxFuture;
use sluicegate_core::EpochMillis;
use tokio::sync::watch;

/// The most that [`Clock::now_coarse`] may be late: one tick of a kernel with a hundred ticks a
/// second.
pub const COARSE_RESOLUTION: Duration = Duration::from_millis(10);

/// Tells the time and waits.
pub trait Clock: Send + Sync + 'static {
    /// The current time, in milliseconds since 1970. It may be set back between two calls.
    fn now(&self) -> EpochMillis;

    /// The current time, or up to [`COARSE_RESOLUTION`] before it if that is cheaper to read.
    fn now_coarse(&self) -> EpochMillis {
        self.now()
    }

    /// Waits at least `duration` from the call on, not from the first poll.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;

    /// The same clock, for a task that outlives the caller.
    fn share(&self) -> Arc<dyn Clock>;
}

/// The clock of the system. Sleeping needs a tokio runtime with its time driver on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SystemClock;

impl Clock for SystemClock {
    /// The time of the kernel's last tick: no counter is read. It goes on while the process is
    /// frozen.
    #[cfg(target_os = "linux")]
    #[inline]
    fn now_coarse(&self) -> EpochMillis {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
        EpochMillis::new(now.tv_sec * 1_000 + now.tv_nsec / 1_000_000).unwrap_or(EpochMillis::MIN)
    }

    fn now(&self) -> EpochMillis {
        // A clock before 1970 is not set: zero is as good as any value.
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        after(EpochMillis::MIN, since_epoch)
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }

    fn share(&self) -> Arc<dyn Clock> {
        Arc::new(*self)
    }
}

/// The clock of a limiter. The clock of the system is read without an indirect call.
#[derive(Clone)]
pub(crate) enum SharedClock {
    System,
    Other(Arc<dyn Clock>),
}

impl Clock for SharedClock {
    #[inline]
    fn now_coarse(&self) -> EpochMillis {
        match self {
            Self::System => SystemClock.now_coarse(),
            Self::Other(clock) => clock.now_coarse(),
        }
    }

    fn now(&self) -> EpochMillis {
        match self {
            Self::System => SystemClock.now(),
            Self::Other(clock) => clock.now(),
        }
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        match self {
            Self::System => SystemClock.sleep(duration),
            Self::Other(clock) => clock.sleep(duration),
        }
    }

    fn share(&self) -> Arc<dyn Clock> {
        match self {
            Self::System => Arc::new(SystemClock),
            Self::Other(clock) => clock.clone(),
        }
    }
}

/// A clock that stands still until a test moves it. Clones are the same clock.
///
/// ```
/// use std::time::Duration;
/// use sluicegate::{Clock, TestClock};
///
/// let clock = TestClock::default();
/// let start = clock.now();
/// clock.clone().advance(Duration::from_secs(60));
/// assert_eq!(clock.now().get() - start.get(), 60_000);
/// ```
#[derive(Debug, Clone)]
pub struct TestClock {
    now: Arc<watch::Sender<EpochMillis>>,
}

impl Default for TestClock {
    /// A clock that stands at the start of the year 2026, UTC.
    fn default() -> Self {
        Self::at(after(EpochMillis::MIN, Duration::from_secs(1_767_225_600)))
    }
}

impl TestClock {
    /// A clock that stands at `now`.
    #[must_use]
    pub fn at(now: EpochMillis) -> Self {
        Self { now: Arc::new(watch::Sender::new(now)) }
    }

    /// Moves the clock ahead, by whole milliseconds and at most to the end of the year 9999, and
    /// wakes the sleepers whose time has come.
    pub fn advance(&self, by: Duration) {
        self.now.send_modify(|now| *now = after(*now, by));
    }

    /// Sets the clock, also back. Sleepers read it when they are next polled: a time that it passed
    /// and left again before wakes no sleeper.
    pub fn set(&self, now: EpochMillis) {
        self.now.send_replace(now);
    }

    /// The number of sleepers that wait for the clock to move, so that a test can wait for them
    /// first.
    #[must_use]
    pub fn sleepers(&self) -> usize {
        self.now.receiver_count()
    }
}

impl Clock for TestClock {
    fn now(&self) -> EpochMillis {
        *self.now.borrow()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        // A part of a millisecond counts as one, so that no sleeper wakes early.
        let until = after(self.now(), duration.saturating_add(Duration::from_nanos(999_999)));
        let mut seen = self.now.subscribe();
        // A sleeper holds the clock: if all its owners were dropped, the sleeper would wake early.
        let clock = self.clone();
        Box::pin(async move {
            let _ = seen.wait_for(|now| *now >= until).await;
            drop(clock);
        })
    }

    fn share(&self) -> Arc<dyn Clock> {
        Arc::new(self.clone())
    }
}

/// The time `duration` after another, in whole milliseconds, at most the latest possible.
fn after(instant: EpochMillis, duration: Duration) -> EpochMillis {
    i64::try_from(duration.as_millis())
        .ok()
        .and_then(|millis| instant.get().checked_add(millis))
        .and_then(|millis| EpochMillis::new(millis).ok())
        .unwrap_or(EpochMillis::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn at(millis: i64) -> EpochMillis {
        EpochMillis::new(millis).unwrap()
    }

    #[test]
    fn the_system_clock_tells_this_century() {
        let now = SystemClock.now();
        assert!(now > at(1_700_000_000_000) && now < at(4_000_000_000_000), "{now}");
    }

    #[test]
    fn the_rough_time_is_late_by_a_tick_at_most() {
        for _ in 0..1_000 {
            let (before, rough) = (SystemClock.now(), SystemClock.now_coarse());
            let after = SystemClock.now();
            assert!(rough <= after, "{rough} after {after}");
            // A tick, and the time for which the thread did not run between the two calls.
            assert!(rough.get() + 1_000 >= before.get(), "{rough} long before {before}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_system_clock_sleeps_from_the_call_on() {
        let start = tokio::time::Instant::now();
        let sleep = SystemClock.sleep(Duration::from_secs(5));
        tokio::time::advance(Duration::from_secs(3)).await;
        sleep.await;
        assert_eq!(start.elapsed(), Duration::from_secs(5));
    }

    #[tokio::test]
    async fn sleepers_wake_at_their_instant_and_not_before() {
        let clock = TestClock::at(at(1_000));
        let mut short = clock.sleep(Duration::from_micros(1_500));
        let long = tokio::spawn(clock.sleep(Duration::from_secs(1)));
        assert_eq!(clock.sleepers(), 2);

        clock.advance(Duration::from_millis(1));
        assert!((&mut short).now_or_never().is_none());
        clock.clone().advance(Duration::from_millis(1));
        assert!((&mut short).now_or_never().is_some());

        assert!(!long.is_finished());
        clock.set(at(2_000));
        long.await.unwrap();
        assert!(clock.sleep(Duration::ZERO).now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_clock_set_back_makes_sleepers_wait_longer() {
        let clock = TestClock::at(at(1_000));
        let mut sleep = clock.sleep(Duration::from_millis(10));
        clock.set(at(0));
        clock.advance(Duration::from_millis(1_009));
        assert!((&mut sleep).now_or_never().is_none());
        clock.advance(Duration::from_millis(1));
        assert!(sleep.now_or_never().is_some());
    }

    #[test]
    fn the_clock_ends_with_the_year_9999() {
        let clock = TestClock::at(EpochMillis::MAX);
        clock.advance(Duration::MAX);
        assert_eq!(clock.now(), EpochMillis::MAX);
        assert!(clock.sleep(Duration::MAX).now_or_never().is_some());
    }
}
