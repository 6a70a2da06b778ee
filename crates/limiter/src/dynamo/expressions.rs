//! Every expression that writes a bucket, built from a plan.
//!
//! Names and values are positional placeholders, so no name from outside is ever parsed as part of
//! an expression. A snapshot test shows each expression that a plan can become.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;
use sluicegate_core::keys::{self, BucketField, ItemKey};
use sluicegate_core::{Bucket, Change, Condition, LimitName, RequestId, Rule, WritePlan};

type Attributes = HashMap<String, AttributeValue>;

/// A plan as DynamoDB takes it.
#[derive(Debug)]
pub(crate) enum Expression {
    /// Replaces the item.
    Put { item: Attributes, condition: String, names: HashMap<String, String> },
    /// Changes parts of it.
    Update(Update),
}

/// An UpdateItem with its condition.
#[derive(Debug, Default)]
pub(crate) struct Update {
    pub(crate) expression: String,
    pub(crate) condition: String,
    pub(crate) names: HashMap<String, String>,
    pub(crate) values: Attributes,
}

/// Builds the expression of a plan.
pub(crate) fn of(plan: &WritePlan) -> Expression {
    if let [Change::Put(item)] = plan.changes.as_slice() {
        return Expression::Put {
            item: item.to_item().into(),
            condition: "attribute_not_exists(#n0)".to_owned(),
            names: HashMap::from([("#n0".to_owned(), keys::PK.to_owned())]),
        };
    }
    let mut builder = Builder::default();
    for change in &plan.changes {
        builder.change(change);
    }
    let conditions: Vec<_> =
        plan.conditions.iter().map(|condition| builder.condition(condition)).collect();
    Expression::Update(builder.finish(&conditions))
}

#[derive(Default)]
struct Builder {
    /// Placeholders by attribute: an attribute in a change and in a condition is named once.
    names: HashMap<String, String>,
    values: Attributes,
    sets: Vec<String>,
    adds: Vec<String>,
    removes: Vec<String>,
}

impl Builder {
    fn name(&mut self, attribute: impl Into<String>) -> String {
        let next = self.names.len();
        self.names.entry(attribute.into()).or_insert_with(|| format!("#n{next}")).clone()
    }

    fn field(&mut self, limit: &LimitName, field: BucketField) -> String {
        self.name(keys::bucket_attribute(limit, field))
    }

    fn value(&mut self, value: AttributeValue) -> String {
        let placeholder = format!(":v{}", self.values.len());
        self.values.insert(placeholder.clone(), value);
        placeholder
    }

    fn set(&mut self, name: &str, value: AttributeValue) {
        let value = self.value(value);
        self.sets.push(format!("{name} = {value}"));
    }

    fn set_field(&mut self, limit: &LimitName, field: BucketField, number: i64) {
        let name = self.field(limit, field);
        self.set(&name, self::number(number));
    }

    fn add(&mut self, limit: &LimitName, field: BucketField, number: i64) {
        // Adding nothing would cost two terms of an expression that holds 300.
        if number != 0 {
            let (name, value) = (self.field(limit, field), self.value(self::number(number)));
            self.adds.push(format!("{name} {value}"));
        }
    }

    fn change(&mut self, change: &Change) {
        match change {
            Change::Put(_) => {}
            Change::RefilledAt(at) => {
                let name = self.name(keys::REFILLED_AT);
                self.set(&name, number(at.get()));
            }
            Change::Add { limit, tokens, consumed } => {
                self.add(limit, BucketField::Tokens, *tokens);
                self.add(limit, BucketField::Consumed, *consumed);
            }
            Change::Seed(limit, bucket) => self.seed(limit, bucket),
            Change::Rule(limit, rule) => self.rule(limit, *rule),
            Change::Remove(limit) => {
                for field in BucketField::ALL {
                    let name = self.field(limit, field);
                    self.removes.push(name);
                }
            }
            Change::RulesHash(hash) => {
                let name = self.name(keys::RULES_HASH);
                self.set(&name, text(hash.as_str()));
            }
            Change::ConfigEpoch(epoch) => {
                let name = self.name(keys::CONFIG_EPOCH);
                self.set(&name, number(epoch.get()));
            }
            Change::ExpiresAt(expires_at_s) => {
                let name = self.name(keys::TTL);
                match expires_at_s {
                    Some(expires_at_s) => self.set(&name, number(*expires_at_s)),
                    None => self.removes.push(name),
                }
            }
            Change::Remember(id) => self.remember(id),
        }
    }

    fn seed(&mut self, limit: &LimitName, bucket: &Bucket) {
        self.set_field(limit, BucketField::Tokens, bucket.tokens.get());
        self.set_field(limit, BucketField::Consumed, bucket.consumed.get());
        self.rule(limit, bucket.rule);
    }

    fn rule(&mut self, limit: &LimitName, rule: Rule) {
        self.set_field(limit, BucketField::Capacity, rule.capacity().get());
        self.set_field(limit, BucketField::Burst, rule.burst().get());
        self.set_field(limit, BucketField::RefillAmount, rule.refill().amount().get());
        self.set_field(limit, BucketField::RefillPeriod, rule.refill().period_ms());
    }

    /// Shifts the remembered ids; on the right of a SET stands what was there before the write.
    fn remember(&mut self, id: &RequestId) {
        let none = self.value(text(keys::NO_REQUEST_ID));
        for pair in keys::REQUEST_IDS.windows(2).rev() {
            let (newer, older) = (self.name(pair[0]), self.name(pair[1]));
            self.sets.push(format!("{older} = if_not_exists({newer}, {none})"));
        }
        let newest = self.name(keys::REQUEST_IDS[0]);
        self.set(&newest, text(id.as_str()));
    }

    fn condition(&mut self, condition: &Condition) -> String {
        match condition {
            Condition::Absent => format!("attribute_not_exists({})", self.name(keys::PK)),
            Condition::RefilledAt(at) => self.compare(keys::REFILLED_AT, "=", at.get()),
            Condition::RefilledSince(at) => self.compare(keys::REFILLED_AT, ">=", at.get()),
            Condition::RulesHash(Some(hash)) => {
                let (name, value) = (self.name(keys::RULES_HASH), self.value(text(hash.as_str())));
                format!("{name} = {value}")
            }
            Condition::RulesHash(None) => {
                format!("attribute_not_exists({})", self.name(keys::RULES_HASH))
            }
            Condition::AtLeast(limit, least) => self.compare_tokens(limit, ">=", *least),
            Condition::AtMost(limit, most) => self.compare_tokens(limit, "<=", *most),
            Condition::Exactly(limit, seen) => self.compare_tokens(limit, "=", seen.get()),
            Condition::Has(limit) => {
                format!("attribute_exists({})", self.field(limit, BucketField::Capacity))
            }
            Condition::HasNot(limit) => {
                format!("attribute_not_exists({})", self.field(limit, BucketField::Capacity))
            }
            Condition::Unseen(id) => {
                // NOT of an equality holds for an attribute that is not there.
                let value = self.value(text(id.as_str()));
                let names = keys::REQUEST_IDS.map(|attribute| self.name(attribute));
                names.map(|name| format!("NOT {name} = {value}")).join(" AND ")
            }
            Condition::ExpiresBefore(at_s) => self.compare(keys::TTL, "<", *at_s),
        }
    }

    fn compare(&mut self, attribute: &str, operator: &str, number: i64) -> String {
        let (name, value) = (self.name(attribute), self.value(self::number(number)));
        format!("{name} {operator} {value}")
    }

    fn compare_tokens(&mut self, limit: &LimitName, operator: &str, number: i64) -> String {
        self.compare(&keys::bucket_attribute(limit, BucketField::Tokens), operator, number)
    }

    fn finish(self, conditions: &[String]) -> Update {
        let mut clauses = Vec::with_capacity(3);
        for (clause, terms) in [("SET", self.sets), ("ADD", self.adds), ("REMOVE", self.removes)] {
            if !terms.is_empty() {
                clauses.push(format!("{clause} {}", terms.join(", ")));
            }
        }
        Update {
            expression: clauses.join(" "),
            condition: conditions.join(" AND "),
            names: self.names.into_iter().map(|(attribute, name)| (name, attribute)).collect(),
            values: self.values,
        }
    }
}

/// The two key attributes of an item.
pub(crate) fn key(key: &ItemKey) -> Attributes {
    HashMap::from([(keys::PK.to_owned(), text(&key.pk())), (keys::SK.to_owned(), text(&key.sk()))])
}

fn text(text: &str) -> AttributeValue {
    AttributeValue::S(text.to_owned())
}

fn number(number: i64) -> AttributeValue {
    AttributeValue::N(number.to_string())
}

#[cfg(test)]
#[path = "expressions_tests.rs"]
mod tests;
