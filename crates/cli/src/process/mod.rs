//! `sluicegate process`: runs the stream of any table through the Lambda's handler, without a
//! Lambda.

mod checkpoints;

use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::process::ExitCode;
use std::time::Duration;

use aws_sdk_dynamodb::operation::describe_table::DescribeTableError;
use aws_sdk_dynamodb::types::{StreamSpecification, TableDescription};
use futures_util::FutureExt as _;
use sluicegate_local::poller::{self, BatchSize, Poller, Source, StreamSource};
use sluicegate_local::{InProcess, table};
use sluicegate_processor::{
    Destination, InvalidDestination, Processor, Settings, chain, is_region, region_warning,
};
use tokio::time::Instant;

use crate::connection::Connection;
use crate::error::{CliError, exit, say};
use crate::feed::{Feed, interrupted, show_warnings};
use crate::metering::Metering;
use crate::options::Options;
use checkpoints::{CheckpointFile, Counts};

/// The time for which one batch is repeated against a table that throttles.
const BATCH_TIME: Duration = Duration::from_secs(60);
/// The time between two progress lines, and between two saved checkpoints.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);
/// The time for one turn of deliveries: it begins them for ten seconds, and then waits for those in
/// flight.
const DELIVERY_TIME: Duration = Duration::from_secs(20);

/// Count a table's stream in usage windows, where there is no Lambda to do it.
///
/// Reads every shard of the table's stream, from the oldest record on, and follows new ones. A
/// window refuses records that it has counted: starting again, or running beside the Lambda,
/// changes no figure.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sluicegate process --table sluicegate-limits
  sluicegate process --once --endpoint-url http://127.0.0.1:8000
  sluicegate process --windows minute,hour,day --checkpoint limits.checkpoint

Exit codes: 0 stopped or, with --once, caught up, 1 some records went to quarantine, some alerts
were not delivered, or --once was stopped early, 2 bad input, 5 the table or its stream cannot be
used, or is there no more.")]
pub(crate) struct Args {
    /// Stop when the records that are in the stream by now are counted.
    #[arg(long)]
    once: bool,
    /// Save the position in the stream to this file, and continue from there. Without it, up to 24
    /// hours are read again, and not counted again. A file of other --windows or --sharded-buckets is
    /// refused: give a new one then. Keep it if --home-region moved here: docs/regions.md.
    #[arg(long, value_name = "FILE")]
    checkpoint: Option<PathBuf>,
    #[command(flatten)]
    metering: Metering,
    /// The one region that counts a global table. Elsewhere the stream is followed and no record
    /// counted: docs/regions.md.
    #[arg(long, value_name = "REGION", value_parser = region)]
    home_region: Option<String>,
    /// Deliver alerts to this https:// URL, SNS topic or EventBridge event bus (its ARN), each at
    /// least once, as CloudEvents. Switches --alerts on. --endpoint-url is not for the last two:
    /// AWS_ENDPOINT_URL_SNS and AWS_ENDPOINT_URL_EVENTBRIDGE are.
    #[arg(long, value_name = "URL|ARN")]
    alerts_to: Option<String>,
    /// The secret of the signatures for a URL, as Standard Webhooks has them: whsec_ and at least
    /// 16 bytes in base64.
    #[arg(long, env = "SLUICEGATE_ALERTS_SECRET", hide_env_values = true, value_name = "SECRET")]
    alerts_secret: Option<String>,
    /// The number of records handed to the handler at once.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    batch_size: u16,
}

pub(crate) async fn run(args: Args, options: &Options) -> Result<ExitCode, CliError> {
    let secret = args.alerts_secret.as_deref().unwrap_or_default();
    let destination = args.alerts_to.as_ref().map(|text| Destination::new(text, secret));
    let destination = destination.transpose().map_err(|invalid| match invalid {
        InvalidDestination::Secret if secret.is_empty() => CliError::bad(
            "a URL needs the secret of the signatures, --alerts-secret or SLUICEGATE_ALERTS_SECRET: make one with `openssl rand -base64 32`",
        ),
        invalid => CliError::bad(invalid),
    })?;
    show_warnings();
    let shutdown = interrupted()?;
    let connection = options.connect().await?;
    let arn = table::stream_arn(&connection.client(), connection.table()).await?;
    let source = StreamSource::new(connection.streams(), &arn);
    // A follower repeats its reads for ever, so a missing permission must be reported here.
    source.shards().await.map_err(|error| unreadable(&error))?;

    let settings =
        Settings { home_region: args.home_region, ..args.metering.settings(connection.table()) };
    let client = sluicegate_processor::client(connection.config());
    if let Some(warning) = region_warning(&client, &settings).await {
        say(&format!("warning: {warning} (--home-region)"));
    }
    let feed = Feed::default();
    let counts = Counts::of(&settings);
    let mut processor = Processor::new(client, settings);
    if let Some(destination) = destination {
        processor =
            processor.delivering_to(destination, &connection.config_of_others(options).await);
    }
    if processor.is_counted_elsewhere() {
        say("another region counts this table: its stream is followed, and no record is counted");
    }
    let handler = InProcess::new(processor.clone(), BATCH_TIME).observed_by(feed.observer());
    let polling = poller::Settings {
        batch_size: BatchSize::new(args.batch_size.into())?,
        ..poller::Settings::default()
    };
    let file = args.checkpoint.map(|path| CheckpointFile::new(path, arn.clone(), counts));
    let mut poller = Poller::new(source, handler, polling);
    if let Some(checkpoints) = file.as_ref().map(CheckpointFile::load).transpose()?.flatten() {
        poller = poller.starting_after(checkpoints);
    }
    let mut outbox_was_read = true;
    if args.once {
        let mut ended = Ok(());
        let mut shutdown = pin!(shutdown);
        let stop = async {
            ended = Err(tokio::select! {
                () = shutdown.as_mut() => CliError::Attention(
                    "stopped before the end of the stream; the same command counts the rest".to_owned(),
                ),
                reason = feed.stuck() => CliError::Store(format!("nothing was counted for a minute: {reason}")),
            });
        };
        let drained = poller.drain_until(stop).await;
        save(file.as_ref(), &poller)?;
        drained.map_err(|error| unreadable(&error))?;
        outbox_was_read = match ended {
            Ok(()) => deliver_backlog(&processor, &feed, shutdown.as_mut()).await,
            Err(_) => deliver_alerts(&processor, &feed).await,
        };
        report(&feed);
        ended?;
    } else {
        let stream_ended = |has_records| stream_ended(&connection, &arn, has_records);
        follow(&mut poller, &processor, shutdown, &feed, file.as_ref(), stream_ended).await?;
    }
    let totals = feed.totals();
    let alerts_are_left = args.once && (!outbox_was_read || processor.has_waiting_alerts());
    if alerts_are_left && outbox_was_read {
        say(
            "alerts wait for their next attempt, which the next run makes when it is due; `sluicegate alerts outbox` shows them",
        );
    }
    let needs_attention = totals.quarantined + totals.alerts_given_up > 0 || alerts_are_left;
    Ok(if needs_attention { ExitCode::from(exit::ATTENTION) } else { ExitCode::SUCCESS })
}

fn region(text: &str) -> Result<String, String> {
    let is_valid = is_region(text).then(|| text.to_owned());
    is_valid.ok_or_else(|| "write a region's name like eu-west-1".to_owned())
}

/// Counts until it is stopped, or until `stream_ended` gives a reason. It is asked after a turn that
/// wrote no window, and told if the turn had records.
async fn follow<S: Source>(
    poller: &mut Poller<S, InProcess>,
    processor: &Processor,
    shutdown: impl Future<Output = ()> + Send,
    feed: &Feed,
    file: Option<&CheckpointFile>,
    stream_ended: impl AsyncFn(bool) -> Option<CliError>,
) -> Result<(), CliError> {
    say("following the stream; Ctrl-C stops");
    let (mut shutdown, mut told) = (pin!(shutdown), None);
    loop {
        let before = feed.totals();
        let goes_on = poller.turn(REPORT_INTERVAL, shutdown.as_mut()).await?;
        save(file, poller)?;
        deliver_alerts(processor, feed).await;
        let totals = feed.totals();
        let done = totals.records + totals.alerts_sent + totals.alerts_failed;
        if told != Some(done) && (!goes_on || done > 0) {
            report(feed);
            told = Some(done);
        }
        if !goes_on {
            return Ok(());
        }
        if totals.window_updates == before.window_updates
            && let Some(ended) = stream_ended(totals.records > before.records).await
        {
            return Err(ended);
        }
    }
}

/// The reason why there is nothing to count any more: the table is gone; or, if the last turn had
/// no records, the table has another stream, or its stream is switched off. `None` also while the
/// table cannot be asked.
async fn stream_ended(
    connection: &Connection,
    stream: &str,
    has_records: bool,
) -> Option<CliError> {
    let table = connection.table();
    let asked = connection.client().describe_table().table_name(table).send().await;
    let why = match asked.map(|answer| answer.table) {
        Err(error)
            if error
                .as_service_error()
                .is_some_and(DescribeTableError::is_resource_not_found_exception) =>
        {
            format!("table {table} was deleted, so nothing comes from its stream any more")
        }
        // DynamoDB keeps the ARN of a stream that is switched off.
        Ok(Some(now)) if !has_records && !has_stream(&now) => format!(
            "the stream of table {table} is switched off, and no more records came from it; switch it on with both images, and start again"
        ),
        Ok(Some(now)) if !has_records && now.latest_stream_arn() != Some(stream) => format!(
            "table {table} has a new stream: it was made anew, or its stream was off for a time. From the old stream no more records came; start again to count the new one"
        ),
        _ => return None,
    };
    Some(CliError::Store(why))
}

fn has_stream(table: &TableDescription) -> bool {
    table.stream_specification().is_some_and(StreamSpecification::stream_enabled)
}

/// Delivers the alerts that are due, turn after turn, until a turn sends none or the command is
/// stopped: one turn may not reach the end of a backlog. A turn is not interrupted, because the
/// destination may have accepted its deliveries. False if the outbox could not be read.
async fn deliver_backlog(
    processor: &Processor,
    feed: &Feed,
    mut stopped: Pin<&mut (impl Future<Output = ()> + Send)>,
) -> bool {
    loop {
        let sent_before = feed.totals().alerts_sent;
        let was_read = deliver_alerts(processor, feed).await;
        let is_stopped = stopped.as_mut().now_or_never().is_some();
        if !was_read || is_stopped || feed.totals().alerts_sent == sent_before {
            return was_read;
        }
    }
}

/// Delivers the alerts that are due, also those that an earlier run left. False if the outbox could
/// not be read.
async fn deliver_alerts(processor: &Processor, feed: &Feed) -> bool {
    match processor.deliver_alerts(Instant::now() + DELIVERY_TIME).await {
        Ok(deliveries) => feed.add_deliveries(&deliveries),
        Err(reason) => {
            say(&format!("the alerts could not be read, so none was delivered: {reason}"));
            return false;
        }
    }
    true
}

fn save<S: Source>(
    file: Option<&CheckpointFile>,
    poller: &Poller<S, InProcess>,
) -> Result<(), CliError> {
    file.map_or(Ok(()), |file| file.save(&poller.checkpoints()))
}

/// Reports the work so far, in one line.
fn report(feed: &Feed) {
    let totals = feed.totals();
    let age = totals.record_age_ms.map_or_else(String::new, |ms| {
        format!("; the newest batch was {:.1} s behind", ms / 1_000.0)
    });
    let alerts = match (totals.alerts_sent, totals.alerts_failed, totals.alerts_given_up) {
        (0, 0, 0) => String::new(),
        (sent, failed, given_up) => {
            format!(", alerts: {sent} delivered, {failed} failed deliveries, {given_up} given up")
        }
    };
    say(&format!(
        "{} records: {} window updates, {} counted before, {} quarantined, {} write units{alerts}{age}",
        totals.records,
        totals.window_updates,
        totals.duplicates_dropped,
        totals.quarantined,
        totals.write_units,
    ));
}

fn unreadable(error: &sluicegate_local::Error) -> CliError {
    CliError::Store(format!(
        "{}; allow dynamodb:DescribeStream, GetShardIterator and GetRecords on the table's stream, or check --endpoint-url",
        chain(error)
    ))
}
