//! The reasons why a command failed, and the exit code that tells a script.
//!
//! Every message is one line and ends with the next thing to do or to type.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use sluicegate::dynamo::{ConfigError, ReadError, RequestError, TableSetupError};
use sluicegate::error::{BoxError, SetupError, StoreFailure};
use sluicegate::store::TableError;
use sluicegate::{AcquireError, AdjustError};
use sluicegate_core::ErrorClass;
use sluicegate_processor::{chain, explain};

/// The exit codes, for every command.
pub(crate) mod exit {
    /// Done, but a person must look: something named does not exist, records are in quarantine, or
    /// figures differ.
    pub(crate) const ATTENTION: u8 = 1;
    /// A limit is short now.
    pub(crate) const LIMIT_EXCEEDED: u8 = 3;
    /// The request asks for more than the limit can ever give.
    pub(crate) const NEVER_ADMISSIBLE: u8 = 4;
}

/// Each variant has an exit code of its own, the same for every command.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// The named thing does not exist, or the command refused for safety.
    #[error("{0}")]
    Attention(String),
    /// The input is invalid; nothing was done.
    #[error("{0}")]
    BadInput(String),
    /// The store did not execute the request.
    #[error("{0}")]
    Store(String),
    /// The endpoint did not answer, or not in time.
    #[error("{0}")]
    NoAnswer(String),
    /// The endpoint answered, but not as a working DynamoDB does.
    #[error("{0}")]
    Failed(String),
    /// The result could not be written.
    #[error("cannot write the result: {0}")]
    Output(#[from] std::io::Error),
}

impl CliError {
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Attention(_) => ExitCode::from(exit::ATTENTION),
            Self::BadInput(_) => ExitCode::from(2),
            Self::Store(_) | Self::NoAnswer(_) | Self::Failed(_) => ExitCode::from(5),
            Self::Output(_) => ExitCode::from(6),
        }
    }

    /// The message for a person, with the endpoint of the command.
    pub(crate) fn line(&self, endpoint: Option<&str>) -> String {
        let endpoint = endpoint.unwrap_or("DynamoDB");
        match self {
            Self::NoAnswer(why) => format!(
                "no answer from {endpoint}: {why}; check --endpoint-url and the network, start `sluicegate local`, or give it longer with --timeout"
            ),
            Self::Failed(why) => format!(
                "{why}; try again, and check that {endpoint} is a DynamoDB (--endpoint-url names another)"
            ),
            other => other.to_string(),
        }
    }

    /// Invalid input, with the message of the check that refused it.
    pub(crate) fn bad(why: impl std::fmt::Display) -> Self {
        Self::BadInput(why.to_string())
    }

    pub(crate) fn no_region() -> Self {
        Self::Store(
            "no AWS region is set; name one with --region or `export AWS_REGION=us-east-1`"
                .to_owned(),
        )
    }

    pub(crate) fn no_credentials(why: &str) -> Self {
        Self::Store(format!(
            "no AWS credentials: {why}; run `aws configure` or `aws sso login`, or for a table of `sluicegate local` `export AWS_ACCESS_KEY_ID=local AWS_SECRET_ACCESS_KEY=local`"
        ))
    }

    /// An answer of 200 without the requested data.
    pub(crate) fn empty(operation: &str, table: &str) -> Self {
        Self::NoAnswer(format!("the answer to {operation} of table {table} is empty"))
    }

    fn no_table(table: &str) -> Self {
        Self::Store(format!(
            "table {table} does not exist (ResourceNotFound); create it with `sluicegate table create --table {table}`, or name another one with --table, --region or --endpoint-url"
        ))
    }

    fn denied(operation: &str, table: &str, why: &str) -> Self {
        Self::Store(format!(
            "access denied: allow {operation} on {table} and its indexes to these credentials; `aws sts get-caller-identity` names their owner ({why})"
        ))
    }

    /// The table did not answer, or answered that it failed; or an earlier answer was lost.
    fn unavailable(source: &BoxError) -> Self {
        let why = chain(source.as_ref());
        if source.is::<AcquireError>() || source.is::<AdjustError>() {
            return Self::Store(why);
        }
        if source.is::<StoreFailure>() { Self::Failed(why) } else { Self::NoAnswer(why) }
    }

    /// The error of a call on a table through the SDK.
    pub(crate) fn of_sdk<E, R>(operation: &str, table: &str, error: &SdkError<E, R>) -> Self
    where
        E: ProvideErrorMetadata + std::error::Error + 'static,
        R: std::fmt::Debug,
    {
        let why = explain(error);
        match (error.code(), error) {
            (Some(code), _) if ErrorClass::of_reason(code) == ErrorClass::NoTable => {
                Self::no_table(table)
            }
            (Some(code), _) if ErrorClass::of_reason(code) == ErrorClass::Denied => {
                Self::denied(&format!("dynamodb:{operation}"), &format!("table {table}"), &why)
            }
            (Some(code), _) if ErrorClass::of_reason(code) == ErrorClass::Throttled => Self::Store(
                format!("{operation} on table {table} was throttled: {why}; try again in a moment"),
            ),
            (None, SdkError::DispatchFailure(_) | SdkError::TimeoutError(_)) => Self::NoAnswer(why),
            _ => Self::Failed(format!("{operation} failed for table {table}: {why}")),
        }
    }
}

impl From<RequestError> for CliError {
    fn from(error: RequestError) -> Self {
        match &error {
            RequestError::MissingTable { table, .. } => Self::no_table(table),
            RequestError::AccessDenied { operation, table, source } => {
                let (action, table) = (format!("dynamodb:{operation}"), format!("table {table}"));
                Self::denied(&action, &table, &chain(source.as_ref()))
            }
            RequestError::NoAnswer { source, .. } => Self::NoAnswer(chain(source.as_ref())),
            RequestError::Throttled { .. } => Self::Store(chain(&error)),
            _ => Self::Failed(chain(&error)),
        }
    }
}

impl From<SetupError> for CliError {
    fn from(error: SetupError) -> Self {
        match &error {
            SetupError::NoTable(table) => Self::no_table(table),
            SetupError::Denied(source) => {
                Self::denied("reading and writing items", "the table", &chain(source.as_ref()))
            }
            SetupError::Rejected(_) => Self::Failed(chain(&error)),
            _ => Self::Store(chain(&error)),
        }
    }
}

impl From<TableError> for CliError {
    fn from(error: TableError) -> Self {
        match error {
            TableError::Setup(setup) => setup.into(),
            TableError::Unconfirmed(source) => Self::unavailable(&source),
            TableError::Conflict | TableError::Throttled(_) => {
                Self::Store(format!("{}; try again in a moment", chain(&error)))
            }
        }
    }
}

impl From<AcquireError> for CliError {
    fn from(error: AcquireError) -> Self {
        match error {
            AcquireError::InvalidRequest(invalid) => Self::bad(invalid),
            AcquireError::Setup(setup) => setup.into(),
            AcquireError::Unavailable(source) => Self::unavailable(&source),
            other => Self::Store(chain(&other)),
        }
    }
}

impl From<AdjustError> for CliError {
    fn from(error: AdjustError) -> Self {
        match error {
            AdjustError::InvalidRequest(invalid) => Self::bad(invalid),
            AdjustError::Setup(setup) => setup.into(),
            AdjustError::Unavailable(source) => Self::unavailable(&source),
            other => Self::Store(chain(&other)),
        }
    }
}

impl From<ConfigError> for CliError {
    fn from(error: ConfigError) -> Self {
        match error {
            ConfigError::Request(request) => request.into(),
            ConfigError::OwnParent { .. }
            | ConfigError::Limit(_)
            | ConfigError::Repeated { .. }
            | ConfigError::Count { .. } => Self::bad(error),
            other => Self::Store(chain(&other)),
        }
    }
}

impl From<ReadError> for CliError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Request(request) => request.into(),
            other => Self::Store(chain(&other)),
        }
    }
}

impl From<TableSetupError> for CliError {
    fn from(error: TableSetupError) -> Self {
        match error {
            TableSetupError::Request(request) => request.into(),
            other => Self::Store(chain(&other)),
        }
    }
}

/// Longer than any useful line.
const LINE_CHARS: usize = 4_000;

/// The time between two lines in which a long command without a terminal says how far it is.
pub(crate) const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

/// Writes a message for a person to standard error, in one line. It does not fail if standard error
/// is closed. Quoted text may come from anywhere, so control characters are escaped.
pub(crate) fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{}", sluicegate_processor::one_line(line, LINE_CHARS));
}
