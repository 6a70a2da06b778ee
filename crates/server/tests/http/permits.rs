//! Permits that another server settles than the one that granted them.

use std::time::Duration;

use serde_json::{Value, json};
use sluicegate::types::EpochMillis;
use sluicegate::{DynamoStore, Limiter, MemoryStore, TestClock};
use sluicegate_local::client;
use sluicegate_testkit::{Fault, Proxy, on_every_engine};

use crate::running::{Answer, Running, asked, config, patient};

/// A file with a key, for servers that share it.
fn key() -> (tempfile::TempDir, Value) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key");
    std::fs::write(&file, "k".repeat(32)).unwrap();
    (folder, json!({"permits": {"keys": [{"file": file}]}}))
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
        // It would not make the acquire safe to repeat.
        let body = json!({"entity": "u", "resource": "r", "amounts": {"tpm": 1}});
        let keyed = first.send("POST", "/v1/acquire", &[("idempotency-key", "a")], &body).await;
        assert_eq!(keyed.status, 400, "{keyed:?}");

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
        // The key was used, so an answer with the id of another correction would be wrong.
        let other = adjust(&second, &granted, "a", json!({"to": {"tpm": 600}})).await;
        assert!(
            other.status == 422 && other.body["detail"].as_str().unwrap().contains("new key"),
            "{other:?}"
        );
        assert!((available(&first).await - 380.0).abs() < 1e-9);
        // Another key is another correction.
        let more = adjust(&first, &adjusted.permit(), "b", json!({"by": {"tpm": 30}})).await;
        assert!((available(&first).await - 350.0).abs() < 1e-9);
        // A queue may deliver both again, with the newest id: that id has their amounts already.
        for (key, body) in [("b", json!({"by": {"tpm": 30}})), ("a", json!({"to": {"tpm": 620}}))] {
            let again = adjust(&second, &more.permit(), key, body).await;
            assert_eq!((again.permit(), &again.body["changed"]), (more.permit(), &json!(false)));
        }
        let other = adjust(&second, &more.permit(), "a", json!({"to": {"tpm": 600}})).await;
        assert_eq!(other.status, 422, "{other:?}");
        assert!((available(&first).await - 350.0).abs() < 1e-9);
        // The permit took 650. More would be given back from what others took.
        for (wrong, says) in [
            (json!({"by": {"tpm": -650.001}}), "more of \"tpm\" than the permit took"),
            (json!({"by": {"rpm": -2}}), "more of \"rpm\" than the permit took"),
            (json!({}), "one of `to`, `by`"),
        ] {
            let refused = adjust(&first, &more.permit(), "c", wrong).await;
            let detail = refused.body["detail"].as_str().unwrap();
            assert!(refused.status == 400 && detail.contains(says), "{refused:?}");
        }
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

/// The work is done, and somebody pays for it.
#[tokio::test]
async fn a_correction_is_made_although_its_client_leaves_and_the_server_ends() {
    let (_folder, permits) = key();
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let proxy = Proxy::start(engine.endpoint_url()).await;
        let slow = Running::start(config(permits.clone()), patient(&proxy, &table)).await;
        let direct = replica(&permits, engine.endpoint_url(), &table).await;
        let granted = acquire(&direct).await.permit();
        proxy.inject(|_| Fault::Delay(Duration::from_millis(200)));
        tokio::select! {
            early = adjust(&slow, &granted, "a", json!({"to": {"tpm": 620}})) => panic!("{early:?}"),
            () = asked(&proxy) => {}
        }
        slow.ended().await;
        assert!((available(&direct).await - 380.0).abs() < 1e-9);
    })
    .await;
}

/// It goes on, and a repetition would make it twice.
#[tokio::test]
async fn a_correction_that_outlasts_its_request_is_not_to_be_repeated() {
    let (_folder, permits) = key();
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let proxy = Proxy::start(engine.endpoint_url()).await;
        let mut hasty = permits.clone();
        hasty["bounds"] = json!({"request_ms": 300});
        let hasty = Running::start(config(hasty), patient(&proxy, &table)).await;
        let direct = replica(&permits, engine.endpoint_url(), &table).await;
        let granted = acquire(&direct).await.permit();
        let before = available(&direct).await;
        proxy.inject(|_| Fault::Delay(Duration::from_millis(400)));
        let path = format!("/v1/permits/{granted}/adjust");
        let answer = hasty.post(&path, &json!({"by": {"tpm": 20}})).await;
        assert_eq!((answer.status.as_u16(), answer.headers.get("retry-after")), (503, None));
        hasty.ended().await;
        assert!((available(&direct).await - (before - 20.0)).abs() < 1e-9);
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

#[tokio::test]
async fn a_parent_is_corrected_under_its_own_limits() {
    let server = Running::in_memory(json!({})).await;
    let wanted = json!({
        "entity": "u", "resource": "r", "amounts": {"rpm": 1, "tpm": 40}, "parent": "team",
        "limits": ["rpm=9/never", "tpm=100/never"], "parent_limits": ["tpm=1000/never"],
    });
    let granted = server.post("/v1/acquire", &wanted).await;
    let left: Vec<_> = granted.body["limits"].as_array().unwrap().iter().collect();
    assert_eq!((&left[2]["entity"], &left[2]["available"]), (&json!("team"), &json!(960)));
    let released = release(&server, &granted.permit()).await;
    assert_eq!((&released.body["changed"], &released.body["dropped"]), (&json!(true), &json!([])));
    let both = json!({
        "entity": "u", "resource": "r", "amounts": {"tpm": 100}, "parent": "team",
        "limits": ["rpm=9/never", "tpm=100/never"], "parent_limits": ["tpm=1000/never"],
    });
    let again = server.post("/v1/acquire", &both).await;
    assert_eq!(again.body["limits"][1]["available"], 900, "all was given back: {again:?}");
    let mut neither = both.clone();
    neither["no_cascade"] = json!(true);
    assert_eq!(server.post("/v1/acquire", &neither).await.status, 400);
}

/// The balance of a limit after one more acquire of this body.
async fn left_after(server: &Running, body: Value, entity: &str) -> f64 {
    let granted = server.post("/v1/acquire", &body).await;
    let limits = granted.body["limits"].as_array().unwrap_or_else(|| panic!("{granted:?}"));
    let of_entity = limits.iter().find(|limit| limit["entity"] == entity);
    of_entity.unwrap_or_else(|| panic!("{granted:?}"))["available"].as_f64().unwrap()
}

#[tokio::test]
async fn a_parent_that_an_estimate_did_not_charge_is_corrected() {
    let server = Running::in_memory(json!({})).await;
    let limits = json!(["rpm=9/never", "usd=10/never"]);
    let wanted = json!({
        "entity": "u", "resource": "r", "amounts": {"rpm": 1}, "parent": "team",
        "limits": limits, "parent_limits": ["usd=200/never"],
    });
    let granted = server.post("/v1/acquire", &wanted).await;
    let corrected = adjust(&server, &granted.permit(), "a", json!({"to": {"usd": 0.25}})).await;
    assert_eq!(corrected.body["dropped"], json!([]), "{corrected:?}");
    let mut again = wanted.clone();
    again["amounts"] = json!({"usd": 0.01});
    assert_eq!(left_after(&server, again, "team").await, 199.74);
}

#[tokio::test]
async fn a_correction_reaches_stored_parents_and_limits_that_the_bucket_lacks() {
    let (_folder, permits) = key();
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let server = replica(&permits, engine.endpoint_url(), &table).await;
        let put = async |path: &str, body: Value| {
            let put = server.send("PUT", path, &[], &body).await;
            assert!(put.status.is_success(), "{put:?}");
        };
        // Nothing is asked for, so nothing is asked of the store.
        put("/v1/entities/u", json!({"parent": "team", "cascade": true})).await;
        let acquire = |tpm: u32| {
            json!({"entity": "u", "resource": "r", "amounts": {"tpm": tpm}, "limits": ["tpm=1000/never"]})
        };
        let granted = server.post("/v1/acquire", &acquire(0)).await;
        adjust(&server, &granted.permit(), "a", json!({"to": {"tpm": 500}})).await;
        for entity in ["u", "team"] {
            let left = left_after(&server, acquire(1), entity).await;
            assert!((498.0..500.0).contains(&left), "{entity}: {left}");
        }

        // The request names its limits, so the bucket gets no stored one.
        put("/v1/limits?entity=v", json!({"limits": ["usd=200/never"]})).await;
        let granted = json!({"entity": "v", "resource": "r", "amounts": {"rpm": 1}, "limits": ["rpm=9/never"]});
        let granted = server.post("/v1/acquire", &granted).await;
        for changed in [true, false] {
            let corrected = adjust(&server, &granted.permit(), "b", json!({"to": {"usd": 0.25}})).await;
            assert_eq!(corrected.body["changed"], changed, "{corrected:?}");
        }
        let usd = json!({"entity": "v", "resource": "r", "amounts": {"usd": 0.01}});
        assert_eq!(left_after(&server, usd, "v").await, 199.74);

        let missing = replica(&permits, engine.endpoint_url(), "sluicegate-no-such-table").await;
        let shown = missing.send("GET", "/v1/entities/u", &[], &json!(null)).await;
        assert_eq!(shown.status, 500, "{shown:?}");
    })
    .await;
}

#[tokio::test]
async fn a_limit_that_was_deleted_does_not_keep_the_others_from_being_released() {
    let (_folder, permits) = key();
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let server = replica(&permits, engine.endpoint_url(), &table).await;
        let limits = "/v1/limits?entity=u&resource=r";
        let stored = json!({"limits": ["rpm=10/never", "tpm=1000/never"]});
        let put = server.send("PUT", limits, &[], &stored).await;
        assert!(put.status.is_success(), "{put:?}");
        let both = json!({"entity": "u", "resource": "r", "amounts": {"rpm": 1, "tpm": 500}});
        let granted = server.post("/v1/acquire", &both).await;
        let deleted =
            server.send("DELETE", &format!("{limits}&limits=rpm"), &[], &json!(null)).await;
        assert!(deleted.status.is_success(), "{deleted:?}");
        // Another server, which reads the limits as they are now.
        let server = replica(&permits, engine.endpoint_url(), &table).await;
        let released = release(&server, &granted.permit()).await;
        let said = (&released.body["changed"], &released.body["dropped"]);
        assert_eq!(said, (&json!(true), &json!(["rpm"])), "{released:?}");
        let again = json!({"entity": "u", "resource": "r", "amounts": {"tpm": 1000}});
        assert_eq!(server.post("/v1/acquire", &again).await.status, 200);
    })
    .await;
}

/// Otherwise a change of the price would charge the estimate at one price and the difference at
/// another.
#[tokio::test]
async fn corrections_are_priced_as_their_permit() {
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("prices.json");
    let models = json!({"m": [
        {"from": "2026-01-01", "input": "1.00", "output": "10.00"},
        {"from": "2026-02-01", "input": "1.00", "output": "90.00"},
    ]});
    std::fs::write(&list, json!({"currency": "USD", "models": models}).to_string()).unwrap();
    // A second before February.
    let clock = TestClock::at(EpochMillis::new(1_769_903_999_000).unwrap());
    let limiter = Limiter::builder(MemoryStore::new()).clock(clock.clone()).build();
    let prices = json!({"prices": {"file": list, "amounts": ["cost"]}});
    let server = Running::start(config(prices), limiter).await;
    let usage = json!({"output": 1000});
    let wanted = json!({"entity": "u", "resource": "m", "usage": usage, "limits": ["usd=1/never"]});
    let granted = server.post("/v1/acquire", &wanted).await;
    clock.advance(Duration::from_secs(1));
    let corrected = adjust(&server, &granted.permit(), "a", json!({"usage": usage})).await;
    assert_eq!(corrected.body["changed"], false, "{corrected:?}");
    let again = server.post("/v1/acquire", &wanted).await;
    assert_eq!(again.body["limits"][0]["available"], 0.9, "the new price: {again:?}");
}

#[tokio::test]
async fn prices_make_amounts_of_token_counts() {
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("prices.json");
    let models = json!({
        "gpt-4o": [{"from": "2026-01-01", "input": "2.50", "output": "10.00", "cached_input": "1.25"}],
        "free": [{"from": "2026-01-01", "input": "0", "output": "0"}],
    });
    std::fs::write(&list, json!({"currency": "USD", "models": models}).to_string()).unwrap();
    let prices = json!({"file": list, "amounts": ["cost", "output"]});
    let server = Running::in_memory(json!({"prices": prices})).await;
    let acquire = |model: &str| {
        json!({
            "entity": "u", "resource": model, "usage": {"input": 1200, "output": 4096}, "amounts": {"rpm": 1},
            "limits": ["rpm=9/never", "output=10000/never", "usd=1/never"],
        })
    };
    let granted = server.post("/v1/acquire", &acquire("gpt-4o")).await;
    let left = |answer: &Answer| {
        let limits = answer.body["limits"].as_array().unwrap().iter();
        limits.map(|limit| limit["available"].to_string()).collect::<Vec<_>>()
    };
    assert_eq!(left(&granted), ["5904", "8", "0.95604"], "{granted:?}");
    // The actual use, as the provider reports it.
    let response = json!({"response": {"usage": {"prompt_tokens": 1200, "completion_tokens": 80,
        "prompt_tokens_details": {"cached_tokens": 1024}}}});
    let corrected = adjust(&server, &granted.permit(), "a", response).await;
    assert_eq!(corrected.body["changed"], true, "{corrected:?}");
    let again = adjust(&server, &corrected.permit(), "b", json!({"usage": {"output": 80}})).await;
    assert_eq!(again.body["changed"], true, "{again:?}");
    let granted = server.post("/v1/acquire", &acquire("gpt-4o")).await;
    assert_eq!(left(&granted), ["5824", "7", "0.95524"], "80 tokens and $0.0008 are taken");
    // One budget of all models: a bucket of its own, and the prices of the model.
    let mut wanted = acquire("llm");
    wanted["model"] = json!("gpt-4o");
    let granted = server.post("/v1/acquire", &wanted).await;
    assert_eq!(left(&granted), ["5904", "8", "0.95604"], "{granted:?}");
    adjust(&server, &granted.permit(), "m", json!({"usage": {"output": 80}})).await;
    let granted = server.post("/v1/acquire", &wanted).await;
    assert_eq!(left(&granted), ["5824", "7", "0.95524"], "{granted:?}");
    wanted["model"] = json!("a#b");
    assert_eq!(server.post("/v1/acquire", &wanted).await.status, 400);
    let unknown = server.post("/v1/acquire", &acquire("other")).await;
    assert_eq!(unknown.status, 400);
    assert!(unknown.body["detail"].as_str().unwrap().contains("no price"), "{unknown:?}");
    for wrong in [json!({"response": {}}), json!({"usage": {"imput": 1}}), json!({"response": 7})] {
        let answer = adjust(&server, &granted.permit(), "c", wrong.clone()).await;
        assert_eq!(answer.status, 400, "{wrong}");
    }
    let free = json!({"entity": "u", "resource": "free", "usage": {}, "limits": ["usd=1/never"]});
    let granted = server.post("/v1/acquire", &free).await;
    assert_eq!(granted.status, 200, "{granted:?}");
    let usage = json!({"usage": {"output": 80}});
    assert_eq!(adjust(&server, &granted.permit(), "d", usage).await.body["changed"], false);
    let more = adjust(&server, &granted.permit(), "e", json!({"to": {"usd": 0.25}})).await;
    assert_eq!(more.body["changed"], true, "{more:?}");
    let negative = adjust(&server, &more.permit(), "f", json!({"to": {"usd": -1}})).await;
    assert_eq!(negative.status, 400, "{negative:?}");
    for (field, wrong) in [("limits", json!(["usd=1"])), ("parent", json!("p#q"))] {
        let mut free = free.clone();
        free[field] = wrong;
        assert_eq!(server.post("/v1/acquire", &free).await.status, 400, "{free}");
    }
    let error = sluicegate_server::Server::bind(
        config(json!({"prices": {"file": folder.path().join("none.json")}})),
        Limiter::new(MemoryStore::new()),
    );
    assert!(error.await.err().unwrap().to_string().contains("none.json"));
}
