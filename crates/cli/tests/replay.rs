//! `sluicegate replay` as a person or a script sees it: output, errors, exit codes.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "tests panic")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use sluicegate_testkit::history::{History, Shape};
use sluicegate_testkit::usage::read_usages;
use sluicegate_testkit::{RunningEngine, engines_under_test};

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn replay(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sluicegate"))
        .current_dir(workspace())
        .arg("replay")
        .args(args)
        .env_remove("AWS_ENDPOINT_URL")
        .env("AWS_ACCESS_KEY_ID", "local")
        .env("AWS_SECRET_ACCESS_KEY", "local")
        .env("AWS_REGION", "us-east-1")
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn windows(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

/// One window of the JSON output.
fn window<'a>(
    windows: &'a Value,
    entity: &str,
    resource: &str,
    kind: &str,
    start: &str,
) -> &'a Value {
    let found = windows.as_array().unwrap().iter().find(|w| {
        w["entity"] == entity
            && w["resource"] == resource
            && w["window"] == kind
            && w["start"] == start
    });
    found.unwrap_or_else(|| panic!("no {kind} {start} of {entity} {resource} in {windows:#}"))
}

#[test]
fn the_sample_events_add_up_by_hand() {
    let output = replay(&["tests/events", "--output", "json"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let windows = windows(&output);
    let at = |entity, resource, kind, start| {
        let window = window(&windows, entity, resource, kind, start);
        (window["consumed_milli"].clone(), window["events"].clone())
    };
    // Create 1 + Normal 3 + Retry 7 - refund 1; tpm 500 + 1200 + 2400 + 740 - 500.
    assert_eq!(
        at("user-123", "gpt-4", "hour", "2026-01-28T14:00:00Z"),
        (json!({"rpm": 10_000, "tpm": 4_340_000}), json!(5))
    );
    // The adjust five hours later counts at its own time, and only in tpm.
    assert_eq!(
        at("user-123", "gpt-4", "hour", "2026-01-28T19:00:00Z"),
        (json!({"tpm": 12_345_000}), json!(1))
    );
    // Midnight: the last millisecond belongs to the day before.
    for (day, tpm) in [("2026-01-28T00:00:00Z", 1_800_000), ("2026-01-29T00:00:00Z", 2_250_000)] {
        assert_eq!(
            at("team-berlin", "claude-opus", "day", day),
            (json!({"rpm": 2_000, "tpm": tpm}), json!(2))
        );
    }
    // Expired by TTL and created again: both lives count.
    assert_eq!(
        at("user-42", "gpt-4", "day", "2026-01-28T00:00:00Z"),
        (json!({"rpm": 9_000}), json!(3))
    );
    // Named like attributes of the item.
    assert_eq!(
        at("user-123", "odd names", "day", "2026-01-28T00:00:00Z").0,
        json!({"events": 3_000, "req-min": 5_000, "rpm.v2": 4_000, "ttl": 2_000, "window": 2_000})
    );
    // Converted from the older layout: only later records count.
    assert_eq!(at("user-8", "gpt-4", "hour", "2026-01-28T12:00:00Z").0, json!({"rpm": 2_000}));
    // Ten limits in one window.
    let ten = at("ingest-1", "embeddings", "hour", "2026-01-28T15:00:00Z").0;
    assert_eq!(ten.as_object().unwrap().len(), 10);
}

#[test]
fn repeats_batches_and_order_of_windows_change_nothing() {
    let once = replay(&["tests/events", "--output", "json"]);
    for args in [
        &["--repeat", "3"][..],
        &["--batch-size", "1"],
        &["--batch-size", "7", "--repeat", "2", "--windows", "day,hour,day"],
    ] {
        let again = replay(&[&["tests/events", "--output", "json"], args].concat());
        assert_eq!(windows(&again), windows(&once), "{args:?}");
    }
    let keys: Vec<Vec<String>> = windows(&once)
        .as_array()
        .unwrap()
        .iter()
        .map(|w| {
            ["entity", "resource", "window", "start"]
                .map(|k| w[k].as_str().unwrap().to_owned())
                .to_vec()
        })
        .collect();
    assert!(keys.is_sorted(), "{keys:?}");
}

#[test]
fn any_windows_may_be_asked_for() {
    let output = replay(&[
        "tests/events/05-month-end.json",
        "--windows",
        "month,minute",
        "--output",
        "json",
    ]);
    let starts: Vec<String> = windows(&output)
        .as_array()
        .unwrap()
        .iter()
        .map(|w| format!("{} {}", w["window"].as_str().unwrap(), w["start"].as_str().unwrap()))
        .collect();
    assert_eq!(
        starts,
        [
            "minute 2026-01-31T23:59:00Z",
            "minute 2026-02-01T00:00:00Z",
            "month 2026-01-01T00:00:00Z",
            "month 2026-02-01T00:00:00Z",
        ]
    );
    let output = replay(&["tests/events", "--windows", "hours"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("write minute, hour, day, week, month or year"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn the_table_has_a_column_for_each_limit() {
    let output = replay(&["tests/events/01-insert-first-acquire.json"]);
    let table = text(&output.stdout);
    let lines: Vec<Vec<&str>> =
        table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(
        lines[0],
        ["entity", "resource", "window", "start", "(UTC)", "rpm", "tpm", "events"]
    );
    assert_eq!(lines[3], ["user-123", "gpt-4", "hour", "2026-01-28T14:00:00Z", "1", "500", "1"]);
    assert!(text(&output.stderr).starts_with("1 record from 1 file: 2 windows, "), "{output:?}");
}

#[test]
fn bad_input_is_one_line_with_its_place_and_writes_nothing() {
    let empty = tempfile::tempdir().unwrap();
    for (args, place) in [
        (&["tests/events-bad/not-json.json"][..], "not-json.json:4:1: not JSON"),
        (
            &["tests/events-bad/not-an-event.json"],
            "not-an-event.json:3:3: not a DynamoDB stream record",
        ),
        (&["tests/nowhere.json"], "tests/nowhere.json: No such file"),
        (&["tests/events", "Cargo.toml"], "Cargo.toml:1:2: not JSON"),
        (&[empty.path().to_str().unwrap()], "the folder has no"),
    ] {
        let output = replay(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert_eq!(text(&output.stdout), "", "{args:?}");
        let error = text(&output.stderr);
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(error.starts_with("error: ") && error.contains(place), "{error}");
    }
}

#[test]
fn quarantined_records_are_listed_and_the_rest_is_counted() {
    for file in ["wrong-view-type.json", "broken-counters.json"] {
        let path = format!("tests/events-bad/{file}");
        let output = replay(&[&path, "--output", "json", "--repeat", "2"]);
        assert_eq!(output.status.code(), Some(1), "{file}");
        let listed: Vec<Value> =
            text(&output.stderr).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(!listed.is_empty() && listed.iter().all(|entry| entry["reason"].is_string()));
        let windows = windows(&output);
        let good = window(&windows, "user-good", "gpt-4", "hour", "2026-01-28T14:00:00Z");
        assert_eq!(good["consumed_milli"], json!({"rpm": 1_000}));
    }
    let output = replay(&["tests/events-bad/wrong-view-type.json"]);
    assert!(text(&output.stderr).contains("MODIFY without OldImage"), "{}", text(&output.stderr));
}

#[test]
fn records_out_of_order_are_brought_into_stream_order() {
    let paths = |order: &str| order.split(' ').map(sample).collect::<Vec<_>>();
    let run = |order: &str, batch: &str| {
        let paths = paths(order);
        let mut args: Vec<&str> = paths.iter().map(String::as_str).collect();
        args.extend(["--output", "json", "--batch-size", batch]);
        replay(&args)
    };
    let right = windows(&run("01 02 03", "100"));
    for (order, batch) in [("03 01 02", "100"), ("02 03 01", "1"), ("03 02 01", "2")] {
        let output = run(order, batch);
        assert_eq!(windows(&output), right, "{order}");
        assert!(
            text(&output.stderr).contains("replayed in stream order"),
            "{}",
            text(&output.stderr)
        );
    }
}

/// The sample file whose name begins with `number`.
fn sample(number: &str) -> String {
    let mut names = std::fs::read_dir(workspace().join("tests/events"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap());
    format!("tests/events/{}", names.find(|name| name.starts_with(number)).unwrap())
}

#[test]
fn a_pipe_is_replayed() {
    let event = std::fs::read(workspace().join(sample("01"))).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_sluicegate"))
        .args(["replay", "/dev/stdin", "--output", "json"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), &event).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(windows(&output).as_array().unwrap().len(), 2);
}

#[test]
fn a_store_that_cannot_be_used_is_one_line_at_once() {
    let run = |args: &[&str], env: &[(&str, &str)]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
        command
            .current_dir(workspace())
            .args(["replay", "tests/events", "--table", "sluicegate-limits"])
            .args(args);
        command.env_clear().envs(env.iter().copied()).output().unwrap()
    };
    let none = [
        ("AWS_REGION", "us-east-1"),
        ("AWS_EC2_METADATA_DISABLED", "true"),
        ("HOME", "/nonexistent"),
    ];
    let output = run(&["--endpoint-url", "http://127.0.0.1:9"], &none);
    assert_eq!(output.status.code(), Some(5), "no credentials: {}", text(&output.stderr));
    assert_eq!(text(&output.stderr).lines().count(), 1, "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("redential"), "{}", text(&output.stderr));
    let output = run(&["--endpoint-url", "not a url"], &none);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
}

#[test]
fn a_result_that_cannot_be_printed_is_no_quarantine() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let status = Command::new(env!("CARGO_BIN_EXE_sluicegate"))
        .current_dir(workspace())
        .args(["replay", "tests/events"])
        .stdout(full)
        .stderr(std::process::Stdio::null())
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(6));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_table_is_written_and_read_back() {
    for kind in engines_under_test() {
        let engine = RunningEngine::start(kind).await;
        let table = engine.create_table().await;
        let url = engine.endpoint_url().to_owned();
        let args = ["--table", &table, "--endpoint-url", &url, "--output", "json"];
        let history = History::generate(&Shape::new(4, 400));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("history.jsonl");
        let lines: Vec<&str> = history.records.iter().map(|record| record.get()).collect();
        std::fs::write(&path, lines.join("\n")).unwrap();
        let path = path.to_str().unwrap();
        let run = |extra: &[&str]| {
            let output = replay(&[&[path], &args[..], extra].concat());
            assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
            windows(&output)
        };
        let first = tokio::task::block_in_place(|| run(&[]));
        assert_eq!(first.as_array().unwrap().len(), history.windows.len());
        assert_eq!(read_usages(engine.client(), &table).await, history.windows);
        let again = tokio::task::block_in_place(|| run(&["--repeat", "2", "--batch-size", "33"]));
        assert_eq!(again, first);
        engine.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_only_the_environment_names_is_not_written_to() {
    for kind in engines_under_test() {
        let engine = RunningEngine::start(kind).await;
        let table = engine.create_table().await;
        let run = || {
            Command::new(env!("CARGO_BIN_EXE_sluicegate"))
                .current_dir(workspace())
                .args(["replay", "tests/events"])
                .env("SLUICEGATE_TABLE", &table)
                .env("AWS_ENDPOINT_URL", engine.endpoint_url())
                .output()
                .unwrap()
        };
        let output = tokio::task::block_in_place(run);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert!(read_usages(engine.client(), &table).await.is_empty());
        engine.stop().await;
    }
    let output = replay(&["tests/events", "--endpoint-url", "http://127.0.0.1:9"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_table_is_one_line_and_its_own_exit_code() {
    for kind in engines_under_test() {
        let engine = RunningEngine::start(kind).await;
        let args = [
            "tests/events",
            "--table",
            "sluicegate-missing",
            "--endpoint-url",
            engine.endpoint_url(),
        ];
        let output = tokio::task::block_in_place(|| replay(&args));
        assert_eq!(output.status.code(), Some(5));
        let error = text(&output.stderr);
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(
            error.contains("sluicegate-missing") && error.contains("ResourceNotFound"),
            "{error}"
        );
        engine.stop().await;
    }
}

/// The `n`th write of a bucket: one token of `rpm` more. `padding` makes the record longer.
fn written(bucket: u64, n: u64, padding: &str) -> String {
    let image = |n: u64| {
        format!(
            r##"{{"PK":{{"S":"ENTITY#user-{bucket}"}},"SK":{{"S":"#BUCKET#gpt-4"}},"entity_id":{{"S":"user-{bucket}"}},"resource":{{"S":"gpt-4"}},"rf":{{"N":"1769609001250"}},"b_rpm_tk":{{"N":"1000"}},"b_rpm_cp":{{"N":"100000"}},"b_rpm_bx":{{"N":"100000"}},"b_rpm_ra":{{"N":"100000"}},"b_rpm_rp":{{"N":"60000"}},"b_rpm_tc":{{"N":"{}"}},"note":{{"S":"{padding}"}}}}"##,
            n * 1_000
        )
    };
    let (name, old) = match n {
        0 => ("INSERT", String::new()),
        _ => ("MODIFY", format!(r#","OldImage":{}"#, image(n))),
    };
    let sequence = 1_000_000_000 + n * 10_000_000 + bucket;
    format!(
        r##"{{"eventID":"{sequence}","eventName":"{name}","eventVersion":"1.1","eventSource":"aws:dynamodb","awsRegion":"eu-west-1","eventSourceARN":"arn:aws:dynamodb:eu-west-1:1:table/t/stream/2026-01-01T00:00:00.000","dynamodb":{{"ApproximateCreationDateTime":1769609001,"Keys":{{"PK":{{"S":"ENTITY#user-{bucket}"}},"SK":{{"S":"#BUCKET#gpt-4"}}}},"NewImage":{}{old},"SequenceNumber":"{sequence}","SizeBytes":500,"StreamViewType":"NEW_AND_OLD_IMAGES"}}}}"##,
        image(n + 1)
    )
}

/// The cost of a replay of a file.
struct Took {
    windows: usize,
    seconds: f64,
    peak_mib: u64,
}

/// Replays `records` writes of so many buckets by turns, one event or a record a line.
fn replay_of(records: u64, buckets: u64, padding: &str, is_one_event: bool) -> Took {
    use std::io::Write;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("records.json");
    let mut file = std::io::BufWriter::new(std::fs::File::create(&path).unwrap());
    let (open, between, close) =
        if is_one_event { ("{\"Records\":[", ",", "]}") } else { ("", "\n", "") };
    write!(file, "{open}").unwrap();
    for n in 0..records {
        let between = if n == 0 { "" } else { between };
        write!(file, "{between}{}", written(n % buckets, n / buckets, padding)).unwrap();
    }
    write!(file, "{close}").unwrap();
    file.into_inner().unwrap().sync_all().unwrap();

    let begun = std::time::Instant::now();
    let mut child = Command::new(env!("CARGO_BIN_EXE_sluicegate"))
        .args(["replay", "--output", "json", "--batch-size", "100"])
        .arg(&path)
        .stdout(std::fs::File::create(folder.path().join("out")).unwrap())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut peak_kib = 0;
    let ended = loop {
        // A process that ended has no memory any more.
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let peak = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let peak = peak.and_then(|peak| peak.split_whitespace().next()?.parse().ok());
        peak_kib = peak.unwrap_or(0).max(peak_kib);
        if let Some(ended) = child.try_wait().unwrap() {
            break ended;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    };
    let seconds = begun.elapsed().as_secs_f64();
    assert!(ended.success());
    let out = std::fs::read(folder.path().join("out")).unwrap();
    let windows: Vec<Value> = serde_json::from_slice(&out).unwrap();
    let tokens = |kind: &str| -> u64 {
        let of_kind = windows.iter().filter(|window| window["window"] == kind);
        of_kind.map(|window| window["consumed_milli"]["rpm"].as_u64().unwrap() / 1_000).sum()
    };
    assert_eq!((tokens("hour"), tokens("day")), (records, records));
    Took { windows: windows.len(), seconds, peak_mib: peak_kib / 1_024 }
}

#[test]
fn memory_is_that_of_the_windows_not_of_the_input() {
    let padding = "x".repeat(20_000);
    for is_one_event in [false, true] {
        let few = replay_of(20, 10, &padding, is_one_event);
        let many = replay_of(820, 10, &padding, is_one_event);
        // 32 MiB of input more. A batch is 4 MiB, and several copies of it are held.
        let more_mib = many.peak_mib.saturating_sub(few.peak_mib);
        assert!(more_mib < 26, "{} MiB, then {} MiB", few.peak_mib, many.peak_mib);
        assert_eq!(many.windows, 20);
    }
}

/// `SLUICEGATE_TEST_REPLAY_RECORDS` sets the number of records, for a soak.
#[test]
fn a_replay_is_linear_in_its_records() {
    let soak = std::env::var("SLUICEGATE_TEST_REPLAY_RECORDS").ok();
    let records = soak.as_ref().map_or(1_000, |records| records.parse().unwrap());
    let all = replay_of(records, records.div_ceil(50), "", false);
    let rate = records as f64 / all.seconds;
    println!(
        "{records} records, {} windows: {rate:.0} records/s, {} MiB at most",
        all.windows, all.peak_mib
    );
    if soak.is_none() {
        return;
    }
    // A ratio is meaningful on any machine, if both runs take seconds.
    let [few, many] = [5_000, 20_000].map(|buckets| replay_of(buckets, buckets, "", false));
    println!("5000 and 20000 buckets: {:.1} and {:.1} s", few.seconds, many.seconds);
    assert!(many.seconds < 6.0 * few.seconds);
}

#[test]
fn buckets_in_shards_are_counted_on_demand() {
    let folder = "tests/e2e/sharded/zae-limiter-0.17";
    let (records, granted) = (format!("{folder}.jsonl"), format!("{folder}.granted.json"));
    assert_eq!(windows(&replay(&[&records, "--output", "json"])), json!([]));
    let output = replay(&[&records, "--sharded-buckets", "--repeat", "2", "--output", "json"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let granted = std::fs::read_to_string(workspace().join(granted)).unwrap();
    let granted: std::collections::BTreeMap<String, i64> = serde_json::from_str(&granted).unwrap();
    for (bucket_and_limit, milli) in granted {
        let (bucket, limit) = bucket_and_limit.rsplit_once(' ').unwrap();
        let of_bucket = |window: &&Value| {
            window["window"] == "hour"
                && bucket.split(' ').eq([&window["entity"], &window["resource"]])
        };
        let windows = windows(&output);
        let hours = windows.as_array().unwrap().iter().filter(of_bucket);
        let sum: i64 = hours.filter_map(|hour| hour["consumed_milli"][limit].as_i64()).sum();
        assert_eq!(sum, milli, "{bucket_and_limit}");
    }
}
