//! Looking a bucket up by names that nobody copies.

use std::hash::{Hash, Hasher};

use sluicegate_core::{BucketId, Resource};

/// The parts of a [`BucketId`], borrowed.
pub(super) struct KeyRef<'a> {
    pub(super) entity: &'a str,
    pub(super) resource: &'a Resource,
}

impl Hash for KeyRef<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // As the names of a `BucketId` do, one after the other.
        self.entity.hash(state);
        self.resource.hash(state);
    }
}

impl KeyRef<'_> {
    pub(super) fn is_of(&self, id: &BucketId) -> bool {
        self.entity == id.entity.as_str() && self.resource == &id.resource
    }
}

#[cfg(test)]
mod tests {
    use std::hash::BuildHasher;

    use quick_cache::DefaultHashBuilder;
    use sluicegate_core::EntityId;

    use super::*;

    #[test]
    fn borrowed_and_owned_names_are_found_in_the_same_place() {
        let (entity, resource) = (EntityId::new("user").unwrap(), Resource::new("r").unwrap());
        let hasher = DefaultHashBuilder::default();
        let owned = BucketId { entity, resource: resource.clone() };
        let borrowed = KeyRef { entity: "user", resource: &resource };
        let [first, second] =
            [BuildHasher::hash_one(&hasher, &owned), BuildHasher::hash_one(&hasher, &borrowed)];
        assert_eq!(first, second);
        assert!(borrowed.is_of(&owned));
    }
}
