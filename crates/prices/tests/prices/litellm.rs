//! The price list of LiteLLM as its package has it: `cargo xtask test` installs the package.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use serde_json::value::RawValue;
use sluicegate_core::fixtures::at;
use sluicegate_prices::{Price, PriceBook, Prices};

const LIST: &str = "litellm/package/litellm/model_prices_and_context_window_backup.json";

fn list() -> String {
    let engines = std::env::var_os("SLUICEGATE_ENGINES_DIR").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/engines")),
        PathBuf::from,
    );
    let path = engines.join(LIST);
    fs::read_to_string(&path).unwrap_or_else(|error| {
        panic!("{}: {error}; type:  cargo xtask engines litellm", path.display())
    })
}

fn prices_of<'a>(book: &'a PriceBook, model: &str) -> &'a Prices {
    book.prices(model, at(1_769_608_800_000)).unwrap()
}

/// A decimal in exponent notation without its exponent.
fn plain(text: &str) -> String {
    let (number, power) = text.split_once('e').unwrap_or((text, "0"));
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let point = isize::try_from(whole.len()).unwrap() + power.parse::<isize>().unwrap();
    let zeros = "0".repeat(40);
    let digits = format!("{zeros}{whole}{fraction}{zeros}");
    let (whole, fraction) = digits.split_at(usize::try_from(40 + point).unwrap());
    let (whole, fraction) = (whole.trim_start_matches('0'), fraction.trim_end_matches('0'));
    let whole = if whole.is_empty() { "0" } else { whole };
    if fraction.is_empty() { whole.to_owned() } else { format!("{whole}.{fraction}") }
}

#[test]
#[ignore = "needs LiteLLM: cargo xtask test"]
fn litellm_prices_of_known_models_are_those_of_the_list() {
    let book = PriceBook::from_litellm(&list()).unwrap();
    assert_eq!(book.currency().code(), "USD");
    // Input, output, cached input, cache write; millionths of a dollar.
    for (model, expected) in [
        ("gpt-4o", ["2.5", "10", "1.25", "-"]),
        ("gpt-4o-mini", ["0.15", "0.6", "0.075", "-"]),
        ("gpt-4.1", ["2", "8", "0.5", "-"]),
        ("gpt-5", ["1.25", "10", "0.125", "-"]),
        ("o3", ["2", "8", "0.5", "-"]),
        ("text-embedding-3-small", ["0.02", "0", "-", "-"]),
        ("gemini/gemini-2.5-pro", ["1.25", "10", "0.125", "-"]),
        ("deepseek/deepseek-chat", ["0.28", "0.42", "0.028", "0"]),
        ("amazon.nova-pro-v1:0", ["0.8", "3.2", "0.2", "-"]),
        ("mistral/mistral-embed", ["0.1", "0", "-", "-"]),
        ("anthropic.claude-3-5-sonnet-20240620-v1:0", ["3", "15", "0.3", "3.75"]),
        ("us.anthropic.claude-sonnet-4-20250514-v1:0", ["3", "15", "0.3", "3.75"]),
        (
            "databricks/databricks-claude-sonnet-4-1",
            ["2.9999900000000002", "15.000020000000002", "0.30002", "3.74997"],
        ),
        ("claude-sonnet-4-5-20250929", ["3", "15", "0.3", "3.75"]),
    ] {
        let prices = prices_of(&book, model);
        let tokens =
            [Some(prices.input), Some(prices.output), prices.cached_input, prices.cache_write];
        let shown =
            tokens.map(|price| price.map_or_else(|| "-".to_owned(), |price| price.to_string()));
        let expected = expected.map(|price| match price {
            "-" => price.to_owned(),
            price => plain(&format!("{price}e-6")),
        });
        assert_eq!(shown, expected, "{model}");
    }
    let per_request = prices_of(&book, "perplexity/sonar-small-online").per_request;
    assert_eq!(per_request.to_string(), "0.005");
}

#[test]
#[ignore = "needs LiteLLM: cargo xtask test"]
fn litellm_numbers_survive_digit_by_digit() {
    let list = list();
    let book = PriceBook::from_litellm(&list).unwrap();
    let models: BTreeMap<String, BTreeMap<String, Box<RawValue>>> =
        serde_json::from_str(&list).unwrap();
    let mut compared = 0;
    for model in book.resources() {
        let (prices, entry) = (prices_of(&book, model), &models[model]);
        for (field, price) in [
            ("input_cost_per_token", Some(prices.input)),
            ("output_cost_per_token", Some(prices.output)),
            ("cache_read_input_token_cost", prices.cached_input),
            ("cache_creation_input_token_cost", prices.cache_write),
            ("input_cost_per_request", Some(prices.per_request)),
        ] {
            let text = entry.get(field).map(|json| json.get());
            let is_default = text.is_none() && price.is_none_or(|price| price == Price::default());
            if !is_default {
                let shown = price.unwrap().to_string();
                assert_eq!(shown, plain(text.unwrap()), "{model} {field}");
                compared += 1;
            }
        }
    }
    let skipped = models.len() - book.resources().count();
    // The figures of the pinned version. The skipped models charge for images, audio, queries and the
    // like.
    assert_eq!((models.len(), skipped, compared), (4_553, 890, 9_583));
}
