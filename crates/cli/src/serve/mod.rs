//! `sluicegate serve`: limits for programs in any language, over HTTP and gRPC.

mod store;

use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use sluicegate_server::config::{Embedded, Store};
use sluicegate_server::{Config, Reloader, Server, SpanSender};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::error::{CliError, say};
use crate::feed::interrupted;
use crate::options::Options;
use crate::output;
use store::OpenStore;

/// Answer requests for tokens over HTTP, and those of Envoy.
///
/// One port speaks HTTP with JSON (described at /openapi.json) and Envoy's rate limit service.
/// SIGHUP reads the configuration again; SIGTERM and Ctrl-C finish open requests and give leased
/// tokens back.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sluicegate serve --embedded                        # try it out: nothing else is needed
  sluicegate serve --config sluicegate.yaml
  sluicegate serve --config sluicegate.yaml --check  # every mistake with its line
  sluicegate serve --schema > sluicegate.schema.json # for editors

Exit codes: 0 stopped, or the configuration is good; 2 bad input; 5 the port or the store cannot be
used.")]
pub(crate) struct Args {
    /// The configuration, in YAML.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Keep the balances in this process, whatever store the configuration names. They are gone
    /// when it ends.
    #[arg(long)]
    embedded: bool,
    /// Listen on this address, whatever the configuration says; port 0 is any free one.
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Check the configuration and stop.
    #[arg(long, requires = "config")]
    check: bool,
    /// Print the JSON schema of the configuration and stop.
    // `exclusive` would refuse the global options, also those of the environment.
    #[arg(long, conflicts_with_all = ["config", "embedded", "listen", "check", "log_json"])]
    schema: bool,
    /// Write the log as JSON.
    #[arg(long)]
    log_json: bool,
}

pub(crate) async fn run(args: Args, options: &Options) -> Result<ExitCode, CliError> {
    if args.schema {
        output::exact(Config::schema().trim_end())?;
        return Ok(ExitCode::SUCCESS);
    }
    // From here on no signal is lost.
    let stop = interrupted()?;
    let mut reload = signal(SignalKind::hangup())
        .map_err(|error| CliError::Store(format!("cannot wait for signals: {error}")))?;
    let config = args.configuration()?;
    if let (true, Some(file)) = (args.check, &args.config) {
        store::check(&config, options)?;
        output::line(&format!("{} is good", file.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let spans = config.traces.as_ref().map(SpanSender::start).transpose().map_err(refused)?;
    log(args.log_json, spans.as_ref());
    sluicegate_server::install_metrics();
    let OpenStore { limiter, embedded } = OpenStore::open(&config, options).await?;
    let server = Server::bind(config, limiter).await.map_err(refused)?;
    let reloader = server.reloader();
    say(&format!("listening on {}; Ctrl-C stops", server.url()));
    tokio::spawn(async move {
        while reload.recv().await.is_some() {
            args.reload(&reloader);
        }
    });
    server.run_until(stop).await;
    if let Some(embedded) = embedded {
        embedded.stop().await?;
    }
    if let Some(spans) = spans {
        spans.stop().await;
    }
    say("stopped");
    Ok(ExitCode::SUCCESS)
}

impl Args {
    /// The configuration of the file, with the changes of the command line.
    fn configuration(&self) -> Result<Config, CliError> {
        let mut config = match &self.config {
            Some(file) => read(file)?,
            None => parse(Path::new("the default configuration"), "")?,
        };
        if self.embedded {
            let embedded = Some(Embedded::default());
            config.store = Some(Store { embedded, ..Store::default() });
        }
        if let Some(address) = self.listen {
            config.listen.address = address;
        }
        Ok(config)
    }

    /// Reads the configuration again. One that is wrong changes nothing.
    fn reload(&self, reloader: &Reloader) {
        let reloaded =
            self.configuration().and_then(|config| reloader.reload(&config).map_err(refused));
        match reloaded {
            Ok(fixed) if fixed.is_empty() => say("read the configuration again"),
            Ok(fixed) => say(&format!(
                "read the configuration again; a restart is needed for: {}",
                fixed.join(", ")
            )),
            Err(error) => say(&format!("the configuration stays as it was: {error}")),
        }
    }
}

fn read(file: &Path) -> Result<Config, CliError> {
    let bad =
        |what: &dyn std::fmt::Display| CliError::BadInput(format!("{}: {what}", file.display()));
    let text = std::fs::read_to_string(file).map_err(|error| bad(&error))?;
    if text.trim().is_empty() {
        return Err(bad(&"the file is empty"));
    }
    parse(file, &text)
}

fn parse(file: &Path, text: &str) -> Result<Config, CliError> {
    Config::parse(text).map_err(|mistakes| {
        for mistake in &mistakes {
            say(&format!("{}:{mistake}", file.display()));
        }
        CliError::BadInput(format!(
            "{} has {}; `sluicegate serve --schema` prints all settings",
            file.display(),
            output::counted(mistakes.len(), "mistake")
        ))
    })
}

fn refused(error: sluicegate_server::StartError) -> CliError {
    match error {
        error @ sluicegate_server::StartError::Listen { .. } => CliError::Store(error.to_string()),
        error => CliError::BadInput(error.to_string()),
    }
}

/// Writes the log to standard error: warnings, and the lines that the configuration asks for.
fn log(is_json: bool, spans: Option<&SpanSender>) {
    let wanted = Targets::new()
        .with_default(LevelFilter::WARN)
        .with_target("sluicegate::access", LevelFilter::INFO)
        // The end of an outage is no warning, and belongs to its beginning.
        .with_target("sluicegate::guard", LevelFilter::INFO);
    let has_colours = std::io::stderr().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|no| no.is_empty());
    let lines =
        tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(has_colours);
    let lines = if is_json { lines.json().boxed() } else { lines.boxed() };
    let lines = lines.with_filter(wanted);
    // Another subscriber may be there already, in a test.
    let _ =
        tracing_subscriber::registry().with(spans.map(SpanSender::layer)).with(lines).try_init();
}
