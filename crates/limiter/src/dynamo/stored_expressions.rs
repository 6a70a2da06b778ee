//! Every expression about the configuration, about the older layout of buckets, and every one that
//! reads a range of keys.
//!
//! Names and values are positional placeholders, so no name from outside is ever parsed as part of
//! an expression.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use aws_sdk_dynamodb::types::AttributeValue;
use sluicegate_core::keys::{self, KeyRange, LegacyKey, LimitField, SortKeys};
use sluicegate_core::{
    EntityRecord, EpochMillis, LimitName, Rule, Thresholds, Unchanged, WindowSpan, rule_attributes,
};

pub(super) use super::expressions::key;

/// The names and values of a request's placeholders.
#[derive(Debug, Clone, Default)]
pub(super) struct Placeholders {
    pub(super) names: HashMap<String, String>,
    pub(super) values: HashMap<String, AttributeValue>,
}

/// An update of one item.
#[derive(Debug, Default)]
pub(super) struct StoredUpdate {
    pub(super) expression: String,
    pub(super) condition: Option<String>,
    pub(super) placeholders: Placeholders,
}

/// A condition on one item.
#[derive(Debug)]
pub(super) struct VersionCondition {
    pub(super) condition: String,
    pub(super) placeholders: Placeholders,
}

/// The items that a scan returns, and their attributes.
#[derive(Debug, Clone)]
pub(super) struct Filter {
    pub(super) condition: String,
    pub(super) projection: String,
    pub(super) placeholders: Placeholders,
}

/// A query of a range of keys.
#[derive(Debug, Clone)]
pub(super) struct Query {
    pub(super) index: Option<&'static str>,
    pub(super) condition: String,
    pub(super) filter: Option<String>,
    pub(super) placeholders: Placeholders,
}

impl Placeholders {
    fn name(&mut self, attribute: impl Into<String>) -> String {
        let placeholder = format!("#n{}", self.names.len());
        self.names.insert(placeholder.clone(), attribute.into());
        placeholder
    }

    fn value(&mut self, value: AttributeValue) -> String {
        let placeholder = format!(":v{}", self.values.len());
        self.values.insert(placeholder.clone(), value);
        placeholder
    }

    fn assignment(&mut self, attribute: impl Into<String>, value: AttributeValue) -> String {
        let (name, value) = (self.name(attribute), self.value(value));
        format!("{name} = {value}")
    }

    /// The clauses that a change of stored limits sets, and its version. That is one more than the
    /// last version, or than the time that stood for it, so it grows regardless of this clock.
    fn changed(&mut self, now: EpochMillis) -> (Vec<String>, String) {
        let (updated_at, version) = (self.name(keys::UPDATED_AT), self.name(keys::LIMITS_VERSION));
        let (now, one) = (self.value(number(now.get())), self.value(number(1)));
        let next = format!("if_not_exists({version}, {updated_at}) + {one}");
        (vec![format!("{updated_at} = {now}"), format!("{version} = {next}")], next)
    }

    /// The clauses that the first change of a level sets. The version starts from the time: limits
    /// that were deleted by hand and stored again get versions that no item follows yet.
    fn begun(&mut self, now: EpochMillis) -> Vec<String> {
        let first = number(now.get().saturating_add(1));
        vec![
            self.assignment(keys::UPDATED_AT, number(now.get())),
            self.assignment(keys::LIMITS_VERSION, first),
        ]
    }

    fn within(&mut self, attribute: &str, keys: SortKeys) -> String {
        let name = self.name(attribute);
        match keys {
            SortKeys::Prefix(prefix) => {
                format!("begins_with({name}, {})", self.value(text(prefix)))
            }
            SortKeys::Between(first, last) => {
                let (first, last) = (self.value(text(first)), self.value(text(last)));
                format!("{name} BETWEEN {first} AND {last}")
            }
        }
    }
}

/// Writes the record of an entity and leaves attributes of other programs alone.
pub(super) fn put_entity(record: &EntityRecord) -> StoredUpdate {
    let mut update = StoredUpdate::default();
    let p = &mut update.placeholders;
    let cascade = p.assignment(keys::CASCADE, AttributeValue::Bool(record.cascade));
    update.expression = if let Some(parent) = &record.parent {
        let (gsi1pk, gsi1sk) = keys::gsi1_keys(parent, &record.entity);
        let parent = p.assignment(keys::PARENT_ID, text(parent.as_str()));
        let gsi1pk = p.assignment(keys::GSI1.pk, text(gsi1pk));
        let gsi1sk = p.assignment(keys::GSI1.sk, text(gsi1sk));
        format!("SET {cascade}, {parent}, {gsi1pk}, {gsi1sk}")
    } else {
        let gone = [keys::PARENT_ID, keys::GSI1.pk, keys::GSI1.sk].map(|name| p.name(name));
        format!("SET {cascade} REMOVE {}", gone.join(", "))
    };
    update
}

/// Says if there is an item of stored limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    There,
    New,
}

/// Stores limits and increases the item's version, on condition that it exists, or does not.
pub(super) fn set_limits(
    rules: &[(LimitName, Rule)],
    level: Level,
    now: EpochMillis,
) -> StoredUpdate {
    let mut update = StoredUpdate::default();
    let p = &mut update.placeholders;
    let (mut sets, condition) = match level {
        Level::There => (p.changed(now).0, "attribute_exists"),
        Level::New => (p.begun(now), "attribute_not_exists"),
    };
    let mut removes = Vec::with_capacity(2 * rules.len());
    for (limit, rule) in rules {
        for (attribute, value) in rule_attributes(limit, *rule) {
            sets.push(p.assignment(attribute, number(value)));
        }
        let calendar = keys::limit_attribute(limit, LimitField::Calendar);
        match rule.refill().calendar() {
            Some(at) => sets.push(p.assignment(calendar, text(at.to_string()))),
            None => removes.push(p.name(calendar)),
        }
        removes.push(p.name(keys::limit_attribute(limit, LimitField::Tombstone)));
    }
    update.expression = format!("SET {} REMOVE {}", sets.join(", "), removes.join(", "));
    update.condition = Some(format!("{condition}({})", p.name(keys::PK)));
    update
}

/// Stores the thresholds of limits.
pub(super) fn set_alerts(thresholds: &BTreeMap<LimitName, Thresholds>) -> StoredUpdate {
    let mut update = StoredUpdate::default();
    let p = &mut update.placeholders;
    let sets = thresholds.iter().map(|(limit, list)| {
        p.assignment(keys::thresholds_attribute(limit), text(list.text(limit)))
    });
    update.expression = format!("SET {}", sets.collect::<Vec<_>>().join(", "));
    update
}

/// Removes the thresholds of limits, on condition that the item exists.
pub(super) fn delete_alerts(limits: &[LimitName]) -> StoredUpdate {
    let mut update = StoredUpdate::default();
    let p = &mut update.placeholders;
    // An expression may name an attribute once.
    let attributes: BTreeSet<_> = limits.iter().map(keys::thresholds_attribute).collect();
    let removes: Vec<_> = attributes.into_iter().map(|attribute| p.name(attribute)).collect();
    update.expression = format!("REMOVE {}", removes.join(", "));
    update.condition = Some(format!("attribute_exists({})", p.name(keys::PK)));
    update
}

/// The condition that an entry of the outbox is given up.
pub(super) fn is_given_up() -> StoredUpdate {
    let mut update = StoredUpdate::default();
    update.expression = update.placeholders.assignment(keys::STATE, text(keys::FAILED));
    update
}

/// Replaces limits by tombstones and increases the item's version, on condition that it exists.
pub(super) fn delete_limits(limits: &[LimitName], now: EpochMillis) -> StoredUpdate {
    let mut update = StoredUpdate::default();
    let p = &mut update.placeholders;
    let (mut sets, version) = p.changed(now);
    let mut removes = Vec::with_capacity(limits.len() * (LimitField::RULE.len() + 1));
    for limit in limits {
        let tombstone = p.name(keys::limit_attribute(limit, LimitField::Tombstone));
        sets.push(format!("{tombstone} = {version}"));
        let fields = LimitField::RULE.into_iter().chain([LimitField::Calendar]);
        removes.extend(fields.map(|field| p.name(keys::limit_attribute(limit, field))));
    }
    update.expression = format!("SET {} REMOVE {}", sets.join(", "), removes.join(", "));
    update.condition = Some(format!("attribute_exists({})", p.name(keys::PK)));
    update
}

/// The condition that an item is as it was read.
pub(super) fn unchanged(conditions: &[Unchanged]) -> VersionCondition {
    let mut placeholders = Placeholders::default();
    let conditions = conditions.iter().map(|Unchanged { attribute, seen }| match seen {
        Some(seen) => placeholders.assignment(*attribute, number(*seen)),
        None => format!("attribute_not_exists({})", placeholders.name(*attribute)),
    });
    let condition = conditions.collect::<Vec<_>>().join(" AND ");
    VersionCondition { condition, placeholders }
}

/// The keys of items in the older layout, broken ones included: a composite bucket has the same
/// prefix and a refill time.
pub(super) fn legacy_items() -> Filter {
    let mut placeholders = Placeholders::default();
    let (pk, sk) = (placeholders.name(keys::PK), placeholders.name(keys::SK));
    let refilled_at = placeholders.name(keys::REFILLED_AT);
    let prefix = placeholders.value(text(keys::BUCKET_PREFIX));
    let condition = format!("begins_with({sk}, {prefix}) AND attribute_not_exists({refilled_at})");
    Filter { condition, projection: format!("{pk}, {sk}"), placeholders }
}

/// Notes the version of the layout.
pub(super) fn set_schema(version: i64) -> StoredUpdate {
    let mut update = StoredUpdate::default();
    let schema = update.placeholders.assignment(keys::SCHEMA, number(version));
    update.expression = format!("SET {schema}");
    update
}

/// Reads a range of keys.
pub(super) fn query(range: KeyRange) -> Query {
    let mut placeholders = Placeholders::default();
    let (pk, sk) = range.index.map_or((keys::PK, keys::SK), |index| (index.pk, index.sk));
    let partition = placeholders.assignment(pk, text(range.partition));
    let sort = placeholders.within(sk, range.sort);
    Query {
        index: range.index.map(|index| index.name),
        condition: format!("{partition} AND {sort}"),
        filter: None,
        placeholders,
    }
}

/// Reads the usage windows of a span out of a range that holds others too; `None` for a span
/// without windows. A filter cannot use the key of the table; it can use that of an index.
pub(super) fn query_span(range: KeyRange, span: &WindowSpan) -> Option<Query> {
    let keys = keys::usage_index_keys(span)?;
    let mut query = query(range);
    query.filter = Some(query.placeholders.within(keys::GSI2.sk, keys));
    Some(query)
}

/// The resources of the usage windows of a span, in a scan of the index; `None` for a span without
/// windows.
pub(super) fn resources_of(span: &WindowSpan) -> Option<Filter> {
    let mut placeholders = Placeholders::default();
    let condition = placeholders.within(keys::GSI2.sk, keys::usage_index_keys(span)?);
    let projection = placeholders.name(keys::GSI2.pk);
    Some(Filter { condition, projection, placeholders })
}

/// The two key attributes of a legacy item.
pub(super) fn legacy_key(key: &LegacyKey) -> HashMap<String, AttributeValue> {
    HashMap::from([(keys::PK.to_owned(), text(key.pk())), (keys::SK.to_owned(), text(key.sk()))])
}

fn text(text: impl Into<String>) -> AttributeValue {
    AttributeValue::S(text.into())
}

fn number(number: i64) -> AttributeValue {
    AttributeValue::N(number.to_string())
}

#[cfg(test)]
#[path = "stored_expressions_tests.rs"]
mod tests;
