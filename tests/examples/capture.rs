//! Captures the records of a real stream for the writes of a bucket's life, as Lambda would get
//! them.
//!
//! `capture FILE` writes to a table on the embedded engine as a producer does (every write path, an
//! expiry, a creation after it), reads the table's stream, and saves the records in FILE. The times
//! in the items are fixed, so windows found by `rf` are always the same; the times of the records
//! are those of the capture, and so are the windows of writes that do not change `rf`.
//!
//! The requests are written out here, not built by the product, because the capture tests the
//! product.
#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used, reason = "a tool by hand")]

use std::collections::HashMap;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::operation::update_item::builders::UpdateItemFluentBuilder;
use aws_sdk_dynamodb::types::AttributeValue;
use serde_json::Value;
use sluicegate_local::poller::{Source, StreamSource};
use sluicegate_local::{EmbeddedEngine, Storage, client, table};

const TABLE: &str = "sluicegate-limits";
const PK: &str = "ENTITY#user-captured";
const SK: &str = "#BUCKET#gpt-4";
/// 2026-01-28T14:00:00Z; divisible by three, so that accruals below are easy to check.
const CREATED_MS: i64 = 1_769_608_800_000;
/// An empty bucket is full after a minute: 60 s + 2 x 60 s.
const TTL_S: i64 = 180;
/// `rpm`: 60 at once and a minute. `tpm`: 100,000 at once and a minute.
const BURST: Amounts = Amounts { rpm: 60_000, tpm: 100_000_000 };

/// Millitokens of both limits.
#[derive(Clone, Copy)]
struct Amounts {
    rpm: i64,
    tpm: i64,
}

#[tokio::main]
async fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [file] = args.as_slice() else { panic!("usage: capture FILE") };
    let engine = EmbeddedEngine::start(Storage::Memory).await.unwrap();
    let client = client::dynamodb(&engine.endpoint_url());
    table::create_table(&client, TABLE).await.unwrap();

    live_a_life(&client).await;
    assert_eq!(engine.sweep_ttl().await.unwrap(), 1, "the bucket expires");
    create(&client, CREATED_MS + 7_200_000, Amounts { rpm: 4_000, tpm: 1_600_000 }).await;

    let records = read_stream(&engine, &client).await;
    assert_eq!(records.len(), 8, "one record for each write");
    let event = serde_json::json!({ "Records": records });
    let text = format!("{event:#}\n");
    std::fs::write(file, text).unwrap_or_else(|error| panic!("{file}: {error}"));
    println!("{file}: {} records", records.len());
    engine.stop().await.unwrap();
}

/// The four write paths, in an order in which a bucket sees them.
async fn live_a_life(client: &Client) {
    create(client, CREATED_MS, Amounts { rpm: 1_000, tpm: 500_000 }).await;

    // 250 ms later 250 and 416,666 have accrued and fit: a whole claim.
    let first = CREATED_MS + 250;
    normal(
        client,
        "SET rf = :now, #ttl = :ttl, lr1 = lr, lr = :id \
         ADD b_rpm_tk :rpm_tk, b_rpm_tc :rpm_tc, b_tpm_tk :tpm_tk, b_tpm_tc :tpm_tc",
        "rf = :expected AND b_rpm_tk >= :rpm_floor AND b_rpm_tk <= :rpm_ceiling \
         AND b_tpm_tk >= :tpm_floor AND b_tpm_tk <= :tpm_ceiling AND NOT lr IN (:id)",
        Claim { expected: CREATED_MS, now: first, id: "00000002" },
        [(250, 2_000), (416_666, 1_200_000)],
    )
    .expression_attribute_values(":rpm_floor", number(2_000 - 250))
    .expression_attribute_values(":rpm_ceiling", number(BURST.rpm - 250))
    .expression_attribute_values(":tpm_floor", number(1_200_000 - 416_666))
    .expression_attribute_values(":tpm_ceiling", number(BURST.tpm - 416_666))
    .send()
    .await
    .unwrap();

    retry(client, first, Amounts { rpm: 3_000, tpm: 2_400_000 }).await;
    adjust(client, "b_tpm_tk :tpm_tk, b_tpm_tc :tpm_tc", "attribute_exists(b_tpm_cp)")
        .expression_attribute_values(":tpm_tk", number(-740_000))
        .expression_attribute_values(":tpm_tc", number(740_000))
        .send()
        .await
        .unwrap();
    adjust(
        client,
        "b_rpm_tk :rpm_tk, b_rpm_tc :rpm_tc, b_tpm_tk :tpm_tk, b_tpm_tc :tpm_tc",
        "attribute_exists(b_rpm_cp) AND attribute_exists(b_tpm_cp)",
    )
    .expression_attribute_values(":rpm_tk", number(1_000))
    .expression_attribute_values(":rpm_tc", number(-1_000))
    .expression_attribute_values(":tpm_tk", number(500_000))
    .expression_attribute_values(":tpm_tc", number(-500_000))
    .send()
    .await
    .unwrap();

    // An hour later both are full: claims cut at the burst, right only for the balances seen.
    let seen = Amounts { rpm: 55_250, tpm: 96_076_666 };
    normal(
        client,
        "SET rf = :now, #ttl = :ttl, lr2 = lr1, lr1 = lr, lr = :id \
         ADD b_rpm_tk :rpm_tk, b_rpm_tc :rpm_tc, b_tpm_tk :tpm_tk, b_tpm_tc :tpm_tc",
        "rf = :expected AND b_rpm_tk = :rpm_seen AND b_tpm_tk = :tpm_seen AND NOT lr IN (:id)",
        Claim { expected: first, now: CREATED_MS + 3_605_000, id: "00000006" },
        [(BURST.rpm - seen.rpm, 1_000), (BURST.tpm - seen.tpm, 400_000)],
    )
    .expression_attribute_values(":rpm_seen", number(seen.rpm))
    .expression_attribute_values(":tpm_seen", number(seen.tpm))
    .send()
    .await
    .unwrap();
}

/// Create: PutItem, full less what is consumed.
async fn create(client: &Client, now_ms: i64, consumed: Amounts) {
    let mut item: HashMap<String, AttributeValue> = HashMap::new();
    for (name, value) in [
        ("PK", PK),
        ("SK", SK),
        ("entity_id", "user-captured"),
        ("resource", "gpt-4"),
        ("GSI2PK", "RESOURCE#gpt-4"),
        ("GSI2SK", "BUCKET#user-captured"),
        ("lr", "00000001"),
    ] {
        item.insert(name.to_owned(), AttributeValue::S(value.to_owned()));
    }
    item.insert("rf".to_owned(), number(now_ms));
    item.insert("ttl".to_owned(), number(now_ms / 1_000 + TTL_S));
    for (limit, burst, consumed) in
        [("rpm", BURST.rpm, consumed.rpm), ("tpm", BURST.tpm, consumed.tpm)]
    {
        for (field, value) in [
            ("tk", burst - consumed),
            ("cp", burst),
            ("bx", burst),
            ("ra", burst),
            ("rp", 60_000),
            ("tc", consumed),
        ] {
            item.insert(format!("b_{limit}_{field}"), number(value));
        }
    }
    client
        .put_item()
        .table_name(TABLE)
        .set_item(Some(item))
        .condition_expression("attribute_not_exists(PK)")
        .send()
        .await
        .unwrap();
}

/// The time of a refill claim, and the one before.
struct Claim {
    expected: i64,
    now: i64,
    id: &'static str,
}

/// Normal: moves `rf`, adds refill less consumption; per limit `(claim, consumed)`.
fn normal(
    client: &Client,
    update: &str,
    condition: &str,
    claim: Claim,
    [rpm, tpm]: [(i64, i64); 2],
) -> UpdateItemFluentBuilder {
    this_bucket(client)
        .update_expression(update)
        .condition_expression(condition)
        .expression_attribute_names("#ttl", "ttl")
        .expression_attribute_values(":now", number(claim.now))
        .expression_attribute_values(":ttl", number(claim.now / 1_000 + TTL_S))
        .expression_attribute_values(":expected", number(claim.expected))
        .expression_attribute_values(":id", AttributeValue::S(claim.id.to_owned()))
        .expression_attribute_values(":rpm_tk", number(rpm.0 - rpm.1))
        .expression_attribute_values(":rpm_tc", number(rpm.1))
        .expression_attribute_values(":tpm_tk", number(tpm.0 - tpm.1))
        .expression_attribute_values(":tpm_tc", number(tpm.1))
}

/// Retry: consumes 40 ms after another writer claimed, and does not change `rf`.
async fn retry(client: &Client, claimed_ms: i64, asked: Amounts) {
    this_bucket(client)
        .update_expression(
            "SET lr2 = lr1, lr1 = lr, lr = :id \
             ADD b_rpm_tk :rpm_tk, b_rpm_tc :rpm_tc, b_tpm_tk :tpm_tk, b_tpm_tc :tpm_tc",
        )
        .condition_expression(
            "rf >= :claimed AND b_rpm_tk BETWEEN :rpm_tc AND :rpm_guard \
             AND b_tpm_tk BETWEEN :tpm_tc AND :tpm_guard AND NOT lr IN (:id)",
        )
        .expression_attribute_values(":claimed", number(claimed_ms))
        .expression_attribute_values(":id", AttributeValue::S("00000003".to_owned()))
        .expression_attribute_values(":rpm_tk", number(-asked.rpm))
        .expression_attribute_values(":rpm_tc", number(asked.rpm))
        .expression_attribute_values(":rpm_guard", number(BURST.rpm - 40))
        .expression_attribute_values(":tpm_tk", number(-asked.tpm))
        .expression_attribute_values(":tpm_tc", number(asked.tpm))
        .expression_attribute_values(":tpm_guard", number(BURST.tpm - 66_667))
        .send()
        .await
        .unwrap();
}

/// Adjust: a plain ADD to limits that exist.
fn adjust(client: &Client, add: &str, exist: &str) -> UpdateItemFluentBuilder {
    this_bucket(client).update_expression(format!("ADD {add}")).condition_expression(exist)
}

fn this_bucket(client: &Client) -> UpdateItemFluentBuilder {
    client
        .update_item()
        .table_name(TABLE)
        .key("PK", AttributeValue::S(PK.to_owned()))
        .key("SK", AttributeValue::S(SK.to_owned()))
}

/// Everything in the table's stream, oldest first.
async fn read_stream(engine: &EmbeddedEngine, client: &Client) -> Vec<Value> {
    let arn = table::stream_arn(client, TABLE).await.unwrap();
    let stream = StreamSource::new(client::streams(&engine.endpoint_url()), arn);
    let mut records = Vec::new();
    for shard in stream.shards().await.unwrap() {
        let mut after = None;
        loop {
            let page = stream.read(&shard.id, after.as_ref(), 100).await.unwrap();
            let Some(last) = page.records.last() else { break };
            after = Some(last.position.clone());
            let json = page.records.iter().map(|record| record.json.get());
            records.extend(json.map(|json| serde_json::from_str::<Value>(json).unwrap()));
        }
    }
    records
}

fn number(value: i64) -> AttributeValue {
    AttributeValue::N(value.to_string())
}
