//! Executes plans in one transaction: all of them or none.

use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use aws_sdk_dynamodb::types::{
    AttributeValue, CancellationReason, Put, ReturnConsumedCapacity, TransactWriteItem, Update,
};
use sluicegate_core::keys::{MARK_FINGERPRINT, PK, SK, TTL};
use sluicegate_core::{BucketId, WritePlan};

use super::answers::{ALL_OLD, condition_failed, key, spent_on_all};
use super::dynamo_table::DynamoTable;
use super::expressions::{self, Expression};
use super::table_error;
use crate::store_error::SetupError;
use crate::table::{Cancelled, Mark, TableError, TransactError, WriteError};

/// The code of a reason: a condition does not hold.
pub(super) const CONDITION_FAILED: &str = "ConditionalCheckFailed";

impl DynamoTable {
    /// Executes each plan on its bucket, and puts the mark; returns the write units spent.
    pub(super) async fn transact(
        &self,
        writes: &[(BucketId, WritePlan)],
        mark: Option<&Mark>,
        token: &str,
    ) -> Result<f64, TransactError> {
        let mut parts = Vec::with_capacity(writes.len() + 1);
        for (bucket, plan) in writes {
            parts.push(self.part(bucket, plan).map_err(TransactError::Table)?);
        }
        if let Some(mark) = mark {
            parts.push(self.mark(mark).map_err(TransactError::Table)?);
        }
        let expected_reasons = parts.len();
        let request = self
            .client
            .transact_write_items()
            .set_transact_items(Some(parts))
            .client_request_token(token)
            .return_consumed_capacity(ReturnConsumedCapacity::Total);
        let error = match request.send().await {
            Ok(output) => {
                let spent = spent_on_all(output.consumed_capacity);
                return spent.map_err(|empty| TransactError::Table(empty.into()));
            }
            Err(error) => error,
        };
        match error.as_service_error() {
            Some(TransactWriteItemsError::TransactionCanceledException(cancelled))
                if cancelled.cancellation_reasons().len() == expected_reasons =>
            {
                let reasons = cancelled.cancellation_reasons();
                let of_mark = reasons.get(writes.len()).zip(mark);
                let of_mark = of_mark.filter(|(reason, _)| reason.code() == Some(CONDITION_FAILED));
                if let Some((reason, mark)) = of_mark {
                    let found =
                        reason.item().and_then(|item| item.get(MARK_FINGERPRINT)?.as_s().ok());
                    let key_was_reused = found.is_some_and(|found| *found != mark.fingerprint);
                    return Err(TransactError::MarkExists { key_was_reused });
                }
                let reasons = writes
                    .iter()
                    .zip(reasons)
                    .map(|((bucket, _), reason)| self.cancelled(bucket, reason));
                Err(TransactError::Cancelled(reasons.collect()))
            }
            _ => Err(TransactError::Table(table_error::of(&self.name, error))),
        }
    }

    /// Puts a mark, if there is none.
    fn mark(&self, mark: &Mark) -> Result<TransactWriteItem, TableError> {
        let key = mark.item_key();
        let expires_at_s = mark.until.get() / 1_000;
        let put = Put::builder()
            .table_name(&*self.name)
            .item(PK, AttributeValue::S(key.pk()))
            .item(SK, AttributeValue::S(key.sk()))
            .item(TTL, AttributeValue::N(expires_at_s.to_string()))
            .item(MARK_FINGERPRINT, AttributeValue::S(mark.fingerprint.to_string()))
            .condition_expression(format!("attribute_not_exists({PK})"))
            .return_values_on_condition_check_failure(ALL_OLD)
            .build();
        put.map(|put| TransactWriteItem::builder().put(put).build())
            .map_err(|error| SetupError::Rejected(error.into()).into())
    }

    /// One write of a transaction.
    fn part(&self, bucket: &BucketId, plan: &WritePlan) -> Result<TransactWriteItem, TableError> {
        let part = match expressions::of(plan) {
            Expression::Put { item, condition } => Put::builder()
                .table_name(&*self.name)
                .set_item(Some(item))
                .condition_expression(condition)
                .return_values_on_condition_check_failure(ALL_OLD)
                .build()
                .map(|put| TransactWriteItem::builder().put(put).build()),
            Expression::Update(update) => Update::builder()
                .table_name(&*self.name)
                .set_key(Some(expressions::key(&key(bucket))))
                .update_expression(update.expression)
                .condition_expression(update.condition)
                .set_expression_attribute_names(update.names)
                .set_expression_attribute_values(Some(update.values))
                .return_values_on_condition_check_failure(ALL_OLD)
                .build()
                .map(|update| TransactWriteItem::builder().update(update).build()),
        };
        part.map_err(|error| SetupError::Rejected(error.into()).into())
    }

    fn cancelled(&self, bucket: &BucketId, reason: &CancellationReason) -> Cancelled {
        match reason.code() {
            None | Some("None") => Cancelled::None,
            Some(CONDITION_FAILED) => match condition_failed(bucket, reason.item()) {
                WriteError::ConditionFailed(image) => Cancelled::ConditionFailed(image),
                WriteError::Table(table_error) => Cancelled::Table(table_error),
            },
            Some(code) => {
                let source = reason.message().unwrap_or(code).to_owned();
                Cancelled::Table(table_error::of_reason(&self.name, code, source.into()))
            }
        }
    }
}
