//! Tests each fault from the view of the client and of the engine.

use std::time::Duration;

use aws_sdk_dynamodb::Client as DynamoDb;
use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::types::AttributeValue;
use sluicegate_local::client;

use super::*;
use crate::{EngineKind, RunningEngine};

/// An engine, a proxy in front of it, a client through the proxy, and a table.
async fn set_up() -> (RunningEngine, Proxy, DynamoDb, String) {
    let engine = RunningEngine::start(EngineKind::Embedded).await;
    let table = engine.create_table().await;
    let proxy = Proxy::start(engine.endpoint_url()).await;
    let client = client::dynamodb(&proxy.endpoint_url());
    (engine, proxy, client, table)
}

type Updated = Result<(), aws_sdk_dynamodb::error::SdkError<UpdateItemError>>;

async fn add_one(client: &DynamoDb, table: &str) -> Updated {
    let update = client
        .update_item()
        .table_name(table)
        .key("PK", AttributeValue::S("p".into()))
        .key("SK", AttributeValue::S("s".into()))
        .update_expression("ADD n :one")
        .expression_attribute_values(":one", AttributeValue::N("1".into()));
    update.send().await.map(drop)
}

/// The value that the engine holds, read without the proxy.
async fn stored(engine: &RunningEngine, table: &str) -> u64 {
    let items = engine.client().scan().table_name(table).send().await.unwrap();
    items.items().first().map_or(0, |item| item["n"].as_n().unwrap().parse().unwrap())
}

#[tokio::test]
async fn requests_are_counted_by_operation() {
    let (engine, proxy, client, table) = set_up().await;
    add_one(&client, &table).await.unwrap();
    add_one(&client, &table).await.unwrap();
    client.scan().table_name(&table).send().await.unwrap();
    let counts = proxy.received_by_operation();
    assert_eq!(counts, [("Scan".into(), 1), ("UpdateItem".into(), 2)].into());
    assert_eq!((proxy.forwarded("UpdateItem"), proxy.received("Query")), (2, 0));
    proxy.reset_counts();
    assert_eq!(proxy.received("UpdateItem"), 0);
    engine.stop().await;
}

#[tokio::test]
async fn a_metered_proxy_counts_units_also_of_failed_conditions() {
    let (engine, _, _, table) = set_up().await;
    let proxy = Proxy::start_metered(engine.endpoint_url()).await;
    let client = client::dynamodb(&proxy.endpoint_url());
    add_one(&client, &table).await.unwrap();
    assert_eq!(proxy.take_units(), Units { read: 0.0, write: 1.0 });
    let key = ["PK", "SK"].map(|name| (name.to_owned(), AttributeValue::S("x".into())));
    let put = client.put_item().table_name(&table).set_item(Some(key.clone().into()));
    let put = put.condition_expression("attribute_exists(PK)");
    put.send().await.unwrap_err();
    let get = client.get_item().table_name(&table).set_key(Some(key.into()));
    get.consistent_read(true).send().await.unwrap();
    assert_eq!(proxy.take_units(), Units { read: 1.0, write: 1.0 });
    assert_eq!(proxy.take_units(), Units::default());
    engine.stop().await;
}

#[tokio::test]
async fn the_next_write_that_is_done_loses_its_answer() {
    let (engine, proxy, client, table) = set_up().await;
    proxy.lose_next_write();
    let key = ["PK", "SK"].map(|name| (name.to_owned(), AttributeValue::S("x".into())));
    let put = client.put_item().table_name(&table).set_item(Some(key.into()));
    let refused = put.condition_expression("attribute_exists(PK)").send().await.unwrap_err();
    assert!(refused.into_service_error().is_conditional_check_failed_exception());
    let lost = add_one(&client, &table).await.unwrap_err();
    assert!(lost.raw_response().is_none(), "{lost:?}");
    add_one(&client, &table).await.unwrap();
    assert_eq!(stored(&engine, &table).await, 2);
    engine.stop().await;
}

#[tokio::test]
async fn a_policy_chooses_by_operation_number_and_body() {
    let (engine, proxy, client, table) = set_up().await;
    proxy.inject(|call| {
        assert!(call.body.starts_with(b"{"));
        match (call.operation, call.number) {
            ("UpdateItem", 1) => Fault::THROTTLED,
            ("UpdateItem", 2) => Fault::THROTTLING,
            ("UpdateItem", 3) => Fault::INTERNAL,
            _ => Fault::None,
        }
    });
    let throttled = add_one(&client, &table).await.unwrap_err().into_service_error();
    assert!(throttled.is_provisioned_throughput_exceeded_exception());
    let throttling = add_one(&client, &table).await.unwrap_err().into_service_error();
    assert_eq!(throttling.meta().code(), Some("ThrottlingException"));
    let internal = add_one(&client, &table).await.unwrap_err();
    assert_eq!(internal.raw_response().unwrap().status().as_u16(), 500);
    assert!(internal.into_service_error().is_internal_server_error());
    add_one(&client, &table).await.unwrap();
    assert_eq!((proxy.received("UpdateItem"), proxy.forwarded("UpdateItem")), (4, 1));
    assert_eq!(stored(&engine, &table).await, 1);
    engine.stop().await;
}

#[tokio::test]
async fn a_lost_reply_is_a_write_that_landed() {
    let (engine, proxy, client, table) = set_up().await;
    proxy.inject(|_| Fault::LoseReply);
    let error = add_one(&client, &table).await.unwrap_err();
    assert!(error.as_service_error().is_none() && error.raw_response().is_none(), "{error:?}");
    assert_eq!(stored(&engine, &table).await, 1);
    // Neither the client nor the proxy sent it twice.
    assert_eq!((proxy.received("UpdateItem"), proxy.forwarded("UpdateItem")), (1, 1));
    engine.stop().await;
}

#[tokio::test]
async fn a_cut_connection_is_a_write_that_did_not() {
    let (engine, proxy, client, table) = set_up().await;
    // Once on a new connection, once on a kept one.
    add_one(&client, &table).await.unwrap();
    proxy.inject(|_| Fault::Cut);
    assert!(add_one(&client, &table).await.is_err());
    assert!(add_one(&client, &table).await.is_err());
    assert_eq!((proxy.received("UpdateItem"), proxy.forwarded("UpdateItem")), (3, 1));
    assert_eq!(stored(&engine, &table).await, 1);
    engine.stop().await;
}

#[tokio::test]
async fn a_late_write_lands_when_nobody_waits_for_it() {
    let (engine, proxy, client, table) = set_up().await;
    proxy.inject(|call| match call.number {
        1 => Fault::Late(Duration::from_millis(50)),
        _ => Fault::None,
    });
    assert!(add_one(&client, &table).await.is_err());
    add_one(&client, &table).await.unwrap();
    assert_eq!((stored(&engine, &table).await, proxy.forwarded("UpdateItem")), (1, 1));
    while proxy.forwarded("UpdateItem") < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(stored(&engine, &table).await, 2);
    engine.stop().await;
}

#[tokio::test]
async fn a_cancelled_transaction_says_why_item_by_item() {
    let (engine, proxy, client, _) = set_up().await;
    proxy.inject(|_| Fault::Cancel(&["None", "TransactionConflict"]));
    let error = client.transact_write_items().send().await.unwrap_err().into_service_error();
    let TransactWriteItemsError::TransactionCanceledException(cancelled) = error else {
        panic!("{error:?}")
    };
    let reasons = cancelled.cancellation_reasons().iter();
    let codes: Vec<_> = reasons.map(|reason| reason.code().unwrap()).collect();
    assert_eq!(codes, ["None", "TransactionConflict"]);
    assert_eq!(proxy.forwarded("TransactWriteItems"), 0);
    engine.stop().await;
}

#[tokio::test]
async fn a_delay_is_at_least_as_long_as_asked_for() {
    let (engine, proxy, client, table) = set_up().await;
    let delay = Duration::from_millis(50);
    proxy.inject(move |_| Fault::Delay(delay));
    let start = std::time::Instant::now();
    add_one(&client, &table).await.unwrap();
    assert!(start.elapsed() >= delay);
    engine.stop().await;
}

#[tokio::test]
async fn a_dropped_proxy_no_longer_listens() {
    let (engine, proxy, client, table) = set_up().await;
    add_one(&client, &table).await.unwrap();
    let address = proxy.address;
    drop(proxy);
    while TcpStream::connect(address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    assert!(add_one(&client, &table).await.is_err());
    engine.stop().await;
}
