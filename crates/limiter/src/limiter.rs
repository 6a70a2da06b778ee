//! The limiter: a store, a clock, and constructors of requests.

use std::sync::Arc;
use std::time::Duration;

use crate::call::as_deadline;
use crate::clock::{Clock, SystemClock};
use crate::counters::Counters;
use crate::degraded::OnUnavailable;
use crate::error::AcquireError;
use crate::guard::{self, BreakerConfig, Guard};
use crate::limit_set::LimitSet;
use crate::queue::Queues;
use crate::store::{Cascade, Store};

/// Acquires tokens from a store. Cheap to clone; clones share everything. A setter on a clone makes
/// a limiter that differs in this setting and shares the store and the queue of waiting tasks.
///
/// ```
/// use sluicegate::{AcquireError, CompositeStore, Limit, Limiter, MemoryTable};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let limiter = Limiter::new(CompositeStore::with_table(MemoryTable::new()));
/// let limits = [Limit::per_minute("rpm", 2), Limit::per_minute("tpm", 1_000)];
/// let ask = || limiter.acquire("user-123", "gpt-4").limits(limits.clone());
/// let permit = ask().consume("rpm", 1).consume("tpm", 600).await?;
/// permit.adjust("tpm", 150).await?; // the answer was longer than estimated
///
/// let refused = ask().consume("tpm", 600).await;
/// assert!(matches!(refused, Err(AcquireError::LimitExceeded(_))));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Limiter<S, C = SystemClock> {
    inner: Arc<Inner<S, C>>,
}

pub(crate) struct Inner<S, C> {
    guard: Arc<Guard<S, C>>,
    mode: Mode,
    options: Options,
    queues: Arc<Queues>,
}

/// Says if refusals are enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Refusals are returned to the caller.
    #[default]
    Enforce,
    /// Refusals are only counted: see [`Limiter::shadow`].
    Shadow,
}

#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) near_share: f64,
    pub(crate) cascade: Cascade,
    /// The limits of requests that name none.
    pub(crate) limits: LimitSet,
}

impl<S, C> Clone for Limiter<S, C> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<S, C> std::fmt::Debug for Limiter<S, C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Inner { guard, mode, options, .. } = self.inner.as_ref();
        f.debug_struct("Limiter")
            .field("mode", mode)
            .field("calls", guard.settings())
            .field("options", options)
            .finish_non_exhaustive()
    }
}

impl<S: Store> Limiter<S> {
    /// A limiter on this store, by the system's clock.
    #[must_use]
    pub fn new(store: S) -> Self {
        Self::with_clock(store, SystemClock)
    }
}

impl<S: Store, C: Clock> Limiter<S, C> {
    /// A limiter with another clock, such as a [`TestClock`](crate::TestClock).
    #[must_use]
    pub fn with_clock(store: S, clock: C) -> Self {
        let options =
            Options { near_share: 0.1, cascade: Cascade::Stored, limits: LimitSet::default() };
        let (guard, queues) = (Arc::new(Guard::new(store, clock)), Arc::default());
        Self { inner: Arc::new(Inner { guard, mode: Mode::Enforce, options, queues }) }
    }

    fn change(self, change: impl FnOnce(&mut Inner<S, C>)) -> Self {
        let Inner { guard, mode, options, queues } = self.inner.as_ref();
        let mut inner = Inner {
            guard: guard.clone(),
            mode: *mode,
            options: options.clone(),
            queues: queues.clone(),
        };
        change(&mut inner);
        Self { inner: Arc::new(inner) }
    }

    fn change_calls(self, change: impl FnOnce(&mut guard::Settings)) -> Self
    where
        C: Clone,
    {
        self.change(|inner| inner.guard = Arc::new(inner.guard.with(change)))
    }

    /// The most time that one call may take, all attempts together. Default: 250 ms for an acquire
    /// or a peek, one second for a correction. Waiting for tokens
    /// ([`wait_up_to`](crate::AcquireRequest::wait_up_to)) is not counted. Until the store has
    /// answered once, calls have the [`connect_deadline`](Self::connect_deadline) if that is longer.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self
    where
        C: Clone,
    {
        self.change_calls(|calls| calls.deadline = Some(as_deadline(deadline)))
    }

    /// The most time that a call, or a probe of an unavailable store, may take while a connection
    /// has to be made; default 2 s. [`warm_up`](Self::warm_up) makes the connection ahead.
    #[must_use]
    pub fn connect_deadline(self, deadline: Duration) -> Self
    where
        C: Clone,
    {
        self.change_calls(|calls| calls.connect_deadline = as_deadline(deadline))
    }

    /// The result of an acquire while the store is unavailable; default [`OnUnavailable::Allow`].
    #[must_use]
    pub fn on_unavailable(self, policy: OnUnavailable) -> Self
    where
        C: Clone,
    {
        self.change_calls(|calls| calls.on_unavailable = policy)
    }

    /// When the store counts as unavailable, and how often it is probed then.
    #[must_use]
    pub fn breaker(self, breaker: BreakerConfig) -> Self
    where
        C: Clone,
    {
        self.change(|inner| inner.guard = Arc::new(inner.guard.with_breaker(breaker)))
    }

    /// Decides and counts, and never refuses: for trying limits out on real traffic.
    ///
    /// A request that a limit would have refused gets a permit that took nothing (see
    /// [`Permit::shadowed`](crate::Permit::shadowed)), so later requests are decided as if limits
    /// were enforced. The same holds for a request for more than a full bucket holds. An invalid
    /// request is still an error. While the store is unavailable,
    /// [`on_unavailable`](Self::on_unavailable) decides.
    #[must_use]
    pub fn shadow(self) -> Self
    where
        C: Clone,
    {
        self.change(|inner| inner.mode = Mode::Shadow)
    }

    /// The share of its burst at which a limit counts as nearly used up; default 0.1.
    #[must_use]
    pub fn near_share(self, share: f64) -> Self
    where
        C: Clone,
    {
        self.change(|inner| inner.options.near_share = share)
    }

    /// The cascade of requests that set none: if they take from a parent's bucket too.
    #[must_use]
    pub fn cascade(self, cascade: Cascade) -> Self
    where
        C: Clone,
    {
        self.change(|inner| inner.options.cascade = cascade)
    }

    /// The limits of requests that name none; none unless set.
    #[must_use]
    pub fn default_limits(self, limits: LimitSet) -> Self
    where
        C: Clone,
    {
        self.change(|inner| inner.options.limits = limits)
    }

    /// Checks that the store answers, which makes the first connection. If it is called before the
    /// first request, that request need not wait for the connection. A read of half a unit on
    /// DynamoDB.
    ///
    /// # Errors
    /// As an acquire, except that no limit is short. `Unavailable` after the
    /// [`connect_deadline`](Self::connect_deadline), under every setting.
    pub async fn warm_up(&self) -> Result<(), AcquireError> {
        self.inner.guard.warm_up().await
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &S {
        self.inner.guard.store()
    }

    /// The counters of the store.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        self.inner.guard.counters()
    }

    /// The clock.
    #[must_use]
    pub fn clock(&self) -> &C {
        self.inner.guard.clock()
    }

    /// The guard of the store.
    pub(crate) fn guard(&self) -> &Arc<Guard<S, C>> {
        &self.inner.guard
    }

    /// The mode: refusals are returned to the caller, or only counted.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.inner.mode
    }

    pub(crate) fn options(&self) -> &Options {
        &self.inner.options
    }

    pub(crate) fn queues(&self) -> &Queues {
        &self.inner.queues
    }
}
