//! Instructions from the bytes of a Lambda event to the updates of windows: the same on a busy machine.
//! Needs valgrind and `gungraun-runner`; `cargo xtask bench` sees to the latter.
#![allow(missing_docs, clippy::expect_used, reason = "a benchmark")]

mod support;

use std::hint::black_box;

use gungraun::prelude::*;

#[library_benchmark]
#[bench::two_limits(support::event(2))]
#[bench::ten_limits(support::event(10))]
fn to_updates(event: Vec<u8>) -> usize {
    black_box(support::to_updates(black_box(&event))).len()
}

#[library_benchmark]
#[bench::two_limits(support::event(2))]
#[bench::ten_limits(support::event(10))]
fn serde_json_value(event: Vec<u8>) -> serde_json::Value {
    black_box(support::to_value(black_box(&event)))
}

library_benchmark_group!(name = event_of_1000_records, benchmarks = [to_updates, serde_json_value]);
main!(library_benchmark_groups = event_of_1000_records);
