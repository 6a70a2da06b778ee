//! A usage window as it is read back from the table.

use std::collections::BTreeMap;

use serde_dynamo::Item;

use crate::item::{ItemError, find, key_of, number, number_of, required};
use crate::keys::{self, ItemKey};
use crate::{EntityId, LimitName, Resource, Window};

/// The consumption of one entity of one resource in one window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageWindow {
    /// The entity that consumed.
    pub entity: EntityId,
    /// The resource that was consumed.
    pub resource: Resource,
    /// The window.
    pub window: Window,
    /// Millitokens by limit: the consumption minus the returned tokens. It may be negative.
    pub consumed_milli: BTreeMap<LimitName, i128>,
    /// The number of stream records counted.
    pub events: u64,
    /// The time at which DynamoDB may delete it, epoch seconds; `None` keeps it for ever.
    pub expires_at_s: Option<i64>,
}

impl UsageWindow {
    /// Reads an item; `None` when its keys are not those of a usage window.
    ///
    /// # Errors
    /// [`ItemError`] when an attribute is missing or of the wrong type.
    pub fn from_item(item: &Item) -> Result<Option<Self>, ItemError> {
        let Some(ItemKey::Usage(entity, resource, window)) = key_of(item)? else {
            return Ok(None);
        };
        let mut consumed_milli = BTreeMap::new();
        for attribute in item.inner().keys() {
            if let Some(limit) = keys::parse_usage_attribute(attribute) {
                consumed_milli.insert(LimitName::new(limit)?, number_of(item, attribute)?);
            }
        }
        // Nothing counted yet: every record so far went to quarantine, and only the watermark
        // moved.
        let nothing = consumed_milli.is_empty().then_some(0);
        let events = number(find(item, keys::EVENTS))?.or(nothing);
        Ok(Some(Self {
            entity,
            resource,
            window,
            consumed_milli,
            events: required(keys::EVENTS, events)?,
            expires_at_s: number(find(item, keys::TTL))?,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_dynamo::AttributeValue;
    use std::collections::HashMap;

    fn item(attributes: &[(&str, AttributeValue)]) -> Item {
        let mut item = HashMap::from([
            ("PK".to_owned(), AttributeValue::S("ENTITY#u".to_owned())),
            (
                "SK".to_owned(),
                AttributeValue::S("#USAGE#gpt-4#hour#2026-01-28T14:00:00Z".to_owned()),
            ),
        ]);
        item.extend(attributes.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        item.into()
    }

    #[test]
    fn limits_are_told_from_other_attributes() {
        let n = |digits: &str| AttributeValue::N(digits.to_owned());
        let window = UsageWindow::from_item(&item(&[
            ("u_ttl", n("-5")),
            ("u_events", n("99999999999999999999999999999999999999")),
            ("ttl", n("7")),
            ("events", n("2")),
            ("wm_-", AttributeValue::S("0".repeat(40))),
        ]));
        let window = window.unwrap().unwrap();
        assert_eq!((window.events, window.expires_at_s), (2, Some(7)));
        let named: Vec<_> = window.consumed_milli.iter().map(|(l, n)| (l.as_str(), *n)).collect();
        assert_eq!(named, [("events", 10_i128.pow(38) - 1), ("ttl", -5)]);
    }

    #[test]
    fn a_broken_figure_is_an_error_not_a_zero() {
        let broken = item(&[("u_rpm", AttributeValue::S("5".to_owned()))]);
        assert!(UsageWindow::from_item(&broken).is_err());
        let uncounted = item(&[("u_rpm", AttributeValue::N("5".to_owned()))]);
        assert!(UsageWindow::from_item(&uncounted).is_err());
        let only_watermark = UsageWindow::from_item(&item(&[])).unwrap().unwrap();
        assert_eq!(only_watermark.events, 0);
    }
}
