//! What goes wrong between the limiter and the table, and that it is granted once all the same.

use std::time::{Duration, Instant};

use sluicegate::{
    AcquireError, AdjustError, BucketId, CascadeMode, Certainty, DynamoTable, Limit, Settings,
    SetupError, TestClock, WritePath,
};
use sluicegate_testkit::{Call, Fault, Proxy, RunningEngine, engines_under_test};

use crate::support::{Shared, T0, Tested, at, bucket, limiter, name, proxied, with_settings};

/// An engine, the way to it that can be disturbed, and the way behind the proxy's back.
struct Disturbed {
    engine: RunningEngine,
    proxy: Proxy,
    table: DynamoTable,
    direct: DynamoTable,
    clock: TestClock,
}

impl Disturbed {
    fn limiter(&self) -> Tested<DynamoTable> {
        limiter(self.table.clone(), &self.clock)
    }

    /// Faults for requests of one operation, the first of them being number 1.
    fn inject(
        &self,
        operation: &'static str,
        fault: impl Fn(u64) -> Fault + Send + Sync + 'static,
    ) {
        self.proxy.reset_counts();
        self.proxy.inject(move |call: &Call<'_>| {
            if call.operation == operation { fault(call.number) } else { Fault::None }
        });
    }

    fn calm(&self) {
        self.proxy.inject(|_| Fault::None);
    }

    /// Until every request that arrived has had its effect.
    async fn all_landed(&self, operation: &str) {
        while self.proxy.forwarded(operation) < self.proxy.received(operation) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Balance and counter of `rpm`, in whole tokens.
    async fn rpm(&self, entity: &str) -> (i64, i64) {
        let stored = self.direct.stored(&id(entity)).await.unwrap();
        let rpm = stored.limits[&name("rpm")];
        assert_eq!((rpm.tokens.get() % 1_000, rpm.consumed.get() % 1_000), (0, 0));
        (rpm.tokens.get() / 1_000, rpm.consumed.get() / 1_000)
    }
}

async fn on_every_engine(suite: impl AsyncFn(&Disturbed)) {
    for kind in engines_under_test() {
        let engine = RunningEngine::start(kind).await;
        let (proxy, table) = proxied(&engine).await;
        let direct = DynamoTable::new(engine.client(), table.name());
        let disturbed = Disturbed { engine, proxy, table, direct, clock: TestClock::at(at(T0)) };
        suite(&disturbed).await;
        disturbed.engine.stop().await;
    }
}

fn id(entity: &str) -> BucketId {
    bucket(entity, "r")
}

/// One token a second, 60 at once: all that the tests compute with are whole tokens.
fn rpm() -> [Limit; 1] {
    [Limit::per_minute("rpm", 60)]
}

/// Asks for 5 of `rpm`.
macro_rules! ask {
    ($limiter:expr, $entity:expr) => {
        $limiter.acquire($entity, "r").consume("rpm", 5).limits(rpm()).no_cascade()
    };
    ($limiter:expr, $entity:expr, $parent:expr) => {
        $limiter.acquire($entity, "r").consume("rpm", 5).limits(rpm()).cascade_to($parent)
    };
}

/// The first replies are lost, or the first requests arrive when they were long repeated.
const UNCERTAIN: [fn(u64) -> Fault; 3] = [
    |number| if number <= 1 { Fault::LoseReply } else { Fault::None },
    |number| if number <= 3 { Fault::LoseReply } else { Fault::None },
    |number| if number <= 2 { Fault::Late(Duration::from_millis(60)) } else { Fault::None },
];

#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_whose_answer_is_lost_is_granted_once() {
    on_every_engine(async |on| {
        for (n, fault) in UNCERTAIN.into_iter().enumerate() {
            let (entity, limiter) = (format!("u{n}"), on.limiter());
            on.inject("PutItem", fault);
            ask!(limiter, &entity).await.unwrap();
            on.all_landed("PutItem").await;
            assert_eq!(on.rpm(&entity).await, (55, 5), "create, {n}");

            on.inject("UpdateItem", fault);
            ask!(limiter, &entity).await.unwrap();
            on.all_landed("UpdateItem").await;
            assert_eq!(on.rpm(&entity).await, (50, 10), "retry, {n}");

            on.clock.advance(Duration::from_secs(2));
            on.inject("UpdateItem", fault);
            ask!(limiter, &entity).await.unwrap();
            on.all_landed("UpdateItem").await;
            assert_eq!(on.rpm(&entity).await, (47, 15), "normal, {n}");
            assert_eq!(limiter.counters().ambiguous.get(), 0);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cascade_whose_answer_is_lost_is_granted_once() {
    on_every_engine(async |on| {
        for (n, fault) in UNCERTAIN.into_iter().enumerate() {
            let (child, parent, limiter) = (format!("c{n}"), format!("p{n}"), on.limiter());
            for (step, (tokens, consumed)) in [(55, 5), (50, 10), (47, 15)].into_iter().enumerate()
            {
                if step == 2 {
                    on.clock.advance(Duration::from_secs(2));
                }
                on.inject("TransactWriteItems", fault);
                ask!(limiter, &child, &parent).await.unwrap();
                on.all_landed("TransactWriteItems").await;
                for entity in [&child, &parent] {
                    assert_eq!(on.rpm(entity).await, (tokens, consumed), "{entity}, step {step}");
                }
            }
            assert_eq!(limiter.counters().ambiguous.get(), 0);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_given_back_is_given_back_once() {
    on_every_engine(async |on| {
        for (n, fault) in UNCERTAIN.into_iter().enumerate() {
            let (entity, limiter) = (format!("u{n}"), on.limiter());
            on.calm();
            ask!(limiter, &entity).await.unwrap();
            let lease = ask!(limiter, &entity).await.unwrap();
            on.inject("UpdateItem", fault);
            lease.adjust("rpm", 7).await.unwrap();
            on.all_landed("UpdateItem").await;
            assert_eq!(on.rpm(&entity).await, (43, 17), "debit, {n}");
            on.inject("UpdateItem", fault);
            lease.adjust("rpm", -3).await.unwrap();
            on.all_landed("UpdateItem").await;
            assert_eq!(on.rpm(&entity).await, (46, 14), "refund, {n}");
            on.inject("UpdateItem", fault);
            lease.release().await.unwrap();
            on.all_landed("UpdateItem").await;
            assert_eq!(on.rpm(&entity).await, (55, 5), "release, {n}");
            assert_eq!(limiter.counters().ambiguous.get(), 0);
        }
    })
    .await;
}

/// Four others write while an answer is lost and what comes next is on its way.
async fn four_others(on: &Disturbed, entity: &str) {
    let other = limiter(on.direct.clone(), &on.clock);
    while on.proxy.forwarded("UpdateItem") < 1 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // Forwarded is not answered yet.
    tokio::time::sleep(Duration::from_millis(50)).await;
    for _ in 0..4 {
        ask!(other, entity).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refund_that_nobody_remembers_is_not_repeated() {
    on_every_engine(async |on| {
        let limiter = on.limiter();
        let lease = ask!(limiter, "u").await.unwrap();
        on.proxy.reset_counts();
        on.proxy.inject(|call| match (call.operation, call.number) {
            ("UpdateItem", 1) => Fault::LoseReply,
            ("GetItem", 1) => Fault::Delay(Duration::from_millis(600)),
            _ => Fault::None,
        });
        let (released, ()) = tokio::join!(lease.release(), four_others(on, "u"));
        assert!(matches!(released, Err(AdjustError::Ambiguous(_))), "{released:?}");
        assert_eq!(limiter.counters().ambiguous.get(), 1);
        assert_eq!(on.proxy.received("UpdateItem"), 1);
        assert_eq!(on.rpm("u").await, (40, 20), "it had been given back");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_that_nobody_remembers_is_counted() {
    on_every_engine(async |on| {
        let limiter = on.limiter();
        ask!(limiter, "u").await.unwrap();
        on.inject("UpdateItem", |number| match number {
            1 => Fault::LoseReply,
            2 => Fault::Delay(Duration::from_millis(600)),
            _ => Fault::None,
        });
        let (granted, ()) = tokio::join!(async { ask!(limiter, "u").await }, four_others(on, "u"));
        granted.unwrap();
        assert_eq!(limiter.counters().ambiguous.get(), 1);
        assert_eq!(on.rpm("u").await, (25, 35), "taken twice, the restrictive direction");
    })
    .await;
}

/// Answers that mean "in a moment": neither a refusal nor an outage.
const IN_A_MOMENT: [Fault; 3] = [Fault::CONFLICT, Fault::THROTTLED, Fault::THROTTLING];
const CANCELLED: [Fault; 4] = [
    Fault::Cancel(&["TransactionConflict", "None"]),
    Fault::Cancel(&["None", "TransactionConflict"]),
    Fault::Cancel(&["ThrottlingError", "None"]),
    Fault::Cancel(&["ProvisionedThroughputExceeded", "TransactionConflict"]),
];

#[tokio::test(flavor = "multi_thread")]
async fn what_passes_in_a_moment_is_waited_out() {
    on_every_engine(async |on| {
        for (n, fault) in IN_A_MOMENT.into_iter().enumerate() {
            let (entity, limiter) = (format!("u{n}"), on.limiter());
            let some = move |number| if number <= 5 { fault.clone() } else { Fault::None };
            on.inject("PutItem", some.clone());
            assert_eq!(ask!(limiter, &entity).await.unwrap().cost().attempts, 6);
            on.inject("UpdateItem", some.clone());
            let lease = ask!(limiter, &entity).await.unwrap();
            assert_eq!((lease.cost().attempts, lease.cost().write_units), (6, 1.0));
            on.inject("UpdateItem", some.clone());
            lease.adjust("rpm", 1).await.unwrap();
            on.inject("UpdateItem", some.clone());
            lease.release().await.unwrap();
            assert_eq!(on.rpm(&entity).await, (55, 5));
            assert_eq!(limiter.counters().ambiguous.get(), 0, "nothing was done, that is certain");
        }
        for (n, fault) in CANCELLED.into_iter().chain(IN_A_MOMENT).enumerate() {
            let (child, parent, limiter) = (format!("c{n}"), format!("p{n}"), on.limiter());
            on.inject("TransactWriteItems", move |number| {
                if number % 4 == 0 { Fault::None } else { fault.clone() }
            });
            for (tokens, consumed) in [(55, 5), (50, 10)] {
                let lease = ask!(limiter, &child, &parent).await.unwrap();
                assert_eq!(lease.cost().attempts, 4);
                for entity in [&child, &parent] {
                    assert_eq!(on.rpm(entity).await, (tokens, consumed), "{entity}");
                }
            }
        }
    })
    .await;
}

/// Longer than any call here may take; the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(20);
const DEADLINE: Duration = Duration::from_secs(1);
/// Far more than the attempts of one call take.
const AMPLE: Duration = Duration::from_secs(60);

async fn in_time<T>(call: impl Future<Output = T>) -> T {
    let start = Instant::now();
    let result = call.await;
    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
    result
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_pass_ends() {
    on_every_engine(async |on| {
        let limiter = on.limiter();
        let lease = ask!(limiter, "u").await.unwrap();
        for fault in IN_A_MOMENT {
            let always = fault.clone();
            on.inject("UpdateItem", move |_| always.clone());
            let contended = in_time(async { ask!(limiter, "u").deadline(AMPLE).await }).await;
            assert!(matches!(contended, Err(AcquireError::Contended { .. })), "{contended:?}");
            // Unavailable where the deadline cuts off a write: it may have been done.
            let cut = in_time(async { ask!(limiter, "u").deadline(DEADLINE).await }).await;
            assert!(
                matches!(cut, Err(AcquireError::Contended { .. } | AcquireError::Unavailable(_))),
                "{cut:?}"
            );
            let always = fault.clone();
            on.inject("TransactWriteItems", move |_| always.clone());
            let contended = in_time(async { ask!(limiter, "u", "p").deadline(AMPLE).await }).await;
            assert!(matches!(contended, Err(AcquireError::Contended { .. })), "{contended:?}");
            on.inject("GetItem", move |_| fault.clone());
            let cold = on.limiter();
            let contended = in_time(async { ask!(cold, "u").deadline(DEADLINE).await }).await;
            assert!(matches!(contended, Err(AcquireError::Contended { .. })), "{contended:?}");
        }
        for fault in CANCELLED {
            on.inject("TransactWriteItems", move |_| fault.clone());
            let contended = in_time(async { ask!(limiter, "u", "p").deadline(AMPLE).await }).await;
            assert!(matches!(contended, Err(AcquireError::Contended { .. })), "{contended:?}");
        }
        for fault in [Fault::Cut, Fault::INTERNAL, Fault::Delay(Duration::from_secs(60))] {
            on.proxy.inject(move |_| fault.clone());
            let away = in_time(async { ask!(limiter, "u").deadline(DEADLINE).await }).await;
            assert!(matches!(away, Err(AcquireError::Unavailable(_))), "{away:?}");
            let away = in_time(async { ask!(limiter, "u", "p").deadline(DEADLINE).await }).await;
            assert!(matches!(away, Err(AcquireError::Unavailable(_))), "{away:?}");
            let cold = on.limiter();
            let away = in_time(async { ask!(cold, "u").deadline(DEADLINE).await }).await;
            assert!(matches!(away, Err(AcquireError::Unavailable(_))), "{away:?}");
        }
        on.calm();
        lease.release().await.unwrap();
        assert_eq!(on.rpm("u").await, (60, 0), "nothing was taken by any of them");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_correction_that_cannot_be_made_says_whether_it_may_have_been() {
    on_every_engine(async |on| {
        let patient = on.limiter().deadline(AMPLE);
        let lease = ask!(patient, "v").await.unwrap();
        on.inject("UpdateItem", |_| Fault::THROTTLING);
        let error = in_time(lease.adjust("rpm", 1)).await.unwrap_err();
        assert!(matches!(error, AdjustError::Contended), "{error:?}");
        on.calm();
        let limiter = on.limiter().deadline(DEADLINE);
        let lease = ask!(limiter, "u").await.unwrap();
        let other = ask!(limiter, "w").await.unwrap();
        on.inject("UpdateItem", |_| Fault::DENIED);
        let error = lease.adjust("rpm", 1).await.unwrap_err();
        assert!(matches!(error, AdjustError::Setup(SetupError::Denied(_))), "{error:?}");
        assert_eq!(limiter.counters().ambiguous.get(), 0);
        on.proxy.inject(|_| Fault::Cut);
        let error = in_time(lease.adjust("rpm", 1)).await.unwrap_err();
        assert!(matches!(error, AdjustError::Unavailable(_)), "{error:?}");
        let error = in_time(other.release()).await.unwrap_err();
        assert!(matches!(error, AdjustError::Ambiguous(_)), "{error:?}");
        assert_eq!((on.rpm("u").await, on.rpm("w").await), ((55, 5), (55, 5)));
    })
    .await;
}

/// Ends a correction whose parent cannot be reached; the child's needs less.
const HALF: Duration = Duration::from_secs(2);

impl Disturbed {
    /// Until what was on its way for long has had its effect.
    async fn late_landed(&self, fault: &Fault) {
        if matches!(fault, Fault::Late(_)) {
            self.all_landed("UpdateItem").await;
            self.all_landed("TransactWriteItems").await;
        }
    }

    /// Faults for every write of one bucket; it cannot be read either.
    fn cut_off(&self, entity: &str, fault: Fault) {
        let key = format!("ENTITY#{entity}\"");
        self.proxy.inject(move |call| match call.operation {
            _ if !String::from_utf8_lossy(call.body).contains(&key) => Fault::None,
            "GetItem" => Fault::Cut,
            _ => fault.clone(),
        });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_correction_that_reached_one_of_two_buckets_can_be_completed() {
    let late = Fault::Late(HALF + Duration::from_secs(1));
    let cases = [
        (Fault::THROTTLING, Certainty::Remembered),
        (Fault::DENIED, Certainty::Remembered),
        (Fault::Cut, Certainty::Remembered),
        (Fault::LoseReply, Certainty::Remembered),
        (Fault::LoseReply, Certainty::Transactional),
        // Arrives when the repetition has long been answered.
        (late, Certainty::Remembered),
    ];
    on_every_engine(async |on| {
        for (n, (fault, certainty)) in cases.iter().enumerate() {
            let certainty = *certainty;
            let settings = Settings { certainty, ..Settings::default() };
            let limiter = with_settings(on.table.clone(), &on.clock, settings).deadline(HALF);
            let (child, parent) = (format!("c{n}"), format!("p{n}"));
            on.calm();
            on.proxy.reset_counts();
            let lease = ask!(limiter, &child, &parent).await.unwrap();
            on.cut_off(&parent, fault.clone());
            let error = in_time(lease.adjust("rpm", 7)).await.unwrap_err();
            let AdjustError::Partial { corrected, failed, .. } = &error else {
                panic!("{error:?}")
            };
            assert_eq!((corrected.as_str(), failed.as_str()), (&*child, &*parent));
            assert!(error.may_be_repeated(), "{error:?}");
            on.calm();
            lease.adjust("rpm", 7).await.unwrap();
            on.late_landed(fault).await;
            assert_eq!(on.rpm(&child).await, (48, 12), "{fault:?}, {certainty:?}");
            assert_eq!(on.rpm(&parent).await, (48, 12), "{fault:?}, {certainty:?}");

            on.cut_off(&parent, fault.clone());
            let error = in_time(lease.give_back()).await.unwrap_err();
            assert_eq!(on.rpm(&child).await, (60, 0), "{fault:?}, {certainty:?}");
            on.calm();
            lease.give_back().await.unwrap();
            on.late_landed(fault).await;
            // What may have been given back is not given back again.
            let left = if *fault == Fault::Cut { (48, 12) } else { (60, 0) };
            let is_certain = matches!(fault, Fault::Refuse { .. });
            assert_eq!(error.may_be_repeated(), is_certain, "{error:?}");
            assert_eq!(on.rpm(&parent).await, left, "{fault:?}, {certainty:?}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_person_must_repair_is_said_at_once() {
    on_every_engine(async |on| {
        let warm = on.limiter();
        ask!(warm, "u").await.unwrap();
        on.proxy.reset_counts();
        on.proxy.inject(|_| Fault::DENIED);
        let cold = on.limiter();
        for result in [ask!(warm, "u").await, ask!(cold, "u").await, ask!(warm, "u", "p").await, {
            on.calm();
            ask!(warm, "u", "p").await.unwrap();
            on.inject("TransactWriteItems", move |_| Fault::Cancel(&["None", "AccessDenied"]));
            ask!(warm, "u", "p").await
        }] {
            let error = result.unwrap_err();
            assert!(matches!(error, AcquireError::Setup(SetupError::Denied(_))), "{error:?}");
            assert!(error.to_string().contains("allow this action on the table"), "{error}");
        }
        on.calm();
        let nowhere = DynamoTable::new(on.table.client(), "sluicegate-test-nowhere");
        let lost = limiter(nowhere, &on.clock);
        for result in [ask!(lost, "u").await, ask!(lost, "u", "p").await] {
            let error = result.unwrap_err();
            assert!(matches!(error, AcquireError::Setup(SetupError::NoTable(_))), "{error:?}");
            let message = error.to_string();
            for part in ["sluicegate-test-nowhere", "create it with"] {
                assert!(message.contains(part), "{message}");
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_debt_beyond_the_expiry_moves_it_at_once() {
    on_every_engine(async |on| {
        let limiter = on.limiter();
        let expiry_s = async || on.direct.stored(&id("u")).await.unwrap().expires_at_s.unwrap();
        let lease = ask!(limiter, "u").await.unwrap();
        let before = expiry_s().await;
        assert_eq!(before, T0 / 1_000 + 60 + 120);
        // 55 s below zero: what stands covers it.
        let adjusted = lease.adjust("rpm", 110).await.unwrap();
        assert_eq!((expiry_s().await, adjusted.write_units), (before, 1.0));
        // 1,000 tokens missing at one a second, and 60 to be full; the answers to the first two
        // attempts at the expiry are not what was hoped for.
        on.inject("UpdateItem", |number| match number {
            2 => Fault::THROTTLING,
            3 => Fault::CONFLICT,
            4 => Fault::LoseReply,
            _ => Fault::None,
        });
        lease.adjust("rpm", 945).await.unwrap();
        assert_eq!(on.rpm("u").await, (-1_000, 1_060));
        assert_eq!(expiry_s().await, T0 / 1_000 + 60 + 2 * 1_060);
    })
    .await;
}

/// Some clock was two minutes ahead when it wrote the bucket.
async fn ahead(on: &Disturbed, entity: &str, tokens: i64) {
    let limiter = on.limiter();
    ask!(limiter, entity).await.unwrap();
    let mut image = on.direct.stored(&id(entity)).await.unwrap();
    image.refilled_at = at(T0 + 120_000);
    let rpm = image.limits.get_mut(&name("rpm")).unwrap();
    rpm.tokens = sluicegate::Millitokens::from_tokens(tokens).unwrap();
    on.direct.place(&id(entity), Some(image)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_was_ahead_does_not_stop_refill() {
    on_every_engine(async |on| {
        ahead(on, "enough", 20).await;
        let limiter = on.limiter();
        let lease = ask!(limiter, "enough").await.unwrap();
        assert_eq!(lease.cost().path, Some(WritePath::Normal));
        assert_eq!(limiter.counters().clocks_ahead.get(), 1, "enough");
        let stored = on.direct.stored(&id("enough")).await.unwrap();
        assert_eq!((stored.refilled_at, on.rpm("enough").await), (at(T0), (15, 10)));

        ahead(on, "short", 2).await;
        let limiter = on.limiter();
        let error = ask!(limiter, "short").await.unwrap_err();
        let AcquireError::LimitExceeded(exceeded) = error else { panic!("{error:?}") };
        assert_eq!(exceeded.retry_after, Some(Duration::from_secs(3)));
        assert_eq!(limiter.counters().clocks_ahead.get(), 1, "short");
        let stored = on.direct.stored(&id("short")).await.unwrap();
        assert_eq!((stored.refilled_at, on.rpm("short").await), (at(T0), (2, 5)));

        for (n, mode) in
            [CascadeMode::Transaction, CascadeMode::Compensating].into_iter().enumerate()
        {
            let (child, parent) = (format!("child-{n}"), format!("parent-{n}"));
            ahead(on, &child, 20).await;
            ahead(on, &parent, 20).await;
            let settings = Settings { cascade_mode: mode, ..Settings::default() };
            let limiter = with_settings(on.table.clone(), &on.clock, settings);
            ask!(limiter, &child, &parent).await.unwrap();
            assert_eq!(limiter.counters().clocks_ahead.get(), 2, "{mode:?}");
            assert_eq!(on.rpm(&parent).await, (15, 10));
        }
    })
    .await;
}
