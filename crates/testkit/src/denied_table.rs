//! A table that a user may not touch: MiniStack with permissions enforced.

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::Credentials;
use sluicegate_local::{client, table};
use tokio::process::Command;

use crate::ministack::{EngineProcess, Permissions, Program, engine};

/// The access key that MiniStack allows everything.
const ROOT: &str = "test";
const USER: &str = "producer";

/// MiniStack with a table and a user without any permission. Dropping it ends it.
#[derive(Debug)]
pub struct DeniedTable {
    /// Held for its Drop.
    _process: EngineProcess,
    /// A client of the owner.
    pub owner: Client,
    /// A client of the user.
    pub user: Client,
}

impl DeniedTable {
    /// Starts MiniStack and creates the table and the user.
    ///
    /// # Panics
    /// If one of them cannot be created; the message says what to do.
    pub async fn start(table_name: &str) -> Self {
        let process = EngineProcess::start(Program::MiniStack(Permissions::Enforced)).await;
        let url = process.endpoint_url();
        let owner = client_of(&url, ROOT, ROOT);
        table::create_table(&owner, table_name).await.unwrap();
        iam(&url, &["create-user", "--user-name", USER]).await;
        let key = iam(&url, &["create-access-key", "--user-name", USER]).await;
        let part = |name| key["AccessKey"][name].as_str().unwrap();
        let user = client_of(&url, part("AccessKeyId"), part("SecretAccessKey"));
        Self { _process: process, owner, user }
    }
}

fn client_of(url: &str, id: &str, secret: &str) -> Client {
    let credentials = Credentials::new(id, secret, None, None, "sluicegate-testkit");
    Client::from_conf(client::dynamodb_config(url).credentials_provider(credentials).build())
}

/// Runs a command of IAM by the AWS CLI, which `cargo xtask engines` installs.
async fn iam(url: &str, command: &[&str]) -> serde_json::Value {
    let output = Command::new(engine("aws/bin/aws"))
        .args(["--endpoint-url", url, "--output", "json", "iam"])
        .args(command)
        .env("AWS_ACCESS_KEY_ID", ROOT)
        .env("AWS_SECRET_ACCESS_KEY", ROOT)
        .env("AWS_DEFAULT_REGION", client::REGION)
        .output()
        .await
        .expect("install the AWS CLI with `cargo xtask engines`");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}
