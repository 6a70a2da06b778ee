//! `migrate`: converted buckets, skipped buckets with reasons, and the view of other commands
//! before.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;
use serde_json::{Value, json};
use sluicegate::types::EpochMillis;
use sluicegate::{Clock, SystemClock};
use sluicegate_testkit::legacy::{self, key, per_minute};
use sluicegate_testkit::usage::scan;
use sluicegate_testkit::{Call, Fault, Proxy};

use crate::support::{Said, Shell, finish, on_every_engine};

fn then() -> EpochMillis {
    EpochMillis::new(SystemClock.now().get() - 30_000).unwrap()
}

/// Buckets of two limits, half of each left.
async fn place(shell: &Shell, entities: impl IntoIterator<Item = String>) {
    let mut items = Vec::new();
    for entity in entities {
        for (limit, tokens) in [("rpm", 60), ("tpm", 6_000)] {
            let bucket = per_minute(tokens, tokens * 500, then());
            items.push(legacy::item(&key(&entity, "gpt-4", limit), &bucket));
        }
    }
    legacy::put(shell.engine.client(), &shell.table, items).await;
}

fn text(text: &str) -> AttributeValue {
    AttributeValue::S(text.to_owned())
}

/// Stores the version item that an older producer writes when the table is made.
async fn note_older(shell: &Shell, client_min: &str) {
    let version = [("schema_version", text("1.0.0")), ("client_min_version", text(client_min))];
    note(shell, version.into()).await;
}

async fn note(shell: &Shell, version: HashMap<&str, AttributeValue>) {
    let put = shell.engine.client().put_item().table_name(&shell.table);
    let mut put = put.item("PK", text("SYSTEM#")).item("SK", text("#VERSION"));
    for (attribute, value) in version {
        put = put.item(attribute, value);
    }
    put.send().await.unwrap();
}

/// Runs the command through a proxy with these faults.
async fn migrate_over(
    shell: &Shell,
    policy: impl Fn(&Call<'_>) -> Fault + Send + Sync + 'static,
) -> Said {
    let proxy = Proxy::start(shell.engine.endpoint_url()).await;
    proxy.inject(policy);
    let mut command = shell.command();
    command.env("AWS_ENDPOINT_URL", proxy.endpoint_url());
    finish(command.args(["migrate", "--yes", "--segments", "1", "--output", "json"]))
}

async fn left(shell: &Shell) -> usize {
    let items = scan(shell.engine.client(), &shell.table).await;
    items.iter().filter(|item| item.contains_key("last_refill_ms")).count()
}

#[track_caller]
fn figures(report: &Value) -> [u64; 4] {
    ["converted_buckets", "converted_limits", "skipped_buckets", "converted_elsewhere"]
        .map(|figure| report[figure].as_u64().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_is_converted_once_and_a_second_run_finds_nothing() {
    on_every_engine(async |shell| {
        place(shell, (0..30).map(|n| format!("user-{n}"))).await;
        shell.run("acquire new gpt-4 --consume rpm=1 --limit rpm=60/min").text(0);
        let dry = shell.run("migrate --dry-run --output json").json(0);
        assert_eq!(figures(&dry), [30, 60, 0, 0], "{dry}");
        assert!(shell.run("migrate").error(2).contains("--yes"));
        assert_eq!(left(shell).await, 60);

        let report = shell.run("migrate --yes --output json").json(0);
        assert_eq!(figures(&report), [30, 60, 0, 0], "{report}");
        assert!(report["scanned_items"].as_u64().unwrap() >= 61, "{report}");
        assert!(report["write_units"].as_f64().unwrap() > 0.0, "{report}");
        assert_eq!(report["older_producers"]["may_start"], json!(false));
        assert_eq!(left(shell).await, 0);
        let items = scan(shell.engine.client(), &shell.table).await;
        assert_eq!(items.iter().filter(|item| item.contains_key("mg")).count(), 30);
        let version = items.iter().find(|item| item["SK"] == AttributeValue::S("#VERSION".into()));
        assert_eq!(version.unwrap()["sluicegate_schema"], AttributeValue::N("1".into()));

        let again = shell.run("migrate --yes --segments 1");
        assert!(again.text(0).starts_with("0 buckets converted with 0 limits"), "{}", again.out);
        let status = shell.run("status user-7 gpt-4 --output json").json(0);
        assert_eq!(status[0]["consumed_milli"], json!(30_000), "{status}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unconvertible_buckets_are_skipped_with_their_reason() {
    on_every_engine(async |shell| {
        let client = shell.engine.client();
        place(shell, ["good", "straggler"].map(str::to_owned)).await;
        let good = || per_minute(60, 30_000, then());
        let mut broken = legacy::item(&key("broken", "gpt-4", "rpm"), &good());
        broken.remove("tokens_milli");
        let mut odd = legacy::item(&key("odd", "gpt-4", "rpm"), &good());
        odd.insert("SK".to_owned(), AttributeValue::S("#BUCKET#gpt-4#r p m".to_owned()));
        let many = (0..100).map(|n| legacy::item(&key("many", "gpt-4", &format!("l{n}")), &good()));
        legacy::put(client, &shell.table, many.chain([broken, odd])).await;
        // Converted, and written again by an older producer.
        note_older(shell, "0.7.0").await;
        shell.run("acquire straggler gpt-4 --consume rpm=1").text(0);
        place(shell, ["straggler".to_owned()]).await;

        let report = shell.run("migrate --yes --output json").json(1);
        assert_eq!(figures(&report), [1, 2, 4, 0], "{report}");
        let mut reasons: Vec<_> = report["skipped"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| (one["entity"].as_str().unwrap(), one["reason"].as_str().unwrap()))
            .collect();
        reasons.sort_unstable();
        assert_eq!(
            reasons,
            [
                ("ENTITY#odd", "broken"),
                ("broken", "broken"),
                ("many", "too_many_limits"),
                ("straggler", "exists"),
            ]
        );
        assert_eq!(left(shell).await, 104);
        let text = shell.run("migrate --yes");
        for part in ["4 buckets skipped", "no tokens_milli", "100 limits", "stop it, delete them"] {
            assert!(text.text(1).contains(part), "{part}: {}", text.out);
        }
        let items = scan(client, &shell.table).await;
        assert!(items.iter().all(|item| !item.contains_key("sluicegate_schema")));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn producers_of_the_older_layout_are_told_of() {
    on_every_engine(async |shell| {
        note_older(shell, "0.0.0").await;
        let said = shell.run("migrate --yes --output json");
        let report = said.json(0);
        assert_eq!(report["older_producers"]["may_start"], json!(true), "{report}");
        assert!(said.err.contains("older than 0.7.0"), "{}", said.err);
        note_older(shell, "0.7.0").await;
        let said = shell.run("migrate --dry-run --output json");
        assert_eq!(said.json(0)["older_producers"]["may_start"], json!(false), "{}", said.out);
        assert_eq!(said.err, "");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_oldest_version_item_is_read_too() {
    on_every_engine(async |shell| {
        let version = [("schema_version", text("1.0.0")), ("client_min_version", text("0.0.0"))];
        let version = version.map(|(attribute, value)| (attribute.to_owned(), value));
        note(shell, [("data", AttributeValue::M(version.into()))].into()).await;
        place(shell, ["user-123".to_owned()]).await;
        let report = shell.run("migrate --dry-run --output json").json(0);
        assert_eq!(report["older_producers"]["may_start"], json!(true), "{report}");
        shell.run("acquire user-123 gpt-4 --consume rpm=1 --limit rpm=60/min").text(0);
        assert_eq!(left(shell).await, 0);
        let status = shell.run("status user-123 gpt-4 --output json").json(0);
        assert_eq!(status[0]["consumed_milli"], json!(31_000), "{status}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_throttled_scan_goes_on() {
    on_every_engine(async |shell| {
        place(shell, ["user-123".to_owned()]).await;
        let said = migrate_over(shell, |call| match (call.operation, call.number) {
            ("Scan", 1..=6) => Fault::THROTTLED,
            _ => Fault::None,
        });
        assert_eq!(figures(&said.await.json(0)), [1, 2, 0, 0]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn conversions_are_reported_when_they_cannot_be_noted() {
    on_every_engine(async |shell| {
        place(shell, ["user-123".to_owned()]).await;
        let said = migrate_over(shell, |call| match call.operation {
            "UpdateItem" => Fault::DENIED,
            _ => Fault::None,
        });
        let said = said.await;
        assert_eq!(figures(&said.json(5)), [1, 2, 0, 0]);
        assert!(said.err.contains("dynamodb:UpdateItem"), "{}", said.err);
        assert_eq!(left(shell).await, 0);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_other_commands_see_a_bucket_in_either_layout() {
    on_every_engine(async |shell| {
        note_older(shell, "0.0.0").await;
        place(shell, ["user-123".to_owned()]).await;
        for line in ["status user-123 gpt-4", "status user-123", "status --resource gpt-4"] {
            let status = shell.run(&format!("{line} --output json")).json(0);
            let consumed = |n: usize| status[n]["consumed_milli"].as_i64().unwrap();
            assert_eq!((consumed(0), consumed(1)), (30_000, 3_000_000), "{line}: {status}");
        }
        assert_eq!(left(shell).await, 2);
        shell.run("adjust user-123 gpt-4 tpm=+5").text(0);
        assert_eq!(left(shell).await, 0);
        for line in ["status user-123 gpt-4", "status user-123", "status --resource gpt-4"] {
            let status = shell.run(&format!("{line} --output json")).json(0);
            assert_eq!(status.as_array().unwrap().len(), 2, "{line}: {status}");
            assert_eq!(status[1]["consumed_milli"], json!(3_005_000), "{line}: {status}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_starts_with_what_was_consumed_after_the_conversion() {
    on_every_engine(async |shell| {
        place(shell, ["user-123".to_owned()]).await;
        shell.run("migrate --yes").text(0);
        shell.run("acquire user-123 gpt-4 --consume rpm=2 --consume tpm=7").text(0);
        shell.run("process --once").text(0);
        let usage = shell.run("usage user-123 gpt-4 --window hour --output json").json(0);
        let consumed = &usage[0]["consumed_milli"];
        assert_eq!(consumed, &json!({"rpm": 2_000, "tpm": 7_000}), "{usage}");
        assert_eq!(usage.as_array().unwrap().len(), 1, "{usage}");
        shell.run("usage check user-123").text(0);
    })
    .await;
}
