//! Amounts of limits on the command line: `rpm=1`, `tpm=0.5`, `tpm=-120`, `usd=0.0125`.

use std::str::FromStr;

use sluicegate::types::{LimitName, Millitokens};
use sluicegate_core::parse_amount;

/// An amount of one limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) limit: LimitName,
    /// Thousandths of a token, or billionths of money; its sign is as given.
    pub(crate) milli: i64,
}

const EXPECTED: &str = "expected LIMIT=TOKENS like tpm=500 or usd=0.25, with at most three decimals, or nine of money, and 10^15 tokens";

impl FromStr for Amount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (limit, tokens) = text.split_once('=').ok_or(EXPECTED)?;
        let limit = LimitName::new(limit).map_err(|error| error.to_string())?;
        let milli = parse_amount(limit.as_str(), tokens).and_then(|milli| milli.try_into().ok());
        let milli = milli.filter(|milli| Millitokens::new(*milli).is_ok()).ok_or(EXPECTED)?;
        Ok(Self { limit, milli })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_tokens_with_three_decimals_at_most() {
        for (text, milli) in [
            ("tpm=500", 500_000),
            ("tpm=+120", 120_000),
            ("tpm=-0.5", -500),
            ("tpm=0.001", 1),
            ("usd=0.0125", 12_500_000),
            ("tpm=1000000000000000", 1_000_000_000_000_000_000),
        ] {
            assert_eq!(text.parse::<Amount>().unwrap().milli, milli, "{text}");
        }
    }

    #[test]
    fn text_that_is_no_amount_is_refused() {
        for text in
            ["tpm", "tpm=", "tpm=x", "tpm=1.2345", "tpm=--1", "t m=1", "tpm=1000000000000001", "=1"]
        {
            assert!(text.parse::<Amount>().is_err(), "{text}");
        }
    }
}
