//! Claims the thresholds that a usage window reached, and puts their alerts into the outbox.
//!
//! The claim and the outbox entry are one transaction, with the condition that the window has no
//! such claim. A threshold is claimed if the window's sum reached it and the window has no claim of
//! it; the sum before this write does not matter. So a crash between the count and the claim loses
//! nothing: the batch is delivered again, its updates are refused, and the answer to a refused
//! update holds the window. No read is needed.
//!
//! A group is checked only if one of its records consumed something. Apart from a recount, only
//! such a record raises a sum, and the delivery that counts it is acknowledged only after its
//! claims are made.

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::{Put, TransactWriteItem};
use sluicegate_core::keys::ItemKey;
use sluicegate_core::{
    Alert, BucketId, EpochMillis, OutboxEntry, WindowGroup, WindowState, calendar_amounts,
};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::alert_partition::AlertPartition;
use crate::answer::WindowItem;
use crate::backoff::Backoff;
use crate::expressions;
use crate::outbox::Outbox;
use crate::outcome::Failure;
use crate::settings::{Settings, Switch};
use crate::transact::{NotDone, transact};
use crate::window_writer::WindowResult;
use crate::write_error::{WriteError, is_failed_condition};

/// A transaction takes 100 items, of which one is the window. The condition of the window names
/// each claim; with 50 of them it stays short.
const CLAIMS_PER_TRANSACTION: usize = 50;

/// Claims the thresholds of one window.
#[derive(Clone, Copy)]
pub(crate) struct AlertClaims<'a> {
    pub(crate) client: &'a Client,
    pub(crate) settings: &'a Settings,
    pub(crate) alert_partition: &'a AlertPartition,
    pub(crate) outbox: Option<&'a Outbox>,
    pub(crate) group: &'a WindowGroup<'a>,
    /// One for each transaction that may be in flight.
    pub(crate) slots: &'a Semaphore,
    pub(crate) now: EpochMillis,
    pub(crate) deadline: Instant,
}

/// The table's answer to one transaction of claims.
enum ClaimAnswer {
    Done(f64),
    /// The window has one of the claims, or does not exist.
    Refused(Option<WindowItem>),
}

impl AlertClaims<'_> {
    /// Claims the thresholds that the window reached, and adds the alerts to the result of writing
    /// it. If the claims cannot be made, the group must be delivered again from its first record.
    pub(crate) async fn claim(self, mut result: WindowResult) -> WindowResult {
        let Some(item) = result.item.take() else { return result };
        let state = state_of(item);
        if self.settings.alerts == Switch::Off || !state.has_usage() || !self.has_consumption() {
            return result;
        }
        if let Err(error) = self.claim_due(state, &mut result).await {
            let first = self.group.records().first().map(|record| record.sequence);
            let reason = format!(
                "the thresholds that the window reached could not be claimed: {}",
                error.reason()
            );
            result.failure = Some(Failure { first, reason });
        }
        result
    }

    /// True if some record of the group consumed something.
    fn has_consumption(self) -> bool {
        let mut deltas = self.group.records().iter().flat_map(|record| &record.deltas);
        deltas.any(|delta| delta.consumed_milli > 0)
    }

    async fn claim_due(
        self,
        mut state: WindowState,
        result: &mut WindowResult,
    ) -> Result<(), WriteError> {
        let thresholds = self
            .alert_partition
            .refresh(self.client, self.settings, self.outbox, self.deadline)
            .await?;
        let ItemKey::Usage(entity, resource, window) = self.group.key() else { return Ok(()) };
        let bucket = BucketId { entity, resource };
        let mut backoff = Backoff::until(self.deadline);
        loop {
            state.take_in_amounts(calendar_amounts(self.group.records(), window.kind()));
            let mut due = state.due(&thresholds, &bucket, window);
            due.truncate(CLAIMS_PER_TRANSACTION);
            if due.is_empty() {
                return Ok(());
            }
            let slot = self.slots.acquire().await;
            let answer = self.send(&due).await;
            drop(slot);
            match answer {
                Ok(ClaimAnswer::Done(write_units)) => {
                    result.write_units += write_units;
                    result.alerts += u64::try_from(due.len()).unwrap_or(u64::MAX);
                    state.claimed.extend(due.iter().map(Alert::claim));
                    if let Some(outbox) = self.outbox {
                        outbox.add(due.into_iter().map(|alert| self.entry(alert)));
                    }
                }
                // Another delivery claimed some of them, or this one did and its answer was lost.
                Ok(ClaimAnswer::Refused(Some(item))) => state = state_of(item),
                // The window expired.
                Ok(ClaimAnswer::Refused(None)) => return Ok(()),
                Err(error @ WriteError::Transient { .. }) => {
                    if !backoff.pause().await {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn send(self, due: &[Alert]) -> Result<ClaimAnswer, WriteError> {
        let transaction = transact(self.client, self.transaction(due)?);
        match tokio::time::timeout_at(self.deadline, transaction).await {
            Err(_) => Err(WriteError::out_of_time()),
            Ok(Ok(write_units)) => Ok(ClaimAnswer::Done(write_units)),
            Ok(Err(NotDone::Failed(error))) => Err(error.invalid_as_needs_operator()),
            Ok(Err(NotDone::Cancelled(reasons))) => {
                match reasons.first().filter(|reason| is_failed_condition(reason)) {
                    Some(reason) => Ok(ClaimAnswer::Refused(reason.item().cloned())),
                    None => Err(WriteError::of_reasons(&reasons).invalid_as_needs_operator()),
                }
            }
        }
    }

    fn entry(self, alert: Alert) -> OutboxEntry {
        OutboxEntry::new(alert, self.now)
    }

    /// The window's claims first, then the entries.
    fn transaction(self, due: &[Alert]) -> Result<Vec<TransactWriteItem>, WriteError> {
        let claims: Vec<_> = due.iter().map(Alert::claim).collect();
        let update = expressions::claim(&claims);
        let mut items = vec![update.into_transact_item(&self.settings.table, &self.group.key())?];
        for alert in due {
            let entry = self.entry(alert.clone());
            let put = Put::builder()
                .table_name(&self.settings.table)
                .set_item(Some(entry.to_item().into()))
                .build()?;
            items.push(TransactWriteItem::builder().put(put).build());
        }
        Ok(items)
    }
}

fn state_of(item: WindowItem) -> WindowState {
    WindowState::from_item(&serde_dynamo::Item::from(item))
}
