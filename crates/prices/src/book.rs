//! Prices by resource and date, and the cost of a request.

use std::collections::BTreeMap;

use chrono::{DateTime, NaiveDate};
use sluicegate_core::{Amounts, Currency, EpochMillis, LimitName, Millitokens, Money};

use crate::price::{Price, sum_to_nanos, thousandths_to_nanos};
use crate::{PriceError, UnknownPrice, Usage};

/// The prices of one resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prices {
    /// The price of an input token.
    pub input: Price,
    /// The price of an output token.
    pub output: Price,
    /// The price of an input token that is read from the cache; `None`: that of an input token.
    pub cached_input: Option<Price>,
    /// The price of an input token that is written to the cache; `None`: that of an input token.
    pub cache_write: Option<Price>,
    /// The price of a request, beside its tokens.
    pub per_request: Price,
}

/// Prices of resources (models) in one currency.
///
/// Each price holds from the start of a day (UTC) until a newer one of the same resource.
///
/// ```
/// use sluicegate_core::EpochMillis;
/// use sluicegate_prices::{PriceBook, Usage};
///
/// let book = PriceBook::from_json(
///     r#"{"currency": "USD", "models": {"gpt-4o": [
///         {"from": "2026-01-01", "input": "2.50", "output": "10.00", "cached_input": "1.25"}]}}"#,
/// )?;
/// let at = EpochMillis::new(1_769_608_800_000)?;
///
/// // An estimate before the request: its input tokens, and the most output that it may have.
/// let most = Usage { input: 1_200, output: 4_096, ..Usage::default() };
/// assert_eq!(book.cost("gpt-4o", &most, at)?.to_string(), "0.04396 USD");
/// let amounts = book.amounts("gpt-4o", &most, at)?;
/// let shown: Vec<_> = amounts.iter().map(|(limit, of)| format!("{limit} {}", limit.show(*of))).collect();
/// assert_eq!(shown, ["input 1200", "output 4096", "rpm 1", "usd 0.04396 USD"]);
///
/// // The actual amounts after it.
/// let usage = Usage { input: 176, output: 80, cached_input: 1_024, cache_write: 0 };
/// assert_eq!(book.cost("gpt-4o", &usage, at)?.to_string(), "0.00252 USD");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PriceBook {
    currency: Currency,
    by_resource: BTreeMap<String, BTreeMap<NaiveDate, Prices>>,
}

impl PriceBook {
    /// A book without prices, in the currency of a code such as `USD`.
    pub(crate) fn new(code: &str) -> Result<Self, PriceError> {
        let currency = Currency::of(&code.to_ascii_lowercase())
            .filter(|currency| currency.code() == code)
            .ok_or_else(|| PriceError::UnknownCurrency { code: code.to_owned() })?;
        Ok(Self { currency, by_resource: BTreeMap::new() })
    }

    /// Adds the prices of a resource by the days from which they hold.
    pub(crate) fn insert(
        &mut self,
        resource: String,
        prices: BTreeMap<NaiveDate, Prices>,
    ) -> Result<(), PriceError> {
        if self.by_resource.contains_key(&resource) {
            return Err(PriceError::Duplicate { model: resource });
        }
        self.by_resource.insert(resource, prices);
        Ok(())
    }

    /// The currency of all prices.
    #[must_use]
    pub const fn currency(&self) -> Currency {
        self.currency
    }

    /// The resources of the price list, sorted.
    pub fn resources(&self) -> impl Iterator<Item = &str> {
        self.by_resource.keys().map(String::as_str)
    }

    /// The prices of a resource that hold at a time.
    ///
    /// # Errors
    /// [`UnknownPrice`] if the resource has no prices, or only newer ones.
    pub fn prices(&self, resource: &str, at: EpochMillis) -> Result<&Prices, UnknownPrice> {
        let date = DateTime::from_timestamp_millis(at.get()).unwrap_or_default().date_naive();
        let by_date = self.by_resource.get(resource);
        by_date
            .and_then(|prices| prices.range(..=date).next_back())
            .map(|(_, prices)| prices)
            .ok_or_else(|| UnknownPrice { resource: resource.to_owned(), at })
    }

    /// The cost of one request at a time. The exact sum is rounded up once, to the billionth of the
    /// currency's unit.
    ///
    /// # Errors
    /// [`UnknownPrice`] if the resource has no price at that time.
    pub fn cost(
        &self,
        resource: &str,
        usage: &Usage,
        at: EpochMillis,
    ) -> Result<Money, UnknownPrice> {
        let prices = self.prices(resource, at)?;
        let nanos = sum_to_nanos([
            (usage.input, prices.input),
            (usage.output, prices.output),
            (usage.cached_input, prices.cached_input.unwrap_or(prices.input)),
            (usage.cache_write, prices.cache_write.unwrap_or(prices.input)),
            (1, prices.per_request),
        ]);
        Ok(Money::from_nanos(self.currency, nanos))
    }

    /// The price of what was counted of a limit, in millitokens, by the names of
    /// [`amounts`](Self::amounts): requests of `rpm`, input tokens of `input`, output tokens of
    /// `output`. It is rounded up once, to the billionth of the currency's unit.
    ///
    /// Cached tokens count as other input tokens, because such a limit does not tell them apart.
    /// `None`: the limit has another name, or more than 10^17 tokens were counted.
    ///
    /// # Errors
    /// [`UnknownPrice`] if the limit has a price and the resource has none at that time.
    pub fn cost_of_limit(
        &self,
        resource: &str,
        limit: &str,
        milli: i128,
        at: EpochMillis,
    ) -> Result<Option<Money>, UnknownPrice> {
        let price: fn(&Prices) -> Price = match limit {
            "rpm" => |prices| prices.per_request,
            "input" => |prices| prices.input,
            "output" => |prices| prices.output,
            _ => return Ok(None),
        };
        let nanos = thousandths_to_nanos(milli, price(self.prices(resource, at)?));
        Ok(nanos.map(|nanos| Money::from_nanos(self.currency, nanos)))
    }

    /// The amounts of one request at a time, by limit: `rpm` is one request, `input` all input
    /// tokens, `output` the output tokens, and the currency's code in lower case the cost. Each of these
    /// limits must exist; remove the amounts of others. An amount beyond [`Millitokens::MAX`] (10^15 tokens, or a billion of
    /// the currency's unit) is reduced to it.
    ///
    /// # Errors
    /// [`UnknownPrice`] if the resource has no price at that time.
    pub fn amounts(
        &self,
        resource: &str,
        usage: &Usage,
        at: EpochMillis,
    ) -> Result<Amounts, UnknownPrice> {
        let cost = self.cost(resource, usage, at)?;
        let tokens = |count: u64| i128::from(count) * 1_000;
        let amounts = [
            ("rpm", tokens(1)),
            ("input", tokens(usage.total_input())),
            ("output", tokens(usage.output)),
            // A millitoken of a limit that counts money is a billionth of the unit.
            (&self.currency.code().to_ascii_lowercase(), cost.nanos()),
        ];
        // All of these names are allowed.
        let named = amounts
            .into_iter()
            .filter_map(|(limit, milli)| Some((LimitName::new(limit).ok()?, milli)));
        Ok(named.map(|(limit, milli)| (limit, Millitokens::saturating(milli))).collect())
    }
}
