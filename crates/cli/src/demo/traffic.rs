//! The requests of the simulated tenants: a stream of calls that a seed determines.
//!
//! Each tenant draws from a generator of its own, so the answers to one tenant do not change the
//! requests of the others.

use fastrand::Rng;
use sluicegate::Limit;
use sluicegate::types::Calendar;

/// The one model that all tenants share.
pub(crate) const MODEL: &str = "chat-large";
/// Requests per minute.
pub(crate) const REQUESTS: &str = "rpm";
/// Tokens of text per minute.
pub(crate) const TOKENS: &str = "tpm";
/// Money per day, in UTC.
pub(crate) const BUDGET: &str = "usd";
/// The price of a token of text, in millionths of a dollar.
pub(crate) const PRICE: i64 = 20;
/// Requests that a full bucket holds.
pub(crate) const REQUESTS_BURST: u64 = 30;
/// Tokens of text that a full bucket holds.
pub(crate) const TOKENS_BURST: u64 = 20_000;

/// The limits of a tenant. They differ in the budget alone.
pub(crate) fn limits(tenant: usize) -> [Limit; 3] {
    [
        Limit::per_minute(REQUESTS, 120).burst(REQUESTS_BURST),
        Limit::per_minute(TOKENS, 60_000).burst(TOKENS_BURST),
        Limit::by_calendar(BUDGET, budget(tenant), Calendar::day()),
    ]
}

/// The daily budget of a tenant, in millionths of a dollar.
pub(crate) fn budget(tenant: usize) -> u64 {
    u64::from(HABITS[tenant].usd_per_day) * 1_000_000
}

/// The behaviour of a tenant.
struct Habit {
    name: &'static str,
    /// Calls per second when calm.
    calm: f64,
    /// Calls per second in a burst.
    burst: f64,
    /// The most tokens of text in a call.
    tokens: u32,
    /// The budget, in dollars a day.
    usd_per_day: u32,
}

const HABITS: [Habit; 6] = [
    Habit { name: "acme-support", calm: 0.8, burst: 6.0, tokens: 600, usd_per_day: 50 },
    Habit { name: "beta-search", calm: 1.5, burst: 3.0, tokens: 300, usd_per_day: 50 },
    Habit { name: "cargo-bot", calm: 0.3, burst: 9.0, tokens: 900, usd_per_day: 50 },
    Habit { name: "delta-notes", calm: 0.6, burst: 4.0, tokens: 2_500, usd_per_day: 50 },
    Habit { name: "echo-mail", calm: 1.2, burst: 5.0, tokens: 400, usd_per_day: 50 },
    // This tenant always asks for several times its limits, and its budget lasts less than a minute.
    Habit { name: "greedy-inc", calm: 9.0, burst: 18.0, tokens: 1_200, usd_per_day: 1 },
];

/// Number of tenants.
pub(crate) const TENANTS: usize = HABITS.len();
/// The duration of a burst.
const BURST_MS: i64 = 2_000;

/// Name of a tenant.
pub(crate) fn name(tenant: usize) -> &'static str {
    HABITS[tenant].name
}

/// One call to the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Call {
    /// The time of the call, in milliseconds since the epoch.
    pub(crate) at_ms: i64,
    /// The tokens of text that the gateway expects.
    pub(crate) estimate: i64,
    /// The tokens of text that the call really takes.
    pub(crate) actual: i64,
    /// The time that the model takes.
    pub(crate) latency_ms: i64,
}

/// The calls of one tenant, in order and without an end.
pub(crate) struct Traffic {
    habit: &'static Habit,
    rng: Rng,
    now_ms: i64,
    burst_from_ms: i64,
}

impl Traffic {
    pub(crate) fn new(tenant: usize, seed: u64, start_ms: i64) -> Self {
        let mut rng = Rng::with_seed(seed.wrapping_mul(31).wrapping_add(tenant as u64));
        let burst_from_ms = start_ms + rng.i64(1_000..15_000);
        Self { habit: &HABITS[tenant], rng, now_ms: start_ms, burst_from_ms }
    }

    pub(crate) fn next(&mut self) -> Call {
        let bursting = (self.burst_from_ms..self.burst_from_ms + BURST_MS).contains(&self.now_ms);
        let rate = if bursting { self.habit.burst } else { self.habit.calm };
        // Gaps of independent arrivals: exponential, by inversion.
        let gap_s = -(1.0 - self.rng.f64()).ln() / rate;
        self.now_ms += whole_ms(gap_s).max(1);
        if self.now_ms >= self.burst_from_ms + BURST_MS {
            self.burst_from_ms = self.now_ms + self.rng.i64(5_000..20_000);
        }
        let estimate = i64::from(self.rng.u32(self.habit.tokens / 4..=self.habit.tokens));
        // Answers are between half and one and a half times as long as expected.
        let actual = estimate * self.rng.i64(50..=150) / 100;
        let latency_ms = 200 + actual * 2;
        Call { at_ms: self.now_ms, estimate, actual, latency_ms }
    }
}

/// At most an hour, which no gap comes near.
#[allow(clippy::cast_possible_truncation, reason = "clamped to what fits")]
fn whole_ms(seconds: f64) -> i64 {
    (seconds * 1_000.0).clamp(0.0, 3_600_000.0) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(tenant: usize, seed: u64) -> Vec<Call> {
        let mut traffic = Traffic::new(tenant, seed, 0);
        (0..500).map(|_| traffic.next()).collect()
    }

    #[test]
    fn a_seed_is_one_traffic_and_tenants_differ() {
        assert_eq!(calls(0, 1), calls(0, 1));
        assert_ne!(calls(0, 1), calls(0, 2));
        assert_ne!(calls(0, 1), calls(1, 1));
    }

    #[test]
    fn calls_come_in_order_and_fit_a_full_bucket() {
        for tenant in 0..TENANTS {
            let calls = calls(tenant, 7);
            assert!(calls.windows(2).all(|pair| pair[0].at_ms < pair[1].at_ms));
            let burst = i64::try_from(TOKENS_BURST).unwrap();
            assert!(calls.iter().all(|call| (1..burst).contains(&call.estimate)));
        }
    }

    #[test]
    fn bursts_are_denser_than_calm() {
        let calls = calls(2, 3);
        let gaps = |share: fn(i64) -> bool| {
            calls.windows(2).filter(|pair| share(pair[1].at_ms - pair[0].at_ms)).count()
        };
        assert!(gaps(|gap| gap < 200) > 50 && gaps(|gap| gap > 1_500) > 20);
    }
}
