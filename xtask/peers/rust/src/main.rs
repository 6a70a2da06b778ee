//! governor and limitador as contestants of `cargo xtask compare`: `sluicegate-peers governor`,
//! `sluicegate-peers limitador`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::num::NonZeroU32;
use std::time::Duration;

use governor::{Quota, RateLimiter};
use limitador::limit::Context;

use self::protocol::{Decision, Limit, Order, in_threads, serve};

#[path = "../../../../tests/examples/compare/protocol.rs"]
mod protocol;

/// Counters that limitador keeps; more than any order has keys.
const COUNTERS: u64 = 100_000;

fn main() {
    let name = std::env::args().nth(1).unwrap_or_default();
    match name.as_str() {
        "governor" => governor(),
        "limitador" => limitador(),
        _ => panic!("usage: sluicegate-peers governor|limitador"),
    }
}

fn decision(is_admitted: bool) -> Decision {
    if is_admitted { Decision::Admitted } else { Decision::Refused }
}

/// Its documentation has one limiter for one rule, keyed or not.
fn governor() {
    let mut limiters = BTreeMap::new();
    // The version is that of Cargo.lock, which the task reads.
    serve("", |order| {
        let [limit] = order.limits.as_slice() else {
            return in_threads(
                order,
                || (),
                |_| Decision::Failed("one limit a limiter".to_owned()),
            );
        };
        let (direct, keyed) = limiters.entry(limit.clone()).or_insert_with(|| {
            (RateLimiter::direct(quota(limit)), RateLimiter::keyed(quota(limit)))
        });
        if is_one_key(order) {
            in_threads(order, || (), |_| decision(direct.check().is_ok()))
        } else {
            in_threads(order, || (), |key| decision(keyed.check_key(key).is_ok()))
        }
    });
}

/// True if the order is a slice on one key.
fn is_one_key(order: &Order) -> bool {
    order.keys == ["key-0"]
}

fn quota(limit: &Limit) -> Quota {
    let period = Duration::from_secs(limit.seconds.into()) / limit.tokens;
    let burst = NonZeroU32::new(limit.tokens).expect("a limit of some tokens");
    Quota::with_period(period).expect("a limit that refills").allow_burst(burst)
}

/// Limits of a namespace apply together, to a counter for each user. One key needs no users.
fn limitador() {
    let limiter = limitador::RateLimiter::new(COUNTERS);
    let mut with_second = BTreeSet::new();
    serve("", |order| {
        let namespace = namespace(order);
        let asks_second = order.limits.len() > 1;
        if asks_second {
            with_second.insert(namespace.clone());
        }
        let has_second = with_second.contains(&namespace);
        for (place, limit) in order.limits.iter().enumerate() {
            // The second one applies to those requests that ask for it.
            let name = &limit.name;
            let condition = (place > 0).then(|| "second == 'yes'".try_into());
            let condition = condition.transpose().expect("a condition");
            let user = (!is_one_key(order)).then(|| "user".try_into()).transpose();
            let (tokens, seconds) = (limit.tokens.into(), limit.seconds.into());
            limiter.add_limit(limitador::limit::Limit::with_id(
                name.as_str(),
                namespace.as_str(),
                tokens,
                seconds,
                condition,
                user.expect("a variable"),
            ));
        }
        let namespace = namespace.as_str().into();
        in_threads(
            order,
            || (),
            |key| {
                let mut values = HashMap::from([("user".to_owned(), key.clone())]);
                if has_second {
                    let asked = if asks_second { "yes" } else { "no" };
                    values.insert("second".to_owned(), asked.to_owned());
                }
                let context: Context = values.into();
                match limiter.check_rate_limited_and_update(&namespace, &context, 1) {
                    Ok(answer) => decision(!answer.limited),
                    Err(error) => Decision::Failed(error.to_string()),
                }
            },
        )
    });
}

fn namespace(order: &Order) -> String {
    let first = &order.limits[0];
    let users = if is_one_key(order) { "one" } else { "many" };
    format!("{users} {}={}/{}", first.name, first.tokens, first.seconds)
}
