//! Permits that another server settles than the one that granted them.

use serde_json::{Value, json};
use sluicegate::{DynamoStore, Limiter};
use sluicegate_local::client;
use sluicegate_testkit::{Proxy, on_every_engine};

use crate::running::{Answer, Running, config};

/// A file with a key, for servers that share it.
fn key() -> (tempfile::TempDir, Value) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key");
    std::fs::write(&file, "k".repeat(32)).unwrap();
    (folder, json!({"permits": {"key_file": file}}))
}

async fn replica(permits: &Value, endpoint_url: &str, table: &str) -> Running {
    let limiter = Limiter::new(DynamoStore::new(client::dynamodb(endpoint_url), table));
    Running::start(config(permits.clone()), limiter).await
}

async fn available(server: &Running) -> f64 {
    let shown = server.get("/v1/entities/u").await.body;
    shown["buckets"][0]["limits"][0]["available"].as_f64().unwrap()
}

async fn acquire(server: &Running) -> Answer {
    let wanted = json!({"entity": "u", "resource": "r", "amounts": {"tpm": 500}, "limits": ["tpm=1000/never"]});
    server.post("/v1/acquire", &wanted).await
}

async fn adjust(server: &Running, permit: &str, key: &str, body: Value) -> Answer {
    server
        .send("POST", &format!("/v1/permits/{permit}/adjust"), &[("idempotency-key", key)], &body)
        .await
}

async fn release(server: &Running, permit: &str) -> Answer {
    server.post(&format!("/v1/permits/{permit}/release"), &json!(null)).await
}

#[tokio::test]
async fn any_server_with_the_key_settles_a_permit_and_a_repetition_does_nothing() {
    let (_folder, permits) = key();
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let first = replica(&permits, engine.endpoint_url(), &table).await;
        let second = replica(&permits, engine.endpoint_url(), &table).await;
        let granted = acquire(&first).await.permit();
        assert!((available(&first).await - 500.0).abs() < 1e-9);

        let adjusted = adjust(&second, &granted, "a", json!({"to": {"tpm": 620}})).await;
        assert_eq!(
            (adjusted.status.as_u16(), &adjusted.body["changed"]),
            (200, &json!(true)),
            "{adjusted:?}"
        );
        assert!((available(&first).await - 380.0).abs() < 1e-9);
        // Repeated, on either server: the same answer, and nothing changes.
        for server in [&first, &second] {
            let again = adjust(server, &granted, "a", json!({"to": {"tpm": 620}})).await;
            assert_eq!(
                (again.permit(), &again.body["changed"]),
                (adjusted.permit(), &json!(false))
            );
        }
        assert!((available(&first).await - 380.0).abs() < 1e-9);
        // Another key is another correction.
        let more = adjust(&first, &adjusted.permit(), "b", json!({"by": {"tpm": 30}})).await;
        assert!((available(&first).await - 350.0).abs() < 1e-9);

        assert_eq!(release(&first, &more.permit()).await.body["changed"], true);
        assert_eq!(release(&second, &more.permit()).await.body["changed"], false);
        assert_eq!(release(&second, &granted).await.body["changed"], false);
        assert!((available(&first).await - 1_000.0).abs() < 1e-9);
    })
    .await;
}

#[tokio::test]
async fn a_release_with_a_lost_answer_is_repeated_without_harm() {
    let (_folder, permits) = key();
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let proxy = Proxy::start(engine.endpoint_url()).await;
        let behind = replica(&permits, &proxy.endpoint_url(), &table).await;
        let direct = replica(&permits, engine.endpoint_url(), &table).await;
        let granted = acquire(&direct).await.permit();
        proxy.lose_next_write();
        let lost = release(&behind, &granted).await;
        assert!([200, 503].contains(&lost.status.as_u16()), "{lost:?}");
        assert_eq!(release(&direct, &granted).await.body["changed"], false);
        assert!((available(&direct).await - 1_000.0).abs() < 1e-9);
    })
    .await;
}

#[tokio::test]
async fn ids_that_are_changed_expired_or_foreign_are_refused() {
    let (_folder, permits) = key();
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let server = replica(&permits, engine.endpoint_url(), &table).await;
        let granted = acquire(&server).await.permit();
        let mut changed = granted.clone().into_bytes();
        changed[40] = if changed[40] == b'A' { b'B' } else { b'A' };
        let changed = String::from_utf8(changed).unwrap();
        assert_eq!(release(&server, &changed).await.status, 404);
        // Another server with a key of its own.
        let foreign = replica(&json!({}), engine.endpoint_url(), &table).await;
        assert_eq!(release(&foreign, &granted).await.status, 404);
        let mut short = permits.clone();
        short["permits"]["valid_for_s"] = json!(1);
        let short = replica(&short, engine.endpoint_url(), &table).await;
        let soon_old = acquire(&short).await.permit();
        tokio::time::sleep(std::time::Duration::from_millis(2_100)).await;
        assert_eq!(release(&server, &soon_old).await.status, 410);
        assert!((available(&server).await - 0.0).abs() < 1e-9, "nothing was given back");
    })
    .await;
}
