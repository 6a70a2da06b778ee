//! The prices of models.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

/// The prices of models, for requests that name token counts instead of amounts.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Prices {
    /// The price list, in JSON.
    pub file: PathBuf,
    /// The format of the list.
    #[serde(default)]
    pub format: PriceFormat,
    /// The amounts that such a request takes. A limit for each of them must exist.
    #[serde(default = "cost")]
    #[schemars(length(min = 1))]
    pub amounts: Vec<Priced>,
}

/// The format of a price list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PriceFormat {
    /// The project's own.
    #[default]
    Sluicegate,
    /// That of LiteLLM, in USD.
    Litellm,
}

/// An amount that follows from the token counts of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Priced {
    /// The cost, of the limit that is named after the currency, such as `usd`.
    Cost,
    /// One request, of the limit `rpm`.
    Rpm,
    /// The input tokens, of the limit `input`.
    Input,
    /// The output tokens, of the limit `output`.
    Output,
}

fn cost() -> Vec<Priced> {
    vec![Priced::Cost]
}
