//! The servers of a comparison: DynamoDB and Redis, each also behind a proxy that counts units or
//! loses an answer.
//!
//! The first line holds their addresses. Each line of the input is answered: `units` by the
//! capacity units since the last such line; `lose dynamodb` once the proxy is set to lose the
//! answer to the next write; `lose redis` once the other proxy is set to lose the next answer.

use redis::cmd;
use serde_json::json;
use sluicegate_local::{EmbeddedEngine, Storage};
use sluicegate_testkit::{Cut, Proxy, RedisServer, Wire};
use tokio::io::{AsyncBufReadExt as _, BufReader};

pub(crate) async fn run() {
    let engine = EmbeddedEngine::start(Storage::Memory).await.unwrap();
    let metered = Proxy::start_metered(&engine.endpoint_url()).await;
    let redis = RedisServer::start().await;
    let wire = Wire::start(redis.address()).await;
    let info: String = redis.send(cmd("INFO").arg("server")).await;
    let version = info.lines().find_map(|line| line.strip_prefix("redis_version:"));
    let places = json!({
        "version": version,
        "dynamodb": engine.endpoint_url(),
        "dynamodb_metered": metered.endpoint_url(),
        "redis": redis.url(),
        "redis_lossy": format!("redis://{}/", wire.address()),
    });
    println!("{places}");
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await.unwrap() {
        let answer = match line.as_str() {
            "units" => {
                let units = metered.take_units();
                json!({ "read": units.read, "write": units.write })
            }
            "lose dynamodb" => {
                metered.lose_next_write();
                json!({})
            }
            "lose redis" => {
                wire.cut_next(Cut::Answer);
                json!({})
            }
            _ => panic!("units, lose dynamodb or lose redis"),
        };
        println!("{answer}");
    }
    engine.stop().await.unwrap();
}
