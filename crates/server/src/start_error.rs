//! The reasons why a server cannot start.

/// The reason why a server cannot start with a configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A key cannot be read.
    #[error("permits: the key {from} cannot be read: {reason}")]
    Key {
        /// The file or the variable.
        from: String,
        /// The reason.
        reason: String,
    },
    /// A key is too short.
    #[error(
        "permits: a key needs at least 32 bytes; make one with `head -c 32 /dev/urandom | base64`"
    )]
    ShortKey,
    /// The system has no random bytes.
    #[error("the system has no random bytes: {0}")]
    Random(getrandom::Error),
    /// A price list cannot be used.
    #[error("prices: {}: {reason}", file.display())]
    Prices {
        /// The file.
        file: std::path::PathBuf,
        /// The reason.
        reason: String,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}; name another one with --listen")]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// The reason.
        source: std::io::Error,
    },
    /// An address other than loopback, without callers.
    #[error(
        "{0} is not a loopback address, and no callers are named: everyone could change every limit; name callers, or set listen.without_callers"
    )]
    Open(std::net::SocketAddr),
    /// A file that is read again names none of these, and the running server has some.
    #[error(
        "the file names no {0}, and the running server has some: name them, or restart the server to go on without"
    )]
    Missing(&'static str),
    /// A certificate or its key cannot be used.
    #[error("tls: {0}")]
    Tls(String),
    /// The collector of traces cannot be used.
    #[error("traces: {0}")]
    Traces(String),
    /// A rule for Envoy is wrong.
    #[error("envoy: {0}")]
    Rule(String),
}
