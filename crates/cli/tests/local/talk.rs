//! Its output and its exit codes.

use std::path::Path;
use std::time::Duration;

use sluicegate::dynamo::DynamoTable;
use sluicegate::{CompositeStore, Limit, Limiter, OnUnavailable};
use sluicegate_local::client;

use crate::process::{Local, command};
use crate::producers::{LIMIT, TABLE};

#[tokio::test]
async fn it_prints_what_to_paste_and_stops_when_asked() {
    let local = Local::start(&["--port", "0"]).await.ok().unwrap();
    let url = local.value("AWS_ENDPOINT_URL").to_owned();
    assert!(url.starts_with("http://127.0.0.1:"), "{url}");
    assert_eq!(local.value("SLUICEGATE_TABLE"), "sluicegate-limits");
    for variable in ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"] {
        assert!(!local.value(variable).is_empty());
    }
    let ended = local.stop().await;
    assert!(ended.status.success());
    assert!(ended.stderr.contains("stopped: 0 records"), "{}", ended.stderr);
}

#[tokio::test]
async fn a_port_in_use_is_one_line_with_the_next_thing_to_type() {
    let first = Local::start(&["--port", "0"]).await.ok().unwrap();
    let port: u16 = first.port().parse().unwrap();
    let output = command(&["--port", &port.to_string()]).output().await.unwrap();
    assert_eq!(output.status.code(), Some(5));
    let line = String::from_utf8(output.stderr).unwrap();
    assert_eq!(line.lines().count(), 1, "{line}");
    let next = port.checked_add(1).unwrap_or(8000);
    assert!(line.contains(&format!("`sluicegate local --port {next}`")), "{line}");
    first.stop().await;
}

#[tokio::test]
async fn a_file_in_use_is_left_to_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("local.db");
    let arguments = ["--port", "0", "--data", file.to_str().unwrap()];
    let first = Local::start(&arguments).await.ok().unwrap();
    let output = command(&arguments).output().await.unwrap();
    assert_eq!(output.status.code(), Some(5));
    let line = String::from_utf8(output.stderr).unwrap();
    assert!(line.lines().count() == 1 && line.contains("stop that one"), "{line}");

    // By another name it is the same file.
    let link = folder.path().join("link.db");
    for (is_symbolic, why) in [(true, "stop that one"), (false, "hard link")] {
        if is_symbolic {
            std::os::unix::fs::symlink(&file, &link).unwrap();
        } else {
            std::fs::hard_link(&file, &link).unwrap();
        }
        let (code, line) = refused(&link).await;
        assert!(code == 5 && line.contains(why), "{line}");
        std::fs::remove_file(&link).unwrap();
    }
    assert!(first.stop().await.status.success());
    Local::start(&arguments).await.ok().unwrap().stop().await;
}

/// The exit code and the one line of a start that ends at once.
async fn refused(file: &Path) -> (i32, String) {
    let arguments = ["--port", "0", "--data", file.to_str().unwrap()];
    let output = command(&arguments).output().await.unwrap();
    let line = String::from_utf8(output.stderr).unwrap();
    assert_eq!(line.lines().count(), 1, "{line}");
    (output.status.code().unwrap(), line)
}

#[tokio::test]
async fn unusable_files_are_named_and_left_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing/local.db");
    let no_database = folder.path().join("notes.txt");
    std::fs::write(&no_database, "not a database, but long enough to be looked at\n").unwrap();
    let folder_itself = folder.path().join("folder.db");
    std::fs::create_dir(&folder_itself).unwrap();
    for file in [missing, no_database, folder_itself] {
        let (code, line) = refused(&file).await;
        assert!(code == 5 && line.contains(file.to_str().unwrap()), "{line}");
    }
    let left = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, 2, "a lock file is left");
    let output = command(&["--windows", "weeks"]).output().await.unwrap();
    assert_eq!(output.status.code(), Some(2));
}

/// A process whose files are limited to a megabyte: writes beyond that fail as on a full disk.
fn on_a_small_disk(file: &Path) -> tokio::process::Command {
    let mut shell = tokio::process::Command::new("sh");
    let limited = "trap '' XFSZ; ulimit -f 2000; exec \"$0\" local --port 0 --data \"$1\"";
    shell.args(["-c", limited, env!("CARGO_BIN_EXE_sluicegate"), file.to_str().unwrap()]);
    let of_command = command(&[]);
    for (name, value) in of_command.as_std().get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell.stdin(std::process::Stdio::null());
    shell.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    shell.kill_on_drop(true);
    shell
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_full_disk_one_request_to_stop_ends_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("local.db");
    let local = Local::serving(on_a_small_disk(&file)).await.ok().unwrap();
    let table = DynamoTable::new(&client::dynamodb(local.value("AWS_ENDPOINT_URL")), TABLE);
    let limiter = Limiter::builder(CompositeStore::with_table(table))
        .deadline(Duration::from_secs(5))
        .on_unavailable(OnUnavailable::Deny)
        .build();
    let mut granted = 0;
    for n in 0..10_000 {
        let limits = [Limit::per_day(LIMIT, 1_000_000_000)];
        let entity = format!("user-{n}");
        let request = limiter.acquire(&entity, "model").consume(LIMIT, 1).limits(limits);
        if request.no_cascade().await.is_err() {
            break;
        }
        granted += 1;
    }
    // Usage windows fill the same disk, so a slow machine grants fewer of them.
    assert!((1..10_000).contains(&granted), "{granted}");
    let ended = tokio::time::timeout(Duration::from_secs(45), local.stop()).await.unwrap();
    assert_eq!(ended.status.code(), Some(5), "{}", ended.stderr);
    assert!(ended.stderr.contains("make room on the disk"), "{}", ended.stderr);

    // With room again nothing is lost.
    let file = file.to_str().unwrap();
    let again = Local::start(&["--port", "0", "--data", file]).await.ok().unwrap().stop().await;
    assert!(again.status.success(), "{}", again.stderr);
    let found = crate::killed::found(file.into()).await;
    assert_eq!(found.hours, found.counters);
    assert!(found.counters.len() >= granted, "{granted} of {}", found.counters.len());
}
