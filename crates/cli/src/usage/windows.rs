//! Reads the windows of a table.

use sluicegate::types::{UsageWindow, WindowSpan};

use crate::connection::Connection;
use crate::error::CliError;
use crate::readable::{Readable, readable};
use crate::whose::Whose;

/// The windows, sorted as `replay` sorts them. A window that holds only a watermark has no figures.
pub(super) async fn read(
    connection: &Connection,
    whose: &Whose,
    span: &WindowSpan,
) -> Result<Readable<UsageWindow>, CliError> {
    let reader = connection.reader();
    let mut windows = match whose {
        Whose::Bucket(entity, resource) => readable(reader.usage(entity, resource, span)).await?,
        Whose::Entity(entity) => readable(reader.usage_of_entity(entity, span)).await?,
        Whose::Resource(resource) => readable(reader.usage_of_resource(resource, span)).await?,
    };
    windows.items.retain(|usage| usage.events > 0);
    windows.items.sort_by_cached_key(|usage| {
        (usage.entity.clone(), usage.resource.clone(), usage.window.start_s())
    });
    Ok(windows)
}
