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

/// The settings of a poller: its batches and its retries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The most records in a batch. A batch is also cut at Lambda's 6 MB of payload.
    pub batch_size: BatchSize,
    /// Waits between attempts.
    pub backoff: Backoff,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            batch_size: BatchSize::default(),
            backoff: Backoff {
                first: Duration::from_millis(100),
                longest: Duration::from_secs(10),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_size_is_1_to_10_000() {
        assert!(BatchSize::new(0).is_err());
        assert!(BatchSize::new(10_001).is_err());
        assert_eq!(BatchSize::new(10_000).unwrap().get(), 10_000);
    }

    #[test]
    fn waits_double_up_to_the_longest() {
        let backoff =
            Backoff { first: Duration::from_millis(100), longest: Duration::from_millis(350) };
        let waits: Vec<_> = [1, 2, 3, 200].map(|n| backoff.after(n).as_millis()).into();
        assert_eq!(waits, [100, 200, 350, 350]);
    }
}
