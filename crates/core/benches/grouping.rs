//! From the bytes of a Lambda event to the updates of windows, beside parsing the same bytes to a tree.
#![allow(missing_docs, clippy::expect_used, reason = "a benchmark")]

mod support;

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

fn grouping(c: &mut Criterion) {
    let mut group = c.benchmark_group("event of 1000 records");
    for limits in [2, 10] {
        let event = support::event(limits);
        assert_eq!(support::to_updates(&event).len(), 100);
        group.throughput(Throughput::ElementsAndBytes {
            elements: 1_000,
            bytes: event.len() as u64,
        });
        group.bench_with_input(BenchmarkId::new("to_updates", limits), &event, |b, event| {
            b.iter_with_large_drop(|| support::to_updates(black_box(event)));
        });
        group.bench_with_input(BenchmarkId::new("serde_json_value", limits), &event, |b, event| {
            b.iter_with_large_drop(|| support::to_value(black_box(event)));
        });
    }
    group.finish();
}

criterion_group!(benches, grouping);
criterion_main!(benches);
