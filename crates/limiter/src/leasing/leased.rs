//! A limiter that leases: how it is made, and how it gives back.

use std::sync::Arc;
use std::time::Duration;

use super::engine::Engine;
use super::settings::LeaseSettings;
use super::watch::SettleReport;
use crate::call::as_deadline;
use crate::clock::{Clock, SystemClock};
#[cfg(feature = "dynamodb")]
use crate::dynamo::DynamoStore;
use crate::leasing_store::LeasingStore;
use crate::limiter::Limiter;

/// A limiter that decides in the process. It leases tokens from the store ahead of need and hands
/// them out by a few atomic operations each, with few writes.
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
/// For the guarantees of each mode, and the cost of a crash, see
/// [`LeaseMode`](crate::LeaseMode). On Redis (`LeasedLimiter::leased(RedisStore::new(url)?)`) they
/// are the same, except for usage windows: these need a table's stream. On Redis, a peek reads the
/// amounts counted as consumed.
///
/// The size of a lease follows the number of tokens that the process handed out lately. It is never
/// more than a part of the bucket's balance, so that other processes find tokens too. More is
/// leased in the background before it runs out. When a bucket is short, a lease is no larger than
/// the request: every request is one write, as without leasing, and a refusal names the exact wait.
///
/// Limits and parents that change are followed as without leasing: at once if this process changed
/// them, within a minute if another did, and as the newest request says if it brings them. Tokens
/// leased before are handed out until they are `max_age` old.
///
/// Giving back ([`Permit::release`](crate::Permit::release)) and correcting downwards costs no
/// call. Correcting upwards takes from the held tokens, or goes to the store when they are not
/// enough.
///
/// While the store is unavailable, held tokens are handed out as before: for `max_age` at most, or
/// up to the threshold. For a bucket of which nothing is held,
/// [`OnUnavailable`](crate::OnUnavailable) decides, and the permit says so
/// ([`Permit::degraded`](crate::Permit::degraded)). Corrections then need the store, those
/// downwards too: they fail with [`Unavailable`](crate::AdjustError::Unavailable) and can be
/// repeated.
///
/// For a bucket whose tokens are held, [`Permit::remaining`](crate::Permit::remaining) is the
/// balance of the table at its last answer. It includes neither the tokens that this process holds
/// nor the use that it has not written yet.
pub type LeasedLimiter<S, C = SystemClock> = Limiter<Leased<S, C>, C>;

/// A store that hands out tokens which it leased from another store.
pub struct Leased<S, C> {
    pub(super) engine: Arc<Engine<S, C>>,
}

impl<S: LeasingStore, C: Clock> Leased<S, C> {
    /// The store behind it.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.engine.store
    }

    /// The number of buckets that hold tokens or have something to settle.
    #[must_use]
    pub fn held_keys(&self) -> usize {
        self.engine.watched().len()
    }

    /// The number of requests and corrections decided here so far. It lags by up to a quarter of
    /// `max_age`.
    #[must_use]
    pub fn decisions(&self) -> u64 {
        self.engine.meter.decisions()
    }

    /// The number of writes attempted so far, to lease and to settle.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.engine.meter.writes()
    }
}

#[cfg(feature = "dynamodb")]
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
    /// A limiter that leases from this store, with this clock and these settings.
    #[must_use]
    pub fn leased_with(store: S, clock: C, mut settings: LeaseSettings) -> Self {
        settings.deadline = as_deadline(settings.deadline);
        let engine = Arc::new(Engine::new(store, clock.clone(), settings));
        Self::with_clock(Leased { engine }, clock)
    }
}

impl<S: LeasingStore, C: Clock> Limiter<Leased<S, C>, C> {
    /// Gives back the held tokens and counts those that were used. Afterwards the store is as
    /// without leasing; the limiter may lease again. Call it at the end of an invocation of a
    /// function that may be frozen after it.
    pub async fn flush(&self, deadline: Duration) -> SettleReport {
        self.store().engine.settle_all(as_deadline(deadline)).await
    }

    /// As [`flush`](Self::flush), and ends leasing: every later request is a write of its own.
    pub async fn shutdown(&self, deadline: Duration) -> SettleReport {
        self.store().engine.shut();
        self.flush(deadline).await
    }
}
