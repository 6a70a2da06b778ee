//! The amounts of a request by its token counts.

use sluicegate::types::{Amounts, EpochMillis};
use sluicegate_prices::{PriceBook, UnknownPrice, Usage};

use crate::config::{PriceFormat, Priced, Prices};
use crate::start_error::StartError;

/// A price list, and the amounts that follow from it.
pub(crate) struct PriceList {
    book: PriceBook,
    amounts: Vec<Priced>,
}

impl PriceList {
    /// # Errors
    /// The file, and the reason why it is no price list.
    pub(crate) fn read(prices: &Prices) -> Result<Self, StartError> {
        let wrong = |reason: String| StartError::Prices { file: prices.file.clone(), reason };
        let json =
            std::fs::read_to_string(&prices.file).map_err(|error| wrong(error.to_string()))?;
        let book = match prices.format {
            PriceFormat::Sluicegate => PriceBook::from_json(&json),
            PriceFormat::Litellm => PriceBook::from_litellm(&json),
        };
        let book = book.map_err(|error| wrong(error.to_string()))?;
        Ok(Self { book, amounts: prices.amounts.clone() })
    }

    /// The amounts that a request on a resource takes.
    ///
    /// # Errors
    /// [`UnknownPrice`] for a resource without a price.
    pub(crate) fn amounts(
        &self,
        resource: &str,
        usage: &Usage,
        now: EpochMillis,
    ) -> Result<Amounts, UnknownPrice> {
        let mut amounts = self.book.amounts(resource, usage, now)?;
        amounts.retain(|limit, _| {
            let priced = match limit.as_str() {
                "rpm" => Priced::Rpm,
                "input" => Priced::Input,
                "output" => Priced::Output,
                _ => Priced::Cost,
            };
            self.amounts.contains(&priced)
        });
        Ok(amounts)
    }
}
