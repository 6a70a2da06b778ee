//! Runs Redis as processes of a test: one server, or a cluster of three. They end with the value
//! that holds them and keep no data.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use redis::{Client, Cmd, FromRedisValue, RedisResult, cmd};
use tokio::net::TcpSocket;
use tokio::time::Instant;

use crate::child::{dying_with_this_thread, free_port};
use crate::ministack::engine;

const ANSWERS_WITHIN: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// The port is free when it is chosen; another program may take it before it is used.
const ATTEMPTS: u32 = 3;
const NODES: u16 = 3;
const SLOTS: u16 = 16_384;
/// The offset of a cluster node's bus port from its port.
const BUS: u16 = 10_000;

/// One server.
#[derive(Debug)]
pub struct RedisServer {
    child: Child,
    port: u16,
    folder: tempfile::TempDir,
    options: &'static [&'static str],
    /// The port of the killed server, bound: no server of another test gets it.
    held: Option<TcpSocket>,
}

impl RedisServer {
    /// Starts a server on a port of its own.
    ///
    /// # Panics
    /// If it cannot be started; the message says what to do.
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// As [`start`](Self::start); every write is in a file before it is answered.
    ///
    /// # Panics
    /// If it cannot be started; the message says what to do.
    pub async fn start_durable() -> Self {
        Self::start_with(&["--appendonly", "yes", "--appendfsync", "always"]).await
    }

    /// Kills it. Until this value is dropped, its port refuses connections.
    ///
    /// # Panics
    /// If it was killed before.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let socket = TcpSocket::new_v4().unwrap();
        // Connections of the killed server may be closing.
        socket.set_reuseaddr(true).unwrap();
        socket.bind(self.address()).unwrap();
        self.held = Some(socket);
    }

    /// Starts another server with the killed one's file, on another port.
    ///
    /// # Panics
    /// If it cannot be started.
    pub async fn start_again(&mut self) {
        for _ in 0..ATTEMPTS {
            (self.child, self.port) = spawn(self.folder.path(), self.options);
            if self.answers().await {
                return;
            }
        }
        panic!("redis-server does not answer");
    }

    async fn start_with(options: &'static [&'static str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (child, port) = spawn(folder.path(), options);
        let mut server = Self { child, port, folder, options, held: None };
        if !server.answers().await {
            server.start_again().await;
        }
        server
    }

    /// Waits until it answers; `false` if it ended or takes too long.
    async fn answers(&mut self) -> bool {
        let deadline = Instant::now() + ANSWERS_WITHIN;
        while Instant::now() < deadline && self.child.try_wait().unwrap().is_none() {
            if self.try_send::<String>(&cmd("PING")).await.is_ok() {
                return true;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        false
    }

    /// The URL of the server.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// The address of the server.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// The port of the server.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Sends a command on a connection of its own.
    ///
    /// # Panics
    /// If it fails.
    pub async fn send<T: FromRedisValue>(&self, command: &Cmd) -> T {
        self.try_send(command).await.unwrap()
    }

    /// Awaits a future while the server runs a script without end, and answers others with `BUSY`.
    ///
    /// # Panics
    /// If the server does not come to that, or does not end the script.
    pub async fn while_busy<T>(&self, future: impl Future<Output = T>) -> T {
        self.send::<()>(cmd("CONFIG").arg("SET").arg("lua-time-limit").arg(1)).await;
        let url = self.url();
        let endless = tokio::spawn(async move {
            let mut connection =
                Client::open(url).unwrap().get_multiplexed_async_connection().await.unwrap();
            let mut script = cmd("EVAL");
            script.arg("while true do end").arg(0).query_async::<()>(&mut connection).await
        });
        while self.try_send::<i64>(&cmd("DBSIZE")).await.is_ok() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        let output = future.await;
        self.send::<()>(cmd("SCRIPT").arg("KILL")).await;
        endless.await.unwrap().unwrap_err();
        output
    }

    async fn try_send<T: FromRedisValue>(&self, command: &Cmd) -> RedisResult<T> {
        let mut connection = Client::open(self.url())?.get_multiplexed_async_connection().await?;
        command.query_async(&mut connection).await
    }
}

fn spawn(folder: &Path, options: &[&str]) -> (Child, u16) {
    let port = port_with_bus();
    let child = dying_with_this_thread(program().to_owned())
        .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
        .args(["--port", &port.to_string()])
        .args(options)
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    (child, port)
}

/// A free port whose bus port is free as well: Redis before 7 cannot use another bus port.
fn port_with_bus() -> u16 {
    loop {
        let port = free_port();
        let bus = port.checked_add(BUS);
        if bus.is_some_and(|bus| TcpListener::bind(("127.0.0.1", bus)).is_ok()) {
            return port;
        }
    }
}

/// The system's server, or the one that `cargo xtask engines` installs: the newer of the two.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let programs = [engine("redis/server/bin/redis-server"), PathBuf::from("redis-server")];
        let versions = programs.into_iter().filter_map(|it| Some((version(&it)?, it)));
        let newest = versions.max().map(|(_, program)| program);
        newest.expect("redis-server is missing; install it with `cargo xtask engines redis`")
    })
}

fn version(program: &Path) -> Option<Vec<u32>> {
    let output = Command::new(program).arg("--version").output().ok()?;
    parse_version(&String::from_utf8_lossy(&output.stdout))
}

/// The numbers of `Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.2.1 bits=64`.
fn parse_version(line: &str) -> Option<Vec<u32>> {
    let (version, _) = line.split_once(" v=")?.1.split_once(' ')?;
    version.split('.').map(|number| number.parse().ok()).collect()
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A cluster of three nodes without replicas.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<RedisServer>,
}

impl RedisCluster {
    /// Starts three nodes and waits until each knows the node of every slot.
    ///
    /// # Panics
    /// If they do not form a cluster.
    pub async fn start() -> Self {
        let mut nodes = Vec::new();
        for n in 0..NODES {
            let node = RedisServer::start_with(&["--cluster-enabled", "yes"]).await;
            let (first, end) = (n * (SLOTS / NODES), (n + 1) * (SLOTS / NODES));
            let last = if n + 1 == NODES { SLOTS - 1 } else { end - 1 };
            let slots =
                cmd("CLUSTER").arg("ADDSLOTS").arg((first..=last).collect::<Vec<_>>()).take();
            node.send::<()>(&slots).await;
            nodes.push(node);
        }
        for other in &nodes[1..] {
            let meet = cmd("CLUSTER").arg("MEET").arg("127.0.0.1").arg(other.port).take();
            nodes[0].send::<()>(&meet).await;
        }
        let cluster = Self { nodes };
        cluster.come_together().await;
        cluster
    }

    /// Adds a node that has no slots.
    ///
    /// # Panics
    /// If the others do not take it in.
    pub async fn add_node(&mut self) {
        let node = RedisServer::start_with(&["--cluster-enabled", "yes"]).await;
        let meet = cmd("CLUSTER").arg("MEET").arg("127.0.0.1").arg(node.port).take();
        self.nodes[0].send::<()>(&meet).await;
        self.nodes.push(node);
        self.come_together().await;
    }

    /// Kills a node.
    ///
    /// # Panics
    /// If it is gone already.
    pub fn kill(&mut self, node: usize) {
        self.nodes[node].kill();
    }

    async fn come_together(&self) {
        let deadline = Instant::now() + ANSWERS_WITHIN;
        for node in &self.nodes {
            while !node.is_complete(self.nodes.len()).await {
                assert!(Instant::now() < deadline, "the cluster does not come together");
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        }
    }

    /// The URLs of its nodes.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(RedisServer::url).collect()
    }

    /// Its nodes.
    #[must_use]
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// The index of the node that has this slot.
    #[must_use]
    pub fn node_of(&self, slot: u16) -> usize {
        (slot / (SLOTS / NODES)).min(NODES - 1).into()
    }
}

impl RedisServer {
    async fn is_complete(&self, nodes: usize) -> bool {
        let info: String = self.send(cmd("CLUSTER").arg("INFO")).await;
        let nodes = format!("cluster_known_nodes:{nodes}");
        info.contains("cluster_state:ok") && info.contains(&nodes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newer_server_is_told_by_its_version() {
        let version = |number| parse_version(&format!("Redis server v={number} sha=0:0")).unwrap();
        assert_eq!(version("6.2.14"), [6, 2, 14]);
        assert!(version("7.0.15") > version("6.2.14") && version("10.0") > version("7.0.15"));
        assert_eq!(parse_version("not Redis"), None);
    }

    #[tokio::test]
    #[ignore = "needs Redis: cargo xtask test"]
    async fn a_server_ends_with_its_value_and_a_cluster_has_every_slot() {
        let server = RedisServer::start().await;
        let url = server.url();
        assert_eq!(server.send::<i64>(cmd("INCR").arg("n")).await, 1);
        drop(server);
        let client = Client::open(url).unwrap();
        assert!(client.get_multiplexed_async_connection().await.is_err());

        let cluster = RedisCluster::start().await;
        assert_eq!(cluster.urls().len(), 3);
        let keys: i64 = cluster.nodes()[0].send(&cmd("DBSIZE")).await;
        assert_eq!(keys, 0);
    }
}
