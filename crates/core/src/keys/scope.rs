//! The scope of stored limits and of alert thresholds.

use super::names::{ENTITY_PREFIX, RESOURCE_PREFIX};
use crate::{BucketId, EntityId, NameError, Resource};

/// The scope of stored limits or of alert thresholds, narrowest first.
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
    /// The scope of one entity or every one, on one resource or every one.
    #[must_use]
    pub fn of(entity: Option<EntityId>, resource: Option<Resource>) -> Self {
        match (entity, resource) {
            (Some(entity), Some(resource)) => Self::EntityResource(entity, resource),
            (Some(entity), None) => Self::Entity(entity),
            (None, Some(resource)) => Self::Resource(resource),
            (None, None) => Self::System,
        }
    }

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
    /// The scope in the sort key of its alert settings.
    pub(super) fn text(&self) -> String {
        match self {
            Self::System => String::new(),
            Self::Resource(resource) => format!("{RESOURCE_PREFIX}{resource}"),
            Self::Entity(entity) => format!("{ENTITY_PREFIX}{entity}"),
            Self::EntityResource(entity, resource) => format!("{ENTITY_PREFIX}{entity}#{resource}"),
        }
    }

    pub(super) fn parse(text: &str) -> Result<Option<Self>, NameError> {
        if text.is_empty() {
            return Ok(Some(Self::System));
        }
        if let Some(resource) = text.strip_prefix(RESOURCE_PREFIX) {
            return Ok(Some(Self::Resource(Resource::new(resource)?)));
        }
        let Some(names) = text.strip_prefix(ENTITY_PREFIX) else { return Ok(None) };
        Ok(Some(match names.split_once('#') {
            None => Self::Entity(EntityId::new(names)?),
            Some((entity, resource)) => {
                Self::EntityResource(EntityId::new(entity)?, Resource::new(resource)?)
            }
        }))
    }
}
