//! The limiter.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3_async_runtimes::tokio::{future_into_py, get_runtime};
use sluicegate::leasing::LeasingStore;
use sluicegate::redis::RedisStore;
use sluicegate::{
    AcquireRequest, DynamoStore, LeaseMode, LeaseSettings, Limit, LimitSet, MemoryStore,
    OnUnavailable,
};

use crate::acquire::Acquire;
use crate::amounts::{Given, read};
use crate::errors::{invalid, of_acquire};
use crate::permit::Permit;
use crate::prepared::Prepared;
use crate::runtime::{Home, wait};
use crate::status::statuses;

/// Takes tokens of several limits at once, or none. Made by `memory`, `dynamodb` or `redis`.
#[pyclass(frozen, module = "sluicegate")]
pub(crate) struct Limiter {
    inner: sluicegate::Limiter,
    home: Home,
}

/// The settings that all stores have.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Settings {
    limits: Vec<String>,
    leasing: Option<String>,
    threshold: u32,
    on_unavailable: String,
    deadline: Option<Duration>,
    shadow: bool,
}

impl Settings {
    fn limiter<S: LeasingStore>(self, store: S) -> PyResult<Limiter> {
        let on_unavailable = match self.on_unavailable.as_str() {
            "allow" => OnUnavailable::Allow,
            "deny" => OnUnavailable::Deny,
            "local" => OnUnavailable::Local,
            other => {
                let expected = "give \"allow\", \"deny\" or \"local\"";
                return Err(invalid(format!("on_unavailable is {other:?}: {expected}")));
            }
        };
        let limits = LimitSet::new(parsed(&self.limits)?).map_err(invalid)?;
        let mut builder = sluicegate::Limiter::builder(store)
            .default_limits(limits)
            .on_unavailable(on_unavailable);
        if let Some(deadline) = self.deadline {
            builder = builder.deadline(deadline);
        }
        if self.shadow {
            builder = builder.shadow();
        }
        let mode = match self.leasing.as_deref() {
            None => None,
            Some("strict") => Some(LeaseMode::default()),
            Some("write_behind") => Some(LeaseMode::WriteBehind { threshold: self.threshold }),
            Some(other) => {
                let expected = "give \"strict\" or \"write_behind\"";
                return Err(invalid(format!("leasing is {other:?}: {expected}")));
            }
        };
        // Leasing starts a task.
        let _in_runtime = get_runtime().enter();
        let inner = match mode {
            Some(mode) => {
                builder.leasing(LeaseSettings { mode, ..LeaseSettings::default() }).build()
            }
            None => builder.build(),
        };
        Ok(Limiter { inner, home: Home::here() })
    }
}

fn parsed(limits: &[String]) -> PyResult<Vec<Limit>> {
    limits.iter().map(|limit| limit.parse().map_err(invalid)).collect()
}

#[pymethods]
impl Limiter {
    #[staticmethod]
    fn _memory(settings: Settings) -> PyResult<Self> {
        settings.limiter(MemoryStore::new())
    }

    #[staticmethod]
    fn _redis(url: &str, settings: Settings) -> PyResult<Self> {
        let _in_runtime = get_runtime().enter();
        settings.limiter(RedisStore::new(url).map_err(invalid)?)
    }

    #[staticmethod]
    fn _dynamodb(
        py: Python<'_>,
        table: &str,
        endpoint_url: Option<String>,
        region: Option<String>,
        settings: Settings,
    ) -> PyResult<Self> {
        let config = wait(py, async {
            let mut loader = aws_config::defaults(aws_config::BehaviorVersion::latest())
                .http_client(sluicegate_processor::https_client());
            if let Some(url) = endpoint_url {
                loader = loader.endpoint_url(url);
            }
            if let Some(region) = region {
                loader = loader.region(aws_config::Region::new(region));
            }
            loader.load().await
        })?;
        settings.limiter(DynamoStore::new(aws_sdk_dynamodb::Client::new(&config), table))
    }

    #[pyo3(signature = (entity, resource, consume, *, limits=Vec::new(), parent=None, no_cascade=false, parent_limits=Vec::new(), wait=None, deadline=None))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn acquire(
        &self,
        entity: &str,
        resource: &str,
        consume: Given<'_>,
        limits: Vec<String>,
        parent: Option<&str>,
        no_cascade: bool,
        parent_limits: Vec<String>,
        wait: Option<Duration>,
        deadline: Option<Duration>,
    ) -> PyResult<Acquire> {
        self.home.check()?;
        let mut request = AcquireRequest::new(entity, resource)
            .consume_all(&read(&consume)?)
            .limits(parsed(&limits)?);
        if !parent_limits.is_empty() {
            request = request.parent_limits(parsed(&parent_limits)?);
        }
        request = match (parent, no_cascade) {
            (None, false) => request,
            (None, true) => request.no_cascade(),
            (Some(parent), false) => request.cascade_to(parent),
            (Some(_), true) => return Err(invalid("give parent or no_cascade, not both")),
        };
        if let Some(wait) = wait {
            request = request.wait_up_to(wait);
        }
        if let Some(deadline) = deadline {
            request = request.deadline(deadline);
        }
        let (limiter, home) = (self.inner.clone(), self.home);
        Ok(Acquire { limiter, request, home, entered: Arc::new(Mutex::new(None)) })
    }

    #[pyo3(signature = (entity, resource, consume, **options))]
    fn acquire_sync(
        slf: &Bound<'_, Self>,
        entity: &str,
        resource: &str,
        consume: &Bound<'_, PyAny>,
        options: Option<&Bound<'_, pyo3::types::PyDict>>,
    ) -> PyResult<Permit> {
        let request = slf.call_method("acquire", (entity, resource, consume), options)?;
        request.cast::<Acquire>()?.get().sync(slf.py())
    }

    fn prepare<'py>(
        &self,
        py: Python<'py>,
        request: &Bound<'py, Acquire>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.home.check()?;
        let (limiter, request, home) =
            (self.inner.clone(), request.get().request.clone(), self.home);
        future_into_py(py, async move {
            let prepared = request.bind(&limiter).prepare().await;
            Python::attach(|py| {
                let prepared = prepared.map_err(|error| of_acquire(py, error))?;
                Ok(Prepared { inner: Arc::new(prepared), home })
            })
        })
    }

    #[pyo3(signature = (entity, resource, *, limits=Vec::new()))]
    fn peek<'py>(
        &self,
        py: Python<'py>,
        entity: String,
        resource: String,
        limits: Vec<String>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.home.check()?;
        let (limiter, limits) = (self.inner.clone(), parsed(&limits)?);
        future_into_py(py, async move {
            let found = limiter.peek(entity, resource).limits(limits).await;
            Python::attach(|py| statuses(py, &found.map_err(|error| of_acquire(py, error))?))
        })
    }

    #[pyo3(signature = (timeout=Duration::from_secs(5)))]
    fn close<'py>(&self, py: Python<'py>, timeout: Duration) -> PyResult<Bound<'py, PyAny>> {
        self.home.check()?;
        let limiter = self.inner.clone();
        future_into_py(py, async move {
            limiter.shutdown(timeout).await;
            Ok(())
        })
    }

    #[pyo3(signature = (timeout=Duration::from_secs(5)))]
    fn close_sync(&self, py: Python<'_>, timeout: Duration) -> PyResult<()> {
        self.home.check()?;
        wait(py, self.inner.shutdown(timeout)).map(drop)
    }
}
