//! Amounts of limits on the command line: `rpm=1`, `tpm=0.5`, `tpm=-120`.

use std::str::FromStr;

use sluicegate::types::{LimitName, Millitokens};

/// An amount of one limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) limit: LimitName,
    /// Thousandths of a token; its sign is as given.
    pub(crate) milli: i64,
}

const EXPECTED: &str =
    "expected LIMIT=TOKENS like tpm=500, with at most three decimals and 10^15 tokens";

impl FromStr for Amount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (limit, tokens) = text.split_once('=').ok_or(EXPECTED)?;
        let limit = LimitName::new(limit).map_err(|error| error.to_string())?;
        let milli = milli(tokens).ok_or(EXPECTED)?;
        Ok(Self { limit, milli })
    }
}

fn milli(tokens: &str) -> Option<i64> {
    let (sign, digits) = match tokens.as_bytes().first()? {
        b'-' => (-1, &tokens[1..]),
        b'+' => (1, &tokens[1..]),
        _ => (1, tokens),
    };
    let (whole, decimals) = digits.split_once('.').unwrap_or((digits, "0"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(decimals) || decimals.len() > 3 {
        return None;
    }
    let thousandths: i64 = format!("{decimals:0<3}").parse().ok()?;
    let milli = whole.parse::<i64>().ok()?.checked_mul(1_000)?.checked_add(thousandths)?;
    Millitokens::new(sign * milli).ok().map(Millitokens::get)
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
