//! The parts of a server that requests use; some of them can be replaced while it runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use arc_swap::{ArcSwap, Guard};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sluicegate::types::{Amounts, LimitName, Millitokens};
use sluicegate::{AcquireError, AdjustError, EntityId, Limit, Limiter};
use tokio::sync::Semaphore;
use tokio::task::JoinError;
use tokio_rustls::TlsAcceptor;
use tracing::Instrument as _;

use crate::callers::Callers;
use crate::config::{Bounds, Config, KeySource, OnUnavailable, Permits};
use crate::envoy::Rules;
use crate::metrics::RequestMetrics;
use crate::permit_id::PermitIds;
use crate::prices::PriceList;
use crate::start_error::StartError;
use crate::tls::acceptor;

/// The state of a server.
pub(crate) struct ServerState {
    pub(crate) limiter: Limiter,
    pub(crate) bounds: Bounds,
    /// True: while the store is unavailable, the Envoy service admits what it cannot peek at, and
    /// counts nothing that it cannot count. Acquires follow the limiter's outage policy.
    pub(crate) admits_in_outage: bool,
    /// The number of requests in flight; those count whose clients have left while work goes on.
    pub(crate) in_flight: AtomicUsize,
    /// One for each request that may wait for tokens.
    pub(crate) waiting_slots: Semaphore,
    /// The time of the store's last answer if it is ready, and the answer. The lock is held while
    /// it is asked.
    pub(crate) readiness: tokio::sync::Mutex<Option<(Instant, bool)>>,
    pub(crate) request_metrics: RequestMetrics,
    /// Signs the ids of permits if the configuration names no key.
    random_key: [u8; 32],
    /// The beginning of the names of this process's permits.
    name: String,
    permits: AtomicU64,
    /// The configuration, as of the last reload.
    reloadable: ArcSwap<Reloadable>,
}

/// The place of a request among those in flight. Work that goes on when the client has left keeps
/// it, so that a server ends after that work.
#[derive(Clone)]
pub(crate) struct Slot(#[expect(dead_code, reason = "held")] Arc<HeldSlot>);

struct HeldSlot(Arc<ServerState>);

impl Drop for HeldSlot {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Release);
    }
}

impl Slot {
    /// A place, if one is free.
    pub(crate) fn of(state: &Arc<ServerState>) -> Option<Self> {
        let one_more = |count| (count < state.bounds.requests).then_some(count + 1);
        state.in_flight.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        Some(Self(Arc::new(HeldSlot(Arc::clone(state)))))
    }

    /// Does the work to its end, also if the client does not wait for the answer.
    ///
    /// # Errors
    /// If the work panics.
    pub(crate) async fn finish<T: Send + 'static>(
        self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, JoinError> {
        let work = async move {
            let _slot = self;
            work.await
        };
        tokio::spawn(work.in_current_span()).await
    }
}

/// The parts that a reload replaces.
pub(crate) struct Reloadable {
    pub(crate) callers: Callers,
    pub(crate) ids: PermitIds,
    /// False: the key of `ids` is a random one.
    has_keys: bool,
    /// `None`: requests name amounts.
    pub(crate) prices: Option<PriceList>,
    /// `None`: connections are not encrypted.
    pub(crate) tls: Option<TlsAcceptor>,
    pub(crate) access_log: bool,
    /// `None`: the server does not offer Envoy's service.
    pub(crate) rules: Option<Rules>,
}

impl Reloadable {
    fn new(config: &Config, random_key: &[u8]) -> Result<Self, StartError> {
        Ok(Self {
            callers: Callers::new(config.callers.clone(), config.listen.without_callers),
            ids: ids(&config.permits, random_key)?,
            has_keys: !config.permits.keys.is_empty(),
            prices: config.prices.as_ref().map(PriceList::read).transpose()?,
            tls: config.tls.as_ref().map(acceptor).transpose().map_err(StartError::Tls)?,
            access_log: config.access_log,
            rules: config.envoy.as_ref().map(Rules::new).transpose().map_err(StartError::Rule)?,
        })
    }
}

impl ServerState {
    pub(crate) fn new(limiter: Limiter, config: &Config) -> Result<Self, StartError> {
        let random_key = random()?;
        let reloadable = ArcSwap::from_pointee(Reloadable::new(config, &random_key)?);
        let bounds = config.bounds;
        Ok(Self {
            limiter,
            bounds,
            admits_in_outage: matches!(
                config.on_unavailable,
                OnUnavailable::Allow | OnUnavailable::Local
            ),
            in_flight: AtomicUsize::new(0),
            // Those that do not wait still have places.
            waiting_slots: Semaphore::new((bounds.requests / 2).clamp(1, Semaphore::MAX_PERMITS)),
            readiness: tokio::sync::Mutex::default(),
            request_metrics: RequestMetrics::new(),
            random_key,
            name: URL_SAFE_NO_PAD.encode(random::<12>()?),
            permits: AtomicU64::new(0),
            reloadable,
        })
    }

    /// Counts an amount of a limit that the bucket of this entity does not have yet: only an
    /// acquire adds a limit.
    ///
    /// # Errors
    /// That of the acquire; `Unavailable` if the store did not answer it, or if only the correction
    /// after it failed.
    pub(crate) async fn count_new_limit(
        &self,
        entity: &EntityId,
        resource: &str,
        limits: Vec<Limit>,
        limit: &LimitName,
        amount: Millitokens,
    ) -> Result<(), AcquireError> {
        let request = self.limiter.acquire(entity.as_str(), resource);
        let request = request.no_cascade().limits(limits.clone());
        let permit = match request.consume_milli(limit.as_str(), 1).await {
            Ok(permit) => permit,
            // Another request has added it and left a debt.
            Err(AcquireError::LimitExceeded(_)) => {
                let request = self.limiter.adjust(entity.as_str(), resource).no_cascade();
                let amounts = Amounts::from([(limit.clone(), amount)]);
                let adjusted = request.limits(limits).by_all(&amounts).await;
                return adjusted.map(drop).map_err(not_counted);
            }
            Err(error) => return Err(error),
        };
        if permit.degraded().is_some() {
            return Err(AcquireError::Unavailable("the store did not answer".into()));
        }
        // Negative amounts are given back, so this is no correction to a total.
        let rest = Millitokens::saturating(i128::from(amount.get()) - 1);
        let corrected = permit.adjust_all(&Amounts::from([(limit.clone(), rest)])).await;
        corrected.map(drop).map_err(not_counted)
    }

    /// A name that no other permit has, of this process or another one.
    pub(crate) fn permit_name(&self) -> String {
        format!("{}{:x}", self.name, self.permits.fetch_add(1, Ordering::Relaxed))
    }

    /// The reloadable parts, as of the last reload.
    pub(crate) fn reloadable(&self) -> Guard<Arc<Reloadable>> {
        self.reloadable.load()
    }

    /// Replaces the reloadable parts. Connections stay encrypted, or not, as they are. A file that
    /// lacks callers or keys may have been read while another program wrote it.
    pub(crate) fn reload(&self, config: &Config) -> Result<(), StartError> {
        let mut reloadable = Reloadable::new(config, &self.random_key)?;
        let running = self.reloadable();
        let has_no_callers = reloadable.callers.is_empty() && !config.listen.without_callers;
        if has_no_callers && !running.callers.is_empty() {
            return Err(StartError::Missing("callers"));
        }
        if running.has_keys && !reloadable.has_keys {
            return Err(StartError::Missing("permits.keys"));
        }
        if reloadable.tls.is_some() != running.tls.is_some() {
            reloadable.tls = running.tls.clone();
        }
        self.reloadable.store(Arc::new(reloadable));
        Ok(())
    }
}

fn not_counted(error: AdjustError) -> AcquireError {
    match error {
        AdjustError::Setup(setup) => setup.into(),
        AdjustError::InvalidRequest(invalid) => invalid.into(),
        error => AcquireError::Unavailable(error.into()),
    }
}

/// The keys that sign ids, and that check them.
fn ids(permits: &Permits, random_key: &[u8]) -> Result<PermitIds, StartError> {
    let keys = permits.keys.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    let keys = if keys.is_empty() { vec![random_key.to_vec()] } else { keys };
    PermitIds::new(&keys, permits.valid_for_s).ok_or(StartError::ShortKey)
}

/// The bytes of a key, without white space at its ends.
fn read(key: &KeySource) -> Result<Vec<u8>, StartError> {
    let (from, key) = match key {
        KeySource::File(file) => {
            let key = std::fs::read(file).map_err(|error| error.to_string());
            (format!("in {}", file.display()), key)
        }
        KeySource::Env(variable) => {
            let key = std::env::var(variable).map_err(|error| error.to_string());
            (format!("in the variable {variable}"), key.map(String::into_bytes))
        }
    };
    let key = key.map_err(|reason| StartError::Key { from, reason })?;
    Ok(key.trim_ascii().to_vec())
}

fn random<const N: usize>() -> Result<[u8; N], StartError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(StartError::Random)?;
    Ok(bytes)
}
