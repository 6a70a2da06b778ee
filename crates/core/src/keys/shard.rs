//! Keys of a bucket in the sharded layout of zae-limiter 0.10 and later, which keeps each shard of
//! a bucket as an item in a partition of its own: `{namespace}/BUCKET#{entity}#{resource}#{shard}`
//! and `#STATE`.

use crate::{BucketId, EntityId, NameError, Resource};

const STATE: &str = "#STATE";
const SHARD_PREFIX: &str = "BUCKET#";

/// A limit that zae-limiter adds to every shard: it counts the writes of the shard's partition, not
/// usage.
pub const WRITE_CAPACITY_LIMIT: &str = "wcu";

/// The identity of one shard of a bucket.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ShardKey {
    /// The bucket. Its entity is `{namespace}/{entity}`, and a namespace has no `/`, so two
    /// namespaces never share usage.
    pub bucket: BucketId,
    /// The number of the shard, from 0.
    pub shard: u32,
}

impl ShardKey {
    /// The partition key.
    #[must_use]
    pub fn pk(&self) -> String {
        let BucketId { entity, resource } = &self.bucket;
        let (namespace, entity) = entity.as_str().split_once('/').unwrap_or(("", entity.as_str()));
        format!("{namespace}/{SHARD_PREFIX}{entity}#{resource}#{}", self.shard)
    }

    /// The sort key.
    #[must_use]
    pub const fn sk(&self) -> &'static str {
        STATE
    }

    /// Reads the identity back from the two keys; `None` for an item of another kind.
    ///
    /// # Errors
    /// [`NameError`] when a name in them is not allowed, or namespace and entity are too long.
    pub fn parse(pk: &str, sk: &str) -> Result<Option<Self>, NameError> {
        if sk != STATE {
            return Ok(None);
        }
        let parts = || {
            let (namespace, rest) = pk.split_once('/')?;
            let (bucket, shard) = rest.strip_prefix(SHARD_PREFIX)?.rsplit_once('#')?;
            let (entity, resource) = bucket.split_once('#')?;
            let number: u32 = shard.parse().ok()?;
            // Not `+1` or `01`: such an item would share the watermark of shard 1.
            (number.to_string() == shard).then_some((namespace, entity, resource, number))
        };
        let Some((namespace, entity, resource, shard)) = parts() else { return Ok(None) };
        EntityId::new(entity)?;
        let entity = EntityId::new(format!("{namespace}/{entity}"))?;
        let bucket = BucketId { entity, resource: Resource::new(resource)? };
        Ok(Some(Self { bucket, shard }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::ItemKey;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn shard_keys_parse_back_and_are_no_other_item(
            namespace in "[A-Za-z0-9_-]{1,11}",
            entity in "[a-zA-Z0-9][a-zA-Z0-9_.:@-]{0,60}",
            resource in "[a-zA-Z][a-zA-Z0-9_./:-]{0,63}",
            shard in prop_oneof![0_u32..32, any::<u32>()],
        ) {
            let pk = format!("{namespace}/BUCKET#{entity}#{resource}#{shard}");
            let key = ShardKey::parse(&pk, "#STATE").unwrap().unwrap();
            prop_assert_eq!(key.bucket.entity.as_str(), format!("{namespace}/{entity}"));
            prop_assert_eq!((key.bucket.resource.as_str(), key.shard), (resource.as_str(), shard));
            prop_assert_eq!((key.pk(), key.sk()), (pk.clone(), "#STATE"));
            prop_assert_eq!(ItemKey::parse(&pk, "#STATE"), Ok(None));
            // Its windows lie beside nothing of zae-limiter, whose every partition key has the
            // namespace first.
            let usage = ItemKey::Usage(
                key.bucket.entity,
                key.bucket.resource,
                crate::WindowKind::DAY.containing(crate::EpochMillis::MIN),
            );
            let first = usage.pk();
            prop_assert!(first.starts_with("ENTITY#"));
            prop_assert!(first.split_once('/').is_some_and(|(ns, _)| ns.contains('#')));
        }
    }

    #[test]
    fn items_of_other_kinds_are_told_from_shards() {
        for (pk, sk) in [
            ("ns/BUCKET#u#gpt-4#0", "#OP#1"),
            ("ns/BUCKET#u#gpt-4#+1", "#STATE"),
            ("ns/BUCKET#u#gpt-4#01", "#STATE"),
            ("ns/BUCKET#u#gpt-4", "#STATE"),
            ("ns/ENTITY#u", "#STATE"),
            ("BUCKET#u#gpt-4#0", "#STATE"),
            ("ns/ENTITY#u", "#BUCKET#gpt-4"),
        ] {
            assert_eq!(ShardKey::parse(pk, sk), Ok(None), "{pk} {sk}");
        }
    }

    #[test]
    fn a_bad_name_in_a_shard_key_is_an_error() {
        let long = format!("ns/BUCKET#{}#gpt-4#0", "u".repeat(254));
        for pk in ["ns/BUCKET##gpt-4#0", "ns/BUCKET#u##0", "ns/BUCKET#u#a#b#0", &long] {
            assert!(ShardKey::parse(pk, "#STATE").is_err(), "{pk}");
        }
    }
}
