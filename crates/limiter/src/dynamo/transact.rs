//! Executes plans in one transaction: all of them or none.

use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use aws_sdk_dynamodb::types::{
    CancellationReason, Put, ReturnConsumedCapacity, TransactWriteItem, Update,
};
use sluicegate_core::{BucketId, WritePlan};

use super::answers::{ALL_OLD, condition_failed, key, spent_on_all};
use super::execute::DynamoTable;
use super::expressions::{self, Expression};
use super::table_error;
use crate::store_error::SetupError;
use crate::table::{Cancelled, TableError, TransactError, WriteError};

impl DynamoTable {
    /// Executes each plan on its bucket; returns the write units spent.
    pub(super) async fn transact(
        &self,
        writes: &[(BucketId, WritePlan)],
        token: &str,
    ) -> Result<f64, TransactError> {
        let mut parts = Vec::with_capacity(writes.len());
        for (bucket, plan) in writes {
            parts.push(self.part(bucket, plan).map_err(TransactError::Table)?);
        }
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
                if cancelled.cancellation_reasons().len() == writes.len() =>
            {
                let reasons = cancelled.cancellation_reasons();
                let reasons = writes
                    .iter()
                    .zip(reasons)
                    .map(|((bucket, _), reason)| self.cancelled(bucket, reason));
                Err(TransactError::Cancelled(reasons.collect()))
            }
            _ => Err(TransactError::Table(table_error::of(&self.name, error))),
        }
    }

    /// One write of a transaction.
    fn part(&self, bucket: &BucketId, plan: &WritePlan) -> Result<TransactWriteItem, TableError> {
        let part = match expressions::of(plan) {
            Expression::Put { item, condition, names } => Put::builder()
                .table_name(&*self.name)
                .set_item(Some(item))
                .condition_expression(condition)
                .set_expression_attribute_names(Some(names))
                .return_values_on_condition_check_failure(ALL_OLD)
                .build()
                .map(|put| TransactWriteItem::builder().put(put).build()),
            Expression::Update(update) => Update::builder()
                .table_name(&*self.name)
                .set_key(Some(expressions::key(&key(bucket))))
                .update_expression(update.expression)
                .condition_expression(update.condition)
                .set_expression_attribute_names(Some(update.names))
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
            Some("ConditionalCheckFailed") => match condition_failed(bucket, reason.item()) {
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
