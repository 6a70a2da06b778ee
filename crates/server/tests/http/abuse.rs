//! Clients that send what they should not, or nothing at all. The server goes on serving others.

use std::time::Duration;

use serde_json::json;
use sluicegate::{DynamoStore, Limiter};
use sluicegate_local::client;
use sluicegate_testkit::{Fault, Proxy};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::running::{Running, config};

#[tokio::test]
async fn every_wrong_request_gets_a_problem() {
    let server = Running::in_memory(json!({})).await;
    let json = [("content-type", "application/json")];
    let good =
        br#"{"entity":"u","resource":"r","amounts":{"rpm":1},"limits":["rpm=9/h"]}"#.to_vec();
    let deep = format!("{}1{}", "[".repeat(10_000), "]".repeat(10_000)).into_bytes();
    for (method, path, headers, body, status) in [
        ("POST", "/v1/acquire", &json, good, 200),
        ("POST", "/v1/acquire", &json, b"{".to_vec(), 400),
        ("POST", "/v1/acquire", &json, b"\xff\xfe{}".to_vec(), 400),
        ("POST", "/v1/acquire", &json, b"[]".to_vec(), 400),
        ("POST", "/v1/acquire", &json, deep, 400),
        ("POST", "/v1/acquire", &json, br#"{"entity":"u"}"#.to_vec(), 400),
        (
            "POST",
            "/v1/acquire",
            &json,
            br#"{"entity":"u","resource":"r","amounts":{}}"#.to_vec(),
            400,
        ),
        (
            "POST",
            "/v1/acquire",
            &json,
            br#"{"entity":"u","resource":"r","amounts":{"rpm":-1},"limits":["rpm=9/h"]}"#.to_vec(),
            400,
        ),
        (
            "POST",
            "/v1/acquire",
            &json,
            br#"{"entity":"u","resource":"r","amounts":{"rpm":1},"limits":["rpm"]}"#.to_vec(),
            400,
        ),
        (
            "POST",
            "/v1/acquire",
            &json,
            br#"{"entity":"u#","resource":"r","amounts":{"rpm":1},"limits":["rpm=9/h"]}"#.to_vec(),
            400,
        ),
        (
            "POST",
            "/v1/acquire",
            &json,
            br#"{"entity":"u","resource":"r","amounts":{"rpm":1},"limits":["rpm=9/h"],"x":1}"#
                .to_vec(),
            400,
        ),
        ("POST", "/v1/acquire", &[("content-type", "text/plain")], b"{}".to_vec(), 415),
        ("POST", "/v1/acquire", &json, vec![b' '; 100_000], 413),
        ("GET", "/v1/acquire", &json, Vec::new(), 405),
        ("BREW", "/v1/acquire", &json, Vec::new(), 405),
        ("POST", "/v1/permits/%FF/release", &json, Vec::new(), 400),
        ("POST", "/v1/permits/x/release", &json, Vec::new(), 404),
        ("GET", "/v1/nothing", &json, Vec::new(), 404),
        ("GET", "/v1/limits?level=1", &json, Vec::new(), 400),
        ("GET", "/v1/usage?entity=u&from=yesterday", &json, Vec::new(), 400),
    ] {
        let shown = String::from_utf8_lossy(&body[..body.len().min(80)]).into_owned();
        let answer = server.send_bytes(method, path, headers, body).await;
        assert_eq!(answer.status, status, "{method} {path} {shown}: {answer:?}");
        if status != 200 {
            assert_eq!(answer.header("content-type"), "application/problem+json", "{path} {shown}");
            assert_eq!(answer.body["status"], status);
        }
    }
}

#[tokio::test]
async fn a_body_in_pieces_is_read_whole_and_no_further_than_its_bound() {
    let server = Running::in_memory(json!({})).await;
    let body = br#"{"entity":"u","resource":"r","amounts":{"rpm":1},"limits":["rpm=9/h"]}"#;
    let many = vec![b' '; 100_000];
    for (pieces, status) in [(body.chunks(7), "200"), (many.chunks(30_000), "413")] {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let head =
            "POST /v1/acquire HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        for piece in pieces {
            let length = format!("{:x}\r\n", piece.len());
            // The server may have answered before it has read everything.
            let _ = stream.write_all(&[length.as_bytes(), piece, b"\r\n"].concat()).await;
            // They arrive one by one.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let _ = stream.write_all(b"0\r\n\r\n").await;
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer, format!("HTTP/1.1 {status}").as_bytes());
    }
}

#[tokio::test]
async fn a_client_that_stops_within_its_first_bytes_is_dropped_at_once() {
    let server = Running::in_memory(json!({})).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(b"PRI").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut answer = Vec::new();
    let end = stream.read_to_end(&mut answer);
    tokio::time::timeout(Duration::from_secs(5), end).await.expect("dropped").unwrap();
}

#[tokio::test]
async fn a_thousand_silent_connections_stop_no_other() {
    let server = Running::in_memory(json!({})).await;
    let mut silent = Vec::new();
    for n in 0..1_000 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        // Nothing, the beginning of HTTP/2, of a request, or of a body.
        let first = [
            "",
            "PRI * HT",
            "POST /v1/acquire HT",
            "POST /v1/acquire HTTP/1.1\r\ncontent-length: 9\r\n\r\n{",
        ];
        stream.write_all(first[n % 4].as_bytes()).await.unwrap();
        silent.push(stream);
    }
    let wanted =
        json!({"entity": "u", "resource": "r", "amounts": {"rpm": 1}, "limits": ["rpm=9/h"]});
    assert_eq!(server.post("/v1/acquire", &wanted).await.status, 200);
}

#[tokio::test]
async fn connections_and_requests_beyond_the_bounds_are_turned_away_at_once() {
    let bounds = json!({"bounds": {"connections": 3, "requests": 1, "request_ms": 1_000}});
    let server = Running::in_memory(bounds).await;
    let wanted = json!({
        "entity": "u", "resource": "r", "amounts": {"rph": 1}, "limits": ["rph=1/h"], "wait_ms": 5_000,
    });
    // The body never comes: the request holds its place until its time is over.
    let mut holder = TcpStream::connect(server.address).await.unwrap();
    holder
        .write_all(b"POST /v1/acquire HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{")
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let overloaded = server.post("/v1/acquire", &wanted).await;
    assert_eq!((overloaded.status.as_u16(), overloaded.header("retry-after")), (503, "1"));
    for path in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(server.get(path).await.status, 200, "an overloaded server is healthy: {path}");
    }
    let mut answer = [0; 12];
    holder.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 503");

    let mut others = Vec::new();
    for _ in 0..3 {
        others.push(TcpStream::connect(server.address).await.unwrap());
    }
    let mut closed = 0;
    for stream in &mut others {
        let read = tokio::time::timeout(Duration::from_millis(300), stream.read(&mut answer)).await;
        closed += usize::from(matches!(read, Ok(Ok(0) | Err(_))));
    }
    assert!(closed > 0, "at most three connections are open");
}

/// Anyone may ask, so a client that leaves must not make the next one ask the store again.
#[tokio::test]
async fn readiness_is_asked_once_although_clients_leave() {
    let proxy = Proxy::start("http://127.0.0.1:9").await;
    proxy.inject(|_| Fault::Delay(Duration::from_secs(1)));
    let client = client::dynamodb(&proxy.endpoint_url());
    let limiter = Limiter::new(DynamoStore::new(client, "nowhere"));
    let server = Running::start(config(json!({})), limiter).await;
    for _ in 0..20 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let asked: u64 = proxy.received_by_operation().into_values().sum();
    assert!((1..5).contains(&asked), "{asked} calls");
}

#[tokio::test]
async fn streams_that_are_reset_at_once_end_their_connection_and_no_other() {
    let server = Running::in_memory(json!({})).await;
    let stream = TcpStream::connect(server.address).await.unwrap();
    let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
    let connection = tokio::spawn(connection);
    let mut sent = 0;
    while sent < 100_000 {
        let Ok(mut ready) = client.ready().await else { break };
        let request = http::Request::post("http://x/v1/acquire").body(()).unwrap();
        let Ok((_, mut body)) = ready.send_request(request, false) else { break };
        body.send_reset(h2::Reason::CANCEL);
        client = ready;
        sent += 1;
        if sent % 64 == 0 {
            tokio::task::yield_now().await;
        }
    }
    let ended = tokio::time::timeout(Duration::from_secs(30), connection).await;
    // It says that it had enough, unless the connection breaks before that is read.
    let error = ended.expect("the server ends it").unwrap().unwrap_err();
    let is_enough = error.is_io() || error.reason() == Some(h2::Reason::ENHANCE_YOUR_CALM);
    assert!(is_enough, "after {sent} streams: {error:?}");
    assert_eq!(server.get("/healthz").await.status, 200);
}

/// A head without an end, and a connection that is used every minute.
#[tokio::test(start_paused = true)]
async fn a_connection_without_requests_is_closed_and_one_with_requests_stays() {
    let server = Running::in_memory(json!({})).await;
    let connect = async |head: &[u8]| {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(head).await.unwrap();
        stream
    };
    let healthz = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let start = tokio::time::Instant::now();
    let mut head_without_end = connect(b"GET /healthz HTTP/1.1\r\nhost: ").await;
    let mut used = connect(healthz).await;
    let mut answer = [0; 4_096];
    for _ in 0..4 {
        assert!(used.read(&mut answer).await.unwrap() > 0);
        tokio::time::sleep(Duration::from_secs(60)).await;
        used.write_all(healthz).await.unwrap();
    }
    assert_eq!(head_without_end.read(&mut answer).await.unwrap_or(0), 0);
    assert!(start.elapsed() >= Duration::from_secs(240));
    assert!(used.read(&mut answer).await.unwrap() > 0);
    // Now it is silent.
    let silent = tokio::time::Instant::now();
    assert_eq!(used.read(&mut answer).await.unwrap_or(0), 0);
    let closed_after = silent.elapsed();
    assert!((100..=180).contains(&closed_after.as_secs()), "{closed_after:?}");
}
