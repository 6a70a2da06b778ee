//! A store and its health: the one way from a limiter to its store.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::breaker_config::BreakerConfig;
use super::health::StoreHealth;
use crate::clock::SharedClock;
use crate::counters::Counters;
use crate::degraded::OnUnavailable;
use crate::program_metrics;
use crate::store::Store;

/// The default deadline of an acquire or a peek. The limiter must not dominate a gateway's latency
/// budget.
const DEADLINE: Duration = Duration::from_millis(250);

/// The default deadline of a correction. It is longer, because callers rarely wait for one, and
/// many never repeat one that failed.
const CORRECTION_DEADLINE: Duration = Duration::from_secs(1);

/// The default deadline of the first call: time for name resolution, a TLS handshake and
/// credentials.
const CONNECT_DEADLINE: Duration = Duration::from_secs(2);

/// The store of a limiter, with its breaker and its outage policy. It makes no permits: its callers
/// do.
pub(crate) struct Guard {
    pub(super) store: Arc<dyn Store>,
    pub(super) clock: SharedClock,
    pub(super) health: StoreHealth,
    pub(super) settings: CallSettings,
}

/// The time that a call may take, and the policy for an acquire that gets no answer.
#[derive(Debug)]
pub(crate) struct CallSettings {
    /// `None`: a default for each kind of call.
    pub(crate) deadline: Option<Duration>,
    pub(crate) connect_deadline: Duration,
    pub(crate) on_unavailable: OnUnavailable,
}

impl Default for CallSettings {
    fn default() -> Self {
        Self {
            deadline: None,
            connect_deadline: CONNECT_DEADLINE,
            on_unavailable: OnUnavailable::default(),
        }
    }
}

impl Guard {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        clock: SharedClock,
        settings: CallSettings,
        breaker: BreakerConfig,
    ) -> Self {
        program_metrics::breaker(false);
        Self { store, clock, health: StoreHealth::new(breaker), settings }
    }

    /// Ends the recovery task: the last clone of the limiter was dropped.
    pub(crate) fn note_limiter_dropped(&self) {
        self.health.is_limiter_dropped.store(true, Ordering::Relaxed);
    }

    pub(crate) fn store(&self) -> &dyn Store {
        self.store.as_ref()
    }

    pub(crate) const fn clock(&self) -> &SharedClock {
        &self.clock
    }

    pub(crate) const fn settings(&self) -> &CallSettings {
        &self.settings
    }

    /// True if no new call may ask the store.
    #[cfg(feature = "leasing")]
    pub(crate) fn is_breaker_open(&self) -> bool {
        self.health.breaker.needs_probes()
    }

    /// The deadline of an acquire or a peek; `requested` is the deadline that the request set.
    pub(crate) fn call_deadline(&self, requested: Option<Duration>) -> Duration {
        self.effective_deadline(requested, DEADLINE)
    }

    /// The deadline of a correction; `requested` is the deadline that the request set.
    pub(crate) fn correction_deadline(&self, requested: Option<Duration>) -> Duration {
        self.effective_deadline(requested, CORRECTION_DEADLINE)
    }

    /// The requested deadline. If the request set none: the limiter's deadline, or `usual` if the
    /// limiter has none; until the store has answered once, at least the connect deadline.
    fn effective_deadline(&self, requested: Option<Duration>, usual: Duration) -> Duration {
        let CallSettings { deadline, connect_deadline, .. } = &self.settings;
        requested.unwrap_or_else(|| {
            let usual = deadline.unwrap_or(usual);
            if self.health.is_connected() { usual } else { usual.max(*connect_deadline) }
        })
    }

    pub(crate) fn counters(&self) -> &Counters {
        self.store.counters()
    }
}
