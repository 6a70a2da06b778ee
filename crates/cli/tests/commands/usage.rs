//! `usage`: the windows that were counted, in every form.

use serde_json::Value;
use sluicegate_core::EntityId;
use sluicegate_core::keys::{ItemKey, LimitsScope, UPDATED_AT};

use crate::support::{Shell, on_every_engine};

const DAY: &str = "--from 2026-01-28T00:00:00Z --to 2026-01-29T00:00:00Z";

/// Counts the sample events; returns the windows as `replay` prints them.
fn replayed(shell: &Shell) -> Value {
    let events = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/events");
    let words = ["replay", events, "--table", &shell.table, "--output", "json"];
    shell.run_words(&words).json(0)
}

fn only(windows: &Value, is_meant: impl Fn(&Value) -> bool) -> Value {
    let windows = windows.as_array().unwrap().iter().filter(|window| is_meant(window));
    Value::Array(windows.cloned().collect())
}

fn in_january_28(window: &Value) -> bool {
    window["start"].as_str().unwrap().starts_with("2026-01-28")
}

#[tokio::test(flavor = "multi_thread")]
async fn windows_are_those_of_replay_by_bucket_entity_and_resource() {
    on_every_engine(async |shell| {
        let replayed = replayed(shell);
        let usage = |words: &str| shell.run(&format!("usage {words} {DAY} --output json")).json(0);
        let hours = only(&replayed, |window| window["window"] == "hour" && in_january_28(window));
        let bucket = only(&hours, |w| w["entity"] == "user-123" && w["resource"] == "gpt-4");
        assert!(bucket.as_array().unwrap().len() > 1);
        assert_eq!(usage("user-123 gpt-4"), bucket);
        assert_eq!(usage("user-123"), only(&hours, |w| w["entity"] == "user-123"));
        assert_eq!(usage("--resource gpt-4"), only(&hours, |w| w["resource"] == "gpt-4"));
        let days = only(&replayed, |window| window["window"] == "day" && in_january_28(window));
        assert_eq!(
            usage("--resource gpt-4 --window day"),
            only(&days, |w| w["resource"] == "gpt-4")
        );

        // The start belongs to a span, the end does not.
        let span = |from: &str, to: &str| {
            let line = format!("usage user-123 gpt-4 --from {from} --to {to} --output json");
            let windows = shell.run(&line).json(0);
            windows
                .as_array()
                .unwrap()
                .iter()
                .map(|w| w["start"].as_str().unwrap()[11..16].to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(span("2026-01-28T14:00:00Z", "2026-01-28T19:00:00Z"), ["14:00"]);
        assert_eq!(span("2026-01-28T14:00:00.001Z", "2026-01-28T20:00:00+01:00"), [""; 0]);
        assert_eq!(
            span("2026-01-28T15:00:00+01:00", "2026-01-28T19:00:00.001Z"),
            ["14:00", "19:00"]
        );
    })
    .await;
}

/// Midnight in Tokyo is 15:00 in UTC: the requests of 14:00 and of 19:00 are of two days.
#[tokio::test(flavor = "multi_thread")]
async fn windows_by_a_calendar_are_shown_in_its_time_zone() {
    on_every_engine(async |shell| {
        let events = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/events");
        let kinds = "day/asia/tokyo,month@15/Europe/Berlin";
        shell.run_words(&["replay", events, "--table", &shell.table, "--windows", kinds]).text(0);
        let span = "--from 2026-01-14T00:00:00Z --to 2026-01-30T00:00:00Z";
        let usage = |words: &str| shell.run(&format!("usage user-123 gpt-4 {span} {words}"));

        let month = usage("--window month@15/Europe/Berlin --output json").json(0);
        let [month] = month.as_array().unwrap().as_slice() else { panic!("{month}") };
        assert_eq!(month["window"], "month@15/Europe/Berlin");
        assert_eq!(month["start"], "2026-01-14T23:00:00Z");
        assert_eq!(month["consumed_milli"]["tpm"], 16_685_000);
        let csv = usage("--window month@15/Europe/Berlin --output csv");
        let line = "user-123,gpt-4,month@15/Europe/Berlin,2026-01-14T23:00:00Z,tpm,16685000,";
        assert!(csv.text(0).contains(line), "{}", csv.out);

        let days = usage("--window day/Asia/Tokyo --chart");
        let lines: Vec<&str> = days.text(0).lines().collect();
        let of = |day: &str| {
            let line = lines.iter().rfind(|line| line.starts_with(day)).unwrap();
            line.split_whitespace().nth(1).unwrap()
        };
        assert!(lines.contains(&"tpm: tokens per day (Asia/Tokyo), 16685 in all"), "{lines:?}");
        assert_eq!((of("2026-01-28"), of("2026-01-29")), ("4340", "12345"), "{lines:?}");

        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("usage.html");
        usage(&format!("--window day/Asia/Tokyo --html {}", file.display())).text(0);
        let page = std::fs::read_to_string(&file).unwrap();
        for text in ["2026-01-29 Asia/Tokyo, 1 day: 12,345 tokens", "time (Asia/Tokyo)"] {
            assert!(page.contains(text), "{text}");
        }
        let unknown = usage("--window month@15/Berlin");
        assert!(
            unknown.code == 2 && unknown.err.contains("\"Berlin\" is not a time zone"),
            "{}",
            unknown.err
        );
    })
    .await;
}

/// A counter that was replaced by text hides no other window and is reported.
#[tokio::test(flavor = "multi_thread")]
async fn a_broken_item_is_told_and_the_rest_is_shown() {
    on_every_engine(async |shell| {
        replayed(shell);
        shell.run("acquire user-123 gpt-4 --consume x=1 --limit x=5/d").text(0);
        shell.run("acquire other gpt-4 --consume x=1 --limit x=5/d").text(0);
        shell.run("acquire third gpt-4 --consume x=1 --limit x=5/d").text(0);
        shell.run("limits set --entity third x=5/d").text(0);
        let whole = shell.run(&format!("usage --resource gpt-4 {DAY} --output json")).json(0);
        let third = ItemKey::Limits(LimitsScope::Entity(EntityId::new("third").unwrap()));
        let own = "ENTITY#user-123".to_owned();
        for (pk, sk, name) in [
            (own.clone(), "#USAGE#gpt-4#hour#2026-01-28T14:00:00Z".to_owned(), "u_rpm"),
            (own, "#BUCKET#gpt-4".to_owned(), "b_x_tk"),
            (third.pk(), third.sk(), UPDATED_AT),
        ] {
            let text = |text: &str| aws_sdk_dynamodb::types::AttributeValue::S(text.to_owned());
            let update = shell.engine.client().update_item().table_name(&shell.table);
            let update = update.key("PK", text(&pk)).key("SK", text(&sk));
            let update = update.update_expression("SET #name = :text");
            let update = update.expression_attribute_names("#name", name);
            update.expression_attribute_values(":text", text("x")).send().await.unwrap();
        }
        let usage = shell.run(&format!("usage --resource gpt-4 {DAY} --output json"));
        assert_eq!(usage.json(1).as_array().unwrap().len(), whole.as_array().unwrap().len() - 1);
        assert!(
            usage.err.contains("left out: the item ENTITY#user-123 / #USAGE#"),
            "{}",
            usage.err
        );
        let check = shell.run(&format!("usage check user-123 {DAY}"));
        assert!(check.text(1).contains("1 item cannot be read"), "{}", check.out);
        let status = shell.run("status --resource gpt-4 --output json");
        let rows = status.json(1);
        assert!(rows.as_array().unwrap().iter().all(|row| row["entity"] == "other"), "{rows}");
        assert!(!rows.as_array().unwrap().is_empty());
        assert!(status.err.contains("left out: the item ENTITY#user-123 / #BUCKET#"));
        let of_level = "left out, with its buckets: the item PK=ENTITY#third SK=";
        assert!(status.err.contains(of_level), "{}", status.err);
        let nothing_else = shell.run("status third --output json");
        assert_eq!(nothing_else.json(1), Value::Array(Vec::new()));
        assert!(shell.run("status third gpt-4").error(5).contains("is broken"));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn windows_as_table_csv_and_bars() {
    on_every_engine(async |shell| {
        replayed(shell);
        let bucket = format!("usage user-123 gpt-4 {DAY}");
        let table = shell.run(&bucket);
        let row: Vec<_> = table.text(0).lines().nth(2).unwrap().split_whitespace().collect();
        assert_eq!(row, ["user-123", "gpt-4", "hour", "2026-01-28T14:00:00Z", "10", "4340", "5"]);

        let csv = shell.run(&format!("{bucket} --output csv"));
        let lines: Vec<&str> = csv.text(0).lines().collect();
        assert_eq!(lines[0], "entity,resource,window,start,limit,consumed_milli,events");
        assert!(
            lines.contains(&"user-123,gpt-4,hour,2026-01-28T14:00:00Z,tpm,4340000,5"),
            "{lines:?}"
        );

        let chart = shell.run(&format!("{bucket} --chart"));
        let lines: Vec<&str> = chart.text(0).lines().collect();
        assert_eq!(
            lines[0],
            "user-123 on gpt-4, by hour, 2026-01-28 00:00 to 2026-01-29 00:00 UTC"
        );
        assert!(lines.contains(&"tpm: tokens per hour (UTC), 16685 in all"), "{lines:?}");
        let at = |hour: &str| *lines.iter().rfind(|line| line.contains(hour)).unwrap();
        assert_eq!(at(" 13:00"), "2026-01-28 13:00 no data");
        assert!(
            at(" 19:00").starts_with("2026-01-28 19:00   12345  ███")
                && at(" 19:00").ends_with('█')
        );
        let length = |line: &str| line.chars().filter(|c| *c == '█').count();
        assert_eq!(length(at(" 14:00")), length(at(" 19:00")) * 4_340 / 12_345);
        assert!(lines.iter().all(|line| line.chars().count() <= 80));

        for (words, said) in
            [("", "no usage of"), ("--chart", "no usage of"), ("--output csv", "entity,")]
        {
            let nothing = shell.run(format!("usage nobody gpt-4 {DAY} {words}").trim_end());
            assert!(nothing.text(0).starts_with(said), "{}", nothing.out);
        }
        for bad in [
            "--from now",
            "--from -1y",
            "--window hours",
            "--from -999w --window minute --chart",
            "--chart --output json",
            "--html page.html --output csv",
            "--output xml",
        ] {
            assert_eq!(shell.run(&format!("usage user-123 gpt-4 {bad}")).code, 2, "{bad}");
        }
        assert_eq!(shell.run("status u --output csv").code, 2);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_has_a_chart_for_every_limit_and_needs_nothing_else() {
    on_every_engine(async |shell| {
        replayed(shell);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("usage.html");
        let page = |words: &str| {
            shell.run(&format!("usage {words} {DAY} --html {}", file.display())).text(0);
            std::fs::read_to_string(&file).unwrap()
        };
        let bucket = page("user-123 gpt-4");
        assert_eq!(bucket.matches("<svg").count(), 2, "rpm and tpm");
        assert!(bucket.contains("<title>2026-01-28 14:00 UTC, 1 hour: 4,340 tokens</title>"));
        assert!(
            bucket.contains("no data")
                && bucket.contains("tokens per hour")
                && bucket.contains("time (UTC)")
        );
        for outside in ["http:", "https:", "src=", "@import", "<script"] {
            assert!(!bucket.contains(outside), "{outside}");
        }
        assert!(page("--resource gpt-4").contains("class=\"legend\""));
        assert!(page("nobody gpt-4").contains("no usage of nobody"));
        let unwritable = format!("usage user-123 {DAY} --html {}/", file.display());
        shell.run(&unwritable).error(6);
    })
    .await;
}
