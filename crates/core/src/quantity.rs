//! Amounts and instants, with ranges chosen so that the arithmetic on them cannot overflow.
//!
//! The largest intermediate value is `t * ra` of the accrual: 2.6e14 ms times 1e18 millitokens is
//! 2.6e32, far inside the 1.7e38 of an `i128`.

use chrono::{DateTime, SecondsFormat};

/// A number outside the range that its type states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{what} {value} is out of range: it must lie between {min} and {max}")]
pub struct OutOfRange {
    /// The name of the quantity.
    pub what: &'static str,
    /// The value given.
    pub value: i128,
    /// Smallest value allowed.
    pub min: i128,
    /// Largest value allowed.
    pub max: i128,
}

pub(crate) fn in_range(
    what: &'static str,
    value: i64,
    min: i64,
    max: i64,
) -> Result<i64, OutOfRange> {
    if (min..=max).contains(&value) {
        return Ok(value);
    }
    Err(OutOfRange { what, value: value.into(), min: min.into(), max: max.into() })
}

/// An amount in thousandths of a token, from -10^18 to 10^18 (a quadrillion tokens).
///
/// The difference of any two amounts fits an `i64`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Millitokens(i64);

impl Millitokens {
    /// Nothing.
    pub const ZERO: Self = Self(0);
    /// The largest amount, 10^18 millitokens.
    pub const MAX: Self = Self(1_000_000_000_000_000_000);
    /// The smallest amount, -10^18 millitokens.
    pub const MIN: Self = Self(-Self::MAX.0);

    /// Takes an amount of millitokens.
    ///
    /// # Errors
    /// [`OutOfRange`] outside -10^18..=10^18.
    pub fn new(milli: i64) -> Result<Self, OutOfRange> {
        in_range("amount of millitokens", milli, Self::MIN.0, Self::MAX.0).map(Self)
    }

    /// Takes an amount of whole tokens.
    ///
    /// # Errors
    /// [`OutOfRange`] outside -10^15..=10^15.
    pub fn from_tokens(tokens: i64) -> Result<Self, OutOfRange> {
        const MAX: i64 = Millitokens::MAX.0 / 1_000;
        in_range("amount of tokens", tokens, -MAX, MAX).map(|tokens| Self(tokens * 1_000))
    }

    /// The amount in millitokens.
    #[must_use]
    pub const fn get(self) -> i64 {
        self.0
    }

    /// The amount of millitokens in the range that is nearest to this.
    #[must_use]
    pub fn saturating(milli: i128) -> Self {
        let clamped = milli.clamp(Self::MIN.0.into(), Self::MAX.0.into());
        Self(i64::try_from(clamped).unwrap_or(Self::MAX.0))
    }
}

/// A running sum of amounts in thousandths of a token, from -10^33 to 10^33.
///
/// A counter moves by one amount a write, so it takes 10^15 writes of the largest amount to leave
/// the range. The summed changes of 10,000 records, and the sum of any two counters, fit the 38
/// digits of a DynamoDB number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MillitokenSum(i128);

impl MillitokenSum {
    /// The largest sum, 10^33 millitokens.
    pub const MAX: Self = Self(10_i128.pow(33));
    /// The smallest sum, -10^33 millitokens.
    pub const MIN: Self = Self(-Self::MAX.0);

    /// Takes a sum of millitokens.
    ///
    /// # Errors
    /// [`OutOfRange`] outside -10^33..=10^33.
    pub fn new(milli: i128) -> Result<Self, OutOfRange> {
        let (min, max) = (Self::MIN.0, Self::MAX.0);
        if (min..=max).contains(&milli) {
            return Ok(Self(milli));
        }
        Err(OutOfRange { what: "sum of millitokens", value: milli, min, max })
    }

    /// The sum in millitokens.
    #[must_use]
    pub const fn get(self) -> i128 {
        self.0
    }

    /// The sum with one more amount, in millitokens; the nearest one in the range.
    #[must_use]
    pub fn plus(self, milli: i64) -> Self {
        Self((self.0 + i128::from(milli)).clamp(Self::MIN.0, Self::MAX.0))
    }
}

impl From<Millitokens> for MillitokenSum {
    fn from(amount: Millitokens) -> Self {
        Self(amount.0.into())
    }
}

impl From<Millitokens> for i128 {
    fn from(amount: Millitokens) -> Self {
        amount.0.into()
    }
}

impl From<MillitokenSum> for i128 {
    fn from(sum: MillitokenSum) -> Self {
        sum.0
    }
}

impl std::fmt::Display for MillitokenSum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::fmt::Display for Millitokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// An instant in milliseconds since 1970-01-01T00:00:00Z, from 0 to the end of the year 9999.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EpochMillis(i64);

impl EpochMillis {
    /// 1970-01-01T00:00:00Z.
    pub const MIN: Self = Self(0);
    /// 9999-12-31T23:59:59.999Z.
    pub const MAX: Self = Self(253_402_300_799_999);

    /// Takes milliseconds since the epoch.
    ///
    /// # Errors
    /// [`OutOfRange`] before 1970 or after 9999.
    pub fn new(millis: i64) -> Result<Self, OutOfRange> {
        in_range("instant in epoch milliseconds", millis, 0, Self::MAX.0).map(Self)
    }

    /// Milliseconds since the epoch.
    #[must_use]
    pub const fn get(self) -> i64 {
        self.0
    }

    /// The instant as people read it, like `2026-01-28T14:00:00.123Z`.
    #[must_use]
    pub fn rfc3339(self) -> String {
        // Every instant of the range has a date, so the default is never taken.
        let at = DateTime::from_timestamp_millis(self.0).unwrap_or_default();
        at.to_rfc3339_opts(SecondsFormat::Millis, true)
    }
}

/// Seconds since the epoch as people read them, like `2026-01-28T14:00:00Z`; the epoch itself for
/// seconds that have no date.
#[must_use]
pub fn rfc3339_s(seconds: i64) -> String {
    let at = DateTime::from_timestamp(seconds, 0).unwrap_or_default();
    at.to_rfc3339_opts(SecondsFormat::Secs, true)
}

impl std::fmt::Display for EpochMillis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_hold_at_both_ends() {
        assert!(Millitokens::new(Millitokens::MAX.get()).is_ok());
        assert!(Millitokens::new(Millitokens::MAX.get() + 1).is_err());
        assert!(Millitokens::new(Millitokens::MIN.get() - 1).is_err());
        assert_eq!(Millitokens::from_tokens(1_000_000_000_000_000), Ok(Millitokens::MAX));
        assert!(Millitokens::from_tokens(i64::MAX).is_err());
        let most = MillitokenSum::MAX;
        assert_eq!(MillitokenSum::new(most.get()), Ok(most));
        assert!(MillitokenSum::new(most.get() + 1).is_err());
        assert!(MillitokenSum::new(-most.get() - 1).is_err());
        assert_eq!((most.plus(i64::MAX), most.plus(-1).get()), (most, most.get() - 1));
        // Ten thousand records, each from one end of the range to the other.
        assert!(2 * most.get() * 10_000 < 10_i128.pow(38));
        assert!(EpochMillis::new(-1).is_err());
        assert_eq!(EpochMillis::new(253_402_300_799_999), Ok(EpochMillis::MAX));
        assert!(EpochMillis::new(253_402_300_800_000).is_err());
        assert_eq!(EpochMillis::MIN.rfc3339(), "1970-01-01T00:00:00.000Z");
        assert_eq!(EpochMillis::MAX.rfc3339(), "9999-12-31T23:59:59.999Z");
    }

    #[test]
    fn out_of_range_names_the_bounds() {
        let message = EpochMillis::new(-5).unwrap_err().to_string();
        assert_eq!(
            message,
            "instant in epoch milliseconds -5 is out of range: it must lie between 0 and 253402300799999"
        );
    }
}
