//! Every expression that writes a bucket, built from a plan.
//!
//! Names and values are positional placeholders, so no name from outside is ever parsed as part of
//! an expression. A snapshot test shows each expression that a plan can become.

use std::collections::HashMap;
use std::fmt::{self, Arguments, Display, Formatter, Write as _};

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
    for condition in &plan.conditions {
        builder.condition(condition);
    }
    Expression::Update(builder.finish())
}

/// The expression as it grows. It is built for every write, so its terms go straight into the text.
#[derive(Default)]
struct Builder {
    /// Attributes in the order of their placeholders: one in a change and a condition is named once.
    names: Vec<String>,
    values: Vec<AttributeValue>,
    sets: Terms,
    adds: Terms,
    removes: Terms,
    conditions: Terms,
}

/// `#n0`, the placeholder of a name.
#[derive(Clone, Copy)]
struct Name(usize);

/// `:v0`, the placeholder of a value.
#[derive(Clone, Copy)]
struct Value(usize);

impl Display for Name {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "#n{}", self.0)
    }
}

impl Display for Value {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, ":v{}", self.0)
    }
}

/// Terms of one clause.
#[derive(Default)]
struct Terms(String);

impl Terms {
    fn push(&mut self, separator: &str, term: Arguments<'_>) {
        if !self.0.is_empty() {
            self.0.push_str(separator);
        }
        // A string takes whatever is written to it.
        let _ = self.0.write_fmt(term);
    }
}

impl Builder {
    fn name(&mut self, attribute: &str) -> Name {
        let known = self.names.iter().position(|name| name == attribute);
        Name(known.unwrap_or_else(|| {
            self.names.push(attribute.to_owned());
            self.names.len() - 1
        }))
    }

    fn field(&mut self, limit: &LimitName, field: BucketField) -> Name {
        self.name(&keys::bucket_attribute(limit, field))
    }

    fn value(&mut self, value: AttributeValue) -> Value {
        self.values.push(value);
        Value(self.values.len() - 1)
    }

    fn set(&mut self, name: Name, value: AttributeValue) {
        let value = self.value(value);
        self.sets.push(", ", format_args!("{name} = {value}"));
    }

    fn set_field(&mut self, limit: &LimitName, field: BucketField, number: i64) {
        let name = self.field(limit, field);
        self.set(name, self::number(number));
    }

    fn add(&mut self, limit: &LimitName, field: BucketField, number: i64) {
        // Adding nothing would cost two terms of an expression that holds 300.
        if number != 0 {
            let (name, value) = (self.field(limit, field), self.value(self::number(number)));
            self.adds.push(", ", format_args!("{name} {value}"));
        }
    }

    fn remove(&mut self, name: Name) {
        self.removes.push(", ", format_args!("{name}"));
    }

    fn require(&mut self, condition: Arguments<'_>) {
        self.conditions.push(" AND ", condition);
    }

    fn change(&mut self, change: &Change) {
        match change {
            Change::Put(_) => {}
            Change::RefilledAt(at) => {
                let name = self.name(keys::REFILLED_AT);
                self.set(name, number(at.get()));
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
                    self.remove(name);
                }
            }
            Change::RulesHash(hash) => {
                let name = self.name(keys::RULES_HASH);
                self.set(name, text(hash.as_str()));
            }
            Change::ConfigEpoch(epoch) => {
                let name = self.name(keys::CONFIG_EPOCH);
                self.set(name, number(epoch.get()));
            }
            Change::ExpiresAt(expires_at_s) => {
                let name = self.name(keys::TTL);
                match expires_at_s {
                    Some(expires_at_s) => self.set(name, number(*expires_at_s)),
                    None => self.remove(name),
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
            self.sets.push(", ", format_args!("{older} = if_not_exists({newer}, {none})"));
        }
        let newest = self.name(keys::REQUEST_IDS[0]);
        self.set(newest, text(id.as_str()));
    }

    fn condition(&mut self, condition: &Condition) {
        match condition {
            Condition::Absent => {
                let name = self.name(keys::PK);
                self.require(format_args!("attribute_not_exists({name})"));
            }
            Condition::RefilledAt(at) => self.compare(keys::REFILLED_AT, "=", at.get()),
            Condition::RefilledSince(at) => self.compare(keys::REFILLED_AT, ">=", at.get()),
            Condition::RulesHash(Some(hash)) => {
                let (name, value) = (self.name(keys::RULES_HASH), self.value(text(hash.as_str())));
                self.require(format_args!("{name} = {value}"));
            }
            Condition::RulesHash(None) => {
                let name = self.name(keys::RULES_HASH);
                self.require(format_args!("attribute_not_exists({name})"));
            }
            Condition::AtLeast(limit, least) => self.compare_tokens(limit, ">=", *least),
            Condition::AtMost(limit, most) => self.compare_tokens(limit, "<=", *most),
            Condition::Exactly(limit, seen) => self.compare_tokens(limit, "=", seen.get()),
            Condition::Has(limit) => {
                let name = self.field(limit, BucketField::Capacity);
                self.require(format_args!("attribute_exists({name})"));
            }
            Condition::HasNot(limit) => {
                let name = self.field(limit, BucketField::Capacity);
                self.require(format_args!("attribute_not_exists({name})"));
            }
            Condition::Unseen(id) => {
                // NOT of an equality holds for an attribute that is not there.
                let value = self.value(text(id.as_str()));
                for attribute in keys::REQUEST_IDS {
                    let name = self.name(attribute);
                    self.require(format_args!("NOT {name} = {value}"));
                }
            }
            Condition::ExpiresBefore(at_s) => self.compare(keys::TTL, "<", *at_s),
        }
    }

    fn compare(&mut self, attribute: &str, operator: &str, number: i64) {
        let (name, value) = (self.name(attribute), self.value(self::number(number)));
        self.require(format_args!("{name} {operator} {value}"));
    }

    fn compare_tokens(&mut self, limit: &LimitName, operator: &str, number: i64) {
        self.compare(&keys::bucket_attribute(limit, BucketField::Tokens), operator, number);
    }

    fn finish(self) -> Update {
        let mut expression = Terms::default();
        for (clause, terms) in [("SET", self.sets), ("ADD", self.adds), ("REMOVE", self.removes)] {
            if !terms.0.is_empty() {
                expression.push(" ", format_args!("{clause} {}", terms.0));
            }
        }
        let names = self.names.into_iter().enumerate();
        let values = self.values.into_iter().enumerate();
        Update {
            expression: expression.0,
            condition: self.conditions.0,
            names: names.map(|(n, attribute)| (Name(n).to_string(), attribute)).collect(),
            values: values.map(|(n, value)| (Value(n).to_string(), value)).collect(),
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
