//! A stream poller with the semantics of Lambda's event source mapping.
//!
//! Records are delivered per shard in order, one batch at a time; parents before their children;
//! different shards concurrently. A batch counts as done only when the handler said so, and only
//! then the shard's checkpoint moves past it: however the poller ends, nothing is lost and the rest
//! is delivered again.
//!
//! A batch that fails as a whole is halved, and what fails is delivered again without end: no record
//! is given up. Other features of Lambda (batching and tumbling windows, filters, parallelisation
//! within a shard, limits of attempts and age) are missing.

mod batch;
mod context;
mod handler;
mod record;
mod settings;
mod shard;
mod source;
mod stream;

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::watch;
use tokio::time::Instant;

pub use handler::Handler;
pub use settings::{Backoff, BatchSize, Settings};
pub use source::{Checkpoints, Page, Position, Record, Shard, Source};
pub use stream::StreamSource;

use crate::Error;
use context::{Context, Mode, lock};
use shard::{Outcome, Worker};

/// The interval at which a poller that follows a stream looks for new shards. The children of a
/// shard that ended are looked for at once.
const LISTING_INTERVAL: Duration = Duration::from_secs(30);
/// The pause between reads of an idle stream: usage should be visible well within a second.
const IDLE_INTERVAL: Duration = Duration::from_millis(200);

/// Feeds the records of a source to a handler.
pub struct Poller<S, H> {
    source: S,
    handler: H,
    settings: Settings,
    /// Updated by every batch, so that it holds even if a run is dropped halfway.
    checkpoints: Mutex<Checkpoints>,
    failing: Mutex<BTreeSet<String>>,
    /// Shards that were read to their end; their children may start.
    finished: BTreeSet<String>,
}

impl<S: Source, H: Handler> Poller<S, H> {
    /// A poller that starts at the oldest record of every shard.
    pub fn new(source: S, handler: H, settings: Settings) -> Self {
        Self {
            source,
            handler,
            settings,
            checkpoints: Mutex::default(),
            failing: Mutex::default(),
            finished: BTreeSet::new(),
        }
    }

    /// Starts after these checkpoints instead, for the shards that have one.
    #[must_use]
    pub fn starting_after(self, checkpoints: Checkpoints) -> Self {
        *lock(&self.checkpoints) = checkpoints;
        self
    }

    /// Position after the last record done, per shard.
    pub fn checkpoints(&self) -> Checkpoints {
        lock(&self.checkpoints).clone()
    }

    /// Polls until every shard is at its end: a closed one read to the end, an open one up to the
    /// records that were made after the drain began.
    ///
    /// # Errors
    /// The errors of the source.
    pub async fn drain(&mut self) -> Result<(), Error> {
        self.drain_until(std::future::pending()).await
    }

    /// As [`drain`](Self::drain), but at the latest until `shutdown` resolves; then delivers, once,
    /// a batch of what it has read of each shard.
    ///
    /// # Errors
    /// The errors of the source.
    pub async fn drain_until(
        &mut self,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Result<(), Error> {
        self.run_in(Mode::Drain, shutdown).await
    }

    async fn run_in(
        &mut self,
        mode: Mode,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Result<(), Error> {
        let (signal, stop) = watch::channel(false);
        let mut run = pin!(self.run(mode, stop));
        tokio::select! {
            result = &mut run => return result,
            () = shutdown => signal.send_replace(true),
        };
        run.await
    }

    /// Polls for `duration`, or until `shutdown` resolves, and waits for records that are not there
    /// yet; then delivers, once, a batch of what it has read of each shard. Returns true if it should
    /// continue, and false if `shutdown` resolved. Between two turns no call of the handler is in
    /// flight.
    ///
    /// # Errors
    /// None at present: a source that fails is asked again.
    pub async fn turn(
        &mut self,
        duration: Duration,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Result<bool, Error> {
        let mut goes_on = true;
        let turn = async {
            tokio::select! {
                () = shutdown => goes_on = false,
                () = tokio::time::sleep(duration) => {}
            }
        };
        self.run_in(Mode::Follow, turn).await?;
        Ok(goes_on)
    }

    async fn run(&mut self, mode: Mode, stop: watch::Receiver<bool>) -> Result<(), Error> {
        let Self { source, handler, settings, checkpoints, failing, finished } = self;
        let begin = (SystemTime::now(), Instant::now());
        let context =
            Context { source, handler, settings, checkpoints, failing, mode, begin, stop };
        let mut active = BTreeSet::new();
        let mut turns = FuturesUnordered::new();
        let mut next_listing = Instant::now();
        loop {
            if Instant::now() >= next_listing && !context.stopping() {
                for shard in context.startable(finished, &active).await? {
                    let start = lock(checkpoints).get(&shard.id).cloned();
                    let worker = Worker::new(&shard, start);
                    active.insert(shard.id);
                    turns.push(worker.turn(&context, Duration::ZERO));
                }
                next_listing = Instant::now() + LISTING_INTERVAL;
            }
            let Some(turn) = turns.next().await else {
                if mode == Mode::Drain || context.stopping() {
                    return Ok(());
                }
                // A stream that has no shard yet.
                context.pause(IDLE_INTERVAL).await;
                next_listing = Instant::now();
                continue;
            };
            let (worker, outcome) = turn?;
            match (outcome, mode) {
                (Outcome::Delivered, _) if context.stopping() => {}
                (Outcome::Delivered, _) => turns.push(worker.turn(&context, Duration::ZERO)),
                (Outcome::CaughtUp, Mode::Follow) => {
                    turns.push(worker.turn(&context, IDLE_INTERVAL));
                }
                (Outcome::Ended, _) => {
                    finished.insert(worker.into_shard());
                    next_listing = Instant::now();
                }
                // In a drain it stays active, so that no listing starts it again.
                (Outcome::CaughtUp, Mode::Drain) | (Outcome::Stopped, _) => {}
            }
        }
    }
}
