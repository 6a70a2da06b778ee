//! Reads many items, some of which may be broken: a broken item must not hide the others, and must
//! not be left out silently.

use std::pin::pin;
use std::process::ExitCode;

use futures_util::{Stream, StreamExt};
use sluicegate::dynamo::ReadError;
use sluicegate_processor::chain;

use crate::error::{CliError, exit, say};

/// The items that could be read.
pub(crate) struct Readable<T> {
    pub(crate) items: Vec<T>,
    /// The number of items that were left out. Each was reported on standard error.
    pub(crate) broken: usize,
}

impl<T> Readable<T> {
    /// That of a command which listed them.
    pub(crate) fn exit_code(&self) -> ExitCode {
        if self.broken == 0 { ExitCode::SUCCESS } else { ExitCode::from(exit::ATTENTION) }
    }
}

/// Collects the items that can be read, and reports the others.
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
