//! Amounts of limits, as Python has them: whole numbers, `Decimal`s, or texts; exact.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyMapping};
use sluicegate::types::{AmountOf, Amounts, LimitName, Millitokens};
use sluicegate_core::parse_amount;

use crate::errors::{InvalidRequestError, invalid};

/// Beyond the exponent of any amount.
const EXPONENT_MAX: i64 = 40;

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

/// An amount as text. A `Decimal` is written out, because by itself it may have an exponent; one that is
/// no amount keeps it, because it might fill the memory.
pub(crate) fn text_of(amount: &Bound<'_, PyAny>) -> PyResult<String> {
    let is_written_out = amount.is_instance(decimal_class(amount.py())?)?
        && amount.call_method0("adjusted")?.extract::<i64>()?.abs() <= EXPONENT_MAX;
    match is_written_out {
        true => amount.call_method1("__format__", ("f",))?.extract(),
        false => amount.str()?.extract(),
    }
}

fn decimal_class(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static DECIMAL: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let class = DECIMAL.get_or_try_init(py, || -> PyResult<_> {
        Ok(py.import("decimal")?.getattr("Decimal")?.unbind())
    })?;
    Ok(class.bind(py))
}

/// An amount as a `Decimal`.
pub(crate) fn decimal<'py>(
    py: Python<'py>,
    limit: &LimitName,
    milli: impl Into<i128>,
) -> PyResult<Bound<'py, PyAny>> {
    decimal_class(py)?.call1((AmountOf::new(limit.as_str(), milli.into()).plain(),))
}

/// Amounts by limit as a `dict`.
pub(crate) fn decimals<'py, 'a>(
    py: Python<'py>,
    amounts: impl IntoIterator<Item = (&'a LimitName, i128)>,
) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (limit, milli) in amounts {
        dict.set_item(limit.as_str(), decimal(py, limit, milli)?)?;
    }
    Ok(dict)
}
