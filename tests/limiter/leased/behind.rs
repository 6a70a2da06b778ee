//! Write-behind: measures how much more than the bucket's balance is admitted, against the bound.

use std::time::Duration;

use sluicegate::types::Wait;
use sluicegate::{AcquireError, LeaseMode, Limit};
use tokio::time::Instant;

use super::strict::{Crowd, admitted, at_most};
use super::{Counted, SECOND, consumed, limiter};

#[tokio::test(start_paused = true)]
async fn never_more_than_the_threshold_of_each_process_is_admitted_too_much() {
    for (processes, threshold) in [(2, 50), (4, 500)] {
        let table = Counted::new(4);
        let start = Instant::now();
        let mode = LeaseMode::WriteBehind { threshold };
        let mut crowd = Crowd::start(&table, processes, 4_000, mode);
        let bound = i64::from(processes * threshold);
        let mut worst = i64::MIN;
        let over = |crowd: &Crowd| {
            let (admitted, most) = (admitted(&crowd.processes), at_most(start));
            i64::try_from(admitted).unwrap() - i64::try_from(most).unwrap()
        };
        for _ in 0..1_000 {
            tokio::time::sleep(Duration::from_millis(10)).await;
            worst = worst.max(over(&crowd));
        }
        crowd.stop().await;
        worst = worst.max(over(&crowd));
        for process in &crowd.processes {
            let report = process.limiter.shutdown(SECOND).await;
            assert!(report.unsettled.is_empty(), "{report:?}");
        }
        let admitted = admitted(&crowd.processes);
        println!("{processes} processes, threshold {threshold}: {worst} over, bound {bound}");
        assert!(worst <= bound, "{worst} of {bound}");
        // No tokens are lost, and everything is debited in the end.
        assert!(admitted * 100 >= at_most(start) * 98, "{admitted} of {}", at_most(start));
        assert_eq!(consumed(&table, "u0").await, i64::try_from(admitted).unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn a_thousand_requests_cost_a_write_for_every_fifty() {
    let table = Counted::new(4);
    let limiter = limiter(&table, LeaseMode::WriteBehind { threshold: 50 });
    let limits = [Limit::per_hour("rps", 1_000)];
    let ask = |entity: &'static str| {
        limiter.acquire(entity, "r").consume("rps", 1).limits(limits.clone()).no_cascade()
    };
    for _ in 0..1_000 {
        ask("u0").await.unwrap();
    }
    let refused = ask("u0").await.unwrap_err();
    let AcquireError::LimitExceeded(refused) = refused else { panic!("{refused:?}") };
    // One token in 3.6 s.
    let wait = refused.retry_after.unwrap();
    assert!(wait <= Duration::from_millis(3_600) && wait > Duration::from_secs(3), "{wait:?}");
    assert!(table.writes() <= 21, "{} writes", table.writes());
    ask("u1").await.unwrap();
    assert_eq!(consumed(&table, "u1").await, 0);
    assert!(limiter.shutdown(SECOND).await.unsettled.is_empty());
    assert_eq!((consumed(&table, "u0").await, consumed(&table, "u1").await), (1_000, 1));
}

#[tokio::test(start_paused = true)]
async fn old_use_is_committed_though_the_bucket_is_busy() {
    let table = Counted::new(4);
    let limiter = limiter(&table, LeaseMode::WriteBehind { threshold: 1_000_000 });
    for second in 1..=5_u32 {
        for _ in 0..100 {
            let limits = [Limit::per_second("rps", 10_000_000)];
            limiter.acquire("u0", "r").consume("rps", 1).limits(limits).no_cascade().await.unwrap();
            tokio::time::sleep(SECOND / 100).await;
        }
        let told = consumed(&table, "u0").await;
        assert!(told >= 100 * i64::from(second - 1), "{told} after {second} s");
    }
    assert!(table.writes() <= 15, "{} writes", table.writes());
}

#[tokio::test(start_paused = true)]
async fn write_behind_peek_knows_what_is_not_debited_yet() {
    let table = Counted::new(4);
    let limiter = limiter(&table, LeaseMode::WriteBehind { threshold: 50 });
    let limits = [Limit::per_hour("rps", 1_000)];
    let ask = |tokens| {
        let request = limiter.acquire("u0", "r").consume("rps", tokens);
        request.limits(limits.clone()).no_cascade()
    };
    let available = async |tokens| {
        let limits = ask(tokens).peek().await.unwrap();
        (limits[0].available.get() / 1_000, limits[0].wait)
    };
    for asked in 1..=200 {
        ask(1).await.unwrap();
        // While a commit is in flight its result is unknown. The second read is after it.
        let mut more = i64::MAX;
        for _ in 0..2 {
            tokio::time::sleep(SECOND / 50).await;
            more = available(1).await.0 - (1_000 - asked);
            if (0..=2).contains(&more) {
                break;
            }
        }
        assert!((0..=2).contains(&more), "{more} more than there is, or refilled");
    }
    assert!(consumed(&table, "u0").await < 200, "some of it is not debited");
    assert_eq!(available(800).await.1, Wait::None);
    // One token in 3.6 s.
    let Wait::Millis(wait) = available(805).await.1 else { panic!("it is not available") };
    assert!((3_600 * 2..=3_600 * 5).contains(&wait), "{wait} ms");
}
