//! The thresholds that are stored in the table, by scope.

use std::collections::{BTreeMap, HashMap};

use serde_dynamo::{AttributeValue, Item};

use super::threshold::{Threshold, Thresholds};
use crate::item::{key_of, text_of, wrong_type};
use crate::keys::{self, ItemKey, LimitsScope};
use crate::{BucketId, ItemError, LimitName};

/// The thresholds of one scope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AlertSettings {
    /// The entities and resources that they apply to.
    pub scope: LimitsScope,
    /// Thresholds by limit.
    pub thresholds: BTreeMap<LimitName, Thresholds>,
}

impl AlertSettings {
    /// The key of the item.
    #[must_use]
    pub fn key(&self) -> ItemKey {
        ItemKey::Alerts(self.scope.clone())
    }

    /// Reads an item; `None` when its keys are not those of alert settings.
    ///
    /// # Errors
    /// [`ItemError`] when an attribute is of the wrong type, or a name or threshold is not allowed.
    pub fn from_item(item: &Item) -> Result<Option<Self>, ItemError> {
        let Some(ItemKey::Alerts(scope)) = key_of(item)? else { return Ok(None) };
        let mut thresholds = BTreeMap::new();
        for attribute in item.inner().keys() {
            let Some(limit) = keys::parse_thresholds_attribute(attribute) else { continue };
            let limit = LimitName::new(limit)?;
            let list = Thresholds::parse(&limit, text_of(item, attribute)?)
                .map_err(|_| wrong_type(attribute, "a list of thresholds"))?;
            thresholds.insert(limit, list);
        }
        Ok(Some(Self { scope, thresholds }))
    }

    /// Writes the whole item.
    #[must_use]
    pub fn to_item(&self) -> Item {
        let key = self.key();
        let text = AttributeValue::S;
        let mut item = HashMap::from([
            (keys::PK.to_owned(), text(key.pk())),
            (keys::SK.to_owned(), text(key.sk())),
        ]);
        let lists = self.thresholds.iter();
        item.extend(
            lists.map(|(limit, list)| (keys::thresholds_attribute(limit), text(list.text(limit)))),
        );
        Item::from(item)
    }
}

/// The thresholds of all scopes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AlertRules(HashMap<LimitsScope, BTreeMap<LimitName, Thresholds>>);

impl AlertRules {
    /// True if no threshold is stored.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The thresholds of a bucket, by limit: those of a limit come from the narrowest scope that
    /// names it.
    #[must_use]
    pub fn of_bucket(&self, bucket: &BucketId) -> Vec<(&LimitName, Threshold)> {
        let mut found = BTreeMap::new();
        for scope in LimitsScope::levels(bucket) {
            for (limit, thresholds) in self.0.get(&scope).into_iter().flatten() {
                found.entry(limit).or_insert(thresholds);
            }
        }
        let each = found.into_iter();
        each.flat_map(|(limit, list)| list.iter().map(move |threshold| (limit, threshold)))
            .collect()
    }
}

impl FromIterator<AlertSettings> for AlertRules {
    fn from_iter<I: IntoIterator<Item = AlertSettings>>(settings: I) -> Self {
        let settings = settings.into_iter().filter(|settings| !settings.thresholds.is_empty());
        Self(settings.map(|settings| (settings.scope, settings.thresholds)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{bucket, name};
    use crate::{EntityId, Resource};

    fn settings(scope: LimitsScope, lists: &[(&str, &str)]) -> AlertSettings {
        let list = |(limit, list): &(&str, &str)| {
            (name(limit), Thresholds::parse(&name(limit), list).unwrap())
        };
        AlertSettings { scope, thresholds: lists.iter().map(list).collect() }
    }

    fn scopes() -> [LimitsScope; 4] {
        LimitsScope::levels(&bucket("u", "r"))
    }

    #[test]
    fn items_are_read_back() {
        for scope in scopes() {
            let settings = settings(scope, &[("usd", "80%,150/month"), ("t_x", "5/hour")]);
            let item = settings.to_item();
            assert_eq!(AlertSettings::from_item(&item), Ok(Some(settings)));
        }
        let mut broken = settings(LimitsScope::System, &[]).to_item().into_inner();
        broken.insert("t_usd".to_owned(), AttributeValue::S("a lot".to_owned()));
        assert!(AlertSettings::from_item(&broken.into()).is_err());
    }

    #[test]
    fn a_limit_has_the_thresholds_of_the_narrowest_scope_that_names_it() {
        let [_, entity, resource, system] = scopes();
        let other = LimitsScope::EntityResource(
            EntityId::new("other").unwrap(),
            Resource::new("r").unwrap(),
        );
        let rules: AlertRules = [
            settings(entity, &[("usd", "90%")]),
            settings(resource, &[("usd", "50%"), ("tpm", "5/hour")]),
            settings(system, &[("usd", "10%"), ("tpm", "1/hour"), ("rpm", "7/day,9/day")]),
            settings(other, &[("rpm", "1/day")]),
        ]
        .into_iter()
        .collect();
        let of = |entity: &str, resource: &str| {
            let found = rules.of_bucket(&bucket(entity, resource));
            let shown = found.iter().map(|(limit, at)| format!("{limit} {}", at.show(limit)));
            shown.collect::<Vec<_>>()
        };
        assert_eq!(of("u", "r"), ["rpm 7/day", "rpm 9/day", "tpm 5/hour", "usd 90%"]);
        assert_eq!(of("v", "s"), ["rpm 7/day", "rpm 9/day", "tpm 1/hour", "usd 10%"]);
        assert!(AlertRules::default().of_bucket(&bucket("u", "r")).is_empty());
        let none: AlertRules = [settings(LimitsScope::System, &[])].into_iter().collect();
        assert!(none.is_empty());
    }
}
