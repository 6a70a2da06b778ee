//! Costs and amounts of requests.

use sluicegate_core::fixtures::{at, name};
use sluicegate_core::{Amounts, Currency, EpochMillis, Millitokens, Money};
use sluicegate_prices::{PriceBook, Usage};

/// 2026-01-28T14:00:00Z.
const NOW: i64 = 1_769_608_800_000;
/// 2026-03-01T00:00:00Z.
const MARCH: i64 = 1_772_323_200_000;

fn book(entries: &str) -> PriceBook {
    let json = format!(r#"{{"currency": "EUR", "models": {{"m": [{entries}]}}}}"#);
    PriceBook::from_json(&json).unwrap()
}

fn cost(book: &PriceBook, usage: Usage, at: EpochMillis) -> String {
    book.cost("m", &usage, at).unwrap().to_string()
}

/// A million tokens of each kind, in its order.
const KINDS: [Usage; 4] = {
    let none = Usage { input: 0, output: 0, cached_input: 0, cache_write: 0 };
    let million = 1_000_000;
    [
        Usage { input: million, ..none },
        Usage { output: million, ..none },
        Usage { cached_input: million, ..none },
        Usage { cache_write: million, ..none },
    ]
};

#[test]
fn cached_tokens_have_their_own_price() {
    let book = book(
        r#"{"from": "2026-01-01", "input": "2.50", "output": 10,
            "cached_input": 1.25, "cache_write": "3.125", "per_request": "0.01"}"#,
    );
    let costs = KINDS.map(|usage| cost(&book, usage, at(NOW)));
    assert_eq!(costs, ["2.51 EUR", "10.01 EUR", "1.26 EUR", "3.135 EUR"]);
    let all = KINDS.into_iter().fold(Usage::default(), |sum, usage| sum + usage);
    assert_eq!(cost(&book, all, at(NOW)), "16.885 EUR");
}

#[test]
fn missing_cache_prices_are_the_input_price() {
    let book = book(r#"{"from": "2026-01-01", "input": "2.50", "output": "10"}"#);
    let costs = KINDS.map(|usage| cost(&book, usage, at(NOW)));
    assert_eq!(costs, ["2.50 EUR", "10.00 EUR", "2.50 EUR", "2.50 EUR"]);
    assert_eq!(cost(&book, Usage::default(), at(NOW)), "0.00 EUR");
}

#[test]
fn cache_prices_of_zero_are_not_missing() {
    let entry = r#"{"from": "2026-01-01", "input": "2.50", "output": "10", "cached_input": 0}"#;
    assert_eq!(cost(&book(entry), KINDS[2], at(NOW)), "0.00 EUR");
}

#[test]
fn prices_hold_from_the_start_of_their_day() {
    // In no order.
    let book = book(
        r#"{"from": "2026-03-01", "input": 2, "output": 0},
           {"from": "2026-01-01", "input": 3, "output": 0},
           {"from": "2027-01-01", "input": 1, "output": 0}"#,
    );
    assert_eq!(cost(&book, KINDS[0], at(NOW)), "3.00 EUR");
    assert_eq!(cost(&book, KINDS[0], at(MARCH - 1)), "3.00 EUR");
    assert_eq!(cost(&book, KINDS[0], at(MARCH)), "2.00 EUR");
    assert_eq!(cost(&book, KINDS[0], EpochMillis::MAX), "1.00 EUR");
}

#[test]
fn unknown_prices_name_the_resource_and_the_day() {
    let book = book(r#"{"from": "2026-03-01", "input": 2, "output": 0}"#);
    let error = |resource| book.cost(resource, &Usage::default(), at(NOW)).unwrap_err().to_string();
    let expected = r#"the resource "m" has no price on 2026-01-28: add one to the price list"#;
    assert_eq!(error("m"), expected);
    assert_eq!(error("other"), expected.replace("\"m\"", "\"other\""));
    assert!(book.amounts("other", &Usage::default(), at(MARCH)).is_err());
    assert!(book.prices("m", at(MARCH)).is_ok());
}

#[test]
fn costs_are_rounded_up_once() {
    let book = book(r#"{"from": "2026-01-01", "input": "0.0004", "output": "0.0003"}"#);
    // 0.4 and 0.3 nano-units a token.
    for (input, output, nanos) in [(1, 0, 1), (1, 1, 1), (1, 2, 1), (1, 3, 2), (10, 10, 7)] {
        let usage = Usage { input, output, ..Usage::default() };
        let expected = Money::from_nanos(Currency::of("eur").unwrap(), nanos);
        assert_eq!(book.cost("m", &usage, at(NOW)), Ok(expected), "{usage:?}");
    }
}

#[test]
fn sums_of_limits_have_the_price_of_their_requests() {
    let book =
        book(r#"{"from": "2026-01-01", "input": "2.50", "output": 10, "per_request": 0.01}"#);

    let cost = |limit, milli| {
        let cost = book.cost_of_limit("m", limit, milli, at(NOW)).unwrap();
        cost.map(|cost| cost.to_string())
    };
    assert_eq!(cost("input", 1_200_000).as_deref(), Some("0.003 EUR"));
    assert_eq!(cost("output", -500).as_deref(), Some("-0.000005 EUR"));
    assert_eq!(cost("rpm", 2_000).as_deref(), Some("0.02 EUR"));
    assert_eq!((cost("tpm", 1), cost("usd", 1), cost("input", i128::MAX)), (None, None, None));
    assert!(book.cost_of_limit("other", "input", 1, at(NOW)).is_err());
    assert_eq!(book.cost_of_limit("other", "tpm", 1, at(NOW)), Ok(None));
}

#[test]
fn amounts_name_every_limit_that_a_request_counts_for() {
    let book = book(r#"{"from": "2026-01-01", "input": 3, "output": 15}"#);
    let usage = Usage { input: 10, output: 7, cached_input: 200, cache_write: 3_000 };
    let milli = |amount| Millitokens::new(amount).unwrap();
    let expected = [("rpm", 1_000), ("input", 3_210_000), ("output", 7_000), ("eur", 9_735_000)];
    let expected: Amounts =
        expected.into_iter().map(|(limit, amount)| (name(limit), milli(amount))).collect();
    assert_eq!(book.amounts("m", &usage, at(NOW)), Ok(expected));
    // Amounts of zero correct an estimate to it.
    let request = [("rpm", 1_000), ("input", 0), ("output", 0), ("eur", 0)];
    let request: Amounts =
        request.into_iter().map(|(limit, amount)| (name(limit), milli(amount))).collect();
    assert_eq!(book.amounts("m", &Usage::default(), at(NOW)), Ok(request));
}

#[test]
fn amounts_beyond_the_range_are_the_largest() {
    let book = book(r#"{"from": "2026-01-01", "input": "1e15", "output": "1e15"}"#);
    let usage = Usage { input: u64::MAX, output: u64::MAX, cached_input: 9, cache_write: 9 };
    let amounts = book.amounts("m", &usage, at(NOW)).unwrap();
    for limit in ["input", "output", "eur"] {
        assert_eq!(amounts.of(&name(limit)), Millitokens::MAX, "{limit}");
    }
}
