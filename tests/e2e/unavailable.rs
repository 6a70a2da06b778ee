//! A table that throttles, loses replies or does not exist: reported, never dropped, later
//! complete.

use serde_json::value::RawValue;
use sluicegate_processor::{Processor, Settings};
use sluicegate_testkit::history::{History, Shape};
use sluicegate_testkit::usage::{read_quarantine, read_usages};
use sluicegate_testkit::{Fault, Proxy, RunningEngine};

use crate::support::{
    Records, acquire, acquires_of_limits, assert_exact, contains, deliver, hour_of,
    on_every_engine, processor, soon,
};

/// A processor whose connection to the table can be disturbed.
async fn behind_a_proxy(engine: &RunningEngine, table: &str) -> (Proxy, Processor) {
    let proxy = Proxy::start(engine.endpoint_url()).await;
    let client = sluicegate_local::client::dynamodb(&proxy.endpoint_url());
    (proxy, Processor::new(client, Settings::new(table)))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lowest_throttled_record_is_reported_and_all_are_completed_later() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let (proxy, processor_behind) = behind_a_proxy(engine, &table).await;
        proxy.inject(|call| {
            let throttled = contains(call.body, b"ENTITY#throttled");
            if throttled { Fault::THROTTLED } else { Fault::None }
        });
        let batch: Records = vec![
            acquire("fine", 1, 0, 1_000),
            acquire("throttled", 2, 0, 1_000),
            acquire("fine", 3, 0, 1_000),
            acquire("throttled", 4, 0, 1_000),
            acquire("throttled-too", 5, 0, 1_000),
            malformed("throttled-malformed", 6),
        ];
        let outcome = processor_behind.handle(&batch, soon(1)).await;
        let reported = outcome.response.unwrap().batch_item_failures;
        assert_eq!(reported.len(), 1);
        assert_eq!(reported[0].item_identifier.as_deref(), Some("300000000000000000002"));
        assert_eq!(
            outcome.report.retryable_failures, 5,
            "two hours, two days and the malformed record"
        );
        assert!(proxy.received("UpdateItem") > 4, "throttled writes are repeated within the time");

        // Lambda delivers from the reported record on.
        deliver(&processor(engine, &table), &batch[1..]).await;
        let found = read_usages(engine.client(), &table).await;
        for (entity, milli) in [("fine", 2_000), ("throttled", 2_000), ("throttled-too", 1_000)] {
            assert_eq!(hour_of(&found, entity).unwrap().consumed_milli["rpm"], milli, "{entity}");
        }
        assert_eq!(read_quarantine(engine.client(), &table).await.len(), 1);
    })
    .await;
}

/// A record without its old image.
fn malformed(entity: &str, n: u64) -> Box<RawValue> {
    let text = acquire(entity, n, 0, 1_000).get().replace("OldImage", "Other");
    RawValue::from_string(text).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_replies_and_internal_errors_count_nothing_twice() {
    on_every_engine(async |engine| {
        let history = History::generate(&Shape { pause_ms: 10_000, ..Shape::new(5, 300) });
        let table = engine.create_table().await;
        let (proxy, processor) = behind_a_proxy(engine, &table).await;
        proxy.inject(|call| match call.number % 10 {
            1 => Fault::LoseReply,
            2 => Fault::INTERNAL,
            3 => Fault::THROTTLING,
            4 => Fault::Cut,
            5 => Fault::Blank("{}"),
            6 => Fault::BlankReply("{}"),
            7 => Fault::Blank(""),
            _ => Fault::None,
        });
        for batch in history.records.chunks(50) {
            deliver(&processor, batch).await;
        }
        assert!(proxy.forwarded("UpdateItem") > u64::try_from(history.windows.len()).unwrap());
        assert_exact(&read_usages(engine.client(), &table).await, &history, "faulty replies");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quarantine_that_is_throttled_is_reported_too() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let (proxy, processor_behind) = behind_a_proxy(engine, &table).await;
        let batch = [acquire("fine", 1, 0, 1_000), malformed("malformed", 9)];
        for fault in [Fault::THROTTLED, Fault::Blank("{}")] {
            proxy.inject(
                move |call| {
                    if call.operation == "PutItem" { fault.clone() } else { Fault::None }
                },
            );
            let outcome = processor_behind.handle(&batch, soon(1)).await;
            let reported = outcome.response.unwrap().batch_item_failures[0].item_identifier.clone();
            assert_eq!(reported.as_deref(), Some("300000000000000000009"));
        }

        // Without a position there is nothing to report: the whole batch is delivered again.
        let nameless = [RawValue::from_string("{}".to_owned()).unwrap()];
        assert!(processor_behind.handle(&nameless, soon(1)).await.response.is_err());
        deliver(&processor(engine, &table), &batch[1..]).await;
        deliver(&processor(engine, &table), &nameless).await;
        assert_eq!(read_quarantine(engine.client(), &table).await.len(), 2);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_table_is_reported_at_once() {
    on_every_engine(async |engine| {
        let (proxy, processor) = behind_a_proxy(engine, "sluicegate-missing").await;
        let outcome = processor.handle(&[acquire("u", 1, 0, 1_000)], soon(60)).await;
        assert_eq!(outcome.failures.len(), 2);
        assert!(outcome.failures[0].reason.contains("ResourceNotFoundException"), "{outcome:?}");
        assert_eq!(proxy.received("UpdateItem"), 2, "waiting creates no table");
    })
    .await;
}

/// Forty windows, the first of which is throttled all the time: it does not delay the others.
#[tokio::test(flavor = "multi_thread")]
async fn a_throttled_window_holds_up_no_other() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let (proxy, processor) = behind_a_proxy(engine, &table).await;
        proxy.inject(|call| {
            if contains(call.body, b"ENTITY#user-0\"") { Fault::THROTTLED } else { Fault::None }
        });
        let batch: Records = (0..40).map(|n| acquire(&format!("user-{n}"), n, 0, 1_000)).collect();
        let outcome = processor.handle(&batch, soon(4)).await;
        assert_eq!(outcome.report.window_updates, 78);
        assert_eq!(outcome.report.retryable_failures, 2);
    })
    .await;
}

/// The second of a window's two updates does not get through before the time is up.
#[tokio::test(flavor = "multi_thread")]
async fn a_window_that_is_interrupted_between_updates_goes_on_where_it_stood() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let (proxy, processor_behind) = behind_a_proxy(engine, &table).await;
        proxy.inject(|call| {
            if contains(call.body, b"\"u_l200\"") { Fault::THROTTLED } else { Fault::None }
        });
        let batch = acquires_of_limits("u", 400);
        let outcome = processor_behind.handle(&batch, soon(2)).await;
        let reported = outcome.response.unwrap().batch_item_failures;
        assert_eq!(reported[0].item_identifier.as_deref(), Some("300000000000000000200"));
        assert_eq!((outcome.report.window_updates, outcome.report.duplicates_dropped), (2, 0));

        // From there on, and once more from the beginning.
        deliver(&processor(engine, &table), &batch[200..]).await;
        deliver(&processor(engine, &table), &batch).await;
        let found = read_usages(engine.client(), &table).await;
        let hour = hour_of(&found, "u").unwrap();
        assert_eq!((hour.events, hour.consumed_milli.len()), (400, 400));
        assert!(hour.consumed_milli.values().all(|milli| *milli == 1_000));
    })
    .await;
}
