//! Options of every command, and the messages when the table cannot be used.

use std::time::Duration;

use sluicegate_testkit::{Fault, Proxy};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::support::{Said, command, finish, on_every_engine};

const ACQUIRE: [&str; 6] =
    ["acquire", "u", "r", "--consume=rpm=1", "--limit=rpm=5/min", "--no-cascade"];

/// Every command that uses a table.
const COMMANDS: [&str; 25] = [
    "acquire u r --consume rpm=1 --limit rpm=5/min",
    "adjust u r rpm=1 --limit rpm=5/min",
    "status u",
    "status u r",
    "status --resource r",
    "entity show u",
    "entity create u --parent p",
    "entity children u",
    "entity delete u --yes",
    "limits set --system rpm=5/min",
    "limits show --system",
    "limits delete --system rpm --yes",
    "usage u",
    "usage u r --chart",
    "usage --resource r --html usage.html",
    "usage check u",
    "quarantine list",
    "quarantine replay --all",
    "quarantine drop --all --yes",
    "migrate --yes",
    "process --once",
    "process",
    "table create",
    "table status",
    "table delete --yes",
];

/// The reaction to a connection of an endpoint that is not DynamoDB.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Manner {
    /// Accepts it and stays silent.
    Silent,
    /// Sends an answer that begins correctly, a byte at a time, and never ends.
    Trickles,
    /// Answers with this status and body.
    Answers(u16, &'static str),
}

/// Such an endpoint, until the runtime ends.
async fn endpoint(manner: Manner) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut request = vec![0; 65_536];
                while stream.read(&mut request).await.is_ok_and(|read| read > 0) {
                    let sent = match manner {
                        Manner::Silent => Ok(()),
                        Manner::Trickles => trickle(&mut stream).await,
                        Manner::Answers(status, body) => {
                            let answer = format!(
                                "HTTP/1.1 {status} No\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: {}\r\n\r\n{body}",
                                body.len()
                            );
                            stream.write_all(answer.as_bytes()).await
                        }
                    };
                    if sent.is_err() {
                        return;
                    }
                }
            });
        }
    });
    url
}

async fn trickle(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n{").await?;
    loop {
        stream.write_all(b" ").await?;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Runs all these commands at once; returns their results. The minute only bounds a failure.
async fn run_all(lines: Vec<String>, url: &str) -> Vec<(String, Said)> {
    let mut running = JoinSet::new();
    for line in lines {
        let mut command = tokio::process::Command::from(command());
        command.args(line.split(' ')).args(["--endpoint-url", url]).kill_on_drop(true);
        running.spawn(async move {
            let ended = tokio::time::timeout(Duration::from_secs(60), command.output()).await;
            let ended = ended.unwrap_or_else(|_| panic!("{line}: no end in a minute"));
            (line, Said::from(ended.unwrap()))
        });
    }
    running.join_all().await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_ends_when_the_endpoint_does_not_answer() {
    let events = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/events");
    let replay = format!("replay {events} --table sluicegate-limits");
    for manner in [Manner::Silent, Manner::Trickles] {
        let url = endpoint(manner).await;
        let lines = COMMANDS.into_iter().chain([replay.as_str()]);
        let lines = lines.map(|line| format!("{line} --timeout 0.5")).collect();
        for (line, said) in run_all(lines, &url).await {
            let error = said.error(5);
            assert!(error.contains(&url), "{manner:?} {line}: {error}");
            let next = if line.starts_with("replay") { "same command" } else { "--timeout" };
            assert!(error.contains(next), "{manner:?} {line}: {error}");
        }
    }
    // By the environment, too.
    let url = endpoint(Manner::Silent).await;
    let mut status = command();
    status.args(["status", "u"]).env("AWS_ENDPOINT_URL", &url).env("SLUICEGATE_TIMEOUT", "0.2");
    assert!(finish(&mut status).error(5).contains(&url));
    assert_eq!(finish(command().args(["status", "u", "--timeout", "0"])).code, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_of_no_dynamodb_ends_with_the_next_step() {
    const PAGE: &str = "<html/>";
    for (status, body) in [(404, PAGE), (500, PAGE), (301, PAGE), (200, PAGE), (200, "{}")] {
        let url = endpoint(Manner::Answers(status, body)).await;
        let lines = COMMANDS.map(str::to_owned).into_iter().collect();
        for (line, said) in run_all(lines, &url).await {
            let error = said.error(5);
            assert!(error.contains(&url), "{status} {body} {line}: {error}");
            assert!(error.contains("--endpoint-url"), "{status} {body} {line}: {error}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_is_no_url_is_one_line_before_any_request() {
    for url in ["http://127.0.0.1:99999", "127.0.0.1:8000", "http://", "nonsense"] {
        for variable in ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_DYNAMODB"] {
            let bad = finish(command().args(["status", "u"]).env(variable, url));
            let error = bad.error(2);
            assert!(error.contains(variable) && error.contains(url), "{error}");
        }
        let bad = finish(command().args(["status", "u", "--endpoint-url", url]));
        assert_eq!(bad.code, 2, "{}", bad.err);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn options_stand_before_the_command_or_behind_it_and_win_over_the_environment() {
    on_every_engine(async |shell| {
        let url = shell.engine.endpoint_url();
        let options = ["--table", &shell.table, "--endpoint-url", url, "--region", "us-east-1"];
        for words in [[&options[..], &ACQUIRE].concat(), [&ACQUIRE, &options[..]].concat()] {
            let mut command = command();
            command
                .env("SLUICEGATE_TABLE", "another-table")
                .env("AWS_ENDPOINT_URL", "http://127.0.0.1:9");
            finish(command.args(words)).text(0);
        }
        // The environment alone, and no region: an endpoint on loopback needs none.
        assert!(shell.run_words(&ACQUIRE).text(0).starts_with("granted"));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_tables_are_named_with_the_command_that_helps() {
    on_every_engine(async |shell| {
        let url = shell.engine.endpoint_url();
        for line in COMMANDS.into_iter().filter(|line| *line != "table create") {
            let words = line.split(' ');
            let missing = finish(command().args(words).args([
                "--table",
                "sluicegate-gone",
                "--endpoint-url",
                url,
            ]));
            let error = missing.error(5);
            let next = "`sluicegate table create --table sluicegate-gone`";
            assert!(error.contains(next), "{line}: {error}");
        }
    })
    .await;

    let away = finish(command().args(ACQUIRE).args(["--endpoint-url", "http://127.0.0.1:9"]));
    assert!(away.error(5).contains("`sluicegate local`"), "{}", away.err);

    let nobody = finish(
        command().args(ACQUIRE).env_remove("AWS_ACCESS_KEY_ID").env("AWS_REGION", "eu-west-1"),
    );
    assert!(nobody.error(5).contains("`aws configure`"), "{}", nobody.err);

    let nowhere = finish(command().args(ACQUIRE));
    assert!(nowhere.error(5).contains("--region"), "{}", nowhere.err);

    let away = finish(command().args(["status", "u", "--endpoint-url", "http://127.0.0.1:9"]));
    assert!(away.error(5).contains("`sluicegate local`"), "{}", away.err);

    let name = finish(command().args(ACQUIRE).args(["--table", "no table"]));
    assert!(name.error(2).contains("is not a table name"), "{}", name.err);

    let url = finish(command().args(ACQUIRE).args(["--endpoint-url", "not a url"]));
    assert_eq!(url.code, 2, "{}", url.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_permission_and_a_throttled_table_say_so() {
    on_every_engine(async |shell| {
        let proxy = Proxy::start(shell.engine.endpoint_url()).await;
        let run = |words: &[&str]| {
            finish(command().args(words).args([
                "--table",
                &shell.table,
                "--endpoint-url",
                &proxy.endpoint_url(),
            ]))
        };
        proxy.inject(|_| Fault::DENIED);
        for words in [&ACQUIRE[..], &["table", "status"]] {
            let denied = run(words);
            assert!(denied.error(5).contains("aws sts get-caller-identity"), "{}", denied.err);
        }
        proxy.inject(|call| match call.operation {
            "UpdateItem" | "PutItem" => Fault::THROTTLED,
            _ => Fault::None,
        });
        let throttled = run(&ACQUIRE);
        assert!(throttled.error(5).contains("contended"), "{}", throttled.err);
    })
    .await;
}

/// The environment has keys, and the SDK would take those.
#[tokio::test(flavor = "multi_thread")]
async fn a_profile_that_is_named_is_the_one_that_is_used() {
    on_every_engine(async |shell| {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("credentials");
        std::fs::write(&file, "[prod]\naws_access_key_id = a\naws_secret_access_key = b\n")
            .unwrap();
        let run = |profile: &str| {
            let mut command = shell.command();
            command.env("AWS_SHARED_CREDENTIALS_FILE", &file);
            finish(command.args(["limits", "set", "--system", "rpm=5/min", "--profile", profile]))
        };
        run("prod").text(0);
        let unknown = run("nope");
        assert!(unknown.error(5).contains("nope"), "{}", unknown.err);
    })
    .await;
}
