//! Answers that are lost: the request takes effect once, or the caller learns that the result is
//! unknown.

use std::time::Duration;

use sluicegate::types::EntityRecord;
use sluicegate::{AdjustError, EntityId};
use sluicegate_testkit::Fault;

use super::{Disturbed, on_every_engine, rpm};
use crate::support::limiter;

/// The first replies are lost or empty, or the first requests arrive when they were long repeated.
const UNCERTAIN: [fn(u64) -> Fault; 6] = [
    |number| if number <= 1 { Fault::LoseReply } else { Fault::None },
    |number| if number <= 3 { Fault::LoseReply } else { Fault::None },
    |number| if number <= 2 { Fault::Late(Duration::from_millis(60)) } else { Fault::None },
    |number| if number <= 2 { Fault::Blank("{}") } else { Fault::None },
    |number| if number <= 2 { Fault::Blank("") } else { Fault::None },
    |number| if number <= 1 { Fault::BlankReply("{}") } else { Fault::None },
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
async fn refund_is_made_once() {
    on_every_engine(async |on| {
        for (n, fault) in UNCERTAIN.into_iter().enumerate() {
            let (entity, limiter) = (format!("u{n}"), on.limiter());
            on.calm();
            ask!(limiter, &entity).await.unwrap();
            let permit = ask!(limiter, &entity).await.unwrap();
            on.inject("UpdateItem", fault);
            permit.adjust("rpm", 7).await.unwrap();
            on.all_landed("UpdateItem").await;
            assert_eq!(on.rpm(&entity).await, (43, 17), "debit, {n}");
            on.inject("UpdateItem", fault);
            permit.adjust("rpm", -3).await.unwrap();
            on.all_landed("UpdateItem").await;
            assert_eq!(on.rpm(&entity).await, (46, 14), "refund, {n}");
            on.inject("UpdateItem", fault);
            permit.release().await.unwrap();
            on.all_landed("UpdateItem").await;
            assert_eq!(on.rpm(&entity).await, (55, 5), "release, {n}");
            // An attempt that the item shows is not repeated. One that it does not show is, and may
            // still come: both refunds count. A debit that comes twice takes too much.
            let ambiguous = limiter.counters().ambiguous.get();
            match n {
                0 | 1 | 5 => assert_eq!(ambiguous, 0, "{n}"),
                // On a slow machine, a late attempt may come before the next one looks for it.
                2 => assert!(ambiguous <= 2, "{ambiguous}"),
                _ => assert_eq!(ambiguous, 2, "{n}"),
            }
        }
    })
    .await;
}

/// An item that is not in the answer may be in the table: the entity's parent, for one.
#[tokio::test(flavor = "multi_thread")]
async fn a_read_whose_answer_is_empty_is_read_again() {
    on_every_engine(async |on| {
        let (child, team) = (EntityId::new("u").unwrap(), EntityId::new("team").unwrap());
        let record = EntityRecord { entity: child, parent: Some(team), cascade: true };
        on.direct.config().put_entity(&record).await.unwrap();
        for (operation, taken) in [("BatchGetItem", 5), ("GetItem", 10)] {
            // Knows nothing yet.
            let limiter = on.limiter();
            on.inject(
                operation,
                |number| if number <= 2 { Fault::Blank("{}") } else { Fault::None },
            );
            let request = limiter.acquire("u", "r").consume("rpm", 5).limits(rpm());
            request.await.unwrap();
            assert_eq!(on.rpm("u").await, (60 - taken, taken), "{operation}");
            assert_eq!(on.rpm("team").await, (60 - taken, taken), "{operation}");
        }
    })
    .await;
}

/// Four others write while an answer is lost and the next request is on its way.
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
        let permit = ask!(limiter, "u").await.unwrap();
        on.proxy.reset_counts();
        on.proxy.inject(|call| match (call.operation, call.number) {
            ("UpdateItem", 1) => Fault::LoseReply,
            ("GetItem", 1) => Fault::Delay(Duration::from_millis(600)),
            _ => Fault::None,
        });
        let (released, ()) = tokio::join!(permit.release(), four_others(on, "u"));
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
