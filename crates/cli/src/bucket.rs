//! The bucket that a command takes from or corrects, and if its parent's bucket is included.

use sluicegate::{EntityId, Limit, Limiter};

use crate::error::CliError;

/// The arguments that name it.
#[derive(clap::Args)]
pub(crate) struct Bucket {
    /// The entity of the bucket.
    pub(crate) entity: String,
    /// The resource of the bucket.
    pub(crate) resource: String,
    /// A limit of the bucket, like rpm=100/min,burst=200; repeat for several [default: as stored].
    #[arg(long, value_name = "SPEC")]
    pub(crate) limit: Vec<Limit>,
    /// Include the bucket of the entity's parent, regardless of the entity's record.
    #[arg(long, conflicts_with = "no_cascade")]
    cascade: bool,
    /// Leave out the parent's bucket, regardless of the entity's record.
    #[arg(long)]
    no_cascade: bool,
}

/// Says if the parent's bucket is included.
pub(crate) enum Parent {
    /// As the entity's record says.
    AsStored,
    No,
    This(EntityId),
}

impl Bucket {
    /// The parent that the arguments name; with --cascade the one in the entity's record.
    ///
    /// # Errors
    /// [`CliError::BadInput`] if the record names none.
    pub(crate) async fn parent(&self, limiter: &Limiter) -> Result<Parent, CliError> {
        if self.no_cascade {
            return Ok(Parent::No);
        }
        if !self.cascade {
            return Ok(Parent::AsStored);
        }
        let entity = EntityId::new(&self.entity).map_err(CliError::bad)?;
        let record = limiter.entity(&entity).await?;
        let parent = record.and_then(|record| record.parent);
        parent.map(Parent::This).ok_or_else(|| {
            CliError::BadInput(format!(
                "{entity} has no parent to cascade to; name one with `sluicegate entity create {entity} --parent NAME`"
            ))
        })
    }
}
