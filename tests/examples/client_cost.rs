//! Measures the cost of a warm acquire for its client beside the bare SDK, in instructions: nothing
//! is sent.
//!
//! `client_cost <ours|calendar|bare> <hot|seldom> <acquires>`, under `valgrind --tool=callgrind`; the
//! difference between two numbers of acquires excludes the start. `hot` is a bucket that another
//! writer claimed a moment ago, `seldom` one that every acquire claims. With `calendar`, one of the two
//! limits is one by the calendar.
#![allow(missing_docs, clippy::unwrap_used, reason = "a tool by hand")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::http::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::http::{
    HttpConnector, HttpConnectorFuture, SharedHttpConnector, http_client_fn,
};
use serde_json::{Value, json};
use sluicegate::settings::Cascade;
use sluicegate::types::EpochMillis;
use sluicegate::{DynamoStore, Limit, LimitSet, Limiter, OnUnavailable, TestClock};
use sluicegate_local::client;

use self::sender::{Bare, Sender, TABLE, limits};

mod sender;

/// Answers that there is no item, then a PutItem, and after it every UpdateItem with the item that
/// was put.
#[derive(Debug, Clone, Default)]
struct Canned {
    answer: Arc<Mutex<String>>,
    hash: Arc<Mutex<String>>,
}

impl HttpConnector for Canned {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let mut answer = self.answer.lock().unwrap();
        let capacity = json!({"TableName": TABLE, "CapacityUnits": 1.0});
        let target = request.headers().get("x-amz-target").unwrap();
        if target.ends_with(".GetItem") {
            *answer = json!({"ConsumedCapacity": capacity}).to_string();
        } else if target.ends_with(".PutItem") {
            let mut put: Value = serde_json::from_slice(request.body().bytes().unwrap()).unwrap();
            let mut item = put["Item"].take();
            item["pv"]["S"].as_str().unwrap().clone_into(&mut self.hash.lock().unwrap());
            for (n, id) in ["lr1", "lr2", "lr3"].into_iter().enumerate() {
                item[id] = json!({"S": format!("CCCCCCCCC{n}")});
            }
            *answer = json!({"Attributes": item, "ConsumedCapacity": capacity}).to_string();
        }
        let mut response = HttpResponse::new(200.try_into().unwrap(), answer.clone().into());
        response.headers_mut().insert("content-type", "application/x-amz-json-1.0");
        HttpConnectorFuture::ready(Ok(response))
    }
}

/// Two limits, one of them by the calendar.
fn by_calendar() -> LimitSet {
    let calendar = "month@15/Europe/Berlin".parse().unwrap();
    let month = Limit::by_calendar("tpm", 1_000_000_000_000, calendar);
    LimitSet::new([Limit::per_minute("rpm", 1_000_000_000_000), month]).unwrap()
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [who, how, acquires] = arguments.as_slice() else { panic!("three arguments") };
    let claims = how == "seldom";

    let canned = Canned::default();
    let connector = SharedHttpConnector::new(canned.clone());
    let config = client::dynamodb_config("http://127.0.0.1:1")
        .http_client(http_client_fn(move |_, _| connector.clone()));
    let sdk = Client::from_conf(config.build());
    let clock = TestClock::at(EpochMillis::new(1_769_608_800_000).unwrap());
    let limiter = Limiter::builder(DynamoStore::new(sdk.clone(), TABLE))
        .clock(clock.clone())
        .cascade(Cascade::No)
        .default_limits(if who == "calendar" { by_calendar() } else { limits() })
        .deadline(Duration::from_secs(30))
        .on_unavailable(OnUnavailable::Deny)
        .build();
    let ours = Sender::Ours(limiter);
    ours.send("user-0").await;
    let hash = canned.hash.lock().unwrap().clone();
    let sender = match who.as_str() {
        "ours" | "calendar" => ours,
        _ => Sender::Bare(Arc::new(Bare::new(sdk, &hash, claims))),
    };
    for _ in 0..acquires.parse().unwrap() {
        if claims {
            clock.advance(Duration::from_secs(1));
        }
        sender.send("user-0").await;
    }
}
