//! The real `bootstrap` binary, driven as Lambda drives it, against every engine under test.
//!
//! These tests cover the parts that only the process shows: its start, its answers through the
//! Runtime API, the lines that it writes, and that it answers an invocation in time. The tests of
//! the library cover how records become windows.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests panic")]

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use sluicegate_testkit::function::Exit;
use sluicegate_testkit::history::{Usage, Usages};
use sluicegate_testkit::usage::{read_quarantine, read_usages};
use sluicegate_testkit::{
    EngineKind, Fault, FunctionProcess, InvocationResult, Proxy, RunningEngine, RuntimeApi,
    engines_under_test,
};

const TEMPLATE: &str = include_str!("../../../template.yaml");
/// Two records just before midnight UTC, two just after.
const MIDNIGHT: &str = "events/04-midnight.json";
/// Index of the first of them after midnight.
const AFTER_MIDNIGHT: usize = 2;
/// The second and the third of its four records have counters that are no integers.
const BROKEN: &str = "events-bad/broken-counters.json";
/// 2026-01-28T00:00:00Z.
const DAY_S: i64 = 1_769_558_400;
const ALL_DONE: &str = r#"{"batchItemFailures":[]}"#;
/// Far more time than an invocation takes; the wait for a broken function.
const LONG: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread")]
async fn an_event_is_counted_once_however_often_it_is_delivered() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let function = Function::start(engine.endpoint_url(), &table).await;
        for delivery in ["first", "second"] {
            assert_eq!(function.invoke(sample(MIDNIGHT)).await, ALL_DONE, "{delivery}");
            let found = read_usages(engine.client(), &table).await;
            assert_eq!(found, midnight_windows(), "after the {delivery} delivery");
        }
        let exit = function.stop().await;

        let figures = metrics(&exit, &table);
        let [first, second] = figures.as_slice() else { panic!("{figures:?}") };
        let counts = |line: &Value| {
            ["Records", "Deltas", "WindowUpdates", "DuplicatesDropped", "Quarantined"]
                .map(|name| line[name].as_u64().unwrap())
        };
        assert_eq!(counts(first), [4, 8, 4, 0, 0]);
        assert_eq!(counts(second), [4, 8, 0, 4, 0]);
        // A window is in one index: it takes two units on an engine that counts indexes, and one on
        // others. A failed condition takes one.
        assert!((4..=8).contains(&first["WriteUnits"].as_u64().unwrap()), "{first}");
        assert_eq!(second["WriteUnits"], 4);

        let logs = logs(&exit);
        let ready = logs.iter().filter(|line| line["fields"]["message"] == "ready").count();
        assert_eq!(ready, 1, "everything is set up once, not with every event: {logs:#?}");
        assert!(logs.iter().all(|line| line["level"] == "INFO"), "{logs:#?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_dashboard_and_the_alarms_name_metrics_that_the_processor_emits() {
    let engine = RunningEngine::start(EngineKind::Embedded).await;
    let table = engine.create_table().await;
    let function = Function::start(engine.endpoint_url(), &table).await;
    assert_eq!(function.invoke(sample(MIDNIGHT)).await, ALL_DONE);
    let exit = function.stop().await;
    let line = metrics(&exit, &table).remove(0);
    let emitted = line["_aws"]["CloudWatchMetrics"][0]["Metrics"].as_array().unwrap();
    let emitted: BTreeSet<&str> =
        emitted.iter().map(|metric| metric["Name"].as_str().unwrap()).collect();

    let dashboard = dashboard();
    let widgets = dashboard["widgets"].as_array().unwrap();
    let shown =
        widgets.iter().flat_map(|widget| widget["properties"]["metrics"].as_array().unwrap());
    let shown: Vec<_> = shown.filter(|metric| metric[0] == "Sluicegate").collect();
    assert!(shown.iter().all(|metric| metric[2] == "Table"), "{shown:?}");
    let shown: BTreeSet<&str> = shown.iter().map(|metric| metric[1].as_str().unwrap()).collect();
    assert_eq!(shown, emitted, "the dashboard shows all there is, and nothing else");

    let alarms = TEMPLATE.split("Namespace: Sluicegate\n").skip(1);
    let watched: BTreeSet<&str> = alarms
        .map(|rest| rest.trim_start().strip_prefix("MetricName: ").unwrap().lines().next().unwrap())
        .collect();
    assert!(watched.len() > 1 && watched.is_subset(&emitted), "{watched:?}");
}

/// The dashboard's body, as CloudFormation hands it to CloudWatch except for the values.
fn dashboard() -> Value {
    let (_, body) = TEMPLATE.split_once("DashboardBody: !Sub |\n").unwrap();
    let body: Vec<&str> = body.lines().take_while(|line| line.starts_with("        ")).collect();
    serde_json::from_str(&body.join("\n")).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_counter_is_kept_and_told_and_the_batch_goes_on() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let function = Function::start(engine.endpoint_url(), &table).await;
        for _delivery in 0..2 {
            assert_eq!(function.invoke(sample(BROKEN)).await, ALL_DONE);
        }
        let exit = function.stop().await;

        let kept: Vec<String> =
            read_quarantine(engine.client(), &table).await.into_keys().collect();
        assert_eq!(kept.len(), 2, "{kept:?}");
        for (key, broken) in kept.iter().zip([1, 2]) {
            assert!(key.contains(&sequence_number(&sample(BROKEN), broken)), "{key}");
        }
        let usages = read_usages(engine.client(), &table).await;
        let good = usages.iter().filter(|(id, _)| id.0 == "user-good").map(|(_, usage)| usage);
        let good: Vec<i128> = good.map(|usage| usage.consumed_milli["rpm"]).collect();
        assert_eq!(good, [1_000, 1_000], "its hour and its day, though records before it are odd");

        let quarantined: Vec<Value> =
            metrics(&exit, &table).into_iter().map(|line| line["Quarantined"].clone()).collect();
        assert_eq!(quarantined, [2, 0]);
        let errors: Vec<Value> =
            logs(&exit).into_iter().filter(|line| line["level"] == "ERROR").collect();
        assert_eq!(errors.len(), 2, "told once, not with every delivery: {errors:#?}");
        for error in &errors {
            let fields = &error["fields"];
            assert_eq!(fields["message"], "record quarantined");
            assert!(kept.iter().any(|key| fields["key"] == *key), "{fields}");
            assert!(fields["reason"].as_str().unwrap().contains("rpm"), "{fields}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_is_none_fails_and_the_next_is_handled() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let function = Function::start(engine.endpoint_url(), &table).await;
        let none = [r#"{"detail-type":"Scheduled Event","detail":{}}"#, r#"{"Records":7}"#, "[]"];
        for event in none {
            let answer = function.api.invoke(event, LONG).await;
            let InvocationResult::Error(error) = answer else { panic!("{event}: {answer:?}") };
            let body: Value = serde_json::from_slice(&error.body).unwrap();
            assert!(!body["errorMessage"].as_str().unwrap().is_empty(), "{event}: {body}");
            assert!(!body["errorType"].as_str().unwrap().is_empty(), "{event}: {body}");
        }
        assert_eq!(function.invoke(sample(MIDNIGHT)).await, ALL_DONE);
        assert_eq!(read_usages(engine.client(), &table).await, midnight_windows());
        let exit = function.stop().await;
        assert_eq!(metrics(&exit, &table).len(), 1, "figures of the event that was one");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_throttled_table_is_answered_in_time_with_the_record_to_start_from() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let proxy = Proxy::start(engine.endpoint_url()).await;
        let function = Function::start(&proxy.endpoint_url(), &table).await;
        proxy.inject(|call| {
            let after_midnight = contains(call.body, b"2026-01-29T00");
            if after_midnight { Fault::THROTTLED } else { Fault::None }
        });
        let deadline = Duration::from_secs(2);
        let event = sample(MIDNIGHT);
        let InvocationResult::Response(answer) = function.api.invoke(event.clone(), deadline).await
        else {
            panic!("no answer before the deadline; {}", function.process.stderr());
        };
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        let first = sequence_number(&event, AFTER_MIDNIGHT);
        let expected = json!({"batchItemFailures": [{"itemIdentifier": first}]});
        assert_eq!(answer, expected);
        assert!(proxy.received("UpdateItem") > 4, "repeated while there is time");

        // Lambda delivers again from that record on.
        proxy.inject(|_| Fault::None);
        assert_eq!(function.invoke(tail(&event, AFTER_MIDNIGHT)).await, ALL_DONE);
        assert_eq!(read_usages(engine.client(), &table).await, midnight_windows());
        let exit = function.stop().await;
        let failures: Vec<Value> = metrics(&exit, &table)
            .into_iter()
            .map(|line| line["RetryableFailures"].clone())
            .collect();
        assert_eq!(failures, [2, 0], "the hour and the day, then none");
    })
    .await;
}

/// A change of a global table comes through the stream of each replica, at positions that have
/// nothing to do with each other.
#[tokio::test(flavor = "multi_thread")]
async fn of_the_processors_in_two_regions_only_the_home_region_counts() {
    let engine = RunningEngine::start(EngineKind::Embedded).await;
    let event = String::from_utf8(sample(MIDNIGHT)).unwrap();
    let (_, label) = event.split_once("/stream/").unwrap();
    let label = label.split('"').next().unwrap();
    let replicated = event.replace(label, "2026-01-02T00:00:00.000");
    for home in [None, Some("eu-west-1")] {
        let table = engine.create_table().await;
        let mut logged = Vec::new();
        for (region, event) in [("eu-west-1", &event), ("us-east-1", &replicated)] {
            let url = engine.endpoint_url();
            let env = [("AWS_REGION", region), ("HOME_REGION", home.unwrap_or_default())];
            let function = Function::start_with(url, &table, &env).await;
            assert_eq!(function.invoke(event.clone().into_bytes()).await, ALL_DONE);
            logged.push(logs(&function.stop().await));
        }
        let found = read_usages(engine.client(), &table).await;
        if home.is_some() {
            assert_eq!(found, midnight_windows());
            let messages = logged[1].iter().map(|line| line["fields"]["message"].clone());
            assert!(
                messages.collect::<Vec<_>>().contains(&json!("another region counts this table"))
            );
        } else {
            assert!(found.values().all(|usage| usage.events == 4), "each twice: {found:?}");
        }
    }
    engine.stop().await;
}

#[tokio::test]
async fn a_setting_that_cannot_be_used_ends_the_process_and_is_named() {
    let api = RuntimeApi::start().await;
    let table = ("TABLE_NAME", "sluicegate-limits");
    let cases: [(&str, &[(&str, &str)]); 10] = [
        ("TABLE_NAME", &[]),
        ("USAGE_WINDOWS", &[table, ("USAGE_WINDOWS", "hour,weeks")]),
        ("USAGE_TTL_DAYS", &[table, ("USAGE_TTL_DAYS", "1")]),
        ("USAGE_TTL_DAYS", &[table, ("USAGE_TTL_DAYS", "ninety")]),
        ("ALERTS=", &[table, ("ALERTS", "yes")]),
        ("HOME_REGION=", &[table, ("HOME_REGION", "Frankfurt")]),
        ("SHARDED_BUCKETS=", &[table, ("SHARDED_BUCKETS", "yes")]),
        ("ALERTS_TO", &[table, ("ALERTS_TO", "http://example.com")]),
        ("ALERTS_TO", &[table, ("ALERTS_TO", "arn:aws:sqs:us-east-1:123456789012:queue")]),
        ("ALERTS_TO and ALERTS_SECRET", &[table, ("ALERTS_TO", "https://example.com")]),
    ];
    for (named, env) in cases {
        let process = FunctionProcess::spawn(bootstrap(), &api, env.iter().copied());
        let exit = tokio::time::timeout(LONG, process.exit()).await.unwrap();
        assert_eq!(exit.status.code(), Some(1), "{env:?}");
        let logs = logs(&exit);
        let [line] = logs.as_slice() else { panic!("one line for {env:?}: {logs:#?}") };
        assert_eq!(line["level"], "ERROR");
        let error = line["fields"]["error"].as_str().unwrap();
        assert!(error.starts_with(named), "{error}");
        assert_eq!(exit.stdout, "");
    }
}

/// A running function and the Runtime API that it asks for events.
struct Function {
    api: RuntimeApi,
    process: FunctionProcess,
}

impl Function {
    async fn start(endpoint_url: &str, table: &str) -> Self {
        Self::start_with(endpoint_url, table, &[]).await
    }

    async fn start_with(endpoint_url: &str, table: &str, more: &[(&str, &str)]) -> Self {
        let api = RuntimeApi::start().await;
        let env = [("TABLE_NAME", table), ("AWS_ENDPOINT_URL", endpoint_url)];
        let env = env.iter().chain(more).copied();
        let process = FunctionProcess::spawn(bootstrap(), &api, env);
        Self { api, process }
    }

    /// The body of the answer, which must not be an error.
    async fn invoke(&self, event: Vec<u8>) -> String {
        let answer = self.api.invoke(event, LONG).await;
        let InvocationResult::Response(body) = answer else {
            panic!("{answer:?}; {}", self.process.stderr())
        };
        String::from_utf8(body.to_vec()).unwrap()
    }

    async fn stop(self) -> Exit {
        self.process.stop().await
    }
}

fn bootstrap() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_bootstrap"))
}

async fn on_every_engine(suite: impl AsyncFn(&RunningEngine)) {
    for kind in engines_under_test() {
        let engine = RunningEngine::start(kind).await;
        suite(&engine).await;
        engine.stop().await;
    }
}

/// A sample event from the folder `tests` of the workspace.
fn sample(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The position of one record of an event.
fn sequence_number(event: &[u8], index: usize) -> String {
    let event: Value = serde_json::from_slice(event).unwrap();
    event["Records"][index]["dynamodb"]["SequenceNumber"].as_str().unwrap().to_owned()
}

/// The same event from one record on.
fn tail(event: &[u8], first: usize) -> Vec<u8> {
    let mut event: Value = serde_json::from_slice(event).unwrap();
    event["Records"].as_array_mut().unwrap().drain(..first);
    serde_json::to_vec(&event).unwrap()
}

/// The sums of [`MIDNIGHT`], read from its counters.
fn midnight_windows() -> Usages {
    let usage = |rpm: i128, tpm: i128| Usage {
        consumed_milli: [("rpm".to_owned(), rpm), ("tpm".to_owned(), tpm)].into(),
        events: 2,
    };
    let (before, after) = (usage(2_000, 1_800_000), usage(2_000, 2_250_000));
    let id = |kind, start_s| ("team-berlin".to_owned(), "claude-opus".to_owned(), kind, start_s);
    let midnight_s = DAY_S + 86_400;
    Usages::from([
        (id("day", DAY_S), before.clone()),
        (id("hour", DAY_S + 23 * 3_600), before),
        (id("day", midnight_s), after.clone()),
        (id("hour", midnight_s), after),
    ])
}

/// The lines of standard output, each checked to be metrics as CloudWatch reads them from a log.
fn metrics(exit: &Exit, table: &str) -> Vec<Value> {
    let mut units = vec![
        ("Records", "Count"),
        ("Deltas", "Count"),
        ("WindowUpdates", "Count"),
        ("DuplicatesDropped", "Count"),
        ("PartlyCounted", "Count"),
        ("Alerts", "Count"),
        ("AlertsSent", "Count"),
        ("AlertsFailed", "Count"),
        ("AlertsGivenUp", "Count"),
        ("Quarantined", "Count"),
        ("RetryableFailures", "Count"),
        ("WriteUnits", "Count"),
        ("RecordAge", "Milliseconds"),
    ];
    units.sort_unstable();
    let lines = json_lines(&exit.stdout);
    for line in &lines {
        let declared = &line["_aws"]["CloudWatchMetrics"];
        assert_eq!(declared.as_array().unwrap().len(), 1, "{line}");
        assert_eq!(declared[0]["Namespace"], "Sluicegate", "{line}");
        assert_eq!(declared[0]["Dimensions"], json!([["Table"]]), "{line}");
        assert_eq!(line["Table"], table, "{line}");
        assert!(line["_aws"]["Timestamp"].is_u64(), "{line}");
        let metrics = declared[0]["Metrics"].as_array().unwrap().iter();
        let text = |metric: &'static str, value: &Value| {
            value[metric].as_str().unwrap_or_else(|| panic!("{metric} of {value}")).to_owned()
        };
        let mut found: Vec<(String, String)> =
            metrics.map(|metric| (text("Name", metric), text("Unit", metric))).collect();
        found.sort_unstable();
        let found: Vec<(&str, &str)> =
            found.iter().map(|(name, unit)| (name.as_str(), unit.as_str())).collect();
        assert_eq!(found, units, "{line}");
        for (name, _) in &units {
            // A histogram is a list of the recorded values.
            let value = &line[*name];
            assert!(value.is_number() || value[0].is_number(), "{name} of {line}");
        }
    }
    lines
}

/// The lines of standard error, each checked to be a log line.
fn logs(exit: &Exit) -> Vec<Value> {
    let lines = json_lines(&exit.stderr);
    for line in &lines {
        assert!(line["timestamp"].is_string() && line["level"].is_string(), "{line}");
    }
    lines
}

fn json_lines(text: &str) -> Vec<Value> {
    let parse =
        |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
    text.lines().map(parse).collect()
}

fn contains(body: &[u8], needle: &[u8]) -> bool {
    body.windows(needle.len()).any(|window| window == needle)
}
