//! A server: its port, its connections, and its end.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use sluicegate::Limiter;
use tokio::io::Interest;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

use crate::config::{Bounds, Config};
use crate::metrics::{self, UPKEEP};
use crate::start_error::StartError;
use crate::state::ServerState;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The router for one connection, whose requests are counted.
#[derive(Clone)]
struct Service {
    router: TowerToHyperService<axum::Router>,
    activity: Arc<Activity>,
}

/// The activity of a connection.
#[derive(Default)]
struct Activity {
    /// The requests that have begun on it: their heads were read.
    requests: AtomicU64,
    is_http2: AtomicBool,
}

/// A client has this long for the first bytes of a connection.
const FIRST_BYTES: Duration = Duration::from_secs(10);
/// A connection of HTTP/1 may be without a request in flight this long, and somewhat longer. Proxies
/// and clients that keep connections open for 60 or 90 seconds must be the ones that close them: a
/// request on a connection that the server closes is lost.
const IDLE: Duration = Duration::from_secs(100);
/// The time between two looks at the activity of a connection. A timer for each request would cost
/// each request time.
const LOOK: Duration = Duration::from_secs(25);
/// The time between two looks, at the end, if corrections are still in flight.
const END_LOOK: Duration = Duration::from_millis(10);
/// A client of HTTP/2 that is silent is asked after this time, and dropped after the same time again.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// Requests of one connection of HTTP/2 at a time.
const STREAMS_MAX: u32 = 1_000;
/// The bytes of all headers of a request.
const HEADER_BYTES_MAX: u32 = 32 * 1_024;
/// The least time for giving leased tokens back.
const RETURN_LEASES_MIN: Duration = Duration::from_secs(5);
/// The longest pause between two looks at the first bytes of a connection.
const PEEK_PAUSE_MAX: Duration = Duration::from_millis(320);
/// The pause after a failed accept: the process has no more file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// File descriptors that are neither of a client nor of a request in flight.
const OTHER_FILES: usize = 64;

/// A server with an open port.
pub struct Server {
    state: Arc<ServerState>,
    listener: TcpListener,
    address: SocketAddr,
    config: Config,
}

/// Replaces the configuration of a running server.
pub struct Reloader {
    state: Arc<ServerState>,
    /// The address that the server listens on.
    address: SocketAddr,
    /// The configuration of the start.
    config: Config,
}

impl Server {
    /// Checks the configuration and opens the port. The limiter must be made as the configuration
    /// says; the server does not look at those parts of it.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn bind(config: Config, limiter: Limiter) -> Result<Self, StartError> {
        let address = config.listen.address;
        check_open(&config, address)?;
        let state = Arc::new(ServerState::new(limiter, &config)?);
        let failed = |source| StartError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { state, listener, address, config })
    }

    /// The address that the server listens on, with its port.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of the server.
    #[must_use]
    pub fn url(&self) -> String {
        let scheme = if self.config.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// The handle for a reload.
    #[must_use]
    pub fn reloader(&self) -> Reloader {
        let (address, config) = (self.address, self.config.clone());
        Reloader { state: Arc::clone(&self.state), address, config }
    }

    /// Serves until `stop` resolves. Then no new connection is taken, and open requests have the
    /// configured time to end.
    pub async fn run_until(self, stop: impl Future<Output = ()>) {
        let Self { state, listener, .. } = self;
        let bounds = state.bounds;
        let router = crate::http::router(&state);
        let router = TowerToHyperService::new(router);
        // A request in flight has ended by the time for a request.
        let idle = IDLE + Duration::from_millis(bounds.request_ms);
        let connection_slots = Arc::new(Semaphore::new(connections_max(bounds)));
        let graceful = GracefulShutdown::new();
        let (stopped, stopping) = watch::channel(());
        let mut upkeep = tokio::time::interval(UPKEEP);
        let mut stop = pin!(stop);
        loop {
            let stream = tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => stream,
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                        continue;
                    }
                },
                _ = upkeep.tick() => {
                    metrics::upkeep();
                    continue;
                }
                () = &mut stop => break,
            };
            let Ok(slot) = Arc::clone(&connection_slots).try_acquire_owned() else {
                tracing::debug!("closed a connection: there are as many as there may be");
                continue;
            };
            let (tls, activity) = (state.reloadable().tls.clone(), Arc::<Activity>::default());
            let service = Service { router: router.clone(), activity: Arc::clone(&activity) };
            let (watcher, mut stopping) = (graceful.watcher(), stopping.clone());
            let connection = tokio::spawn(async move {
                let served = tokio::select! {
                    begun = begin(stream, tls) => match begun {
                        Ok(begun) => serve(begun, service, watcher).await,
                        Err(error) => Err(error),
                    },
                    // It has sent no request.
                    _ = stopping.changed() => Ok(()),
                };
                if let Err(error) = served {
                    tracing::debug!(error, "a connection failed");
                }
                drop(slot);
            });
            tokio::spawn(close_when_idle(connection, activity, idle));
        }
        drop((listener, stopped));
        let time = Duration::from_millis(bounds.shutdown_ms);
        let ended = async {
            graceful.shutdown().await;
            // Corrections go on when their clients have left.
            while state.in_flight.load(Ordering::Acquire) > 0 {
                tokio::time::sleep(END_LOOK).await;
            }
        };
        if timeout(time, ended).await.is_err() {
            tracing::warn!("stopped with open requests: they took longer than bounds.shutdown_ms");
        }
        let settled = state.limiter.shutdown(time.max(RETURN_LEASES_MIN)).await;
        tracing::debug!(?settled, "gave leased tokens back");
    }
}

impl Reloader {
    /// Replaces callers, keys and the rules for Envoy, and returns the parts of the file that need a
    /// restart.
    ///
    /// # Errors
    /// [`StartError`]; then everything stays as it was.
    pub fn reload(&self, config: &Config) -> Result<Vec<&'static str>, StartError> {
        check_open(config, self.address)?;
        self.state.reload(config)?;
        Ok(config.fixed_parts_that_differ(&self.config))
    }
}

/// The connections that may be open at a time: as many as the bounds say, but a request in flight may
/// need a connection to the store. If clients took all file descriptors of the process, the store
/// would seem not to answer. The limit of descriptors is raised as far as the system allows.
fn connections_max(bounds: Bounds) -> usize {
    let files = rlimit::increase_nofile_limit(u64::MAX).unwrap_or(u64::MAX);
    let most = connections_within(bounds, usize::try_from(files).unwrap_or(usize::MAX));
    if most < bounds.connections {
        tracing::warn!(
            files,
            most,
            "fewer connections than bounds.connections: raise the limit of open files (ulimit -n)"
        );
    }
    most.min(Semaphore::MAX_PERMITS)
}

/// The connections that so many file descriptors allow, at least a quarter of them.
fn connections_within(bounds: Bounds, files: usize) -> usize {
    let left = files.saturating_sub(bounds.requests.saturating_add(OTHER_FILES));
    left.max(files / 4).min(bounds.connections)
}

/// # Errors
/// [`StartError::Open`] if everyone who reaches the address could do everything.
fn check_open(config: &Config, address: SocketAddr) -> Result<(), StartError> {
    let is_open = config.callers.is_empty() && !config.listen.without_callers;
    if is_open && !address.ip().is_loopback() {
        return Err(StartError::Open(address));
    }
    Ok(())
}

/// A plain or an encrypted connection.
type Stream = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// Waits for the first bytes of a connection. True for HTTP/2: without TLS, if the connection begins
/// so; with TLS, if the client chose it.
async fn begin(stream: TcpStream, tls: Option<TlsAcceptor>) -> Result<(Stream, bool), BoxError> {
    stream.set_nodelay(true)?;
    match tls {
        None => {
            let is_http2 = timeout(FIRST_BYTES, begins_as_http2(&stream)).await??;
            Ok((Either::Left(stream), is_http2))
        }
        Some(tls) => {
            let stream = timeout(FIRST_BYTES, tls.accept(stream)).await??;
            let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            Ok((Either::Right(Box::new(stream)), is_http2))
        }
    }
}

async fn serve(
    (stream, is_http2): (Stream, bool),
    service: Service,
    watcher: Watcher,
) -> Result<(), BoxError> {
    let io = TokioIo::new(stream);
    if is_http2 {
        service.activity.is_http2.store(true, Ordering::Relaxed);
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE)
            .max_concurrent_streams(STREAMS_MAX)
            .max_header_list_size(HEADER_BYTES_MAX);
        watcher.watch(builder.serve_connection(io, service)).await?;
    } else {
        let mut builder = http1::Builder::new();
        // One piece of an answer is copied behind its head: cheaper than a call with two pieces.
        builder.max_buf_size(HEADER_BYTES_MAX as usize).writev(false);
        watcher.watch(builder.serve_connection(io, service)).await?;
    }
    Ok(())
}

impl hyper::service::Service<http::Request<Incoming>> for Service {
    type Response = axum::response::Response;
    type Error = Infallible;
    type Future = <TowerToHyperService<axum::Router> as hyper::service::Service<
        http::Request<Incoming>,
    >>::Future;

    fn call(&self, request: http::Request<Incoming>) -> Self::Future {
        self.activity.requests.fetch_add(1, Ordering::Relaxed);
        self.router.call(request)
    }
}

/// Closes a connection of HTTP/1 on which no request has begun for this time. So a client is dropped
/// that keeps its connection, sends a head without an end, or takes longer than that to read an
/// answer. One of HTTP/2 is asked for a sign of life instead.
async fn close_when_idle(mut connection: JoinHandle<()>, activity: Arc<Activity>, idle: Duration) {
    let (mut seen, mut quiet) = (0, Duration::ZERO);
    while timeout(LOOK, &mut connection).await.is_err() {
        let requests = activity.requests.load(Ordering::Relaxed);
        quiet = if requests == seen { quiet + LOOK } else { Duration::ZERO };
        seen = requests;
        if quiet >= idle && !activity.is_http2.load(Ordering::Relaxed) {
            connection.abort();
            return;
        }
    }
}

/// True if the first bytes of a connection are those of HTTP/2. They stay to be read.
async fn begins_as_http2(stream: &TcpStream) -> std::io::Result<bool> {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let mut first = [0; PREFACE.len()];
    let mut pause = Duration::from_millis(5);
    loop {
        let bytes = stream.peek(&mut first).await?;
        let is_all =
            bytes == PREFACE.len() || stream.ready(Interest::READABLE).await?.is_read_closed();
        if is_all || !PREFACE.starts_with(&first[..bytes]) {
            return Ok(first == PREFACE);
        }
        // Some of them are there: nothing wakes this task for the others.
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PEEK_PAUSE_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_file_descriptors_to_requests() {
        let bounds = Bounds { connections: 10_000, requests: 4_096, ..Bounds::default() };
        assert_eq!(connections_within(bounds, usize::MAX), 10_000);
        assert_eq!(connections_within(bounds, 65_536), 10_000);
        assert_eq!(connections_within(bounds, 8_192), 8_192 - 4_096 - 64);
        assert_eq!(connections_within(bounds, 1_024), 256);
    }
}
