//! The connection: one to a server, shared by many calls, or one to a cluster.

use std::sync::OnceLock;
use std::time::Duration;

use redis::aio::{ConnectionLike as _, ConnectionManager, ConnectionManagerConfig};
use redis::io::tcp::TcpSettings;
use redis::{Client, Cmd, IntoConnectionInfo, RedisError, Value};
#[cfg(feature = "redis-cluster")]
use redis::{cluster::ClusterClient, cluster_async::ClusterConnection};

/// The longest pause between two attempts to connect: an outage ends within a second of the
/// server's return.
const RECONNECT_MAX: Duration = Duration::from_millis(250);
const RECONNECT_MIN: Duration = Duration::from_millis(20);
/// The longest time for which a peer may leave data unacknowledged. For a peer that vanished
/// silently, the system might otherwise wait without end.
#[cfg(target_os = "linux")]
const SILENCE_MAX: Duration = Duration::from_secs(2);
/// The most calls that wait for the task that writes to the connection.
const QUEUE: usize = 1_024;
/// The most redirects to another node that a cluster's client follows within one attempt.
#[cfg(feature = "redis-cluster")]
const REDIRECTS_MAX: u32 = 4;

/// The target of calls. The first call makes the connection, because only a call is sure to be in a
/// runtime.
pub(super) enum Connection {
    Server(Client, OnceLock<ConnectionManager>),
    #[cfg(feature = "redis-cluster")]
    Cluster(Box<ClusterClient>, OnceLock<ClusterConnection>),
}

impl Connection {
    /// A connection that the first call makes.
    pub(super) fn lazy(url: impl IntoConnectionInfo) -> Result<Self, RedisError> {
        let info = url.into_connection_info()?;
        let settings = without_delay(info.tcp_settings().clone());
        let client = Client::open(info.set_tcp_settings(settings))?;
        Ok(Self::Server(client, OnceLock::new()))
    }

    #[cfg(feature = "redis-cluster")]
    pub(super) fn lazy_cluster<T: IntoConnectionInfo>(
        nodes: impl IntoIterator<Item = T>,
    ) -> Result<Self, RedisError> {
        let client = ClusterClient::builder(nodes).retries(REDIRECTS_MAX).build()?;
        Ok(Self::Cluster(Box::new(client), OnceLock::new()))
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
                let mut server = match made.get() {
                    Some(server) => server.clone(),
                    None => manager(client, made)?,
                };
                server.req_packed_command(command).await
            }
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(client, made) => {
                let pending =
                    || client.get_pending_async_connection_with_config(Default::default());
                made.get_or_init(pending).clone().req_packed_command(command).await
            }
        };
        match answer? {
            Value::ServerError(error) => Err(error.into()),
            value => Ok(value),
        }
    }
}

/// Makes the connection, unless another call did so first.
fn manager(
    client: &Client,
    made: &OnceLock<ConnectionManager>,
) -> Result<ConnectionManager, RedisError> {
    let config = ConnectionManagerConfig::new()
        .set_min_delay(RECONNECT_MIN)
        .set_max_delay(RECONNECT_MAX)
        .set_pipeline_buffer_size(QUEUE)
        // Every call has a deadline of its own.
        .set_response_timeout(None);
    let manager = ConnectionManager::new_lazy_with_config(client.clone(), config)?;
    Ok(made.get_or_init(|| manager).clone())
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
