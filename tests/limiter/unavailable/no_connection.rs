//! A server that refuses connections: no call reaches it, so nothing is in doubt.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use sluicegate::{AdjustError, Limit, Limiter, OnUnavailable, Permit};
use sluicegate_testkit::Wire;
use tokio::net::{TcpListener, TcpStream};

use super::servers::{Embedded, Server};

const DEADLINE: Duration = Duration::from_millis(300);

#[tokio::test]
async fn corrections_that_no_connection_carried_are_repeated() {
    let mut server = Embedded::start().await;
    let wire = Wire::start(server.address()).await;
    let address = wire.address();
    let limiter = Limiter::builder(server.store(address))
        .deadline(DEADLINE)
        .on_unavailable(OnUnavailable::Deny)
        .build();
    let limits = [Limit::quota("q", 100)];
    let ask = || limiter.acquire("u", "r").consume("q", 10).limits(limits.clone()).no_cascade();
    let permit = ask().await.unwrap();
    // A permit's corrections have the time of its acquire.
    let patient = ask().deadline(Duration::from_secs(20)).await.unwrap();
    drop(wire);
    // Nothing listens at the address any more, and the client notices that its connection ended: a
    // request into that one would be in doubt.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let (adjusted, ()) = tokio::join!(patient.adjust("q", -7), async {
        not_sent(&permit).await;
        assert!(ask().await.is_err());
        // By then, the patient one has had more attempts than a contended write may have.
        tokio::time::sleep(Duration::from_secs(3)).await;
        forward(address, server.address()).await;
    });
    adjusted.unwrap();
    // The breaker may be open until its next probe.
    let start = Instant::now();
    while permit.adjust("q", -7).await.is_err() {
        assert!(start.elapsed() < Duration::from_secs(10));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // The acquire that failed took nothing.
    let other = Limiter::new(server.store(server.address()));
    let status = other.peek("u", "r").await.unwrap();
    assert_eq!(status[0].available.get(), 94_000);
    server.end().await;
}

/// Corrects the permit until two of the corrections end as not sent.
///
/// On a busy machine, a call may still be looking for a connection when its caller's deadline ends,
/// and is then in doubt.
async fn not_sent(permit: &Permit) {
    let mut not_sent = 0;
    for _ in 0..10 {
        match permit.adjust("q", -7).await.unwrap_err() {
            AdjustError::Ambiguous(_) => continue,
            failed => {
                assert!(matches!(failed, AdjustError::Unavailable(_)), "{failed:?}");
                assert!(!failed.may_have_been_made(), "{failed:?}");
            }
        }
        not_sent += 1;
        if not_sent == 2 {
            return;
        }
    }
    panic!("{not_sent} of ten corrections were not sent");
}

/// Listens at an address again, and passes everything on.
async fn forward(from: SocketAddr, to: SocketAddr) {
    let start = Instant::now();
    let listener = loop {
        match TcpListener::bind(from).await {
            Ok(listener) => break listener,
            Err(error) => assert!(start.elapsed() < Duration::from_secs(10), "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    tokio::spawn(async move {
        while let Ok((mut here, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut there = TcpStream::connect(to).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut here, &mut there).await;
            });
        }
    });
}
