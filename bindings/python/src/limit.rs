//! A limit, and lists of limits as Python passes them.

use std::time::Duration;

use pyo3::conversion::FromPyObjectOwned;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyString;
use sluicegate::Limit as Rule;
use sluicegate::types::LimitsScope;
use sluicegate::{EntityId, Resource};

use crate::decimals::text_of;
use crate::errors::invalid;

/// A limit: a name, and an amount per period. A limit that is named after a currency counts money.
/// Its text is like `rpm=100/min,burst=200`, `usd=200/month@15,tz=Europe/Berlin` or
/// `files=5/never`.
#[pyclass(frozen, eq, hash, module = "sluicegate", from_py_object)]
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Limit {
    inner: Rule,
}

impl Limit {
    /// `NAME=AMOUNT/PERIOD[,burst=N]`: the text has amounts of money in units.
    fn per(
        name: &str,
        amount: &Bound<'_, PyAny>,
        period: &str,
        burst: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let burst = burst.map(|burst| Ok::<_, PyErr>(format!(",burst={}", text_of(burst)?)));
        let burst = burst.transpose()?.unwrap_or_default();
        Self::new(&format!("{name}={}/{period}{burst}", text_of(amount)?))
    }
}

#[pymethods]
impl Limit {
    #[new]
    fn new(text: &str) -> PyResult<Self> {
        let inner: Rule = text.parse().map_err(invalid)?;
        inner.check().map_err(invalid)?;
        Ok(Self { inner })
    }

    #[staticmethod]
    #[pyo3(signature = (name, amount, *, burst=None))]
    fn per_second(
        name: &str,
        amount: &Bound<'_, PyAny>,
        burst: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        Self::per(name, amount, "s", burst)
    }

    #[staticmethod]
    #[pyo3(signature = (name, amount, *, burst=None))]
    fn per_minute(
        name: &str,
        amount: &Bound<'_, PyAny>,
        burst: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        Self::per(name, amount, "min", burst)
    }

    #[staticmethod]
    #[pyo3(signature = (name, amount, *, burst=None))]
    fn per_hour(
        name: &str,
        amount: &Bound<'_, PyAny>,
        burst: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        Self::per(name, amount, "h", burst)
    }

    /// An amount that refills evenly in each period of whole milliseconds.
    #[staticmethod]
    #[pyo3(signature = (name, amount, period, *, burst=None))]
    fn every(
        name: &str,
        amount: &Bound<'_, PyAny>,
        period: &Bound<'_, PyAny>,
        burst: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let period = time("period", period)?.ok_or_else(|| invalid("the period is None"))?;
        if !period.subsec_nanos().is_multiple_of(1_000_000) {
            return Err(invalid(format!("the period {period:?} has no whole milliseconds")));
        }
        Self::per(name, amount, &format!("{}ms", period.as_millis()), burst)
    }

    /// Full again when a period begins: `day`, `week`, `month`, `year`, or one with an anchor, like
    /// `month@15`.
    #[staticmethod]
    #[pyo3(signature = (name, amount, calendar, *, tz=None, forgive_debt=false))]
    fn by_calendar(
        name: &str,
        amount: &Bound<'_, PyAny>,
        calendar: &str,
        tz: Option<&str>,
        forgive_debt: bool,
    ) -> PyResult<Self> {
        let tz = tz.map(|tz| format!(",tz={tz}")).unwrap_or_default();
        let debt = if forgive_debt { ",debt=forgiven" } else { "" };
        Self::per(name, amount, &format!("{calendar}{tz}{debt}"), None)
    }

    /// An amount once: it never refills.
    #[staticmethod]
    fn quota(name: &str, amount: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::per(name, amount, "never", None)
    }

    #[getter]
    fn name(&self) -> &str {
        self.inner.name()
    }

    /// For `pickle` and `copy`.
    fn __getnewargs__(&self) -> (String,) {
        (self.inner.to_string(),)
    }

    fn __str__(&self) -> String {
        self.inner.to_string()
    }

    fn __repr__(&self) -> String {
        format!("Limit({:?})", self.inner.to_string())
    }
}

impl From<Rule> for Limit {
    fn from(inner: Rule) -> Self {
        Self { inner }
    }
}

/// The limits of a keyword argument.
///
/// # Errors
/// `InvalidRequestError` for a text that is no limit, and for one that is no list; `TypeError` with
/// the name of the argument for values of other types.
pub(crate) fn limits(name: &str, given: &Bound<'_, PyAny>) -> PyResult<Vec<Rule>> {
    if given.is_instance_of::<PyString>() {
        return Err(invalid(format!("{name} are a list: give [{:?}]", given.to_string())));
    }
    let wrong = |wanted, value: &Bound<'_, PyAny>| {
        PyTypeError::new_err(format!("argument '{name}': {wanted}, not {}", value.get_type()))
    };
    if !given.hasattr("__iter__")? {
        return Err(wrong("limits are a list", given));
    }
    let read = |limit: PyResult<Bound<'_, PyAny>>| {
        let limit = limit?;
        if let Ok(limit) = limit.extract::<Limit>() {
            return Ok(limit.inner);
        }
        match limit.is_instance_of::<PyString>() {
            true => limit.extract::<String>()?.parse().map_err(invalid),
            false => Err(wrong("a limit is a Limit or a text", &limit)),
        }
    };
    given.try_iter()?.map(read).collect()
}

/// A time, or `None`.
///
/// # Errors
/// `InvalidRequestError` for a negative one.
pub(crate) fn time(name: &str, given: &Bound<'_, PyAny>) -> PyResult<Option<Duration>> {
    argument(name, given).map_err(|error| match error.is_instance_of::<PyValueError>(given.py()) {
        true => invalid(format!("{name} is {given}: a time is not negative")),
        false => error,
    })
}

/// The value of a keyword argument.
///
/// # Errors
/// `TypeError` with its name for a value of another type.
pub(crate) fn argument<'py, T: FromPyObjectOwned<'py>>(
    name: &str,
    given: &Bound<'py, PyAny>,
) -> PyResult<T> {
    given.extract().map_err(|error| {
        let error = Into::<PyErr>::into(error);
        match error.is_instance_of::<PyTypeError>(given.py()) {
            true => PyTypeError::new_err(format!("argument '{name}': {}", error.value(given.py()))),
            false => error,
        }
    })
}

/// The level at which limits are stored.
///
/// # Errors
/// `InvalidRequestError` for a name that is not allowed.
pub(crate) fn scope(entity: Option<&str>, resource: Option<&str>) -> PyResult<LimitsScope> {
    let entity = entity.map(EntityId::new).transpose().map_err(invalid)?;
    let resource = resource.map(Resource::new).transpose().map_err(invalid)?;
    Ok(LimitsScope::of(entity, resource))
}
