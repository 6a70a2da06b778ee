//! The parts of a server that requests use; some of them can be replaced while it runs.

use std::sync::{Arc, PoisonError, RwLock};

use sluicegate::Limiter;
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

use crate::callers::Callers;
use crate::config::{Bounds, Config, Permits};
use crate::envoy::Rules;
use crate::permit_id::PermitIds;
use crate::tls::acceptor;

/// The state of a server.
pub(crate) struct Live {
    pub(crate) limiter: Limiter,
    pub(crate) bounds: Bounds,
    /// One for each request that may be in work.
    pub(crate) places: Semaphore,
    /// Signs the ids of permits if the configuration names no key.
    random_key: Vec<u8>,
    /// The configuration, as of the last reload.
    replaceable: RwLock<Arc<Replaceable>>,
}

/// The parts that a reload replaces.
pub(crate) struct Replaceable {
    pub(crate) callers: Callers,
    pub(crate) ids: PermitIds,
    /// `None`: connections are not encrypted.
    pub(crate) tls: Option<TlsAcceptor>,
    pub(crate) access_log: bool,
    /// `None`: the server does not offer Envoy's service.
    pub(crate) rules: Option<Rules>,
}

impl Replaceable {
    fn new(config: &Config, random_key: &[u8]) -> Result<Self, StartError> {
        Ok(Self {
            callers: Callers::new(&config.callers).ok_or(StartError::Caller)?,
            ids: ids(&config.permits, random_key)?,
            tls: config.tls.as_ref().map(acceptor).transpose().map_err(StartError::Tls)?,
            access_log: config.access_log,
            rules: config.envoy.as_ref().map(Rules::new).transpose().map_err(StartError::Rule)?,
        })
    }
}

/// The reason why a server cannot start with a configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The hash of a caller's token is not 64 hexadecimal digits.
    #[error(
        "callers: a sha256 is not 64 hexadecimal digits; make it with `printf %s \"$TOKEN\" | sha256sum`"
    )]
    Caller,
    /// A key cannot be read.
    #[error("permits: the key in {from} cannot be read: {reason}")]
    Key {
        /// The file or the variable.
        from: String,
        /// The reason.
        reason: String,
    },
    /// A key is too short, or there is an old key without a new one.
    #[error(
        "permits: a key needs at least 32 bytes; make one with `head -c 32 /dev/urandom | base64`"
    )]
    ShortKey,
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
    /// A certificate or its key cannot be used.
    #[error("tls: {0}")]
    Tls(String),
    /// A rule for Envoy is wrong.
    #[error("envoy: {0}")]
    Rule(String),
}

impl Live {
    pub(crate) fn new(limiter: Limiter, config: &Config) -> Result<Self, StartError> {
        let random_key = random_key();
        let replaceable = RwLock::new(Arc::new(Replaceable::new(config, &random_key)?));
        let bounds = config.bounds;
        let places = Semaphore::new(bounds.requests.min(Semaphore::MAX_PERMITS));
        Ok(Self { limiter, bounds, places, random_key, replaceable })
    }

    /// The replaceable parts, as of now.
    pub(crate) fn now(&self) -> Arc<Replaceable> {
        Arc::clone(&self.replaceable.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the replaceable parts.
    pub(crate) fn reload(&self, config: &Config) -> Result<(), StartError> {
        let replaceable = Arc::new(Replaceable::new(config, &self.random_key)?);
        *self.replaceable.write().unwrap_or_else(PoisonError::into_inner) = replaceable;
        Ok(())
    }
}

fn ids(permits: &Permits, random_key: &[u8]) -> Result<PermitIds, StartError> {
    let newest = secret(permits.key_file.as_deref(), permits.key_env.as_deref())?;
    let previous =
        secret(permits.previous_key_file.as_deref(), permits.previous_key_env.as_deref())?;
    let secrets: Vec<_> = match (newest, previous) {
        (None, Some(_)) => return Err(StartError::ShortKey),
        (None, None) => vec![random_key.to_vec()],
        (newest, previous) => newest.into_iter().chain(previous).collect(),
    };
    PermitIds::new(&secrets, permits.valid_for_s).ok_or(StartError::ShortKey)
}

/// The bytes of a key, without white space at its ends.
fn secret(
    file: Option<&std::path::Path>,
    variable: Option<&str>,
) -> Result<Option<Vec<u8>>, StartError> {
    let broken = |from: String, reason: String| StartError::Key { from, reason };
    let secret = match (file, variable) {
        (Some(file), _) => std::fs::read(file)
            .map_err(|error| broken(file.display().to_string(), error.to_string()))?,
        (None, Some(variable)) => std::env::var(variable)
            .map_err(|error| broken(variable.to_owned(), error.to_string()))?
            .into_bytes(),
        (None, None) => return Ok(None),
    };
    Ok(Some(secret.trim_ascii().to_vec()))
}

fn random_key() -> Vec<u8> {
    let mut key = vec![0; 32];
    if getrandom::fill(&mut key).is_err() {
        fastrand::fill(&mut key);
    }
    key
}
