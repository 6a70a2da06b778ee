//! Token arithmetic: the accrual of a limit, the value of a balance now, the time to wait.
//!
//! Refill is never stored and never carried as a remainder. A limit's *accrual* `A(t)` is what it
//! has earned since the epoch; what it earns between two instants is the difference of two
//! accruals. Differences telescope, so however often and in whatever steps refill is claimed, the
//! sum never strays from the ideal by a whole millitoken, for every limit that shares one refill
//! timestamp.

use crate::quantity::in_range;
use crate::{EpochMillis, Millitokens, OutOfRange};

/// The refill of a limit: an amount every period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Refill {
    amount: Millitokens,
    period_ms: i64,
}

impl Refill {
    /// Longest refill period in milliseconds, 10^12 (about 31 years).
    pub const MAX_PERIOD_MS: i64 = 1_000_000_000_000;

    /// `amount` every `period_ms`. An amount of zero is a quota without refill.
    ///
    /// # Errors
    /// [`OutOfRange`] for a negative amount or a period outside 1..=10^12 ms.
    pub fn new(amount: Millitokens, period_ms: i64) -> Result<Self, OutOfRange> {
        in_range("refill amount in millitokens", amount.get(), 0, Millitokens::MAX.get())?;
        in_range("refill period in milliseconds", period_ms, 1, Self::MAX_PERIOD_MS)?;
        Ok(Self { amount, period_ms })
    }

    /// Millitokens per period.
    #[must_use]
    pub const fn amount(self) -> Millitokens {
        self.amount
    }

    /// The period in milliseconds.
    #[must_use]
    pub const fn period_ms(self) -> i64 {
        self.period_ms
    }

    /// Millitokens earned since the epoch, `A(t) = floor(t * ra / rp)`; at most 2.6e32.
    #[must_use]
    pub fn accrued(self, at: EpochMillis) -> i128 {
        i128::from(at.get()) * i128::from(self.amount.get()) / i128::from(self.period_ms)
    }

    /// Millitokens earned since the last claim at `refilled_at`; zero when `now` is before it (a
    /// clock that is behind claims nothing).
    #[must_use]
    pub fn gap(self, refilled_at: EpochMillis, now: EpochMillis) -> i128 {
        // Saves two wide divisions for requests within one millisecond.
        if now <= refilled_at {
            return 0;
        }
        self.accrued(now) - self.accrued(refilled_at)
    }
}

/// The rule of one limit: how much a full bucket holds and how it refills.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rule {
    capacity: Millitokens,
    burst: Millitokens,
    refill: Refill,
}

/// The time until a bucket has an amount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Wait {
    /// At once.
    None,
    /// After this many milliseconds and not one earlier, if nobody else takes from the bucket.
    /// `u64::MAX` stands for anything longer.
    Millis(u64),
    /// Never: the limit does not refill (a quota).
    NoRefill,
    /// Never: the amount is more than a full bucket holds.
    ExceedsBurst,
}

impl Rule {
    /// A rule whose full bucket holds its capacity.
    ///
    /// # Errors
    /// [`OutOfRange`] for a negative capacity.
    pub fn new(capacity: Millitokens, refill: Refill) -> Result<Self, OutOfRange> {
        Self::with_burst(capacity, capacity, refill)
    }

    /// A rule whose full bucket holds `burst`.
    ///
    /// # Errors
    /// [`OutOfRange`] for a negative capacity or burst.
    pub fn with_burst(
        capacity: Millitokens,
        burst: Millitokens,
        refill: Refill,
    ) -> Result<Self, OutOfRange> {
        in_range("capacity in millitokens", capacity.get(), 0, Millitokens::MAX.get())?;
        in_range("burst in millitokens", burst.get(), 0, Millitokens::MAX.get())?;
        Ok(Self { capacity, burst, refill })
    }

    /// The nominal capacity in millitokens.
    #[must_use]
    pub const fn capacity(self) -> Millitokens {
        self.capacity
    }

    /// The balance of a full bucket, in millitokens.
    #[must_use]
    pub const fn burst(self) -> Millitokens {
        self.burst
    }

    /// The refill of the bucket.
    #[must_use]
    pub const fn refill(self) -> Refill {
        self.refill
    }

    /// The value of a stored balance at `now`: the balance plus the refill since, capped by the burst.
    /// Never more than the burst; negative while a debt stands.
    #[must_use]
    pub fn effective(
        self,
        stored: Millitokens,
        refilled_at: EpochMillis,
        now: EpochMillis,
    ) -> Millitokens {
        let refilled = i128::from(stored.get()) + self.refill.gap(refilled_at, now);
        Millitokens::saturating(refilled.min(self.burst.get().into()))
    }

    /// The exact time until the bucket has `asked`: after this time it does, one millisecond earlier it
    /// does not, unless another caller takes from the bucket meanwhile.
    #[must_use]
    pub fn wait_for(
        self,
        asked: Millitokens,
        stored: Millitokens,
        refilled_at: EpochMillis,
        now: EpochMillis,
    ) -> Wait {
        if asked > self.burst {
            return Wait::ExceedsBurst;
        }
        if self.effective(stored, refilled_at, now) >= asked {
            return Wait::None;
        }
        let amount = i128::from(self.refill.amount.get());
        if amount == 0 {
            return Wait::NoRefill;
        }
        // The first t with floor(t * ra / rp) >= wanted is the ceiling of wanted * rp / ra.
        let wanted =
            self.refill.accrued(refilled_at) + i128::from(asked.get()) - i128::from(stored.get());
        let scaled = wanted * i128::from(self.refill.period_ms);
        let at = scaled / amount + i128::from(scaled % amount != 0);
        Wait::Millis(u64::try_from(at - i128::from(now.get())).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{at, milli, rule};
    use proptest::prelude::*;

    const DAY_MS: i64 = 86_400_000;
    const T0: i64 = 1_700_000_000_123;

    /// A small deterministic generator: proptest cases of 10^5 elements would not shrink in time.
    fn steps(mut seed: u64) -> impl Iterator<Item = u64> {
        std::iter::repeat_with(move || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed
        })
    }

    #[test]
    fn a_hundred_thousand_claims_telescope_for_every_rate() {
        // From one token a day to a million tokens a second.
        let rates = [(1_000, DAY_MS), (7_000, 3_600_000), (60_000, 60_000), (1_000_000_000, 1_000)];
        for (amount, period_ms) in rates {
            let refill = Refill::new(milli(amount), period_ms).unwrap();
            let (mut now, mut claimed) = (T0, 0);
            for step in steps(amount.unsigned_abs() + 1).take(100_000) {
                // Mostly a few milliseconds, at times an hour.
                let ahead = if step % 97 == 0 { step % 3_600_000 } else { step % 50 };
                let next = now + i64::try_from(ahead).unwrap();
                claimed += refill.gap(at(now), at(next));
                now = next;
            }
            assert_eq!(claimed, refill.gap(at(T0), at(now)), "{amount} per {period_ms} ms");
            // The ideal, as an exact fraction over the period: off by less than one millitoken.
            let ideal = i128::from(now - T0) * i128::from(amount);
            let error = claimed * i128::from(period_ms) - ideal;
            assert!(error.abs() < i128::from(period_ms), "{amount} per {period_ms} ms");
        }
    }

    #[test]
    fn one_per_day_earns_although_it_is_claimed_every_second() {
        let refill = Refill::new(milli(1_000), DAY_MS).unwrap();
        let claimed: i128 =
            (0..86_400).map(|s| refill.gap(at(T0 + s * 1_000), at(T0 + (s + 1) * 1_000))).sum();
        assert_eq!(claimed, 1_000);
    }

    #[test]
    fn a_full_bucket_stays_at_its_burst_and_a_debt_is_earned_back() {
        let rule = rule(60_000, 60_000, 60_000);
        assert_eq!(rule.effective(milli(60_000), at(T0), at(T0 + DAY_MS)).get(), 60_000);
        assert_eq!(rule.effective(milli(75_000), at(T0), at(T0)).get(), 60_000);
        assert_eq!(rule.effective(milli(-5_000), at(T0), at(T0 + 2_000)).get(), -3_000);
    }

    #[test]
    fn a_clock_that_goes_back_earns_nothing() {
        let rule = rule(60_000, 60_000, 60_000);
        assert_eq!(rule.effective(milli(10), at(T0), at(T0 - 1)).get(), 10);
        assert_eq!(rule.refill().gap(at(T0), at(0)), 0);
    }

    #[test]
    fn never_admissible_amount_has_no_wait() {
        let quota = rule(10_000, 0, 1);
        assert_eq!(quota.wait_for(milli(1_000), milli(0), at(T0), at(T0)), Wait::NoRefill);
        assert_eq!(quota.wait_for(milli(10_001), milli(0), at(T0), at(T0)), Wait::ExceedsBurst);
        assert_eq!(quota.wait_for(milli(10_000), milli(10_000), at(T0), at(T0)), Wait::None);
    }

    #[test]
    fn the_ends_of_every_range_do_not_overflow() {
        let extremes = [Millitokens::MIN, milli(-1), Millitokens::ZERO, milli(1), Millitokens::MAX];
        let instants = [EpochMillis::MIN, at(1), at(T0), EpochMillis::MAX];
        for (amount, period_ms) in
            [(0, 1), (1, 1), (1, Refill::MAX_PERIOD_MS), (Millitokens::MAX.get(), 1)]
        {
            for burst in [0, 1, Millitokens::MAX.get()] {
                let rule = rule(burst, amount, period_ms);
                for stored in extremes {
                    for asked in extremes {
                        for rf in instants {
                            for now in instants {
                                let effective = rule.effective(stored, rf, now);
                                assert!(effective <= rule.burst());
                                assert!(effective >= stored.min(rule.burst()));
                                let ready = rule.wait_for(asked, stored, rf, now) == Wait::None;
                                assert_eq!(ready, asked <= effective);
                            }
                        }
                    }
                }
            }
        }
        assert!(Refill::new(milli(-1), 1).is_err());
        assert!(Refill::new(milli(1), 0).is_err());
        assert!(Refill::new(milli(1), Refill::MAX_PERIOD_MS + 1).is_err());
    }

    proptest! {
        #[test]
        fn any_partition_of_an_interval_sums_to_the_whole(
            amount in 0..=1_000_000_000_000_i64,
            period_ms in 1..=Refill::MAX_PERIOD_MS,
            mut instants in proptest::collection::vec(0..=EpochMillis::MAX.get(), 2..40),
        ) {
            let refill = Refill::new(milli(amount), period_ms).unwrap();
            instants.sort_unstable();
            let parts: i128 = instants.windows(2).map(|w| refill.gap(at(w[0]), at(w[1]))).sum();
            let whole = refill.gap(at(instants[0]), at(instants[instants.len() - 1]));
            prop_assert_eq!(parts, whole);
        }

        #[test]
        fn the_wait_is_exact_on_both_sides(
            burst in 1..=10_000_000_000_i64,
            amount in 1..=1_000_000_000_i64,
            period_ms in 1..=DAY_MS,
            debt in 0..=1_000_000_000_i64,
            asked_share in 0.0..=1.0_f64,
            behind in 0..=10_000_i64,
        ) {
            let rule = rule(burst, amount, period_ms);
            #[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "any amount will do")]
            let asked = milli(((burst as f64 * asked_share) as i64).clamp(1, burst));
            let (stored, rf, now) = (milli(-debt), at(T0), at(T0 - behind));
            let Wait::Millis(wait) = rule.wait_for(asked, stored, rf, now) else {
                return Err(TestCaseError::fail("a balance at or below zero always waits"));
            };
            let ready = i64::try_from(wait).unwrap() + now.get();
            prop_assume!(ready <= EpochMillis::MAX.get());
            prop_assert!(rule.effective(stored, rf, at(ready)) >= asked);
            prop_assert!(rule.effective(stored, rf, at(ready - 1)) < asked);
        }
    }
}
