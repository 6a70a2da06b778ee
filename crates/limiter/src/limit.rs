//! A limit as its user writes it: a name, an amount, a period and a burst.
//!
//! Constructors cannot fail, so that a list of limits is easy to read. [`Limit::check`] is the one
//! place that turns it into a [`LimitName`] and a [`Rule`], or into an error that names the limit.

use std::borrow::Cow;
use std::time::Duration;

use sluicegate_core::{
    AmountOf, Calendar, CalendarRefill, Currency, Debt, LimitName, Millitokens, NameError, Refill,
    Rule,
};
use smol_str::SmolStr;

mod spec;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);
/// The refill period of a quota. A quota earns nothing in any period; one fixed period keeps the
/// rules of two quotas equal.
const QUOTA_PERIOD_MS: i64 = 1_000;

/// One limit: the tokens per period, and the tokens that a full bucket holds.
///
/// A bucket refills steadily, not all at once when a period ends: 60 a minute is one a second. A
/// calendar limit is the exception: it is full again when a week, a month or a year begins.
///
/// A limit that is named after a currency, like `usd` or `usd.day`, counts money. Its token is a
/// millionth of the currency's unit, and its text is in units: `"usd=200/month".parse()` is a budget
/// of 200 dollars.
///
/// ```
/// use sluicegate::Limit;
///
/// let limits = [Limit::per_minute("rpm", 100), Limit::per_minute("tpm", 100_000).burst(200_000)];
/// for limit in &limits {
///     limit.check()?;
/// }
/// assert_eq!(limits[1], "tpm=100000/min,burst=200000".parse()?);
/// assert_eq!(Limit::per_month("files", 200), "files=200/month".parse()?);
/// assert!(Limit::per_minute("no spaces", 100).check().is_err());
/// # Ok::<(), sluicegate::error::InvalidLimit>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Limit {
    name: SmolStr,
    capacity: Amount,
    burst: Amount,
    refill: Refills,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Refills {
    Every { amount: Amount, period: Duration },
    ByCalendar(CalendarRefill),
    Never,
}

/// Millitokens; wide enough for any amount that a caller can pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Amount {
    milli: u128,
}

/// The reason why a limit is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidLimit {
    /// The name is not allowed.
    #[error(transparent)]
    Name(#[from] NameError),
    /// An amount is zero or too large.
    #[error("limit {limit}: {what} {amount} is out of range: give from {}", range_of(limit))]
    Amount {
        /// Name of the limit.
        limit: LimitName,
        /// Which amount: "amount", "capacity" or "burst".
        what: &'static str,
        /// The amount given, in tokens or as money.
        amount: String,
    },
    /// The period is zero, too long, or not in whole milliseconds.
    #[error(
        "limit {limit}: period {period:?} is out of range: give whole milliseconds, from 1 to 1000000000000"
    )]
    Period {
        /// Name of the limit.
        limit: LimitName,
        /// The period given.
        period: Duration,
    },
    /// A calendar limit has a burst of its own.
    #[error("limit {limit}: it is full with its amount at each boundary: leave the burst out")]
    CalendarBurst {
        /// Name of the limit.
        limit: LimitName,
    },
    /// A text cannot be read as a limit.
    #[error(
        "{spec:?} is not a limit: {problem}; write NAME=AMOUNT/PERIOD[,burst=N] like rpm=100/min,burst=200 or usd=200/month"
    )]
    Spec {
        /// The text, cut to 80 characters.
        spec: String,
        /// The reason.
        problem: Cow<'static, str>,
    },
}

impl Limit {
    /// `tokens` a second.
    #[must_use]
    pub fn per_second(name: impl AsRef<str>, tokens: u64) -> Self {
        Self::every(name, tokens, SECOND)
    }

    /// `tokens` a minute.
    #[must_use]
    pub fn per_minute(name: impl AsRef<str>, tokens: u64) -> Self {
        Self::every(name, tokens, MINUTE)
    }

    /// `tokens` an hour.
    #[must_use]
    pub fn per_hour(name: impl AsRef<str>, tokens: u64) -> Self {
        Self::every(name, tokens, HOUR)
    }

    /// `tokens` in 24 hours. For days by the calendar, see [`Limit::by_calendar`].
    #[must_use]
    pub fn per_day(name: impl AsRef<str>, tokens: u64) -> Self {
        Self::every(name, tokens, DAY)
    }

    /// `tokens` every `period`: whole milliseconds, from one to 10^12 (31 years). A full bucket
    /// holds as many, unless [`Limit::burst`] sets another number.
    #[must_use]
    pub fn every(name: impl AsRef<str>, tokens: u64, period: Duration) -> Self {
        let amount = Amount::tokens(tokens);
        let refill = Refills::Every { amount, period };
        Self { name: SmolStr::new(name), capacity: amount, burst: amount, refill }
    }

    /// `tokens` a calendar week, from Monday in UTC. For money, see [`Limit::per_month`].
    #[must_use]
    pub fn per_week(name: impl AsRef<str>, tokens: u64) -> Self {
        Self::by_calendar(name, tokens, Calendar::week())
    }

    /// `tokens` a calendar month, from the 1st in UTC. Of money a token is a millionth of the unit: for
    /// 200 dollars a month, parse `"usd=200/month"`.
    #[must_use]
    pub fn per_month(name: impl AsRef<str>, tokens: u64) -> Self {
        Self::by_calendar(name, tokens, Calendar::month())
    }

    /// `tokens` a calendar year, from January in UTC.
    #[must_use]
    pub fn per_year(name: impl AsRef<str>, tokens: u64) -> Self {
        Self::by_calendar(name, tokens, Calendar::year())
    }

    /// `tokens` in each period of a calendar: it is full again at every boundary, and refills at no
    /// other time. A debt is carried over to the next period, unless [`Limit::forgive_debt`] says
    /// otherwise.
    ///
    /// ```
    /// use sluicegate::Limit;
    ///
    /// let limit = Limit::by_calendar("files", 200, "month@15/Europe/Berlin".parse()?);
    /// assert_eq!(limit.to_string(), "files=200/month@15,tz=Europe/Berlin");
    /// # Ok::<(), sluicegate::error::InvalidCalendar>(())
    /// ```
    #[must_use]
    pub fn by_calendar(name: impl AsRef<str>, tokens: u64, calendar: Calendar) -> Self {
        let amount = Amount::tokens(tokens);
        let refill = Refills::ByCalendar(CalendarRefill { calendar, debt: Debt::Carried });
        Self { name: SmolStr::new(name), capacity: amount, burst: amount, refill }
    }

    /// Every period of a calendar limit begins full, whatever the debt before it. Limits that refill
    /// evenly stay as they are.
    #[must_use]
    pub const fn forgive_debt(mut self) -> Self {
        if let Refills::ByCalendar(at) = &mut self.refill {
            at.debt = Debt::Forgiven;
        }
        self
    }

    /// `tokens` once: a bucket that never refills. A changed amount keeps what was consumed: raised
    /// from 1,000 to 5,000, the bucket has 4,000 tokens more.
    #[must_use]
    pub fn quota(name: impl AsRef<str>, tokens: u64) -> Self {
        let amount = Amount::tokens(tokens);
        Self { name: SmolStr::new(name), capacity: amount, burst: amount, refill: Refills::Never }
    }

    /// A named rule, to the millitoken. The period of a rule that never refills is not kept.
    #[must_use]
    pub fn from_rule(name: &LimitName, rule: Rule) -> Self {
        let refill = rule.refill();
        let refill = if let Some(at) = refill.calendar() {
            Refills::ByCalendar(at)
        } else if refill.amount() == Millitokens::ZERO {
            Refills::Never
        } else {
            let period = Duration::from_millis(refill.period_ms().unsigned_abs());
            Refills::Every { amount: refill.amount().into(), period }
        };
        let (capacity, burst) = (rule.capacity().into(), rule.burst().into());
        Self { name: SmolStr::new(name.as_str()), capacity, burst, refill }
    }

    /// The tokens that a full bucket holds, more or less than it earns in a period. No request can
    /// ever take more than this at once.
    #[must_use]
    pub const fn burst(mut self, tokens: u64) -> Self {
        self.burst = Amount::tokens(tokens);
        self
    }

    /// The name as given.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The checked name and rule.
    ///
    /// # Errors
    /// [`InvalidLimit`] when the name is not allowed, an amount is zero or above 10^15 tokens, the
    /// period is not a whole number of milliseconds from 1 to 10^12, or a calendar limit has a burst
    /// of its own.
    pub fn check(&self) -> Result<(LimitName, Rule), InvalidLimit> {
        let name = LimitName::try_from(self.name.clone())?;
        let in_range = |what, amount: Amount| {
            amount.in_range().ok_or_else(|| InvalidLimit::Amount {
                limit: name.clone(),
                what,
                amount: amount.of(&self.name),
            })
        };
        let refill = match self.refill {
            Refills::Every { amount, period } => refill(in_range("amount", amount)?, period),
            Refills::ByCalendar(at) => {
                Refill::by_calendar(in_range("amount", self.capacity)?, at).ok()
            }
            Refills::Never => Refill::new(Millitokens::ZERO, QUOTA_PERIOD_MS).ok(),
        };
        if matches!(self.refill, Refills::ByCalendar(_)) && self.burst != self.capacity {
            return Err(InvalidLimit::CalendarBurst { limit: name });
        }
        let refill = refill.ok_or_else(|| InvalidLimit::Period {
            limit: name.clone(),
            period: self.refill.period(),
        })?;
        let capacity = in_range("capacity", self.capacity)?;
        let burst = in_range("burst", self.burst)?;
        let rule = Rule::with_burst(capacity, burst, refill).map_err(|_| InvalidLimit::Amount {
            limit: name.clone(),
            what: "capacity",
            amount: self.capacity.of(&self.name),
        })?;
        Ok((name, rule))
    }
}

fn refill(amount: Millitokens, period: Duration) -> Option<Refill> {
    let is_whole = period.subsec_nanos().is_multiple_of(1_000_000);
    let period_ms = i64::try_from(period.as_millis()).ok().filter(|_| is_whole)?;
    Refill::new(amount, period_ms).ok()
}

impl Refills {
    const fn period(self) -> Duration {
        match self {
            Self::Every { period, .. } => period,
            Self::ByCalendar(_) | Self::Never => Duration::ZERO,
        }
    }
}

/// The amounts that a limit can have.
fn range_of(limit: &LimitName) -> &'static str {
    match Currency::of(limit.as_str()) {
        None => "0.001 to 1000000000000000 tokens",
        Some(_) => "0.000000001 to 1000000000",
    }
}

impl Amount {
    /// The amount as text, for a limit of this name.
    fn of(self, limit: &str) -> String {
        AmountOf::new(limit, i128::try_from(self.milli).unwrap_or(i128::MAX)).plain()
    }

    const fn tokens(tokens: u64) -> Self {
        // A u64 always fits; `From` is not const.
        Self { milli: tokens as u128 * 1_000 }
    }

    /// The amount, if a rule can have it.
    fn in_range(self) -> Option<Millitokens> {
        let milli = i64::try_from(self.milli).ok().filter(|milli| *milli > 0)?;
        Millitokens::new(milli).ok()
    }
}

/// The absolute value.
impl From<Millitokens> for Amount {
    fn from(milli: Millitokens) -> Self {
        Self { milli: milli.get().unsigned_abs().into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(limit: &Limit) -> (String, [i64; 4]) {
        let (name, rule) = limit.check().unwrap();
        let refill = rule.refill();
        let figures = [rule.capacity(), rule.burst(), refill.amount()].map(Millitokens::get);
        (name.to_string(), [figures[0], figures[1], figures[2], refill.period_ms()])
    }

    #[test]
    fn limit_keeps_the_given_rule() {
        let every = Limit::every("f", 7, Duration::from_millis(250));
        for (limit, figures) in [
            (Limit::per_second("a", 5), [5_000, 5_000, 5_000, 1_000]),
            (Limit::per_minute("b", 5), [5_000, 5_000, 5_000, 60_000]),
            (Limit::per_hour("c", 5), [5_000, 5_000, 5_000, 3_600_000]),
            (Limit::per_day("d", 5).burst(9), [5_000, 9_000, 5_000, 86_400_000]),
            (Limit::per_day("e", 5).burst(1), [5_000, 1_000, 5_000, 86_400_000]),
            (every, [7_000, 7_000, 7_000, 250]),
            (Limit::quota("g", 5).burst(6), [5_000, 6_000, 0, 1_000]),
        ] {
            assert_eq!(checked(&limit), (limit.name().to_owned(), figures));
        }
    }

    #[test]
    fn impossible_limits_are_named() {
        let micros = Duration::from_micros(1_500);
        for (limit, message) in [
            (
                Limit::per_minute("rpm", 0),
                "limit rpm: amount 0 is out of range: give from 0.001 to 1000000000000000 tokens",
            ),
            (
                Limit::quota("q", u64::MAX),
                "limit q: capacity 18446744073709551615 is out of range: give from 0.001 to 1000000000000000 tokens",
            ),
            (
                Limit::per_minute("rpm", 1).burst(0),
                "limit rpm: burst 0 is out of range: give from 0.001 to 1000000000000000 tokens",
            ),
            (
                Limit::every("rpm", 1, Duration::ZERO),
                "limit rpm: period 0ns is out of range: give whole milliseconds, from 1 to 1000000000000",
            ),
            (
                Limit::every("rpm", 1, micros),
                "limit rpm: period 1.5ms is out of range: give whole milliseconds, from 1 to 1000000000000",
            ),
            (Limit::per_minute("", 1), "limit name is empty: give at least one character"),
        ] {
            assert_eq!(limit.check().unwrap_err().to_string(), message);
        }
        assert!(Limit::every("a", 1, Duration::MAX).check().is_err());
        assert!(Limit::per_minute("a", 1_000_000_000_000_000).check().is_ok());
        assert!(Limit::per_minute("a", 1_000_000_000_000_001).check().is_err());
    }

    #[test]
    fn a_rule_comes_back_to_the_millitoken() {
        let milli = |n| Millitokens::new(n).unwrap();
        let name = LimitName::new("x").unwrap();
        for (amount, period_ms) in [(1, 1), (1_234, 999), (5, Refill::MAX_PERIOD_MS)] {
            let refill = Refill::new(milli(amount), period_ms).unwrap();
            let rule = Rule::with_burst(milli(1_001), milli(77), refill).unwrap();
            assert_eq!(Limit::from_rule(&name, rule).check(), Ok((name.clone(), rule)));
        }
        let quota = Rule::new(milli(10), Refill::new(milli(0), 86_400_000).unwrap()).unwrap();
        let (_, again) = Limit::from_rule(&name, quota).check().unwrap();
        assert_eq!((again.burst(), again.refill().amount()), (milli(10), Millitokens::ZERO));
    }
}
