//! The limiter: a store, a clock, and how requests are made of them.

use std::sync::Arc;
use std::time::Duration;

use crate::call::as_deadline;
use crate::clock::{Clock, SystemClock};
use crate::counters::Counters;
use crate::degraded::OnUnavailable;
use crate::error::AcquireError;
use crate::guard::{self, BreakerConfig, Guard};
use crate::queue::Queues;
use crate::store::{Cascade, Store};

/// Acquires tokens from a store. Cheap to clone; clones share everything. A setter on a clone makes a
/// limiter that differs in this and shares the store and the queue of those who wait.
///
/// ```
/// use sluicegate::{AcquireError, CompositeStore, Limit, Limiter, MemoryTable};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let limiter = Limiter::new(CompositeStore::with_table(MemoryTable::new()));
/// let limits = [Limit::per_minute("rpm", 2), Limit::per_minute("tpm", 1_000)];
/// let ask = || limiter.acquire("user-123", "gpt-4").limits(limits.clone());
/// let lease = ask().consume("rpm", 1).consume("tpm", 600).await?;
/// lease.adjust("tpm", 150).await?; // the answer was longer than estimated
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

/// Whether a refusal is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// It is.
    #[default]
    Enforce,
    /// It is only counted: see [`Limiter::shadow`].
    Shadow,
}

#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) near_share: f64,
    pub(crate) cascade: Cascade,
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
    /// A limiter by another clock: a [`TestClock`](crate::TestClock), for one.
    #[must_use]
    pub fn with_clock(store: S, clock: C) -> Self {
        let options = Options { near_share: 0.1, cascade: Cascade::Stored };
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

    /// How long one call may take, all attempts together; unless said otherwise, an acquire or a
    /// peek 250 ms and a correction one second. Waiting for tokens
    /// ([`AcquireRequest::wait_up_to`]) is not counted. Until the store has answered once, calls
    /// have the [`connect_deadline`](Self::connect_deadline) where that is longer.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self
    where
        C: Clone,
    {
        self.change_calls(|calls| calls.deadline = Some(as_deadline(deadline)))
    }

    /// How long calls may take, and probes of a store that is away, while a connection has to be
    /// made; 2 s unless said otherwise. [`warm_up`](Self::warm_up) makes it ahead.
    #[must_use]
    pub fn connect_deadline(self, deadline: Duration) -> Self
    where
        C: Clone,
    {
        self.change_calls(|calls| calls.connect_deadline = as_deadline(deadline))
    }

    /// What an acquire comes to while the store is away; [`OnUnavailable::Allow`] unless said
    /// otherwise.
    #[must_use]
    pub fn on_unavailable(self, policy: OnUnavailable) -> Self
    where
        C: Clone,
    {
        self.change_calls(|calls| calls.on_unavailable = policy)
    }

    /// When the store counts as away, and how often it is looked for then.
    #[must_use]
    pub fn breaker(self, breaker: BreakerConfig) -> Self
    where
        C: Clone,
    {
        self.change(|inner| inner.guard = Arc::new(inner.guard.with_breaker(breaker)))
    }

    /// Decides and counts, and never refuses: for trying limits out on real traffic.
    ///
    /// A request that a limit would have refused gets a lease that took nothing (see
    /// [`Permit::shadowed`](crate::Permit::shadowed)), so that the next ones are decided as they
    /// would be in earnest; so does one that asks for more than a full bucket holds. An invalid
    /// request is an error all the same, and what comes of one while the store is away is up to
    /// [`on_unavailable`](Self::on_unavailable).
    #[must_use]
    pub fn shadow(self) -> Self
    where
        C: Clone,
    {
        self.change(|inner| inner.mode = Mode::Shadow)
    }

    /// The share of its burst at which a limit counts as nearly used up; 0.1 unless said otherwise.
    #[must_use]
    pub fn near_share(self, share: f64) -> Self
    where
        C: Clone,
    {
        self.change(|inner| inner.options.near_share = share)
    }

    /// Whether requests that do not say so themselves take from a parent's bucket too.
    #[must_use]
    pub fn cascade(self, cascade: Cascade) -> Self
    where
        C: Clone,
    {
        self.change(|inner| inner.options.cascade = cascade)
    }

    /// Looks whether the store is there, which makes the first connection: call it before the first
    /// request, which then need not wait for that. A read of half a unit on DynamoDB.
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

    /// What the store counted so far.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        self.inner.guard.counters()
    }

    pub(crate) fn clock(&self) -> &C {
        self.inner.guard.clock()
    }

    /// The way to the store.
    pub(crate) fn guard(&self) -> &Arc<Guard<S, C>> {
        &self.inner.guard
    }

    pub(crate) fn mode(&self) -> Mode {
        self.inner.mode
    }

    pub(crate) fn options(&self) -> &Options {
        &self.inner.options
    }

    pub(crate) fn queues(&self) -> &Queues {
        &self.inner.queues
    }
}
