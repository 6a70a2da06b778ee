//! The connection: one to a server, shared by many calls, or one to a cluster.

#[cfg(feature = "redis-cluster")]
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redis::aio::{ConnectionLike as _, ConnectionManager, ConnectionManagerConfig};
use redis::io::tcp::TcpSettings;
use redis::{Client, Cmd, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisError, Value};
#[cfg(feature = "redis-cluster")]
use redis::{
    ConnectionAddr, ErrorKind, ServerErrorKind, cluster::ClusterClient,
    cluster_async::ClusterConnection,
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
/// With RESP3 a client notices that a server closed an idle connection. With RESP2 the next call
/// would find out: it would fail, and be in doubt.
const PROTOCOL: ProtocolVersion = ProtocolVersion::RESP3;
/// The most redirects that a call follows.
#[cfg(feature = "redis-cluster")]
const REDIRECTS_MAX: u32 = 4;
/// The most calls that wait for the task that writes to the connection.
const QUEUE: usize = 1_024;

/// The target of calls. The first call makes the connection, because only a call is sure to be in a
/// runtime.
pub(super) enum Connection {
    Server(Client, Mutex<Option<Made<ConnectionManager>>>),
    #[cfg(feature = "redis-cluster")]
    Cluster(Box<ClusterClient>, Mutex<Option<Made<ClusterConnection>>>, Redirects),
}

/// A connection, with the time at which it was made, the runtime that drives it, and the number of
/// its answers.
pub(super) struct Made<C> {
    connection: C,
    at: Instant,
    runtime: Option<runtime::Id>,
    answers: Arc<AtomicU64>,
}

/// A call in flight. A connection lives in the runtime that made it, and is silent while nobody
/// runs that runtime. So if a call of another runtime is given up, and its connection has answered
/// no call meanwhile, the next call makes another connection.
struct InFlight<'a, C> {
    made: &'a Mutex<Option<Made<C>>>,
    is_driven_elsewhere: bool,
    answers: Arc<AtomicU64>,
    before: u64,
}

impl<C> InFlight<'_, C> {
    fn note_answer(&self) {
        self.answers.fetch_add(1, Ordering::Relaxed);
    }

    /// Forgets the connection of this call, so that the next call makes another one.
    fn forget_connection(&self) {
        let mut made = lock(self.made);
        let is_due = |made: &mut Made<C>| {
            Arc::ptr_eq(&made.answers, &self.answers) && made.at.elapsed() >= REPLACED_AFTER
        };
        made.take_if(is_due);
    }
}

impl<C> Drop for InFlight<'_, C> {
    fn drop(&mut self) {
        if self.is_driven_elsewhere && self.answers.load(Ordering::Relaxed) == self.before {
            self.forget_connection();
        }
    }
}

impl Connection {
    /// A connection that the first call makes.
    pub(super) fn lazy(url: impl IntoConnectionInfo) -> Result<Self, RedisError> {
        Ok(Self::Server(client(url.into_connection_info()?)?, Mutex::default()))
    }

    #[cfg(feature = "redis-cluster")]
    pub(super) fn lazy_cluster<T: IntoConnectionInfo>(
        nodes: impl IntoIterator<Item = T>,
    ) -> Result<Self, RedisError> {
        let nodes: Vec<_> =
            nodes.into_iter().map(T::into_connection_info).collect::<Result<_, _>>()?;
        #[cfg(feature = "redis-tls")]
        nodes.iter().try_for_each(prepare_tls)?;
        let redirects = Redirects { like: nodes.first().cloned(), nodes: Mutex::default() };
        let client = ClusterClient::builder(nodes)
            // It would also repeat a call whose connection broke, although that call may have been
            // done. `repeat` repeats calls, and counts those in doubt.
            .retries(0)
            .use_protocol(PROTOCOL)
            .tcp_settings(without_delay(TcpSettings::default()))
            .build()?;
        Ok(Self::Cluster(Box::new(client), Mutex::default(), redirects))
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
                in_flight.judge(server.req_packed_command(command).await)
            }
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(client, made, redirects) => {
                let pending =
                    || Ok(client.get_pending_async_connection_with_config(Default::default()));
                let (mut cluster, in_flight) = connected(made, pending)?;
                let answer = cluster.req_packed_command(command).await;
                in_flight.note_answer();
                // It connects to the nodes again by itself, but not once its runtime has ended.
                let is_over = |error: &RedisError| {
                    error.is_connection_dropped() && !error.is_connection_refusal()
                };
                if answer.as_ref().is_err_and(is_over) {
                    in_flight.forget_connection();
                }
                redirects.follow(answer, command).await
            }
        };
        plain(answer)
    }
}

/// The error of a server as an error.
fn plain(answer: Result<Value, RedisError>) -> Result<Value, RedisError> {
    match answer? {
        Value::ServerError(error) => Err(error.into()),
        value => Ok(value),
    }
}

/// The nodes that other nodes named: the client of the cluster follows no redirect, because it
/// repeats nothing. A call that is redirected was not done.
#[cfg(feature = "redis-cluster")]
pub(super) struct Redirects {
    /// All nodes are connected to like this one, but for the address.
    like: Option<ConnectionInfo>,
    nodes: Mutex<HashMap<String, Arc<Node>>>,
}

#[cfg(feature = "redis-cluster")]
struct Node {
    client: Client,
    made: Mutex<Option<Made<ConnectionManager>>>,
}

#[cfg(feature = "redis-cluster")]
impl Redirects {
    /// Sends a redirected call to the node that the answer names.
    async fn follow(
        &self,
        answer: Result<Value, RedisError>,
        command: &Cmd,
    ) -> Result<Value, RedisError> {
        let mut answer = plain(answer);
        for _ in 0..REDIRECTS_MAX {
            let Err(error) = &answer else { break };
            let Some(node) = self.node(error)? else { break };
            let (mut connection, in_flight) = connected(&node.made, || manager(&node.client))?;
            let moved = if error.kind() == ErrorKind::Server(ServerErrorKind::Ask) {
                let mut asking = redis::pipe();
                asking.cmd("ASKING").add_command(command.clone());
                let answers = connection.req_packed_commands(&asking, 1, 1).await;
                answers.map(|mut answers| answers.pop().unwrap_or(Value::Nil))
            } else {
                connection.req_packed_command(command).await
            };
            answer = plain(in_flight.judge(moved));
        }
        answer
    }

    /// The node that the error of another one names.
    fn node(&self, error: &RedisError) -> Result<Option<Arc<Node>>, RedisError> {
        let (Some((address, _slot)), Some(like)) = (error.redirect_node(), &self.like) else {
            return Ok(None);
        };
        let mut nodes = lock(&self.nodes);
        if let Some(node) = nodes.get(address) {
            return Ok(Some(node.clone()));
        }
        let Some(info) = at_address(like, address) else { return Ok(None) };
        let node = Arc::new(Node { client: client(info)?, made: Mutex::default() });
        nodes.insert(address.to_owned(), node.clone());
        Ok(Some(node))
    }
}

/// The same with another host and port. `None`: the address is not one, or names no host.
#[cfg(feature = "redis-cluster")]
fn at_address(like: &ConnectionInfo, address: &str) -> Option<ConnectionInfo> {
    let (new_host, new_port) = address.rsplit_once(':').filter(|(host, _)| !host.is_empty())?;
    let (new_host, new_port) = (new_host.to_owned(), new_port.parse().ok()?);
    let mut addr = like.addr().clone();
    match &mut addr {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            (*host, *port) = (new_host, new_port);
        }
        _ => return None,
    }
    Some(like.clone().set_addr(addr))
}

/// Refuses encrypted connections that trust any server, and gives others their cryptography.
#[cfg(feature = "redis-tls")]
fn prepare_tls(info: &ConnectionInfo) -> Result<(), RedisError> {
    use rustls::crypto::{CryptoProvider, ring};

    let redis::ConnectionAddr::TcpTls { insecure, .. } = info.addr() else { return Ok(()) };
    if *insecure {
        let message = "`#insecure` is not supported: certificates are always checked";
        return Err((redis::ErrorKind::InvalidClientConfig, message).into());
    }
    // The crate `redis` uses the provider of the process. If there is none and the program compiles
    // two of them, rustls would panic.
    if CryptoProvider::get_default().is_none() {
        // Another thread may install one at the same time.
        let _ = ring::default_provider().install_default();
    }
    Ok(())
}

fn client(info: ConnectionInfo) -> Result<Client, RedisError> {
    #[cfg(feature = "redis-tls")]
    prepare_tls(&info)?;
    let settings = without_delay(info.tcp_settings().clone());
    let redis = info.redis_settings().clone().set_protocol(PROTOCOL);
    Client::open(info.set_tcp_settings(settings).set_redis_settings(redis))
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

impl InFlight<'_, ConnectionManager> {
    /// Takes in the answer to the call.
    fn judge(self, answer: Result<Value, RedisError>) -> Result<Value, RedisError> {
        self.note_answer();
        if is_over(&answer) {
            self.forget_connection();
        }
        answer
    }
}

/// True if no later call on the connection can be answered otherwise.
fn is_over(answer: &Result<Value, RedisError>) -> bool {
    match answer {
        // The server refused the handshake, perhaps for a moment: the manager repeats that for
        // ever.
        Err(error) => !error.is_io_error(),
        // A failover made the server a replica and left its connections open. Another one may be at
        // the address now.
        Ok(Value::ServerError(error)) => is_read_only(error.clone().into()),
        Ok(_) => false,
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

    /// A server that answers every command on its first connections with this error, and serves
    /// later ones.
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
