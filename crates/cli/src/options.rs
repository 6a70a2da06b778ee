//! Options of every command, before its name or after it.

use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};

use crate::error::CliError;

/// The table if none is named.
const DEFAULT_TABLE: &str = "sluicegate-limits";
/// The environment variable that names the table if `--table` does not.
const TABLE_VARIABLE: &str = "SLUICEGATE_TABLE";
/// The environment variables that name the endpoint if `--endpoint-url` does not; the first that is
/// set is DynamoDB's.
const ENDPOINT_VARIABLES: [&str; 3] =
    ["AWS_ENDPOINT_URL_DYNAMODB", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_DYNAMODB_STREAMS"];
/// The default of `--timeout`.
const TIMEOUT_S: &str = "30";
/// The longest `--timeout`.
const TIMEOUT_MAX_S: f64 = 86_400.0;

/// The table, its endpoint, and the output format.
#[derive(Clone, clap::Args)]
#[command(next_help_heading = "Table and output")]
pub(crate) struct Options {
    /// The DynamoDB table [env: SLUICEGATE_TABLE] [default: sluicegate-limits].
    // Read by hand: `replay` writes to a table only if its command line names one.
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) table: Option<String>,
    /// The endpoint of the table, like http://127.0.0.1:8000 [env: AWS_ENDPOINT_URL].
    #[arg(long, global = true, value_name = "URL", value_parser = endpoint)]
    pub(crate) endpoint_url: Option<String>,
    /// The AWS region [env: AWS_REGION]; us-east-1 for an endpoint on loopback.
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) region: Option<String>,
    /// The profile of the AWS configuration to use, before keys in the environment [env:
    /// AWS_PROFILE, after them].
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) profile: Option<String>,
    /// The time that a request to the table may take, repetitions included; then the command ends with
    /// exit code 5. A command that makes many requests, such as migrate, has no overall limit.
    #[arg(long, global = true, value_name = "SECONDS", env = "SLUICEGATE_TIMEOUT",
        hide_env_values = true, default_value = TIMEOUT_S, value_parser = seconds)]
    pub(crate) timeout: Duration,
    /// The output format [default: table].
    #[arg(long, global = true, value_name = "FORMAT", value_parser = table_or_json())]
    pub(crate) output: Option<Output>,
}

/// The output format of a result.
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

    /// The output format.
    pub(crate) fn output(&self) -> Output {
        self.output.unwrap_or_default()
    }

    /// True if the output is for scripts.
    pub(crate) fn is_json(&self) -> bool {
        self.output() == Output::Json
    }

    /// The endpoint that the command line or the environment names; `None`: AWS's own.
    pub(crate) fn endpoint(&self) -> Option<String> {
        let [dynamodb, any, _] = ENDPOINT_VARIABLES;
        self.endpoint_url.clone().or_else(|| variable(dynamodb)).or_else(|| variable(any))
    }

    /// Refuses an endpoint from the environment that is not a URL, as the parser does for the
    /// command line. The SDK would fail only with its first request.
    ///
    /// # Errors
    /// [`CliError::BadInput`] with the variable's name.
    pub(crate) fn check_endpoint(&self) -> Result<(), CliError> {
        if let Some((url, why)) =
            self.endpoint_url.as_ref().and_then(|url| Some((url, endpoint(url).err()?)))
        {
            return Err(CliError::BadInput(format!("the endpoint {url:?}: {why}")));
        }
        for name in ENDPOINT_VARIABLES {
            let url = variable(name).filter(|_| self.endpoint_url.is_none());
            if let Some((url, why)) = url.and_then(|url| Some((url.clone(), endpoint(&url).err()?)))
            {
                return Err(CliError::BadInput(format!(
                    "{name} is {url:?}: {why}; correct it, or name the endpoint with --endpoint-url"
                )));
            }
        }
        Ok(())
    }
}

/// Only usage windows can be printed as CSV; their command accepts it too.
fn table_or_json() -> impl TypedValueParser<Value = Output> {
    PossibleValuesParser::new(["table", "json"]).map(|format| match format.as_str() {
        "json" => Output::Json,
        _ => Output::Table,
    })
}

/// A non-empty variable of the environment.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Checked here, because the SDK would only fail with its first request.
fn endpoint(url: &str) -> Result<String, String> {
    const EXPECTED: &str = "expected a URL like http://127.0.0.1:8000";
    let parsed: http::Uri = url.parse().map_err(|error| format!("{error}; {EXPECTED}"))?;
    let (Some("http" | "https"), Some(authority)) = (parsed.scheme_str(), parsed.authority())
    else {
        return Err(EXPECTED.to_owned());
    };
    let (host, named) = (authority.host(), authority.as_str());
    let port = named.rsplit_once('@').map_or(named, |(_, place)| place).strip_prefix(host);
    match port.map(|port| port.strip_prefix(':').unwrap_or(port)) {
        _ if host.is_empty() => Err(EXPECTED.to_owned()),
        Some("") => Ok(url.to_owned()),
        Some(port) if port.parse::<u16>().is_ok_and(|port| port > 0) => Ok(url.to_owned()),
        _ => Err("its port is not 1 to 65535".to_owned()),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    // An empty variable counts as none.
    let text = if text.is_empty() { TIMEOUT_S } else { text };
    let seconds = text.parse().ok().filter(|seconds| *seconds > 0.0 && *seconds <= TIMEOUT_MAX_S);
    seconds
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| format!("expected seconds above 0, {TIMEOUT_MAX_S} at most"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_url_with_a_host_and_a_port_that_exists() {
        for good in ["http://127.0.0.1:8000", "https://a.example/x", "http://[::1]:1", "http://h"] {
            assert_eq!(endpoint(good), Ok(good.to_owned()));
        }
        for bad in [
            "http://127.0.0.1:99999",
            "http://127.0.0.1:0",
            "http://127.0.0.1:x",
            "http://:8000",
            "127.0.0.1:8000",
            "localhost",
            "ftp://127.0.0.1",
            "http://",
            "not a url",
            "",
        ] {
            assert!(endpoint(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_timeout_is_up_to_a_day() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(seconds(""), Ok(Duration::from_secs(30)), "an empty variable");
        for bad in ["0", "-1", "86401", "NaN", "inf", "30s"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
