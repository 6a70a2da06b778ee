//! The transaction of one conversion, and the meaning of its result.

use std::sync::Arc;

use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use aws_sdk_dynamodb::types::{
    CancellationReason, Delete, Put, ReturnConsumedCapacity, TransactWriteItem,
};
use sluicegate_core::{BucketId, CompositeBucket, Conversion, Removal, keys};

use crate::dynamo::answers::{ALL_OLD, condition_failed, spent_on_all};
use crate::dynamo::dynamo_table::DynamoTable;
use crate::dynamo::item::Attributes;
use crate::dynamo::{stored_expressions as expressions, table_error};
use crate::store_error::SetupError;
use crate::table::{TableError, WriteError};

/// The result of one transaction.
pub(super) enum Attempt {
    Done(f64),
    Exists(Arc<CompositeBucket>),
    Changed,
}

impl DynamoTable {
    /// Sends the transaction.
    pub(super) async fn convert_seen(
        &self,
        conversion: &Conversion,
    ) -> Result<Attempt, TableError> {
        let bucket = conversion.composite.id();
        let mut parts = vec![self.put_part(conversion)?];
        for removal in &conversion.removals {
            parts.push(self.delete_part(removal)?);
        }
        let request = self
            .client
            .transact_write_items()
            .set_transact_items(Some(parts))
            .return_consumed_capacity(ReturnConsumedCapacity::Total);
        let error = match request.send().await {
            Ok(output) => return Ok(Attempt::Done(spent_on_all(output.consumed_capacity)?)),
            Err(error) => error,
        };
        match error.as_service_error() {
            Some(TransactWriteItemsError::TransactionCanceledException(cancelled)) => {
                self.cancelled_conversion(&bucket, cancelled.cancellation_reasons())
            }
            _ => Err(table_error::of(&self.name, error)),
        }
    }

    fn cancelled_conversion(
        &self,
        bucket: &BucketId,
        reasons: &[CancellationReason],
    ) -> Result<Attempt, TableError> {
        const REFUSED: &str = "ConditionalCheckFailed";
        let has_failed = |reason: &CancellationReason| reason.code() == Some(REFUSED);
        if let Some(put) = reasons.first().filter(|put| has_failed(put)) {
            match condition_failed(bucket, put.item()) {
                WriteError::ConditionFailed(Some(composite)) => {
                    return Ok(Attempt::Exists(composite));
                }
                WriteError::ConditionFailed(None) => {}
                WriteError::Table(table_error) => return Err(table_error),
            }
        }
        if reasons.iter().any(has_failed) {
            return Ok(Attempt::Changed);
        }
        let reason = reasons.iter().find(|reason| !matches!(reason.code(), None | Some("None")));
        let code = reason.and_then(CancellationReason::code).unwrap_or("TransactionConflict");
        let message = reason.and_then(CancellationReason::message).unwrap_or(code);
        Err(table_error::of_reason(&self.name, code, message.into()))
    }

    fn put_part(&self, conversion: &Conversion) -> Result<TransactWriteItem, TableError> {
        Put::builder()
            .table_name(&*self.name)
            .set_item(Some(Attributes::from(conversion.to_item())))
            .condition_expression("attribute_not_exists(#n0)")
            .expression_attribute_names("#n0", keys::PK)
            .return_values_on_condition_check_failure(ALL_OLD)
            .build()
            .map(|put| TransactWriteItem::builder().put(put).build())
            .map_err(|error| SetupError::Rejected(error.into()).into())
    }

    fn delete_part(&self, removal: &Removal) -> Result<TransactWriteItem, TableError> {
        let unchanged = expressions::unchanged(&removal.conditions);
        Delete::builder()
            .table_name(&*self.name)
            .set_key(Some(expressions::legacy_key(&removal.key)))
            .condition_expression(unchanged.condition)
            .set_expression_attribute_names(Some(unchanged.placeholders.names))
            .set_expression_attribute_values(Some(unchanged.placeholders.values))
            .build()
            .map(|delete| TransactWriteItem::builder().delete(delete).build())
            .map_err(|error| SetupError::Rejected(error.into()).into())
    }
}
