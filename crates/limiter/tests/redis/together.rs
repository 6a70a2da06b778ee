//! Requests that wait while a call is in flight: they are sent as one, and each is decided as if
//! alone.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, FutureExt as _, join_all};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use redis::cmd;
use sluicegate::redis::RedisStore;
use sluicegate::types::EpochMillis;
use sluicegate::{AcquireError, Clock, Limit, Limiter, OnUnavailable, SystemClock, TestClock};
use sluicegate_testkit::{Cut, RedisServer, Wire};
use tokio::task::JoinHandle;

use super::{T0, at, field, on};

const KEY: &str = "sluicegate:{u}#r";
const CASES: u32 = 64;
const PARENT: &str = "top";

const LONG: Duration = Duration::from_secs(20);

/// The number of scripts that a server ran so far.
async fn scripts(server: &RedisServer) -> u64 {
    let info: String = server.send(cmd("INFO").arg("commandstats")).await;
    let line = info.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    line.map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
}

/// Requests of one process for tokens of two limits, all at the same time.
#[derive(Debug, Clone)]
struct Rush {
    /// The tokens of the buckets, and those of each request.
    left: [u32; 2],
    asked: Vec<[u32; 2]>,
    has_parent: bool,
}

fn rush() -> impl Strategy<Value = Rush> {
    let left = (1..60_u32, 1..60_u32).prop_map(<[u32; 2]>::from);
    let asked = (1..12_u32, 1..12_u32).prop_map(<[u32; 2]>::from);
    (left, vec(asked, 1..16), any::<bool>()).prop_map(|(left, asked, has_parent)| Rush {
        left,
        asked,
        has_parent,
    })
}

impl Rush {
    fn ask<'a>(
        &'a self,
        limiter: &'a Limiter,
        entity: &str,
        [a, b]: [u32; 2],
    ) -> impl Future<Output = bool> + 'a {
        // The parent has more of one limit and less of the other.
        let limits =
            |[a, b]: [u32; 2]| [Limit::per_day("a", a.into()), Limit::quota("b", b.into())];
        let request = limiter.acquire(entity, "r").consume("a", a.into()).consume("b", b.into());
        let request = request.limits(limits(self.left));
        let request = match self.has_parent {
            true => {
                let parent = format!("{entity}-{PARENT}");
                let parents = limits([self.left[0] / 2 + 1, self.left[1] * 2]);
                request.cascade_to(parent).parent_limits(parents)
            }
            false => request.no_cascade(),
        };
        async move {
            match request.await {
                Ok(_) => true,
                Err(AcquireError::LimitExceeded(_) | AcquireError::NeverAdmissible(_)) => false,
                Err(other) => panic!("{other:?}"),
            }
        }
    }
}

#[test]
#[ignore = "needs Redis: cargo xtask test"]
fn requests_that_go_together_come_to_what_they_come_to_one_after_the_other() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = runtime.block_on(RedisServer::start());
    let (case, counts) = (Cell::new(0), Cell::new((0, 0)));
    let mut runner =
        TestRunner::new(Config { cases: CASES, failure_persistence: None, ..Config::default() });
    let run = |rush: Rush| {
        case.set(case.get() + 1);
        let entity = format!("u{}", case.get());
        let limiter = |prefix: &str| {
            let store = RedisStore::new(server.url()).unwrap().prefix(prefix);
            on(store, &TestClock::at(at(T0)))
        };
        runtime.block_on(async {
            let (one, all) = (limiter("one:"), limiter("all:"));
            let mut expected = Vec::new();
            for asked in &rush.asked {
                expected.push(rush.ask(&one, &entity, *asked).await);
            }
            let before = scripts(&server).await;
            let granted = rush.asked.iter().map(|asked| rush.ask(&all, &entity, *asked));
            let granted = join_all(granted).await;
            let (sent, asked) = counts.get();
            let now = scripts(&server).await;
            counts.set((sent + now - before, asked + rush.asked.len()));
            prop_assert_eq!(granted, expected);
            for entity in [entity.clone(), format!("{entity}-{PARENT}")] {
                let stands = async |limiter: &Limiter| {
                    let limits = limiter.peek(&entity, "r").await.unwrap();
                    limits.into_iter().map(|l| (l.available, l.consumed)).collect::<Vec<_>>()
                };
                prop_assert_eq!(stands(&one).await, stands(&all).await);
            }
            Ok(())
        })
    };
    runner.run(&rush(), run).unwrap();
    let (sent, asked) = counts.get();
    assert!(sent * 2 < u64::try_from(asked).unwrap(), "{sent} scripts for {asked} requests");
}

struct Together {
    server: RedisServer,
    wire: Wire,
    limiter: Limiter,
}

impl Together {
    async fn start() -> Self {
        let server = RedisServer::start().await;
        let wire = Wire::start(server.address()).await;
        let store = RedisStore::new(format!("redis://{}/", wire.address())).unwrap();
        let limiter = on(store, &TestClock::at(at(T0)));
        let together = Self { server, wire, limiter };
        // Connected, and the script is known.
        together.ask(LONG, 1).await.unwrap();
        together
    }

    fn ask(
        &self,
        deadline: Duration,
        tokens: i64,
    ) -> impl Future<Output = Result<u32, AcquireError>> + Send + use<> {
        let limiter = self.limiter.clone();
        async move {
            let request = limiter.acquire("u", "r").consume("l", tokens);
            let lease = request.limits([Limit::quota("l", 100)]);
            let lease = lease.no_cascade().deadline(deadline).await?;
            Ok(lease.cost().attempts)
        }
    }

    async fn left(&self) -> i64 {
        field::<i64>(&self.server, KEY, "tokens:l").await / 1_000
    }

    /// Waits until the bucket has so many tokens.
    async fn until_left(&self, tokens: i64) {
        let start = Instant::now();
        while self.left().await != tokens {
            assert!(start.elapsed() < Duration::from_secs(10), "{} left", self.left().await);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Puts requests in flight as one call that is not answered: the first asks for one token with
    /// this deadline, the others for 2, 3 and 4 tokens.
    async fn in_flight(&self, deadline: Duration) -> Vec<JoinHandle<Result<u32, AcquireError>>> {
        let first = self.ask(LONG, 1);
        let mut asked = vec![self.ask(deadline, 1)];
        asked.extend((2..=4).map(|tokens| self.ask(LONG, tokens)));
        let tasks = asked.into_iter().map(tokio::spawn);
        // The tasks start while the first call is in flight, and continue after it.
        let (first, tasks) = tokio::join!(
            async {
                let answered = first.await;
                self.wire.silence();
                answered
            },
            async { tasks.collect::<Vec<_>>() }
        );
        first.unwrap();
        self.until_left(88).await;
        tasks
    }
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test"]
async fn requests_wait_for_one_call_at_most() {
    let on = Together::start().await;
    let before = scripts(&on.server).await;
    let asked = (0..50).map(|_| on.ask(LONG, 1));
    assert!(join_all(asked).await.iter().all(|result| matches!(result, Ok(1))));
    assert_eq!((scripts(&on.server).await - before, on.left().await), (1, 49));
    // One call refuses all waiting requests.
    let asked = (0..50).map(|_| on.ask(LONG, 50));
    let before = scripts(&on.server).await;
    assert!(join_all(asked).await.iter().all(Result::is_err));
    assert_eq!(scripts(&on.server).await - before, 1);
}

/// Tokens accrue while calls are in flight. A request that was refused must not wait for them:
/// others come meanwhile, so that more and more would wait, until all of them fail as in an outage.
#[tokio::test]
#[ignore = "needs Redis: cargo xtask test"]
async fn requests_behind_those_that_fit_are_refused_with_the_next_answer() {
    /// A clock that goes on by a millisecond each time it is read.
    #[derive(Debug)]
    struct Ticking(Arc<AtomicI64>);

    impl Clock for Ticking {
        fn now(&self) -> EpochMillis {
            at(self.0.fetch_add(1, Ordering::Relaxed))
        }

        fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
            SystemClock.sleep(duration)
        }

        fn share(&self) -> Arc<dyn Clock> {
            Arc::new(Self(Arc::clone(&self.0)))
        }
    }

    let server = RedisServer::start().await;
    let clock = Ticking(Arc::new(AtomicI64::new(T0)));
    let limiter = Limiter::builder(RedisStore::new(server.url()).unwrap())
        .clock(clock)
        .on_unavailable(OnUnavailable::Deny)
        .build();
    // A millisecond brings ten tokens.
    let limit = Limit::per_second("l", 10_000).burst(100);
    let ask = |tokens| {
        let request = limiter.acquire("u", "r").consume("l", tokens).limits([limit.clone()]);
        request.no_cascade().deadline(LONG).into_future()
    };
    ask(100).await.unwrap();
    let before = scripts(&server).await;
    let answers = join_all((0..60).map(|_| ask(10))).await;
    let granted = answers.iter().filter(|answer| answer.is_ok()).count();
    assert!((1..20).contains(&granted), "{granted}");
    for answer in answers {
        match answer {
            Ok(_) => {}
            Err(AcquireError::LimitExceeded(exceeded)) => {
                assert!(exceeded.limits[0].is_violated() && exceeded.retry_after.is_some());
            }
            Err(other) => panic!("{other:?}"),
        }
    }
    let sent = scripts(&server).await - before;
    assert!(sent < 8, "{sent} scripts");
}

/// A caller that has left holds nobody up, although it came first.
#[tokio::test]
#[ignore = "needs Redis: cargo xtask test"]
async fn requests_behind_one_that_left_are_granted() {
    let on = Together::start().await;
    on.ask(LONG, 88).await.unwrap();
    let before = scripts(&on.server).await;
    let (left, tasks) = tokio::join!(
        async {
            on.ask(LONG, 1).await.unwrap();
            on.wire.silence();
            on.left().await
        },
        async { [8, 8, 1].map(|tokens| tokio::spawn(on.ask(LONG, tokens))) }
    );
    assert_eq!(left, 10);
    while scripts(&on.server).await < before + 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let [first, second, third] = tasks;
    first.abort();
    assert!(first.await.is_err());
    on.wire.open();
    second.await.unwrap().unwrap();
    third.await.unwrap().unwrap();
    assert_eq!(on.left().await, 1);
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test"]
async fn a_shared_call_that_was_lost_is_done_once() {
    let on = Together::start().await;
    for (cut, left) in [(Cut::Request, 89), (Cut::Answer, 79)] {
        on.wire.cut_next(cut);
        let answers = join_all((0..10).map(|_| on.ask(LONG, 1))).await;
        assert!(answers.iter().all(|attempts| matches!(attempts, Ok(2))), "{cut:?} {answers:?}");
        assert_eq!(on.left().await, left, "{cut:?}");
    }
    assert_eq!(on.limiter.counters().ambiguous.get(), 0);
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test"]
async fn a_caller_dropped_in_flight_gives_its_share_back() {
    // The first, another, both, and all of them.
    for dropped in [vec![0], vec![2], vec![0, 1], vec![0, 1, 2, 3]] {
        let on = Together::start().await;
        let tasks = on.in_flight(LONG).await;
        let mut left = 88;
        for n in dropped.iter().copied() {
            tasks[n].abort();
            left += [1, 2, 3, 4][n];
        }
        on.wire.open();
        for (n, task) in tasks.into_iter().enumerate() {
            assert_eq!(task.await.is_ok_and(|answer| answer.is_ok()), !dropped.contains(&n));
        }
        on.until_left(left).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(on.left().await, left, "{dropped:?}");
        assert_eq!(on.limiter.counters().ambiguous.get(), 0);
    }
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test"]
async fn a_caller_out_of_time_leaves_its_call_to_the_others() {
    let on = Together::start().await;
    let mut tasks = on.in_flight(Duration::from_millis(150)).await.into_iter();
    let error = tasks.next().unwrap().await.unwrap().unwrap_err();
    assert!(matches!(error, AcquireError::Unavailable(_)), "{error:?}");
    on.wire.open();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    on.until_left(89).await;
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test"]
async fn a_caller_that_is_not_polled_holds_nobody_up() {
    let on = Together::start().await;
    let mut first = Box::pin(on.ask(LONG, 1));
    assert!((&mut first).now_or_never().is_none());
    let [mut second, mut third] = [2, 3].map(|tokens| Box::pin(on.ask(LONG, tokens)));
    assert!((&mut second).now_or_never().is_none());
    assert!((&mut third).now_or_never().is_none());
    first.await.unwrap();
    let polled = (&mut second).now_or_never();
    let start = Instant::now();
    third.await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(5));
    // A request that is dropped while it waits took nothing.
    let mut waiting = Box::pin(on.ask(LONG, 5));
    assert!((&mut waiting).now_or_never().is_none());
    drop(waiting);
    match polled {
        Some(answer) => answer.unwrap(),
        None => second.await.unwrap(),
    };
    on.ask(LONG, 1).await.unwrap();
    assert_eq!(on.left().await, 92);
}

/// A driver may be in a runtime that nobody runs any more.
#[tokio::test]
#[ignore = "needs Redis: cargo xtask test"]
async fn a_driver_that_is_not_polled_holds_nobody_up() {
    let on = Together::start().await;
    let ask = on.ask(LONG, 1);
    let idle = tokio::task::spawn_blocking(move || {
        let idle = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        idle.block_on(ask).unwrap();
        idle
    });
    let idle = idle.await.unwrap();
    let start = Instant::now();
    on.ask(LONG, 2).await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(5));
    idle.shutdown_background();
    assert_eq!(on.left().await, 96);
}

/// The runtime of the driver ends while another request waits for it.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: cargo xtask test"]
async fn a_driver_whose_runtime_ends_fails_its_callers_at_once() {
    let on = Together::start().await;
    let mut left = on.left().await;
    for _ in 0..20 {
        let first = on.ask(LONG, 1);
        let ended = tokio::task::spawn_blocking(move || {
            let ended = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            ended.block_on(first).unwrap();
            ended
        });
        let ended = ended.await.unwrap();
        let mut waiting = Box::pin(on.ask(LONG, 2));
        assert!((&mut waiting).now_or_never().is_none());
        ended.shutdown_background();
        match waiting.await {
            Err(AcquireError::Unavailable(_)) => {
                on.ask(LONG, 3).await.unwrap();
                assert_eq!(on.left().await, left - 1 - 3);
                return;
            }
            // On a busy machine, it lost its patience before the runtime ended, and went itself.
            answer => answer.unwrap(),
        };
        left -= 1 + 2;
    }
    panic!("each of the requests was granted");
}

/// Other writes push the id of the call out of the bucket before its answer comes. The call must
/// not be sent again.
#[tokio::test]
#[ignore = "needs Redis: cargo xtask test"]
async fn a_caller_dropped_in_flight_on_a_busy_bucket_gives_back_what_it_took() {
    for dropped in [vec![0], vec![0, 1, 2, 3]] {
        let on = Together::start().await;
        let tasks = on.in_flight(LONG).await;
        let store = RedisStore::new(on.server.url()).unwrap();
        let others = self::on(store, &TestClock::at(at(T0)));
        for _ in 0..8 {
            let ask = others.acquire("u", "r").consume("l", 1).limits([Limit::quota("l", 100)]);
            ask.no_cascade().await.unwrap();
        }
        dropped.iter().for_each(|n| tasks[*n].abort());
        on.wire.open();
        for (n, task) in tasks.into_iter().enumerate() {
            assert_eq!(task.await.is_ok_and(|answer| answer.is_ok()), !dropped.contains(&n));
        }
        let given_back: i64 = dropped.iter().map(|n| [1, 2, 3, 4][*n]).sum();
        on.until_left(80 + given_back).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(on.left().await, 80 + given_back, "{dropped:?}");
        assert_eq!(on.limiter.counters().ambiguous.get(), 0);
    }
}

/// The process has no processor time until after the deadline. The answer has come, but nobody has
/// read it: this is no outage.
#[tokio::test]
#[ignore = "needs Redis: cargo xtask test"]
async fn an_answer_that_came_before_the_deadline_counts() {
    let on = Together::start().await;
    for count in [1, 4] {
        let left = on.left().await - count;
        on.wire.silence();
        let ask = || Box::pin(on.ask(Duration::from_millis(300), 1));
        let mut asked: Vec<_> = (0..count).map(|_| ask()).collect();
        for ask in &mut asked {
            assert!(ask.now_or_never().is_none());
        }
        on.until_left(left).await;
        // One that waits behind the call.
        asked.push(ask());
        assert!(asked.last_mut().unwrap().now_or_never().is_none());
        on.wire.open();
        std::thread::sleep(Duration::from_millis(400));
        let answers = join_all(asked).await;
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    }
}

/// A process is stopped while its call is in flight, and its caller leaves after it goes on. The
/// tokens go back as of now: as of then, the refill since would be earned twice.
#[tokio::test]
#[ignore = "needs Redis: cargo xtask test"]
async fn tokens_that_come_back_after_a_stop_earn_no_refill_twice() {
    let server = RedisServer::start().await;
    let wire = Wire::start(server.address()).await;
    let clock = TestClock::at(at(T0));
    let stopped = on(RedisStore::new(format!("redis://{}/", wire.address())).unwrap(), &clock);
    let other = on(RedisStore::new(server.url()).unwrap(), &clock);
    let ask = |limiter: &Limiter, tokens| {
        let limiter = limiter.clone();
        async move {
            let request = limiter.acquire("u", "r").consume("l", tokens);
            request.limits([Limit::per_minute("l", 60)]).no_cascade().await
        }
    };
    let left = async || field::<i64>(&server, KEY, "tokens:l").await / 1_000;
    ask(&stopped, 1).await.unwrap();
    wire.silence();
    let mut leaver = Box::pin(ask(&stopped, 1));
    assert!((&mut leaver).now_or_never().is_none());
    while left().await != 58 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    clock.advance(Duration::from_secs(300));
    ask(&other, 60).await.unwrap();
    drop(leaver);
    wire.open();
    while left().await != 1 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(field::<i64>(&server, KEY, "lastRefill").await, T0 + 300_000);
    let refused = ask(&other, 2).await;
    assert!(matches!(refused, Err(AcquireError::LimitExceeded(_))), "{refused:?}");
}

/// A call lasts until the last of its members has no more time. The server answers all the while,
/// so it is no outage for the first one either.
#[tokio::test]
#[ignore = "needs Redis: cargo xtask test"]
async fn a_busy_server_is_no_outage_for_any_member_of_a_call() {
    let server = RedisServer::start().await;
    let limiter = on(RedisStore::new(server.url()).unwrap(), &TestClock::at(at(T0)));
    let ask = |deadline_ms| {
        let request = limiter.acquire("u", "r").consume("l", 1).limits([Limit::quota("l", 10)]);
        request.no_cascade().deadline(Duration::from_millis(deadline_ms)).into_future()
    };
    ask(1_000).await.unwrap();
    let asked = async {
        let (long, short) = tokio::join!(ask(900), ask(300));
        for result in [long, short] {
            let error = result.unwrap_err();
            assert!(matches!(error, AcquireError::Contended { attempts: 2.. }), "{error:?}");
        }
    };
    server.while_busy(asked).await;
}
