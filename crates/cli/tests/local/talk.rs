//! What it prints and how it exits.

use crate::process::{Local, command};

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
    assert!(first.stop().await.status.success());
    Local::start(&arguments).await.ok().unwrap().stop().await;
}

#[tokio::test]
async fn what_cannot_be_used_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing/local.db");
    let no_database = folder.path().join("notes.txt");
    std::fs::write(&no_database, "not a database, but long enough to be looked at\n").unwrap();
    for file in [missing, no_database] {
        let file = file.to_str().unwrap();
        let output = command(&["--port", "0", "--data", file]).output().await.unwrap();
        assert_eq!(output.status.code(), Some(5));
        let line = String::from_utf8(output.stderr).unwrap();
        assert!(line.lines().count() == 1 && line.contains(file), "{line}");
    }
    let output = command(&["--windows", "week"]).output().await.unwrap();
    assert_eq!(output.status.code(), Some(2));
}
