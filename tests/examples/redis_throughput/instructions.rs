//! Counts the server's instructions for each call, under valgrind: the difference of two runs with
//! different numbers of calls. Unlike a rate it does not depend on other load on the machine.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use redis::{Client, cmd};
use sluicegate_testkit::RedisServer;
use tokio::process::Command;

use super::calls::Call;

const FEW: u64 = 500;
const MANY: u64 = 2_500;

/// Instructions that the server spends on one call; `None`: valgrind is not installed.
pub(crate) async fn of(server: &RedisServer, call: &Call) -> Option<u64> {
    let info: String = server.send(cmd("INFO").arg("server")).await;
    let program = info.lines().find_map(|line| line.strip_prefix("executable:"))?.trim();
    let few = counted(Path::new(program), call, FEW).await?;
    let many = counted(Path::new(program), call, MANY).await?;
    Some((many - few) / (MANY - FEW))
}

/// Instructions of a server of its own that serves so many calls.
async fn counted(program: &Path, call: &Call, calls: u64) -> Option<u64> {
    let folder = tempfile::tempdir().unwrap();
    let (out, socket) = (folder.path().join("cachegrind.out"), folder.path().join("socket"));
    let mut server = Command::new("valgrind")
        .args(["--tool=cachegrind", "--cache-sim=no"])
        .arg(format!("--cachegrind-out-file={}", out.display()))
        .arg(program)
        .args(["--port", "0", "--save", "", "--unixsocket"])
        .arg(&socket)
        .current_dir(&folder)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .ok()?;
    let client = Client::open(format!("unix:{}", socket.display())).unwrap();
    let mut connection = loop {
        match client.get_multiplexed_async_connection().await {
            Ok(connection) => break connection,
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    };
    let load = cmd("SCRIPT").arg("LOAD").arg(call.script()).take();
    let digest: String = load.query_async(&mut connection).await.unwrap();
    let sent = Command::new("redis-benchmark")
        .args(["-c", "1", "-r", "1000000000", "-s"])
        .arg(&socket)
        .args(["-n", &calls.to_string(), "EVALSHA", &digest])
        .args(call.rest())
        .output();
    assert!(sent.await.unwrap().status.success());
    // It closes the connection instead of an answer.
    let _ = cmd("SHUTDOWN").arg("NOSAVE").query_async::<()>(&mut connection).await;
    server.wait().await.unwrap();
    let counts = std::fs::read_to_string(out).unwrap();
    counts.lines().find_map(|line| line.strip_prefix("summary: ")?.trim().parse().ok())
}
