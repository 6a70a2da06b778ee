//! Reading many items, of which some may be broken: one that somebody tampered with must not hide
//! the others, nor be left out in silence.

use std::pin::pin;

use futures_util::{Stream, StreamExt};
use sluicegate::dynamo::ReadError;
use sluicegate_processor::chain;

use crate::error::{CliError, say};

/// What could be read.
pub(crate) struct Readable<T> {
    pub(crate) items: Vec<T>,
    /// How many items were left out. Each was told on standard error.
    pub(crate) broken: usize,
}

/// Collects what can be read, and tells what cannot.
pub(crate) async fn readable<T>(
    stream: impl Stream<Item = Result<T, ReadError>>,
) -> Result<Readable<T>, CliError> {
    let mut stream = pin!(stream);
    let mut readable = Readable { items: Vec::new(), broken: 0 };
    while let Some(item) = stream.next().await {
        match item {
            Ok(item) => readable.items.push(item),
            Err(ReadError::Item(broken)) => {
                say(&format!("left out: {}", chain(broken.as_ref())));
                readable.broken += 1;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(readable)
}
