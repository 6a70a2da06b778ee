//! The price list of LiteLLM.

use std::collections::BTreeMap;

use chrono::NaiveDate;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::json::{Entries, price};
use crate::{PriceBook, PriceError, Prices};

/// The entry that explains the fields.
const SAMPLE: &str = "sample_spec";
/// The mode, as JSON, of models without output tokens.
const EMBEDDING: &str = "\"embedding\"";

#[derive(Deserialize)]
struct Entry<'a> {
    #[serde(borrow)]
    mode: Option<&'a RawValue>,
    #[serde(borrow)]
    input_cost_per_token: Option<&'a RawValue>,
    #[serde(borrow)]
    output_cost_per_token: Option<&'a RawValue>,
    #[serde(borrow)]
    cache_read_input_token_cost: Option<&'a RawValue>,
    #[serde(borrow)]
    cache_creation_input_token_cost: Option<&'a RawValue>,
    #[serde(borrow)]
    input_cost_per_request: Option<&'a RawValue>,
    #[serde(borrow)]
    input_cost_per_query: Option<&'a RawValue>,
}

impl PriceBook {
    /// Reads the price list of LiteLLM, `model_prices_and_context_window.json`. Its prices are in US
    /// dollars, for one token, and hold at any time.
    ///
    /// The fields `input_cost_per_token`, `output_cost_per_token`, `cache_read_input_token_cost`,
    /// `cache_creation_input_token_cost` and `input_cost_per_request` are read, exactly as they are
    /// written. All others are ignored. So the book has one price for requests of every length,
    /// priority and cache lifetime (fields such as `input_cost_per_token_above_200k_tokens`), and
    /// none for images, audio or searches.
    ///
    /// A model is skipped unless it has a price for input and output tokens, or if its tokens cost
    /// nothing but a query does: it charges for something else, such as images or seconds. Only embeddings need no price for output tokens.
    ///
    /// # Errors
    /// [`PriceError`] if the list is not of this format, or a price has more than 27 decimals. It
    /// names the model and the field.
    pub fn from_litellm(json: &str) -> Result<Self, PriceError> {
        let models: Entries<'_> = serde_json::from_str(json)?;
        let mut book = Self::new("USD")?;
        for (model, entry) in models.0.into_iter().filter(|(model, _)| model != SAMPLE) {
            let entry: Entry<'_> = serde_json::from_str(entry.get())
                .map_err(|source| PriceError::Entry { model: model.clone(), source })?;
            if let Some(prices) = entry.prices(&model)? {
                book.insert(model, BTreeMap::from([(NaiveDate::MIN, prices)]))?;
            }
        }
        Ok(book)
    }
}

impl Entry<'_> {
    /// `None`: the model does not charge for tokens alone.
    fn prices(&self, model: &str) -> Result<Option<Prices>, PriceError> {
        let read =
            |field, json: Option<_>| json.map(|json| price(model, field, json, 0)).transpose();
        let input = read("input_cost_per_token", self.input_cost_per_token)?;
        let output = read("output_cost_per_token", self.output_cost_per_token)?;
        let is_embedding = self.mode.is_some_and(|mode| mode.get() == EMBEDDING);
        let (Some(input), Some(output)) = (input, output.or(is_embedding.then(Default::default)))
        else {
            return Ok(None);
        };
        let per_query = read("input_cost_per_query", self.input_cost_per_query)?;
        let none = [input, output].iter().all(|price| *price == Default::default());
        if none && per_query.is_some_and(|price| price != Default::default()) {
            return Ok(None);
        }
        let cached_input = self.cache_read_input_token_cost;
        let cache_write = self.cache_creation_input_token_cost;
        let per_request = read("input_cost_per_request", self.input_cost_per_request)?;
        Ok(Some(Prices {
            input,
            output,
            cached_input: read("cache_read_input_token_cost", cached_input)?,
            cache_write: read("cache_creation_input_token_cost", cache_write)?,
            per_request: per_request.unwrap_or_default(),
        }))
    }
}
