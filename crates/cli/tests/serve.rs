//! `sluicegate serve` as its users see it.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "tests panic")]

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use sluicegate_testkit::RedisServer;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, ChildStderr, Command};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::{ServerConfig, crypto::ring, pki_types::PrivateKeyDer};

/// Longer than anything takes, however busy the machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn serve(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
    command.arg("serve").args(args).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

async fn output(args: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = serve(args).output().await.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

fn file(folder: &Path, text: &str) -> String {
    let file = folder.join("sluicegate.yaml");
    std::fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

/// A server in a process of its own.
struct Serving {
    child: Child,
    lines: Lines<BufReader<ChildStderr>>,
    address: String,
}

impl Serving {
    async fn start(args: &[&str]) -> Self {
        Self::of(serve(args)).await
    }

    async fn of(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let line = lines.next_line().await.unwrap().unwrap();
        let address = line.strip_prefix("listening on http://").expect(&line);
        let address = address.split(';').next().unwrap().to_owned();
        Self { child, lines, address }
    }

    async fn line(&mut self) -> String {
        tokio::time::timeout(PATIENCE, self.lines.next_line()).await.unwrap().unwrap().unwrap()
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id().unwrap().to_string();
        let status = std::process::Command::new("kill").args([signal, &pid]).status().unwrap();
        assert!(status.success());
    }

    /// The first line and the body of an answer.
    async fn send(&self, request: &str, body: &str) -> (String, String) {
        let mut stream = TcpStream::connect(&self.address).await.unwrap();
        let length = body.len();
        let request = format!(
            "{request} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.lines().next().unwrap().to_owned(), body.to_owned())
    }

    async fn ended(mut self) -> Option<i32> {
        tokio::time::timeout(PATIENCE, self.child.wait()).await.unwrap().unwrap().code()
    }
}

#[tokio::test]
async fn a_configuration_is_checked_without_serving() {
    let folder = tempfile::tempdir().unwrap();
    let good = file(folder.path(), "limits: [rpm=100/min]\n");
    assert_eq!(
        output(&["--config", &good, "--check"]).await,
        (0, format!("{good} is good\n"), String::new())
    );

    let bad = file(folder.path(), "limits: [rpm]\nlisten:\n  port: 1\n");
    let (code, _, said) = output(&["--config", &bad, "--check"]).await;
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(code, 2, "{said}");
    assert!(lines[0].starts_with(&format!("{bad}:1: limits[0]: ")), "{said}");
    assert!(lines[1].starts_with(&format!("{bad}:3: listen.port: ")), "{said}");
    assert!(lines[2].contains("has 2 mistakes; `sluicegate serve --schema`"), "{said}");

    let many: Vec<_> = (0..41).map(|n| format!("l{n}=1/min")).collect();
    let many = many.join(", ");
    for (text, why) in [
        (format!("limits: [{many}]\n"), ":1: limits: 41 limits: a bucket can have at most 40"),
        ("store: {dynamodb: {table: x y}}\n".to_owned(), "\"x y\" is not a table name"),
        (
            "store: {dynamodb: {table: abc, endpoint_url: '127.0.0.1:8000'}}\n".to_owned(),
            "endpoint",
        ),
        ("store: {redis: {url: 'redis//:pw@h'}}\n".to_owned(), "store.redis.url: "),
        ("store: {redis: {url: 'rediss://h/#insecure'}}\n".to_owned(), "certificates are always"),
    ] {
        let bad = file(folder.path(), &text);
        let (code, _, said) = output(&["--config", &bad, "--check"]).await;
        assert!(code == 2 && said.contains(why), "{text}: {said}");
    }

    let (code, _, said) = output(&["--config", "/nowhere/sluicegate.yaml", "--check"]).await;
    assert!(code == 2 && said.contains("/nowhere/sluicegate.yaml"), "{said}");
}

#[tokio::test]
async fn the_schema_is_the_file_for_editors() {
    let (code, schema, _) = output(&["--schema", "--timeout", "5"]).await;
    assert_eq!((code, schema.as_str()), (0, include_str!("../../server/sluicegate.schema.json")));
}

#[tokio::test]
async fn an_address_for_everyone_and_a_used_port_are_refused() {
    let (code, _, said) = output(&["--embedded", "--listen", "0.0.0.0:0"]).await;
    assert!(code == 2 && said.contains("name callers"), "{said}");
    let used = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = used.local_addr().unwrap().to_string();
    let (code, _, said) = output(&["--embedded", "--listen", &address]).await;
    assert!(code == 5 && said.contains(&address), "{said}");
}

#[tokio::test]
async fn it_serves_from_nothing_and_shows_usage_and_ends() {
    let mut server = Serving::start(&["--embedded", "--listen", "127.0.0.1:0"]).await;
    let wanted = r#"{"entity":"u","resource":"r","amounts":{"rph":1},"limits":["rph=1/h"]}"#;
    let (status, _) = server.send("POST /v1/acquire", wanted).await;
    assert_eq!(status, "HTTP/1.1 200 OK");
    let (status, _) = server.send("POST /v1/acquire", wanted).await;
    assert_eq!(status, "HTTP/1.1 429 Too Many Requests");
    // The stream is counted, too.
    let usage = async {
        while !server
            .send("GET /v1/usage?entity=u&from=2026-01-01T00:00:00Z", "")
            .await
            .1
            .contains("\"rph\":1")
        {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, usage).await.expect("the use is in its window");
    let (_, metrics) = server.send("GET /metrics", "").await;
    assert!(metrics.contains("sluicegate_http_requests_total{"), "{metrics}");
    server.signal("-TERM");
    assert_eq!(server.line().await, "stopped");
    assert_eq!(server.ended().await, Some(0));
}

#[tokio::test]
async fn a_hangup_reads_the_configuration_again() {
    let folder = tempfile::tempdir().unwrap();
    let store = "store: {embedded: {}}\n";
    let config = file(folder.path(), store);
    let mut server = Serving::start(&["--config", &config, "--listen", "127.0.0.1:0"]).await;
    assert_eq!(server.send("GET /v1/limits", "").await.0, "HTTP/1.1 200 OK");

    file(folder.path(), "store: 5\n");
    server.signal("-HUP");
    assert!(server.line().await.contains(":1: store: value is not of type"));
    assert!(server.line().await.starts_with("the configuration stays as it was"));
    assert_eq!(server.send("GET /v1/limits", "").await.0, "HTTP/1.1 200 OK");

    file(folder.path(), &"- ".repeat(100_000));
    server.signal("-HUP");
    assert!(server.line().await.ends_with(":1: more than 64 levels are nested"));
    assert!(server.line().await.starts_with("the configuration stays as it was"));

    let hash = "00".repeat(32);
    let callers = format!("callers: [{{name: a, sha256: \"{hash}\", roles: [read]}}]\n");
    file(folder.path(), &format!("{store}{callers}limits: [rpm=5/min]\n"));
    server.signal("-HUP");
    assert_eq!(
        server.line().await,
        "read the configuration again; a restart is needed for: limits"
    );
    assert_eq!(server.send("GET /v1/limits", "").await.0, "HTTP/1.1 401 Unauthorized");

    // Another program is writing the file.
    for (text, why) in [("", "the file is empty"), (store, "the file names no callers")] {
        file(folder.path(), text);
        server.signal("-HUP");
        let said = server.line().await;
        assert!(
            said.starts_with("the configuration stays as it was") && said.contains(why),
            "{said}"
        );
        assert_eq!(server.send("GET /v1/limits", "").await.0, "HTTP/1.1 401 Unauthorized");
    }
    server.signal("-INT");
    assert_eq!(server.line().await, "stopped");
    assert_eq!(server.ended().await, Some(0));
}

/// Takes encrypted connections and passes them on in plain text. Its certificate is in the file.
async fn encrypting(to: SocketAddr, file: &Path) -> SocketAddr {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    std::fs::write(file, cert.pem()).unwrap();
    let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                // A client that does not trust the certificate ends the handshake.
                let Ok(mut here) = acceptor.accept(stream).await else { return };
                let mut there = TcpStream::connect(to).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut here, &mut there).await;
            });
        }
    });
    address
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test"]
async fn connections_to_redis_are_encrypted_by_certificates_that_are_trusted() {
    let redis = RedisServer::start().await;
    let folder = tempfile::tempdir().unwrap();
    let certificate = folder.path().join("certificate.pem");
    let address = encrypting(redis.address(), &certificate).await;
    let another = folder.path().join("another.pem");
    let CertifiedKey { cert, .. } = generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    std::fs::write(&another, cert.pem()).unwrap();
    let wanted = r#"{"entity":"u","resource":"r","amounts":{"rph":1},"limits":["rph=1/h"]}"#;
    for (trusted, deadline_ms, statuses) in [
        (&another, 250, ["503 Service Unavailable"; 2]),
        (&certificate, 9_000, ["200 OK", "429 Too Many Requests"]),
    ] {
        let store = format!("store: {{redis: {{url: 'rediss://{address}'}}}}");
        let text = format!("{store}\non_unavailable: deny\ndeadline_ms: {deadline_ms}\n");
        let config = file(folder.path(), &text);
        let mut command = serve(&["--config", &config, "--listen", "127.0.0.1:0"]);
        command.env("SSL_CERT_FILE", trusted).env_remove("SSL_CERT_DIR");
        let server = Serving::of(command).await;
        for expected in statuses {
            let (status, body) = server.send("POST /v1/acquire", wanted).await;
            assert_eq!(status, format!("HTTP/1.1 {expected}"), "{body}");
        }
        server.signal("-TERM");
        assert_eq!(server.ended().await, Some(0));
    }
}
