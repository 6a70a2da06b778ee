//! Requests that were changed at random, from the corpus beside this file. Every answer has a status
//! that the API describes, nothing panics, and the server goes on serving.
//!
//! `SLUICEGATE_FUZZ_SECONDS` and `SLUICEGATE_FUZZ_SEED` choose the length and the start of a run.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "tests panic"
)]

#[allow(dead_code, reason = "the tests of the API use the rest")]
#[path = "../http/running.rs"]
mod running;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;
use serde_json::json;
use sluicegate::{DynamoStore, Limiter};
use sluicegate_testkit::on_every_engine;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use running::{Running, config};

const CORPUS: [&[u8]; 14] = [
    include_bytes!("corpus/acquire"),
    include_bytes!("corpus/cascade"),
    include_bytes!("corpus/adjust"),
    include_bytes!("corpus/by"),
    include_bytes!("corpus/release"),
    include_bytes!("corpus/entity"),
    include_bytes!("corpus/parent"),
    include_bytes!("corpus/limits"),
    include_bytes!("corpus/delete"),
    include_bytes!("corpus/usage"),
    include_bytes!("corpus/budget"),
    include_bytes!("corpus/chunked"),
    include_bytes!("corpus/preface"),
    include_bytes!("corpus/grpc"),
];
/// Parts that parsers treat in a way of their own.
const WORDS: [&[u8]; 20] = [
    b"",
    b"0",
    b"-1",
    b"1e309",
    b"9223372036854775808",
    b"0.0000000001",
    b"\"",
    b"\\u0000",
    b"\xff",
    b"{",
    b"]",
    b"null",
    b"true",
    b"#",
    b"/",
    b"%00",
    b"=",
    b",",
    b"\r\n",
    b"content-length: 99999999999\r\n",
];
/// The statuses that the API describes, and those of malformed HTTP.
const STATUSES: [u16; 17] =
    [200, 204, 400, 401, 403, 404, 405, 408, 410, 413, 414, 415, 429, 431, 501, 503, 505];
const PATIENCE: Duration = Duration::from_secs(30);

static PANICS: AtomicU32 = AtomicU32::new(0);

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |value| value.parse().unwrap())
}

/// A request of the corpus with one to four changes, with a body of the length that it says in most
/// cases.
fn changed(rng: &mut Rng, permit: &str) -> Vec<u8> {
    let text = CORPUS[rng.usize(..CORPUS.len())];
    let mut request = text.to_vec();
    if let Some(at) = text.windows(6).position(|word| word == b"PERMIT") {
        request.splice(at..at + 6, permit.bytes());
    }
    for _ in 0..rng.usize(1..=4) {
        let (from, to) = (rng.usize(..=request.len()), rng.usize(..=request.len()));
        let (from, to) = (from.min(to), from.max(to).min(from.min(to) + 12));
        match rng.u8(..5) {
            0 if from < request.len() => request[from] = rng.u8(..),
            1 => drop(request.drain(from..to)),
            2 => {
                let again = request[from..to].to_vec();
                request.splice(from..from, again);
            }
            _ => {
                let word = WORDS[rng.usize(..WORDS.len())];
                request.splice(from..to, word.iter().copied());
            }
        }
    }
    let head = request.windows(4).position(|end| end == b"\r\n\r\n");
    if let (Some(head), true) = (head, rng.u8(..8) > 0) {
        let length = request.len() - head - 4;
        let line = text_of(&request[..head])
            .lines()
            .filter(|line| !line.starts_with("content-length"))
            .chain([format!("content-length: {length}").as_str()])
            .collect::<Vec<_>>()
            .join("\r\n");
        request.splice(..head, line.into_bytes());
    }
    request
}

fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The status of the answer; `None`: the server closed the connection, or speaks HTTP/2.
async fn status(address: SocketAddr, request: &[u8]) -> Option<u16> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // The server may close the connection before it has read everything.
    let _ = stream.write_all(request).await;
    let _ = stream.shutdown().await;
    let mut answer = Vec::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
    let _ = read.unwrap_or_else(|_| panic!("no end of the answer to {:?}", text_of(request)));
    let line = answer.strip_prefix(b"HTTP/1.")?.get(2..5)?;
    std::str::from_utf8(line).ok()?.parse().ok()
}

#[tokio::test]
async fn changed_requests_get_a_status_and_nothing_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        before(info);
    }));
    let seed = setting("SLUICEGATE_FUZZ_SEED", fastrand::u64(..));
    let length = Duration::from_secs(setting("SLUICEGATE_FUZZ_SECONDS", 5));
    println!("SLUICEGATE_FUZZ_SEED={seed}");
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let limiter = Limiter::new(DynamoStore::new(engine.client().clone(), &table));
        let rules = json!({"domains": [{"domain": "edge", "rules": [
            {"match": {"user": "*"}, "entity": "{user}", "resource": "api", "limits": ["rph=9/h"], "consume": {"rph": 1}},
        ]}]});
        let bounds = json!({"request_ms": 2_000});
        let config = config(json!({"envoy": rules, "bounds": bounds}));
        let server = Running::start(config, limiter).await;
        let wanted = json!({"entity": "u", "resource": "r", "amounts": {"rpm": 5}, "limits": ["rpm=1000000/min"]});
        let permit = server.post("/v1/acquire", &wanted).await.permit();
        let mut statuses: BTreeMap<Option<u16>, u32> = BTreeMap::new();
        let mut rng = Rng::with_seed(seed);
        let end = Instant::now() + length;
        while Instant::now() < end {
            let request = changed(&mut rng, &permit);
            let status = status(server.address, &request).await;
            *statuses.entry(status).or_default() += 1;
            let is_described = status.is_none_or(|status| STATUSES.contains(&status));
            assert!(is_described, "seed {seed}: {status:?} to {:?}", text_of(&request));
            assert_eq!(PANICS.load(Ordering::Relaxed), 0, "seed {seed}: {:?}", text_of(&request));
        }
        println!("{statuses:?}");
        assert_eq!(server.post("/v1/acquire", &wanted).await.status, 200);
        // The changes must not be so wild that no handler is reached.
        assert!(statuses.contains_key(&Some(200)) && statuses.contains_key(&Some(400)));
    })
    .await;
}
