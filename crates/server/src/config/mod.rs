//! The configuration file of a server, in YAML.

mod amount;
mod bounds;
mod callers;
mod check;
pub(crate) mod domains;
mod lines;
mod mistake;
mod permits;
mod pointer;
mod prices;
mod read;
mod schema;
mod settings;
mod store;
mod suggest;
mod traces;

pub use amount::Amount;
pub use bounds::Bounds;
pub use callers::{Caller, Role, TokenHash};
pub(crate) use check::ANSWER_MS;
pub use domains::{Domain, Envoy, Rule, Unknown};
pub use mistake::Mistake;
pub use permits::{KeySource, Permits};
pub use prices::{PriceFormat, Priced, Prices};
pub use settings::{Config, Listen, Tls};
pub use store::{Dynamodb, Embedded, Leasing, Mode, OnUnavailable, Redis, Store};
pub use traces::Traces;
