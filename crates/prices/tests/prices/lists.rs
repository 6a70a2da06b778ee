//! Price lists in both formats, and errors that name the model and the field.

use sluicegate_core::fixtures::at;
use sluicegate_prices::{PriceBook, PriceError};

/// 2026-01-28T14:00:00Z.
const NOW: i64 = 1_769_608_800_000;

fn error(json: &str) -> String {
    PriceBook::from_json(json).unwrap_err().to_string()
}

/// The error of a list with this entry for a model, and another one before it.
fn error_of_entry(entry: &str) -> String {
    error(&format!(
        r#"{{"currency": "USD", "models": {{
            "fine": [{{"from": "2026-01-01", "input": 1, "output": 2}}], "gpt-4o": {entry}}}}}"#
    ))
}

#[test]
fn lists_may_have_models_without_entries() {
    let book = PriceBook::from_json(r#"{"models": {"m": []}, "currency": "JPY"}"#).unwrap();
    assert_eq!((book.currency().code(), book.resources().count()), ("JPY", 1));
    assert!(book.prices("m", at(NOW)).is_err());
}

#[test]
fn errors_of_an_entry_name_the_model_and_the_field() {
    for (entry, parts) in [
        (
            r#"[{"from": "2026-01-01", "input": 1, "output": 2, "inptu": 3}]"#,
            "unknown field `inptu`",
        ),
        (r#"[{"from": "2026-01-01", "input": 1}]"#, "missing field `output`"),
        (r#"[{"input": 1, "output": 2}]"#, "missing field `from`"),
        (
            r#"[{"from": "2026-01-01", "input": 1, "input": 1, "output": 2}]"#,
            "duplicate field `input`",
        ),
        (r#"{"from": "2026-01-01", "input": 1, "output": 2}"#, "expected a sequence"),
        (r#"[{"from": "2026-01-01", "input": "two", "output": 2}]"#, r#""input" of the model"#),
        (
            r#"[{"from": "2026-01-01", "input": 1, "output": -2}]"#,
            r#""output" of the model "gpt-4o" is -2: "#,
        ),
        (r#"[{"from": "2026-01-01", "input": 1, "output": null}]"#, r#""output" of the model"#),
        (
            r#"[{"from": "2026-01-01", "input": 1, "output": 2, "per_request": "1e-28"}]"#,
            r#""per_request" of the model"#,
        ),
        (
            r#"[{"from": "2026-01-01", "input": 1, "output": 2, "cached_input": "1e-22"}]"#,
            r#""cached_input" of the model"#,
        ),
        (
            r#"[{"from": "2026-01-01", "input": 1, "output": 2, "cache_write": []}]"#,
            r#""cache_write" of the model"#,
        ),
        (r#"[{"from": "2026-1-1", "input": 1, "output": 2}]"#, r#""from" of the model"#),
        (r#"[{"from": "2026-02-30", "input": 1, "output": 2}]"#, r#""from" of the model"#),
        (
            r#"[{"from": "2026-01-01", "input": 1, "output": 2},
                {"from": "2026-01-01", "input": 1, "output": 2}]"#,
            "has two entries",
        ),
        (r#"[], "fine": []"#, r#"the model "fine" has two entries"#),
    ] {
        let error = error_of_entry(entry);
        assert!(error.contains(parts), "{entry}: {error}");
        assert!(error.contains("\"gpt-4o\"") || error.contains("\"fine\""), "{error}");
    }
}

#[test]
fn errors_of_a_list_name_the_reason() {
    for (json, part) in [
        ("", "cannot be read: EOF"),
        (r#"{"currency": "USD", "modles": {}}"#, "unknown field `modles`"),
        (r#"{"currency": "USD"}"#, "missing field `models`"),
        (r#"{"currency": "USD", "models": []}"#, "an object with an entry for each model"),
        (r#"{"currency": "usd", "models": {}}"#, r#"currency "usd" is unknown"#),
        (r#"{"currency": "USD.day", "models": {}}"#, r#"currency "USD.day" is unknown"#),
        (r#"{"currency": "", "models": {}}"#, r#"currency "" is unknown"#),
    ] {
        let error = error(json);
        assert!(error.contains(part), "{json}: {error}");
    }
}

#[test]
fn litellm_models_are_skipped_unless_they_charge_for_tokens() {
    let book = PriceBook::from_litellm(
        r#"{
            "sample_spec": {"input_cost_per_token": 0.0, "output_cost_per_token": "a price"},
            "chat": {"input_cost_per_token": 2.5e-06, "output_cost_per_token": "1e-05",
                     "cache_read_input_token_cost": 1.25e-06, "input_cost_per_request": 0.005,
                     "input_cost_per_token_above_200k_tokens": "ignored", "mode": "chat"},
            "embedding": {"mode": "embedding", "input_cost_per_token": 2e-08},
            "image": {"mode": "image_generation", "output_cost_per_image": 0.04},
            "image with text": {"mode": "image_generation", "input_cost_per_token": 5e-06},
            "video": {"mode": "chat", "input_cost_per_second": 1, "output_cost_per_token": 1e-06}
        }"#,
    )
    .unwrap();
    assert_eq!(book.resources().collect::<Vec<_>>(), ["chat", "embedding"]);
    let chat = book.prices("chat", at(0)).unwrap();
    let prices = [chat.input, chat.output, chat.cached_input.unwrap(), chat.per_request];
    assert_eq!(
        prices.map(|price| price.to_string()),
        ["0.0000025", "0.00001", "0.00000125", "0.005"]
    );
    assert_eq!(chat.cache_write, None);
    assert_eq!(book.prices("embedding", at(NOW)).unwrap().output.to_string(), "0");
}

#[test]
fn litellm_errors_name_the_model_and_the_field() {
    let list = |entry: &str| PriceBook::from_litellm(&format!(r#"{{"gpt-4o": {entry}}}"#));
    for field in [
        "input_cost_per_token",
        "output_cost_per_token",
        "cache_read_input_token_cost",
        "cache_creation_input_token_cost",
        "input_cost_per_request",
    ] {
        let others = if field == "input_cost_per_token" {
            r#""output_cost_per_token": 0"#
        } else if field == "output_cost_per_token" {
            r#""input_cost_per_token": 0"#
        } else {
            r#""input_cost_per_token": 0, "output_cost_per_token": 0"#
        };
        let error = list(&format!(r#"{{{others}, "{field}": -1e-06}}"#)).unwrap_err().to_string();
        let expected = format!(r#"the price "{field}" of the model "gpt-4o" is -1e-06: "#);
        assert!(error.starts_with(&expected), "{error}");
    }
    assert!(matches!(list("7"), Err(PriceError::Entry { model, .. }) if model == "gpt-4o"));
    assert!(matches!(PriceBook::from_litellm("[]"), Err(PriceError::Malformed(_))));
}
