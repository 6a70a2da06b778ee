//! Amounts of limits, as Python gives them: whole numbers, `Decimal`s, or texts; exact.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMapping};
use sluicegate::types::{Amounts, LimitName, Millitokens};
use sluicegate_core::parse_amount;

use crate::decimals::text_of;
use crate::errors::{InvalidRequestError, invalid};

/// Reads amounts by limit: tokens, or money in the currency's unit.
///
/// # Errors
/// `InvalidRequestError` for a name or a number that no limit has; `TypeError` for no mapping.
pub(crate) fn read(given: &Bound<'_, PyAny>) -> PyResult<Amounts> {
    let items = given.cast::<PyMapping>()?.items()?;
    let items = items.iter().map(|item| {
        let (limit, amount): (Bound<'_, PyAny>, Bound<'_, PyAny>) = item.extract()?;
        one(&limit, &amount)
    });
    items.collect()
}

/// Reads the keywords of a call.
pub(crate) fn keywords(given: Option<&Bound<'_, PyDict>>) -> PyResult<Amounts> {
    given.map_or_else(|| Ok(Amounts::default()), |given| read(given))
}

fn one(limit: &Bound<'_, PyAny>, amount: &Bound<'_, PyAny>) -> PyResult<(LimitName, Millitokens)> {
    let limit: &str = limit.extract()?;
    let name = LimitName::new(limit).map_err(invalid)?;
    let text = text_of(amount)?;
    let milli = parse_amount(limit, &text).and_then(|milli| i64::try_from(milli).ok());
    let amount = milli.and_then(|milli| Millitokens::new(milli).ok());
    let amount = amount.ok_or_else(|| {
        InvalidRequestError::new_err(format!(
            "the amount of {limit:?} is {text:.60}: give a number with at most three decimals, or nine of money, up to 10^15 tokens"
        ))
    })?;
    Ok((name, amount))
}
