//! Money: exact amounts of a currency, and the limits that count it.
//!
//! A limit that is named after a currency (`usd`, or `usd.day` for a second one) counts money. Its
//! token is a millionth of the currency's unit, so that a millitoken is a billionth. Its arithmetic
//! is that of every other limit. People read and write its amounts in the currency's unit.

use std::fmt;

use crate::LimitName;

/// The currencies that name limits, by their ISO 4217 codes: those that are traded much. Codes that
/// name other things, as in `all=5/min` or `php=5/min`, are not among them. They are sorted.
const CODES: [&str; 39] = [
    "AED", "ARS", "AUD", "BDT", "BGN", "BRL", "CAD", "CHF", "CLP", "CNY", "CZK", "DKK", "EGP",
    "EUR", "GBP", "HKD", "HUF", "IDR", "ILS", "INR", "JPY", "KRW", "MXN", "MYR", "NGN", "NOK",
    "NZD", "PKR", "PLN", "QAR", "SAR", "SEK", "SGD", "THB", "TWD", "UAH", "USD", "VND", "ZAR",
];
/// The same codes as numbers: a search compares these faster.
const CODE_NUMBERS: [u32; CODES.len()] = {
    let mut numbers = [0; CODES.len()];
    let mut n = 0;
    while n < CODES.len() {
        numbers[n] = number_of(CODES[n].as_bytes());
        n += 1;
    }
    numbers
};

const fn number_of(code: &[u8]) -> u32 {
    u32::from_be_bytes([0, code[0], code[1], code[2]])
}

/// Decimals of money down to a billionth, and of tokens down to a thousandth.
const MONEY_DECIMALS: usize = 9;
const TOKEN_DECIMALS: usize = 3;

/// A currency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Currency(&'static str);

impl Currency {
    /// The currency that a limit of this name counts; `None`: it counts tokens.
    #[must_use]
    pub fn of(limit: &str) -> Option<Self> {
        let word = limit.split_once('.').map_or(limit, |(word, _)| word);
        let word = <[u8; 3]>::try_from(word.as_bytes()).ok()?;
        if !word.iter().all(u8::is_ascii_lowercase) {
            return None;
        }
        let upper = word.map(|byte| byte.to_ascii_uppercase());
        CODE_NUMBERS.binary_search(&number_of(&upper)).ok().map(|n| Self(CODES[n]))
    }

    /// The first word of a limit's name in lower case, if that is a currency, and the name does not
    /// have it so. Such a limit, `USD` for example, counts tokens; its author meant money.
    #[must_use]
    pub fn misspelled(limit: &str) -> Option<String> {
        let word = limit.split('.').next().unwrap_or_default();
        let lower = word.to_ascii_lowercase();
        (lower != word && Self::of(&lower).is_some()).then_some(lower)
    }

    /// Its ISO 4217 code: `USD`.
    #[must_use]
    pub const fn code(self) -> &'static str {
        self.0
    }
}

impl fmt::Display for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// An amount of money, to the billionth of the currency's unit.
///
/// ```
/// use sluicegate_core::{Currency, Money};
///
/// let usd = Currency::of("usd").unwrap();
/// let price = Money::parse("0.000125", usd).unwrap();
/// assert_eq!((price.nanos(), price.to_string()), (125_000, "0.000125 USD".to_owned()));
/// assert_eq!(Money::parse("200", usd).unwrap().to_string(), "200.00 USD");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Money {
    currency: Currency,
    nanos: i128,
}

impl Money {
    /// An amount in billionths of the currency's unit.
    #[must_use]
    pub const fn from_nanos(currency: Currency, nanos: i128) -> Self {
        Self { currency, nanos }
    }

    /// Reads an amount like `200`, `0.25` or `-3.5`, with up to nine decimals; `None` if the text
    /// is no such amount.
    #[must_use]
    pub fn parse(text: &str, currency: Currency) -> Option<Self> {
        parse(text, MONEY_DECIMALS).map(|nanos| Self { currency, nanos })
    }

    /// The currency.
    #[must_use]
    pub const fn currency(self) -> Currency {
        self.currency
    }

    /// Billionths of the currency's unit.
    #[must_use]
    pub const fn nanos(self) -> i128 {
        self.nanos
    }
}

/// Shows at least two decimals, and more only if they are needed.
impl fmt::Display for Money {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(f, self.nanos, MONEY_DECIMALS, 2)?;
        write!(f, " {}", self.currency)
    }
}

impl LimitName {
    /// An amount of this limit as people read it: `1.5` for 1,500 millitokens, `1.50 USD` for
    /// 1,500,000,000 millitokens of `usd`.
    #[must_use]
    pub fn show(&self, milli: impl Into<i128>) -> AmountOf<'_> {
        AmountOf { limit: self.as_str(), milli: milli.into() }
    }
}

/// The amount that a person writes for a limit of this name, in millitokens: tokens with up to
/// three decimals, money with up to nine. `None` if the text is not such a number.
#[must_use]
pub fn parse_amount(limit: &str, text: &str) -> Option<i128> {
    parse(text, decimals(limit))
}

/// This many whole tokens of a limit of this name, or whole units of its currency, in millitokens.
#[must_use]
pub fn whole_amount(limit: &str, units: i64) -> i128 {
    (0..decimals(limit)).fold(units.into(), |amount, _| amount * 10)
}

/// Displays an amount of a limit.
#[derive(Debug, Clone, Copy)]
pub struct AmountOf<'a> {
    limit: &'a str,
    milli: i128,
}

impl<'a> AmountOf<'a> {
    /// An amount of the limit of this name, in millitokens.
    #[must_use]
    pub const fn new(limit: &'a str, milli: i128) -> Self {
        Self { limit, milli }
    }

    /// The amount as [`parse_amount`] reads it: without the currency and without trailing zeros.
    #[must_use]
    pub fn plain(self) -> String {
        struct Plain<'a>(AmountOf<'a>);
        impl fmt::Display for Plain<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write(f, self.0.milli, decimals(self.0.limit), 0)
            }
        }
        Plain(self).to_string()
    }
}

impl fmt::Display for AmountOf<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Currency::of(self.limit) {
            Some(currency) => Money::from_nanos(currency, self.milli).fmt(f),
            None => write(f, self.milli, TOKEN_DECIMALS, 0),
        }
    }
}

fn decimals(limit: &str) -> usize {
    if Currency::of(limit).is_some() { MONEY_DECIMALS } else { TOKEN_DECIMALS }
}

/// Reads a number in units of its last decimal.
fn parse(text: &str, decimals: usize) -> Option<i128> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let (whole, rest) = digits.split_once('.').unwrap_or((digits, "0"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    // No amount of a limit has more digits.
    if !is_number(whole) || !is_number(rest) || rest.len() > decimals || whole.len() > 20 {
        return None;
    }
    let digits = whole.bytes().chain(rest.bytes().chain(std::iter::repeat(b'0')).take(decimals));
    Some(sign * digits.fold(0, |number, digit| number * 10 + i128::from(digit - b'0')))
}

/// Writes a number in units of its last decimal, with at least `least` decimals.
fn write(f: &mut fmt::Formatter<'_>, number: i128, decimals: usize, least: usize) -> fmt::Result {
    let sign = if number < 0 { "-" } else { "" };
    let digits = format!("{:0>width$}", number.unsigned_abs(), width = decimals + 1);
    let (whole, rest) = digits.split_at(digits.len() - decimals);
    let needed = rest.trim_end_matches('0').len().max(least);
    let point = if needed > 0 { "." } else { "" };
    write!(f, "{sign}{whole}{point}{}", &rest[..needed])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fixtures::name;

    #[test]
    fn limits_that_are_named_after_a_currency_count_money() {
        for (limit, code) in [
            ("usd", Some("USD")),
            ("usd.day", Some("USD")),
            ("jpy", Some("JPY")),
            ("USD", None),
            ("usd-day", None),
            ("usdt", None),
            ("all", None),
            ("rpm.usd", None),
            ("", None),
        ] {
            assert_eq!(Currency::of(limit).map(Currency::code), code, "{limit}");
        }
    }

    #[test]
    fn a_limit_of_money_in_upper_case_is_misspelled() {
        for (limit, lower) in [("USD", Some("usd")), ("Eur.team", Some("eur"))] {
            assert_eq!(Currency::misspelled(limit).as_deref(), lower);
        }
        for limit in ["usd", "usd.TEAM", "RPM", ""] {
            assert_eq!(Currency::misspelled(limit), None, "{limit}");
        }
    }

    #[test]
    fn every_currency_is_found() {
        for code in CODES {
            assert_eq!(Currency::of(&code.to_ascii_lowercase()), Some(Currency(code)));
        }
    }

    #[test]
    fn amounts_are_shown_as_people_read_them() {
        for (limit, milli, shown, plain) in [
            ("rpm", 1_240_000, "1240", "1240"),
            ("rpm", -3_025, "-3.025", "-3.025"),
            ("rpm", 10, "0.01", "0.01"),
            ("usd", 200_000_000_000, "200.00 USD", "200"),
            ("usd", 1, "0.000000001 USD", "0.000000001"),
            ("usd.day", -3_500_000_000, "-3.50 USD", "-3.5"),
            ("eur", 0, "0.00 EUR", "0"),
        ] {
            let amount = AmountOf::new(limit, milli);
            assert_eq!((amount.to_string(), amount.plain()), (shown.into(), plain.into()));
            assert_eq!(name(limit).show(milli).to_string(), shown);
        }
    }

    #[test]
    fn texts_that_are_no_amounts_are_none() {
        for text in ["", ".", "1.", ".5", "1e3", "0x1", "1,5", "--1", "1.0000000001", "$5", "5 USD"]
        {
            assert_eq!(parse_amount("usd", text), None, "{text}");
        }
        assert_eq!(parse_amount("usd", "0.0001"), Some(100_000));
        assert_eq!(parse_amount("rpm", "0.0001"), None);
        assert_eq!(parse_amount("rpm", "+7"), Some(7_000));
        assert_eq!(parse_amount("rpm", &"9".repeat(21)), None);
    }

    proptest! {
        #[test]
        fn amounts_parse_back(milli in -1_000_000_000_000_000_000_i128..=1_000_000_000_000_000_000) {
            for limit in ["rpm", "usd"] {
                let plain = AmountOf::new(limit, milli).plain();
                prop_assert_eq!(parse_amount(limit, &plain), Some(milli));
            }
        }

        #[test]
        fn whole_amounts_are_as_their_texts(units: i64) {
            for limit in ["rpm", "usd"] {
                let text = units.to_string();
                prop_assert_eq!(Some(whole_amount(limit, units)), parse_amount(limit, &text));
            }
        }
    }
}
