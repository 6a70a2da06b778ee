//! Calls whose callers leave before the answer. Such a call says nothing of the store. If all
//! callers wait for less than the deadline, no call would ever fail, and each would wait through an
//! outage. So the store is asked for a sign of life, and its answer, or its silence, counts as that
//! of a call.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::runtime::Handle;

use super::breaker::CallPass;
use super::guarded::Guard;

/// A call that waits for its answer. Dropped before it, the caller has left.
struct Unanswered<'g> {
    guard: &'g Arc<Guard>,
    is_answered: bool,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            self.guard.ask_for_sign_of_life();
        }
    }
}

/// The one question for a sign of life at a time. It ends when this is dropped, at the latest with
/// its runtime.
struct Asking(Arc<Guard>);

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.health.is_asking.store(false, Ordering::Release);
    }
}

impl Guard {
    /// Awaits a call on the store, and notices if its caller leaves.
    pub(super) async fn answer_of<T>(self: &Arc<Self>, call: impl Future<Output = T>) -> T {
        let mut unanswered = Unanswered { guard: self, is_answered: false };
        let answer = call.await;
        unanswered.is_answered = true;
        answer
    }

    fn ask_for_sign_of_life(self: &Arc<Self>) {
        let Ok(runtime) = Handle::try_current() else { return };
        if self.health.is_asking.swap(true, Ordering::AcqRel) {
            return;
        }
        let asking = Asking(self.clone());
        runtime.spawn(async move {
            let guard = &asking.0;
            // A store that counts as unavailable is probed by the recovery task.
            let pass = guard.health.circuit.may_call().filter(|pass| !CallPass::is_trial(pass));
            if let Some(pass) = pass {
                let checked = guard.store.check(&guard.clock, guard.call_time(None)).await;
                guard.note(pass, &checked);
            }
        });
    }
}
