//! Tests the stream source over the embedded engine's real stream, and over an API that does the
//! things that engines on loopback never do: close shards, paginate, expire iterators, trim
//! records.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use aws_lambda_events::event::dynamodb::{EventRecord, StreamViewType};
use aws_sdk_dynamodb::types::AttributeValue;
use aws_sdk_dynamodbstreams::types::ShardIteratorType;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use sluicegate_local::poller::{Poller, Position, Record, Shard, Source, StreamSource};
use sluicegate_local::{EmbeddedEngine, Error, Storage, client, table};

use crate::script::{Answer, Script, settings};

const TABLE: &str = "sluicegate-stream";
const SHARD: &str = "shardId-00000001-scripted";

struct ScriptedEngine {
    engine: EmbeddedEngine,
    client: aws_sdk_dynamodb::Client,
    source: StreamSource,
    shard: String,
}

async fn fixture() -> ScriptedEngine {
    let engine = EmbeddedEngine::start(Storage::Memory).await.unwrap();
    let url = engine.endpoint_url();
    let client = client::dynamodb(&url);
    table::create_table(&client, TABLE).await.unwrap();
    let arn = table::stream_arn(&client, TABLE).await.unwrap();
    let source = StreamSource::new(client::streams(&url), arn);
    let shards = source.shards().await.unwrap();
    assert_eq!(shards.len(), 1);
    let shard = shards[0].id.clone();
    ScriptedEngine { engine, client, source, shard }
}

fn text(value: &str) -> AttributeValue {
    AttributeValue::S(value.into())
}

async fn put(client: &aws_sdk_dynamodb::Client, pk: &str, version: u64, ttl: u64) {
    client
        .put_item()
        .table_name(TABLE)
        .item("PK", text(pk))
        .item("SK", text("s"))
        .item("v", AttributeValue::N(version.to_string()))
        .item("ttl", AttributeValue::N(ttl.to_string()))
        .send()
        .await
        .unwrap();
}

fn decode(record: &Record) -> EventRecord {
    serde_json::from_str(record.json.get()).unwrap()
}

#[tokio::test]
async fn changes_of_an_item_arrive_as_lambda_would_hand_them_over() {
    let ScriptedEngine { engine, client, source, shard } = fixture().await;
    put(&client, "p", 1, 1).await;
    put(&client, "p", 2, 1).await;
    // Expired long ago: the sweep makes the REMOVE, with an identity.
    engine.sweep_ttl().await.unwrap();
    put(&client, "q", 3, u64::MAX).await;
    client
        .delete_item()
        .table_name(TABLE)
        .key("PK", text("q"))
        .key("SK", text("s"))
        .send()
        .await
        .unwrap();

    let page = source.read(&shard, None, 100).await.unwrap();
    assert!(!page.ended, "the shard is open, whatever its EndingSequenceNumber says");
    let events: Vec<EventRecord> = page.records.iter().map(decode).collect();
    let names: Vec<&str> = events.iter().map(|event| event.event_name.as_str()).collect();
    assert_eq!(names, ["INSERT", "MODIFY", "REMOVE", "INSERT", "REMOVE"]);

    let arn = table::stream_arn(&client, TABLE).await.unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    for (event, record) in events.iter().zip(&page.records) {
        assert_eq!(event.event_source.as_deref(), Some("aws:dynamodb"));
        assert_eq!(event.event_source_arn.as_deref(), Some(arn.as_str()));
        let sequence_number = event.change.sequence_number.as_deref();
        assert_eq!(sequence_number, Some(record.position.as_str()));
        assert_eq!(event.change.stream_view_type, Some(StreamViewType::NewAndOldImages));
        assert_eq!(event.change.keys.len(), 2);
        let created = event.change.approximate_creation_date_time.timestamp();
        assert!(now.abs_diff(u64::try_from(created).unwrap()) < 3_600);
    }
    let version = |item: &serde_dynamo::Item| match item.get("v") {
        Some(serde_dynamo::AttributeValue::N(n)) => n.clone(),
        _ => String::new(),
    };
    let images = events[..3].iter().map(|event| &event.change);
    let images: Vec<_> = images.map(|c| (version(&c.old_image), version(&c.new_image))).collect();
    let expected = [("", "1"), ("1", "2"), ("2", "")].map(|(o, n)| (o.into(), n.into()));
    assert_eq!(images, expected);
    assert_eq!(events[2].user_identity.as_ref().unwrap().principal_id, "dynamodb.amazonaws.com");
    assert_eq!(events[2].user_identity.as_ref().unwrap().type_, "Service");
    assert!(events[4].user_identity.is_none(), "a deletion by hand has no identity");
    engine.stop().await.unwrap();
}

#[tokio::test]
async fn reads_go_on_where_the_last_left_off_and_start_where_they_are_told() {
    let ScriptedEngine { engine, client, source, shard } = fixture().await;
    for version in 1..=5 {
        put(&client, "p", version, u64::MAX).await;
    }
    let first = source.read(&shard, None, 2).await.unwrap().records;
    let after = first[1].position.clone();
    let second = source.read(&shard, Some(&after), 2).await.unwrap().records;
    // The iterator kept from `second` does not fit this position: a new one is fetched.
    let again = source.read(&shard, Some(&after), 100).await.unwrap().records;
    assert_eq!((first.len(), second.len(), again.len()), (2, 2, 3));
    assert_eq!(second[0].position, again[0].position);
    let end = again[2].position.clone();
    assert!(source.read(&shard, Some(&end), 100).await.unwrap().records.is_empty());
    engine.stop().await.unwrap();
}

/// Detects a new version of the engine that makes a part of `quirks` unnecessary.
#[tokio::test]
async fn the_engine_still_spells_identities_in_lower_case() {
    let ScriptedEngine { engine, client, shard, .. } = fixture().await;
    put(&client, "p", 1, 1).await;
    engine.sweep_ttl().await.unwrap();
    let streams = client::streams(&engine.endpoint_url());
    let arn = table::stream_arn(&client, TABLE).await.unwrap();
    let oldest = ShardIteratorType::TrimHorizon;
    let request = streams.get_shard_iterator().stream_arn(arn).shard_id(shard);
    let iterator = request.shard_iterator_type(oldest).send().await.unwrap().shard_iterator;
    let request = streams.get_records().set_shard_iterator(iterator);
    let output = request.send().await.unwrap();
    let identity = output.records()[1].user_identity().unwrap();
    assert_eq!((identity.r#type(), identity.principal_id()), (None, None));
    engine.stop().await.unwrap();
}

/// Replies in order, each for the operation that it names.
type Replies = Arc<Mutex<VecDeque<(&'static str, u16, Value)>>>;

/// A Streams API that follows a script. A request out of turn gets a reply that no reader accepts.
async fn scripted(replies: Vec<(&'static str, u16, Value)>) -> (StreamSource, Replies) {
    let replies: Replies = Arc::new(Mutex::new(replies.into()));
    let handler = |State(replies): State<Replies>, headers: HeaderMap| async move {
        let target = headers["x-amz-target"].to_str().unwrap().to_owned();
        let operation = target.rsplit('.').next().unwrap();
        let mut replies = replies.lock().unwrap();
        match replies.pop_front_if(|(expected, ..)| *expected == operation) {
            Some((_, status, body)) => (StatusCode::from_u16(status).unwrap(), body.to_string()),
            None => (StatusCode::NOT_IMPLEMENTED, format!("{operation} is not next")),
        }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let app = axum::Router::new().fallback(handler).with_state(replies.clone());
    // Ends with the runtime of the test.
    tokio::spawn(async move { axum::serve(listener, app).await });
    (StreamSource::new(client::streams(&url), "arn:stream"), replies)
}

fn error(name: &str) -> Value {
    json!({"__type": format!("com.amazonaws.dynamodb.v20120810#{name}"), "message": name})
}

fn page_of(numbers: &[u64], next: Option<&str>) -> Value {
    let record = |n: &u64| json!({"dynamodb": {"SequenceNumber": sequence_number(*n)}});
    let records: Vec<Value> = numbers.iter().map(record).collect();
    match next {
        Some(next) => json!({"Records": records, "NextShardIterator": next}),
        None => json!({"Records": records}),
    }
}

fn sequence_number(n: u64) -> String {
    format!("1{n:020}")
}

fn iterator(name: &str) -> Value {
    json!({"ShardIterator": name})
}

#[tokio::test]
async fn all_pages_of_the_shard_list_are_read_with_parents() {
    let describe = |shards: Value, last: Option<&str>| {
        let mut description = json!({"StreamArn": "arn:stream", "Shards": shards});
        if let Some(last) = last {
            description["LastEvaluatedShardId"] = json!(last);
        }
        ("DescribeStream", 200, json!({"StreamDescription": description}))
    };
    let first = describe(json!([{"ShardId": "shardId-00000001-a"}]), Some("shardId-00000001-a"));
    let second = describe(
        json!([{"ShardId": "shardId-00000001-b", "ParentShardId": "shardId-00000001-a"}]),
        None,
    );
    let (source, replies) = scripted(vec![first, second]).await;
    let shards = source.shards().await.unwrap();
    let first = Shard { id: "shardId-00000001-a".into(), parent: None, is_closed: true };
    assert_eq!(shards[0], first);
    assert_eq!(shards[1].parent.as_deref(), Some("shardId-00000001-a"));
    assert!(replies.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_shard_without_a_next_iterator_has_ended_and_an_empty_page_says_nothing() {
    let (source, replies) = scripted(vec![
        ("GetShardIterator", 200, iterator("i0")),
        ("GetRecords", 200, page_of(&[], Some("i1"))),
        ("GetRecords", 200, page_of(&[], Some("i2"))),
        ("GetRecords", 200, page_of(&[1, 2], None)),
    ])
    .await;
    let mut ended = Vec::new();
    for _ in 0..3 {
        ended.push(source.read(SHARD, None, 10).await.unwrap().ended);
    }
    assert_eq!(ended, [false, false, true]);
    assert!(replies.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_drain_goes_on_past_empty_pages() {
    let describe = || {
        let shards = json!({"Shards": [{"ShardId": SHARD}]});
        ("DescribeStream", 200, json!({"StreamDescription": shards}))
    };
    let (source, replies) = scripted(vec![
        describe(),
        ("GetShardIterator", 200, iterator("i0")),
        ("GetRecords", 200, page_of(&[], Some("i1"))),
        ("GetRecords", 200, page_of(&[], Some("i2"))),
        ("GetRecords", 200, page_of(&[1], None)),
        // The shard has ended: its children are looked for.
        describe(),
    ])
    .await;
    let handler = Script::new(|_: &[u64]| Answer::Done);
    let mut poller = Poller::new(source, &handler, settings(10));
    poller.drain().await.unwrap();
    assert_eq!(handler.batches(), [[1]]);
    assert_eq!(poller.checkpoints()[SHARD], Position::new(sequence_number(1)));
    assert!(replies.lock().unwrap().is_empty());
}

/// A closed shard has an end, and its child comes after it.
#[tokio::test]
async fn a_drain_reads_a_closed_shard_to_its_end() {
    let describe = || {
        let child = json!({"ShardId": "shardId-2", "ParentShardId": SHARD});
        let shards = json!({"Shards": [{"ShardId": SHARD}, child]});
        ("DescribeStream", 200, json!({"StreamDescription": shards}))
    };
    let mut calls = vec![describe(), ("GetShardIterator", 200, iterator("i0"))];
    calls.extend((0..50).map(|_| ("GetRecords", 200, page_of(&[], Some("i1")))));
    calls.extend([("GetRecords", 200, page_of(&[1], None)), describe()]);
    calls.extend([("GetShardIterator", 200, iterator("i2"))]);
    calls.extend([("GetRecords", 200, page_of(&[2], None)), describe()]);
    let (source, replies) = scripted(calls).await;
    let handler = Script::new(|_: &[u64]| Answer::Done);
    Poller::new(source, &handler, settings(10)).drain().await.unwrap();
    assert_eq!(handler.batches(), [[1], [2]]);
    assert!(replies.lock().unwrap().is_empty());
}

#[tokio::test]
async fn an_expired_iterator_is_fetched_anew() {
    let (source, replies) = scripted(vec![
        ("GetShardIterator", 200, iterator("i0")),
        ("GetRecords", 200, page_of(&[1], Some("i1"))),
        ("GetRecords", 400, error("ExpiredIteratorException")),
        ("GetShardIterator", 200, iterator("i2")),
        ("GetRecords", 200, page_of(&[2], Some("i3"))),
    ])
    .await;
    let first = source.read(SHARD, None, 10).await.unwrap().records;
    let second = source.read(SHARD, Some(&first[0].position), 10).await.unwrap().records;
    assert_eq!(second[0].position, Position::new(sequence_number(2)));
    assert!(replies.lock().unwrap().is_empty());
}

#[tokio::test]
async fn after_trimmed_records_the_oldest_that_are_left_follow() {
    let after = Position::new(sequence_number(1));
    let (source, replies) = scripted(vec![
        ("GetShardIterator", 400, error("TrimmedDataAccessException")),
        ("GetShardIterator", 200, iterator("i0")),
        ("GetRecords", 200, page_of(&[7], None)),
    ])
    .await;
    let page = source.read(SHARD, Some(&after), 10).await.unwrap();
    assert_eq!(page.records[0].position, Position::new(sequence_number(7)));
    assert!(replies.lock().unwrap().is_empty());
}

/// Taken for the end of a shard, it would lose every record that is left in it.
#[tokio::test]
async fn an_empty_reply_is_an_error_and_the_next_read_goes_on() {
    let (source, replies) = scripted(vec![
        ("DescribeStream", 200, json!({})),
        ("GetShardIterator", 200, iterator("i0")),
        ("GetRecords", 200, json!({})),
        ("GetShardIterator", 200, iterator("i0")),
        ("GetRecords", 200, page_of(&[1], None)),
    ])
    .await;
    let listed = source.shards().await;
    assert!(matches!(listed, Err(Error::Stream { operation: "DescribeStream", .. })));
    let read = source.read(SHARD, None, 10).await;
    assert!(matches!(read, Err(Error::Stream { operation: "GetRecords", .. })));
    let page = source.read(SHARD, None, 10).await.unwrap();
    assert_eq!((page.records.len(), page.ended), (1, true));
    assert!(replies.lock().unwrap().is_empty());
}

#[tokio::test]
async fn any_other_refusal_is_an_error() {
    let (source, _) = scripted(vec![
        ("GetShardIterator", 200, iterator("i0")),
        ("GetRecords", 400, error("LimitExceededException")),
    ])
    .await;
    let refused = source.read(SHARD, None, 10).await;
    assert!(matches!(refused, Err(Error::Stream { operation: "GetRecords", .. })));
}
