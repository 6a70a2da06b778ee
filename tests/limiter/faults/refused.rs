//! A table that is throttled, does not answer, or denies access.

use std::time::Duration;

use sluicegate::dynamo::DynamoTable;
use sluicegate::error::{SetupError, StoreFailure};
use sluicegate::{AcquireError, OnUnavailable};
use sluicegate_testkit::Fault;

use super::{AMPLE, DEADLINE, in_time, on_every_engine, rpm};
use crate::support::{assert_units, limiter};

/// From a server in between.
const TOO_MANY: Fault = Fault::Refuse { status: 429, error: "nobody.knows#ThisOne" };
/// Answers that mean "try again": neither a refusal nor an outage.
const IN_A_MOMENT: [Fault; 4] = [Fault::CONFLICT, Fault::THROTTLED, Fault::THROTTLING, TOO_MANY];
const CANCELLED: [Fault; 4] = [
    Fault::Cancel(&["TransactionConflict", "None"]),
    Fault::Cancel(&["None", "TransactionConflict"]),
    Fault::Cancel(&["ThrottlingError", "None"]),
    Fault::Cancel(&["ProvisionedThroughputExceeded", "TransactionConflict"]),
];

#[tokio::test(flavor = "multi_thread")]
async fn passing_refusals_are_waited_out() {
    on_every_engine(async |on| {
        for (n, fault) in IN_A_MOMENT.into_iter().enumerate() {
            let (entity, limiter) = (format!("u{n}"), on.limiter());
            let some = move |number| if number <= 5 { fault.clone() } else { Fault::None };
            on.inject("PutItem", some.clone());
            assert_eq!(ask!(limiter, &entity).await.unwrap().cost().attempts, 6);
            on.inject("UpdateItem", some.clone());
            let permit = ask!(limiter, &entity).await.unwrap();
            assert_eq!(permit.cost().attempts, 6);
            assert_units!(permit.cost().write_units, 1.0);
            on.inject("UpdateItem", some.clone());
            permit.adjust("rpm", 1).await.unwrap();
            on.inject("UpdateItem", some.clone());
            permit.release().await.unwrap();
            assert_eq!(on.rpm(&entity).await, (55, 5));
            assert_eq!(limiter.counters().ambiguous.get(), 0, "nothing was done, that is certain");
        }
        for (n, fault) in CANCELLED.into_iter().chain(IN_A_MOMENT).enumerate() {
            let (child, parent, limiter) = (format!("c{n}"), format!("p{n}"), on.limiter());
            on.inject("TransactWriteItems", move |number| {
                if number % 4 == 0 { Fault::None } else { fault.clone() }
            });
            for (tokens, consumed) in [(55, 5), (50, 10)] {
                let permit = ask!(limiter, &child, &parent).await.unwrap();
                assert_eq!(permit.cost().attempts, 4);
                for entity in [&child, &parent] {
                    assert_eq!(on.rpm(entity).await, (tokens, consumed), "{entity}");
                }
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lasting_refusals_end_the_call() {
    on_every_engine(async |on| {
        let limiter = on.limiter();
        let permit = ask!(limiter, "u").await.unwrap();
        for fault in IN_A_MOMENT {
            let always = fault.clone();
            on.inject("UpdateItem", move |_| always.clone());
            let contended = in_time(async { ask!(limiter, "u").deadline(AMPLE).await }).await;
            assert!(matches!(contended, Err(AcquireError::Contended { .. })), "{contended:?}");
            // Unavailable if the deadline ends a write: it may have been done.
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
        for fault in [
            Fault::Cut,
            Fault::INTERNAL,
            Fault::Blank(""),
            Fault::Blank("{}"),
            Fault::Delay(Duration::from_secs(60)),
        ] {
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
        permit.release().await.unwrap();
        assert_eq!(on.rpm("u").await, (60, 0), "nothing was taken by any of them");
    })
    .await;
}

/// A store that failed is reported with its own words; any other answer admits no request.
#[tokio::test(flavor = "multi_thread")]
async fn a_failure_inside_the_store_is_an_outage_and_a_refusal_is_none() {
    on_every_engine(async |on| {
        let denying = on.builder().deadline(DEADLINE).build();
        let allowing = on.builder().deadline(DEADLINE).on_unavailable(OnUnavailable::Allow).build();
        ask!(denying, "u").await.unwrap();
        ask!(denying, "u", "p").await.unwrap();
        let internal = "com.amazonaws.dynamodb.v20120810#InternalServerError";
        for (status, error) in [(500, internal), (503, "nobody.knows#ThisOne")] {
            on.proxy.inject(move |_| Fault::Refuse { status, error });
            let code = error.rsplit('#').next().unwrap();
            let permit = in_time(async { ask!(allowing, "u").await }).await.unwrap();
            let said = permit.degraded().unwrap().to_string();
            assert!(said.contains("answered that it failed") && said.contains(code), "{said}");
            let error = in_time(async { ask!(denying, "u").await }).await.unwrap_err();
            let AcquireError::Unavailable(source) = &error else { panic!("{error:?}") };
            assert!(source.is::<StoreFailure>(), "{source:?}");
            let said = error.to_string();
            assert!(said.contains("failed") && !said.contains("network"), "{said}");
        }
        for status in [301, 400, 404, 501] {
            let unknown = Fault::Refuse { status, error: "nobody.knows#ThisOne" };
            on.proxy.inject(move |_| unknown.clone());
            let refused = in_time(async { ask!(allowing, "u").await }).await;
            assert!(
                matches!(refused, Err(AcquireError::Setup(SetupError::Rejected(_)))),
                "{status}: {refused:?}"
            );
        }
        on.inject("TransactWriteItems", |_| Fault::Cancel(&["None", "NobodyKnows"]));
        let refused = in_time(async { ask!(allowing, "u", "p").await }).await;
        assert!(
            matches!(refused, Err(AcquireError::Setup(SetupError::Rejected(_)))),
            "{refused:?}"
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn setup_errors_are_returned_at_once() {
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
            assert!(error.to_string().contains("allow this action"), "{error}");
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
