//! The configuration file of a server, in YAML.

mod bounds;
mod callers;
mod check;
pub(crate) mod domains;
mod lines;
mod mistake;
mod permits;
mod pointer;
mod read;
mod schema;
mod settings;
mod store;
mod suggest;

pub use bounds::Bounds;
pub use callers::{Caller, Role};
pub use domains::{Domain, Envoy, Rule, Unknown};
pub use mistake::Mistake;
pub use permits::Permits;
pub use settings::{Config, Listen, Tls};
pub use store::{Dynamodb, Embedded, Leasing, Mode, OnUnavailable, Redis, Store};
