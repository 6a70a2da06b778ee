//! The HTTP API, over real connections.
#![allow(missing_docs, clippy::unwrap_used)]

mod abuse;
mod callers;
mod envoy;
mod permits;
mod running;
mod silent_store;
mod tls;
mod traces;

use std::time::Duration;

use serde_json::json;
use sluicegate::{DynamoStore, Limit, LimitSet, Limiter, MemoryStore};
use sluicegate_testkit::{Fault, Proxy, on_every_engine};

use running::{Running, asked, config, patient};

#[tokio::test]
async fn a_request_is_granted_until_a_limit_is_short() {
    let server = Running::in_memory(json!({})).await;
    let wanted = json!({
        "entity": "user-123", "resource": "gpt-4", "amounts": {"rpm": 1, "usd": 0.25},
        "limits": ["rpm=2/h", "usd=200/month"],
    });
    let granted = server.post("/v1/acquire", &wanted).await;
    assert_eq!(granted.status, 200, "{granted:?}");
    assert_eq!(granted.body["limits"][0]["limit"], "rpm");
    assert_eq!(granted.body["limits"][0]["available"], 1);
    assert_eq!(granted.body["limits"][1]["available"], 199.75);
    assert_eq!(granted.body["degraded"], false);
    assert_eq!(granted.header("ratelimit-policy"), r#""rpm";q=2;w=3600, "usd";q=200000000"#);
    let left = granted.header("ratelimit");
    assert!(
        left.starts_with(r#""rpm";r=1;t="#) && left.contains(r#", "usd";r=199750000;t="#),
        "{left}"
    );

    assert_eq!(server.post("/v1/acquire", &wanted).await.status, 200);
    let refused = server.post("/v1/acquire", &wanted).await;
    assert_eq!(refused.status, 429);
    assert_eq!(refused.header("content-type"), "application/problem+json");
    assert_eq!(refused.body["violated-policies"], json!(["rpm"]));
    assert!(["1799", "1800"].contains(&refused.header("retry-after")));
    assert!(refused.header("ratelimit").starts_with(r#""rpm";r=0;t="#));
    let usd = json!({"entity": "user-123", "limit": "usd", "available": 199.5, "burst": 200, "asked": 0.25});
    assert_eq!((&refused.body["status"], &refused.body["limits"][1]), (&json!(429), &usd));
    let retry_after_ms = refused.body["retry_after_ms"].as_u64().unwrap();
    assert!((1_790_000..=1_800_000).contains(&retry_after_ms), "{refused:?}");

    let beyond = json!({
        "entity": "user-123", "resource": "gpt-4", "amounts": {"rpm": 3}, "limits": ["rpm=2/h"],
    });
    let never = server.post("/v1/acquire", &beyond).await;
    assert_eq!((never.status.as_u16(), &never.body["limits"][0]["asked"]), (400, &json!(3)));
    assert!(never.body.get("retry_after_ms").is_none(), "{never:?}");
}

#[tokio::test]
async fn a_request_can_wait_for_tokens() {
    let server = Running::in_memory(json!({})).await;
    let wanted = json!({
        "entity": "u", "resource": "r", "amounts": {"rps": 1}, "limits": ["rps=1/100ms"], "wait_ms": 5_000,
    });
    for _ in 0..3 {
        assert_eq!(server.post("/v1/acquire", &wanted).await.status, 200);
    }
}

#[tokio::test]
async fn limits_and_parents_are_stored_and_balances_shown() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let limiter = Limiter::new(DynamoStore::new(engine.client().clone(), &table));
        let server = Running::start(config(json!({})), limiter).await;

        let level = "/v1/limits?resource=gpt-4";
        let stored =
            server.send("PUT", level, &[], &json!({"limits": ["rpm=100/min", "tpm=9/h"]})).await;
        assert_eq!(
            (stored.status.as_u16(), &stored.body),
            (200, &json!({"limits": ["rpm=100/min", "tpm=9/h"]}))
        );
        let left = server.send("DELETE", &format!("{level}&limits=tpm"), &[], &json!(null)).await;
        assert_eq!(left.body, json!({"limits": ["rpm=100/min"]}));
        assert_eq!(server.get(level).await.body, left.body);
        let parent = json!({"parent": "team", "cascade": true});
        assert_eq!(server.send("PUT", "/v1/entities/u", &[], &parent).await.status, 204);

        let wanted = json!({"entity": "u", "resource": "gpt-4", "amounts": {"rpm": 10}});
        let granted = server.post("/v1/acquire", &wanted).await;
        assert_eq!(granted.status, 200, "{granted:?}");
        assert_eq!(
            granted.header("ratelimit-policy"),
            r#""rpm";q=100;w=60, "parent:rpm";q=100;w=60"#
        );
        for entity in ["u", "team"] {
            let shown = server.get(&format!("/v1/entities/{entity}")).await.body;
            let limit = &shown["buckets"][0]["limits"][0];
            assert_eq!(limit["rule"], "rpm=100/min", "{shown}");
            assert!((90.0..91.0).contains(&limit["available"].as_f64().unwrap()), "{shown}");
        }
        assert_eq!(server.get("/v1/entities/u").await.body["parent"], "team");

        // Given back in both buckets.
        let path = format!("/v1/permits/{}/release", granted.permit());
        assert_eq!(server.post(&path, &json!(null)).await.body["changed"], true);
        for entity in ["u", "team"] {
            let shown = server.get(&format!("/v1/entities/{entity}")).await.body;
            assert_eq!(shown["buckets"][0]["limits"][0]["available"], 100, "{shown}");
        }
        assert_eq!(server.send("DELETE", "/v1/entities/u", &[], &json!(null)).await.status, 204);
        assert_eq!(server.get("/v1/entities/u").await.body["cascade"], false);
        for from in ["", "&from=2026-01-01T00:00:00+01:00", "&from=2026-01-01", "&from=-7d"] {
            let usage = server.get(&format!("/v1/usage?entity=u{from}")).await;
            assert_eq!(usage.body["windows"], json!([]), "{usage:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_bucket_is_shown_with_its_own_limits_and_not_with_the_defaults_of_the_server() {
    on_every_engine(async |engine| {
        let store = DynamoStore::new(engine.client().clone(), engine.create_table().await);
        let defaults = [Limit::per_minute("rpm", 7), Limit::per_month("usd", 7)];
        let limiter = Limiter::builder(store).default_limits(LimitSet::new(defaults).unwrap());
        let server = Running::start(config(json!({})), limiter.build()).await;
        for resource in ["a", "b", "c"] {
            let wanted = json!({"entity": "u", "resource": resource, "amounts": {"rpm": 10},
                "limits": ["rpm=100/min", "usd=50/month"]});
            assert_eq!(server.post("/v1/acquire", &wanted).await.status, 200);
        }
        let shown = server.get("/v1/entities/u").await.body;
        let rules = shown["buckets"].as_array().unwrap().iter().map(|bucket| {
            let limits = bucket["limits"].as_array().unwrap().iter();
            (bucket["resource"].clone(), limits.map(|limit| limit["rule"].clone()).collect())
        });
        let rules: Vec<(_, Vec<_>)> = rules.collect();
        let expected = ["a", "b", "c"]
            .map(|resource| (json!(resource), vec![json!("rpm=100/min"), json!("usd=50/month")]));
        assert_eq!(rules, expected, "{shown}");
        let budgets = server.get("/v1/budget?entity=u&resource=a").await.body;
        assert_eq!(budgets[0]["rule"], "usd=50/month", "{budgets}");
    })
    .await;
}

#[tokio::test]
async fn a_store_without_entities_says_so() {
    let server = Running::in_memory(json!({})).await;
    for path in ["/v1/entities/u", "/v1/limits", "/v1/usage?entity=u&from=2026-01-01T00:00:00Z"] {
        let answer = server.get(path).await;
        assert_eq!(answer.status, 501, "{path}: {answer:?}");
    }
}

#[tokio::test]
async fn health_needs_no_token_and_ready_asks_the_store() {
    let callers = json!({"callers": [{"name": "a", "sha256": "00".repeat(32), "roles": ["read"]}]});
    let server = Running::in_memory(callers).await;
    assert_eq!(server.get("/healthz").await.status, 200);
    assert_eq!(server.get("/readyz").await.status, 200);
    let nowhere = sluicegate_testkit::Proxy::start("http://127.0.0.1:9").await;
    let client = sluicegate_local::client::dynamodb(&nowhere.endpoint_url());
    let limiter = Limiter::new(DynamoStore::new(client, "nowhere"));
    let server = Running::start(config(json!({})), limiter).await;
    assert_eq!(server.get("/readyz").await.status, 503);
    assert_eq!(server.get("/healthz").await.status, 200);
}

#[tokio::test]
async fn the_document_changes_on_purpose_only() {
    let server = Running::in_memory(json!({})).await;
    let document = server.get("/openapi.json").await.body;
    for (path, operations) in document["paths"].as_object().unwrap() {
        let operations = operations.as_object().unwrap().values();
        for parameter in operations.flat_map(|of| of["parameters"].as_array()).flatten() {
            let name = format!("{{{}}}", parameter["name"].as_str().unwrap());
            assert_eq!(parameter["in"] == "path", path.contains(&name), "{path}: {parameter}");
        }
    }
    insta::assert_json_snapshot!(document);
}

#[tokio::test]
async fn an_end_lets_open_requests_finish() {
    let server = Running::in_memory(json!({})).await;
    // A connection without a request does not hold up the end.
    let _silent = tokio::net::TcpStream::connect(server.address).await.unwrap();
    let wanted = json!({
        "entity": "u", "resource": "r", "amounts": {"rps": 1}, "limits": ["rps=1/800ms"], "wait_ms": 5_000,
    });
    assert_eq!(server.post("/v1/acquire", &wanted).await.status, 200);
    // The second request waits while the server is asked to end.
    let waits = server.post("/v1/acquire", &wanted);
    let end = async {
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        server.ask_to_end();
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        assert!(
            tokio::net::TcpStream::connect(server.address).await.is_err(),
            "the port is closed"
        );
    };
    let (answer, ()) = tokio::join!(waits, end);
    assert_eq!(answer.status, 200);
    let soon = std::time::Duration::from_secs(5);
    tokio::time::timeout(soon, server.ended()).await.expect("the end waits for no silent client");
}

#[tokio::test]
async fn metrics_count_requests_by_path_and_never_name_an_entity() {
    let server = Running::in_memory(json!({})).await;
    let wanted = json!({
        "entity": "secret-user", "resource": "r", "amounts": {"rph": 1}, "limits": ["rph=1/h"],
    });
    for status in [200, 429] {
        assert_eq!(server.post("/v1/acquire", &wanted).await.status, status);
    }
    server.get("/v1/entities/secret-user").await;
    let text = server.text("/metrics").await;
    for (path, status) in
        [("/v1/acquire", 200), ("/v1/acquire", 429), ("/v1/entities/{entity}", 501)]
    {
        let is_counted = |line: &str| {
            line.starts_with("sluicegate_http_requests_total{")
                && line.contains(&format!("path=\"{path}\""))
                && line.contains(&format!("status=\"{status}\""))
        };
        assert!(text.lines().any(is_counted), "{path} {status}\n{text}");
    }
    assert!(text.contains("sluicegate_http_request_duration_seconds_bucket{"), "{text}");
    assert!(!text.contains("secret-user"), "{text}");
}

#[tokio::test]
async fn the_dashboard_shows_metrics_that_a_server_reports() {
    sluicegate_server::install_metrics();
    let store = MemoryStore::new();
    let limiter = Limiter::builder(store).leasing(Default::default()).build();
    let server = Running::start(config(json!({})), limiter).await;
    let wanted = |amount: u32| json!({"entity": "u", "resource": "r", "amounts": {"rph": amount}, "limits": ["rph=100/h"]});
    for amount in [10, 60, 25, 10] {
        server.post("/v1/acquire", &wanted(amount)).await;
    }
    let dashboard: serde_json::Value =
        serde_json::from_str(include_str!("../../grafana.json")).unwrap();
    let is_reported = async || {
        let text = server.text("/metrics").await;
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let mut missing = Vec::new();
        for panel in dashboard["panels"].as_array().unwrap() {
            for target in panel["targets"].as_array().unwrap() {
                let query = target["expr"].as_str().unwrap();
                let names =
                    query.split(|c| !is_name(c)).filter(|word| word.starts_with("sluicegate_"));
                missing.extend(
                    names
                        .filter(|name| !text.lines().any(|line| line.starts_with(name)))
                        .map(str::to_owned),
                );
            }
        }
        missing
    };
    // Leased decisions are reported by the background task.
    let mut missing = is_reported().await;
    for _ in 0..100 {
        if missing.is_empty() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        missing = is_reported().await;
    }
    panic!("no server reports {missing:?}");
}

#[tokio::test]
async fn a_request_whose_client_leaves_is_counted() {
    on_every_engine(async |engine| {
        let proxy = Proxy::start(engine.endpoint_url()).await;
        let table = engine.create_table().await;
        let server = Running::start(config(json!({})), patient(&proxy, &table)).await;
        let left = async || {
            let metrics = server.text("/metrics").await;
            let is_left =
                |line: &&str| line.contains(r#"path="/v1/acquire""#) && line.contains("499");
            let line = metrics.lines().find(is_left);
            line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).unwrap_or(0)
        };
        let before = left().await;
        proxy.inject(|_| Fault::Delay(Duration::from_secs(2)));
        let wanted = json!({
            "entity": "u", "resource": "r", "amounts": {"rpm": 1}, "limits": ["rpm=9/h"],
        });
        tokio::select! {
            early = server.post("/v1/acquire", &wanted) => panic!("{early:?}"),
            () = asked(&proxy) => {}
        }
        let counted = async {
            while left().await == before {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), counted).await.expect("it is counted");
    })
    .await;
}
