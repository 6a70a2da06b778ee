//! Settings of a poller, with the names of an event source mapping's settings if they exist there.

use std::time::Duration;

use crate::Error;

/// The most records in a batch: 1 to 10,000, as Lambda allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchSize(usize);

impl BatchSize {
    /// Lambda's own limit.
    pub const MAX: usize = 10_000;

    /// A batch size.
    ///
    /// # Errors
    /// [`Error::Setting`] outside 1 to 10,000.
    pub fn new(records: usize) -> Result<Self, Error> {
        if (1..=Self::MAX).contains(&records) {
            return Ok(Self(records));
        }
        Err(Error::Setting {
            setting: "batch size",
            value: records.to_string(),
            range: "1 to 10000 records",
        })
    }

    /// Number of records.
    #[must_use]
    pub fn get(self) -> usize {
        self.0
    }
}

impl Default for BatchSize {
    /// 100 records, Lambda's default for DynamoDB.
    fn default() -> Self {
        Self(100)
    }
}

/// Waiting times between deliveries of the same records: doubled each time, up to `longest`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// Before the second delivery.
    pub first: Duration,
    /// Never longer than this.
    pub longest: Duration,
}

impl Backoff {
    /// The wait after `attempts` deliveries without progress.
    pub(super) fn after(&self, attempts: u32) -> Duration {
        let doublings = attempts.saturating_sub(1).min(31);
        self.first.saturating_mul(1 << doublings).min(self.longest)
    }
}

/// The frequencies of the faults that at-least-once delivery allows, in percent of the batches; 100
/// and above is always. The same seed over the same records makes the same choices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Duplicates {
    /// Seed of the choices; each shard derives its own from it.
    pub seed: u64,
    /// After a batch succeeded, go back to one of the last few and deliver from there again.
    pub redeliver_percent: u8,
    /// Begin a batch with the last records of the one before.
    pub overlap_percent: u8,
    /// Cut a batch short at a random record.
    pub split_percent: u8,
}

impl Duplicates {
    /// Each fault in one of four batches.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self { seed, redeliver_percent: 25, overlap_percent: 25, split_percent: 25 }
    }
}

/// The settings of a poller: its batches, its retries, its misbehaviour.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The most records in a batch. A batch is also cut at Lambda's 6 MB of payload.
    pub batch_size: BatchSize,
    /// Waits between attempts.
    pub backoff: Backoff,
    /// Deliver more than once, on purpose.
    pub duplicates: Option<Duplicates>,
    /// The wait of a run that follows the stream before it reads an empty shard again.
    pub idle_interval: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            batch_size: BatchSize::default(),
            backoff: Backoff {
                first: Duration::from_millis(100),
                longest: Duration::from_secs(10),
            },
            duplicates: None,
            idle_interval: Duration::from_millis(200),
        }
    }
}
