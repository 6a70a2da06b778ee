//! Options that every command takes, before its name or behind it.

use clap::builder::{PossibleValuesParser, TypedValueParser};

use crate::connection::Connection;
use crate::error::CliError;

/// The table of whoever names none.
const DEFAULT_TABLE: &str = "sluicegate-limits";
/// Names the table where `--table` does not.
const TABLE_VARIABLE: &str = "SLUICEGATE_TABLE";

/// Which table, where it is, and how to print.
#[derive(clap::Args)]
#[command(next_help_heading = "Table and output")]
pub(crate) struct Options {
    /// The DynamoDB table [env: SLUICEGATE_TABLE] [default: sluicegate-limits].
    // Read by hand: `replay` writes to a table only when its command line names one.
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) table: Option<String>,
    /// Where the table is, like http://127.0.0.1:8000 [env: AWS_ENDPOINT_URL].
    #[arg(long, global = true, value_name = "URL", value_parser = endpoint)]
    pub(crate) endpoint_url: Option<String>,
    /// The AWS region [env: AWS_REGION]; us-east-1 for an endpoint on loopback.
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) region: Option<String>,
    /// The profile of the AWS configuration to use [env: AWS_PROFILE].
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) profile: Option<String>,
    /// How to print the result [default: table].
    #[arg(long, global = true, value_name = "FORMAT", value_parser = table_or_json())]
    pub(crate) output: Option<Output>,
}

/// How a result is printed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Output {
    /// For people.
    #[default]
    Table,
    /// For scripts.
    Json,
    /// For spreadsheets.
    Csv,
}

impl Options {
    /// The table that the command line, the environment or the default names.
    pub(crate) fn table(&self) -> String {
        let from_environment =
            || std::env::var(TABLE_VARIABLE).ok().filter(|name| !name.is_empty());
        self.table.clone().or_else(from_environment).unwrap_or_else(|| DEFAULT_TABLE.to_owned())
    }

    /// How to print.
    pub(crate) fn output(&self) -> Output {
        self.output.unwrap_or_default()
    }

    /// Whether to print for scripts.
    pub(crate) fn is_json(&self) -> bool {
        self.output() == Output::Json
    }

    /// Connects to the table as the options and the AWS environment say. Nothing is sent yet.
    ///
    /// # Errors
    /// [`CliError::Store`] when there is no region or are no credentials, with what to do.
    pub(crate) async fn connect(&self) -> Result<Connection, CliError> {
        Connection::open(self).await
    }
}

/// Only usage windows make sense as CSV; that command accepts it too.
fn table_or_json() -> impl TypedValueParser<Value = Output> {
    PossibleValuesParser::new(["table", "json"]).map(|format| match format.as_str() {
        "json" => Output::Json,
        _ => Output::Table,
    })
}

/// Checked here, because the SDK would only fail with its first request.
fn endpoint(url: &str) -> Result<String, String> {
    let parsed: http::Uri = url.parse().map_err(|error| format!("{error}"))?;
    match (parsed.scheme_str(), parsed.host()) {
        (Some("http" | "https"), Some(_)) => Ok(url.to_owned()),
        _ => Err("expected a URL like http://127.0.0.1:8000".to_owned()),
    }
}
