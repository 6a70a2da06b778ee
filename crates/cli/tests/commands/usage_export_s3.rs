//! `usage export` to folders in S3. MiniStack has an S3 at its endpoint; the other engines have none.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use aws_sdk_s3::Client;
use aws_sdk_s3::config::{BehaviorVersion, Credentials, Region};
use sluicegate_local::client::https_client;
use sluicegate_testkit::EngineKind;

use crate::support::{Shell, on_every_engine};
use crate::usage_export::{DAYS, replayed};

const BUCKET: &str = "usage-test";

async fn bucket(shell: &Shell) -> Client {
    let config = aws_sdk_s3::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::from_static("us-east-1"))
        .credentials_provider(Credentials::new("test", "test", None, None, "test"))
        .endpoint_url(shell.engine.endpoint_url())
        .http_client(https_client())
        .force_path_style(true)
        .build();
    let client = Client::from_conf(config);
    client.create_bucket().bucket(BUCKET).send().await.unwrap();
    client
}

/// The objects under a prefix, with their bytes.
async fn objects(client: &Client, prefix: &str) -> BTreeMap<String, Vec<u8>> {
    let mut objects = BTreeMap::new();
    let listed = client.list_objects_v2().bucket(BUCKET).prefix(prefix).send().await.unwrap();
    for object in listed.contents() {
        let key = object.key().unwrap();
        let got = client.get_object().bucket(BUCKET).key(key).send().await.unwrap();
        let bytes = got.body.collect().await.unwrap().to_vec();
        objects.insert(key.strip_prefix(prefix).unwrap().to_owned(), bytes);
    }
    objects
}

/// The files under a folder, with their bytes.
fn files(root: &Path, folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(self::files(root, &path));
        } else {
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            files.insert(name, std::fs::read(&path).unwrap());
        }
    }
    files
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_in_s3_has_the_bytes_of_a_local_one_and_is_completed() {
    on_every_engine(async |shell| {
        if *shell.engine.kind() != EngineKind::MiniStack {
            return;
        }
        replayed(shell);
        let client = bucket(shell).await;
        let local = tempfile::tempdir().unwrap();
        let line = format!("usage export {DAYS} --format csv --folder");
        shell.run(&format!("{line} {}", local.path().display())).text(0);
        let expected = files(local.path(), local.path());
        assert_eq!(expected.len(), 5, "the settings and four days: {expected:?}");

        let in_s3 = format!("{line} s3://{BUCKET}/a/usage");
        let said = shell.run(&in_s3);
        assert!(said.text(0).is_empty() && said.err.ends_with(" in 4 new files\n"), "{}", said.err);
        assert_eq!(objects(&client, "a/usage/").await, expected);
        let again = shell.run(&in_s3);
        assert_eq!(again.err, "0 rows in 0 new files, 4 days there already\n");
        let day = "a/usage/kind=day/date=2026-01-31/part-0.csv";
        client.delete_object().bucket(BUCKET).key(day).send().await.unwrap();
        let said = shell.run(&in_s3);
        assert!(said.err.ends_with(" in 1 new file, 3 days there already\n"), "{}", said.err);
        assert_eq!(objects(&client, "a/usage/").await, expected);

        for step in 0..12 {
            let mut export = shell.command();
            export.args(line.split(' ')).arg(format!("s3://{BUCKET}/killed"));
            let mut export = export.stderr(Stdio::null()).spawn().unwrap();
            tokio::time::sleep(Duration::from_millis(40 * step)).await;
            export.kill().unwrap();
            export.wait().unwrap();
            let found = objects(&client, "killed/").await;
            let is_expected = |(name, bytes)| expected.get(name) == Some(bytes);
            assert!(found.iter().all(is_expected), "{step}: {found:?}");
        }
        shell.run(&format!("{line} s3://{BUCKET}/killed/")).text(0);
        assert_eq!(objects(&client, "killed/").await, expected);

        let other = in_s3.replace("csv", "jsonl");
        assert!(shell.run(&other).error(2).contains("an export with other settings"));
        assert!(shell.run(&format!("{line} s3://")).error(2).contains("s3://BUCKET/PREFIX"));
        let missing = shell.run(&format!("{line} s3://no-such-bucket/x"));
        assert!(missing.error(6).contains("make the bucket first"), "{}", missing.err);
    })
    .await;
}
