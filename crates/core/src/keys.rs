//! Every key and attribute name of the table, built and parsed.
//!
//! No other file of the workspace spells `#BUCKET#` or `b_`. What is built here parses back to what
//! it was built from, because the names inside cannot contain `#` and a field has no `_`.

use crate::{
    BucketId, EntityId, LimitName, NameError, Resource, SequenceNumber, StreamLabel, Window,
    WindowKind,
};

mod legacy;
mod range;
mod stored;

pub use legacy::{
    COMPOSITE_SCHEMA, LAST_REFILL, LegacyKey, OTHER_CLIENT_MIN, OTHER_DATA, OTHER_SCHEMA, SCHEMA,
    legacy_attribute,
};
pub use range::{KeyRange, SortKeys, by_parent, parse_child, usage_index_keys};
pub use stored::{
    CASCADE, LimitField, PARENT_ID, UPDATED_AT, limit_attribute, parse_limit_attribute,
};

/// Partition key of the table.
pub const PK: &str = "PK";
/// Sort key of the table.
pub const SK: &str = "SK";

/// A global secondary index: its name and its two key attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Index {
    /// Name of the index.
    pub name: &'static str,
    /// Its partition key.
    pub pk: &'static str,
    /// Its sort key.
    pub sk: &'static str,
}

/// Children by parent.
pub const GSI1: Index = Index { name: "GSI1", pk: "GSI1PK", sk: "GSI1SK" };
/// Buckets and usage windows by resource.
pub const GSI2: Index = Index { name: "GSI2", pk: "GSI2PK", sk: "GSI2SK" };
/// Expiry in epoch seconds, the table's TTL attribute.
pub const TTL: &str = "ttl";
/// The entity of a bucket item.
pub const ENTITY_ID: &str = "entity_id";
/// The resource of a bucket item.
pub const RESOURCE: &str = "resource";
/// When refill was last claimed for all limits of a bucket item, epoch milliseconds.
pub const REFILLED_AT: &str = "rf";
/// The newest `updated_at` of the configuration that a bucket item follows, epoch milliseconds.
pub const CONFIG_EPOCH: &str = "ep";
/// Hash of all rules in a bucket item.
pub const RULES_HASH: &str = "pv";
/// The last four request ids of a bucket item, newest first.
pub const REQUEST_IDS: [&str; 4] = ["lr", "lr1", "lr2", "lr3"];
/// Stands in [`REQUEST_IDS`] where an item has had fewer requests.
pub const NO_REQUEST_ID: &str = "-";
/// Marks a bucket item that was converted from the layout of one item per limit.
pub const MIGRATED: &str = "mg";
/// Records counted in a usage window.
pub const EVENTS: &str = "events";
/// A quarantined record as JSON.
pub const RECORD: &str = "record";
/// Why a record was quarantined.
pub const REASON: &str = "reason";
/// [`OPEN`] until a quarantined record was counted, then [`DONE`].
pub const STATE: &str = "state";
/// The state of a quarantined record that nothing counted yet.
pub const OPEN: &str = "open";
/// The state of a quarantined record that was counted since: it stays as a tombstone.
pub const DONE: &str = "done";
/// The state of a quarantined record that nothing counted and nothing will: a tombstone too.
pub const DROPPED: &str = "dropped";
/// How many limits of a quarantined record were counted already, where a replay takes several
/// transactions.
pub const COUNTED_LIMITS: &str = "counted_limits";
/// Set on a quarantine entry whose record was too large for an item: its images were cut down to
/// what metering reads.
pub const TRUNCATED: &str = "truncated";

/// Begins the sort key of every bucket item.
pub const BUCKET_PREFIX: &str = "#BUCKET#";
const ENTITY_PREFIX: &str = "ENTITY#";
const RESOURCE_PREFIX: &str = "RESOURCE#";
const USAGE_PREFIX: &str = "#USAGE#";
const LIMITS: &str = "#LIMITS";
const META: &str = "#META";
const SYSTEM: &str = "SYSTEM#";
const VERSION: &str = "#VERSION";
const QUARANTINE: &str = "QUARANTINE#";

/// What the stored limits of an item apply to, narrowest first.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum LimitsScope {
    /// One entity on one resource.
    EntityResource(EntityId, Resource),
    /// One entity on every resource.
    Entity(EntityId),
    /// Every entity on one resource.
    Resource(Resource),
    /// Every entity on every resource.
    System,
}

impl LimitsScope {
    /// The levels at which limits of a bucket may be stored, narrowest first.
    #[must_use]
    pub fn levels(bucket: &BucketId) -> [Self; 4] {
        [
            Self::EntityResource(bucket.entity.clone(), bucket.resource.clone()),
            Self::Entity(bucket.entity.clone()),
            Self::Resource(bucket.resource.clone()),
            Self::System,
        ]
    }
}

/// Identifies a quarantined record, or one kind of window that could not take a record.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct QuarantineId {
    /// The stream that delivered it.
    pub stream: StreamLabel,
    /// Its position, if it has a readable one.
    pub sequence: Option<SequenceNumber>,
    /// Tells records of one position apart (positions order the records of one shard): a digest of
    /// the item's key or, for a record that does not name its item, its stream or its position, of
    /// its bytes. Hexadecimal.
    pub digest: Digest,
    /// The one kind of window that is missing it; `None` when nothing of it was counted.
    pub window: Option<WindowKind>,
}

/// 64 bits of a hash, spelled as 16 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(pub u64);

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The identity of an item of the table.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ItemKey {
    /// The composite bucket of an entity and a resource.
    Bucket(EntityId, Resource),
    /// The metadata of an entity.
    Entity(EntityId),
    /// Stored limits.
    Limits(LimitsScope),
    /// A usage window of an entity and a resource.
    Usage(EntityId, Resource, Window),
    /// A quarantined record.
    Quarantine(QuarantineId),
    /// The version of the table's schema.
    SchemaVersion,
}

impl ItemKey {
    /// The partition key, at most 265 bytes.
    #[must_use]
    pub fn pk(&self) -> String {
        match self {
            Self::Bucket(entity, _)
            | Self::Entity(entity)
            | Self::Usage(entity, ..)
            | Self::Limits(LimitsScope::Entity(entity) | LimitsScope::EntityResource(entity, _)) => {
                format!("{ENTITY_PREFIX}{entity}")
            }
            Self::Limits(LimitsScope::Resource(resource)) => format!("{RESOURCE_PREFIX}{resource}"),
            Self::Limits(LimitsScope::System) | Self::SchemaVersion => SYSTEM.to_owned(),
            Self::Quarantine(_) => QUARANTINE.to_owned(),
        }
    }

    /// The sort key, at most 170 bytes.
    #[must_use]
    pub fn sk(&self) -> String {
        match self {
            Self::Bucket(_, resource) => format!("{BUCKET_PREFIX}{resource}"),
            Self::Entity(_) => META.to_owned(),
            Self::Limits(LimitsScope::EntityResource(_, resource)) => {
                format!("{LIMITS}#{resource}")
            }
            Self::Limits(_) => LIMITS.to_owned(),
            Self::Usage(_, resource, window) => {
                format!("{USAGE_PREFIX}{resource}#{}#{}", window.kind(), window.start_text())
            }
            Self::Quarantine(id) => {
                let sequence = id.sequence.as_ref().map_or("-", SequenceNumber::padded);
                let window = id.window.map(|kind| format!("#{kind}")).unwrap_or_default();
                format!("{}#{sequence}#{}{window}", id.stream, id.digest)
            }
            Self::SchemaVersion => VERSION.to_owned(),
        }
    }

    /// Keys in the index of a resource, `(GSI2PK, GSI2SK)`, for the items that are in it.
    #[must_use]
    pub fn by_resource(&self) -> Option<(String, String)> {
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
    /// bucket of the older layout with one item per limit ([`LegacyKey`]).
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
            (QUARANTINE, id) => parse_quarantine(id).map(Self::Quarantine),
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
            let Some(window) = kind.parse().ok().and_then(|kind| Window::parse(kind, start)) else {
                return Ok(None);
            };
            return Ok(Some(Self::Usage(EntityId::new(entity)?, Resource::new(resource)?, window)));
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

fn parse_quarantine(id: &str) -> Option<QuarantineId> {
    let mut parts = id.split('#');
    let stream = StreamLabel::parse(parts.next()?)?;
    let sequence = match parts.next()? {
        "-" => None,
        digits => Some(SequenceNumber::parse(digits).ok()?),
    };
    let digest = Digest(u64::from_str_radix(parts.next().filter(|hex| hex.len() == 16)?, 16).ok()?);
    let window =
        parts.next().map(|kind| kind.parse().ok()).map_or(Some(None), |kind| kind.map(Some))?;
    parts.next().is_none().then_some(QuarantineId { stream, sequence, digest, window })
}

/// A field of one limit in a bucket item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BucketField {
    /// The stored balance in millitokens, `tk`.
    Tokens,
    /// The nominal capacity in millitokens, `cp`.
    Capacity,
    /// What a full bucket holds in millitokens, `bx`.
    Burst,
    /// The refill amount in millitokens, `ra`.
    RefillAmount,
    /// The refill period in milliseconds, `rp`.
    RefillPeriod,
    /// The counter of everything consumed, in millitokens, `tc`.
    Consumed,
}

impl BucketField {
    /// All fields of a limit.
    pub const ALL: [Self; 6] = [
        Self::Tokens,
        Self::Capacity,
        Self::Burst,
        Self::RefillAmount,
        Self::RefillPeriod,
        Self::Consumed,
    ];

    const fn suffix(self) -> &'static str {
        match self {
            Self::Tokens => "tk",
            Self::Capacity => "cp",
            Self::Burst => "bx",
            Self::RefillAmount => "ra",
            Self::RefillPeriod => "rp",
            Self::Consumed => "tc",
        }
    }
}

/// The attribute of one field of one limit in a bucket item.
#[must_use]
pub fn bucket_attribute(limit: &LimitName, field: BucketField) -> String {
    // Several for every write: no formatting.
    ["b_", limit.as_str(), "_", field.suffix()].concat()
}

/// The limit and field of a bucket attribute, split at the last `_`; the limit is not checked yet.
#[must_use]
pub fn parse_bucket_attribute(attribute: &str) -> Option<(&str, BucketField)> {
    let (limit, suffix) = attribute.strip_prefix("b_")?.rsplit_once('_')?;
    let field = BucketField::ALL.into_iter().find(|field| field.suffix() == suffix)?;
    Some((limit, field))
}

/// The limit of a `tc` attribute: [`parse_bucket_attribute`] for the one field that metering reads.
#[must_use]
pub fn parse_counter_attribute(attribute: &str) -> Option<&str> {
    attribute.strip_prefix("b_")?.strip_suffix("_tc")
}

/// Whether metering reads this attribute of a bucket item.
#[must_use]
pub fn is_metered(attribute: &str) -> bool {
    parse_counter_attribute(attribute).is_some() || matches!(attribute, REFILLED_AT | MIGRATED)
}

/// The attribute of one limit in a usage window.
#[must_use]
pub fn usage_attribute(limit: &LimitName) -> String {
    format!("u_{limit}")
}

/// The limit of a usage attribute, not checked yet.
#[must_use]
pub fn parse_usage_attribute(attribute: &str) -> Option<&str> {
    attribute.strip_prefix("u_")
}

/// The attribute of a usage window that holds the newest position counted from one stream.
#[must_use]
pub fn watermark_attribute(stream: &StreamLabel) -> String {
    format!("wm_{stream}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EpochMillis;
    use proptest::prelude::*;

    fn limit_name() -> impl Strategy<Value = LimitName> {
        "[A-Za-z0-9_.-]{1,64}".prop_map(|name| LimitName::new(name).unwrap())
    }

    fn entity() -> impl Strategy<Value = EntityId> {
        "[^#\\p{Cc}]{1,60}".prop_map(|name| EntityId::new(name).unwrap())
    }

    fn resource() -> impl Strategy<Value = Resource> {
        "[^#\\p{Cc}]{1,30}".prop_map(|name| Resource::new(name).unwrap())
    }

    fn window() -> impl Strategy<Value = Window> {
        (0..4_usize, 0..=EpochMillis::MAX.get())
            .prop_map(|(kind, at)| WindowKind::ALL[kind].containing(EpochMillis::new(at).unwrap()))
    }

    fn label() -> impl Strategy<Value = StreamLabel> {
        prop_oneof![Just("-".to_owned()), "[0-9T:.-]{1,30}"]
            .prop_map(|label| StreamLabel::parse(&label).unwrap())
    }

    fn sequence() -> impl Strategy<Value = SequenceNumber> {
        "[0-9]{21,40}".prop_map(|digits| SequenceNumber::parse(&digits).unwrap())
    }

    fn item_key() -> impl Strategy<Value = ItemKey> {
        use ItemKey as K;
        prop_oneof![
            (entity(), resource()).prop_map(|(e, r)| K::Bucket(e, r)),
            entity().prop_map(K::Entity),
            (entity(), resource()).prop_map(|(e, r)| K::Limits(LimitsScope::EntityResource(e, r))),
            entity().prop_map(|e| K::Limits(LimitsScope::Entity(e))),
            resource().prop_map(|r| K::Limits(LimitsScope::Resource(r))),
            Just(K::Limits(LimitsScope::System)),
            (entity(), resource(), window()).prop_map(|(e, r, w)| K::Usage(e, r, w)),
            (
                label(),
                proptest::option::of(sequence()),
                any::<u64>(),
                proptest::option::of(0..4_usize)
            )
                .prop_map(|(stream, sequence, digest, kind)| {
                    let window = kind.map(|kind| WindowKind::ALL[kind]);
                    K::Quarantine(QuarantineId { stream, sequence, digest: Digest(digest), window })
                }),
            Just(K::SchemaVersion),
        ]
    }

    proptest! {
        #[test]
        fn keys_parse_back(key in item_key()) {
            prop_assert_eq!(ItemKey::parse(&key.pk(), &key.sk()), Ok(Some(key)));
        }

        #[test]
        fn attributes_parse_back(limit in limit_name()) {
            for field in BucketField::ALL {
                let attribute = bucket_attribute(&limit, field);
                prop_assert_eq!(parse_bucket_attribute(&attribute), Some((limit.as_str(), field)));
                let counter = (field == BucketField::Consumed).then_some(limit.as_str());
                prop_assert_eq!(parse_counter_attribute(&attribute), counter);
            }
            let usage = usage_attribute(&limit);
            prop_assert_eq!(parse_usage_attribute(&usage), Some(limit.as_str()));
        }
    }

    #[test]
    fn the_longest_names_fit_dynamodbs_keys() {
        let entity = EntityId::new("e".repeat(256)).unwrap();
        let resource = Resource::new("r".repeat(128)).unwrap();
        let window = WindowKind::Minute.containing(EpochMillis::MAX);
        let key = ItemKey::Usage(entity, resource, window);
        let (_, index_sk) = key.by_resource().unwrap();
        assert!(key.pk().len() <= 2_048 && key.sk().len() <= 1_024 && index_sk.len() <= 1_024);
    }

    #[test]
    fn an_hour_and_its_day_are_two_items() {
        let keys = [WindowKind::Hour, WindowKind::Day].map(|kind| {
            let window = kind.containing(EpochMillis::new(1_769_558_400_000).unwrap());
            ItemKey::Usage(EntityId::new("u").unwrap(), Resource::new("r").unwrap(), window).sk()
        });
        assert_eq!(keys[0], "#USAGE#r#hour#2026-01-28T00:00:00Z");
        assert_eq!(keys[1], "#USAGE#r#day#2026-01-28T00:00:00Z");
    }

    #[test]
    fn items_of_other_kinds_are_none_and_bad_names_are_errors() {
        for (pk, sk) in [
            ("ENTITY#u", "#BUCKET#gpt-4#rpm"),
            ("ENTITY#u", "#SOMETHING"),
            ("ENTITY#u", "#LIMITSX"),
            ("ENTITY#u", "#USAGE#gpt-4#2026-01-28T00:00:00Z"),
            ("OTHER#u", "#BUCKET#gpt-4"),
            ("SYSTEM#", "#META"),
        ] {
            assert_eq!(ItemKey::parse(pk, sk), Ok(None), "{pk} {sk}");
        }
        assert!(ItemKey::parse("ENTITY#a#b", "#BUCKET#gpt-4").is_err());
        assert!(ItemKey::parse("ENTITY#u", "#BUCKET#").is_err());
    }
}
