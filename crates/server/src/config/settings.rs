//! The settings of a server.

use std::net::SocketAddr;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

use super::bounds::Bounds;
use super::callers::Caller;
use super::domains::Envoy;
use super::permits::Permits;
use super::prices::Prices;
use super::store::{Leasing, OnUnavailable, Store};
use super::traces::Traces;

/// The configuration of a server.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The address that the server listens on.
    #[serde(default)]
    pub listen: Listen,
    /// The certificate. Absent: connections are not encrypted.
    pub tls: Option<Tls>,
    /// Writes a line for each request to the log, without entities and tokens.
    #[serde(default)]
    pub access_log: bool,
    /// The store of the balances. `--embedded` replaces it.
    pub store: Option<Store>,
    /// Tokens that the server takes ahead of need, to decide in memory. Absent: one call of the
    /// store for each decision.
    pub leasing: Option<Leasing>,
    /// The answer to a request while the store is unavailable. Absent: `allow`, which counts nothing
    /// during an outage.
    #[serde(default)]
    pub on_unavailable: OnUnavailable,
    /// The time in which the store must decide, in milliseconds. Absent: 250 for an acquire, 1000
    /// for a correction. Until the store has answered once, it has at least 2000.
    #[schemars(range(min = 1, max = 60_000))]
    pub deadline_ms: Option<u64>,
    /// The limits of a request that brings none, and of its parent, like `rpm=100/min`. They win
    /// over stored limits of the same name: leave out those that are stored.
    #[serde(default)]
    pub limits: Vec<String>,
    /// The prices of models. Absent: requests name amounts.
    pub prices: Option<Prices>,
    /// The ids of permits.
    #[serde(default)]
    pub permits: Permits,
    /// The programs and people that may call the server. Absent: everyone may do everything, which
    /// only a server on loopback allows.
    #[serde(default)]
    pub callers: Vec<Caller>,
    /// Envoy's rate limit service. Absent: the server does not offer it.
    pub envoy: Option<Envoy>,
    /// Traces of requests. Absent: none.
    pub traces: Option<Traces>,
    /// The bounds on what callers may send.
    #[serde(default)]
    pub bounds: Bounds,
}

/// The certificate of the server. A reload reads the files again.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// The file with the certificate and those of its issuers, in PEM.
    pub certificate_file: PathBuf,
    /// The file with the private key, in PEM.
    pub key_file: PathBuf,
}

impl Config {
    /// The parts that cannot change while the server runs, and differ from `running`.
    pub(crate) fn fixed_parts_that_differ(&self, running: &Self) -> Vec<&'static str> {
        let parts = [
            ("listen", self.listen != running.listen),
            ("tls", self.tls.is_some() != running.tls.is_some()),
            ("store", self.store != running.store),
            ("leasing", self.leasing != running.leasing),
            ("on_unavailable", self.on_unavailable != running.on_unavailable),
            ("deadline_ms", self.deadline_ms != running.deadline_ms),
            ("limits", self.limits != running.limits),
            ("traces", self.traces != running.traces),
            ("bounds", self.bounds != running.bounds),
        ];
        parts.into_iter().filter(|(_, differs)| *differs).map(|(part, _)| part).collect()
    }
}

/// The address that the server listens on. One port serves HTTP/1, HTTP/2 and gRPC.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Listen {
    /// The address and the port; port 0 is any free one.
    pub address: SocketAddr,
    /// Allows an address other than loopback although no callers are named.
    pub without_callers: bool,
}

impl Default for Listen {
    fn default() -> Self {
        Self { address: SocketAddr::from(([127, 0, 0, 1], 8470)), without_callers: false }
    }
}
