//! The whole loop in one process: engine, table, stream, processor.
//!
//! A batch counts as processed when its windows are written, and only processed records are ever
//! trimmed. Windows refuse records that they have counted, so a loop that was killed starts again
//! at the oldest record left and counts nothing twice: there is no checkpoint that could be wrong.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use sluicegate::dynamo::TableSetupError;
use sluicegate_processor::{Processor, Settings};
use tokio::time::Instant;

use crate::function::{InProcess, Observer};
use crate::poller::{self, BatchSize, Checkpoints, Poller, StreamSource};
use crate::server::{self, Server};
use crate::sqlite::{Keep, StreamLog};
use crate::{EmbeddedEngine, Error, Storage, client, table};

/// The time for writing one batch, as in the Lambda.
const BATCH_TIME: Duration = Duration::from_secs(60);
/// Records in a batch: each window is written once for all of them.
const BATCH_RECORDS: usize = 1_000;
const TIDY_INTERVAL: Duration = Duration::from_secs(2);
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);
/// The time that the shutdown may take without writing a batch: on a full disk it never writes one.
const STALL: Duration = Duration::from_secs(20);
/// The processed records to keep, for comparisons of windows with the stream. A restart delivers
/// them again.
const KEEP: Keep = Keep { newest: 10_000, within: Duration::from_secs(24 * 3_600) };

/// The parts of a loop.
#[derive(Clone)]
pub struct LoopOptions {
    /// The loopback port to serve; 0 for one that is free.
    pub port: u16,
    /// The place of the data: [`Storage::Temporary`] or [`Storage::File`] for runs of any length.
    pub storage: Storage,
    /// The table, created if absent, and the windows to count.
    pub settings: Settings,
    /// Receives the outcome of every batch.
    pub observer: Option<Observer>,
}

/// A running engine whose stream [`run_until`](Self::run_until) feeds to the processor.
pub struct LocalLoop {
    engine: EmbeddedEngine,
    /// For producers and readers. The loop itself uses the engine's own port, so that it can finish
    /// after this one is closed.
    public: Server,
    poller: Poller<StreamSource, InProcess>,
    log: Option<StreamLog>,
    /// The number of batches that were written.
    written: Arc<AtomicU64>,
}

impl LocalLoop {
    /// Starts the engine and creates the table, or opens the existing one in the file. From here on
    /// producers can write.
    ///
    /// # Errors
    /// [`Error::Port`] if the port is in use, before anything else is touched; [`Error::Engine`]
    /// for the storage; [`Error::Table`] for a table that cannot be used.
    pub async fn start(options: LoopOptions) -> Result<Self, Error> {
        let LoopOptions { port, storage, settings, observer } = options;
        let listener = server::listen(port).await?;
        let engine = EmbeddedEngine::start(storage).await?;
        let url = engine.endpoint_url();
        let client = client::dynamodb(&url);
        let table = settings.table.clone();
        match table::create_table(&client, &table).await {
            Ok(()) | Err(TableSetupError::Exists { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        let arn = table::stream_arn(&client, &table).await?;
        let log = engine.file().map(|file| StreamLog::open(file, &table)).transpose()?;
        let source = StreamSource::new(client::streams(&url), arn);
        let written = Arc::new(AtomicU64::new(0));
        let handler = InProcess::new(Processor::new(client, settings), BATCH_TIME);
        let counted = Arc::clone(&written);
        let handler = handler.observed_by(Arc::new(move |outcome| {
            if outcome.failures.is_empty() {
                counted.fetch_add(1, Ordering::Relaxed);
            }
            if let Some(observer) = &observer {
                observer(outcome);
            }
        }));
        let polling = poller::Settings {
            batch_size: BatchSize::new(BATCH_RECORDS)?,
            ..poller::Settings::default()
        };
        let poller = Poller::new(source, handler, polling);
        let public = Server::start(listener, engine.database().clone())?;
        Ok(Self { engine, public, poller, log, written })
    }

    /// `http://127.0.0.1:<port>`, for producers and readers.
    #[must_use]
    pub fn endpoint_url(&self) -> String {
        self.public.endpoint_url()
    }

    /// The port for producers, and the loop's own.
    #[cfg(test)]
    pub(crate) fn ports(&self) -> [String; 2] {
        [self.public.endpoint_url(), self.engine.endpoint_url()]
    }

    /// Feeds the processor until `shutdown` resolves. Then stops answering producers, counts the
    /// records that they have written, and closes the storage.
    ///
    /// # Errors
    /// [`Error::Engine`] and [`Error::Stream`] if the storage fails; [`Error::Stalled`] if no batch
    /// is written for twenty seconds after the shutdown: the next start counts the rest.
    pub async fn run_until(self, shutdown: impl Future<Output = ()> + Send) -> Result<(), Error> {
        let written = Arc::clone(&self.written);
        let shutdown = shutdown.shared();
        let stalled = async {
            // `run` does not look for the shutdown while it ends a turn, which may take a minute.
            shutdown.clone().await;
            loop {
                let before = written.load(Ordering::Relaxed);
                tokio::time::sleep(STALL).await;
                if written.load(Ordering::Relaxed) == before {
                    return;
                }
            }
        };
        // A drop halfway leaves the state of a killed process: the next start counts the rest.
        tokio::select! {
            ended = self.run(shutdown.clone()) => ended,
            () = stalled => Err(Error::Stalled { waited: STALL }),
        }
    }

    async fn run(self, shutdown: impl Future<Output = ()> + Send) -> Result<(), Error> {
        let Self { engine, public, mut poller, log, .. } = self;
        let mut next_sweep = Instant::now() + SWEEP_INTERVAL;
        let mut shutdown = pin!(shutdown);
        while poller.turn(TIDY_INTERVAL, shutdown.as_mut()).await? {
            let checkpoints = poller.checkpoints();
            let tidied = tidy(&engine, &checkpoints, log.as_ref(), &mut next_sweep).await;
            if let Err(error) = tidied {
                tracing::warn!(%error, "the engine's file grows until that is possible again");
            }
        }
        public.stop().await?;
        poller.drain().await?;
        drop((poller, log));
        engine.stop().await
    }
}

/// Does the tasks that DynamoDB does by itself: trims the stream, deletes expired items.
async fn tidy(
    engine: &EmbeddedEngine,
    checkpoints: &Checkpoints,
    log: Option<&StreamLog>,
    next_sweep: &mut Instant,
) -> Result<(), Error> {
    let is_sweep_due = Instant::now() >= *next_sweep;
    if is_sweep_due {
        *next_sweep = Instant::now() + SWEEP_INTERVAL;
    }
    let mut all_recent = true;
    if let Some(log) = log {
        for position in checkpoints.values() {
            all_recent &= log.trim(position, KEEP).await?;
        }
    }
    // A record that is delivered again after its window expired would make a new window, so old
    // records are deleted first.
    if is_sweep_due && all_recent {
        engine.sweep_ttl().await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use futures_util::TryStreamExt;
    use sluicegate::dynamo::DynamoTable;
    use sluicegate::dynamo::Reader;
    use sluicegate::{CompositeStore, Limit, Limiter, OnUnavailable};
    use sluicegate_core::{EntityId, EpochMillis, WindowKind, WindowSpan};

    use super::*;

    const TABLE: &str = "sluicegate-loop";
    const ENTITY: &str = "user-1";

    fn options(storage: Storage) -> LoopOptions {
        LoopOptions { port: 0, storage, settings: Settings::new(TABLE), observer: None }
    }

    async fn acquire(url: &str, times: u32) {
        let table = DynamoTable::new(&client::dynamodb(url), TABLE);
        let limiter = Limiter::builder(CompositeStore::with_table(table))
            .deadline(Duration::from_secs(60))
            .on_unavailable(OnUnavailable::Deny)
            .build();
        for _ in 0..times {
            let limits = [Limit::per_hour("rph", 1_000_000)];
            let request = limiter.acquire(ENTITY, "model").consume("rph", 1).limits(limits);
            request.no_cascade().await.unwrap();
        }
    }

    /// Tokens of `rph` in all day windows.
    async fn counted(url: &str) -> i128 {
        let reader = Reader::new(client::dynamodb(url), TABLE);
        let starts = EpochMillis::MIN..EpochMillis::MAX;
        let all = WindowSpan { kind: WindowKind::DAY, starts };
        let windows = reader.usage_of_entity(&EntityId::new(ENTITY).unwrap(), &all);
        let windows: Vec<_> = windows.try_collect().await.unwrap();
        windows.iter().flat_map(|window| window.consumed_milli.values()).sum::<i128>() / 1_000
    }

    async fn wait_for(url: &str, tokens: i128) {
        let wait = async {
            while counted(url).await != tokens {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), wait).await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn usage_appears_while_it_runs_and_a_stop_counts_the_rest() {
        let folder = tempfile::tempdir().unwrap();
        let storage = Storage::File(folder.path().join("local.db"));
        let local = LocalLoop::start(options(storage.clone())).await.unwrap();
        let url = local.endpoint_url();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let run = tokio::spawn(local.run_until(async { stopped.await.unwrap() }));
        acquire(&url, 5).await;
        wait_for(&url, 5).await;
        acquire(&url, 20).await;
        stop.send(()).unwrap();
        run.await.unwrap().unwrap();

        let engine = EmbeddedEngine::start(storage).await.unwrap();
        assert_eq!(counted(&engine.endpoint_url()).await, 25);
        engine.stop().await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_start_counts_what_a_killed_run_left_and_nothing_twice() {
        let folder = tempfile::tempdir().unwrap();
        let storage = Storage::File(folder.path().join("local.db"));
        // Never run, only dropped: all records are left.
        let killed = LocalLoop::start(options(storage.clone())).await.unwrap();
        acquire(&killed.endpoint_url(), 7).await;
        drop(killed);

        for again in 0..2 {
            let records = Arc::new(AtomicU64::new(0));
            let delivered = Arc::clone(&records);
            let observer: Observer = Arc::new(move |outcome| {
                delivered.fetch_add(outcome.report.records, Ordering::Relaxed);
            });
            let options = LoopOptions { observer: Some(observer), ..options(storage.clone()) };
            let local = LocalLoop::start(options).await.unwrap();
            let url = local.endpoint_url();
            acquire(&url, 1).await;
            local.run_until(async {}).await.unwrap();
            let records = records.load(Ordering::Relaxed);
            assert!(records >= 8, "the stream still holds what was counted: {records}");
            let engine = EmbeddedEngine::start(storage.clone()).await.unwrap();
            assert_eq!(counted(&engine.endpoint_url()).await, 8 + again);
            engine.stop().await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_port_in_use_is_said_before_a_file_is_made() {
        let taken = server::listen(0).await.unwrap();
        let port = taken.local_addr().unwrap().port();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("local.db");
        let options = LoopOptions { port, ..options(Storage::File(file.clone())) };
        let refused = LocalLoop::start(options).await;
        assert!(matches!(refused, Err(Error::Port { port: named, .. }) if named == port));
        assert!(!file.exists());
    }
}
