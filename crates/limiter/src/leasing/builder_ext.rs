//! Leasing as a setting of a limiter, and how the limiter gives back.

use std::sync::Arc;
use std::time::Duration;

use super::leased::Leased;
use super::leaser::Leaser;
use super::remembered::{REMEMBERED_MAX, RememberedRequests};
use super::settings::LeaseSettings;
use super::watch::SettleReport;
use crate::builder::LimiterBuilder;
use crate::call::clamped_time;
use crate::leasing_store::LeasingStore;
use crate::limiter::Limiter;

impl<S: LeasingStore> LimiterBuilder<S> {
    /// Decides in the process: the limiter leases tokens from the store ahead of need and hands
    /// them out by a few atomic operations each, with few writes.
    ///
    /// ```
    /// use sluicegate::{LeaseSettings, Limit, Limiter, MemoryStore};
    /// # use std::time::Duration;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = MemoryStore::new();
    /// let limiter = Limiter::builder(store).leasing(LeaseSettings::default()).build();
    /// let limits = [Limit::per_minute("rpm", 6_000)];
    /// for _ in 0..1_000 {
    ///     limiter.acquire("user-123", "gpt-4").consume("rpm", 1).limits(limits.clone()).await?;
    /// }
    /// let report = limiter.shutdown(Duration::from_secs(5)).await;
    /// assert!(report.unsettled.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// For the guarantees of each mode, and the cost of a crash, see
    /// [`LeaseMode`](crate::LeaseMode). On Redis they are the same, except for usage windows: these
    /// need a table's stream. On Redis, a peek reads the amounts counted as consumed.
    ///
    /// The size of a lease follows the number of tokens that the process handed out lately. It is
    /// never more than a part of the bucket's balance, so that other processes find tokens too.
    /// More is leased in the background before it runs out. When a bucket is short, a lease is no
    /// larger than the request: every request is one write, as without leasing, and a refusal names
    /// the exact wait.
    ///
    /// Limits that change are followed as without leasing: at once if this process changed them,
    /// within a minute if another did, and as the newest request says if it brings them. So are
    /// parents, within 61 seconds if another process changed them; a prepared call follows this
    /// process's changes within half a second. Tokens leased before are handed out until they are
    /// `max_age` old.
    ///
    /// A background task returns unused tokens. It lives in the runtime of a call that leased.
    /// While nobody runs that runtime, tokens stay taken; dropping it lets another runtime's calls
    /// start the task anew.
    ///
    /// Giving back ([`Permit::release`](crate::Permit::release)) and correcting downwards costs no
    /// call. Correcting upwards takes from the held tokens, or goes to the store when they are not
    /// enough.
    ///
    /// While the store is unavailable, held tokens are handed out as before: for `max_age` at most,
    /// or up to the threshold. For a bucket of which nothing is held,
    /// [`OnUnavailable`](crate::OnUnavailable) decides, and the permit says so
    /// ([`Permit::degraded`](crate::Permit::degraded)). Corrections then need the store, those
    /// downwards too: they fail with [`Unavailable`](crate::AdjustError::Unavailable) and can be
    /// repeated.
    ///
    /// If the limiter is dropped without [`shutdown`](Limiter::shutdown), the tokens that it holds
    /// stay consumed, as those of a process that was killed.
    ///
    /// For a bucket whose tokens are held, [`Permit::remaining`](crate::Permit::remaining) is the
    /// balance of the store at its last answer, refilled since then, and the tokens that this
    /// process holds, less the use that it has not written yet. An answer to a peek, or to an
    /// acquire that could not be leased, may show half a second later.
    pub fn leasing(self, mut settings: LeaseSettings) -> Self {
        settings.deadline = clamped_time(settings.deadline);
        self.front(|store, clock| {
            let leaser = Arc::new(Leaser::new(Arc::new(store), clock, settings));
            let remembered = Arc::new(RememberedRequests::new(REMEMBERED_MAX));
            Arc::new(Leased { leaser, remembered })
        })
    }
}

impl Limiter {
    /// The leased tokens; `None`: the limiter does not lease.
    #[must_use]
    pub fn leased(&self) -> Option<&Leased> {
        self.store()
    }

    /// Gives back the leased tokens and counts those that were used. Afterwards the store is as
    /// without leasing; the limiter may lease again. Call it at the end of an invocation of a
    /// function that may be frozen after it. Without leasing there is nothing to do.
    pub async fn flush(&self, deadline: Duration) -> SettleReport {
        match self.leased() {
            Some(leased) => leased.leaser.settle_all(clamped_time(deadline)).await,
            None => SettleReport::default(),
        }
    }

    /// As [`flush`](Self::flush), and ends leasing: every later request is a write of its own.
    pub async fn shutdown(&self, deadline: Duration) -> SettleReport {
        if let Some(leased) = self.leased() {
            leased.leaser.shut();
        }
        self.flush(deadline).await
    }
}
