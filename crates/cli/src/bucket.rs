//! The bucket that a command takes from or corrects, and whether its parent's comes along.

use sluicegate::{DynamoStore, EntityId, Limit, Limiter};

use crate::error::CliError;

/// The words that say so.
#[derive(clap::Args)]
pub(crate) struct Bucket {
    /// Whose bucket.
    pub(crate) entity: String,
    /// Of what.
    pub(crate) resource: String,
    /// A limit of the bucket, like rpm=100/min,burst=200; repeat for several [default: as stored].
    #[arg(long, value_name = "SPEC")]
    pub(crate) limit: Vec<Limit>,
    /// The bucket of the entity's parent too, whatever the entity's record says.
    #[arg(long, conflicts_with = "no_cascade")]
    cascade: bool,
    /// No parent's bucket, whatever the entity's record says.
    #[arg(long)]
    no_cascade: bool,
}

/// Whether the parent's bucket comes along.
pub(crate) enum Parent {
    /// As the entity's record says.
    AsStored,
    No,
    This(EntityId),
}

impl Bucket {
    /// The parent that the words mean; with --cascade the one that the entity's record names.
    ///
    /// # Errors
    /// [`CliError::BadInput`] when it names none.
    pub(crate) async fn parent(&self, limiter: &Limiter<DynamoStore>) -> Result<Parent, CliError> {
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
