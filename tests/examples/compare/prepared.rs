//! This project deciding in the process: a request that is prepared once, on tokens that a leasing
//! limiter holds. The store behind it is a table in memory.

use std::collections::BTreeMap;

use sluicegate::{LeaseSettings, Limiter, MemoryStore};
use tokio::runtime::Runtime;

use crate::VERSION;
use crate::ours;
use crate::protocol::{Decision, in_threads, serve};

const KEY: &str = "key-0";

pub(crate) fn compete(runtime: &Runtime) {
    let limiter = Limiter::builder(MemoryStore::new()).leasing(LeaseSettings::default()).build();
    let mut calls = BTreeMap::new();
    serve(VERSION, |order| {
        let call = calls.entry(order.limits.clone()).or_insert_with(|| {
            let limits = ours::limits(&order.limits);
            let mut request = limiter.acquire(KEY, "api").no_cascade();
            for limit in &limits {
                request = request.consume(limit.name(), 1);
            }
            runtime.block_on(request.limits(limits).prepare()).unwrap()
        });
        let call = &*call;
        // A task of the caller's runtime leases tokens ahead.
        let enter = || runtime.enter();
        // One key is the request's own, as one key has a limiter of its own elsewhere.
        let is_own = order.keys == [KEY];
        in_threads(order, enter, |key| {
            let held = if is_own { call.try_acquire() } else { call.try_acquire_for(key) };
            match held {
                Some(_) => Decision::Admitted,
                // Not held: the store decides.
                None => ours::decision(runtime.block_on(call.acquire_for(key))),
            }
        })
    });
}
