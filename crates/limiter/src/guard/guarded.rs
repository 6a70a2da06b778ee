//! A store with what is known of its health: the one way from a limiter to its store.

use std::sync::Arc;
use std::time::Duration;

use super::breaker::BreakerConfig;
use super::health::StoreHealth;
use crate::clock::Clock;
use crate::counters::Counters;
use crate::degraded::OnUnavailable;
use crate::store::Store;

/// The limiter must not dominate a gateway's latency budget.
const DEADLINE: Duration = Duration::from_millis(250);

/// Callers rarely wait for a correction, and one that fails is lost.
const CORRECTION_DEADLINE: Duration = Duration::from_secs(1);

/// Time for name resolution, a TLS handshake and credentials.
const CONNECT_DEADLINE: Duration = Duration::from_secs(2);

/// The store of a limiter. It knows no limiter: who asks and what becomes of an answer is not its
/// concern.
#[derive(Debug)]
pub(crate) struct Guard<S, C> {
    pub(super) store: Arc<S>,
    pub(super) clock: C,
    pub(super) health: Arc<StoreHealth>,
    pub(super) settings: Settings,
}

/// How long a call may take, and what an acquire comes to without an answer.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// `None`: a default for each kind of call.
    pub(crate) deadline: Option<Duration>,
    pub(crate) connect_deadline: Duration,
    pub(crate) on_unavailable: OnUnavailable,
}

impl<S, C> Guard<S, C> {
    pub(crate) fn new(store: S, clock: C) -> Self {
        let settings = Settings {
            deadline: None,
            connect_deadline: CONNECT_DEADLINE,
            on_unavailable: OnUnavailable::default(),
        };
        let health = Arc::new(StoreHealth::new(BreakerConfig::default()));
        Self { store: Arc::new(store), clock, health, settings }
    }

    /// A guard of the same store and its health that works differently.
    pub(crate) fn with(&self, change: impl FnOnce(&mut Settings)) -> Self
    where
        C: Clone,
    {
        let (store, clock, health) = (self.store.clone(), self.clock.clone(), self.health.clone());
        let mut settings = self.settings.clone();
        change(&mut settings);
        Self { store, clock, health, settings }
    }

    /// A guard of the same store that finds out for itself whether it is away.
    pub(crate) fn with_breaker(&self, breaker: BreakerConfig) -> Self
    where
        C: Clone,
    {
        Self { health: Arc::new(StoreHealth::new(breaker)), ..self.with(|_| ()) }
    }

    pub(crate) fn store(&self) -> &S {
        &self.store
    }

    pub(crate) const fn clock(&self) -> &C {
        &self.clock
    }

    pub(crate) const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// True if only probes ask the store.
    #[cfg_attr(not(feature = "leasing"), allow(dead_code, reason = "a leasing limiter asks"))]
    pub(crate) fn is_open(&self) -> bool {
        self.health.is_open()
    }

    /// The deadline of an acquire or a peek; `said` is the deadline that the request set.
    pub(crate) fn call_time(&self, said: Option<Duration>) -> Duration {
        self.with_connection(said, DEADLINE)
    }

    /// The deadline of a correction; `said` is the deadline that the request set.
    pub(crate) fn correction_time(&self, said: Option<Duration>) -> Duration {
        self.with_connection(said, CORRECTION_DEADLINE)
    }

    /// A deadline that the request set holds as it is.
    fn with_connection(&self, said: Option<Duration>, usual: Duration) -> Duration {
        let Settings { deadline, connect_deadline, .. } = &self.settings;
        said.unwrap_or_else(|| {
            let usual = deadline.unwrap_or(usual);
            if self.health.is_connected() { usual } else { usual.max(*connect_deadline) }
        })
    }

    /// Limiters that share this guard, the task and its probes, and others that know the same of the
    /// store's absence.
    pub(super) fn holders(self: &Arc<Self>) -> usize {
        let others = Arc::strong_count(&self.health) - 1;
        Arc::strong_count(self) + others
    }
}

impl<S: Store, C: Clock> Guard<S, C> {
    pub(crate) fn counters(&self) -> &Counters {
        self.store.counters()
    }
}
