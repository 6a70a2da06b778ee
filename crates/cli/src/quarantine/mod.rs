//! `sluicegate quarantine`: records that were kept instead of counted.

mod output;

use std::process::ExitCode;

use clap::Subcommand;
use sluicegate_core::{QuarantineEntry, QuarantineState, WindowKinds};
use sluicegate_processor::{IfUnknown, Processor, Retention, Settings};

use crate::confirm::Confirm;
use crate::error::{CliError, exit};
use crate::options::Options;
use crate::output::counted;
use crate::readable::{Readable, readable};

/// List records that could not be counted, count them, or give them up.
#[derive(Subcommand)]
#[command(after_help = "\
Examples:
  sluicegate quarantine list
  sluicegate quarantine replay --all
  sluicegate quarantine drop --all --yes

Exit codes: 0 done, 1 some entries stay open or cannot be read, or there is no such entry, 2 bad input
or not confirmed, 5 the table could not be used.")]
pub(crate) enum Args {
    /// List the entries that wait for a person.
    #[command(after_help = "\
Examples:
  sluicegate quarantine list --output json
  sluicegate quarantine list --closed")]
    List {
        /// Also list entries that were counted or dropped recently.
        #[arg(long)]
        closed: bool,
    },
    /// Count entries in the windows that lack them and close them; each is counted once, however
    /// often it is replayed or delivered.
    ///
    /// An entry stays open if the record still cannot be read, if it is less than two days old and
    /// one of its windows has not reached it, because the stream may still deliver it, or if its
    /// windows cannot tell whether another delivery counted it.
    #[command(after_help = "\
Examples:
  sluicegate quarantine replay --all
  sluicegate quarantine replay --all --windows hour,day,month")]
    Replay {
        #[command(flatten)]
        which: Which,
        /// The kinds of windows that the processor of this table counts. Name all of them: a record that
        /// was counted in some kinds is closed, and the others lack it.
        #[arg(long, default_value = "hour,day", value_name = "KINDS")]
        windows: WindowKinds,
        /// Days that the processor keeps windows; 0 for ever.
        #[arg(long, default_value = "90", value_name = "DAYS")]
        ttl_days: Retention,
        /// Assume that no other delivery counted these records since: no failed batch was delivered
        /// again and no second processor ran.
        #[arg(long)]
        uncounted: bool,
    },
    /// Give entries up: no window will ever count them.
    #[command(after_help = "\
Examples:
  sluicegate quarantine drop --all --yes")]
    Drop {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        confirm: Confirm,
    },
}

#[derive(clap::Args)]
pub(crate) struct Which {
    /// Entries by the id that `list` prints.
    #[arg(required_unless_present = "all", conflicts_with = "all", value_name = "ID")]
    ids: Vec<String>,
    /// Every open entry.
    #[arg(long)]
    all: bool,
}

impl Which {
    /// The open entries that the arguments name.
    fn of(&self, entries: Vec<QuarantineEntry>) -> Result<Vec<QuarantineEntry>, CliError> {
        let mut open: Vec<_> =
            entries.into_iter().filter(|entry| entry.state == QuarantineState::Open).collect();
        if self.all {
            return Ok(open);
        }
        let has = |id: &&String| open.iter().any(|entry| entry.key().sk() == **id);
        if let Some(id) = self.ids.iter().find(|id| !has(id)) {
            return Err(CliError::Attention(format!(
                "no entry {id} is open; nothing was done, `sluicegate quarantine list` lists them"
            )));
        }
        open.retain(|entry| self.ids.contains(&entry.key().sk()));
        Ok(open)
    }
}

pub(crate) async fn run(args: Args, options: &Options) -> Result<ExitCode, CliError> {
    let connection = options.connect().await?;
    let Readable { items: entries, broken } = readable(connection.reader().quarantine()).await?;
    let exit_code = match args {
        Args::List { closed } => {
            let is_shown =
                |entry: &&QuarantineEntry| closed || entry.state == QuarantineState::Open;
            let entries: Vec<_> = entries.iter().filter(is_shown).collect();
            output::list(&entries, options)?;
            ExitCode::SUCCESS
        }
        Args::Replay { which, windows, ttl_days, uncounted } => {
            let entries = which.of(entries)?;
            let settings = Settings {
                window_kinds: windows,
                retention: ttl_days,
                ..Settings::new(connection.table())
            };
            let processor = Processor::new(connection.client(), settings);
            let if_unknown = if uncounted { IfUnknown::Count } else { IfUnknown::Leave };
            let mut results = Vec::with_capacity(entries.len());
            for entry in &entries {
                results.push(processor.recount(entry, if_unknown).await);
            }
            output::report(&entries, &results, options)?
        }
        Args::Drop { which, confirm } => {
            let entries = which.of(entries)?;
            let what = counted(entries.len(), "record");
            if !entries.is_empty() {
                confirm.ask(&format!("give up {what}; their consumption will never be counted"))?;
            }
            let processor = Processor::new(connection.client(), Settings::new(connection.table()));
            let mut results = Vec::with_capacity(entries.len());
            for entry in &entries {
                results.push(processor.give_up(entry).await);
            }
            output::report(&entries, &results, options)?
        }
    };
    Ok(if broken == 0 { exit_code } else { ExitCode::from(exit::ATTENTION) })
}
