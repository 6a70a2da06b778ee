//! The connection: one to a server, which many calls share, or one to a cluster.

use std::time::Duration;

use redis::aio::{ConnectionLike as _, ConnectionManager, ConnectionManagerConfig};
use redis::io::tcp::TcpSettings;
use redis::{Client, Cmd, IntoConnectionInfo, RedisError, Value};

/// Between two attempts to connect anew: an outage ends within a second of the server's return.
const RECONNECT_MAX: Duration = Duration::from_millis(250);
const RECONNECT_MIN: Duration = Duration::from_millis(20);
/// How long a peer may leave what was sent unacknowledged: one that went without a word would
/// otherwise be waited for as long as the system likes.
#[cfg(target_os = "linux")]
const SILENCE_MAX: Duration = Duration::from_secs(2);
/// Calls that may wait for the task that writes to the connection.
const QUEUE: usize = 1_024;
/// How often a cluster's client follows a bucket to another node within one attempt.
#[cfg(feature = "redis-cluster")]
const REDIRECTS_MAX: u32 = 4;

/// Where calls go.
#[derive(Clone)]
pub(super) enum Connection {
    Server(ConnectionManager),
    #[cfg(feature = "redis-cluster")]
    Cluster(redis::cluster_async::ClusterConnection),
}

impl Connection {
    /// A connection that is made by the first call.
    pub(super) fn lazy(url: impl IntoConnectionInfo) -> Result<Self, RedisError> {
        let config = ConnectionManagerConfig::new()
            .set_min_delay(RECONNECT_MIN)
            .set_max_delay(RECONNECT_MAX)
            .set_pipeline_buffer_size(QUEUE)
            // Every call has a deadline of its own.
            .set_response_timeout(None);
        let info = url.into_connection_info()?;
        let settings = prompt(info.tcp_settings().clone());
        let client = Client::open(info.set_tcp_settings(settings))?;
        ConnectionManager::new_lazy_with_config(client, config).map(Self::Server)
    }

    #[cfg(feature = "redis-cluster")]
    pub(super) fn lazy_cluster<T: IntoConnectionInfo>(
        nodes: impl IntoIterator<Item = T>,
    ) -> Result<Self, RedisError> {
        let client =
            redis::cluster::ClusterClient::builder(nodes).retries(REDIRECTS_MAX).build()?;
        let connection = client.get_pending_async_connection_with_config(Default::default());
        Ok(Self::Cluster(connection))
    }

    pub(super) const fn is_cluster(&self) -> bool {
        match self {
            Self::Server(_) => false,
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(_) => true,
        }
    }

    pub(super) async fn send(&self, command: &Cmd) -> Result<Value, RedisError> {
        let answer = match self.clone() {
            Self::Server(mut server) => server.req_packed_command(command).await,
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(mut cluster) => cluster.req_packed_command(command).await,
        };
        match answer? {
            Value::ServerError(error) => Err(error.into()),
            value => Ok(value),
        }
    }
}

/// Small writes go out at once.
fn prompt(settings: TcpSettings) -> TcpSettings {
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
