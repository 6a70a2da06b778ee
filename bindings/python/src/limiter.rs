//! The limiter: requests for tokens.

use std::sync::Arc;
use std::time::Duration;

use aws_config::Region;
use aws_sdk_dynamodb::config::IdentityCache;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use sluicegate::leasing::LeasingStore;
use sluicegate::redis::RedisStore;
use sluicegate::settings::Mode;
use sluicegate::{DynamoStore, MemoryStore};
use sluicegate_local::client::{REGION, ReadOnce};
use sluicegate_local::is_loopback;

use crate::acquire::Acquire;
use crate::call::{Begin, Call, ready};
use crate::errors::{InvalidRequestError, invalid_request, of_acquire};
use crate::limit::{limits, time};
use crate::options::{Settings, request};
use crate::permit::Permit;
use crate::prepared::Prepared;
use crate::runtime::Home;
use crate::status::statuses;

/// Credentials that say no expiry are kept for ten years.
const CREDENTIALS_KEPT: Duration = Duration::from_secs(10 * 365 * 86_400);

/// Leased tokens are given back within this time, unless another one is given.
const CLOSED_WITHIN: Duration = Duration::from_secs(5);

/// Takes tokens of several limits at once, or none. It may be shared by threads and event loops,
/// but not by processes: make one in each, after a fork.
#[pyclass(frozen, module = "sluicegate")]
pub(crate) struct Limiter {
    pub(crate) inner: sluicegate::Limiter,
    pub(crate) home: Home,
    begin: Begin,
}

impl Limiter {
    fn new<S: LeasingStore>(home: Home, settings: Settings, store: S) -> PyResult<Self> {
        let _in_runtime = home.runtime()?.enter();
        // A limiter that leases decides most requests in memory.
        let begin = if settings.leases() { Begin::Here } else { Begin::OnRuntime };
        Ok(Self { inner: settings.limiter(store), home, begin })
    }

    /// A limiter on a table, by a client for it.
    pub(crate) fn on_table(
        home: Home,
        settings: Settings,
        client: aws_sdk_dynamodb::Client,
        table: &str,
    ) -> PyResult<Self> {
        Self::new(home, settings, DynamoStore::new(client, table))
    }
}

/// A limiter whose balances are in this process: for tests and first steps. Its keywords are those
/// of `Settings`.
#[pyfunction]
#[pyo3(signature = (**settings))]
pub(crate) fn memory(py: Python<'_>, settings: Option<&Bound<'_, PyDict>>) -> PyResult<Limiter> {
    Limiter::new(Home::here(py)?, Settings::read(settings)?, MemoryStore::new())
}

/// A limiter on a Redis server, by its URL: `redis://127.0.0.1:6379`. One with `rediss://` encrypts
/// connections and trusts the root certificates of the system, or those of `SSL_CERT_FILE` or
/// `SSL_CERT_DIR` instead.
#[pyfunction]
#[pyo3(signature = (url, **settings))]
pub(crate) fn redis(
    py: Python<'_>,
    url: &str,
    settings: Option<&Bound<'_, PyDict>>,
) -> PyResult<Limiter> {
    let home = Home::here(py)?;
    let _in_runtime = home.runtime()?.enter();
    let store = RedisStore::new(url).map_err(crate::errors::invalid)?;
    Limiter::new(home, Settings::read(settings)?, store)
}

/// A limiter on a DynamoDB table. Region and credentials come from the AWS environment. An
/// `endpoint_url` on loopback needs no region.
#[pyfunction]
#[pyo3(signature = (table, *, endpoint_url=None, region=None, **settings))]
pub(crate) fn dynamodb(
    py: Python<'_>,
    table: &str,
    endpoint_url: Option<String>,
    region: Option<String>,
    settings: Option<&Bound<'_, PyDict>>,
) -> PyResult<Limiter> {
    let (home, settings) = (Home::here(py)?, Settings::read(settings)?);
    let is_url = |text: &String| text.starts_with("http://") || text.starts_with("https://");
    if let Some(other) = endpoint_url.as_ref().filter(|text| !is_url(text)) {
        return Err(InvalidRequestError::new_err(format!(
            "the endpoint is {other:?}: give a URL like http://127.0.0.1:8000"
        )));
    }
    let config = home.wait(py, async {
        let mut loader = aws_config::defaults(aws_config::BehaviorVersion::latest())
            .http_client(sluicegate_processor::https_client());
        if let Some(url) = endpoint_url {
            loader = loader.endpoint_url(url);
        }
        if let Some(region) = region {
            loader = loader.region(Region::new(region));
        }
        loader.load().await
    })?;
    let on_loopback = config.endpoint_url().is_some_and(is_loopback);
    let region = config.region().cloned().or(on_loopback.then_some(Region::from_static(REGION)));
    let region = region.ok_or_else(|| {
        InvalidRequestError::new_err(format!(
            "no region is set: give region={REGION:?}, or set AWS_REGION"
        ))
    })?;
    // Programs in Python change their environment. Without this, credentials that do not expire
    // would be read from it again every 15 minutes.
    let read_once = IdentityCache::lazy().default_expiration(CREDENTIALS_KEPT).build();
    let config = aws_sdk_dynamodb::config::Builder::from(&config)
        .region(region)
        .identity_cache(read_once)
        .interceptor(ReadOnce::new("dynamodb", aws_sdk_dynamodb::meta::PKG_VERSION));
    let client = aws_sdk_dynamodb::Client::from_conf(config.build());
    Limiter::on_table(home, settings, client, table)
}

#[pymethods]
impl Limiter {
    /// A request for tokens: `await` it, or enter it by `async with` or `with`. Its keywords are
    /// those of `Options`.
    #[pyo3(signature = (entity, resource, consume, **options))]
    fn acquire(
        &self,
        entity: &str,
        resource: &str,
        consume: &Bound<'_, PyAny>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Acquire> {
        self.home.runtime()?;
        let request = request(entity, resource, consume, options)?;
        Ok(Acquire::new(self.inner.clone(), request, self.home, self.begin))
    }

    /// Takes leased tokens that this process holds; never waits. `None`: it does not hold them, and
    /// leases more in the background. Await the first request on a bucket.
    #[pyo3(signature = (entity, resource, consume, **options))]
    fn try_acquire(
        &self,
        entity: &str,
        resource: &str,
        consume: &Bound<'_, PyAny>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Option<Permit>> {
        // A miss leases in the background.
        let _in_runtime = self.home.runtime()?.enter();
        let request = request(entity, resource, consume, options)?.bind(&self.inner);
        let permit = request.try_acquire().map_err(|error| invalid_request(&error))?;
        Ok(permit.map(|permit| Permit::new(permit, self.home)))
    }

    /// Checks a request once, to make it many times from leased tokens.
    fn prepare(&self, request: &Bound<'_, Acquire>) -> PyResult<Call> {
        let (limiter, home) = (self.inner.clone(), self.home);
        let request = request.get().request();
        Call::new(home, Begin::OnRuntime, "prepare", async move {
            let prepared = request.bind(&limiter).prepare().await;
            ready(move |py| {
                let prepared = prepared.map_err(|error| of_acquire(py, error))?;
                Ok(Prepared { inner: Arc::new(prepared), home })
            })
        })
    }

    /// The status of all limits of a bucket, by one read; takes nothing.
    #[pyo3(signature = (entity, resource, *, limits=None))]
    fn peek(
        &self,
        entity: String,
        resource: String,
        limits: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Call> {
        let limits =
            limits.map(|given| self::limits("limits", given)).transpose()?.unwrap_or_default();
        let limiter = self.inner.clone();
        Call::new(self.home, Begin::OnRuntime, "peek", async move {
            let found = limiter.peek(entity, resource).limits(limits).await;
            ready(|py| statuses(py, &found.map_err(|error| of_acquire(py, error))?))
        })
    }

    /// True if it only watches.
    #[getter]
    fn shadow(&self) -> bool {
        self.inner.mode() == Mode::Shadow
    }

    /// Gives leased tokens back to the store; the log has those for which that failed.
    #[pyo3(signature = (timeout=None))]
    fn close(&self, timeout: Option<&Bound<'_, PyAny>>) -> PyResult<Call> {
        let timeout = timeout.map(|given| time("timeout", given)).transpose()?.flatten();
        let (limiter, timeout) = (self.inner.clone(), timeout.unwrap_or(CLOSED_WITHIN));
        Call::new(self.home, Begin::OnRuntime, "close", async move {
            for (bucket, error) in limiter.shutdown(timeout).await.unsettled {
                let (entity, resource) = (bucket.entity.as_str(), bucket.resource.as_str());
                tracing::warn!(target: "sluicegate", entity, resource, %error, "leased tokens were not given back");
            }
            ready(|py| Ok(py.None()))
        })
    }
}
