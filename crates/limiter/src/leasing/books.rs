//! What is known of the tokens of a bucket beside their number.

use std::sync::Arc;

use sluicegate_core::{Configuration, RequestId};
use tokio::time::Instant;

use super::account::Account;
use super::draft::Draft;
use super::settings::{Accounting, LeaseMode, LeaseSettings};
use crate::lessor::Doubt;

/// Corrections that the store may have made are remembered, at most so many of a bucket.
const DOUBTFUL_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct Books {
    pub(super) accounts: Vec<Account>,
    pub(super) configuration: Arc<Configuration>,
    /// One write at a time.
    pub(super) flight: Arc<tokio::sync::Mutex<()>>,
    /// When the last lease ends.
    pub(super) ends_ms: i64,
    /// When somebody looked and found that it was asked.
    pub(super) used_at_ms: i64,
    /// The time when somebody looked last.
    pub(super) seen_ms: i64,
    /// A write whose answer was lost, and what it was to settle.
    pub(super) unanswered: Option<Box<(Doubt, Draft)>>,
    /// When a write was answered last, whatever it was told.
    pub(super) answered_at: Option<Instant>,
    /// The last write that was answered.
    pub(super) answered: Option<RequestId>,
    /// The id of a commit that is under way or was not answered.
    pub(super) commit: Option<RequestId>,
    /// Corrections that the store may have made: if they come again, it is asked again.
    doubtful: Vec<RequestId>,
}

/// The times that a draft is made by, in milliseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    pub(super) now: i64,
    /// How long a renewal takes.
    pub(super) lead: i64,
}

impl Books {
    pub(super) fn new(limits: usize, configuration: Arc<Configuration>, now_ms: i64) -> Self {
        Self {
            accounts: (0..limits).map(|_| Account::default()).collect(),
            configuration,
            flight: Arc::default(),
            ends_ms: i64::MIN,
            used_at_ms: now_ms,
            seen_ms: i64::MIN,
            unanswered: None,
            answered_at: None,
            answered: None,
            commit: None,
            doubtful: Vec::new(),
        }
    }

    /// Whether nothing is left to hand out.
    pub(super) fn is_empty(&self) -> bool {
        self.accounts.iter().all(|account| account.until_ms().is_none())
    }

    /// Whether there is something that the store must be told.
    pub(super) fn has_open(&self, settings: &LeaseSettings) -> bool {
        self.unanswered.is_some()
            || self.accounts.iter().any(|account| match settings.mode {
                LeaseMode::Strict(Accounting::AtLease) => account.retired > 0,
                LeaseMode::Strict(Accounting::AtSettle) => account.retired > 0 || account.used != 0,
                LeaseMode::WriteBehind { .. } => account.used != 0 || account.in_flight != 0,
            })
    }

    /// How long ago the oldest unit was handed out, or given back, that the store was not told of.
    pub(super) fn open_for_ms(&self, now_ms: i64) -> Option<i64> {
        let oldest = self.accounts.iter().filter_map(|account| account.open_since_ms).min()?;
        Some(now_ms.saturating_sub(oldest))
    }

    pub(super) fn doubt(&mut self, id: &RequestId) {
        if self.doubtful.len() == DOUBTFUL_MAX {
            self.doubtful.remove(0);
        }
        self.doubtful.push(id.clone());
    }

    pub(super) fn is_doubtful(&self, id: &RequestId) -> bool {
        self.doubtful.contains(id)
    }
}
