//! Compares a decision made in the process with governor's and a bare atomic, in one run.
//!
//! One and two threads, one key and ten thousand (zipf); requests prepared, and by names. Each
//! iteration is a decision of one thread: with two threads, the time is that of one of them.
#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark")]

use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use governor::{Quota, RateLimiter};
use sluicegate::leasing::Prepared;
use sluicegate::{AcquireRequest, LeaseSettings, Limit, LimitSet, Limiter, MemoryStore};

const KEYS: usize = 10_000;
const PICKS: usize = 1 << 16;

type Call = Prepared;

/// Runs on so many threads at once, each `iterations` times; returns the mean time of a thread. A
/// step returns true if it was admitted.
fn on(threads: usize, iterations: u64, step: impl Fn(usize) -> bool + Sync) -> Duration {
    let runtime = tokio::runtime::Handle::current();
    let results: Vec<(Duration, u64)> = std::thread::scope(|scope| {
        let each = |thread: usize| {
            let (step, runtime) = (&step, runtime.clone());
            scope.spawn(move || {
                // A task of the caller's runtime leases tokens ahead.
                let _entered = runtime.enter();
                let mut missed = 0;
                let start = Instant::now();
                for n in 0..usize::try_from(iterations).unwrap() {
                    missed += u64::from(!step(thread * 7_919 + n));
                }
                (start.elapsed(), missed)
            })
        };
        let running: Vec<_> = (0..threads).map(each).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let missed: u64 = results.iter().map(|(_, missed)| missed).sum();
    assert!(missed * 100 <= iterations + 1_000, "{missed} of {iterations} were not decided here");
    results.iter().map(|(time, _)| *time).sum::<Duration>() / u32::try_from(threads).unwrap()
}

/// Keys by a zipf distribution with exponent 1, drawn ahead.
fn picks() -> Vec<String> {
    fastrand::seed(1);
    let sums: Vec<f64> = (1..=u32::try_from(KEYS).unwrap())
        .scan(0.0, |sum, n| {
            *sum += 1.0 / f64::from(n);
            Some(*sum)
        })
        .collect();
    let pick = |_| {
        let at = fastrand::f64() * sums[KEYS - 1];
        format!("user-{:05}", sums.partition_point(|sum| *sum < at))
    };
    (0..PICKS).map(pick).collect()
}

/// A limiter that always admits a request for so many limits, and their names.
fn ample(limits: usize) -> (Limiter, Vec<String>) {
    // Leases of four billion requests, so that only the decision is measured, on all cores.
    let (requests, max_age) = (4_000_000_000, Duration::from_secs(3_600));
    let settings = LeaseSettings {
        min_requests: requests,
        max_requests: requests,
        max_age,
        ..Default::default()
    };
    let store = MemoryStore::new();
    let names: Vec<_> = (0..limits).map(|n| format!("limit-{n}")).collect();
    let limits = names.iter().map(|name| Limit::per_second(name, 1_000_000_000_000));
    let limits = LimitSet::new(limits).unwrap();
    (Limiter::builder(store).leasing(settings).default_limits(limits).build(), names)
}

fn request<'a>(limiter: &'a Limiter, names: &[String]) -> AcquireRequest<&'a Limiter> {
    let request = limiter.acquire("user-00000", "r");
    names.iter().fold(request, |request, name| request.consume_milli(name, 1))
}

/// A request that is always admitted, of so many limits.
async fn call(limits: usize) -> Call {
    let (limiter, names) = ample(limits);
    request(&limiter, &names).no_cascade().prepare().await.unwrap()
}

/// Asks until tokens are held.
async fn warm(call: &Call, entity: &str) {
    while call.try_acquire_for(entity).is_none() {
        drop(call.acquire_for(entity).await.unwrap());
    }
}

fn decisions(c: &mut Criterion) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let _entered = runtime.enter();
    let picks = picks();
    let quota = Quota::per_second(NonZeroU32::new(1_000_000_000).unwrap());
    for threads in [1, 2] {
        let mut group = c.benchmark_group(format!("{threads} threads"));
        let atomic = AtomicI64::new(i64::MAX);
        group.bench_function("one key: bare atomic", |b| {
            b.iter_custom(|n| {
                on(threads, n, |_| black_box(atomic.fetch_sub(1, Ordering::AcqRel)) > 0)
            });
        });
        let direct = RateLimiter::direct(quota);
        group.bench_function("one key: governor, direct", |b| {
            b.iter_custom(|n| on(threads, n, |_| black_box(direct.check()).is_ok()));
        });
        for limits in [1, 2] {
            let call = runtime.block_on(async {
                let call = call(limits).await;
                warm(&call, "user-00000").await;
                call
            });
            group.bench_function(format!("one key: leased, {limits} limits"), |b| {
                b.iter_custom(|n| on(threads, n, |_| black_box(call.try_acquire()).is_some()));
            });
        }
        let (limiter, names) = ample(2);
        let by_names = || request(&limiter, &names);
        runtime.block_on(async {
            while by_names().try_acquire().unwrap().is_none() {
                drop(by_names().await.unwrap());
            }
        });
        group.bench_function("one key: leased, by names, 2 limits", |b| {
            b.iter_custom(|n| on(threads, n, |_| by_names().try_acquire().unwrap().is_some()));
        });
        let keyed = RateLimiter::keyed(quota);
        group.bench_function("10,000 keys: governor, keyed", |b| {
            b.iter_custom(|n| {
                on(threads, n, |at| black_box(keyed.check_key(&picks[at % PICKS])).is_ok())
            });
        });
        let call = runtime.block_on(async {
            let call = call(1).await;
            for n in 0..KEYS {
                warm(&call, &format!("user-{n:05}")).await;
            }
            call
        });
        group.bench_function("10,000 keys: leased", |b| {
            b.iter_custom(|n| {
                on(threads, n, |at| black_box(call.try_acquire_for(&picks[at % PICKS])).is_some())
            });
        });
        group.finish();
    }
}

criterion_group!(benches, decisions);
criterion_main!(benches);
