//! Ranges of keys, for the items that one query reads.
//!
//! A range is one partition of the table or of an index and the sort keys in it, both ends
//! included. The code that sends a query does not spell any key.

use super::alerts::{CLOSED_PREFIX, OPEN_PREFIX, SCOPE_PREFIX};
use super::names::{
    ALERTS, BUCKET_PREFIX, ENTITY_PREFIX, GSI1, GSI2, Index, OUTBOX, QUARANTINE, RESOURCE_PREFIX,
    USAGE_PREFIX,
};
use crate::{EntityId, Resource, WindowSpan};

const PARENT_PREFIX: &str = "PARENT#";
const CHILD_PREFIX: &str = "CHILD#";

/// Items that one query reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRange {
    /// The index to ask; `None` for the table.
    pub index: Option<Index>,
    /// The partition key.
    pub partition: String,
    /// The sort keys.
    pub sort: SortKeys,
}

/// Sort keys that lie together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SortKeys {
    /// Those that begin with this.
    Prefix(String),
    /// Those from the first to the last, both included.
    Between(String, String),
}

impl KeyRange {
    /// The items of the table in this partition whose sort keys begin with `prefix`.
    pub(super) fn prefix(partition: impl Into<String>, prefix: impl Into<String>) -> Self {
        let sort = SortKeys::Prefix(prefix.into());
        Self { index: None, partition: partition.into(), sort }
    }

    /// Usage windows of an entity and a resource; `None` for a span without windows.
    #[must_use]
    pub fn usage(entity: &EntityId, resource: &Resource, span: &WindowSpan) -> Option<Self> {
        let (first, last) = span.ends()?;
        let key = |start: String| format!("{USAGE_PREFIX}{resource}#{}#{start}", span.kind);
        Some(Self {
            index: None,
            partition: format!("{ENTITY_PREFIX}{entity}"),
            sort: SortKeys::Between(key(first.start_text()), key(last.start_text())),
        })
    }

    /// Every usage window of an entity: of all resources, kinds and times.
    #[must_use]
    pub fn usage_of_entity(entity: &EntityId) -> Self {
        Self::prefix(format!("{ENTITY_PREFIX}{entity}"), USAGE_PREFIX)
    }

    /// Bucket items of an entity.
    #[must_use]
    pub fn buckets_of_entity(entity: &EntityId) -> Self {
        Self::prefix(format!("{ENTITY_PREFIX}{entity}"), BUCKET_PREFIX)
    }

    /// Quarantined records, by stream and position.
    #[must_use]
    pub fn quarantine() -> Self {
        let sort = SortKeys::Between(" ".to_owned(), char::MAX.to_string());
        Self { index: None, partition: QUARANTINE.to_owned(), sort }
    }

    /// Alert thresholds of every scope.
    #[must_use]
    pub fn alert_settings() -> Self {
        Self::prefix(ALERTS, SCOPE_PREFIX)
    }

    /// Alert thresholds of every scope, then the alerts that wait for their delivery, oldest first.
    #[must_use]
    pub fn alerts() -> Self {
        Self::prefix(ALERTS, "#")
    }

    /// Alerts that wait for their delivery, oldest first.
    #[must_use]
    pub fn open_alerts() -> Self {
        Self::prefix(ALERTS, OPEN_PREFIX)
    }

    /// Alerts that were delivered or given up, oldest first.
    #[must_use]
    pub fn closed_alerts() -> Self {
        Self::prefix(OUTBOX, CLOSED_PREFIX)
    }

    /// Usage windows of a resource, of all entities; `None` for a span without windows.
    #[must_use]
    pub fn usage_of_resource(resource: &Resource, span: &WindowSpan) -> Option<Self> {
        let partition = format!("{RESOURCE_PREFIX}{resource}");
        Some(Self { index: Some(GSI2), partition, sort: usage_index_keys(span)? })
    }

    /// Bucket items of a resource.
    #[must_use]
    pub fn buckets_of_resource(resource: &Resource) -> Self {
        let range = Self::prefix(format!("{RESOURCE_PREFIX}{resource}"), "BUCKET#");
        Self { index: Some(GSI2), ..range }
    }

    /// Children of a parent.
    #[must_use]
    pub fn children(parent: &EntityId) -> Self {
        let range = Self::prefix(format!("{PARENT_PREFIX}{parent}"), CHILD_PREFIX);
        Self { index: Some(GSI1), ..range }
    }
}

/// The range of `GSI2SK` for the usage windows of a span, of all entities; `None` for a span
/// without windows.
#[must_use]
pub fn usage_index_keys(span: &WindowSpan) -> Option<SortKeys> {
    let (first, last) = span.ends()?;
    let key = |start: String, end: char| format!("USAGE#{}#{start}{end}", span.kind);
    // `$` comes right after `#`, so the last key is above every entity of the last window.
    Some(SortKeys::Between(key(first.start_text(), '#'), key(last.start_text(), '$')))
}

/// The resource of a `GSI2PK`, not checked yet.
#[must_use]
pub fn parse_index_resource(gsi2pk: &str) -> Option<&str> {
    gsi2pk.strip_prefix(RESOURCE_PREFIX)
}

/// Keys in the index of a parent, `(GSI1PK, GSI1SK)`, for the item of its child.
#[must_use]
pub fn gsi1_keys(parent: &EntityId, child: &EntityId) -> (String, String) {
    (format!("{PARENT_PREFIX}{parent}"), format!("{CHILD_PREFIX}{child}"))
}

/// The child of a `GSI1SK`, not checked yet.
#[must_use]
pub fn parse_child(gsi1sk: &str) -> Option<&str> {
    gsi1sk.strip_prefix(CHILD_PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::ItemKey;
    use crate::window::tests::window_kind;
    use crate::{EpochMillis, WindowKind};
    use proptest::prelude::*;

    impl SortKeys {
        fn hold(&self, key: &str) -> bool {
            match self {
                Self::Prefix(prefix) => key.starts_with(prefix),
                Self::Between(first, last) => (first.as_str()..=last.as_str()).contains(&key),
            }
        }
    }

    impl KeyRange {
        /// True if a query of the range finds the item.
        fn holds(&self, key: &ItemKey) -> bool {
            let (pk, sk) = match self.index {
                None => (key.pk(), key.sk()),
                Some(_) => match key.gsi2_keys() {
                    Some(keys) => keys,
                    None => return false,
                },
            };
            self.partition == pk && self.sort.hold(&sk)
        }
    }

    /// Names that sort right beside one another and around `#`.
    fn name() -> impl Strategy<Value = &'static str> {
        proptest::sample::select(vec!["a", "a$", "a\"", "a ", "b", "é", "a-hour", "\u{10ffff}"])
    }

    fn instant() -> impl Strategy<Value = EpochMillis> {
        // Two days around the end of a month, by the half second.
        (0..345_600_i64)
            .prop_map(|half| EpochMillis::new(1_769_817_600_000 + half * 500 - 86_400_000).unwrap())
    }

    proptest! {
        #[test]
        fn a_range_holds_what_is_asked_for_and_nothing_else(
            (entity, other_entity) in (name(), name()),
            (resource, other_resource) in (name(), name()),
            (kind, other_kind, same_kind) in (window_kind(), window_kind(), any::<bool>()),
            (from, to, at) in (instant(), instant(), instant()),
        ) {
            let entities = [entity, other_entity].map(|name| EntityId::new(name).unwrap());
            let resources = [resource, other_resource].map(|name| Resource::new(name).unwrap());
            let span = WindowSpan { kind, starts: from..to };
            let window = if same_kind { kind } else { other_kind }.containing(at);
            let item = ItemKey::Usage(entities[1].clone(), resources[1].clone(), window);

            let of_entity = entities[0] == entities[1];
            let of_resource = resources[0] == resources[1];
            let in_span = span.holds(window);
            let found = |range: Option<KeyRange>| range.is_some_and(|range| range.holds(&item));
            prop_assert_eq!(
                found(KeyRange::usage(&entities[0], &resources[0], &span)),
                of_entity && of_resource && in_span
            );
            prop_assert_eq!(
                found(KeyRange::usage_of_resource(&resources[0], &span)),
                of_resource && in_span
            );
            prop_assert_eq!(found(Some(KeyRange::usage_of_entity(&entities[0]))), of_entity);
            prop_assert!(!found(Some(KeyRange::buckets_of_resource(&resources[1]))));
            let (gsi2pk, gsi2sk) = item.gsi2_keys().unwrap();
            prop_assert_eq!(parse_index_resource(&gsi2pk), Some(other_resource));
            prop_assert_eq!(usage_index_keys(&span).is_some_and(|keys| keys.hold(&gsi2sk)), in_span);
        }

        #[test]
        fn children_parse_back(parent in "[^#\\p{Cc}]{1,60}", child in "[^#\\p{Cc}]{1,60}") {
            let (parent, child) = (EntityId::new(parent).unwrap(), EntityId::new(child).unwrap());
            let (pk, sk) = gsi1_keys(&parent, &child);
            let range = KeyRange::children(&parent);
            prop_assert!(range.partition == pk && range.sort.hold(&sk));
            prop_assert_eq!(parse_child(&sk), Some(child.as_str()));
        }
    }

    #[test]
    fn buckets_are_told_from_windows() {
        let (entity, resource) = (EntityId::new("u").unwrap(), Resource::new("r").unwrap());
        let range = KeyRange::buckets_of_resource(&resource);
        let bucket = ItemKey::Bucket(entity.clone(), resource.clone());
        assert!(range.holds(&bucket));
        let range = KeyRange::buckets_of_entity(&entity);
        assert!(range.holds(&bucket));
        let window = WindowKind::Hour.containing(EpochMillis::MIN);
        assert!(!range.holds(&ItemKey::Usage(entity, resource, window)));
    }
}
