//! Amounts in JSON: numbers in the unit of their limit. They are tokens with up to three decimals; of
//! a limit that is named after a currency, they are money with up to nine.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sluicegate::types::{AmountOf, Amounts, EpochMillis, LimitName, Millitokens};
use sluicegate_core::{Currency, parse_amount, whole_amount};
use sluicegate_prices::Usage;
use utoipa::ToSchema;

use super::problem::Problem;
use crate::state::ServerState;

/// Amounts by limit, as a request has them. A number may be in quotes.
pub(super) type Written<'a> = BTreeMap<Name<'a>, &'a RawValue>;

/// A limit's name, as a request has it.
#[derive(PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub(super) struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

/// Reads amounts.
///
/// # Errors
/// 400 for a name that no limit has, or a value that is not such a number.
pub(super) fn read(written: &Written<'_>) -> Result<Amounts, Problem> {
    let read = |limit: &str, value: &RawValue| {
        let name = LimitName::new(limit).map_err(Problem::bad)?;
        let milli = match value.get().strip_prefix('"') {
            Some(text) => parse_amount(limit, text.trim_end_matches('"')),
            None => of_number(limit, value.get()),
        };
        let milli = milli.and_then(|milli| i64::try_from(milli).ok());
        let amount = milli.and_then(|milli| Millitokens::new(milli).ok()).ok_or_else(|| {
            Problem::bad(format!(
                "the amount of {limit:?}: expected a number with at most three decimals, or nine of money, and 10^15 tokens"
            ))
        })?;
        Ok((name, amount))
    };
    written.iter().map(|(Name(limit), value)| read(limit, value)).collect()
}

/// Thousandths of a token, or billionths of the currency's unit, of a JSON number. Programs that
/// calculate with floating point send `1.2e-05` and `0.30000000000000004`: money is rounded to the
/// nearest billionth. `None`: no such number.
fn of_number(limit: &str, number: &str) -> Option<i128> {
    if let Ok(whole) = number.parse() {
        return Some(whole_amount(limit, whole));
    }
    let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let (whole, decimals) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits: i128 = format!("{whole}{decimals}").parse().ok()?;
    let is_money = Currency::of(limit).is_some();
    let unit = if is_money { 9 } else { 3 };
    let shift = exponent.parse::<i32>().ok()?.checked_add(unit)?;
    let shift = shift.checked_sub(i32::try_from(decimals.len()).ok()?)?;
    let power = 10_i128.checked_pow(shift.unsigned_abs())?;
    match shift {
        0.. => digits.checked_mul(power),
        _ if is_money => Some(digits.checked_add(digits.signum() * (power / 2))? / power),
        _ => (digits % power == 0).then(|| digits / power),
    }
}

/// The token counts of a request; the server's prices make amounts of them.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct TokenCounts {
    /// Input tokens that were neither read from the cache nor written to it.
    input: u64,
    /// Output tokens, reasoning included.
    output: u64,
    /// Input tokens that were read from the cache.
    cached_input: u64,
    /// Input tokens that were written to the cache.
    cache_write: u64,
}

impl From<TokenCounts> for Usage {
    fn from(counts: TokenCounts) -> Self {
        let TokenCounts { input, output, cached_input, cache_write } = counts;
        Self { input, output, cached_input, cache_write }
    }
}

/// The amounts of a request on a resource by its token counts.
///
/// # Errors
/// 400 without prices, or without a price of the resource.
pub(super) fn priced(
    state: &ServerState,
    resource: &str,
    usage: &Usage,
    at: EpochMillis,
) -> Result<Amounts, Problem> {
    let reloadable = state.reloadable();
    let prices = reloadable.prices.as_ref().ok_or_else(|| {
        Problem::bad("the server has no prices: name amounts, or add prices to its configuration")
    })?;
    prices.amounts(resource, usage, at).map_err(Problem::bad)
}

/// A JSON number with all of its decimals.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Number {
    Whole(i64),
    Exact(Box<RawValue>),
}

/// An amount of a limit as a JSON number.
pub(super) fn number(limit: &str, milli: impl Into<i128>) -> Number {
    let (milli, unit) = (milli.into(), whole_amount(limit, 1));
    match i64::try_from(milli / unit) {
        Ok(whole) if i128::from(whole) * unit == milli => Number::Whole(whole),
        _ => {
            let text = RawValue::from_string(AmountOf::new(limit, milli).plain());
            Number::Exact(text.unwrap_or_else(|_| RawValue::NULL.to_owned()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amounts(json: &str) -> Option<BTreeMap<String, i64>> {
        let read = read(&serde_json::from_str(json).unwrap()).ok()?;
        Some(read.iter().map(|(limit, amount)| (limit.to_string(), amount.get())).collect())
    }

    #[test]
    fn amounts_are_exact_in_both_directions() {
        let read =
            amounts(r#"{"rpm": 1, "tpm": -0.5, "usd": 0.000000001, "eur": "12.5"}"#).unwrap();
        assert_eq!(read["rpm"], 1_000);
        assert_eq!(read["tpm"], -500);
        assert_eq!(read["usd"], 1);
        assert_eq!(read["eur"], 12_500_000_000);
        for (limit, milli, text) in
            [("rpm", 99_000, "99"), ("rpm", -1, "-0.001"), ("usd", 4_250_000_000_i64, "4.25")]
        {
            assert_eq!(serde_json::to_string(&number(limit, milli)).unwrap(), text);
        }
    }

    #[test]
    fn numbers_of_floating_point_are_read() {
        let read = |limit: &str, value: &str| {
            amounts(&format!("{{\"{limit}\": {value}}}")).map(|read| read[limit])
        };
        for (value, nanos) in [
            ("1.2e-05", 12_000),
            ("5E-7", 500),
            ("-2.5e-9", -3),
            ("0.30000000000000004", 300_000_000),
            ("0.1234567894", 123_456_789),
            ("1e-20", 0),
        ] {
            assert_eq!(read("usd", value), Some(nanos), "{value}");
        }
        let largest = format!("0.{}", i128::MAX);
        assert_eq!(read("usd", &largest), None, "it cannot be rounded");
        assert_eq!(read("tpm", "1.5e3"), Some(1_500_000));
        assert_eq!(read("tpm", "1e-3"), Some(1));
    }

    #[test]
    fn other_values_are_refused() {
        for value in
            ["1e-4", "1e400", "null", "true", "[1]", "{}", "\"\"", "0.0001", "99999999999999999999"]
        {
            assert_eq!(amounts(&format!(r#"{{"rpm": {value}}}"#)), None, "{value}");
        }
    }
}
