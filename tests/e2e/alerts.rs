//! Alerts under every kind of delivery: each threshold that a window reached has one entry in the
//! outbox.

use std::collections::BTreeMap;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::interceptors::{
    BeforeDeserializationInterceptorContextRef, BeforeSerializationInterceptorContextMut,
    BeforeTransmitInterceptorContextRef,
};
use aws_sdk_dynamodb::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsInput;
use sluicegate_core::fixtures::name;
use sluicegate_core::keys::LimitsScope;
use sluicegate_core::{AlertSettings, Thresholds, WindowKind};
use sluicegate_local::InProcess;
use sluicegate_local::poller::{self, BatchSize, Poller};
use sluicegate_processor::{Processor, Settings, Switch};
use sluicegate_testkit::history::{BURST_MILLI, DAILY, History, Shape, WindowId};
use sluicegate_testkit::usage::{read_outbox, read_usages};
use sluicegate_testkit::{AtLeastOnce, EngineKind, Fault, Proxy, RecordedSource, RunningEngine};
use tokio::sync::watch;

use crate::support::{
    Records, acquire, assert_exact, contains, deliver, on_every_engine, records_for, soon,
};

/// Thresholds of the generated histories: limit, window, text, and the amount in millitokens.
const THRESHOLDS: [(&str, &str, &str, i64); 9] = [
    ("rpm", "hour", "2/hour", 2_000),
    ("rpm", "hour", "8/hour", 8_000),
    ("rpm", "day", "10/day", 10_000),
    ("rpm", "day", "40/day", 40_000),
    (DAILY, "hour", "5.5/hour", 5_500),
    (DAILY, "day", "10%", BURST_MILLI / 10),
    (DAILY, "day", "55%", BURST_MILLI * 55 / 100),
    (DAILY, "day", "100%", BURST_MILLI),
    ("window", "day", "0.001/day", 1),
];

async fn put_thresholds(client: &Client, table: &str, lists: &[(&str, &str)]) {
    let list = |(limit, list): &(&str, &str)| {
        (name(limit), Thresholds::parse(&name(limit), list).unwrap())
    };
    let thresholds = lists.iter().map(list).collect();
    let settings = AlertSettings { scope: LimitsScope::System, thresholds };
    let item = Some(settings.to_item().into());
    client.put_item().table_name(table).set_item(item).send().await.unwrap();
}

/// A table with the thresholds of the histories.
pub(crate) async fn table_with_thresholds(engine: &RunningEngine) -> String {
    let table = engine.create_table().await;
    let mut lists: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (limit, _, text, _) in THRESHOLDS {
        lists.entry(limit).or_default().push(text);
    }
    let lists: Vec<_> = lists.iter().map(|(limit, list)| (*limit, list.join(","))).collect();
    let lists: Vec<_> = lists.iter().map(|(limit, list)| (*limit, list.as_str())).collect();
    put_thresholds(engine.client(), &table, &lists).await;
    table
}

fn alerting(client: Client, table: &str) -> Processor {
    Processor::new(client, Settings { alerts: Switch::On, ..Settings::new(table) })
}

/// Entries of the outbox by window, limit and threshold.
async fn entries(client: &Client, table: &str) -> BTreeMap<(WindowId, String, String), usize> {
    let mut entries = BTreeMap::new();
    for entry in read_outbox(client, table).await {
        let alert = entry.alert;
        let kind = if alert.window.kind() == WindowKind::Hour { "hour" } else { "day" };
        let (entity, resource) =
            (alert.bucket.entity.to_string(), alert.bucket.resource.to_string());
        let window = (entity, resource, kind, alert.window.start_s());
        let threshold = alert.threshold.show(&alert.limit).to_string();
        *entries.entry((window, alert.limit.to_string(), threshold)).or_insert(0) += 1;
    }
    entries
}

/// The differences of the outbox from the history: a threshold has one entry if the window is at it
/// in the end, none if the window never was, and at most one if it was only between.
async fn mistakes(client: &Client, table: &str, history: &History) -> Vec<String> {
    let mut found = entries(client, table).await;
    let (mut mistakes, mut reached) = (Vec::new(), 0);
    for ((window, limit), peak) in &history.peaks {
        for (_, _, text, milli) in
            THRESHOLDS.iter().filter(|at| (at.0, at.1) == (limit.as_str(), window.2))
        {
            let key = (window.clone(), limit.clone(), (*text).to_owned());
            let count = found.remove(&key).unwrap_or(0);
            let milli = i128::from(*milli);
            let is_reached = history.windows[window].consumed_milli[limit] >= milli;
            let allowed = if is_reached { 1..=1 } else { 0..=usize::from(*peak >= milli) };
            reached += usize::from(is_reached);
            if !allowed.contains(&count) {
                mistakes.push(format!("{count} entries of {key:?}, expected {allowed:?}"));
            }
        }
    }
    mistakes.extend(found.keys().map(|key| format!("an entry that nothing reached: {key:?}")));
    assert!(reached >= 20, "only {reached} thresholds were reached");
    mistakes
}

/// Asserts that windows and outbox are those of the history.
pub(crate) async fn assert_alerted(
    engine: &RunningEngine,
    table: &str,
    history: &History,
    what: &str,
) {
    assert_exact(&read_usages(engine.client(), table).await, history, what);
    let mistakes = mistakes(engine.client(), table, history).await;
    assert!(mistakes.is_empty(), "{what}: {mistakes:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn alerts_of_a_history_are_made_once_however_it_is_delivered() {
    on_every_engine(async |engine| {
        let history = History::generate(&Shape::new(1, records_for(engine.kind(), 5_000, 500)));
        for times in [1, 3] {
            let table = table_with_thresholds(engine).await;
            let mut rng = fastrand::Rng::with_seed(times);
            for _ in 0..times {
                let mut rest = &history.records[..];
                while !rest.is_empty() {
                    let (batch, after) = rest.split_at(rng.usize(1..=1_000).min(rest.len()));
                    deliver(&alerting(engine.client().clone(), &table), batch).await;
                    rest = after;
                }
            }
            assert_alerted(engine, &table, &history, &format!("delivered {times} times")).await;
        }
    })
    .await;
}

async fn poll(processor: Processor, history: &History, seed: u64) {
    let function = InProcess::new(processor, Duration::from_secs(60));
    let settings = poller::Settings {
        batch_size: BatchSize::new(100).unwrap(),
        ..poller::Settings::default()
    };
    let source = RecordedSource::new(history.records.clone());
    Poller::new(source, AtLeastOnce::seeded(function, seed), settings).drain().await.unwrap();
}

/// Two functions on one stream, a few milliseconds apart, with claims that take a while.
async fn two_at_once(engine: &RunningEngine, table: &str, history: &History, condition: Condition) {
    let proxy = Proxy::start(engine.endpoint_url()).await;
    proxy.inject(|call| match call.operation {
        "TransactWriteItems" => Fault::Delay(Duration::from_millis(20)),
        _ => Fault::None,
    });
    let client = || {
        let config = sluicegate_local::client::dynamodb_config(&proxy.endpoint_url());
        Client::from_conf(config.interceptor(condition).build())
    };
    let second = async {
        tokio::time::sleep(Duration::from_millis(5)).await;
        poll(alerting(client(), table), history, 2).await;
    };
    tokio::join!(poll(alerting(client(), table), history, 1), second);
}

/// Of two processors on one stream, the one without alerts counts each batch first.
#[tokio::test(flavor = "multi_thread")]
async fn alerts_of_records_that_a_processor_without_alerts_counted_are_made() {
    on_every_engine(async |engine| {
        let history = History::generate(&Shape::new(6, records_for(engine.kind(), 1_000, 300)));
        let table = table_with_thresholds(engine).await;
        let client = engine.client();
        let without = Processor::new(client.clone(), Settings::new(&table));
        let with = alerting(client.clone(), &table);
        for batch in history.records.chunks(50) {
            deliver(&without, batch).await;
            deliver(&with, batch).await;
        }
        assert_alerted(engine, &table, &history, "counted before").await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn alerts_of_two_functions_at_once_are_made_once() {
    on_every_engine(async |engine| {
        let history = History::generate(&Shape::new(2, records_for(engine.kind(), 2_000, 300)));
        let table = table_with_thresholds(engine).await;
        two_at_once(engine, &table, &history, Condition::Kept).await;
        assert_alerted(engine, &table, &history, "two functions").await;
    })
    .await;
}

/// The negative control: the condition of the claim is all that makes an alert once.
#[tokio::test(flavor = "multi_thread")]
async fn alerts_without_the_condition_of_the_claim_are_made_twice() {
    let engine = RunningEngine::start(EngineKind::Embedded).await;
    let history = History::generate(&Shape::new(2, 2_000));
    let table = table_with_thresholds(&engine).await;
    two_at_once(&engine, &table, &history, Condition::Stripped).await;
    assert_exact(&read_usages(engine.client(), &table).await, &history, "windows");
    let mistakes = mistakes(engine.client(), &table, &history).await;
    assert!(mistakes.iter().any(|mistake| mistake.starts_with("2 entries")), "{mistakes:#?}");
    engine.stop().await;
}

/// Sends the claims with their condition or without it.
#[derive(Debug, Clone, Copy)]
enum Condition {
    Kept,
    Stripped,
}

impl Intercept for Condition {
    fn name(&self) -> &'static str {
        "Condition"
    }

    fn modify_before_serialization(
        &self,
        context: &mut BeforeSerializationInterceptorContextMut<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), aws_sdk_dynamodb::error::BoxError> {
        let input = context.input_mut().downcast_mut::<TransactWriteItemsInput>();
        if let (Self::Stripped, Some(input)) = (self, input) {
            for item in input.transact_items.iter_mut().flatten() {
                if let Some(update) = &mut item.update {
                    update.condition_expression = None;
                    let names = update.expression_attribute_names.as_mut().unwrap();
                    names.retain(|name, _| update.update_expression.contains(name));
                    let values = update.expression_attribute_values.as_mut().unwrap();
                    values.retain(|value, _| update.update_expression.contains(value));
                }
            }
        }
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn alerts_are_made_once_although_replies_are_lost() {
    on_every_engine(async |engine| {
        let history = History::generate(&Shape::new(3, records_for(engine.kind(), 2_000, 300)));
        let table = table_with_thresholds(engine).await;
        let proxy = Proxy::start(engine.endpoint_url()).await;
        proxy.inject(|call| match call.number % 24 {
            1 => Fault::LoseReply,
            2 => Fault::INTERNAL,
            3 => Fault::THROTTLING,
            4 => Fault::Cut,
            5 => Fault::Blank("{}"),
            6 => Fault::BlankReply("{}"),
            7 => Fault::CONFLICT,
            _ => Fault::None,
        });
        let processor = alerting(sluicegate_local::client::dynamodb(&proxy.endpoint_url()), &table);
        for batch in history.records.chunks(250) {
            deliver(&processor, batch).await;
        }
        assert_alerted(engine, &table, &history, "lost replies").await;
    })
    .await;
}

/// Loses every answer from some number on, and sends nothing more.
#[derive(Debug)]
struct StopAfter {
    after: usize,
    answered: watch::Sender<usize>,
}

impl StopAfter {
    fn check(&self) -> Result<(), aws_sdk_dynamodb::error::BoxError> {
        if *self.answered.borrow() < self.after { Ok(()) } else { Err("stopped".into()) }
    }
}

impl Intercept for StopAfter {
    fn name(&self) -> &'static str {
        "StopAfter"
    }

    fn read_before_transmit(
        &self,
        _: &BeforeTransmitInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), aws_sdk_dynamodb::error::BoxError> {
        self.check()
    }

    fn read_after_transmit(
        &self,
        _: &BeforeDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), aws_sdk_dynamodb::error::BoxError> {
        self.answered.send_modify(|answered| *answered += 1);
        self.check()
    }
}

/// Delivers a batch to a new processor that stops at so many answers. False: it came to its end.
async fn stops(engine: &RunningEngine, table: &str, batch: &Records, after: usize) -> bool {
    let (sender, mut answered) = watch::channel(0);
    let stop = StopAfter { after, answered: sender };
    let config = sluicegate_local::client::dynamodb_config(engine.endpoint_url());
    let client = Client::from_conf(config.interceptor(stop).build());
    let processor = alerting(client, table);
    tokio::select! {
        biased;
        _ = answered.wait_for(|answered| *answered >= after) => true,
        outcome = processor.handle(batch, soon(60)) => !outcome.failures.is_empty(),
    }
}

/// Each batch is given up again and again, one to three answers later each time, until a delivery
/// comes to its end. (`crash.rs` kills the process after every single one.)
#[tokio::test(flavor = "multi_thread")]
async fn alerts_are_made_once_although_the_function_stops_after_every_write() {
    on_every_engine(async |engine| {
        let shape =
            Shape { pause_ms: 20_000, ..Shape::new(4, records_for(engine.kind(), 2_000, 200)) };
        let history = History::generate(&shape);
        let table = table_with_thresholds(engine).await;
        let (mut rng, mut stopped) = (fastrand::Rng::with_seed(4), 0);
        for batch in history.records.chunks(200) {
            let batch = batch.to_vec();
            let mut after = rng.usize(1..=3);
            while stops(engine, &table, &batch, after).await {
                after += rng.usize(1..=3);
                stopped += 1;
            }
        }
        assert!(stopped > history.records.len() / 50, "{stopped} stops");
        assert_alerted(engine, &table, &history, "stopped after every write").await;
    })
    .await;
}

#[tokio::test]
async fn alerts_that_are_not_reached_cost_a_read_a_minute() {
    let engine = RunningEngine::start(EngineKind::Embedded).await;
    let table = engine.create_table().await;
    put_thresholds(engine.client(), &table, &[("rpm", "1000000/hour,1000000/day,80%")]).await;
    let proxy = Proxy::start(engine.endpoint_url()).await;
    let processor = alerting(sluicegate_local::client::dynamodb(&proxy.endpoint_url()), &table);
    let batch = |from: u64, milli: i64| -> Records {
        let of = |n| acquire(&format!("user-{}", n % 10), from + n, 10_000_000, milli);
        (0..1_000).map(of).collect()
    };
    let sent = async |batch: &Records, expected: &[(&str, u64)]| {
        proxy.reset_counts();
        let report = deliver(&processor, batch).await.report;
        let expected = expected.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect();
        assert_eq!(proxy.received_by_operation(), expected);
        report.write_units
    };
    let (updates, query) = (("UpdateItem", 20), ("Query", 1));
    // Nothing is read for a batch that reaches nothing.
    assert_eq!(sent(&batch(0, -5), &[updates]).await, 40.0);
    assert_eq!(sent(&batch(1_000, 1_000), &[updates, query]).await, 20.0);
    assert_eq!(sent(&batch(2_000, 1_000), &[updates]).await, 20.0);
    // Twenty conditions fail.
    assert_eq!(sent(&batch(2_000, 1_000), &[updates]).await, 20.0);

    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(60)).await;
    tokio::time::resume();
    assert_eq!(sent(&batch(3_000, 1_000), &[updates, query]).await, 20.0);
    assert!(read_outbox(engine.client(), &table).await.is_empty());
    engine.stop().await;
}

/// The partition of the thresholds is throttled, and a batch has more windows than are written at
/// once.
#[tokio::test(flavor = "multi_thread")]
async fn usage_is_counted_while_thresholds_cannot_be_read() {
    on_every_engine(async |engine| {
        let table = table_with_thresholds(engine).await;
        let proxy = Proxy::start(engine.endpoint_url()).await;
        let processor = alerting(sluicegate_local::client::dynamodb(&proxy.endpoint_url()), &table);
        proxy.inject(|call| match call.operation {
            "Query" => Fault::THROTTLING,
            _ => Fault::None,
        });
        let batch: Records = (0..40).map(|n| acquire(&format!("u{n}"), n, 0, 9_000)).collect();
        let outcome = processor.handle(&batch, soon(3)).await;
        assert!(!outcome.response.unwrap().batch_item_failures.is_empty(), "no alerts yet");
        assert_eq!(read_usages(engine.client(), &table).await.len(), 80);
        proxy.inject(|_| Fault::None);
        assert_eq!(deliver(&processor, &batch).await.report.alerts, 80);
    })
    .await;
}

/// The partition of one window is throttled.
#[tokio::test(flavor = "multi_thread")]
async fn alerts_of_other_windows_are_made_while_one_cannot_be_written() {
    on_every_engine(async |engine| {
        let table = table_with_thresholds(engine).await;
        let proxy = Proxy::start(engine.endpoint_url()).await;
        let processor = alerting(sluicegate_local::client::dynamodb(&proxy.endpoint_url()), &table);
        proxy.inject(|call| match call.operation {
            "UpdateItem" if contains(call.body, b"ENTITY#u0") => Fault::THROTTLING,
            _ => Fault::None,
        });
        let batch: Records = (0..40).map(|n| acquire(&format!("u{n}"), n, 0, 9_000)).collect();
        let outcome = processor.handle(&batch, soon(6)).await;
        assert_eq!((outcome.report.alerts, outcome.report.retryable_failures), (78, 2));
    })
    .await;
}

/// Thresholds that are set behind a sum are claimed by the next write, all in one transaction.
#[tokio::test(flavor = "multi_thread")]
async fn alerts_of_new_thresholds_are_made_by_the_next_write() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let processor = || alerting(engine.client().clone(), &table);
        deliver(&processor(), &[acquire("u", 1, 0, 9_000)]).await;
        put_thresholds(engine.client(), &table, &[("rpm", "5/hour,9/day,10/day,10.001/day")]).await;
        let report = deliver(&processor(), &[acquire("u", 2, 9_000, 1_000)]).await.report;
        assert_eq!(report.alerts, 3);
        let again = deliver(&processor(), &[acquire("u", 3, 10_000, -500)]).await.report;
        assert_eq!(again.alerts, 0);
        let sums: Vec<_> = read_outbox(engine.client(), &table).await;
        assert!(sums.iter().all(|entry| entry.alert.sum_milli == 10_000), "{sums:?}");
    })
    .await;
}
