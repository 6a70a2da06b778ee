//! `sluicegate migrate`: converts every bucket of the older layout, one item per limit, to a
//! composite one.
//!
//! Each bucket is one transaction, and a converted bucket is not found again. So no state is kept
//! between runs: a run that was killed is started again.

mod buckets;
mod producers;
mod progress;
mod report;

use std::process::ExitCode;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::retry::{RetryConfig, RetryPartition, TokenBucket};
use sluicegate::dynamo::DynamoTable;
use sluicegate::dynamo::Reader;

use crate::confirm::Confirm;
use crate::connection::Connection;
use crate::error::{CliError, exit, say};
use crate::options::Options;
use buckets::{Conversions, FIRST_PAUSE, PAUSE_MAX};
use producers::OlderProducers;
use progress::Progress;

/// The attempts for each read of the scan: about a minute, in pauses of a second on average.
const READ_ATTEMPTS: u32 = 60;

/// Convert buckets of one item per limit to composite ones, in the background.
///
/// Producers of this library may run meanwhile; producers of the older layout must not. The command
/// may be killed at any moment and started again: it continues with the rest.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sluicegate migrate --dry-run
  sluicegate migrate --yes
  sluicegate migrate --segments 8 --yes --output json

Exit codes: 0 every bucket is a composite one (or, with --dry-run, can be made one), 1 some were
skipped, 2 bad input or not confirmed, 5 the table could not be used: start again to go on.")]
pub(crate) struct Args {
    /// Report what would be done, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// The number of parts of the table that are read concurrently.
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    segments: u16,
    #[command(flatten)]
    confirm: Confirm,
}

pub(crate) async fn run(args: Args, options: &Options) -> Result<ExitCode, CliError> {
    let connection = options.connect().await?;
    let name = connection.table();
    let configured = connection.configured();
    let older = OlderProducers::of(configured.schema_version().await?);
    if let Some(advice) = older.advice(name) {
        say(&advice);
    }
    if !args.dry_run {
        let what = "convert every bucket of one item per limit";
        args.confirm.ask(&format!("{what} in table {name}, and delete these items"))?;
    }
    let progress = Progress::over(items_about(&connection).await?);
    let table = DynamoTable::new(&connection.client(), name);
    let reader = Reader::new(patient(&connection.client()), name);
    let mut conversions = Conversions::new(table, reader, progress, args.dry_run);
    let ended = conversions.run(args.segments).await;
    let report = conversions.finish(older);
    if let Err(error) = ended {
        say(&format!("{}; nothing is half done, start again to go on", report.so_far()));
        return Err(error);
    }
    report.print(options)?;
    if report.is_complete() {
        configured.note_converted().await?;
    }
    let is_clean = report.skipped_buckets == 0;
    Ok(if is_clean { ExitCode::SUCCESS } else { ExitCode::from(exit::ATTENTION) })
}

/// The same client with more attempts, as long as a throttled table takes to recover: a scan that
/// gives up has to start over.
fn patient(client: &Client) -> Client {
    let retries = RetryConfig::standard()
        .with_max_attempts(READ_ATTEMPTS)
        .with_initial_backoff(FIRST_PAUSE)
        .with_max_backoff(PAUSE_MAX);
    let partition = RetryPartition::custom("scan").token_bucket(TokenBucket::unlimited()).build();
    let config = client.config().to_builder().retry_config(retries).retry_partition(partition);
    Client::from_conf(config.build())
}

/// The approximate number of items, as DynamoDB counted them some hours ago.
async fn items_about(connection: &Connection) -> Result<u64, CliError> {
    let items = connection.describe_table().await?.item_count.unwrap_or(0);
    Ok(u64::try_from(items).unwrap_or(0))
}
