//! Pauses between repetitions of a write, within the time that the invocation has left.

use std::time::Duration;

use tokio::time::Instant;

/// The first pause before a repetition; doubles with each one.
const BASE_PAUSE: Duration = Duration::from_millis(25);
/// The longest pause.
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// Pauses with full jitter, until the deadline.
pub(crate) struct Backoff {
    deadline: Instant,
    pause: Duration,
}

impl Backoff {
    pub(crate) const fn until(deadline: Instant) -> Self {
        Self { deadline, pause: BASE_PAUSE }
    }

    /// Waits before the next repetition; false if there is no time left for one.
    pub(crate) async fn pause(&mut self) -> bool {
        let pause = self.pause.mul_f64(fastrand::f64());
        self.pause = (self.pause * 2).min(MAX_PAUSE);
        if Instant::now() + pause >= self.deadline {
            return false;
        }
        tokio::time::sleep(pause).await;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_and_end_before_the_deadline() {
        let deadline = Instant::now() + Duration::from_secs(30);
        let mut backoff = Backoff::until(deadline);
        let mut pauses = 0;
        while backoff.pause().await {
            pauses += 1;
        }
        assert!(Instant::now() < deadline);
        // The mean pause grows to half a second: about 60 pauses, and never a busy loop.
        assert!((20..400).contains(&pauses), "{pauses}");
        assert!(!Backoff::until(Instant::now()).pause().await);
    }
}
