//! Token arithmetic: the accrual of a limit, the value of a balance now, the time to wait.
//!
//! Refill is never stored and never carried as a remainder. A limit's *accrual* `A(t)` is what it
//! has earned since the epoch; the refill between two instants is the difference of two accruals.
//! Differences telescope: the sum of all claims never strays from the ideal by a whole millitoken,
//! however often refill is claimed. This holds for every limit that shares one refill timestamp.
//!
//! A limit refills evenly or by a calendar. The accrual of a calendar limit is its amount times the
//! number of period boundaries up to `t`; everything else is the same.

use std::fmt;
use std::str::FromStr;

use crate::quantity::in_range;
use crate::{Calendar, EpochMillis, InvalidCalendar, Millitokens, OutOfRange};

/// The refill of a limit: an amount every period, evenly or at the boundaries of a calendar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Refill {
    amount: Millitokens,
    period_ms: i64,
    by_calendar: Option<CalendarRefill>,
}

/// The boundaries at which a calendar limit gets its amount.
///
/// As text, in items too: `month@15/Europe/Berlin` or `week,debt=forgiven`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CalendarRefill {
    /// The periods.
    pub calendar: Calendar,
    /// The effect of a boundary on a debt.
    pub debt: Debt,
}

/// The effect of a boundary on the debt of a calendar limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Debt {
    /// The next period begins with the amount less the debt.
    #[default]
    Carried,
    /// The next period begins full.
    Forgiven,
}

impl CalendarRefill {
    const FORGIVEN: &str = ",debt=forgiven";
}

impl FromStr for CalendarRefill {
    type Err = InvalidCalendar;

    fn from_str(text: &str) -> Result<Self, InvalidCalendar> {
        let (calendar, debt) = match text.strip_suffix(Self::FORGIVEN) {
            Some(calendar) => (calendar, Debt::Forgiven),
            None => (text, Debt::Carried),
        };
        Ok(Self { calendar: calendar.parse()?, debt })
    }
}

impl fmt::Display for CalendarRefill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let debt = if self.debt == Debt::Forgiven { Self::FORGIVEN } else { "" };
        write!(f, "{}{debt}", self.calendar)
    }
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
        Ok(Self { amount, period_ms, by_calendar: None })
    }

    /// `amount` at every boundary of a calendar.
    ///
    /// # Errors
    /// [`OutOfRange`] for a negative amount.
    pub fn by_calendar(amount: Millitokens, at: CalendarRefill) -> Result<Self, OutOfRange> {
        let evenly = Self::new(amount, at.calendar.longest_ms())?;
        Ok(Self { by_calendar: Some(at), ..evenly })
    }

    /// The boundaries of a calendar limit; `None`: the limit refills evenly, or never.
    #[must_use]
    pub const fn calendar(self) -> Option<CalendarRefill> {
        self.by_calendar
    }

    /// Millitokens per period, or at each boundary.
    #[must_use]
    pub const fn amount(self) -> Millitokens {
        self.amount
    }

    /// The millitokens per period as items have them: zero for a calendar limit, so that a producer
    /// that does not know its calendar never refills it.
    #[must_use]
    pub const fn even_amount(self) -> Millitokens {
        if self.by_calendar.is_some() { Millitokens::ZERO } else { self.amount }
    }

    /// The period in milliseconds; by a calendar, the [longest](Calendar::longest_ms) one.
    #[must_use]
    pub const fn period_ms(self) -> i64 {
        self.period_ms
    }

    /// Millitokens earned since the epoch: `A(t) = floor(t * amount / period_ms)`, or by a calendar
    /// the amount times the boundaries since then; at most 2.6e32.
    #[must_use]
    pub fn accrued(self, at: EpochMillis) -> i128 {
        let amount = i128::from(self.amount.get());
        match self.by_calendar {
            None => {
                // Whole periods apart: the rest mostly fits 64 bits, whose division is faster.
                let periods = i128::from(at.get() / self.period_ms);
                let rest = i128::from(at.get() % self.period_ms) * amount;
                let rest = match i64::try_from(rest) {
                    Ok(rest) => i128::from(rest / self.period_ms),
                    Err(_) => rest / i128::from(self.period_ms),
                };
                periods * amount + rest
            }
            Some(CalendarRefill { calendar, .. }) => {
                i128::from(calendar.boundaries(EpochMillis::MIN, at)) * amount
            }
        }
    }

    /// Millitokens earned since the last claim at `refilled_at`; zero when `now` is before it (a
    /// clock that is behind claims nothing).
    #[must_use]
    pub fn accrued_between(self, refilled_at: EpochMillis, now: EpochMillis) -> i128 {
        // Also saves two divisions for requests within one millisecond.
        if now <= refilled_at {
            return 0;
        }
        if let Some(CalendarRefill { calendar, .. }) = self.by_calendar {
            let boundaries = calendar.boundaries(refilled_at, now);
            return i128::from(boundaries) * i128::from(self.amount.get());
        }
        self.accrued(now) - self.accrued(refilled_at)
    }

    /// The debt of a stored balance that a boundary since the last claim forgives, in millitokens.
    pub(crate) fn forgiven(self, stored: i128, refilled_at: EpochMillis, now: EpochMillis) -> i128 {
        let forgives = self.by_calendar.is_some_and(|at| at.debt == Debt::Forgiven);
        let is_forgiven = forgives && stored < 0 && self.accrued_between(refilled_at, now) > 0;
        if is_forgiven { -stored } else { 0 }
    }

    /// The instant at which a balance of `stored` at `since` has earned `missing` millitokens, in
    /// epoch milliseconds; `None`: never.
    pub(crate) fn earned_at(self, stored: i128, missing: i128, since: EpochMillis) -> Option<i128> {
        let amount = i128::from(self.amount.get());
        if amount == 0 {
            return None;
        }
        if let Some(at) = self.by_calendar {
            return Some(at.after(since, self.boundaries_for(stored, missing)));
        }
        // The first t with floor(t * amount / period) >= wanted is the ceiling of
        // wanted * period / amount.
        let wanted = self.accrued(since) + missing;
        let scaled = wanted * i128::from(self.period_ms);
        Some(scaled / amount + i128::from(scaled % amount != 0))
    }

    /// The number of boundaries at which a calendar limit with a balance of `stored` earns
    /// `missing` millitokens.
    pub(crate) fn boundaries_for(self, stored: i128, missing: i128) -> i64 {
        let amount = i128::from(self.amount.get()).max(1);
        let forgives = self.by_calendar.is_some_and(|at| at.debt == Debt::Forgiven);
        let missing = if forgives { missing + stored.min(0) } else { missing };
        i64::try_from((missing + amount - 1) / amount).unwrap_or(i64::MAX)
    }
}

impl CalendarRefill {
    /// The boundary that is the `count`th after an instant, in epoch milliseconds; `i64::MAX` for
    /// one after the year 9999.
    pub(crate) fn after(self, since: EpochMillis, count: i64) -> i128 {
        let index = self.calendar.period(since).index.saturating_add(count);
        self.calendar.start_of(index).map_or(i128::from(i64::MAX), |at| at.get().into())
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

    /// A rule of a calendar limit. `amount` is the refill at every boundary, and the burst.
    ///
    /// # Errors
    /// [`OutOfRange`] for a negative amount.
    pub fn by_calendar(amount: Millitokens, at: CalendarRefill) -> Result<Self, OutOfRange> {
        Self::new(amount, Refill::by_calendar(amount, at)?)
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

    /// The value of a stored balance at `now`: the balance plus the refill since, capped by the
    /// burst. Never more than the burst; negative while a debt stands.
    #[must_use]
    pub fn effective(
        self,
        stored: Millitokens,
        refilled_at: EpochMillis,
        now: EpochMillis,
    ) -> Millitokens {
        let stored = i128::from(stored.get());
        let refilled = stored
            + self.refill.forgiven(stored, refilled_at, now)
            + self.refill.accrued_between(refilled_at, now);
        Millitokens::saturating(refilled.min(self.burst.get().into()))
    }

    /// The balance under this rule of a bucket that had `tokens` under the rule `old`.
    ///
    /// * Both are calendar limits or quotas: the consumption stays counted, so the balance moves by
    ///   the difference of the amounts.
    /// * A rate becomes a calendar limit or a quota: its balance does not tell the consumption, so
    ///   the limit is full, less its debt.
    /// * This rule is a rate: the balance stays.
    ///
    /// In each case a surplus over the new burst is lost.
    pub(crate) fn adopt(self, old: Self, tokens: i128) -> i128 {
        let (burst, old_burst) = (i128::from(self.burst.get()), i128::from(old.burst.get()));
        let kept = match (self.is_rate(), old.is_rate()) {
            (false, false) => tokens + burst - old_burst,
            (false, true) => burst + tokens.min(0),
            (true, _) => tokens,
        };
        kept.min(burst)
    }

    /// True if it refills evenly: neither a calendar limit nor a quota.
    pub(crate) fn is_rate(self) -> bool {
        !self.is_by_calendar() && self.refill.amount > Millitokens::ZERO
    }

    pub(crate) const fn is_by_calendar(self) -> bool {
        self.refill.by_calendar.is_some()
    }

    /// The exact time until the bucket has `asked`, if no other caller takes from it meanwhile. One
    /// millisecond earlier the bucket has less.
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
        let stored = i128::from(stored.get());
        match self.refill.earned_at(stored, i128::from(asked.get()) - stored, refilled_at) {
            None => Wait::NoRefill,
            Some(at) => Wait::Millis(u64::try_from(at - i128::from(now.get())).unwrap_or(u64::MAX)),
        }
    }
}

#[cfg(test)]
#[path = "accrual_tests.rs"]
mod tests;
