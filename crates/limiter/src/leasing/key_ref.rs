//! Looks a bucket up by borrowed names, without a copy.

use quick_cache::Equivalent;
use sluicegate_core::BucketId;

/// The parts of a [`BucketId`], borrowed. Its hash equals that of the id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct KeyRef<'a> {
    pub(super) entity: &'a str,
    pub(super) resource: &'a str,
}

impl<'a> KeyRef<'a> {
    pub(super) fn of(id: &'a BucketId) -> Self {
        Self { entity: id.entity.as_str(), resource: id.resource.as_str() }
    }
}

impl Equivalent<BucketId> for KeyRef<'_> {
    fn equivalent(&self, id: &BucketId) -> bool {
        *self == KeyRef::of(id)
    }
}

#[cfg(test)]
mod tests {
    use quick_cache::DefaultHashBuilder;
    use sluicegate_core::{EntityId, Resource};

    use super::*;

    #[test]
    fn borrowed_and_owned_names_are_found_in_the_same_place() {
        let (entity, resource) = (EntityId::new("user").unwrap(), Resource::new("r").unwrap());
        let hasher = DefaultHashBuilder::default();
        let owned = BucketId { entity, resource };
        let [first, second] = [hasher.hash_one(&owned), hasher.hash_one(KeyRef::of(&owned))];
        assert_eq!(first, second);
    }
}
