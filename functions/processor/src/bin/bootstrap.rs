//! The Lambda function: reads its settings, builds its client once, then handles event after event.
//!
//! Logs go to standard error and metrics to standard output, both as JSON lines.

use std::process::ExitCode;
use std::time::Duration;

use aws_lambda_events::event::streams::DynamoDbEventResponse;
use lambda_runtime::{Context, Diagnostic, LambdaEvent, service_fn};
use sluicegate_processor::{
    Destination, HandleError, Metrics, Processor, Settings, StreamEvent, region_warning,
};
use tokio::time::Instant;
use tracing_subscriber::filter::LevelFilter;

/// The part of the invocation's time that is kept for the answer: a tenth of it, at most this.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(1);

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let level = std::env::var("AWS_LAMBDA_LOG_LEVEL").ok().and_then(|level| level.parse().ok());
    tracing_subscriber::fmt()
        .json()
        .with_max_level(level.unwrap_or(LevelFilter::INFO))
        .with_writer(std::io::stderr)
        .init();
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "the processor cannot run");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), lambda_runtime::Error> {
    let settings = Settings::from_env(|name| std::env::var(name).ok())?;
    let destination = Destination::from_env(|name| std::env::var(name).ok())?;
    let metrics = Metrics::init(&settings.table)?;
    let config = sluicegate_processor::sdk_config().await;
    let client = sluicegate_processor::client(&config);
    if let Some(warning) = region_warning(&client, &settings).await {
        tracing::warn!("{warning}");
    }
    tracing::info!(table = settings.table, windows = %settings.window_kinds, retention = ?settings.retention, "ready");
    let mut processor = Processor::new(client, settings);
    if let Some(destination) = destination {
        tracing::info!(?destination, "alerts are delivered");
        processor = processor.delivering_to(destination, &config);
    }
    if processor.is_counted_elsewhere() {
        tracing::info!(home = processor.settings().home_region, "another region counts this table");
    }
    let processor = &processor;
    let metrics = &metrics;
    lambda_runtime::run(service_fn(move |event: LambdaEvent<StreamEvent>| async move {
        invoke(processor, metrics, event).await
    }))
    .await
}

async fn invoke(
    processor: &Processor,
    metrics: &Metrics,
    event: LambdaEvent<StreamEvent>,
) -> Result<DynamoDbEventResponse, Diagnostic> {
    let deadline = Instant::now() + time_to_work(&event.context);
    // Boxed, or the type would exceed the compiler's default `recursion_limit`.
    let outcome = Box::pin(processor.handle(&event.payload.records, deadline)).await;
    if let Err(error) = metrics.write(&outcome.report, std::io::stdout()) {
        tracing::warn!(%error, "the event's metrics could not be written");
    }
    outcome.response.map_err(diagnostic)
}

/// The error's name does not depend on its message, so that metric filters can match it.
fn diagnostic(error: HandleError) -> Diagnostic {
    let error_type = match error {
        HandleError::NoPosition { .. } => "NoPosition",
        HandleError::AlertsNotRead { .. } => "AlertsNotRead",
    };
    Diagnostic { error_type: error_type.to_owned(), error_message: error.to_string() }
}

/// A deadline before 2001 is a duration, not an instant: `cargo lambda watch` (1.9.2) sends the
/// time that is left, ten minutes. Without this bound, every write would be out of time before its
/// first attempt.
const DEADLINE_MIN_MS: u64 = 1_000_000_000_000;

fn time_to_work(context: &Context) -> Duration {
    let left = match context.deadline {
        left_ms @ ..DEADLINE_MIN_MS => Duration::from_millis(left_ms),
        _ => context.deadline().duration_since(std::time::SystemTime::now()).unwrap_or_default(),
    };
    left - (left / 10).min(ANSWER_TIME_MAX)
}
