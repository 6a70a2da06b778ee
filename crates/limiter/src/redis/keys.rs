//! The key of a bucket.
//!
//! The key depends on the bucket and on the stored parents, never on a request: a bucket has one
//! key, however it is named. A cluster picks the node by the part in braces, so an entity and its
//! parent carry the same part: the id of the topmost ancestor.

use std::fmt::{Debug, Formatter, Write as _};
use std::sync::Arc;

use sluicegate_core::{BucketId, EntityId};

use crate::store::Mark;

/// The most ancestors of an entity that are followed.
const GENERATIONS_MAX: usize = 8;

/// Returns the parent of an entity.
type Parents = Arc<dyn Fn(&EntityId) -> Option<EntityId> + Send + Sync>;

/// Builds keys.
#[derive(Clone)]
pub(super) struct Keys {
    pub(super) prefix: String,
    pub(super) parents: Option<Parents>,
}

impl Default for Keys {
    fn default() -> Self {
        Self { prefix: "sluicegate:".to_owned(), parents: None }
    }
}

impl Debug for Keys {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl Keys {
    /// The parent of an entity; never itself.
    pub(super) fn parent(&self, entity: &EntityId) -> Option<EntityId> {
        self.parents.as_ref()?(entity).filter(|parent| parent != entity)
    }

    /// The topmost ancestor of an entity: itself if it has no parent.
    fn top(&self, entity: &EntityId) -> EntityId {
        let mut top = entity.clone();
        for _ in 0..GENERATIONS_MAX {
            match self.parent(&top) {
                Some(parent) => top = parent,
                None => break,
            }
        }
        top
    }

    /// True if a cluster keeps the buckets of both on one node.
    pub(super) fn share_slot(&self, entity: &EntityId, other: &EntityId) -> bool {
        self.top(entity) == self.top(other)
    }

    /// `sluicegate:{user-3}#gpt-4`, with a parent `sluicegate:{team-7}user-3#gpt-4`. No name has a
    /// `#`, so it replaces a brace that would end the tag.
    pub(super) fn key(&self, bucket: &BucketId) -> String {
        let BucketId { entity, resource } = bucket;
        let top = self.top(entity);
        let mut key = String::with_capacity(
            self.prefix.len()
                + top.as_str().len()
                + entity.as_str().len()
                + resource.as_str().len()
                + 3,
        );
        key.push_str(&self.prefix);
        key.push('{');
        key.extend(top.as_str().chars().map(|c| if c == '}' { '#' } else { c }));
        key.push('}');
        if top != *entity {
            key.push_str(entity.as_str());
        }
        // Writing to a string does not fail.
        let _ = write!(key, "#{resource}");
        key
    }

    /// The key of a mark: on the node of its bucket, and no bucket's, as no resource has a `#`.
    pub(super) fn mark(&self, mark: &Mark) -> String {
        format!("{}#{}", self.key(&mark.bucket), mark.key)
    }
}

#[cfg(test)]
mod tests {
    use sluicegate_core::Resource;

    use super::*;

    fn entity(id: &str) -> EntityId {
        EntityId::new(id).unwrap()
    }

    fn key(keys: &Keys, id: &str) -> String {
        keys.key(&BucketId { entity: entity(id), resource: Resource::new("gpt 4").unwrap() })
    }

    #[test]
    fn a_child_carries_the_id_of_the_one_at_the_top() {
        let mut keys = Keys::default();
        assert_eq!(key(&keys, "team"), "sluicegate:{team}#gpt 4");
        keys.parents = Some(Arc::new(|id| match id.as_str() {
            "user" => Some(entity("team")),
            "team" => Some(entity("firm")),
            "a" => Some(entity("b")),
            "b" => Some(entity("a")),
            _ => None,
        }));
        assert_eq!(key(&keys, "user"), "sluicegate:{firm}user#gpt 4");
        assert_eq!(key(&keys, "team"), "sluicegate:{firm}team#gpt 4");
        assert_eq!(key(&keys, "firm"), "sluicegate:{firm}#gpt 4");
        assert!(keys.share_slot(&entity("user"), &entity("team")));
        assert!(!keys.share_slot(&entity("user"), &entity("other")));
        assert!(key(&keys, "a").ends_with("#gpt 4"), "a circle ends");
    }

    #[test]
    fn no_name_ends_the_tag_or_meets_another() {
        let keys = Keys::default();
        assert_eq!(key(&keys, "}x{"), "sluicegate:{#x{}#gpt 4");
        assert_ne!(key(&keys, "}"), key(&keys, "{"));
    }
}
