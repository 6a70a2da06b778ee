//! The engine's HTTP server on one loopback port.
//!
//! An engine can be served on several: a port for its users can close before the one that the
//! poller reads the rest through.

use std::net::SocketAddr;
use std::time::Duration;

use dynoxide::Database;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::Error;

/// How long [`Server::stop`] lets requests finish that are under way.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// A running server. Dropping it stops it.
#[derive(Debug)]
pub(crate) struct Server {
    address: SocketAddr,
    task: JoinHandle<Result<(), String>>,
    /// Dropping the sender is the signal, so a dropped server stops without further code.
    stopping: oneshot::Sender<()>,
}

/// Binds a loopback port; 0 is one that is free.
pub(crate) async fn listen(port: u16) -> Result<TcpListener, Error> {
    TcpListener::bind(("127.0.0.1", port)).await.map_err(|source| Error::Port { port, source })
}

impl Server {
    /// Serves `database` on the current tokio runtime.
    pub(crate) fn start(listener: TcpListener, database: Database) -> Result<Self, Error> {
        let address = listener.local_addr().map_err(Error::engine("listen"))?;
        let (stopping, stopped) = oneshot::channel::<()>();
        let shutdown = async move {
            let _ = stopped.await;
        };
        let task =
            tokio::spawn(dynoxide::server::serve_with_shutdown(listener, database, shutdown));
        Ok(Self { address, task, stopping })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// `http://127.0.0.1:<port>`.
    pub(crate) fn endpoint_url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Stops listening and lets requests under way finish for up to five seconds.
    pub(crate) async fn stop(self) -> Result<(), Error> {
        let Self { mut task, stopping, .. } = self;
        drop(stopping);
        let Ok(ended) = tokio::time::timeout(STOP_GRACE, &mut task).await else {
            task.abort();
            return Ok(());
        };
        ended.map_err(Error::engine("stop"))?.map_err(Error::engine("stop"))
    }
}
