//! Calls whose callers leave before the answer. Such a call says nothing about the store. If every
//! caller left before its deadline, no call would ever fail, the breaker would never open, and
//! every caller would wait in vain during an outage. So after such a call a task probes the store,
//! to detect an outage.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::runtime::Handle;

use super::answer::is_answer;
use super::breaker::CallPass;
use super::store_guard::Guard;

/// The longest deadline of a probe. The deadline of the call may be a day.
const DEADLINE_MAX: Duration = Duration::from_secs(60);

/// A call on the store. If it is dropped before it ends, its caller has left.
struct CallInProgress<'g> {
    guard: &'g Arc<Guard>,
    pass: &'g CallPass<'g>,
    deadline: Duration,
    has_ended: bool,
}

impl Drop for CallInProgress<'_> {
    fn drop(&mut self) {
        // After a trial the recovery task probes.
        if !self.has_ended && !self.pass.reopen_if_trial() {
            self.guard.probe_after_unfinished_call(self.deadline);
        }
    }
}

/// Held by the one task that probes after such a call. It is dropped with the task, at the latest
/// with the runtime.
struct Probing(Arc<Guard>);

impl Drop for Probing {
    fn drop(&mut self) {
        self.0.health.is_probing_after_unfinished_call.store(false, Ordering::Release);
    }
}

impl Guard {
    /// Awaits a call on the store, which has a deadline of its own. If the caller leaves before the
    /// call ends, the store is probed; each probe may take as long as `deadline`.
    pub(super) async fn watch_call<T>(
        self: &Arc<Self>,
        pass: &CallPass<'_>,
        deadline: Duration,
        call: impl Future<Output = T>,
    ) -> T {
        let mut in_progress = CallInProgress { guard: self, pass, deadline, has_ended: false };
        let result = call.await;
        in_progress.has_ended = true;
        result
    }

    fn probe_after_unfinished_call(self: &Arc<Self>, deadline: Duration) {
        let Ok(runtime) = Handle::try_current() else { return };
        let settings = self.health.breaker.settings();
        if settings.never_opens()
            || self.health.is_probing_after_unfinished_call.swap(true, Ordering::AcqRel)
        {
            return;
        }
        let probing = Probing(self.clone());
        runtime.spawn(async move {
            probing.0.find_outage(deadline).await;
            // A store that answers is probed no more often than one that is unavailable.
            tokio::time::sleep(settings.probe_every).await;
        });
    }

    /// Probes until an answer, or until the breaker is open.
    async fn find_outage(self: &Arc<Self>, deadline: Duration) {
        let (mut failures, deadline) = (0, deadline.min(DEADLINE_MAX));
        while !self.health.is_limiter_dropped.load(Ordering::Relaxed)
            && let Some(pass) = self.health.breaker.take_pass_if_closed()
        {
            let checked = self.store.check(&self.clock, deadline).await;
            if is_answer(&checked) {
                // The failures of these probes no longer count, unless a call has failed as well.
                return self.health.breaker.forgive_up_to(failures);
            }
            failures += 1;
            self.note(pass, &checked);
            tokio::time::sleep(self.health.breaker.settings().probe_every).await;
        }
    }
}
