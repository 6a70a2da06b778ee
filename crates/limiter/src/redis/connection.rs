//! The connection: one to a server, shared by many calls, or one to a cluster.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redis::aio::{ConnectionLike as _, ConnectionManager, ConnectionManagerConfig};
use redis::io::tcp::TcpSettings;
use redis::{Client, Cmd, IntoConnectionInfo, ProtocolVersion, RedisError, Value};
#[cfg(feature = "redis-cluster")]
use redis::{
    ErrorKind, ServerErrorKind, cluster::ClusterClient, cluster_async::ClusterConnection,
    cluster_routing::SingleNodeRoutingInfo,
};
use tokio::runtime::{self, Handle};

use super::error::is_read_only;
use crate::lock::lock;

/// The shortest time from one connection to the one that replaces it.
const REPLACED_AFTER: Duration = Duration::from_millis(250);
/// The longest time for which a peer may leave data unacknowledged. For a peer that vanished
/// silently, the system might otherwise wait without end.
#[cfg(target_os = "linux")]
const SILENCE_MAX: Duration = Duration::from_secs(2);
/// The most calls that wait for the task that writes to the connection.
const QUEUE: usize = 1_024;

/// The target of calls. The first call makes the connection, because only a call is sure to be in a
/// runtime.
pub(super) enum Connection {
    Server(Client, Mutex<Option<Made<ConnectionManager>>>),
    #[cfg(feature = "redis-cluster")]
    Cluster(Box<ClusterClient>, Mutex<Option<Made<ClusterConnection>>>),
}

/// A connection, with the time at which it was made, the runtime that drives it, and the number of
/// its answers.
pub(super) struct Made<C> {
    connection: C,
    at: Instant,
    runtime: Option<runtime::Id>,
    answers: Arc<AtomicU64>,
}

/// A call in flight. It may be given up before its connection has answered any call. If another
/// runtime drives the connection, perhaps nobody runs that runtime any more. Then the next call
/// makes another connection.
struct InFlight<'a, C> {
    made: &'a Mutex<Option<Made<C>>>,
    is_driven_elsewhere: bool,
    answers: Arc<AtomicU64>,
    before: u64,
}

impl<C> InFlight<'_, C> {
    fn end(self) {
        self.answers.fetch_add(1, Ordering::Relaxed);
    }
}

impl<C> Drop for InFlight<'_, C> {
    fn drop(&mut self) {
        if self.is_driven_elsewhere && self.answers.load(Ordering::Relaxed) == self.before {
            forget(self.made);
        }
    }
}

impl Connection {
    /// A connection that the first call makes.
    pub(super) fn lazy(url: impl IntoConnectionInfo) -> Result<Self, RedisError> {
        let info = url.into_connection_info()?;
        let settings = without_delay(info.tcp_settings().clone());
        // With RESP3 the manager notices that the server closed an idle connection. With RESP2 the
        // next call would find out: it would fail, and be in doubt.
        let protocol = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let info = info.set_tcp_settings(settings).set_redis_settings(protocol);
        let client = Client::open(info)?;
        Ok(Self::Server(client, Mutex::default()))
    }

    #[cfg(feature = "redis-cluster")]
    pub(super) fn lazy_cluster<T: IntoConnectionInfo>(
        nodes: impl IntoIterator<Item = T>,
    ) -> Result<Self, RedisError> {
        let client = ClusterClient::builder(nodes)
            // It would also repeat a call whose connection broke, although that call may have been
            // done. `repeat` repeats calls, and counts those in doubt.
            .retries(0)
            .tcp_settings(without_delay(TcpSettings::default()))
            .build()?;
        Ok(Self::Cluster(Box::new(client), Mutex::default()))
    }

    pub(super) const fn is_cluster(&self) -> bool {
        match self {
            Self::Server(..) => false,
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(..) => true,
        }
    }

    pub(super) async fn send(&self, command: &Cmd) -> Result<Value, RedisError> {
        let answer = match self {
            Self::Server(client, made) => {
                let (mut server, in_flight) = connected(made, || manager(client))?;
                let answer = server.req_packed_command(command).await;
                in_flight.end();
                if is_over(&answer) {
                    forget(made);
                }
                answer
            }
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(client, made) => {
                let pending =
                    || Ok(client.get_pending_async_connection_with_config(Default::default()));
                let (mut cluster, in_flight) = connected(made, pending)?;
                let mut answer = cluster.req_packed_command(command).await;
                in_flight.end();
                if let Err(error) = &answer
                    && let Some(node) = asked_node(error)
                {
                    let mut asking = redis::pipe();
                    asking.cmd("ASKING").add_command(command.clone());
                    let answers = cluster.route_pipeline(asking, 1, 1, node).await;
                    answer = answers.map(|mut answers| answers.pop().unwrap_or(Value::Nil));
                }
                // It connects to the nodes again by itself, but not once its runtime has ended.
                let is_over = |error: &RedisError| {
                    error.is_connection_dropped() && !error.is_connection_refusal()
                };
                if answer.as_ref().is_err_and(is_over) {
                    forget(made);
                }
                answer
            }
        };
        match answer? {
            Value::ServerError(error) => Err(error.into()),
            value => Ok(value),
        }
    }
}

/// The node that must be asked instead, while a slot moves to it.
#[cfg(feature = "redis-cluster")]
fn asked_node(error: &RedisError) -> Option<SingleNodeRoutingInfo> {
    let is_ask = error.kind() == ErrorKind::Server(ServerErrorKind::Ask);
    let (address, _slot) = error.redirect_node().filter(|_| is_ask)?;
    let (host, port) = address.rsplit_once(':')?;
    Some(SingleNodeRoutingInfo::ByAddress { host: host.to_owned(), port: port.parse().ok()? })
}

/// The connection. The first call makes it.
fn connected<C: Clone>(
    made: &Mutex<Option<Made<C>>>,
    make: impl FnOnce() -> Result<C, RedisError>,
) -> Result<(C, InFlight<'_, C>), RedisError> {
    let runtime = Handle::try_current().ok().map(|runtime| runtime.id());
    let mut slot = lock(made);
    let Made { connection, runtime: driver, answers, .. } = match &mut *slot {
        Some(known) => known,
        none => {
            let (connection, at, answers) = (make()?, Instant::now(), Arc::default());
            none.insert(Made { connection, at, runtime, answers })
        }
    };
    let (is_driven_elsewhere, before) = (*driver != runtime, answers.load(Ordering::Relaxed));
    let in_flight = InFlight { made, is_driven_elsewhere, answers: answers.clone(), before };
    Ok((connection.clone(), in_flight))
}

fn manager(client: &Client) -> Result<ConnectionManager, RedisError> {
    let config = ConnectionManagerConfig::new()
        .set_pipeline_buffer_size(QUEUE)
        // A call that waits for the next attempt to connect until its deadline would be in doubt,
        // although it was never sent. `repeat` repeats it instead.
        .set_number_of_retries(0)
        // Every call has a deadline of its own.
        .set_response_timeout(None);
    ConnectionManager::new_lazy_with_config(client.clone(), config)
}

/// True if no later call on the connection can be answered otherwise. The manager connects again only
/// after an error of the network.
fn is_over(answer: &Result<Value, RedisError>) -> bool {
    match answer {
        // The server refused the handshake, perhaps for a moment: the manager repeats that for ever.
        Err(error) => !error.is_io_error(),
        // A failover made the server a replica and left its connections open. Another one may be at
        // the address now.
        Ok(Value::ServerError(error)) => is_read_only(error.clone().into()),
        Ok(_) => false,
    }
}

/// Forgets the connection, so that the next call makes another one.
fn forget<C>(made: &Mutex<Option<Made<C>>>) {
    let mut made = lock(made);
    if made.as_ref().is_some_and(|made| made.at.elapsed() >= REPLACED_AFTER) {
        *made = None;
    }
}

/// Sends small writes at once.
fn without_delay(settings: TcpSettings) -> TcpSettings {
    let settings = settings.set_nodelay(true);
    #[cfg(target_os = "linux")]
    let settings = settings.set_user_timeout(SILENCE_MAX);
    settings
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.is_cluster() { "Cluster" } else { "Server" })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    /// A server that answers every command on its first connections with this error, and serves later
    /// ones.
    async fn server(error: &'static str, connections_max: u32) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let connections = Arc::new(AtomicU32::new(0));
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let is_served = connections.fetch_add(1, Ordering::Relaxed) >= connections_max;
                let answer = if is_served { "+OK\r\n" } else { error };
                tokio::spawn(async move {
                    let mut bytes = [0; 4_096];
                    while let Ok(read @ 1..) = stream.read(&mut bytes).await {
                        // A command is an array of strings, and no name here has a star.
                        let commands = bytes[..read].iter().filter(|byte| **byte == b'*').count();
                        let sent = stream.write_all(answer.repeat(commands).as_bytes()).await;
                        sent.unwrap();
                    }
                });
            }
        });
        port
    }

    /// Asks until the answer is good.
    async fn ask(connection: &Connection) -> u32 {
        for failed in 0..200 {
            match connection.send(&redis::cmd("TIME")).await {
                Ok(_) => return failed,
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
        panic!("it never serves again");
    }

    #[tokio::test]
    async fn a_server_that_refused_the_handshake_is_asked_again() {
        // More than one manager tries.
        let port = server("-ERR max number of clients reached\r\n", 8).await;
        let connection = Connection::lazy(format!("redis://127.0.0.1:{port}/1")).unwrap();
        assert!(ask(&connection).await > 0);
    }

    #[tokio::test]
    async fn a_server_that_became_a_replica_is_left() {
        let port = server("-READONLY You can't write\r\n", 1).await;
        let connection = Connection::lazy(format!("redis://127.0.0.1:{port}")).unwrap();
        assert!(ask(&connection).await > 0);
        assert_eq!(ask(&connection).await, 0);
    }
}
