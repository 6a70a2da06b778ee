//! The limiter: a store, a clock, and constructors of requests.

use std::sync::Arc;
use std::time::Duration;

use crate::adjust::AdjustRequest;
use crate::clock::{Clock, SystemClock};
use crate::counters::Counters;
use crate::limit_set::LimitSet;
use crate::queue::Queues;
use crate::request::{AcquireRequest, PeekRequest};
use crate::store::{Cascade, Store};
use crate::unavailable::{BreakerConfig, OnUnavailable, StoreHealth};

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
    store: Arc<S>,
    clock: C,
    mode: Mode,
    options: Options,
    queues: Arc<Queues>,
    outage: Arc<StoreHealth>,
}

/// Longer than any call, and short enough for an `Instant`.
const DEADLINE_MAX: Duration = Duration::from_secs(100 * 365 * 86_400);

/// The limiter must not dominate a gateway's latency budget.
const DEADLINE: Duration = Duration::from_millis(250);
/// Callers rarely wait for a correction, and one that fails is lost.
const CORRECTION_DEADLINE: Duration = Duration::from_secs(1);
/// Time for name resolution, a TLS handshake and credentials.
const CONNECT_DEADLINE: Duration = Duration::from_secs(2);

/// Clamped so that `Instant + deadline` cannot overflow.
pub(crate) fn as_deadline(time: Duration) -> Duration {
    time.min(DEADLINE_MAX)
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
    /// `None`: a default for each kind of call.
    deadline: Option<Duration>,
    pub(crate) connect_deadline: Duration,
    pub(crate) on_unavailable: OnUnavailable,
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
        let Inner { mode, options, .. } = self.inner.as_ref();
        f.debug_struct("Limiter")
            .field("mode", mode)
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
        let options = Options {
            deadline: None,
            connect_deadline: CONNECT_DEADLINE,
            on_unavailable: OnUnavailable::default(),
            near_share: 0.1,
            cascade: Cascade::Stored,
            limits: LimitSet::default(),
        };
        let (store, queues, mode) = (Arc::new(store), Arc::default(), Mode::Enforce);
        let outage = Arc::new(StoreHealth::new(BreakerConfig::default()));
        Self { inner: Arc::new(Inner { store, clock, mode, options, queues, outage }) }
    }

    fn change(self, change: impl FnOnce(&mut Inner<S, C>)) -> Self
    where
        C: Clone,
    {
        let Inner { store, clock, mode, options, queues, outage } = self.inner.as_ref();
        let mut inner = Inner {
            store: store.clone(),
            clock: clock.clone(),
            mode: *mode,
            options: options.clone(),
            queues: queues.clone(),
            outage: outage.clone(),
        };
        change(&mut inner);
        Self { inner: Arc::new(inner) }
    }

    /// The most time that one call may take, all attempts together. Default: 250 ms for an acquire
    /// or a peek, one second for a correction. Waiting for tokens ([`AcquireRequest::wait_up_to`])
    /// is not counted. Until the store has answered once, calls have the
    /// [`connect_deadline`](Self::connect_deadline) if that is longer.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self
    where
        C: Clone,
    {
        self.change(|inner| inner.options.deadline = Some(as_deadline(deadline)))
    }

    /// The most time that a call, or a probe of an unavailable store, may take while a connection
    /// has to be made; default 2 s. [`warm_up`](Self::warm_up) makes the connection ahead.
    #[must_use]
    pub fn connect_deadline(self, deadline: Duration) -> Self
    where
        C: Clone,
    {
        self.change(|inner| inner.options.connect_deadline = as_deadline(deadline))
    }

    /// The result of an acquire while the store is unavailable; default [`OnUnavailable::Allow`].
    #[must_use]
    pub fn on_unavailable(self, policy: OnUnavailable) -> Self
    where
        C: Clone,
    {
        self.change(|inner| inner.options.on_unavailable = policy)
    }

    /// When the store counts as unavailable, and how often it is probed then.
    #[must_use]
    pub fn breaker(self, breaker: BreakerConfig) -> Self
    where
        C: Clone,
    {
        self.change(|inner| inner.outage = Arc::new(StoreHealth::new(breaker)))
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

    /// A request for tokens: name the amounts, then await it.
    pub fn acquire(
        &self,
        entity: impl AsRef<str>,
        resource: impl AsRef<str>,
    ) -> AcquireRequest<&Self> {
        AcquireRequest::new(entity, resource).of(self)
    }

    /// A correction of a bucket without a permit: name the amounts, then await it.
    pub fn adjust(
        &self,
        entity: impl AsRef<str>,
        resource: impl AsRef<str>,
    ) -> AdjustRequest<'_, S, C> {
        AdjustRequest::new(self, entity.as_ref(), resource.as_ref())
    }

    /// The status of all limits of a bucket: one read that sees every write; takes nothing.
    pub fn peek(
        &self,
        entity: impl AsRef<str>,
        resource: impl AsRef<str>,
    ) -> PeekRequest<'_, S, C> {
        PeekRequest::new(self.acquire(entity, resource))
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.inner.store
    }

    /// The counters of the store.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        self.inner.store.counters()
    }

    pub(crate) fn clock(&self) -> &C {
        &self.inner.clock
    }

    pub(crate) fn mode(&self) -> Mode {
        self.inner.mode
    }

    pub(crate) fn options(&self) -> &Options {
        &self.inner.options
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
        let Options { deadline, connect_deadline, .. } = &self.inner.options;
        said.unwrap_or_else(|| {
            let usual = deadline.unwrap_or(usual);
            if self.inner.outage.is_connected() { usual } else { usual.max(*connect_deadline) }
        })
    }

    pub(crate) fn outage(&self) -> &StoreHealth {
        &self.inner.outage
    }

    /// The number of clones of this limiter, and of other limiters that share its store's health.
    pub(crate) fn holders(&self) -> usize {
        let others = Arc::strong_count(&self.inner.outage) - 1;
        Arc::strong_count(&self.inner) + others
    }

    pub(crate) fn queues(&self) -> &Queues {
        &self.inner.queues
    }
}
