//! Encrypted connections.

use std::path::Path;
use std::sync::Arc;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use serde_json::json;
use sluicegate::{Limiter, MemoryStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};

use crate::running::{Running, config};

/// Writes a new certificate for `localhost` to the folder.
fn certificate(folder: &Path) -> CertificateDer<'static> {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(folder.join("certificate.pem"), cert.pem()).unwrap();
    std::fs::write(folder.join("key.pem"), signing_key.serialize_pem()).unwrap();
    cert.der().clone()
}

/// The first line of the answer to a client that trusts one certificate.
async fn healthz(server: &Running, trusted: &CertificateDer<'static>) -> std::io::Result<String> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(server.address).await?;
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = TlsConnector::from(Arc::new(client)).connect(name, stream).await?;
    stream
        .write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        .await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer.lines().next().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn a_reload_replaces_the_certificate_for_new_connections() {
    let folder = tempfile::tempdir().unwrap();
    let old = certificate(folder.path());
    let files = config(json!({"tls": {
        "certificate_file": folder.path().join("certificate.pem"), "key_file": folder.path().join("key.pem"),
    }}));
    let server = Running::start(files.clone(), Limiter::new(MemoryStore::new())).await;
    assert_eq!(healthz(&server, &old).await.unwrap(), "HTTP/1.1 200 OK");

    let new = certificate(folder.path());
    assert!(healthz(&server, &new).await.is_err(), "not before the reload");
    assert_eq!(server.reloader.reload(&files).unwrap(), Vec::<&str>::new());
    assert_eq!(healthz(&server, &new).await.unwrap(), "HTTP/1.1 200 OK");
    assert!(healthz(&server, &old).await.is_err());

    // Connections stay encrypted until a restart, by the newest certificate.
    let without = config(json!({}));
    let other = tempfile::tempdir().unwrap();
    let newest = certificate(other.path());
    let others = config(json!({"tls": {
        "certificate_file": other.path().join("certificate.pem"), "key_file": other.path().join("key.pem"),
    }}));
    server.reloader.reload(&others).unwrap();
    assert_eq!(server.reloader.reload(&without).unwrap(), ["tls"]);
    assert_eq!(healthz(&server, &newest).await.unwrap(), "HTTP/1.1 200 OK");
    server.reloader.reload(&files).unwrap();

    // A broken file changes nothing.
    std::fs::write(folder.path().join("key.pem"), "no key").unwrap();
    let error = server.reloader.reload(&files).unwrap_err().to_string();
    assert!(error.contains("key.pem"), "{error}");
    assert_eq!(healthz(&server, &new).await.unwrap(), "HTTP/1.1 200 OK");
}

#[tokio::test]
async fn a_reload_replaces_callers_and_names_the_parts_that_need_a_restart() {
    let server = Running::in_memory(json!({})).await;
    assert_eq!(server.get("/v1/limits").await.status, 501);
    let mut changed = config(json!({
        "callers": [{"name": "a", "sha256": "00".repeat(32), "roles": ["read"]}],
        "limits": ["rpm=5/min"], "bounds": {"requests": 7},
    }));
    changed.listen.address = "127.0.0.1:1".parse().unwrap();
    assert_eq!(server.reloader.reload(&changed).unwrap(), ["listen", "limits", "bounds"]);
    assert_eq!(server.get("/v1/limits").await.status, 401);
}

#[tokio::test]
async fn a_reload_never_opens_a_server_to_everyone() {
    let callers = json!([{"name": "a", "sha256": "00".repeat(32), "roles": ["read"]}]);
    let mut public = config(json!({"callers": callers}));
    public.listen.address = "0.0.0.0:0".parse().unwrap();
    let server = Running::start(public.clone(), Limiter::new(MemoryStore::new())).await;
    let error = server.reloader.reload(&config(json!({}))).unwrap_err().to_string();
    assert!(error.contains("without_callers"), "{error}");
    assert_eq!(server.get("/v1/limits").await.status, 401);
    public.listen.without_callers = true;
    public.callers.clear();
    server.reloader.reload(&public).unwrap();
    assert_eq!(server.get("/v1/limits").await.status, 501);
}

/// The file may have been read while another program wrote it.
#[tokio::test]
async fn a_reload_takes_neither_callers_nor_keys_away() {
    let key = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(key.path(), "k".repeat(44)).unwrap();
    let callers = json!([{"name": "a", "sha256": "00".repeat(32), "roles": ["read"]}]);
    let keys = json!({"keys": [{"file": key.path()}]});
    let server = Running::in_memory(json!({"callers": callers, "permits": keys})).await;
    for (lacking, of) in
        [(json!({"permits": keys}), "callers"), (json!({"callers": callers}), "permits.keys")]
    {
        let error = server.reloader.reload(&config(lacking)).unwrap_err().to_string();
        assert!(error.contains(&format!("names no {of}")), "{error}");
        assert_eq!(server.get("/v1/limits").await.status, 401);
    }
    server.reloader.reload(&config(json!({"callers": callers, "permits": keys}))).unwrap();
}
