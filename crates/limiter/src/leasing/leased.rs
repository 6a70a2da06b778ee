//! A limiter that leases: how it is made, and how it gives back.

use std::sync::Arc;
use std::time::Duration;

use super::engine::Engine;
use super::settings::LeaseSettings;
use super::watch::SettleReport;
use crate::call::as_deadline;
use crate::clock::{Clock, SystemClock};
use crate::dynamo::DynamoStore;
use crate::leasing_store::LeasingStore;
use crate::limiter::Limiter;

/// A limiter that decides in the process: by tokens leased from the store ahead of need, in a few
/// atomic operations each, and with a handful of writes.
///
/// ```
/// use sluicegate::{CompositeStore, Limit, LeasedLimiter, MemoryTable};
/// # use std::time::Duration;
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// // Instead of Limiter::new(store): everything else stays as it is.
/// let limiter = LeasedLimiter::leased(CompositeStore::with_table(MemoryTable::new()));
/// let limits = [Limit::per_minute("rpm", 6_000)];
/// for _ in 0..1_000 {
///     limiter.acquire("user-123", "gpt-4").consume("rpm", 1).limits(limits.clone()).await?;
/// }
/// let report = limiter.shutdown(Duration::from_secs(5)).await;
/// assert!(report.unsettled.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// What each mode guarantees, and what a crash costs: see [`LeaseMode`]. On Redis
/// (`LeasedLimiter::leased(RedisStore::new(url)?)`) it is the same, but for the usage windows, which
/// are made from a table's stream: there, what is counted as consumed can be read by a peek.
///
/// A lease is as large as what the process handed out lately suggests, and never more than a part of
/// what is there, so that others find something, too. More is leased in the background before it
/// runs out. When a bucket is short, leases are no larger than what is asked: every request is one
/// write, as without leasing, and a refusal names the exact wait.
///
/// Limits and parents that change are followed as without leasing: at once where this process changed
/// them, within a minute where another did, and as the newest request says where it brings them. What
/// was leased before is handed out until it is `max_age` old.
///
/// Giving back ([`Permit::release`](crate::Permit::release)) and correcting downwards costs no call;
/// correcting upwards takes from what is held, or goes to the store when that is not enough.
///
/// While the store is away, what is held is handed out as before: for `max_age` at most, or up to the
/// threshold. Of a bucket of which nothing is held, [`OnUnavailable`](crate::OnUnavailable) decides,
/// and a lease says so ([`Permit::degraded`](crate::Permit::degraded)). Corrections need the store then,
/// those downwards too: they are [`Unavailable`](crate::AdjustError::Unavailable) and can be repeated.
///
/// Of a bucket whose tokens are held, [`Permit::remaining`](crate::Permit::remaining) is what the table
/// had left when it answered last: neither what this process holds nor what it has not written yet.
pub type LeasedLimiter<S, C = SystemClock> = Limiter<Leased<S, C>, C>;

/// A store that hands out tokens which it leased from another.
pub struct Leased<S, C> {
    pub(super) engine: Arc<Engine<S, C>>,
}

impl<S: LeasingStore, C: Clock> Leased<S, C> {
    /// The store behind it.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.engine.store
    }

    /// Buckets of which tokens are held or something is to be settled.
    #[must_use]
    pub fn held_keys(&self) -> usize {
        self.engine.watched().len()
    }

    /// Requests and corrections decided here so far, as far as they have been looked at: up to a
    /// quarter of the age that tokens may have ago.
    #[must_use]
    pub fn decisions(&self) -> u64 {
        self.engine.meter.decisions()
    }

    /// Writes attempted to lease and to settle so far.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.engine.meter.writes()
    }
}

impl<C> AsRef<DynamoStore> for Leased<DynamoStore, C> {
    fn as_ref(&self) -> &DynamoStore {
        &self.engine.store
    }
}

impl<S, C> std::fmt::Debug for Leased<S, C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Leased").finish_non_exhaustive()
    }
}

impl<S: LeasingStore> Limiter<Leased<S, SystemClock>> {
    /// A limiter that leases from this store.
    #[must_use]
    pub fn leased(store: S) -> Self {
        Self::leased_with(store, SystemClock, LeaseSettings::default())
    }
}

impl<S: LeasingStore, C: Clock + Clone> Limiter<Leased<S, C>, C> {
    /// A limiter that leases from this store by another clock or otherwise.
    #[must_use]
    pub fn leased_with(store: S, clock: C, mut settings: LeaseSettings) -> Self {
        settings.deadline = as_deadline(settings.deadline);
        let engine = Arc::new(Engine::new(store, clock.clone(), settings));
        Self::with_clock(Leased { engine }, clock)
    }
}

impl<S: LeasingStore, C: Clock> Limiter<Leased<S, C>, C> {
    /// Gives back what is held and counts what was used; afterwards everything is as it would be
    /// without leasing, and it may lease again. For the end of an invocation of a function that may be
    /// frozen after it.
    pub async fn flush(&self, deadline: Duration) -> SettleReport {
        self.store().engine.settle_all(as_deadline(deadline)).await
    }

    /// As [`flush`](Self::flush), for good: requests after it are writes of their own.
    pub async fn shutdown(&self, deadline: Duration) -> SettleReport {
        self.store().engine.shut();
        self.flush(deadline).await
    }
}
