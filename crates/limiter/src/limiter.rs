//! The limiter: a store, a clock, and how requests are made of them.

use std::sync::Arc;
use std::time::Duration;

use crate::adjust::AdjustRequest;
use crate::clock::{Clock, SystemClock};
use crate::counters::Counters;
use crate::queue::Queues;
use crate::request::{AcquireRequest, PeekRequest};
use crate::store::{Cascade, Store};

/// Acquires tokens from a store. Cheap to clone; clones share everything.
///
/// ```
/// use sluicegate::{AcquireError, CompositeStore, Limit, Limiter, MemoryTable};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let limiter = Limiter::new(CompositeStore::on(MemoryTable::new()));
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

struct Inner<S, C> {
    store: Arc<S>,
    clock: C,
    mode: Mode,
    options: Options,
    queues: Queues,
}

/// Longer than any call: an instant that far ahead still is one.
const DEADLINE_MAX: Duration = Duration::from_secs(100 * 365 * 86_400);

/// A deadline as far as there are instants, which `Duration::MAX` has none for.
pub(crate) fn as_deadline(time: Duration) -> Duration {
    time.min(DEADLINE_MAX)
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
    pub(crate) deadline: Duration,
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
    /// A limiter by another clock: a [`TestClock`](crate::TestClock), for one.
    #[must_use]
    pub fn with_clock(store: S, clock: C) -> Self {
        let options =
            Options { deadline: Duration::from_secs(1), near_share: 0.1, cascade: Cascade::Stored };
        let (store, queues) = (Arc::new(store), Queues::default());
        Self { inner: Arc::new(Inner { store, clock, mode: Mode::Enforce, options, queues }) }
    }

    fn change(self, change: impl FnOnce(&mut Options, &mut Mode)) -> Self
    where
        C: Clone,
    {
        let (mut options, mut mode) = (self.inner.options.clone(), self.inner.mode);
        change(&mut options, &mut mode);
        let (store, clock) = (self.inner.store.clone(), self.inner.clock.clone());
        Self { inner: Arc::new(Inner { store, clock, mode, options, queues: Queues::default() }) }
    }

    /// How long one call may take, all attempts together; one second unless said otherwise. Waiting
    /// for tokens ([`AcquireRequest::wait_up_to`]) is not counted.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self
    where
        C: Clone,
    {
        self.change(|options, _| options.deadline = as_deadline(deadline))
    }

    /// Decides and counts, and never refuses: for trying limits out on real traffic.
    ///
    /// A request that a limit would have refused gets a lease that took nothing (see
    /// [`Lease::shadowed`](crate::Lease::shadowed)), so that the next ones are decided as they
    /// would be in earnest; so does one that asks for more than a full bucket holds. What cannot be decided (the table is away, the request is invalid) is
    /// an error all the same.
    #[must_use]
    pub fn shadow(self) -> Self
    where
        C: Clone,
    {
        self.change(|_, mode| *mode = Mode::Shadow)
    }

    /// The share of its burst at which a limit counts as nearly used up; 0.1 unless said otherwise.
    #[must_use]
    pub fn near_share(self, share: f64) -> Self
    where
        C: Clone,
    {
        self.change(|options, _| options.near_share = share)
    }

    /// Whether requests that do not say so themselves take from a parent's bucket too.
    #[must_use]
    pub fn cascade(self, cascade: Cascade) -> Self
    where
        C: Clone,
    {
        self.change(|options, _| options.cascade = cascade)
    }

    /// A request for tokens: name the amounts, then await it.
    pub fn acquire(
        &self,
        entity: impl AsRef<str>,
        resource: impl AsRef<str>,
    ) -> AcquireRequest<&Self> {
        AcquireRequest::new(entity, resource).of(self)
    }

    /// A correction of a bucket without a lease: name the amounts, then await it.
    pub fn adjust(
        &self,
        entity: impl AsRef<str>,
        resource: impl AsRef<str>,
    ) -> AdjustRequest<'_, S, C> {
        AdjustRequest::new(self, entity.as_ref(), resource.as_ref())
    }

    /// How all limits of a bucket stand: one read that sees every write, nothing taken.
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

    /// What the store counted so far.
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

    pub(crate) fn queues(&self) -> &Queues {
        &self.inner.queues
    }
}
