//! Amounts of limits, as Python gives them: whole numbers, `Decimal`s, or texts; exact.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyFloat, PyInt, PyMapping, PyString};
use sluicegate::AcquireRequest;
use sluicegate::types::{Amounts, LimitName, Millitokens};
use sluicegate_core::{parse_amount, whole_amount};

use crate::decimals::text_of;
use crate::errors::{InvalidRequestError, invalid};

/// Adds amounts by limit to a request: tokens, or money in the currency's unit. Zeros are left out.
///
/// # Errors
/// `InvalidRequestError` for a name or a number that no limit has; `TypeError` for no mapping, and
/// for a `float`.
pub(crate) fn consume(
    request: AcquireRequest<()>,
    given: &Bound<'_, PyAny>,
) -> PyResult<AcquireRequest<()>> {
    match consume_whole(request.clone(), given) {
        Some(request) => Ok(request),
        None => Ok(request.consume_all(&read(given)?)),
    }
}

/// Adds the amounts of a `dict` of whole numbers, the usual case. Builds no map and formats no number.
/// `None`: some amount is something else, or not valid.
fn consume_whole(
    mut request: AcquireRequest<()>,
    given: &Bound<'_, PyAny>,
) -> Option<AcquireRequest<()>> {
    // No code of Python runs meanwhile that might change the `dict`.
    for (limit, amount) in given.cast_exact::<PyDict>().ok()?.iter() {
        let (limit, amount) = whole(&limit, &amount)?;
        if amount != Millitokens::ZERO {
            request = request.consume_milli(limit.as_str(), amount.get());
        }
    }
    Some(request)
}

fn whole(limit: &Bound<'_, PyAny>, amount: &Bound<'_, PyAny>) -> Option<(LimitName, Millitokens)> {
    let limit = limit.cast_exact::<PyString>().ok()?.to_str().ok()?;
    let units: i64 = amount.cast_exact::<PyInt>().ok()?.extract().ok()?;
    let milli = i64::try_from(whole_amount(limit, units)).ok()?;
    Some((LimitName::new(limit).ok()?, Millitokens::new(milli).ok()?))
}

/// Reads amounts by limit.
///
/// # Errors
/// `InvalidRequestError` for a name or a number that no limit has; `TypeError` for no mapping, and for
/// a `float`.
fn read(given: &Bound<'_, PyAny>) -> PyResult<Amounts> {
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
    if amount.is_instance_of::<PyFloat>() {
        // By its text, 0.1 would be an amount, and 0.1 + 0.2 would not.
        return Err(PyTypeError::new_err(format!(
            "the amount of {limit:?} is a float, which is not exact: round it, like round(Decimal(cost), 9)"
        )));
    }
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
