//! The store that a configuration names, and a limiter on it.

use std::time::Duration;

use futures_util::FutureExt as _;
use sluicegate::leasing::LeasingStore;
use sluicegate::redis::RedisStore;
use sluicegate::{DynamoStore, LeaseMode, LeaseSettings, Limit, LimitSet, Limiter, OnUnavailable};
use sluicegate_local::{LocalLoop, LoopOptions, Storage, client};
use sluicegate_processor::Settings;
use sluicegate_server::Config;
use sluicegate_server::config::{self, Dynamodb, Embedded, Mode, Redis, Store};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::error::CliError;
use crate::options::Options;

/// A limiter, and the embedded engine if it uses one.
pub(super) struct OpenStore {
    pub(super) limiter: Limiter,
    pub(super) embedded: Option<RunningLoop>,
}

/// The embedded engine, which counts usage until it is stopped.
pub(super) struct RunningLoop {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), sluicegate_local::Error>>,
}

/// Checks the settings of the store, without a call to it.
///
/// # Errors
/// [`CliError::BadInput`].
pub(super) fn check(config: &Config, options: &Options) -> Result<(), CliError> {
    match config.store.clone().unwrap_or_default() {
        Store { redis: Some(redis), .. } => redis_store(&redis).map(drop),
        Store { dynamodb, embedded: None, .. } => with(options, dynamodb.as_ref()).check(),
        Store { .. } => Ok(()),
    }
}

impl OpenStore {
    pub(super) async fn open(config: &Config, options: &Options) -> Result<Self, CliError> {
        let Store { dynamodb, redis, embedded } = config.store.clone().unwrap_or_default();
        match (dynamodb, redis, embedded) {
            (_, Some(redis), _) => {
                let limiter = limiter(redis_store(&redis)?, config)?;
                Ok(Self { limiter, embedded: None })
            }
            (_, None, Some(embedded)) => Self::embedded(config, &embedded, options).await,
            (named, None, None) => {
                let connection = with(options, named.as_ref()).connect().await?;
                let store = DynamoStore::with_table(connection.dynamo_table().await?);
                Ok(Self { limiter: limiter(store, config)?, embedded: None })
            }
        }
    }

    async fn embedded(
        config: &Config,
        embedded: &Embedded,
        options: &Options,
    ) -> Result<Self, CliError> {
        let settings = Settings::new(options.table());
        let storage = embedded.file.clone().map_or(Storage::Temporary, Storage::File);
        let parts = LoopOptions { port: 0, storage, settings, observer: None };
        let local = LocalLoop::start(parts).await?;
        let client = client::dynamodb(&local.endpoint_url());
        let limiter = limiter(DynamoStore::new(client, options.table()), config)?;
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(local.run_until(stopped.map(drop)));
        Ok(Self { limiter, embedded: Some(RunningLoop { stop, task }) })
    }
}

impl RunningLoop {
    /// Counts the records that are left, and closes the storage.
    pub(super) async fn stop(self) -> Result<(), CliError> {
        // It may have ended by itself; then its error is below.
        let _ = self.stop.send(());
        let ended = self.task.await;
        ended.map_err(|error| CliError::Store(error.to_string()))?.map_err(CliError::from)
    }
}

/// The options with the table that the configuration names.
fn with(options: &Options, named: Option<&Dynamodb>) -> Options {
    let mut options = options.clone();
    if let Some(Dynamodb { table, endpoint_url, region }) = named {
        options.table = options.table.or_else(|| Some(table.clone()));
        options.endpoint_url = options.endpoint_url.or_else(|| endpoint_url.clone());
        options.region = options.region.or_else(|| region.clone());
    }
    options
}

fn redis_store(redis: &Redis) -> Result<RedisStore, CliError> {
    let store = RedisStore::new(redis.url.as_str())
        .map_err(|error| CliError::BadInput(format!("store.redis.url: {error}")))?;
    Ok(match &redis.prefix {
        Some(prefix) => store.prefix(prefix),
        None => store,
    })
}

fn limiter<S: LeasingStore>(store: S, config: &Config) -> Result<Limiter, CliError> {
    let limits: Result<Vec<Limit>, _> = config.limits.iter().map(|limit| limit.parse()).collect();
    let limits = LimitSet::new(limits.map_err(CliError::bad)?).map_err(CliError::bad)?;
    let mut builder = Limiter::builder(store).default_limits(limits).on_unavailable(
        match config.on_unavailable {
            config::OnUnavailable::Allow => OnUnavailable::Allow,
            config::OnUnavailable::Deny => OnUnavailable::Deny,
            config::OnUnavailable::Local => OnUnavailable::Local,
        },
    );
    if let Some(millis) = config.deadline_ms {
        builder = builder.deadline(Duration::from_millis(millis));
    }
    if let Some(leasing) = config.leasing {
        let mode = match leasing.mode {
            Mode::Strict => LeaseMode::default(),
            Mode::WriteBehind => LeaseMode::WriteBehind { threshold: leasing.threshold },
        };
        builder = builder.leasing(LeaseSettings { mode, ..LeaseSettings::default() });
    }
    Ok(builder.build())
}
