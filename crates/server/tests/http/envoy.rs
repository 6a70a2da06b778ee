//! Envoy's rate limit service, by its generated client.

use std::time::Duration;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code::{
    self, Ok as Granted, OverLimit,
};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::UInt64Value;
use serde_json::{Value, json};
use sluicegate::{DynamoStore, LeaseSettings, LimitSet, Limiter, MemoryStore};
use sluicegate_testkit::{Fault, Proxy, on_every_engine};
use tonic::transport::Channel;
use tonic::{Code as GrpcCode, Status};

use crate::running::{Running, asked, config, patient};

pub(crate) fn rules() -> Value {
    json!({"envoy": {"domains": [{"domain": "edge", "rules": [
        {"match": {"user": "*", "tokens": "*"}, "entity": "{user}", "resource": "api",
         "limits": ["tpm=1000/h"], "consume": {"tpm": 1}},
        {"match": {"user": "*", "used": "*"}, "entity": "{user}", "resource": "api",
         "limits": ["tpm=1000/h"], "consume": {"tpm": 1}, "never_refuses": true},
        {"match": {"user": "*"}, "entity": "{user}", "resource": "api",
         "limits": ["rph=3/h"], "consume": {"rph": 1}},
        {"match": {"path": "*"}, "entity": "all", "resource": "{path}",
         "limits": ["rpd=100/day"], "consume": {"rpd": 1}},
    ]}]}})
}

pub(crate) async fn client(server: &Running) -> RateLimitServiceClient<Channel> {
    RateLimitServiceClient::connect(format!("http://{}", server.address)).await.unwrap()
}

pub(crate) fn descriptor(entries: &[(&str, &str)], hits: Option<u64>) -> RateLimitDescriptor {
    let entry =
        |(key, value): &(&str, &str)| Entry { key: (*key).to_owned(), value: (*value).to_owned() };
    RateLimitDescriptor {
        entries: entries.iter().map(entry).collect(),
        hits_addend: hits.map(|value| UInt64Value { value }),
        ..RateLimitDescriptor::default()
    }
}

pub(crate) async fn ask(
    client: &mut RateLimitServiceClient<Channel>,
    hits_addend: u32,
    descriptors: Vec<RateLimitDescriptor>,
) -> Result<RateLimitResponse, Status> {
    let request = RateLimitRequest { domain: "edge".to_owned(), descriptors, hits_addend };
    client.should_rate_limit(request).await.map(tonic::Response::into_inner)
}

/// The overall code, and the code and the remaining tokens of each descriptor.
fn codes(response: &RateLimitResponse) -> (Code, Vec<(Code, u32)>) {
    let of = |status: &envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::DescriptorStatus| {
        (status.code(), status.limit_remaining)
    };
    (response.overall_code(), response.statuses.iter().map(of).collect())
}

fn header<'a>(response: &'a RateLimitResponse, name: &str) -> &'a str {
    let found = response.response_headers_to_add.iter().find(|header| header.key == name);
    found.map_or("", |header| header.value.as_str())
}

async fn in_memory(changes: Value) -> Running {
    let mut rules = rules();
    rules["envoy"].as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    Running::in_memory(rules).await
}

#[tokio::test]
async fn hits_are_counted_until_a_limit_is_short() {
    let server = in_memory(json!({})).await;
    let mut client = client(&server).await;
    let user = || descriptor(&[("user", "a")], None);
    let first = ask(&mut client, 0, vec![user()]).await.unwrap();
    assert_eq!(codes(&first), (Granted, vec![(Granted, 2)]));
    let limit = first.statuses[0].current_limit.clone().unwrap();
    assert_eq!((limit.name.as_str(), limit.requests_per_unit, limit.unit), ("rph", 3, 3));
    assert!(
        (1_190..=1_200).contains(&first.statuses[0].duration_until_reset.as_ref().unwrap().seconds)
    );
    assert_eq!(header(&first, "ratelimit-policy"), r#""rph";q=3;w=3600"#);

    let two = ask(&mut client, 2, vec![user()]).await.unwrap();
    assert_eq!(codes(&two), (Granted, vec![(Granted, 0)]));
    let refused = ask(&mut client, 0, vec![user()]).await.unwrap();
    assert_eq!(codes(&refused), (OverLimit, vec![(OverLimit, 0)]));
    assert!(["1199", "1200"].contains(&header(&refused, "retry-after")), "{refused:?}");
    // Another entity has a bucket of its own; a descriptor's hits replace those of the request.
    let other = descriptor(&[("user", "b")], Some(3));
    let other = ask(&mut client, 1, vec![other]).await.unwrap();
    assert_eq!(codes(&other), (Granted, vec![(Granted, 0)]));
}

#[tokio::test]
async fn descriptors_of_one_bucket_are_one_write() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let proxy = Proxy::start(engine.endpoint_url()).await;
        let store =
            DynamoStore::new(sluicegate_local::client::dynamodb(&proxy.endpoint_url()), &table);
        let server = Running::start(config(rules()), Limiter::new(store)).await;
        let mut client = client(&server).await;
        let both = || {
            vec![
                descriptor(&[("user", "a")], None),
                descriptor(&[("user", "a"), ("tokens", "x")], Some(400)),
            ]
        };
        for left in [(2, 600), (1, 200)] {
            proxy.reset_counts();
            let granted = ask(&mut client, 0, both()).await.unwrap();
            assert_eq!(codes(&granted), (Granted, vec![(Granted, left.0), (Granted, left.1)]));
            assert_eq!(proxy.received("PutItem") + proxy.received("UpdateItem"), 1);
        }
        // One of the two limits is short: nothing is taken of the other.
        let refused = ask(&mut client, 0, both()).await.unwrap();
        assert_eq!(codes(&refused), (OverLimit, vec![(Granted, 1), (OverLimit, 200)]));
        let user = descriptor(&[("user", "a")], None);
        let granted = ask(&mut client, 0, vec![user]).await.unwrap();
        assert_eq!(codes(&granted), (Granted, vec![(Granted, 0)]));
    })
    .await;
}

#[tokio::test]
async fn a_refusal_in_one_bucket_gives_back_what_another_granted() {
    let server = in_memory(json!({})).await;
    let mut client = client(&server).await;
    let (user, path) =
        (|| descriptor(&[("user", "a")], None), || descriptor(&[("path", "/v1")], None));
    for _ in 0..3 {
        ask(&mut client, 0, vec![user()]).await.unwrap();
    }
    for _ in 0..5 {
        let refused = ask(&mut client, 0, vec![path(), user()]).await.unwrap();
        assert_eq!(refused.overall_code(), OverLimit);
    }
    let granted = ask(&mut client, 0, vec![path()]).await.unwrap();
    assert_eq!(codes(&granted), (Granted, vec![(Granted, 99)]));
}

/// The bucket of the path cannot be decided: none of its limits is known.
#[tokio::test]
async fn a_refusal_in_one_bucket_counts_although_another_one_fails() {
    let mut rules = rules();
    rules["envoy"]["domains"][0]["rules"][3]["limits"] = json!([]);
    let server = Running::in_memory(rules).await;
    let mut client = client(&server).await;
    let (user, path) =
        (|| descriptor(&[("user", "a")], None), || descriptor(&[("path", "/v1")], None));
    let failed = ask(&mut client, 0, vec![path(), user()]).await.unwrap_err();
    assert_eq!(failed.code(), GrpcCode::FailedPrecondition);
    let all = descriptor(&[("user", "a")], Some(3));
    assert_eq!(ask(&mut client, 0, vec![all]).await.unwrap().overall_code(), Granted);
    let refused = ask(&mut client, 0, vec![path(), user()]).await.unwrap();
    assert_eq!(codes(&refused), (OverLimit, vec![(Granted, 0), (OverLimit, 0)]));
    let peeked = descriptor(&[("path", "/v1")], Some(0));
    let look = descriptor(&[("user", "a")], Some(0));
    let refused = ask(&mut client, 0, vec![peeked, look]).await.unwrap();
    assert_eq!(refused.overall_code(), OverLimit);
}

#[tokio::test]
async fn a_quota_is_never_reset() {
    let mut rules = rules();
    rules["envoy"]["domains"][0]["rules"][2]["limits"] = json!(["rph=3/never"]);
    let server = Running::in_memory(rules).await;
    let user = vec![descriptor(&[("user", "a")], None)];
    let granted = ask(&mut client(&server).await, 0, user).await.unwrap();
    assert_eq!(codes(&granted), (Granted, vec![(Granted, 2)]));
    assert_eq!(granted.statuses[0].duration_until_reset, None);
}

#[tokio::test]
async fn a_rule_without_limits_keeps_the_default_ones_beside_other_rules() {
    let mut rules = rules();
    rules["envoy"]["domains"][0]["rules"][0]["limits"] = json!([]);
    let limits = LimitSet::new(["tpm=1000/h".parse().unwrap()]).unwrap();
    let limiter = Limiter::builder(MemoryStore::new()).default_limits(limits).build();
    let server = Running::start(config(rules), limiter).await;
    let both = vec![
        descriptor(&[("user", "a"), ("tokens", "x")], Some(10)),
        descriptor(&[("user", "a")], None),
    ];
    let granted = ask(&mut client(&server).await, 0, both).await.unwrap();
    assert_eq!(codes(&granted), (Granted, vec![(Granted, 990), (Granted, 2)]));
}

#[tokio::test]
async fn use_that_is_known_afterwards_is_counted_whatever_the_balance() {
    let server = in_memory(json!({})).await;
    let mut client = client(&server).await;
    let used = |hits| vec![descriptor(&[("user", "a"), ("used", "x")], Some(hits))];
    let look = || vec![descriptor(&[("user", "a"), ("tokens", "x")], Some(0))];
    assert_eq!(ask(&mut client, 0, look()).await.unwrap().overall_code(), Granted);
    assert_eq!(ask(&mut client, 0, used(1_500)).await.unwrap().overall_code(), Granted);
    assert_eq!(ask(&mut client, 0, look()).await.unwrap().overall_code(), OverLimit);
    // Negative hits are given back.
    let mut back = used(1_000);
    back[0].is_negative_hits = true;
    assert_eq!(ask(&mut client, 0, back).await.unwrap().overall_code(), Granted);
    let looked = ask(&mut client, 0, look()).await.unwrap();
    assert_eq!(codes(&looked), (Granted, vec![(Granted, 500)]));
}

#[tokio::test]
async fn an_unknown_descriptor_is_admitted_or_refused_as_configured() {
    let unknown = || vec![descriptor(&[("user", "a")], None), descriptor(&[("tenant", "t")], None)];
    let server = in_memory(json!({"unknown": "admit"})).await;
    let admitted = ask(&mut client(&server).await, 0, unknown()).await.unwrap();
    assert_eq!(codes(&admitted), (Granted, vec![(Granted, 2), (Granted, 0)]));
    let server = in_memory(json!({"unknown": "refuse"})).await;
    let mut client = client(&server).await;
    for _ in 0..5 {
        let refused = ask(&mut client, 0, unknown()).await.unwrap();
        assert_eq!(refused.overall_code(), OverLimit);
        assert_eq!(refused.statuses[1].code(), OverLimit);
        assert_eq!(refused.statuses[0].code(), Granted, "it has a rule");
    }
    // Nothing was taken for them.
    let user = ask(&mut client, 0, vec![descriptor(&[("user", "a")], None)]).await.unwrap();
    assert_eq!(codes(&user), (Granted, vec![(Granted, 2)]));
    let request =
        RateLimitRequest { domain: "x".to_owned(), descriptors: unknown(), hits_addend: 1 };
    let other = client.should_rate_limit(request).await.unwrap().into_inner();
    assert_eq!(other.overall_code(), OverLimit);
}

#[tokio::test]
async fn odd_values_are_limited_and_too_many_hits_are_refused() {
    let server = in_memory(json!({})).await;
    let mut client = client(&server).await;
    assert_eq!(codes(&ask(&mut client, 0, vec![]).await.unwrap()), (Granted, vec![]));
    let odd = descriptor(&[("user", "a#\u{7}")], None);
    assert_eq!(
        codes(&ask(&mut client, 0, vec![odd]).await.unwrap()),
        (Granted, vec![(Granted, 2)])
    );
    let hits = |hits| vec![descriptor(&[("user", "a")], Some(hits))];
    let beyond = ask(&mut client, 0, hits(1_000_000_000_000_000)).await.unwrap();
    assert_eq!(beyond.overall_code(), OverLimit);
    for too_many in [u64::MAX, 1_000_000_000_000_001] {
        let error = ask(&mut client, 0, hits(too_many)).await.unwrap_err();
        assert_eq!(error.code(), GrpcCode::InvalidArgument);
    }
    let many =
        |count| (0..count).map(|n| descriptor(&[("user", &format!("u{n}"))], None)).collect();
    assert_eq!(ask(&mut client, 0, many(1_000)).await.unwrap().overall_code(), Granted);
    let error = ask(&mut client, 0, many(1_001)).await.unwrap_err();
    assert_eq!(error.code(), GrpcCode::InvalidArgument);
    let without = Running::in_memory(json!({})).await;
    let error = ask(&mut self::client(&without).await, 0, vec![]).await.unwrap_err();
    assert_eq!(error.code(), GrpcCode::Unimplemented);
}

#[tokio::test]
async fn use_is_counted_on_a_bucket_that_does_not_have_its_limit_yet() {
    let leased = Limiter::builder(MemoryStore::new()).leasing(LeaseSettings::default()).build();
    for (name, limiter) in [("plain", Limiter::new(MemoryStore::new())), ("leased", leased)] {
        let server = Running::start(config(rules()), limiter).await;
        counts_a_new_limit(name, &server).await;
    }
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let store = DynamoStore::new(engine.client().clone(), &table);
        counts_a_new_limit("table", &Running::start(config(rules()), Limiter::new(store)).await)
            .await;
    })
    .await;
}

/// A hit makes the bucket with the limit of requests alone; then tokens are counted.
async fn counts_a_new_limit(name: &str, server: &Running) {
    let mut client = client(server).await;
    let hit = || descriptor(&[("user", "a")], None);
    let tokens = |hits| descriptor(&[("user", "a"), ("tokens", "x")], Some(hits));
    let used = |hits| vec![descriptor(&[("user", "a"), ("used", "x")], Some(hits))];
    ask(&mut client, 0, vec![hit()]).await.unwrap();
    ask(&mut client, 0, used(700)).await.unwrap();
    let looked = ask(&mut client, 0, vec![tokens(0)]).await.unwrap();
    assert_eq!(codes(&looked), (Granted, vec![(Granted, 300)]));
    // A debt refuses a request that only looks at it, and takes nothing of the other limit.
    ask(&mut client, 0, used(900)).await.unwrap();
    let refused = ask(&mut client, 0, vec![hit(), tokens(0)]).await.unwrap();
    assert_eq!(refused.overall_code(), OverLimit);
    assert_eq!(refused.statuses[1].code(), OverLimit);
    assert!(header(&refused, "ratelimit").starts_with("\"tpm\";r=0"), "{refused:?}");
    for code in [Granted, Granted, OverLimit] {
        let answer = ask(&mut client, 0, vec![hit()]).await.unwrap();
        assert_eq!(answer.overall_code(), code, "{name}");
    }
}

#[tokio::test]
async fn a_refusal_beside_an_admitted_look_says_when_to_come_back() {
    let server = in_memory(json!({})).await;
    let mut client = client(&server).await;
    let tokens = |hits| descriptor(&[("user", "a"), ("tokens", "x")], Some(hits));
    let hit = || descriptor(&[("user", "a")], None);
    ask(&mut client, 0, vec![tokens(999)]).await.unwrap();
    for code in [Granted, Granted, Granted, OverLimit] {
        // One token is left, and two descriptors look at it.
        let answer = ask(&mut client, 0, vec![hit(), tokens(0), tokens(0)]).await.unwrap();
        assert_eq!(answer.overall_code(), code);
        assert_eq!(header(&answer, "retry-after").is_empty(), code == Granted, "{answer:?}");
    }
}

#[tokio::test]
async fn hits_that_cancel_out_take_nothing() {
    let server = in_memory(json!({})).await;
    let mut client = client(&server).await;
    let used = || descriptor(&[("user", "a"), ("used", "x")], Some(5));
    let back = RateLimitDescriptor { is_negative_hits: true, ..used() };
    ask(&mut client, 0, vec![used(), back]).await.unwrap();
    let look = descriptor(&[("user", "a"), ("tokens", "x")], Some(0));
    let looked = ask(&mut client, 0, vec![look]).await.unwrap();
    assert_eq!(codes(&looked), (Granted, vec![(Granted, 1_000)]));
}

#[tokio::test]
async fn negative_hits_of_a_limit_that_the_bucket_lacks_are_no_error() {
    let server = in_memory(json!({})).await;
    let mut client = client(&server).await;
    ask(&mut client, 0, vec![descriptor(&[("user", "a")], None)]).await.unwrap();
    let used = descriptor(&[("user", "a"), ("used", "x")], Some(5));
    ask(&mut client, 0, vec![RateLimitDescriptor { is_negative_hits: true, ..used }])
        .await
        .unwrap();
    let look = descriptor(&[("user", "a"), ("tokens", "x")], Some(0));
    let looked = ask(&mut client, 0, vec![look]).await.unwrap();
    assert_eq!(codes(&looked), (Granted, vec![(Granted, 1_000)]));
}

/// Envoy reports a use once, when the stream is done, and waits 20 ms for the answer.
#[tokio::test]
async fn use_is_counted_although_envoy_does_not_wait_for_the_answer() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let proxy = Proxy::start(engine.endpoint_url()).await;
        let server = Running::start(config(rules()), patient(&proxy, &table)).await;
        let mut client = client(&server).await;
        proxy.inject(|_| Fault::Delay(Duration::from_millis(200)));
        let used = vec![descriptor(&[("user", "a"), ("used", "x")], Some(600))];
        tokio::select! {
            early = ask(&mut client, 0, used) => panic!("{early:?}"),
            () = asked(&proxy) => {}
        }
        drop(client);
        server.ended().await;
        let direct = Limiter::new(DynamoStore::new(engine.client().clone(), &table));
        let limits = direct.peek("a", "api").await.unwrap();
        assert_eq!(limits[0].available.get() / 10_000, 40, "{limits:?}");
    })
    .await;
}

/// A long header in several descriptors: a request that the server does not read is not limited.
#[tokio::test]
async fn long_values_are_limited_too() {
    let server = in_memory(json!({})).await;
    let path = "x".repeat(60_000);
    let long = || vec![descriptor(&[("user", "a")], None), descriptor(&[("path", &path)], None)];
    let mut client = client(&server).await;
    let descriptors = [long(), long(), long()].concat();
    let answer = ask(&mut client, 0, descriptors).await.unwrap();
    assert_eq!(codes(&answer).1[1], (Granted, 97));
}

/// The parent has the limit already when a child that does not gets it.
#[tokio::test]
async fn a_limit_that_is_new_to_a_child_is_counted_once_on_its_parent() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let store = DynamoStore::new(engine.client().clone(), &table);
        let server = Running::start(config(rules()), Limiter::new(store)).await;
        let mut client = client(&server).await;
        for child in ["a", "b"] {
            let put = json!({"parent": "team", "cascade": true});
            let answer = server.send("PUT", &format!("/v1/entities/{child}"), &[], &put).await;
            assert!(answer.status.is_success(), "{answer:?}");
        }
        let used = |user, hits| vec![descriptor(&[("user", user), ("used", "x")], Some(hits))];
        ask(&mut client, 0, used("b", 100)).await.unwrap();
        ask(&mut client, 0, vec![descriptor(&[("user", "a")], None)]).await.unwrap();
        ask(&mut client, 0, used("a", 700)).await.unwrap();
        for (entity, left) in [("a", 300.0), ("team", 200.0)] {
            let shown = server.get(&format!("/v1/entities/{entity}")).await.body;
            let limits = shown["buckets"][0]["limits"].as_array().unwrap().clone();
            let tpm = limits.iter().find(|limit| limit["limit"] == "tpm").unwrap();
            let available = tpm["available"].as_f64().unwrap();
            assert!((available - left).abs() < 5.0, "{entity}: {shown}");
        }
    })
    .await;
}

#[tokio::test]
async fn an_empty_limit_refuses_to_be_looked_at_by_both_codes() {
    let server = in_memory(json!({})).await;
    let mut client = client(&server).await;
    let tokens = |hits| vec![descriptor(&[("user", "a"), ("tokens", "x")], Some(hits))];
    ask(&mut client, 0, tokens(1_000)).await.unwrap();
    let refused = ask(&mut client, 0, tokens(0)).await.unwrap();
    assert_eq!(codes(&refused), (OverLimit, vec![(OverLimit, 0)]));
}

#[tokio::test]
async fn headers_of_several_buckets_are_one_list_and_the_longest_wait_holds() {
    let server = in_memory(json!({"domains": [{"domain": "edge", "rules": [
        {"match": {"user": "*"}, "entity": "{user}", "resource": "api", "limits": ["rph=1/h"],
         "consume": {"rph": 1}},
        {"match": {"path": "*"}, "entity": "all", "resource": "api", "limits": ["rpm=1/min"],
         "consume": {"rpm": 1}},
        {"match": {"cost": "*"}, "entity": "all", "resource": "money", "limits": ["usd=1/never"],
         "consume": {"usd": 0.4}},
    ]}]}))
    .await;
    let mut client = client(&server).await;
    let (user, path) =
        (|| descriptor(&[("user", "a")], None), || descriptor(&[("path", "p")], None));
    let cost = || descriptor(&[("cost", "c")], None);
    let all = || vec![user(), path(), cost()];
    let fields = |response: &RateLimitResponse| {
        let of = response.response_headers_to_add.iter();
        of.filter(|header| header.key == "ratelimit-policy").count()
    };
    let granted = ask(&mut client, 0, all()).await.unwrap();
    assert_eq!((granted.overall_code(), fields(&granted)), (Granted, 3));
    // Money is counted in its unit: 0.4 of 1 dollar was taken once, not in the refused request.
    let refused = ask(&mut client, 0, all()).await.unwrap();
    assert_eq!((refused.overall_code(), fields(&refused)), (OverLimit, 2));
    let wait: u32 = header(&refused, "retry-after").parse().unwrap();
    assert!((3_590..=3_600).contains(&wait), "{wait}");
    assert_eq!(ask(&mut client, 0, vec![cost()]).await.unwrap().overall_code(), Granted);
    // A bucket that never has the tokens leaves no time to wait.
    let never = ask(&mut client, 0, all()).await.unwrap();
    assert_eq!((fields(&never), header(&never, "retry-after")), (3, ""));
}

#[tokio::test]
async fn envoy_needs_the_role_too() {
    let mut rules = rules();
    rules["callers"] = json!([{"name": "a", "sha256": "00".repeat(32), "roles": ["acquire"]}]);
    let server = Running::in_memory(rules).await;
    let user = descriptor(&[("user", "a")], None);
    let error = ask(&mut client(&server).await, 0, vec![user]).await.unwrap_err();
    assert_eq!(error.code(), GrpcCode::Unauthenticated);
}
