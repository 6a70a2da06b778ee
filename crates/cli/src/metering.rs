//! The settings of the commands that count a stream: the kinds of windows, and how long to keep
//! them.

use sluicegate_core::WindowKinds;
use sluicegate_processor::{Layouts, Retention, Settings, Switch};

/// The options for them.
#[derive(clap::Args)]
pub(crate) struct Metering {
    /// Usage windows to count: any of minute, hour, day, week, month, year, and calendars like
    /// month@15/Europe/Berlin.
    #[arg(long, default_value = "hour,day", value_name = "KINDS")]
    pub(crate) windows: WindowKinds,
    /// Days that windows are kept; at least 2, or 0 for ever. Each write of a window sets it anew, so
    /// give what other processors of the table have.
    #[arg(long, default_value = "90", value_name = "DAYS")]
    ttl_days: Retention,
    /// Put an alert into the outbox for each stored threshold that a usage window reaches:
    /// `sluicegate alerts`.
    #[arg(long)]
    alerts: bool,
    /// Also count buckets in shards, as zae-limiter 0.10 and later keeps them: docs/other-tables.md.
    #[arg(long)]
    sharded_buckets: bool,
}

impl Metering {
    /// The settings of a processor that writes to this table.
    pub(crate) fn settings(&self, table: &str) -> Settings {
        let (window_kinds, retention) = (self.windows.clone(), self.ttl_days);
        let alerts = if self.alerts { Switch::On } else { Switch::Off };
        let layouts = match self.sharded_buckets {
            true => Layouts::CompositeAndSharded,
            false => Layouts::Composite,
        };
        Settings { window_kinds, retention, alerts, layouts, ..Settings::new(table) }
    }
}
