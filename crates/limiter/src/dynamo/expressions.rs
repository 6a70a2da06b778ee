//! Every expression that writes a bucket, built from a plan.
//!
//! Values, and names with a limit in them, are positional placeholders, so no name from outside is
//! ever parsed as part of an expression. A snapshot test shows each expression that a plan can
//! become.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;
use sluicegate_core::keys::{self, BucketField, ItemKey};
use sluicegate_core::{
    Change, Condition, ConfigStamp, LimitBalance, LimitName, Millitokens, RequestId, Rule,
    WritePlan,
};

use super::terms::{Name, Terms, Value, name_placeholder, value_placeholder};

type Attributes = HashMap<String, AttributeValue>;

/// A plan in the form that DynamoDB takes.
#[derive(Debug)]
pub(crate) enum Expression {
    /// Replaces the item.
    Put { item: Attributes, condition: String },
    /// Changes parts of the item.
    Update(Update),
}

/// An UpdateItem with its condition.
#[derive(Debug, Default)]
pub(crate) struct Update {
    pub(crate) expression: String,
    pub(crate) condition: String,
    /// `None` for none: DynamoDB refuses an empty map.
    pub(crate) names: Option<HashMap<String, String>>,
    pub(crate) values: Attributes,
}

/// Builds the expression of a plan.
pub(crate) fn of(plan: &WritePlan) -> Expression {
    if let [Change::Put(item)] = plan.changes.as_slice() {
        return Expression::Put {
            item: item.to_item().into(),
            condition: format!("attribute_not_exists({})", keys::PK),
        };
    }
    let mut builder = Builder::new();
    for change in &plan.changes {
        builder.change(change);
    }
    let remembered = plan.changes.iter().filter_map(|change| match change {
        Change::Remember(id) => Some(id),
        _ => None,
    });
    builder.remember(&remembered.collect::<Vec<_>>());
    for condition in &plan.conditions {
        builder.condition(condition);
    }
    Expression::Update(builder.finish())
}

/// The expression as it grows.
struct Builder<'p> {
    /// Attributes in the order of their placeholders. One that stands in a change and in a
    /// condition has one placeholder.
    names: Vec<Attribute<'p>>,
    values: Vec<AttributeValue>,
    sets: Terms,
    adds: Terms,
    removes: Terms,
    conditions: Terms,
}

/// An attribute of a bucket.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Attribute<'p> {
    OfBucket(&'static str),
    OfLimit(BucketField, &'p LimitName),
    CalendarOf(&'p LimitName),
}

impl<'p> Builder<'p> {
    fn new() -> Self {
        Self {
            names: Vec::with_capacity(16),
            values: Vec::with_capacity(16),
            sets: Terms::separated_by(", "),
            adds: Terms::separated_by(", "),
            removes: Terms::separated_by(", "),
            conditions: Terms::separated_by(" AND "),
        }
    }

    fn name(&mut self, attribute: Attribute<'p>) -> Name {
        match attribute {
            // A reserved word of expressions.
            Attribute::OfBucket(keys::TTL) => {}
            // A request is smaller and sooner signed without placeholders that it does not need.
            Attribute::OfBucket(name) => return Name::Plain(name),
            // DynamoDB does not promise to take a name whose second character is an underscore.
            Attribute::OfLimit(..) | Attribute::CalendarOf(_) => {}
        }
        let known = self.names.iter().position(|name| *name == attribute);
        Name::Placeholder(known.unwrap_or_else(|| {
            self.names.push(attribute);
            self.names.len() - 1
        }))
    }

    fn bucket_attribute(&mut self, attribute: &'static str) -> Name {
        self.name(Attribute::OfBucket(attribute))
    }

    fn field(&mut self, limit: &'p LimitName, field: BucketField) -> Name {
        self.name(Attribute::OfLimit(field, limit))
    }

    fn value(&mut self, value: AttributeValue) -> Value {
        let known = self.values.iter().position(|known| *known == value);
        Value(known.unwrap_or_else(|| {
            self.values.push(value);
            self.values.len() - 1
        }))
    }

    fn set(&mut self, attribute: Attribute<'p>, value: AttributeValue) {
        let (name, value) = (self.name(attribute), self.value(value));
        self.sets.next().name(name).text(" = ").value(value);
    }

    fn set_field<N: itoa::Integer>(&mut self, limit: &'p LimitName, field: BucketField, number: N) {
        self.set(Attribute::OfLimit(field, limit), self::number(number));
    }

    fn add(&mut self, limit: &'p LimitName, field: BucketField, number: i64) {
        // Adding zero would cost two terms of an expression that holds 300.
        if number != 0 {
            let (name, value) = (self.field(limit, field), self.value(self::number(number)));
            self.adds.next().name(name).text(" ").value(value);
        }
    }

    fn remove(&mut self, attribute: Attribute<'p>) {
        let name = self.name(attribute);
        self.removes.next().name(name);
    }

    fn change(&mut self, change: &'p Change) {
        match change {
            Change::Put(_) => {}
            Change::RefilledAt(at) => {
                self.set(Attribute::OfBucket(keys::REFILLED_AT), number(at.get()));
            }
            Change::Add { limit, tokens, consumed } => {
                self.add(limit, BucketField::Tokens, *tokens);
                self.add(limit, BucketField::Consumed, *consumed);
            }
            Change::Seed(limit, balance) => self.seed(limit, balance),
            Change::Rule(limit, rule) => self.rule(limit, *rule),
            Change::Remove(limit) => {
                for field in BucketField::ALL {
                    self.remove(Attribute::OfLimit(field, limit));
                }
                self.remove(Attribute::CalendarOf(limit));
            }
            Change::RulesHash(hash) => {
                self.set(Attribute::OfBucket(keys::RULES_HASH), text(hash.as_str()));
            }
            Change::ConfigVersions(versions) => {
                self.set(Attribute::OfBucket(keys::CONFIG_VERSIONS), text(&versions.to_string()));
                self.remove(Attribute::OfBucket(keys::CONFIG_EPOCH));
            }
            Change::ExpiresAt(Some(at_s)) => {
                self.set(Attribute::OfBucket(keys::TTL), number(*at_s))
            }
            Change::ExpiresAt(None) => self.remove(Attribute::OfBucket(keys::TTL)),
            // All ids in one clause: each change moves the same attributes.
            Change::Remember(_) => {}
        }
    }

    fn seed(&mut self, limit: &'p LimitName, balance: &LimitBalance) {
        self.set_field(limit, BucketField::Tokens, balance.tokens.get());
        // Another producer may have counted on a limit without its rule: its count stays. A count
        // of zero is added, too: an item has this attribute for each of its limits.
        let (name, consumed) = (self.field(limit, BucketField::Consumed), balance.consumed.get());
        let consumed = self.value(self::number(consumed));
        self.adds.next().name(name).text(" ").value(consumed);
        self.rule(limit, balance.rule);
    }

    fn rule(&mut self, limit: &'p LimitName, rule: Rule) {
        self.set_field(limit, BucketField::Capacity, rule.capacity().get());
        self.set_field(limit, BucketField::Burst, rule.burst().get());
        self.set_field(limit, BucketField::RefillAmount, rule.refill().even_amount().get());
        self.set_field(limit, BucketField::RefillPeriod, rule.refill().period_ms());
        if let Some(calendar) = rule.refill().calendar() {
            self.set(Attribute::CalendarOf(limit), text(&calendar.to_string()));
        } else if rule.refill().amount() == Millitokens::ZERO {
            // The limit becomes a quota. With the attribute of its former calendar, readers would
            // take it for a calendar limit and refill it.
            self.remove(Attribute::CalendarOf(limit));
        }
    }

    /// Puts these ids, in reverse order, in front of the remembered ones, which move back by as
    /// many places. On the right of a SET, an attribute has its value before the write.
    fn remember(&mut self, ids: &[&RequestId]) {
        let shift = ids.len().min(keys::REQUEST_IDS.len());
        if shift == 0 {
            return;
        }
        let none = self.value(text(keys::NO_REQUEST_ID));
        for (newer, older) in keys::REQUEST_IDS.iter().zip(&keys::REQUEST_IDS[shift..]).rev() {
            let (newer, older) = (self.bucket_attribute(newer), self.bucket_attribute(older));
            let term = self.sets.next().name(older).text(" = if_not_exists(");
            term.name(newer).text(", ").value(none).text(")");
        }
        for (attribute, id) in keys::REQUEST_IDS.iter().zip(ids.iter().rev()) {
            self.set(Attribute::OfBucket(attribute), text(id.as_str()));
        }
    }

    fn condition(&mut self, condition: &'p Condition) {
        match condition {
            Condition::Absent => self.require_absent(Attribute::OfBucket(keys::PK)),
            Condition::RefilledAt(at) => {
                self.compare(Attribute::OfBucket(keys::REFILLED_AT), "=", number(at.get()));
            }
            Condition::RefilledSince(at) => {
                self.compare(Attribute::OfBucket(keys::REFILLED_AT), ">=", number(at.get()));
            }
            Condition::RulesHash(Some(hash)) => {
                self.compare(Attribute::OfBucket(keys::RULES_HASH), "=", text(hash.as_str()));
            }
            Condition::RulesHash(None) => {
                self.require_absent(Attribute::OfBucket(keys::RULES_HASH))
            }
            Condition::ConfigStamp(stamp) => self.require_stamp(stamp),
            Condition::AtLeast(limit, least) => self.compare_tokens(limit, ">=", *least),
            Condition::AtMost(limit, most) => self.compare_tokens(limit, "<=", *most),
            Condition::Exactly(limit, seen) => self.compare_tokens(limit, "=", seen.get()),
            Condition::HasNot(limit) => {
                self.require_absent(Attribute::OfLimit(BucketField::Capacity, limit));
            }
            Condition::Unseen(id) => {
                // NOT of an equality holds for an attribute that does not exist.
                let value = self.value(text(id.as_str()));
                for attribute in keys::REQUEST_IDS {
                    let name = self.bucket_attribute(attribute);
                    self.conditions.next().text("NOT ").name(name).text(" = ").value(value);
                }
            }
            Condition::ExpiresBefore(at_s) => {
                self.compare(Attribute::OfBucket(keys::TTL), "<", number(*at_s));
            }
        }
    }

    fn require_stamp(&mut self, stamp: &ConfigStamp) {
        let [versions, epoch] =
            [keys::CONFIG_VERSIONS, keys::CONFIG_EPOCH].map(Attribute::OfBucket);
        match stamp {
            ConfigStamp::Versions(known) => self.compare(versions, "=", text(&known.to_string())),
            ConfigStamp::Epoch(known) => {
                self.require_absent(versions);
                self.compare(epoch, "=", number(known.get()));
            }
            ConfigStamp::None => {
                self.require_absent(versions);
                self.require_absent(epoch);
            }
        }
    }

    fn compare(&mut self, attribute: Attribute<'p>, operator: &str, value: AttributeValue) {
        let (name, value) = (self.name(attribute), self.value(value));
        self.conditions.next().name(name).text(" ").text(operator).text(" ").value(value);
    }

    fn compare_tokens(&mut self, limit: &'p LimitName, operator: &str, number: i64) {
        self.compare(
            Attribute::OfLimit(BucketField::Tokens, limit),
            operator,
            self::number(number),
        );
    }

    fn require_absent(&mut self, attribute: Attribute<'p>) {
        let name = self.name(attribute);
        self.conditions.next().text("attribute_not_exists(").name(name).text(")");
    }

    fn finish(self) -> Update {
        let mut expression = Terms::separated_by(" ");
        for (clause, terms) in [("SET ", self.sets), ("ADD ", self.adds), ("REMOVE ", self.removes)]
        {
            if !terms.text.is_empty() {
                expression.next().text(clause).text(&terms.text);
            }
        }
        let names = self.names.into_iter().enumerate();
        let names = names.map(|(n, name)| (name_placeholder(n), name.into()));
        let values = self.values.into_iter().enumerate();
        Update {
            expression: expression.text,
            condition: self.conditions.text,
            names: (names.len() > 0).then(|| names.collect()),
            values: values.map(|(n, value)| (value_placeholder(n), value)).collect(),
        }
    }
}

impl From<Attribute<'_>> for String {
    fn from(attribute: Attribute<'_>) -> Self {
        match attribute {
            Attribute::OfBucket(name) => name.to_owned(),
            Attribute::OfLimit(field, limit) => keys::bucket_attribute(limit, field),
            Attribute::CalendarOf(limit) => keys::calendar_attribute(limit),
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

fn number<N: itoa::Integer>(number: N) -> AttributeValue {
    AttributeValue::N(itoa::Buffer::new().format(number).to_owned())
}

#[cfg(test)]
#[path = "expressions_tests.rs"]
mod tests;
