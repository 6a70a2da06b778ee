//! Exact prices: decimals from text to integers and back.
//!
//! A price is an integer of attos (10^-18) of a nano-unit, 10^-27 of the currency's unit. Price
//! lists carry the noise of binary fractions (`5.0000000000000004e-08`), which attos of the unit
//! would not hold.

use std::fmt;

use serde_json::value::RawValue;

/// Decimals of a price.
const DECIMALS: i32 = 27;
const ATTOS_PER_NANO: i128 = 10_i128.pow(18);
const ATTOS_PER_UNIT: i128 = 10_i128.pow(27);
/// A billion of the currency's unit. The cost of 2^64-1 tokens of each kind then fits an `i128`.
const MAX: i128 = 1_000_000_000 * ATTOS_PER_UNIT;

/// The price of one token or one request, in the currency's unit: from 0 to a billion, with 27
/// decimals.
///
/// It is displayed as a plain decimal: `0.0000025`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Price(i128);

impl Price {
    /// Reads a JSON number, or a JSON string with one, times 10^`exponent`. `None`: it is not a
    /// number, or not in the range of a price.
    pub(crate) fn of_json(json: &RawValue, exponent: i32) -> Option<Self> {
        let text = json.get();
        let quoted = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
        parse(quoted.unwrap_or(text), exponent + DECIMALS).map(Self)
    }
}

/// The number times 10^`exponent`, if that is an integer from 0 to [`MAX`].
fn parse(text: &str, exponent: i32) -> Option<i128> {
    let (number, power) = match text.split_once(['e', 'E']) {
        Some((number, power)) => (number, power.parse::<i32>().ok()?),
        None => (text, 0),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(fraction) {
        return None;
    }
    let digits = format!("{whole}{fraction}");
    let significant = digits.trim_end_matches('0');
    if significant.is_empty() {
        return Some(0);
    }
    let zeros = i32::try_from(digits.len() - significant.len()).ok()?;
    let decimals = i32::try_from(fraction.len()).ok()?;
    // Negative: the number has more decimals than a price.
    let power = power.checked_add(exponent)?.checked_add(zeros)?.checked_sub(decimals)?;
    let scale = 10_i128.checked_pow(u32::try_from(power).ok()?)?;
    let price = significant.parse::<i128>().ok()?.checked_mul(scale)?;
    (price <= MAX).then_some(price)
}

/// The sum of counts times prices, in nano-units, rounded up once.
pub(crate) fn sum_to_nanos<const N: usize>(parts: [(u64, Price); N]) -> i128 {
    // Whole nanos and the rest apart: neither sum exceeds N * 2^64 * 10^18, with N below 9.
    const { assert!(N < 9) };
    let (mut nanos, mut attos) = (0, 0);
    for (count, Price(price)) in parts {
        nanos += i128::from(count) * (price / ATTOS_PER_NANO);
        attos += i128::from(count) * (price % ATTOS_PER_NANO);
    }
    nanos + (attos + ATTOS_PER_NANO - 1) / ATTOS_PER_NANO
}

/// The price of so many thousandths of a token, in nano-units, rounded up once. `None`: there are
/// more than 10^20 of them.
pub(crate) fn thousandths_to_nanos(milli: i128, Price(price): Price) -> Option<i128> {
    let nanos = milli.checked_mul(price / ATTOS_PER_NANO)?;
    let attos = milli.checked_mul(price % ATTOS_PER_NANO)?;
    let (carried, rest) = (attos.div_euclid(ATTOS_PER_NANO), attos.rem_euclid(ATTOS_PER_NANO));
    let milli_nanos = nanos.checked_add(carried)?;
    let (whole, part) = (milli_nanos.div_euclid(1_000), milli_nanos.rem_euclid(1_000));
    Some(whole + i128::from(part > 0 || rest > 0))
}

impl fmt::Display for Price {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fraction = format!("{:027}", self.0 % ATTOS_PER_UNIT);
        let fraction = fraction.trim_end_matches('0');
        let point = if fraction.is_empty() { "" } else { "." };
        write!(f, "{}{point}{fraction}", self.0 / ATTOS_PER_UNIT)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn price(json: &str) -> Option<Price> {
        Price::of_json(serde_json::from_str(json).unwrap(), 0)
    }

    #[test]
    fn prices_are_read_and_shown_exactly() {
        for (json, shown) in [
            ("2.5e-06", "0.0000025"),
            ("5.0000000000000004e-08", "0.000000050000000000000004"),
            (r#""2.50""#, "2.5"),
            ("12E+1", "120"),
            ("0.0", "0"),
            ("0e5", "0"),
            ("100e-2", "1"),
            ("1000000000", "1000000000"),
            ("1e-27", "0.000000000000000000000000001"),
            ("10.0000000000000000000000000000000000e-28", "0.000000000000000000000000001"),
        ] {
            assert_eq!(price(json).unwrap().to_string(), shown, "{json}");
        }
    }

    #[test]
    fn numbers_that_are_no_prices_are_none() {
        for json in [
            "-1",
            "1e-28",
            "1000000000.1",
            "1e10",
            "1e99999999999",
            "1e2147483647",
            "1e-2147483648",
            "null",
            "true",
            "[1]",
            r#""""#,
            r#"".5""#,
            r#""1.""#,
            r#""1,5""#,
            r#""+1""#,
            r#""$1""#,
            r#""1e""#,
            r#"" 1""#,
            r#""0x1""#,
            r#""\u0031""#,
        ] {
            assert_eq!(price(json), None, "{json}");
        }
    }

    #[test]
    fn sums_of_the_most_tokens_at_the_highest_price_fit() {
        let sum = sum_to_nanos([(u64::MAX, Price(MAX)); 5]);
        assert_eq!(sum, 5 * i128::from(u64::MAX) * 1_000_000_000_000_000_000);
        let sum = sum_to_nanos([(u64::MAX, Price(MAX - 1)); 5]);
        // 5 * (2^64-1) attos less are 92.2 nanos less.
        assert_eq!(sum, 5 * i128::from(u64::MAX) * 1_000_000_000_000_000_000 - 92);
    }

    #[test]
    fn sums_are_rounded_up_once() {
        let third = price("0.3e-9").unwrap();
        assert_eq!(sum_to_nanos([(1, third), (1, third), (1, third)]), 1);
        assert_eq!(sum_to_nanos([(3, third), (1, third)]), 2);
        assert_eq!(sum_to_nanos([(10, third)]), 3);
        assert_eq!(sum_to_nanos([(0, third)]), 0);
    }

    #[test]
    fn thousandths_are_rounded_up_once_and_may_be_negative() {
        let of = |milli, json| thousandths_to_nanos(milli, price(json).unwrap());
        assert_eq!(of(1_500, "0.000000003"), Some(5));
        assert_eq!(of(-1_500, "0.000000003"), Some(-4));
        assert_eq!(of(1, "1e-27"), Some(1));
        assert_eq!(of(-1, "1e-27"), Some(0));
        assert_eq!(of(0, "5"), Some(0));
        assert_eq!(of(1_000_000, "2.5e-06"), Some(2_500_000));
        assert_eq!(of(i128::MAX, "2.5e-06"), None);
    }

    proptest! {
        #[test]
        fn whole_tokens_cost_what_a_request_of_them_costs(
            count in 0..=1_000_000_000_000_u64,
            attos in 0..=10_i128.pow(25),
        ) {
            let of_request = sum_to_nanos([(count, Price(attos))]);
            let milli = i128::from(count) * 1_000;
            prop_assert_eq!(thousandths_to_nanos(milli, Price(attos)), Some(of_request));
        }

        #[test]
        fn prices_are_read_back_from_their_text(attos in 0..=MAX, zeros in 0_usize..40) {
            let shown = Price(attos).to_string();
            prop_assert_eq!(parse(&shown, DECIMALS), Some(attos));
            let digits = format!("{attos}{}", "0".repeat(zeros));
            prop_assert_eq!(parse(&format!("{digits}e-{}", 27 + zeros), DECIMALS), Some(attos));
            let point = digits.len() / 2;
            let (whole, fraction) = digits.split_at(point);
            let exponent = i32::try_from(fraction.len()).unwrap() - i32::try_from(zeros).unwrap();
            let text = format!("0{whole}.{fraction}E{exponent}");
            prop_assert_eq!(parse(&text, 0), Some(attos));
        }
    }
}
