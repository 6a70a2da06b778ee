//! Passes the events that the library logs to the logger `sluicegate` of Python's module `logging`.

use std::fmt::{Debug, Write as _};

use pyo3::prelude::*;
use tokio::runtime::Handle;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Passes events on, and no spans: those would cost time in each call.
pub(crate) struct ToPython;

impl Subscriber for ToPython {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
            && *metadata.level() <= Level::INFO
            && metadata.target().starts_with("sluicegate")
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::INFO)
    }

    fn event(&self, event: &Event<'_>) {
        // The thread may hold a lock that a thread with the interpreter's lock waits for, so another
        // thread takes the interpreter's.
        let Ok(runtime) = Handle::try_current() else { return };
        let mut line = Line::default();
        event.record(&mut line);
        let method = match *event.metadata().level() {
            Level::ERROR => "error",
            Level::WARN => "warning",
            _ => "info",
        };
        runtime.spawn_blocking(move || {
            // `None`: the interpreter ends.
            Python::try_attach(|py| {
                if let Err(error) = log(py, method, &line) {
                    error.write_unraisable(py, None);
                }
            })
        });
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

fn log(py: Python<'_>, method: &str, line: &Line) -> PyResult<()> {
    let logger = py.import("logging")?.call_method1("getLogger", ("sluicegate",))?;
    logger.call_method1(method, ("%s%s", &line.message, &line.fields)).map(drop)
}

/// A message with its fields behind it, as ` name=value`.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}
