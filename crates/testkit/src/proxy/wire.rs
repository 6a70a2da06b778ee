//! A TCP proxy for any protocol: it cuts connections, holds answers back, or leads to another
//! server.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The state of the connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// They are closed, new ones at once.
    Cut,
    /// Data of clients passes; answers of the server are held back until the proxy is open again.
    Silent,
}

/// Data that is lost once: the bytes do not arrive, and their connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The next request.
    Request,
    /// The next answer; the request takes effect.
    Answer,
}

/// A running proxy. Dropping it closes its port and every connection.
#[derive(Debug)]
pub struct Wire {
    address: SocketAddr,
    shared: Arc<WireState>,
    _server: JoinSet<()>,
}

#[derive(Debug)]
struct WireState {
    upstream: Mutex<SocketAddr>,
    state: watch::Sender<State>,
    next_cut: Mutex<Option<Cut>>,
    /// The number of connections that were made, and of pieces that clients sent.
    sent: AtomicU64,
}

impl Wire {
    /// Starts a proxy in front of a server.
    ///
    /// # Panics
    /// If no port can be bound.
    pub async fn start(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(WireState {
            upstream: Mutex::new(upstream),
            state: watch::Sender::new(State::Open),
            next_cut: Mutex::default(),
            sent: AtomicU64::new(0),
        });
        let mut server = JoinSet::new();
        server.spawn(accept(listener, shared.clone()));
        Self { address, shared, _server: server }
    }

    /// The address that it listens on.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes every connection, and new ones at once.
    pub fn cut(&self) {
        self.shared.state.send_replace(State::Cut);
    }

    /// Loses the next data in one direction. Connections made afterwards pass again.
    ///
    /// # Panics
    /// Never in a test that has not failed already.
    pub fn cut_next(&self, what: Cut) {
        *self.shared.next_cut.lock().unwrap() = Some(what);
    }

    /// Holds back the server's answers, and passes the clients' data.
    pub fn silence(&self) {
        self.shared.state.send_replace(State::Silent);
    }

    /// Passes everything again, and the data that was held back.
    pub fn open(&self) {
        self.shared.state.send_replace(State::Open);
    }

    /// Connects to this server from now on.
    ///
    /// # Panics
    /// Never in a test that has not failed already.
    pub fn lead_to(&self, upstream: SocketAddr) {
        *self.shared.upstream.lock().unwrap() = upstream;
    }

    /// The number of times that clients connected or sent data so far.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.shared.sent.load(Ordering::Relaxed)
    }
}

impl WireState {
    /// True if bytes in this direction must be lost.
    fn loses(&self, direction: Cut) -> bool {
        self.next_cut.lock().unwrap().take_if(|cut| *cut == direction).is_some()
    }
}

async fn accept(listener: TcpListener, shared: Arc<WireState>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        shared.sent.fetch_add(1, Ordering::Relaxed);
        while connections.try_join_next().is_some() {}
        connections.spawn(serve(client, shared.clone()));
    }
}

/// Ends with either side, or when the proxy is cut.
async fn serve(client: TcpStream, shared: Arc<WireState>) {
    let mut state = shared.state.subscribe();
    if *state.borrow_and_update() == State::Cut {
        return;
    }
    let upstream = *shared.upstream.lock().unwrap();
    let Ok(server) = TcpStream::connect(upstream).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let (mut asked, mut answered) = ([0; 16_384], [0; 16_384]);
    loop {
        let is_silent = match *state.borrow_and_update() {
            State::Cut => return,
            State::Silent => true,
            State::Open => false,
        };
        let carried = tokio::select! {
            read = from_client.read(&mut asked) => match read {
                // It may have been cut before the bytes came, unnoticed until now.
                Ok(1..) if *state.borrow() == State::Cut => return,
                Ok(n @ 1..) => {
                    shared.sent.fetch_add(1, Ordering::Relaxed);
                    if shared.loses(Cut::Request) {
                        return;
                    }
                    to_server.write_all(&asked[..n]).await
                }
                _ => return,
            },
            read = from_server.read(&mut answered), if !is_silent => match read {
                Ok(1..) if shared.loses(Cut::Answer) => return,
                Ok(n @ 1..) => to_client.write_all(&answered[..n]).await,
                _ => return,
            },
            changed = state.changed() => match changed {
                Ok(()) => Ok(()),
                Err(_) => return,
            },
        };
        if carried.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A server that repeats all data, with its name.
    async fn echo(name: u8) -> (SocketAddr, JoinSet<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut server = JoinSet::new();
        server.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (mut client, _) = listener.accept().await.unwrap();
                connections.spawn(async move {
                    let mut byte = [0];
                    while matches!(client.read(&mut byte).await, Ok(1)) {
                        client.write_all(&[byte[0], name]).await.unwrap();
                    }
                });
            }
        });
        (address, server)
    }

    async fn ask(client: &mut TcpStream) -> Option<[u8; 2]> {
        let mut answer = [0; 2];
        client.write_all(b"?").await.ok()?;
        client.read_exact(&mut answer).await.ok()?;
        Some(answer)
    }

    #[tokio::test]
    async fn it_is_cut_silent_and_open_again_before_another_server() {
        let ((one, _one), (two, _two)) = (echo(b'1').await, echo(b'2').await);
        let wire = Wire::start(one).await;
        let mut client = TcpStream::connect(wire.address()).await.unwrap();
        assert_eq!(ask(&mut client).await, Some(*b"?1"));

        wire.silence();
        let held = tokio::time::timeout(Duration::from_millis(50), ask(&mut client)).await;
        assert!(held.is_err());
        wire.open();
        let mut answer = [0; 2];
        client.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer, *b"?1");

        wire.cut();
        assert_eq!(ask(&mut client).await, None);
        let mut client = TcpStream::connect(wire.address()).await.unwrap();
        assert_eq!(ask(&mut client).await, None);
        let sent = wire.sent();
        wire.lead_to(two);
        wire.open();
        let mut client = TcpStream::connect(wire.address()).await.unwrap();
        assert_eq!(ask(&mut client).await, Some(*b"?2"));
        assert_eq!(wire.sent(), sent + 2, "a connection and a question");
    }

    #[tokio::test]
    async fn next_piece_in_a_direction_is_lost_once() {
        let (address, _server) = echo(b'1').await;
        let wire = Wire::start(address).await;
        for cut in [Cut::Request, Cut::Answer] {
            let mut client = TcpStream::connect(wire.address()).await.unwrap();
            assert_eq!(ask(&mut client).await, Some(*b"?1"));
            wire.cut_next(cut);
            assert_eq!(ask(&mut client).await, None, "{cut:?}");
        }
        let mut client = TcpStream::connect(wire.address()).await.unwrap();
        assert_eq!(ask(&mut client).await, Some(*b"?1"));
    }
}
