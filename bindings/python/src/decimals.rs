//! `Decimal`s of Python: amounts are given as them, and become them; exact.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use sluicegate::types::{AmountOf, LimitName};

/// Beyond the exponent of any amount.
const EXPONENT_MAX: i64 = 40;

/// An amount as text. A `Decimal` is written out without zeros at the end of its fraction, because
/// by itself it may have an exponent; one that is no amount keeps it, because it might fill the
/// memory.
pub(crate) fn text_of(amount: &Bound<'_, PyAny>) -> PyResult<String> {
    if !amount.is_instance(decimal_class(amount.py())?)? {
        return amount.str()?.extract();
    }
    if !amount.is_truthy()? {
        return Ok("0".to_owned());
    }
    if amount.call_method0("adjusted")?.extract::<i64>()?.abs() > EXPONENT_MAX {
        return amount.str()?.extract();
    }
    let text: String = amount.call_method1("__format__", ("f",))?.extract()?;
    Ok(match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    })
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
