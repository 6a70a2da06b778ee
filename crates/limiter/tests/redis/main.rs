//! The store on a real Redis: its arithmetic, its keys, and its reactions to server failures. Run
//! by `cargo xtask test`, which starts a server.
#![allow(clippy::unwrap_used, reason = "tests panic")]

mod arithmetic;
mod cluster;
mod keys;
mod leased;
mod lost;
mod server;
mod together;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::str::FromStr;

use redis::cmd;
use sluicegate::redis::RedisStore;
use sluicegate::settings::BreakerConfig;
use sluicegate::types::{EpochMillis, LimitName, Millitokens};
use sluicegate::{EntityId, Limiter, LimiterBuilder, OnUnavailable, TestClock};
use sluicegate_testkit::RedisServer;

const T0: i64 = 1_769_608_800_000;

fn at(millis: i64) -> EpochMillis {
    EpochMillis::new(millis).unwrap()
}

fn milli(amount: i64) -> Millitokens {
    Millitokens::new(amount).unwrap()
}

fn name(limit: &str) -> LimitName {
    LimitName::new(limit).unwrap()
}

fn entity(id: &str) -> EntityId {
    EntityId::new(id).unwrap()
}

fn limiter(server: &RedisServer, clock: &TestClock) -> Limiter {
    on(RedisStore::new(server.url()).unwrap(), clock)
}

fn on(store: RedisStore, clock: &TestClock) -> Limiter {
    builder(store, clock).build()
}

fn builder(store: RedisStore, clock: &TestClock) -> LimiterBuilder<RedisStore> {
    Limiter::builder(store)
        .clock(clock.clone())
        .deadline(std::time::Duration::from_secs(20))
        .on_unavailable(OnUnavailable::Deny)
        .breaker(BreakerConfig::never())
}

/// The output of `show.lua` for a bucket.
async fn shown(server: &RedisServer, key: &str) -> BTreeMap<String, String> {
    const SHOW: &str = include_str!("../../src/redis/lua/show.lua");
    server.send(cmd("EVAL").arg(SHOW).arg(1).arg(key)).await
}

/// One line of it.
async fn field<T: FromStr<Err: Debug>>(server: &RedisServer, key: &str, field: &str) -> T {
    shown(server, key).await[field].parse().unwrap()
}
