//! The errors of this crate. A variant is a decision the caller can take: choose another name, fix
//! a setting, look at the engine, look at the handler. Sources are kept, messages do not repeat them.

/// Any error, as a source.
pub type BoxError = Box<dyn std::error::Error + Send + Sync + 'static>;

/// What can go wrong between a caller and a local engine or a stream.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The embedded engine could not open its storage, listen, or finish.
    #[error("the embedded DynamoDB engine could not {action}")]
    Engine {
        /// What it was about to do.
        action: &'static str,
        /// Why it could not.
        source: BoxError,
    },

    /// The name is taken: use the table that is there, or another name.
    #[error("table {table} exists already; use it as it is or choose another name")]
    TableExists {
        /// Name of the table.
        table: String,
    },

    /// An operation on a table failed.
    #[error("{operation} failed for table {table}")]
    Table {
        /// The API operation.
        operation: &'static str,
        /// Name of the table.
        table: String,
        /// What the SDK said.
        source: BoxError,
    },

    /// The table was created but did not become usable.
    #[error("table {table} is still not ACTIVE after {waited_seconds} s; look at the engine's log")]
    TableNotActive {
        /// Name of the table.
        table: String,
        /// How long it was waited for.
        waited_seconds: u64,
    },

    /// The table has no stream to read.
    #[error("table {table} has no stream; enable one with view type NEW_AND_OLD_IMAGES")]
    NoStream {
        /// Name of the table.
        table: String,
    },

    /// A stream could not be read.
    #[error("{operation} failed for {subject}")]
    Stream {
        /// The API operation.
        operation: &'static str,
        /// The stream or shard concerned.
        subject: String,
        /// What the SDK said.
        source: BoxError,
    },

    /// A setting is out of its range.
    #[error("{setting} is {value}; it must be {range}")]
    Setting {
        /// Name of the setting.
        setting: &'static str,
        /// The value refused.
        value: String,
        /// What is accepted.
        range: &'static str,
    },

    /// The handler failed as often as the settings allow, and they say to stop then.
    #[error(
        "the handler failed {attempts} times from record {first_record} of shard {shard}; \
         the checkpoint is before that record, so nothing is lost by starting again"
    )]
    Exhausted {
        /// The shard that cannot go on.
        shard: String,
        /// Sequence number of the first record that was not handled, or its position.
        first_record: String,
        /// Deliveries made without progress.
        attempts: u32,
        /// The handler's last error.
        source: BoxError,
    },
}
