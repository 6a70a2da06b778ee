//! The errors of this crate. Each variant stands for a decision of the caller: choose another name,
//! fix a setting, check the engine, check the handler. Sources are kept; messages do not repeat
//! them.

/// Any error, as a source.
pub type BoxError = Box<dyn std::error::Error + Send + Sync + 'static>;

/// An error between a caller and a local engine or a stream.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The embedded engine could not open its storage, listen, or finish.
    #[error("the embedded DynamoDB engine could not {action}")]
    Engine {
        /// The action that failed.
        action: &'static str,
        /// The reason.
        source: BoxError,
    },

    /// Another engine has the file: two engines would trim each other's stream records.
    #[error("{} is in use by another engine", file.display())]
    InUse {
        /// The file.
        file: std::path::PathBuf,
    },

    /// The file is a database of another program, which the engine would change.
    #[error("{} is a database of another program", file.display())]
    Foreign {
        /// The file.
        file: std::path::PathBuf,
    },

    /// The file has several names (hard links). SQLite keeps a log beside each name, so engines
    /// that were started by different names would not see each other's writes.
    #[error("{} has another name, a hard link", file.display())]
    HardLinked {
        /// The file.
        file: std::path::PathBuf,
    },

    /// The loop was asked to stop, and no batch was counted for some time.
    #[error("stopped before everything was counted: no batch was written for {} s", waited.as_secs())]
    Stalled {
        /// The time in which nothing was written.
        waited: std::time::Duration,
    },

    /// The port cannot be bound: most often another program has it.
    #[error("port {port} of 127.0.0.1 cannot be listened on")]
    Port {
        /// The port asked for.
        port: u16,
        /// The reason.
        source: std::io::Error,
    },

    /// The table could not be set up or described.
    #[error(transparent)]
    Table(#[from] sluicegate::dynamo::TableSetupError),

    /// A stream could not be read.
    #[error("{operation} failed for {subject}")]
    Stream {
        /// The API operation.
        operation: &'static str,
        /// The stream or shard concerned.
        subject: String,
        /// The SDK's error.
        source: BoxError,
    },

    /// A setting is out of its range.
    #[error("{setting} is {value}; it must be {range}")]
    Setting {
        /// Name of the setting.
        setting: &'static str,
        /// The value refused.
        value: String,
        /// The accepted range.
        range: &'static str,
    },
}

impl Error {
    /// Makes the error for an action of the engine, for `map_err`.
    pub(crate) fn engine<E: Into<BoxError>>(action: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::Engine { action, source: source.into() }
    }
}
