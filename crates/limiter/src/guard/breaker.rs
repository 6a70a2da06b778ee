//! The circuit breaker of a store: decides if a call asks the store, so that an outage does not
//! cost every call its deadline.
//!
//! One word holds the state and the time of its last change, and every change is a
//! compare-and-swap, so no call waits for another. If the state has changed since a call began, the
//! failure of that call changes nothing.

use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use sluicegate_core::EpochMillis;
use tokio::time::Instant;

use super::breaker_config::BreakerConfig;

/// The bounds of the time between probes.
const PROBE_EVERY_MIN: Duration = Duration::from_millis(1);
const PROBE_EVERY_MAX: Duration = Duration::from_secs(60);

/// All calls ask the store.
const CLOSED: u64 = 0;
/// No call asks the store.
const OPEN: u64 = 1;
/// A probe was answered: the next call asks the store, on trial.
const HALF_OPEN: u64 = 2;
/// The call on trial is in flight; no other call asks the store.
const TRIAL: u64 = 3;
/// Bits of the word that hold the state.
const STATE_BITS: u32 = 2;
/// Bits of the word that count the changes, so that no two words of one millisecond are equal. The
/// other bits hold the time of the last change, in milliseconds since `started`: 139 years fit.
const COUNT_BITS: u32 = 20;

/// The breaker of one limiter and its clones.
#[derive(Debug)]
pub(super) struct CircuitBreaker {
    settings: BreakerConfig,
    word: AtomicU64,
    failures: AtomicU32,
    started: Instant,
    /// The time of the first failure since the last answer, in milliseconds since `started`;
    /// `u64::MAX`: there is none.
    failing_since_ms: AtomicU64,
    /// The time at which the store became unavailable, in epoch milliseconds.
    opened_at_ms: AtomicI64,
}

/// The right to ask the store once. Dropping it says nothing about the store.
#[derive(Debug)]
pub(super) struct CallPass<'a> {
    circuit: &'a CircuitBreaker,
    word: u64,
}

impl CircuitBreaker {
    pub(super) fn new(settings: BreakerConfig) -> Self {
        Self {
            settings: BreakerConfig {
                probe_every: settings.probe_every.clamp(PROBE_EVERY_MIN, PROBE_EVERY_MAX),
                ..settings
            },
            word: AtomicU64::new(CLOSED),
            failures: AtomicU32::new(0),
            started: Instant::now(),
            failing_since_ms: AtomicU64::new(u64::MAX),
            opened_at_ms: AtomicI64::new(0),
        }
    }

    pub(super) const fn settings(&self) -> BreakerConfig {
        self.settings
    }

    /// Milliseconds since the breaker was made.
    pub(super) fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// `None`: the store is unavailable and is not asked.
    pub(super) fn take_pass(&self) -> Option<CallPass<'_>> {
        let word = self.word.load(Ordering::Acquire);
        match state(word) {
            CLOSED => Some(CallPass { circuit: self, word }),
            HALF_OPEN => self.change(word, TRIAL).map(|word| CallPass { circuit: self, word }),
            _ => None,
        }
    }

    /// `None`: the breaker is not closed.
    pub(super) fn take_pass_if_closed(&self) -> Option<CallPass<'_>> {
        let word = self.word.load(Ordering::Acquire);
        (state(word) == CLOSED).then_some(CallPass { circuit: self, word })
    }

    /// When the store became unavailable, by the clock of the call that found out.
    pub(super) fn opened_at(&self) -> EpochMillis {
        EpochMillis::new(self.opened_at_ms.load(Ordering::Relaxed)).unwrap_or(EpochMillis::MIN)
    }

    /// True if a probe could change the state.
    pub(super) fn needs_probes(&self) -> bool {
        matches!(state(self.word.load(Ordering::Acquire)), OPEN | TRIAL)
    }

    /// Notes that a probe was answered.
    pub(super) fn note_probe_answer(&self) {
        let word = self.word.load(Ordering::Acquire);
        let trial_ms = || self.now_ms().saturating_sub(since_ms(word));
        let is_overtaken = match state(word) {
            OPEN => true,
            // A trial call that has waited for two intervals between probes is disregarded: its
            // deadline may be a day away.
            TRIAL => Duration::from_millis(trial_ms()) >= self.settings.probe_every * 2,
            _ => false,
        };
        if is_overtaken {
            self.change(word, HALF_OPEN);
        }
    }

    /// Notes that the store answered something: earlier failures no longer count.
    pub(super) fn forgive(&self) {
        self.failures.store(0, Ordering::Release);
        self.failing_since_ms.store(u64::MAX, Ordering::Release);
    }

    /// Notes that a probe was answered after this many failed probes. If more failures were
    /// counted, a call has failed, and all of them still count.
    pub(super) fn forgive_up_to(&self, failures: u32) {
        if self.failures.load(Ordering::Acquire) <= failures {
            self.forgive();
        }
    }

    fn change(&self, from: u64, to: u64) -> Option<u64> {
        let count = ((from >> STATE_BITS) + 1) & ((1 << COUNT_BITS) - 1);
        let next = (((self.now_ms() << COUNT_BITS) | count) << STATE_BITS) | to;
        self.word.compare_exchange(from, next, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        Some(next)
    }

    /// Counts a failure; true if the breaker must open.
    fn fail(&self) -> bool {
        let now_ms = self.now_ms();
        let since_ms = self.failing_since_ms.fetch_min(now_ms, Ordering::AcqRel);
        let failures = self.failures.fetch_add(1, Ordering::AcqRel).saturating_add(1);
        let lasted = Duration::from_millis(now_ms.saturating_sub(since_ms));
        failures >= self.settings.failures || (failures > 1 && lasted >= self.settings.failing_for)
    }
}

impl CallPass<'_> {
    /// True if this call is on trial: no other call may ask the store meanwhile.
    pub(super) const fn is_trial(&self) -> bool {
        state(self.word) == TRIAL
    }

    /// Notes that the caller left before the answer; true if this was a trial. Then the breaker is
    /// open, and the recovery task probes again.
    pub(super) fn reopen_if_trial(&self) -> bool {
        self.is_trial() && self.circuit.change(self.word, OPEN).is_some()
    }

    /// Notes an answer of the store; true if the store was unavailable until now.
    pub(super) fn note_answer(self) -> bool {
        if self.is_trial() {
            self.circuit.forgive();
            return self.circuit.change(self.word, CLOSED).is_some();
        }
        // Read first, so that answered calls do not write to the cache line that they share.
        if self.circuit.failures.load(Ordering::Relaxed) > 0 {
            self.circuit.forgive();
        }
        false
    }

    /// Notes that the call failed; true if the store counts as unavailable from now on, and did not
    /// before.
    pub(super) fn note_failure(self, now: EpochMillis) -> bool {
        let circuit = self.circuit;
        if self.is_trial() {
            circuit.change(self.word, OPEN);
            return false;
        }
        if circuit.word.load(Ordering::Acquire) != self.word || !circuit.fail() {
            return false;
        }
        circuit.opened_at_ms.store(now.get(), Ordering::Relaxed);
        circuit.change(self.word, OPEN).is_some()
    }
}

impl Drop for CallPass<'_> {
    fn drop(&mut self) {
        if self.is_trial() {
            // Does nothing if the result of the call was noted, because that changed the word.
            self.circuit.change(self.word, HALF_OPEN);
        }
    }
}

const fn since_ms(word: u64) -> u64 {
    word >> (STATE_BITS + COUNT_BITS)
}

const fn state(word: u64) -> u64 {
    word & ((1 << STATE_BITS) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_769_608_800_000;

    fn fail(pass: CallPass<'_>) -> bool {
        pass.note_failure(EpochMillis::new(NOW).unwrap())
    }

    fn opened() -> CircuitBreaker {
        let circuit =
            CircuitBreaker::new(BreakerConfig { failures: 1, ..BreakerConfig::default() });
        assert!(fail(circuit.take_pass().unwrap()));
        circuit
    }

    #[tokio::test(start_paused = true)]
    async fn so_many_failures_in_a_row_open_it_once() {
        let circuit =
            CircuitBreaker::new(BreakerConfig { failures: 3, ..BreakerConfig::default() });
        for _ in 0..2 {
            assert!(!fail(circuit.take_pass().unwrap()));
        }
        assert!(!circuit.take_pass().unwrap().note_answer());
        let late = circuit.take_pass().unwrap();
        assert!(!fail(circuit.take_pass().unwrap()));
        assert!(!fail(circuit.take_pass().unwrap()));
        assert!(fail(circuit.take_pass().unwrap()));
        assert!(!fail(late), "it is open already");
        assert!(circuit.take_pass().is_none());
        assert_eq!(circuit.opened_at().get(), NOW);
    }

    #[tokio::test(start_paused = true)]
    async fn failures_for_a_time_open_it_too() {
        let circuit =
            CircuitBreaker::new(BreakerConfig { failures: 100, ..BreakerConfig::default() });
        tokio::time::advance(Duration::from_secs(60)).await;
        assert!(!fail(circuit.take_pass().unwrap()), "one failure may be an accident");
        tokio::time::advance(Duration::from_millis(999)).await;
        assert!(!fail(circuit.take_pass().unwrap()));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(fail(circuit.take_pass().unwrap()));
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_probe_one_call_decides() {
        let circuit = opened();
        assert!(circuit.needs_probes());
        circuit.note_probe_answer();
        assert!(!circuit.needs_probes());
        let trial = circuit.take_pass().unwrap();
        assert!(trial.is_trial() && circuit.take_pass().is_none());
        assert!(!fail(trial), "it was unavailable before");
        assert!(circuit.take_pass().is_none());

        circuit.note_probe_answer();
        drop(circuit.take_pass().unwrap());
        let trial = circuit.take_pass().expect("a caller that stopped waiting has decided nothing");
        assert!(trial.note_answer());
        assert!(!circuit.take_pass().unwrap().is_trial());
    }

    #[tokio::test(start_paused = true)]
    async fn a_trial_that_hangs_is_overtaken_by_the_next_probe() {
        let circuit = opened();
        circuit.note_probe_answer();
        let hung = circuit.take_pass().unwrap();
        tokio::time::advance(Duration::from_millis(499)).await;
        circuit.note_probe_answer();
        assert!(circuit.take_pass().is_none(), "it may be answered yet");
        tokio::time::advance(Duration::from_millis(1)).await;
        circuit.note_probe_answer();
        let next = circuit.take_pass().unwrap();
        assert!(!fail(hung), "the call began in an earlier state");
        assert!(next.note_answer());
        assert!(circuit.take_pass().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_from_before_an_outage_says_nothing_after_it() {
        let circuit =
            CircuitBreaker::new(BreakerConfig { failures: 1, ..BreakerConfig::default() });
        let early = circuit.take_pass().unwrap();
        assert!(fail(circuit.take_pass().unwrap()));
        circuit.note_probe_answer();
        assert!(circuit.take_pass().unwrap().note_answer());
        assert!(!fail(early));
        assert!(circuit.take_pass().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn it_can_be_turned_off() {
        let circuit = CircuitBreaker::new(BreakerConfig::never());
        for _ in 0..1_000 {
            tokio::time::advance(Duration::from_secs(1)).await;
            assert!(!fail(circuit.take_pass().unwrap()));
        }
    }

    /// Two failures at the same moment, within the first hour, are not two failures an hour apart.
    #[test]
    fn failures_at_once_did_not_last() {
        let long_ago = Instant::now().checked_sub(Duration::from_secs(60)).unwrap();
        let circuit = || CircuitBreaker {
            started: long_ago,
            ..CircuitBreaker::new(BreakerConfig::default())
        };
        let circuits: Vec<_> = (0..2_000).map(|_| (AtomicU32::new(0), circuit())).collect();
        let fail_together = || {
            let opened = circuits.iter().filter(|(here, circuit)| {
                let pass = circuit.take_pass().unwrap();
                here.fetch_add(1, Ordering::SeqCst);
                while here.load(Ordering::SeqCst) < 2 {
                    std::thread::yield_now();
                }
                fail(pass)
            });
            opened.count()
        };
        std::thread::scope(|scope| {
            let failing = [scope.spawn(fail_together), scope.spawn(fail_together)];
            for opened in failing.map(|failing| failing.join().unwrap()) {
                assert_eq!(opened, 0);
            }
        });
    }

    /// If a probe is answered while a call goes on trial, the age of the trial counts from its own
    /// start.
    #[test]
    fn a_trial_is_never_overtaken_before_its_time() {
        let long_ago = Instant::now().checked_sub(Duration::from_secs(60)).unwrap();
        for _ in 0..5_000 {
            let circuit = CircuitBreaker { started: long_ago, ..opened() };
            circuit.note_probe_answer();
            std::thread::scope(|scope| {
                let probing = scope.spawn(|| {
                    while !circuit.needs_probes() {
                        std::hint::spin_loop();
                    }
                    circuit.note_probe_answer();
                });
                std::mem::forget(circuit.take_pass().unwrap());
                probing.join().unwrap();
            });
            assert!(circuit.take_pass().is_none(), "a second call is on trial");
        }
    }

    /// Of any number of calls at once, one is on trial.
    #[test]
    fn many_who_ask_at_once_are_one_trial() {
        for _ in 0..200 {
            let circuit = opened();
            circuit.note_probe_answer();
            let trials: usize = std::thread::scope(|scope| {
                let ask = || circuit.take_pass().map(std::mem::forget).map_or(0, |()| 1);
                let asking: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
                asking.into_iter().map(|asking| asking.join().unwrap()).sum()
            });
            assert_eq!(trials, 1);
        }
    }
}
