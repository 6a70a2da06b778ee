//! An acquire, and the bare SDK sending the same UpdateItem.

use std::collections::HashMap;
use std::sync::Arc;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::{
    AttributeValue, ReturnConsumedCapacity, ReturnValue, ReturnValuesOnConditionCheckFailure,
};
use sluicegate::{Limit, LimitSet, Limiter};

pub(crate) const TABLE: &str = "sluicegate-bench";

/// The sender of the writes.
#[derive(Clone)]
pub(crate) enum Sender {
    Ours(Limiter),
    Bare(Arc<Bare>),
}

/// The write of a warm acquire, prepared once.
pub(crate) struct Bare {
    client: Client,
    update: &'static str,
    condition: &'static str,
    names: HashMap<String, String>,
    values: HashMap<String, AttributeValue>,
}

/// The write after another writer claimed a moment ago: one hot bucket.
const RETRY_UPDATE: &str = "SET lr3 = if_not_exists(lr2, :v0), lr2 = if_not_exists(lr1, :v0), \
    lr1 = if_not_exists(lr, :v0), lr = :v1 ADD #n0 :v2, #n1 :v3, #n2 :v2, #n3 :v3";
const RETRY_CONDITION: &str = "NOT lr = :v4 AND NOT lr1 = :v4 AND NOT lr2 = :v4 AND NOT lr3 = :v4 \
    AND rf >= :v5 AND pv = :v6 AND #n0 <= :v7 AND #n0 >= :v8 AND #n2 <= :v7 AND #n2 >= :v8";

/// The write with a claim: ten thousand buckets, each rarely used.
const NORMAL_UPDATE: &str = "SET lr3 = if_not_exists(lr2, :v0), lr2 = if_not_exists(lr1, :v0), \
    lr1 = if_not_exists(lr, :v0), lr = :v1, rf = :v9, #n4 = :v10 \
    ADD #n0 :v2, #n1 :v3, #n2 :v2, #n3 :v3";
const NORMAL_CONDITION: &str = "NOT lr = :v4 AND NOT lr1 = :v4 AND NOT lr2 = :v4 AND NOT lr3 = :v4 \
    AND rf <= :v9 AND pv = :v6 AND #n0 >= :v8 AND #n0 <= :v7 AND #n2 >= :v8 AND #n2 <= :v7";

/// The limits of every bucket, checked once.
pub(crate) fn limits() -> LimitSet {
    LimitSet::new(["rpm", "tpm"].map(|name| Limit::per_minute(name, 1_000_000_000_000))).unwrap()
}

impl Bare {
    pub(crate) fn new(client: Client, hash: &str, claims: bool) -> Self {
        let names = ["b_rpm_tk", "b_rpm_tc", "b_tpm_tk", "b_tpm_tc", "ttl"];
        let number = |n: i64| AttributeValue::N(n.to_string());
        let values = [
            AttributeValue::S("-".into()),
            AttributeValue::S("AAAAAAAAAA".into()),
            number(-1_000),
            number(1_000),
            AttributeValue::S("BBBBBBBBBB".into()),
            number(0),
            AttributeValue::S(hash.to_owned()),
            number(1_000_000_000_000_000_000),
            number(1_000),
            // Ahead of every clock, so that the condition holds after any writer.
            number(253_402_300_799_999),
            number(253_402_300_799),
        ];
        let used = |n: usize| if claims { n != 5 } else { n < 9 };
        let (update, condition) = if claims {
            (NORMAL_UPDATE, NORMAL_CONDITION)
        } else {
            (RETRY_UPDATE, RETRY_CONDITION)
        };
        Self {
            client,
            update,
            condition,
            names: names
                .iter()
                .enumerate()
                .filter(|(n, _)| claims || *n < 4)
                .map(|(n, name)| (format!("#n{n}"), (*name).into()))
                .collect(),
            values: values
                .into_iter()
                .enumerate()
                .filter(|(n, _)| used(*n))
                .map(|(n, value)| (format!(":v{n}"), value))
                .collect(),
        }
    }

    async fn send(&self, entity: &str) {
        let s = |text: String| AttributeValue::S(text);
        self.client
            .update_item()
            .table_name(TABLE)
            .key("PK", s(format!("ENTITY#{entity}")))
            .key("SK", s("#BUCKET#bare".into()))
            .update_expression(self.update)
            .condition_expression(self.condition)
            .set_expression_attribute_names(Some(self.names.clone()))
            .set_expression_attribute_values(Some(self.values.clone()))
            .return_values(ReturnValue::AllNew)
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .send()
            .await
            .unwrap();
    }
}

impl Sender {
    /// Sends one, and returns its write units.
    pub(crate) async fn send(&self, entity: &str) -> f64 {
        match self {
            Self::Ours(limiter) => {
                let request = limiter.acquire(entity, "gpt-4").consume("rpm", 1).consume("tpm", 1);
                request.await.unwrap().cost().write_units
            }
            Self::Bare(bare) => {
                bare.send(entity).await;
                1.0
            }
        }
    }
}
