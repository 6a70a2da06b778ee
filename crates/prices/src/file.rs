//! The project's own format of price lists.

use std::collections::BTreeMap;

use chrono::NaiveDate;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::json::{Entries, price};
use crate::{PriceBook, PriceError, Prices};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File<'a> {
    currency: String,
    #[serde(borrow)]
    models: Entries<'a>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry<'a> {
    from: String,
    #[serde(borrow)]
    input: &'a RawValue,
    #[serde(borrow)]
    output: &'a RawValue,
    #[serde(borrow)]
    cached_input: Option<&'a RawValue>,
    #[serde(borrow)]
    cache_write: Option<&'a RawValue>,
    #[serde(borrow)]
    per_request: Option<&'a RawValue>,
}

impl PriceBook {
    /// Reads a price list in JSON:
    ///
    /// ```json
    /// {"currency": "USD", "models": {"gpt-4o": [
    ///     {"from": "2026-01-01", "input": "2.50", "output": "10.00",
    ///      "cached_input": "1.25", "cache_write": "3.125", "per_request": "0"}]}}
    /// ```
    ///
    /// `from` is the first day (UTC) of the prices. Prices are numbers or strings with numbers, and
    /// exact in both. `input`, `output`, `cached_input` and `cache_write` are for a million tokens,
    /// `per_request` for one request. The last three may be absent: cached and cache-write tokens
    /// then cost as much as other input tokens, and a request nothing beside its tokens.
    ///
    /// # Errors
    /// [`PriceError`] if the list is not of this format. It names the model and the field.
    pub fn from_json(json: &str) -> Result<Self, PriceError> {
        let file: File<'_> = serde_json::from_str(json)?;
        let mut book = Self::new(&file.currency)?;
        for (model, entries) in file.models.0 {
            let entries: Vec<Entry<'_>> = serde_json::from_str(entries.get())
                .map_err(|source| PriceError::Entry { model: model.clone(), source })?;
            let mut by_date = BTreeMap::new();
            for entry in &entries {
                if by_date.insert(entry.date(&model)?, entry.prices(&model)?).is_some() {
                    return Err(PriceError::Duplicate { model });
                }
            }
            book.insert(model, by_date)?;
        }
        Ok(book)
    }
}

impl Entry<'_> {
    fn date(&self, model: &str) -> Result<NaiveDate, PriceError> {
        let date = self.from.parse::<NaiveDate>().ok();
        // The parser also takes other spellings, such as "+2026-1-1".
        date.filter(|date| date.to_string() == self.from).ok_or_else(|| PriceError::InvalidDate {
            model: model.to_owned(),
            text: self.from.clone(),
        })
    }

    fn prices(&self, model: &str) -> Result<Prices, PriceError> {
        let per_million = |field, json| price(model, field, json, -6);
        let optional =
            |field, json: Option<_>| json.map(|json| per_million(field, json)).transpose();
        let per_request = self.per_request.map(|json| price(model, "per_request", json, 0));
        Ok(Prices {
            input: per_million("input", self.input)?,
            output: per_million("output", self.output)?,
            cached_input: optional("cached_input", self.cached_input)?,
            cache_write: optional("cache_write", self.cache_write)?,
            per_request: per_request.transpose()?.unwrap_or_default(),
        })
    }
}
