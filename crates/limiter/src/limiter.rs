//! The limiter: a guarded store, and the settings of its requests.
//!
//! `acquire`, `peek` and `adjust`: `request/`; stored limits: `admin.rs`; settings: `builder.rs`.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::counters::Counters;
use crate::error::{AcquireError, LimitExceeded};
use crate::guard::Guard;
use crate::limit_set::LimitSet;
use crate::program_metrics::ProgramMetrics;
use crate::store::{Cascade, Store};
use crate::turns::Turns;

/// Acquires tokens from a store. Cheap to clone; clones share everything.
/// [`Limiter::builder`] names the settings.
///
/// ```
/// use sluicegate::{AcquireError, Limit, Limiter, MemoryStore};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(MemoryStore::new());
/// let limits = [Limit::per_minute("rpm", 2), Limit::per_minute("tpm", 1_000)];
/// let ask = || limiter.acquire("user-123", "gpt-4").limits(limits.clone());
/// let permit = ask().consume("rpm", 1).consume("tpm", 600).await?;
/// permit.adjust("tpm", 150).await?; // the answer was longer than estimated
///
/// let refused = ask().consume("tpm", 600).await;
/// assert!(matches!(refused, Err(AcquireError::LimitExceeded(_))));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Limiter {
    inner: Arc<Inner>,
}

struct Inner {
    guard: Arc<Guard>,
    mode: Mode,
    options: Options,
    turns: Turns,
    metrics: ProgramMetrics,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.guard.note_limiter_dropped();
    }
}

/// The treatment of refusals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Mode {
    /// Refusals are returned to the caller.
    #[default]
    Enforce,
    /// Refusals are only counted: see [`LimiterBuilder::shadow`](crate::LimiterBuilder::shadow).
    Shadow,
}

#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) near_share: f64,
    pub(crate) cascade: Cascade,
    /// The limits of requests that name none.
    pub(crate) limits: LimitSet,
}

impl Default for Options {
    fn default() -> Self {
        Self { near_share: 0.1, cascade: Cascade::Stored, limits: LimitSet::default() }
    }
}

impl std::fmt::Debug for Limiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Inner { guard, mode, options, .. } = self.inner.as_ref();
        f.debug_struct("Limiter")
            .field("mode", mode)
            .field("calls", guard.settings())
            .field("options", options)
            .finish_non_exhaustive()
    }
}

impl Limiter {
    pub(crate) fn with(guard: Guard, mode: Mode, options: Options) -> Self {
        let (guard, turns, metrics) =
            (Arc::new(guard), Turns::default(), ProgramMetrics::default());
        Self { inner: Arc::new(Inner { guard, mode, options, turns, metrics }) }
    }

    /// Checks that the store answers, which makes the first connection. If it is called before the
    /// first request, that request need not wait for the connection. A read of half a unit on
    /// DynamoDB.
    ///
    /// # Errors
    /// Those of an acquire, except refusals. `Unavailable` after the
    /// [`connect_deadline`](crate::LimiterBuilder::connect_deadline), under every setting.
    pub async fn warm_up(&self) -> Result<(), AcquireError> {
        self.inner.guard.probe().await
    }

    /// The store, if it is one of this type. A limiter that leases has two: the given one, and the
    /// one in front of it.
    #[must_use]
    pub fn store<S: Store>(&self) -> Option<&S> {
        let mut store = self.inner.guard.store();
        loop {
            match (store as &dyn Any).downcast_ref() {
                Some(found) => return Some(found),
                None => store = store.inner()?,
            }
        }
    }

    /// The counters of the store.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        self.inner.guard.counters()
    }

    /// The limits of requests that name none.
    #[must_use]
    pub fn default_limits(&self) -> &LimitSet {
        &self.options().limits
    }

    /// The clock.
    #[must_use]
    pub fn clock(&self) -> &dyn Clock {
        self.inner.guard.clock()
    }

    /// The guard of the store.
    pub(crate) fn guard(&self) -> &Arc<Guard> {
        &self.inner.guard
    }

    /// In shadow mode, counts a refusal and returns it as `Ok`: the request is admitted
    /// nevertheless. Every other error stays.
    pub(crate) fn admit_in_shadow(
        &self,
        error: AcquireError,
    ) -> Result<LimitExceeded, AcquireError> {
        let refused = match error {
            AcquireError::LimitExceeded(exceeded) if self.mode() == Mode::Shadow => exceeded,
            AcquireError::NeverAdmissible(never) if self.mode() == Mode::Shadow => {
                LimitExceeded::new(never.limits)
            }
            error => return Err(error),
        };
        self.counters().shadowed.increment();
        Ok(refused)
    }

    /// The time for which a request waits for tokens. In shadow mode none does: a trial must not
    /// slow clients down.
    pub(crate) fn wait_of(&self, requested: Option<Duration>) -> Option<Duration> {
        requested.filter(|_| self.mode() != Mode::Shadow)
    }

    /// The mode: refusals are returned to the caller, or only counted.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.inner.mode
    }

    pub(crate) fn options(&self) -> &Options {
        &self.inner.options
    }

    pub(crate) fn metrics(&self) -> &ProgramMetrics {
        &self.inner.metrics
    }

    pub(crate) fn turns(&self) -> &Turns {
        &self.inner.turns
    }
}
