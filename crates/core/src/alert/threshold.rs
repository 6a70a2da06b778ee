//! Thresholds of usage windows.

use std::fmt;

use crate::excerpt::excerpt;
use crate::{AmountOf, InvalidWindowKind, LimitName, Millitokens, WindowKind, parse_amount};

/// The highest percentage: ten times the limit.
const PERCENT_MAX: u16 = 1_000;

/// An amount of usage that calls for an alert when a window reaches it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Threshold {
    /// A part of a calendar limit's amount, from 1 to 1,000 percent, in the windows of its
    /// calendar.
    Percent(u16),
    /// An amount above zero, in the windows of one kind.
    Amount(Millitokens, WindowKind),
}

/// The thresholds of one limit: at least one and at most ten, each once, sorted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thresholds(Vec<Threshold>);

/// A text that is no threshold, or a list of too many.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidThreshold {
    /// It is neither a percentage nor an amount of a window.
    #[error(
        "{0:?} is no threshold: write a percentage of a calendar limit from 1% to 1000%, or an amount above zero of a kind of window, like 500/day or 500/day/Europe/Berlin"
    )]
    Unknown(String),
    /// The kind of window is not known.
    #[error(transparent)]
    Window(#[from] InvalidWindowKind),
    /// There are too many.
    #[error("{0} thresholds for one limit: at most {max} are allowed", max = Thresholds::MAX)]
    TooMany(usize),
}

impl Threshold {
    /// Reads `80%`, or an amount of the limit with a kind of window, like `500/day`.
    ///
    /// # Errors
    /// [`InvalidThreshold`] if it is neither, or out of range.
    pub fn parse(limit: &LimitName, text: &str) -> Result<Self, InvalidThreshold> {
        let unknown = || InvalidThreshold::Unknown(excerpt(text));
        if let Some(percent) = text.strip_suffix('%') {
            let percent =
                percent.parse().ok().filter(|percent| (1..=PERCENT_MAX).contains(percent));
            return percent.map(Self::Percent).ok_or_else(unknown);
        }
        let (amount, kind) = text.split_once('/').ok_or_else(unknown)?;
        let amount = parse_amount(limit.as_str(), amount).filter(|amount| *amount > 0);
        let amount = amount.and_then(|milli| Millitokens::new(i64::try_from(milli).ok()?).ok());
        Ok(Self::Amount(amount.ok_or_else(unknown)?, kind.parse()?))
    }

    /// The threshold as [`Threshold::parse`] reads it.
    #[must_use]
    pub const fn show(self, limit: &LimitName) -> ShownThreshold<'_> {
        ShownThreshold { threshold: self, limit }
    }

    /// True if a window of this kind with this sum is at or over the threshold. `amount` is that of
    /// the calendar limit, if the windows of this kind are those of its calendar.
    #[must_use]
    pub fn is_reached(
        self,
        kind: WindowKind,
        sum_milli: i128,
        amount: Option<Millitokens>,
    ) -> bool {
        match self {
            Self::Amount(at, of) => of == kind && sum_milli >= i128::from(at.get()),
            Self::Percent(percent) => amount.is_some_and(|amount| {
                let hundredths = i128::from(amount.get()) * i128::from(percent);
                // Zero is no usage, so it is no reason for an alert.
                sum_milli > 0 && sum_milli.saturating_mul(100) >= hundredths
            }),
        }
    }
}

/// Displays a threshold.
#[derive(Debug, Clone, Copy)]
pub struct ShownThreshold<'a> {
    threshold: Threshold,
    limit: &'a LimitName,
}

impl fmt::Display for ShownThreshold<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.threshold {
            Threshold::Percent(percent) => write!(f, "{percent}%"),
            Threshold::Amount(amount, kind) => {
                let amount = AmountOf::new(self.limit.as_str(), amount.get().into()).plain();
                write!(f, "{amount}/{kind}")
            }
        }
    }
}

impl Thresholds {
    /// The most thresholds of one limit.
    pub const MAX: usize = 10;

    /// Reads a list like `80%,100%,500/day`.
    ///
    /// # Errors
    /// [`InvalidThreshold`] if an element is no threshold, or if there are more than ten.
    pub fn parse(limit: &LimitName, list: &str) -> Result<Self, InvalidThreshold> {
        let thresholds: Result<Vec<_>, _> =
            list.split(',').map(|text| Threshold::parse(limit, text.trim())).collect();
        let mut thresholds = thresholds?;
        thresholds.sort_unstable();
        thresholds.dedup();
        if thresholds.len() > Self::MAX {
            return Err(InvalidThreshold::TooMany(thresholds.len()));
        }
        Ok(Self(thresholds))
    }

    /// The thresholds as [`Thresholds::parse`] reads them.
    #[must_use]
    pub fn text(&self, limit: &LimitName) -> String {
        let shown: Vec<_> =
            self.iter().map(|threshold| threshold.show(limit).to_string()).collect();
        shown.join(",")
    }

    /// The thresholds, percentages first, lowest first.
    pub fn iter(&self) -> impl Iterator<Item = Threshold> + '_ {
        self.0.iter().copied()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::fixtures::{milli, name};
    use crate::window::tests::window_kind;
    use proptest::prelude::*;

    pub(in crate::alert) fn threshold() -> impl Strategy<Value = Threshold> {
        prop_oneof![
            (1..=PERCENT_MAX).prop_map(Threshold::Percent),
            (1..=Millitokens::MAX.get(), window_kind())
                .prop_map(|(amount, kind)| Threshold::Amount(milli(amount), kind)),
        ]
    }

    proptest! {
        #[test]
        fn thresholds_parse_back(list in proptest::collection::vec(threshold(), 1..=10)) {
            for limit in [name("tpm"), name("usd")] {
                let text: Vec<_> = list.iter().map(|t| t.show(&limit).to_string()).collect();
                let read = Thresholds::parse(&limit, &text.join(", ")).unwrap();
                prop_assert_eq!(Thresholds::parse(&limit, &read.text(&limit)), Ok(read.clone()));
                prop_assert!(list.iter().all(|threshold| read.iter().any(|t| t == *threshold)));
            }
        }

        /// A threshold that a sum reached is reached by every larger one, and not by a smaller one
        /// than its exact amount.
        #[test]
        fn a_percentage_is_reached_at_its_exact_amount(
            percent in 1..=PERCENT_MAX,
            amount in 1..=Millitokens::MAX.get(),
        ) {
            let exact = (i128::from(amount) * i128::from(percent) + 99) / 100;
            let at = |sum| {
                Threshold::Percent(percent).is_reached(WindowKind::MONTH, sum, Some(milli(amount)))
            };
            prop_assert!(at(exact) && at(exact + 1) && at(i128::MAX));
            prop_assert!(!at(exact - 1) && !at(0) && !at(i128::MIN));
        }
    }

    #[test]
    fn an_amount_is_of_its_kind_of_window_and_needs_no_limit() {
        let threshold = Threshold::parse(&name("tpm"), "1.5/day").unwrap();
        assert_eq!(threshold, Threshold::Amount(milli(1_500), WindowKind::DAY));
        assert!(threshold.is_reached(WindowKind::DAY, 1_500, None));
        assert!(!threshold.is_reached(WindowKind::DAY, 1_499, None));
        assert!(!threshold.is_reached(WindowKind::Hour, 1_500, None));
        assert!(!Threshold::Percent(80).is_reached(WindowKind::DAY, 1_500, None));
    }

    #[test]
    fn texts_that_are_no_thresholds_are_refused() {
        let limit = name("usd");
        for text in ["", "80", "0%", "1001%", "-1%", "8.5%", "0/day", "-1/day", "5/", "5/fortnight"]
        {
            assert!(Thresholds::parse(&limit, text).is_err(), "{text}");
        }
        let eleven: Vec<_> = (1..=11).map(|n| format!("{n}%")).collect();
        let error = Thresholds::parse(&limit, &eleven.join(",")).unwrap_err();
        assert_eq!(error, InvalidThreshold::TooMany(11));
        let amount = Threshold::parse(&limit, "150.5/month@15/europe/berlin").unwrap();
        assert_eq!(amount.show(&limit).to_string(), "150.5/month@15/Europe/Berlin");
    }
}
