//! Envoy asks while the store is silent.

use std::time::Duration;

use serde_json::json;
use sluicegate::{DynamoStore, Limiter, OnUnavailable};
use sluicegate_local::client;
use sluicegate_testkit::{Fault, Proxy, on_every_engine};
use tokio::time::{Instant, timeout};
use tonic::Code as GrpcCode;

use crate::envoy::{ask, client as envoy, descriptor, rules};
use crate::running::{Running, config};

#[tokio::test]
async fn a_silent_store_is_unavailable_unless_the_server_admits_in_outage() {
    let silent = Proxy::start("http://127.0.0.1:9").await;
    for (policy, on_unavailable, expected) in [
        ("deny", OnUnavailable::Deny, Some(GrpcCode::Unavailable)),
        ("allow", OnUnavailable::Allow, None),
    ] {
        let client = client::dynamodb(&silent.endpoint_url());
        let store = DynamoStore::new(client, "t");
        let limiter = Limiter::builder(store).on_unavailable(on_unavailable).build();
        let mut rules = rules();
        rules["on_unavailable"] = json!(policy);
        let server = Running::start(config(rules), limiter).await;
        let mut client = envoy(&server).await;
        for (entries, hits) in [
            (vec![("user", "a")], None),
            (vec![("user", "a"), ("tokens", "x")], Some(0)),
            (vec![("user", "a"), ("used", "x")], Some(7)),
        ] {
            let answer = ask(&mut client, 0, vec![descriptor(&entries, hits)]).await;
            assert_eq!(answer.err().map(|error| error.code()), expected, "{policy} {entries:?}");
        }
        if expected.is_none() {
            // A permit that took nothing has nothing to give back, which is no mistake.
            let wanted = json!({
                "entity": "u", "resource": "r", "amounts": {"rpm": 10}, "limits": ["rpm=100/min"],
            });
            let permit = server.post("/v1/acquire", &wanted).await.permit();
            let back = json!({"by": {"rpm": -5}});
            let answer = server.post(&format!("/v1/permits/{permit}/adjust"), &back).await;
            assert_eq!((answer.status.as_u16(), &answer.body["changed"]), (200, &json!(false)));
        }
    }
}

/// Envoy waits 20 ms, less than the limiter waits for the store.
#[tokio::test]
async fn the_server_admits_in_outage_although_no_client_waits_for_the_store() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let proxy = Proxy::start(engine.endpoint_url()).await;
        let store = DynamoStore::new(client::dynamodb(&proxy.endpoint_url()), table);
        let limiter = Limiter::builder(store).on_unavailable(OnUnavailable::Deny).build();
        let server = Running::start(config(rules()), limiter).await;
        let mut client = envoy(&server).await;
        let hit = || vec![descriptor(&[("user", "a")], None)];
        ask(&mut client, 0, hit()).await.unwrap();
        proxy.inject(|_| Fault::Delay(Duration::from_secs(60)));
        let late = Instant::now() + Duration::from_secs(30);
        let answer = loop {
            match timeout(Duration::from_millis(20), ask(&mut client, 0, hit())).await {
                Ok(answer) => break answer,
                Err(_) => assert!(Instant::now() < late, "requests still wait"),
            }
        };
        assert_eq!(answer.unwrap_err().code(), GrpcCode::Unavailable);
    })
    .await;
}

/// The store answers the correction, which finds no such limit in the bucket, and not the acquire
/// that adds the limit.
#[tokio::test]
async fn a_use_of_a_new_limit_is_admitted_although_the_store_fails_meanwhile() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let proxy = Proxy::start(engine.endpoint_url()).await;
        let store = DynamoStore::new(client::dynamodb(&proxy.endpoint_url()), table);
        let limiter = Limiter::builder(store).on_unavailable(OnUnavailable::Allow).build();
        let mut rules = rules();
        rules["on_unavailable"] = json!("allow");
        let server = Running::start(config(rules), limiter).await;
        let mut client = envoy(&server).await;
        ask(&mut client, 0, vec![descriptor(&[("user", "a")], None)]).await.unwrap();
        proxy.inject(|call| match call.operation {
            "UpdateItem" => Fault::Delay(Duration::from_secs(60)),
            _ => Fault::None,
        });
        let used = || vec![descriptor(&[("user", "a"), ("used", "x")], Some(7))];
        ask(&mut client, 0, used()).await.unwrap();
        assert!(proxy.received("UpdateItem") > 0, "the acquire was sent");
    })
    .await;
}
