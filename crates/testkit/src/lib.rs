//! Shared parts of the tests of this workspace: DynamoDB engines, Redis, proxies that inject
//! faults, deliveries that come again, a Lambda Runtime API, and the processes of functions under
//! test.
//!
//! Every server listens on loopback, on an ephemeral port, and ends with the value that holds it.
// A test cannot handle the error of a helper, so a helper panics with advice.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod at_least_once;
mod child;
pub mod denied_table;
pub mod engines;
pub mod function;
pub mod history;
pub mod left_out;
pub mod legacy;
mod ministack;
pub mod proxy;
mod receiver;
mod recorded_source;
pub mod redis;
pub mod runtime_api;
pub mod usage;

pub use at_least_once::AtLeastOnce;
pub use child::dying_with_this_thread;
pub use denied_table::DeniedTable;
pub use engines::{
    EngineKind, RunningEngine, are_units_reported, engines_under_test, is_redis_under_test,
    on_every_engine,
};
pub use function::FunctionProcess;
pub use left_out::LeaveOut;
pub use ministack::engine;
pub use proxy::{Call, Cut, Fault, Proxy, Units, Wire};
pub use receiver::{Mood, Received, Receiver};
pub use recorded_source::RecordedSource;
pub use redis::{RedisCluster, RedisServer};
pub use runtime_api::{InvocationResult, RuntimeApi};
