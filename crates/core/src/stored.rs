//! The configuration in the table: parents of entities, and limits by level.
//!
//! A limit that was deleted leaves a tombstone, so that a bucket which still has it can be told from
//! one whose limit was never stored.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_dynamo::{AttributeValue, Item};

use crate::item::{self, find, key_of, number, number_of, ranged_of, text_of, wrong_type};
use crate::keys::{self, ItemKey, LimitField, LimitsScope};
use crate::{EntityId, EpochMillis, ItemError, LimitName, Rule};

/// The stored record of an entity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntityRecord {
    /// The entity.
    pub entity: EntityId,
    /// Its parent; never the entity itself.
    pub parent: Option<EntityId>,
    /// True if an acquire takes from the parent's bucket too.
    pub cascade: bool,
}

/// The limits that one level of the configuration names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredLimits {
    /// The entities and resources that they apply to.
    pub scope: LimitsScope,
    /// The limits that stand.
    pub rules: BTreeMap<LimitName, Rule>,
    /// Limits that were deleted and not stored again, and the version that each deletion made. One
    /// of them says nothing about a limit of that name at another level.
    pub deleted: BTreeMap<LimitName, u64>,
    /// The last change, by the clock of the process that made it.
    pub updated_at: EpochMillis,
    /// Counts the changes; every one moves it ahead.
    pub version: u64,
}

impl EntityRecord {
    /// The key of the item.
    #[must_use]
    pub fn key(&self) -> ItemKey {
        ItemKey::Entity(self.entity.clone())
    }

    /// Reads an item; `None` when its keys are not those of an entity. Without `cascade` it is off,
    /// and a `parent_id` that is null is none.
    ///
    /// # Errors
    /// [`ItemError`] when an attribute is of the wrong type, a name is not allowed, or the entity is
    /// its own parent.
    pub fn from_item(item: &Item) -> Result<Option<Self>, ItemError> {
        let Some(ItemKey::Entity(entity)) = key_of(item)? else { return Ok(None) };
        let parent = match item.inner().get(keys::PARENT_ID) {
            None | Some(AttributeValue::Null(_)) => None,
            Some(_) => Some(EntityId::new(text_of(item, keys::PARENT_ID)?)?),
        };
        if parent.as_ref() == Some(&entity) {
            return Err(wrong_type(keys::PARENT_ID, "another entity"));
        }
        let cascade = match item.inner().get(keys::CASCADE) {
            None => false,
            Some(AttributeValue::Bool(cascade)) => *cascade,
            Some(_) => return Err(wrong_type(keys::CASCADE, "a boolean")),
        };
        Ok(Some(Self { entity, parent, cascade }))
    }

    /// Writes the whole item, keys and index keys included.
    #[must_use]
    pub fn to_item(&self) -> Item {
        let mut item = keyed(&self.key());
        item.insert(keys::CASCADE.to_owned(), AttributeValue::Bool(self.cascade));
        if let Some(parent) = &self.parent {
            item.insert(keys::PARENT_ID.to_owned(), AttributeValue::S(parent.to_string()));
            let (gsi1pk, gsi1sk) = keys::gsi1_keys(parent, &self.entity);
            item.insert(keys::GSI1.pk.to_owned(), AttributeValue::S(gsi1pk));
            item.insert(keys::GSI1.sk.to_owned(), AttributeValue::S(gsi1sk));
        }
        Item::from(item)
    }
}

impl StoredLimits {
    /// The key of the item.
    #[must_use]
    pub fn key(&self) -> ItemKey {
        ItemKey::Limits(self.scope.clone())
    }

    /// Reads an item; `None` when its keys are not those of stored limits.
    ///
    /// A limit is there when any field of its rule is; `bx` may be absent and is then the capacity.
    /// A tombstone beside a rule counts for nothing.
    ///
    /// # Errors
    /// [`ItemError`] when an attribute is missing, of the wrong type or out of range.
    pub fn from_item(item: &Item) -> Result<Option<Self>, ItemError> {
        let Some(ItemKey::Limits(scope)) = key_of(item)? else { return Ok(None) };
        let (mut named, mut deleted) = (BTreeSet::new(), BTreeMap::new());
        for attribute in item.inner().keys() {
            let Some((limit, field)) = keys::parse_limit_attribute(attribute) else { continue };
            let limit = LimitName::new(limit)?;
            if field == LimitField::Tombstone {
                deleted.insert(limit, i64::unsigned_abs(number_of(item, attribute)?));
            } else {
                named.insert(limit);
            }
        }
        let updated_at = ranged_of(item, keys::UPDATED_AT, EpochMillis::new)?;
        let version = number(find(item, keys::LIMITS_VERSION))?;
        // Every producer that keeps none moves the time.
        let version = version.unwrap_or_else(|| updated_at.get().unsigned_abs());
        let mut rules = BTreeMap::new();
        for limit in named {
            let rule = rule_of(item, &limit)?;
            rules.insert(limit, rule);
        }
        deleted.retain(|limit, _| !rules.contains_key(limit));
        Ok(Some(Self { scope, rules, deleted, updated_at, version }))
    }

    /// Writes the whole item.
    #[must_use]
    pub fn to_item(&self) -> Item {
        let mut item = keyed(&self.key());
        let number = |value: i64| AttributeValue::N(value.to_string());
        item.insert(keys::UPDATED_AT.to_owned(), number(self.updated_at.get()));
        item.insert(keys::LIMITS_VERSION.to_owned(), AttributeValue::N(self.version.to_string()));
        for (limit, rule) in &self.rules {
            let attributes = rule_attributes(limit, *rule);
            item.extend(attributes.into_iter().map(|(name, value)| (name, number(value))));
            if let Some(calendar) = rule.refill().calendar() {
                let name = keys::limit_attribute(limit, LimitField::Calendar);
                item.insert(name, AttributeValue::S(calendar.to_string()));
            }
        }
        for (limit, version) in &self.deleted {
            let tombstone = keys::limit_attribute(limit, LimitField::Tombstone);
            item.insert(tombstone, AttributeValue::N(version.to_string()));
        }
        Item::from(item)
    }
}

/// The attributes of a stored limit that are numbers, and their values.
#[must_use]
pub fn rule_attributes(limit: &LimitName, rule: Rule) -> [(String, i64); 4] {
    [
        (LimitField::Capacity, rule.capacity().get()),
        (LimitField::Burst, rule.burst().get()),
        (LimitField::RefillAmount, rule.refill().even_amount().get()),
        (LimitField::RefillPeriod, rule.refill().period_ms()),
    ]
    .map(|(field, value)| (keys::limit_attribute(limit, field), value))
}

fn rule_of(item: &Item, limit: &LimitName) -> Result<Rule, ItemError> {
    let name = |field| keys::limit_attribute(limit, field);
    let value = |field| find(item, &name(field));
    item::rule(LimitField::RULE, value, name, value(LimitField::Calendar))
}

fn keyed(key: &ItemKey) -> HashMap<String, AttributeValue> {
    HashMap::from([
        (keys::PK.to_owned(), AttributeValue::S(key.pk())),
        (keys::SK.to_owned(), AttributeValue::S(key.sk())),
    ])
}

#[cfg(test)]
#[path = "stored_tests.rs"]
mod tests;
