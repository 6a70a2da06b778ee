//! Stores and reads the alert thresholds of a scope, and opens alerts again.

use std::collections::BTreeMap;

use aws_sdk_dynamodb::error::BuildError;
use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use aws_sdk_dynamodb::types::{Delete, Put, TransactWriteItem};
use sluicegate_core::keys::{ItemKey, LimitsScope};
use sluicegate_core::{
    AlertSettings, EpochMillis, LimitName, OutboxEntry, OutboxState, Thresholds,
};

use super::RequestError;
use super::stored::{ConfigError, ConfigStore, LIMITS_PER_WRITE};
use super::stored_expressions as expressions;
use super::transact::CONDITION_FAILED;

impl ConfigStore {
    /// Stores the thresholds of limits, from 1 to 50, all or none of them. Other limits of the
    /// scope keep theirs. Processors with alerts switched on follow within a minute. Returns the
    /// thresholds that the scope has now. One request.
    ///
    /// # Errors
    /// [`ConfigError::Count`] for no limits or too many; [`ConfigError::Item`] when the item is
    /// broken, else [`ConfigError::Request`].
    pub async fn set_alerts(
        &self,
        scope: &LimitsScope,
        thresholds: &BTreeMap<LimitName, Thresholds>,
    ) -> Result<AlertSettings, ConfigError> {
        if !(1..=LIMITS_PER_WRITE).contains(&thresholds.len()) {
            return Err(ConfigError::Count { given: thresholds.len() });
        }
        let (key, update) = (ItemKey::Alerts(scope.clone()), expressions::set_alerts(thresholds));
        let stored = self.change(&key, update, AlertSettings::from_item).await?;
        stored.ok_or_else(|| RequestError::empty("UpdateItem", &self.table).into())
    }

    /// The thresholds of a scope; `None` if it never had any. A consistent read.
    ///
    /// # Errors
    /// [`ConfigError::Item`] when the item is broken, else [`ConfigError::Request`].
    pub async fn get_alerts(
        &self,
        scope: &LimitsScope,
    ) -> Result<Option<AlertSettings>, ConfigError> {
        self.get(&ItemKey::Alerts(scope.clone()), AlertSettings::from_item).await
    }

    /// Deletes the thresholds of limits of a scope, from 1 to 50; limits without any are ignored.
    /// Alerts that were claimed stay, and their windows never claim them again. Returns the
    /// thresholds that the scope has now, `None` if it never had any. One request.
    ///
    /// # Errors
    /// [`ConfigError::Count`] for no limits or too many; [`ConfigError::Item`] when the item is
    /// broken, else [`ConfigError::Request`].
    pub async fn delete_alerts(
        &self,
        scope: &LimitsScope,
        limits: &[LimitName],
    ) -> Result<Option<AlertSettings>, ConfigError> {
        if !(1..=LIMITS_PER_WRITE).contains(&limits.len()) {
            return Err(ConfigError::Count { given: limits.len() });
        }
        let (key, update) = (ItemKey::Alerts(scope.clone()), expressions::delete_alerts(limits));
        self.change(&key, update, AlertSettings::from_item).await
    }

    /// Opens an entry of the outbox again whose alert was given up, and returns the open entry. A
    /// processor delivers it as a new one. `None`: the entry is no longer given up, and nothing
    /// changed. Two writes in a transaction.
    ///
    /// # Errors
    /// [`ConfigError::Request`].
    pub async fn retry_alert(
        &self,
        given_up: &OutboxEntry,
        now: EpochMillis,
    ) -> Result<Option<OutboxEntry>, ConfigError> {
        const OPERATION: &str = "TransactWriteItems";
        let failed = |error: BuildError| {
            let (table, source) = (self.table.clone(), error.into());
            RequestError::Failed { operation: OPERATION, table, source }
        };
        let state = OutboxState::Open { attempts: 0, next_at: now };
        let open = OutboxEntry { state, ..given_up.clone() };
        let condition = expressions::is_given_up();
        let delete = Delete::builder()
            .table_name(&self.table)
            .set_key(Some(expressions::key(&given_up.key())))
            .condition_expression(condition.expression)
            .set_expression_attribute_names(Some(condition.placeholders.names))
            .set_expression_attribute_values(Some(condition.placeholders.values));
        let put = Put::builder().table_name(&self.table).set_item(Some(open.to_item().into()));
        let items = [
            TransactWriteItem::builder().delete(delete.build().map_err(failed)?).build(),
            TransactWriteItem::builder().put(put.build().map_err(failed)?).build(),
        ];
        let request = self.client.transact_write_items().set_transact_items(Some(items.into()));
        let Err(error) = request.send().await else { return Ok(Some(open)) };
        if let Some(TransactWriteItemsError::TransactionCanceledException(cancelled)) =
            error.as_service_error()
            && let Some(reason) = cancelled.cancellation_reasons().first()
            && reason.code() == Some(CONDITION_FAILED)
        {
            return Ok(None);
        }
        Err(RequestError::of(OPERATION, &self.table, error).into())
    }
}
