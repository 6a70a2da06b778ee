//! The subject of a query: one bucket, an entity with all its resources, or a resource.

use sluicegate::{EntityId, Resource};

use crate::error::CliError;

/// The arguments that name it.
#[derive(clap::Args)]
#[group(skip)]
#[command(group(clap::ArgGroup::new("subject").required(true)))]
pub(crate) struct Words {
    /// The entity.
    #[arg(group = "subject")]
    entity: Option<EntityId>,
    /// Only this resource.
    #[arg(requires = "entity")]
    resource: Option<Resource>,
    /// All entities on this resource.
    #[arg(
        long = "resource",
        value_name = "RESOURCE",
        group = "subject",
        conflicts_with = "resource"
    )]
    of_resource: Option<Resource>,
}

/// The subject that the arguments name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Whose {
    Bucket(EntityId, Resource),
    Entity(EntityId),
    Resource(Resource),
}

impl Words {
    pub(crate) fn whose(&self) -> Result<Whose, CliError> {
        match (&self.entity, &self.resource, &self.of_resource) {
            (Some(entity), Some(resource), _) => {
                Ok(Whose::Bucket(entity.clone(), resource.clone()))
            }
            (Some(entity), None, _) => Ok(Whose::Entity(entity.clone())),
            (None, _, Some(resource)) => Ok(Whose::Resource(resource.clone())),
            // The parser refuses it first.
            (None, _, None) => Err(CliError::bad("name an entity or a --resource")),
        }
    }
}

impl std::fmt::Display for Whose {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bucket(entity, resource) => write!(f, "{entity} on {resource}"),
            Self::Entity(entity) => entity.fmt(f),
            Self::Resource(resource) => write!(f, "resource {resource}"),
        }
    }
}
