//! Amounts of limits, as Python has them: whole numbers, `Decimal`s, or texts; exact.

use std::collections::BTreeMap;

use pyo3::prelude::*;
use pyo3::types::PyString;
use sluicegate::types::{AmountOf, Amounts, LimitName, Millitokens};
use sluicegate_core::parse_amount;

use crate::errors::InvalidRequestError;

/// Amounts by limit: tokens, or money in the currency's unit.
pub(crate) type Given<'py> = BTreeMap<String, Bound<'py, PyAny>>;

/// # Errors
/// `InvalidRequestError` for a name or a number that no limit has.
pub(crate) fn read(given: &Given<'_>) -> PyResult<Amounts> {
    let read = |(limit, value): (&String, &Bound<'_, PyAny>)| -> PyResult<_> {
        let name = LimitName::new(limit)
            .map_err(|error| InvalidRequestError::new_err(error.to_string()))?;
        let text = value.str()?;
        let milli = parse_amount(limit, text.to_str()?).and_then(|milli| i64::try_from(milli).ok());
        let amount = milli.and_then(|milli| Millitokens::new(milli).ok()).ok_or_else(|| {
            InvalidRequestError::new_err(format!(
                "the amount of {limit:?} is {text}: give a number with at most three decimals, or nine of money, up to 10^15 tokens"
            ))
        })?;
        Ok((name, amount))
    };
    given.iter().map(read).collect()
}

/// An amount as a `Decimal`.
pub(crate) fn decimal<'py>(
    py: Python<'py>,
    limit: &LimitName,
    milli: i64,
) -> PyResult<Bound<'py, PyAny>> {
    let text = AmountOf::new(limit.as_str(), milli.into()).plain();
    py.import("decimal")?.getattr("Decimal")?.call1((PyString::new(py, &text),))
}
