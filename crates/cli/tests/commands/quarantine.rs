//! `quarantine`: listed, counted once, given up.

use serde_json::{Value, json};

use crate::support::{Shell, on_every_engine};

/// Quarantines the odd sample records; returns the open entries.
fn entries(shell: &Shell) -> Vec<Value> {
    let events =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/events-bad/broken-counters.json");
    shell.run_words(&["replay", events, "--table", &shell.table, "--output", "json"]).json(1);
    listed(shell, "")
}

fn listed(shell: &Shell, words: &str) -> Vec<Value> {
    let line = format!("quarantine list --output json {words}");
    shell.run(line.trim_end()).json(0).as_array().unwrap().clone()
}

fn id(entry: &Value) -> &str {
    entry["id"].as_str().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_are_listed_and_dropped_when_that_is_meant() {
    on_every_engine(async |shell| {
        assert_eq!(shell.run("quarantine list").text(0), "the quarantine is empty\n");
        assert_eq!(shell.run("quarantine drop --all").text(0), "0 entries closed, 0 left open\n");
        let open = entries(shell);
        assert!(!open.is_empty());
        assert!(open.iter().all(|entry| entry["state"] == "open" && entry["record"].is_object()));
        let table = shell.run("quarantine list");
        assert!(
            table.text(0).contains(id(&open[0])) && table.out.contains("#BUCKET#"),
            "{}",
            table.out
        );

        let unknown = shell.run("quarantine drop 7#8#9 --yes");
        assert!(unknown.error(1).contains("sluicegate quarantine list"), "{}", unknown.err);
        let asked = shell.run(&format!("quarantine drop {}", id(&open[0])));
        assert!(asked.error(2).contains("--yes"), "{}", asked.err);
        shell.run(&format!("quarantine drop {} --yes", id(&open[0]))).text(0);
        assert_eq!(listed(shell, "").len(), open.len() - 1);
        assert_eq!(listed(shell, "--closed").len(), open.len());

        // Delivered again: the entry that was given up stays so.
        assert_eq!(entries(shell).len(), open.len() - 1);
        assert_eq!(shell.run("quarantine drop").code, 2);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_counts_what_can_be_counted_and_says_what_cannot() {
    on_every_engine(async |shell| {
        let open = entries(shell);
        let said = shell.run("quarantine replay --all --output json").json(1);
        assert_eq!(said.as_array().unwrap().len(), open.len());
        assert!(
            said.as_array().unwrap().iter().all(|entry| entry["result"] == "cannot be counted")
        );

        // Repaired by hand: now it reads like any other, and no window has counted it.
        let mut record = open[0]["record"].clone();
        for image in ["OldImage", "NewImage"] {
            let Some(image) = record["dynamodb"][image].as_object_mut() else { continue };
            image.retain(|name, _| !name.starts_with("b_"));
            image.insert("b_rpm_tc".to_owned(), json!({"N": "0"}));
        }
        record["dynamodb"]["NewImage"]["b_rpm_tc"] = json!({"N": "5000"});
        record["dynamodb"]["Keys"]["PK"] = json!({"S": "ENTITY#repaired"});
        let text = |text: &str| aws_sdk_dynamodb::types::AttributeValue::S(text.to_owned());
        let update = shell.engine.client().update_item().table_name(&shell.table);
        let update = update.key("PK", text("QUARANTINE#")).key("SK", text(id(&open[0])));
        let update = update.update_expression("SET #record = :record");
        let update = update.expression_attribute_names("#record", "record");
        update
            .expression_attribute_values(":record", text(&record.to_string()))
            .send()
            .await
            .unwrap();

        let replay = || shell.run(&format!("quarantine replay {}", id(&open[0])));
        let counted = replay();
        assert!(counted.text(0).ends_with("1 entry closed, 0 left open\n"), "{}", counted.out);
        replay().error(1);
        let span = "--from 2026-01-01T00:00:00Z --to 2027-01-01T00:00:00Z --output json";
        let usage = shell.run(&format!("usage repaired --window day {span}")).json(0);
        assert_eq!(usage[0]["consumed_milli"], json!({"rpm": 5_000}));
        assert_eq!(usage[0]["events"], 1);
    })
    .await;
}
