//! Options that every command takes, and what is said when the table cannot be used.

use sluicegate_testkit::{Fault, Proxy};

use crate::support::{command, finish, on_every_engine};

const ACQUIRE: [&str; 6] =
    ["acquire", "u", "r", "--consume=rpm=1", "--limit=rpm=5/min", "--no-cascade"];

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
async fn what_is_missing_is_named_with_the_command_that_helps() {
    on_every_engine(async |shell| {
        let url = shell.engine.endpoint_url();
        for line in [
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
            "table status",
            "table delete --yes",
        ] {
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
    assert!(name.error(2).contains("is no table"), "{}", name.err);

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
