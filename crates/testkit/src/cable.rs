//! A TCP connection to a server that a test can cut, before a request arrives or before its answer
//! does.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// What the cable does to the next bytes in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The next request does not arrive: the connection ends.
    Request,
    /// The next answer does not arrive: the connection ends when the server has given it.
    Answer,
}

/// The cable. Connections after a cut pass again.
#[derive(Debug)]
pub struct Cable {
    address: SocketAddr,
    next: Arc<Mutex<Option<Cut>>>,
    task: JoinHandle<()>,
}

impl Cable {
    /// Listens on a port of its own and passes everything on to `port` of this machine.
    ///
    /// # Panics
    /// When there is no port.
    pub async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let next: Arc<Mutex<Option<Cut>>> = Arc::default();
        let task = tokio::spawn(serve(listener, port, next.clone()));
        Self { address, next, task }
    }

    /// Where it listens.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Cuts once, at the next bytes in that direction.
    ///
    /// # Panics
    /// Never.
    pub fn cut(&self, what: Cut) {
        *self.next.lock().unwrap() = Some(what);
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(listener: TcpListener, port: u16, next: Arc<Mutex<Option<Cut>>>) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        let next = next.clone();
        connections.spawn(async move {
            let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else { return };
            let ((from_client, to_client), (from_server, to_server)) =
                (client.into_split(), server.into_split());
            // The first that ends takes the other with it.
            tokio::select! {
                () = pass(from_client, to_server, Cut::Request, &next) => {}
                () = pass(from_server, to_client, Cut::Answer, &next) => {}
            }
        });
    }
}

async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    direction: Cut,
    next: &Mutex<Option<Cut>>,
) {
    let mut bytes = vec![0; 16 * 1024];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        if next.lock().unwrap().take_if(|cut| *cut == direction).is_some() {
            return;
        }
        if to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}
