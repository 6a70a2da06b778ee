//! Writing one usage window: a guarded update, answered by the watermark when it is refused.

use std::collections::HashMap;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::types::{
    AttributeValue, ReturnConsumedCapacity, ReturnValuesOnConditionCheckFailure,
};
use sluicegate_core::{SequenceNumber, WindowFold, WindowUpdate, keys};
use tokio::time::Instant;

use crate::expressions;
use crate::settings::Settings;
use crate::store::{Backoff, Refusal};

/// How the attempt to count a window's records ended.
#[derive(Debug)]
pub(crate) enum Counted {
    /// All records are counted, by this call or before it.
    Done {
        /// The newest position that an earlier delivery had counted.
        known: Option<SequenceNumber>,
        /// True when this call wrote.
        wrote: bool,
        write_units: f64,
    },
    /// The records after `known` could not be counted.
    Refused { known: Option<SequenceNumber>, refusal: Refusal, write_units: f64 },
}

/// Counts the records of `fold` that its window has not counted yet.
pub(crate) async fn count(
    client: &Client,
    settings: &Settings,
    fold: &WindowFold,
    deadline: Instant,
) -> Counted {
    let mut backoff = Backoff::until(deadline);
    let (mut known, mut write_units) = (None, 0.0);
    while let Some(update) = fold.after(known.as_ref()) {
        match attempt(client, settings, fold, &update, deadline).await {
            Attempt::Written(units) => {
                return Counted::Done { known, wrote: true, write_units: write_units + units };
            }
            // A refused condition costs one write unit, like a write of up to 1 KB.
            Attempt::Behind(watermark) if Some(watermark) > known => {
                known = Some(watermark);
                write_units += 1.0;
            }
            Attempt::Behind(_) => {
                let refusal = Refusal::Setup(
                    "the table refused a watermark that its answer does not show".to_owned(),
                );
                return Counted::Refused { known, refusal, write_units };
            }
            Attempt::Refused(Refusal::Transient(reason)) => {
                if !backoff.pause().await {
                    return Counted::Refused {
                        known,
                        refusal: Refusal::Transient(reason),
                        write_units,
                    };
                }
            }
            Attempt::Refused(refusal) => return Counted::Refused { known, refusal, write_units },
        }
    }
    Counted::Done { known, wrote: false, write_units }
}

enum Attempt {
    /// Written, at this many write units.
    Written(f64),
    /// Records up to this position were counted before.
    Behind(SequenceNumber),
    Refused(Refusal),
}

async fn attempt(
    client: &Client,
    settings: &Settings,
    fold: &WindowFold,
    update: &WindowUpdate,
    deadline: Instant,
) -> Attempt {
    let built = expressions::count(fold, update, settings.retention);
    let request = client
        .update_item()
        .table_name(&settings.table)
        .set_key(Some(expressions::key(&fold.key())))
        .update_expression(built.expression)
        .condition_expression(built.condition)
        .set_expression_attribute_names(Some(built.names))
        .set_expression_attribute_values(Some(built.values))
        .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
        .return_consumed_capacity(ReturnConsumedCapacity::Total);
    let error = match tokio::time::timeout_at(deadline, request.send()).await {
        Err(_) => return Attempt::Refused(Refusal::out_of_time()),
        Ok(Ok(output)) => {
            let units = output.consumed_capacity.and_then(|capacity| capacity.capacity_units);
            return Attempt::Written(units.unwrap_or(0.0));
        }
        Ok(Err(error)) => error,
    };
    match error.as_service_error() {
        Some(UpdateItemError::ConditionalCheckFailedException(failed)) => {
            behind(failed.item(), &keys::watermark_attribute(fold.stream()))
        }
        _ => Attempt::Refused(Refusal::of(&error)),
    }
}

/// Reads the watermark from the item that a refused update hands back.
fn behind(item: Option<&HashMap<String, AttributeValue>>, watermark: &str) -> Attempt {
    let value = item.and_then(|item| item.get(watermark));
    let position = match value.map(AttributeValue::as_s) {
        Some(Ok(digits)) => SequenceNumber::parse(digits).map_err(|bad| bad.to_string()),
        Some(Err(_)) => Err("not a string".to_owned()),
        None => Err("not in the table's answer".to_owned()),
    };
    match position {
        Ok(position) => Attempt::Behind(position),
        Err(why) => Attempt::Refused(Refusal::Setup(format!(
            "the window's watermark {watermark} is {why}: repair or delete the item"
        ))),
    }
}
