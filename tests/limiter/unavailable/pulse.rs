//! Tells if the machine stood still: a delay during that time says nothing about the limiter.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The interval of the beats.
const BEAT: Duration = Duration::from_millis(5);
/// Beats that are late by no more than this count as normal.
const STEADY: Duration = Duration::from_millis(50);

/// A thread that only reads the time.
pub(super) struct Pulse {
    shared: Arc<PulseState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct PulseState {
    is_over: AtomicBool,
    /// The latest beat, in microseconds after its time.
    latest_us: AtomicU64,
}

impl Pulse {
    pub(super) fn start() -> Self {
        let shared = Arc::new(PulseState::default());
        let beating = shared.clone();
        let thread = std::thread::spawn(move || {
            while !beating.is_over.load(Ordering::Relaxed) {
                let start = Instant::now();
                std::thread::sleep(BEAT);
                let late = start.elapsed().saturating_sub(BEAT);
                let late_us = u64::try_from(late.as_micros()).unwrap_or(u64::MAX);
                beating.latest_us.fetch_max(late_us, Ordering::Relaxed);
            }
        });
        Self { shared, thread: Some(thread) }
    }

    /// The longest stand-still of the machine; `None`: there was none.
    pub(super) fn stood_still(&self) -> Option<Duration> {
        let latest = Duration::from_micros(self.shared.latest_us.load(Ordering::Relaxed));
        (latest > STEADY).then_some(latest)
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}
