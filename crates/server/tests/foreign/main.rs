//! The server beside programs that nobody here wrote: Envoy, a gRPC client, a validator of OpenAPI.
//! They are installed by `cargo xtask engines envoy grpcio openapi-spec-validator`.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "tests panic")]

mod envoy;
#[allow(dead_code, reason = "the tests of the API use the rest")]
#[path = "../http/running.rs"]
mod running;

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use sluicegate::redis::RedisStore;
use sluicegate::{DynamoStore, Limiter, MemoryStore, OnUnavailable};
use sluicegate_testkit::{Proxy, RedisServer, engine, is_redis_under_test, on_every_engine};

use envoy::Envoy;
use running::{Running, config};

fn rules() -> Value {
    json!({"envoy": {"domains": [{"domain": "edge", "rules": [
        {"match": {"user": "*", "tokens": "*"}, "entity": "{user}", "resource": "api",
         "limits": ["tph=1000/h"], "consume": {"tph": 1}},
        {"match": {"user": "*"}, "entity": "{user}", "resource": "api",
         "limits": ["rph=3/h"], "consume": {"rph": 1}},
    ]}]}})
}

fn limiter_on(endpoint_url: &str, table: &str) -> Limiter {
    let client = sluicegate_local::client::dynamodb(endpoint_url);
    Limiter::builder(DynamoStore::new(client, table))
        .deadline(Duration::from_secs(5))
        .on_unavailable(OnUnavailable::Deny)
        .build()
}

#[tokio::test]
#[ignore = "needs `cargo xtask engines envoy`"]
async fn envoy_asks_and_obeys() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let proxy = Proxy::start(engine.endpoint_url()).await;
        let server =
            Running::start(config(rules()), limiter_on(&proxy.endpoint_url(), &table)).await;
        let envoy = Envoy::start(&[server.address], true).await;
        envoy_limits(&envoy).await;

        // Two descriptors of one bucket are one write.
        for (tokens, status) in [(600, 200), (600, 429), (400, 200)] {
            proxy.reset_counts();
            let answer = envoy.get("/tokens", "b", tokens).await;
            assert_eq!(answer.status, status, "{tokens} tokens: {answer:?}");
            let writes = proxy.received("PutItem") + proxy.received("UpdateItem");
            assert!(writes <= 1, "{writes} writes for two descriptors");
            assert!(status != 200 || writes == 1);
        }
    })
    .await;
    if is_redis_under_test() {
        let redis = RedisServer::start().await;
        let limiter = Limiter::new(RedisStore::new(redis.url()).unwrap());
        let server = Running::start(config(rules()), limiter).await;
        envoy_limits(&Envoy::start(&[server.address], true).await).await;
    }
}

/// Three requests pass, the fourth does not, and the headers say so.
async fn envoy_limits(envoy: &Envoy) {
    for left in [2, 1, 0] {
        let answer = envoy.get("/", "a", 0).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.header("ratelimit-policy"), r#""rph";q=3;w=3600"#);
        assert!(
            answer.header("ratelimit").starts_with(&format!(r#""rph";r={left};t="#)),
            "{answer:?}"
        );
    }
    let refused = envoy.get("/", "a", 0).await;
    assert_eq!(refused.status, 429);
    assert!(
        (1_190..=1_200).contains(&refused.header("retry-after").parse().unwrap()),
        "{refused:?}"
    );
    assert_eq!(refused.header("x-envoy-ratelimited"), "true");
    assert_eq!(envoy.get("/", "other", 0).await.status, 200);
}

#[tokio::test]
#[ignore = "needs `cargo xtask engines envoy`"]
async fn without_the_server_envoy_follows_its_failure_mode() {
    for (denies, status) in [(false, 200), (true, 500)] {
        let server = Running::start(config(rules()), Limiter::new(MemoryStore::new())).await;
        let envoy = Envoy::start(&[server.address], denies).await;
        for _ in 0..3 {
            assert_eq!(envoy.get("/", "a", 0).await.status, 200);
        }
        assert_eq!(envoy.get("/", "a", 0).await.status, 429);
        server.ended().await;
        assert_eq!(envoy.get("/", "a", 0).await.status, status, "failure_mode_deny: {denies}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs `cargo xtask engines envoy`"]
async fn a_rolling_restart_of_two_replicas_loses_nothing() {
    const REQUESTS: u32 = 1_500;
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let mut many = rules();
        many["envoy"]["domains"][0]["rules"][1]["limits"] = json!(["rph=1000/never"]);
        let start = async |address| {
            let mut config = config(many.clone());
            config.listen.address = address;
            let limiter = limiter_on(engine.endpoint_url(), &table);
            Running::start(config, limiter).await
        };
        let any = "127.0.0.1:0".parse().unwrap();
        let mut replicas = [start(any).await, start(any).await];
        let envoy = Envoy::start(&[replicas[0].address, replicas[1].address], true).await;
        let load = async {
            let mut counts = [0, 0, 0];
            for _ in 0..REQUESTS {
                let status = envoy.get("/", "a", 0).await.status;
                counts[usize::from(status == 429) + 2 * usize::from(status.is_server_error())] += 1;
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            counts
        };
        let restarts = async {
            for replica in &mut replicas {
                tokio::time::sleep(Duration::from_millis(500)).await;
                let address = replica.address;
                let next =
                    Running::start(config(json!({})), Limiter::new(MemoryStore::new())).await;
                std::mem::replace(replica, next).ended().await;
                *replica = start(address).await;
            }
        };
        let ([granted, refused, failed], ()) = tokio::join!(load, restarts);
        println!("{granted} granted, {refused} refused, {failed} not decided");
        let shown = replicas[0].get("/v1/entities/a").await.body;
        let limits = shown["buckets"][0]["limits"].as_array().unwrap();
        let left =
            limits.iter().find(|limit| limit["limit"] == "rph").unwrap()["available"].as_f64();
        assert_eq!(left, Some(0.0));
        // A request that was not decided may have taken its token.
        assert!((1_000 - failed..=1_000).contains(&granted), "{granted} granted");
        assert!(failed <= REQUESTS / 50, "{failed} requests were not decided");
    })
    .await;
}

#[tokio::test]
#[ignore = "needs `cargo xtask engines grpcio`"]
async fn a_client_that_nobody_here_wrote_asks_the_service() {
    let mut rules = rules();
    let sha256: String = Sha256::digest("token").iter().map(|byte| format!("{byte:02x}")).collect();
    rules["callers"] = json!([{"name": "py", "sha256": sha256, "roles": ["acquire"]}]);
    let server = Running::start(config(rules), Limiter::new(MemoryStore::new())).await;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/foreign/client.py");
    said(
        engine("grpcio/bin/python").to_str().unwrap(),
        &[script, &server.address.to_string(), "token"],
        "ok",
    )
    .await;
}

#[tokio::test]
#[ignore = "needs `cargo xtask engines openapi-spec-validator`"]
async fn the_description_of_the_api_is_valid() {
    let server = Running::start(config(json!({})), Limiter::new(MemoryStore::new())).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("openapi.json");
    std::fs::write(&file, server.text("/openapi.json").await).unwrap();
    let program = engine("openapi-spec-validator/bin/openapi-spec-validator");
    said(program.to_str().unwrap(), &[file.to_str().unwrap()], "OK").await;
}

/// Clients without dependencies, as the repository has them.
#[tokio::test]
async fn the_examples_in_python_and_node_acquire_and_correct() {
    let server = Running::start(config(json!({})), Limiter::new(MemoryStore::new())).await;
    let url = format!("http://{}", server.address);
    for (program, script) in [("python3", "client.py"), ("node", "client.mjs")] {
        if program == "node" && Command::new(program).arg("--version").output().is_err() {
            println!("without Node, {script} is not run");
            continue;
        }
        let script = format!("{}/examples/{script}", env!("CARGO_MANIFEST_DIR"));
        let expected = "one: granted, requests left 1, corrected to 120 tokens\n\
            two: granted, requests left 0, corrected to 120 tokens\n\
            three: refused by rpm";
        said(program, &[&script, &url], expected).await;
    }
}

/// Runs a program, which must succeed and say this.
async fn said(program: &str, args: &[&str], expected: &str) {
    let output = tokio::process::Command::new(program).args(args).output().await.expect(program);
    let (out, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains(expected), "{out}\n{errors}");
}
