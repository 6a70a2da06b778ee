//! Usage of models, and its price.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};
use sluicegate::{Clock as _, SystemClock};

use crate::decimals::decimals;
use crate::errors::{UnknownPriceError, invalid};
use crate::usage::instant;

/// The token counts of one request to a model.
#[pyclass(frozen, get_all, eq, hash, module = "sluicegate")]
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct Usage {
    /// Input tokens that were neither read from the cache nor written to it.
    input: u64,
    /// Output tokens, reasoning included.
    output: u64,
    /// Input tokens that were read from the cache.
    cached_input: u64,
    /// Input tokens that were written to the cache.
    cache_write: u64,
}

#[pymethods]
impl Usage {
    #[new]
    #[pyo3(signature = (*, input=0, output=0, cached_input=0, cache_write=0))]
    const fn new(input: u64, output: u64, cached_input: u64, cache_write: u64) -> Self {
        Self { input, output, cached_input, cache_write }
    }

    /// Reads a response of OpenAI, Anthropic or Amazon Bedrock; `None`: it has no usage.
    #[staticmethod]
    fn of_response(body: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        let text;
        let body = if let Ok(bytes) = body.cast::<PyBytes>() {
            bytes.as_bytes()
        } else if let Ok(given) = body.cast::<PyString>() {
            given.to_str()?.as_bytes()
        } else {
            let dumped = body.py().import("json")?.call_method1("dumps", (body,))?;
            text = dumped.extract::<String>()?;
            text.as_bytes()
        };
        let usage = sluicegate_prices::Usage::from_response(body).map_err(invalid)?;
        Ok(usage.map(|usage| Self {
            input: usage.input,
            output: usage.output,
            cached_input: usage.cached_input,
            cache_write: usage.cache_write,
        }))
    }

    /// For `pickle` and `copy`.
    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<((), Bound<'py, PyDict>)> {
        let Self { input, output, cached_input, cache_write } = self;
        let counts = PyDict::new(py);
        counts.set_item("input", input)?;
        counts.set_item("output", output)?;
        counts.set_item("cached_input", cached_input)?;
        counts.set_item("cache_write", cache_write)?;
        Ok(((), counts))
    }

    fn __repr__(&self) -> String {
        let Self { input, output, cached_input, cache_write } = self;
        format!(
            "Usage(input={input}, output={output}, cached_input={cached_input}, cache_write={cache_write})"
        )
    }
}

/// The prices of models, by date.
#[pyclass(frozen, module = "sluicegate")]
pub(crate) struct PriceBook {
    inner: sluicegate_prices::PriceBook,
}

#[pymethods]
impl PriceBook {
    /// Reads the format of `sluicegate-prices`.
    #[staticmethod]
    fn from_json(text: &str) -> PyResult<Self> {
        let inner = sluicegate_prices::PriceBook::from_json(text).map_err(invalid)?;
        Ok(Self { inner })
    }

    /// Reads the price list that LiteLLM publishes.
    #[staticmethod]
    fn from_litellm(text: &str) -> PyResult<Self> {
        let inner = sluicegate_prices::PriceBook::from_litellm(text).map_err(invalid)?;
        Ok(Self { inner })
    }

    /// The amounts of one request at a time, now unless given: `rpm`, `input`, `output`, and the
    /// cost under the code of its currency, like `usd`.
    #[pyo3(signature = (model, usage, *, at=None))]
    fn amounts<'py>(
        &self,
        py: Python<'py>,
        model: &str,
        usage: &Usage,
        at: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let at = match at {
            Some(at) => instant(at)?,
            None => SystemClock.now(),
        };
        let usage = sluicegate_prices::Usage {
            input: usage.input,
            output: usage.output,
            cached_input: usage.cached_input,
            cache_write: usage.cache_write,
        };
        let amounts = self.inner.amounts(model, &usage, at);
        let amounts = amounts.map_err(|error| UnknownPriceError::new_err(error.to_string()))?;
        decimals(py, amounts.iter().map(|(limit, amount)| (limit, (*amount).into())))
    }

    /// The models that it has prices of, sorted.
    #[getter]
    fn models(&self) -> Vec<&str> {
        self.inner.resources().collect()
    }
}
