//! Builds a limiter: the store, the clock, and the settings.

use std::sync::Arc;
use std::time::Duration;

use crate::call::clamped_time;
use crate::clock::{Clock, SharedClock};
use crate::degraded::OnUnavailable;
use crate::guard::{BreakerConfig, CallSettings, Guard};
use crate::limit_set::LimitSet;
use crate::limiter::{Limiter, Mode, Options};
use crate::store::{Cascade, Store};

/// The settings of a limiter; [`build`](Self::build) makes it.
///
/// ```
/// use std::time::Duration;
/// use sluicegate::{Limiter, MemoryStore, OnUnavailable};
///
/// let limiter = Limiter::builder(MemoryStore::new())
///     .deadline(Duration::from_millis(100))
///     .on_unavailable(OnUnavailable::Local)
///     .build();
/// ```
#[must_use = "a builder makes no limiter until `build` is called"]
pub struct LimiterBuilder<S> {
    store: S,
    clock: SharedClock,
    /// Puts a store of this process in front of the given one.
    front: Option<Front<S>>,
    settings: CallSettings,
    breaker: BreakerConfig,
    mode: Mode,
    options: Options,
}

type Front<S> = Box<dyn FnOnce(S, SharedClock) -> Arc<dyn Store> + Send>;

impl Limiter {
    /// A limiter on this store, with the default of every setting.
    #[must_use]
    pub fn new<S: Store>(store: S) -> Self {
        Self::builder(store).build()
    }

    /// The settings of a limiter on this store.
    pub fn builder<S: Store>(store: S) -> LimiterBuilder<S> {
        LimiterBuilder {
            store,
            clock: SharedClock::System,
            front: None,
            settings: CallSettings::default(),
            breaker: BreakerConfig::default(),
            mode: Mode::Enforce,
            options: Options::default(),
        }
    }
}

impl<S: Store> LimiterBuilder<S> {
    /// The limiter.
    #[must_use]
    pub fn build(self) -> Limiter {
        let Self { store, clock, front, settings, breaker, mode, options } = self;
        let store = match front {
            Some(front) => front(store, clock.clone()),
            None => Arc::new(store),
        };
        Limiter::with(Guard::new(store, clock, settings, breaker), mode, options)
    }

    /// Puts a store of this process in front of the given one.
    #[cfg(feature = "leasing")]
    pub(crate) fn front(
        self,
        front: impl FnOnce(S, SharedClock) -> Arc<dyn Store> + Send + 'static,
    ) -> Self {
        Self { front: Some(Box::new(front)), ..self }
    }

    /// Another clock than the system's, such as a [`TestClock`](crate::TestClock).
    pub fn clock(self, clock: impl Clock) -> Self {
        Self { clock: SharedClock::Other(Arc::new(clock)), ..self }
    }

    /// The most time that one call may take, all attempts together. Default: 250 ms for an acquire
    /// or a peek, one second for a correction. Waiting for tokens
    /// ([`wait_up_to`](crate::AcquireRequest::wait_up_to)) is not counted, nor the time in which a
    /// compensating cascade gives tokens back. Until the store has answered once, calls have the
    /// [`connect_deadline`](Self::connect_deadline) if that is longer.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.settings.deadline = Some(clamped_time(deadline));
        self
    }

    /// The most time that a call, or a probe of an unavailable store, may take while a connection
    /// has to be made; default 2 s. [`warm_up`](Limiter::warm_up) makes the connection ahead.
    pub fn connect_deadline(mut self, deadline: Duration) -> Self {
        self.settings.connect_deadline = clamped_time(deadline);
        self
    }

    /// The result of an acquire while the store is unavailable; default [`OnUnavailable::Allow`].
    pub fn on_unavailable(mut self, policy: OnUnavailable) -> Self {
        self.settings.on_unavailable = policy;
        self
    }

    /// When the store counts as unavailable, and how often it is probed then.
    pub fn breaker(self, breaker: BreakerConfig) -> Self {
        Self { breaker, ..self }
    }

    /// Decides and counts, and never refuses: for trying limits out on real traffic.
    ///
    /// A request that a limit would have refused gets a permit that took nothing (see
    /// [`Permit::shadowed`](crate::Permit::shadowed)), so later requests are decided as if limits
    /// were enforced. A request that asks for more than a full bucket holds gets such a permit,
    /// too. No request waits for tokens. An invalid request is still an error. While the store is
    /// unavailable, [`on_unavailable`](Self::on_unavailable) decides.
    pub fn shadow(self) -> Self {
        Self { mode: Mode::Shadow, ..self }
    }

    /// The share of its burst at which a limit counts as nearly used up; default 0.1.
    pub fn near_share(mut self, share: f64) -> Self {
        self.options.near_share = share;
        self
    }

    /// Sets whether requests take from a parent's bucket, too. A request that sets its own cascade
    /// overrides this.
    pub fn cascade(mut self, cascade: Cascade) -> Self {
        self.options.cascade = cascade;
        self
    }

    /// A request that names no limits uses these limits. They win over stored limits of the same
    /// name, just as limits that a request names do. To let stored limits win, store the defaults
    /// for the whole system instead. Without this setting there are no default limits.
    pub fn default_limits(mut self, limits: LimitSet) -> Self {
        self.options.limits = limits;
        self
    }
}
