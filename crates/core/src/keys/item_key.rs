//! The identity of an item, and the two keys that it is spelled in.

use super::alerts::{CLOSED_PREFIX, OPEN_PREFIX, OutboxId, SCOPE_PREFIX};
use super::names::{
    ALERTS, BUCKET_PREFIX, ENTITY_PREFIX, LIMITS, MARK_PREFIX, META, OUTBOX, QUARANTINE,
    RESOURCE_PREFIX, SYSTEM, USAGE_PREFIX, VERSION,
};
use super::quarantine::QuarantineId;
use super::scope::LimitsScope;
use crate::{CorrectionKey, EntityId, NameError, Resource, Window, WindowKind};

/// The identity of an item of the table.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ItemKey {
    /// The composite bucket of an entity and a resource.
    Bucket(EntityId, Resource),
    /// The mark of a correction that is made once on a bucket.
    Mark(EntityId, Resource, CorrectionKey),
    /// The metadata of an entity.
    Entity(EntityId),
    /// Stored limits.
    Limits(LimitsScope),
    /// A usage window of an entity and a resource.
    Usage(EntityId, Resource, Window),
    /// A quarantined record.
    Quarantine(QuarantineId),
    /// The alert thresholds of a scope. These items and the open entries of the outbox are one
    /// partition, so that the processor reads both with one query.
    Alerts(LimitsScope),
    /// An alert that waits for its delivery.
    OpenAlert(OutboxId),
    /// An alert that was delivered, or that nothing delivers any more.
    ClosedAlert(OutboxId),
    /// The version of the table's schema.
    SchemaVersion,
}

impl ItemKey {
    /// The partition key, at most 263 bytes.
    #[must_use]
    pub fn pk(&self) -> String {
        match self {
            Self::Bucket(entity, _)
            | Self::Mark(entity, ..)
            | Self::Entity(entity)
            | Self::Usage(entity, ..)
            | Self::Limits(LimitsScope::Entity(entity) | LimitsScope::EntityResource(entity, _)) => {
                format!("{ENTITY_PREFIX}{entity}")
            }
            Self::Limits(LimitsScope::Resource(resource)) => format!("{RESOURCE_PREFIX}{resource}"),
            Self::Limits(LimitsScope::System) | Self::SchemaVersion => SYSTEM.to_owned(),
            Self::Quarantine(_) => QUARANTINE.to_owned(),
            Self::Alerts(_) | Self::OpenAlert(_) => ALERTS.to_owned(),
            Self::ClosedAlert(_) => OUTBOX.to_owned(),
        }
    }

    /// The sort key, at most 396 bytes.
    #[must_use]
    pub fn sk(&self) -> String {
        match self {
            Self::Bucket(_, resource) => format!("{BUCKET_PREFIX}{resource}"),
            Self::Mark(_, resource, key) => format!("{MARK_PREFIX}{resource}#{key}"),
            Self::Entity(_) => META.to_owned(),
            Self::Limits(LimitsScope::EntityResource(_, resource)) => {
                format!("{LIMITS}#{resource}")
            }
            Self::Limits(_) => LIMITS.to_owned(),
            Self::Usage(_, resource, window) => {
                format!("{USAGE_PREFIX}{resource}#{}#{}", window.kind(), window.start_text())
            }
            Self::Quarantine(id) => id.sk(),
            Self::Alerts(scope) => format!("{SCOPE_PREFIX}{}", scope.text()),
            Self::OpenAlert(id) => format!("{OPEN_PREFIX}{id}"),
            Self::ClosedAlert(id) => format!("{CLOSED_PREFIX}{id}"),
            Self::SchemaVersion => VERSION.to_owned(),
        }
    }

    /// Keys in the index of a resource, `(GSI2PK, GSI2SK)`, for the items that are in it.
    #[must_use]
    pub fn gsi2_keys(&self) -> Option<(String, String)> {
        match self {
            Self::Bucket(entity, resource) => {
                Some((format!("{RESOURCE_PREFIX}{resource}"), format!("BUCKET#{entity}")))
            }
            Self::Usage(entity, resource, window) => Some((
                format!("{RESOURCE_PREFIX}{resource}"),
                format!("USAGE#{}#{}#{entity}", window.kind(), window.start_text()),
            )),
            _ => None,
        }
    }

    /// Reads the identity back from the two keys; `None` for an item of another kind, such as a
    /// bucket of the older layout with one item per limit ([`LegacyKey`](super::LegacyKey)).
    ///
    /// # Errors
    /// [`NameError`] when the item is of a known kind but a name in it is not allowed.
    pub fn parse(pk: &str, sk: &str) -> Result<Option<Self>, NameError> {
        if let Some(entity) = pk.strip_prefix(ENTITY_PREFIX) {
            return Self::parse_of_entity(entity, sk);
        }
        if let Some(resource) = pk.strip_prefix(RESOURCE_PREFIX) {
            if sk != LIMITS {
                return Ok(None);
            }
            return Ok(Some(Self::Limits(LimitsScope::Resource(Resource::new(resource)?))));
        }
        Ok(match (pk, sk) {
            (SYSTEM, LIMITS) => Some(Self::Limits(LimitsScope::System)),
            (SYSTEM, VERSION) => Some(Self::SchemaVersion),
            (QUARANTINE, id) => QuarantineId::parse(id).map(Self::Quarantine),
            (ALERTS, sk) => match sk.strip_prefix(SCOPE_PREFIX) {
                Some(scope) => LimitsScope::parse(scope)?.map(Self::Alerts),
                None => sk.strip_prefix(OPEN_PREFIX).and_then(OutboxId::parse).map(Self::OpenAlert),
            },
            (OUTBOX, sk) => {
                sk.strip_prefix(CLOSED_PREFIX).and_then(OutboxId::parse).map(Self::ClosedAlert)
            }
            _ => None,
        })
    }

    fn parse_of_entity(entity: &str, sk: &str) -> Result<Option<Self>, NameError> {
        if let Some(resource) = sk.strip_prefix(BUCKET_PREFIX) {
            if resource.contains('#') {
                return Ok(None);
            }
            return Ok(Some(Self::Bucket(EntityId::new(entity)?, Resource::new(resource)?)));
        }
        if let Some(usage) = sk.strip_prefix(USAGE_PREFIX) {
            let mut parts = usage.split('#');
            let (Some(resource), Some(kind), Some(start), None) =
                (parts.next(), parts.next(), parts.next(), parts.next())
            else {
                return Ok(None);
            };
            let window = WindowKind::from_key(kind).and_then(|kind| Window::parse(kind, start));
            let Some(window) = window else {
                return Ok(None);
            };
            return Ok(Some(Self::Usage(EntityId::new(entity)?, Resource::new(resource)?, window)));
        }
        if let Some((resource, key)) =
            sk.strip_prefix(MARK_PREFIX).and_then(|rest| rest.split_once('#'))
        {
            let (resource, key) = (Resource::new(resource)?, CorrectionKey::new(key)?);
            return Ok(Some(Self::Mark(EntityId::new(entity)?, resource, key)));
        }
        if sk == META {
            return Ok(Some(Self::Entity(EntityId::new(entity)?)));
        }
        let scope = match sk.strip_prefix(LIMITS) {
            Some("") => LimitsScope::Entity(EntityId::new(entity)?),
            Some(rest) if rest.starts_with('#') => {
                LimitsScope::EntityResource(EntityId::new(entity)?, Resource::new(&rest[1..])?)
            }
            _ => return Ok(None),
        };
        Ok(Some(Self::Limits(scope)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::{AlertId, Digest};
    use crate::window::tests::window_kind;
    use crate::{EpochMillis, SequenceNumber, StreamLabel};
    use proptest::prelude::*;

    fn entity() -> impl Strategy<Value = EntityId> {
        "[^#\\p{Cc}]{1,60}".prop_map(|name| EntityId::new(name).unwrap())
    }

    fn resource() -> impl Strategy<Value = Resource> {
        "[^#\\p{Cc}]{1,30}".prop_map(|name| Resource::new(name).unwrap())
    }

    fn window() -> impl Strategy<Value = Window> {
        (window_kind(), 0..=EpochMillis::MAX.get())
            .prop_map(|(kind, at)| kind.containing(EpochMillis::new(at).unwrap()))
    }

    fn label() -> impl Strategy<Value = StreamLabel> {
        prop_oneof![Just("-".to_owned()), "[0-9T:.-]{1,30}"]
            .prop_map(|label| StreamLabel::parse(&label).unwrap())
    }

    fn sequence() -> impl Strategy<Value = SequenceNumber> {
        "[0-9]{21,40}".prop_map(|digits| SequenceNumber::parse(&digits).unwrap())
    }

    fn scope() -> impl Strategy<Value = LimitsScope> {
        prop_oneof![
            (entity(), resource()).prop_map(|(e, r)| LimitsScope::EntityResource(e, r)),
            entity().prop_map(LimitsScope::Entity),
            resource().prop_map(LimitsScope::Resource),
            Just(LimitsScope::System),
        ]
    }

    fn outbox() -> impl Strategy<Value = OutboxId> {
        (0..=EpochMillis::MAX.get(), any::<u128>()).prop_map(|(at, alert)| OutboxId {
            at: EpochMillis::new(at).unwrap(),
            alert: AlertId(alert),
        })
    }

    fn item_key() -> impl Strategy<Value = ItemKey> {
        use ItemKey as K;
        prop_oneof![
            (entity(), resource()).prop_map(|(e, r)| K::Bucket(e, r)),
            entity().prop_map(K::Entity),
            (entity(), resource(), resource()).prop_map(|(e, r, key)| {
                K::Mark(e, r, CorrectionKey::new(key.as_str()).unwrap())
            }),
            (entity(), resource()).prop_map(|(e, r)| K::Limits(LimitsScope::EntityResource(e, r))),
            entity().prop_map(|e| K::Limits(LimitsScope::Entity(e))),
            resource().prop_map(|r| K::Limits(LimitsScope::Resource(r))),
            Just(K::Limits(LimitsScope::System)),
            (entity(), resource(), window()).prop_map(|(e, r, w)| K::Usage(e, r, w)),
            (
                label(),
                proptest::option::of(sequence()),
                any::<u64>(),
                proptest::option::of(window_kind())
            )
                .prop_map(|(stream, sequence, digest, kind)| {
                    K::Quarantine(QuarantineId { stream, sequence, digest: Digest(digest), kind })
                }),
            scope().prop_map(K::Alerts),
            outbox().prop_map(K::OpenAlert),
            outbox().prop_map(K::ClosedAlert),
            Just(K::SchemaVersion),
        ]
    }

    proptest! {
        #[test]
        fn keys_parse_back(key in item_key()) {
            prop_assert_eq!(ItemKey::parse(&key.pk(), &key.sk()), Ok(Some(key)));
        }
    }

    #[test]
    fn the_longest_names_fit_dynamodbs_keys() {
        let entity = EntityId::new("e".repeat(256)).unwrap();
        let resource = Resource::new("r".repeat(128)).unwrap();
        let kind: WindowKind = "year@12-31/America/Argentina/ComodRivadavia".parse().unwrap();
        let key = ItemKey::Usage(entity, resource, kind.containing(EpochMillis::MAX));
        let (_, index_sk) = key.gsi2_keys().unwrap();
        assert!(key.pk().len() <= 2_048 && key.sk().len() == 200 && index_sk.len() <= 1_024);
    }

    /// The keys of tables that exist.
    #[test]
    fn usage_windows_keep_their_keys() {
        let at = EpochMillis::new(1_769_558_400_000).unwrap();
        for (kind, window) in [
            ("minute", "minute#2026-01-28T00:00:00Z"),
            ("hour", "hour#2026-01-28T00:00:00Z"),
            ("day", "day#2026-01-28T00:00:00Z"),
            ("month", "month#2026-01-01T00:00:00Z"),
            ("month@15/europe/berlin", "month@15/Europe/Berlin#2026-01-14T23:00:00Z"),
        ] {
            let kind: WindowKind = kind.parse().unwrap();
            let (entity, resource) = (EntityId::new("u").unwrap(), Resource::new("r").unwrap());
            let key = ItemKey::Usage(entity, resource, kind.containing(at));
            assert_eq!(key.sk(), format!("#USAGE#r#{window}"));
            assert_eq!(key.gsi2_keys().unwrap().1, format!("USAGE#{window}#u"));
            assert_eq!(ItemKey::parse("ENTITY#u", &key.sk()), Ok(Some(key)));
        }
    }

    #[test]
    fn items_of_other_kinds_are_none_and_bad_names_are_errors() {
        for (pk, sk) in [
            ("ENTITY#u", "#BUCKET#gpt-4#rpm"),
            ("ENTITY#u", "#SOMETHING"),
            ("ENTITY#u", "#LIMITSX"),
            ("ENTITY#u", "#USAGE#gpt-4#2026-01-28T00:00:00Z"),
            ("ENTITY#u", "#USAGE#gpt-4#day/UTC#2026-01-28T00:00:00Z"),
            ("ENTITY#u", "#USAGE#gpt-4#day/asia/tokyo#2026-01-28T15:00:00Z"),
            ("ENTITY#u", "#USAGE#gpt-4#day/Asia/Tokyo#2026-01-28T00:00:00Z"),
            ("OTHER#u", "#BUCKET#gpt-4"),
            ("SYSTEM#", "#META"),
            ("ALERTS#", "#OPEN#1#00"),
            ("ALERTS#", "#AT#OTHER#x"),
        ] {
            assert_eq!(ItemKey::parse(pk, sk), Ok(None), "{pk} {sk}");
        }
        assert!(ItemKey::parse("ENTITY#a#b", "#BUCKET#gpt-4").is_err());
        assert!(ItemKey::parse("ENTITY#u", "#BUCKET#").is_err());
    }
}
