//! `usage check`: figures that agree, figures that differ, and figures that cannot be checked.

use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use serde_json::Value;
use sluicegate_local::InProcess;
use sluicegate_local::poller::{Poller, Settings};
use sluicegate_processor::Processor;

use crate::support::{Shell, on_every_engine};

/// Counts the records of the stream.
async fn process(shell: &Shell) {
    let window_kinds = "hour,day,day/Asia/Tokyo".parse().unwrap();
    let settings = sluicegate_processor::Settings {
        window_kinds,
        ..sluicegate_processor::Settings::new(&shell.table)
    };
    let processor = Processor::new(shell.engine.client().clone(), settings);
    let stream = shell.engine.stream(&shell.table).await;
    let handler = InProcess::new(processor, Duration::from_secs(60));
    Poller::new(stream, handler, Settings::default()).drain().await.unwrap();
}

fn lengths(findings: &Value) -> (u64, usize) {
    (findings["agree"].as_u64().unwrap(), findings["differ"].as_array().unwrap().len())
}

#[tokio::test(flavor = "multi_thread")]
async fn figures_that_agree_and_figures_that_do_not() {
    on_every_engine(async |shell| {
        let check = |whose: &str, code| {
            shell.run(&format!("usage check {whose} --output json")).json(code)
        };
        let nothing = check("u", 1);
        assert_eq!(lengths(&nothing), (0, 0));
        assert_eq!(nothing["unchecked"].as_array().unwrap().len(), 2, "{nothing}");

        let uncertain = |whose: &str, code| {
            let said = shell.run(&format!("usage check {whose}"));
            said.text(code).lines().filter(|line| line.starts_with("uncertain: ")).count()
        };
        assert_eq!(uncertain("u", 1), 1);

        for _ in 0..3 {
            shell.run("acquire u r --consume rpm=1 --consume tpm=70 --limit rpm=9/never --limit tpm=900/never").text(0);
        }
        shell.run("adjust u r tpm=-40").text(0);
        shell.run("acquire v r --consume rpm=1 --limit rpm=9/never").text(0);
        // Counted late: no window of the stream's records exists.
        let late = check("u r", 1);
        assert_eq!(lengths(&late), (0, 0), "{late}");
        assert!(late["unchecked"][1]["what"].as_str().unwrap().contains("are new"), "{late}");
        process(shell).await;
        for (whose, least) in [("u r", 3), ("u", 3), ("--resource r", 6)] {
            let (agree, differ) = lengths(&check(whose, 0));
            assert!(agree >= least && differ == 0, "{whose}: {agree} {differ}");
        }

        assert_eq!(uncertain("u r", 0), 0);
        assert_eq!(lengths(&check("u r --windows week", 0)).1, 0, "weeks are not counted");

        // Beside buckets that agree, a new one is named.
        shell.run("acquire u new --consume rpm=1 --limit rpm=9/never").text(0);
        assert_eq!(uncertain("u", 0), 1);

        // An hour is counted by hand.
        let usage = shell.run("usage u r --output json --from -2h").json(0);
        let start = usage[0]["start"].as_str().unwrap();
        let update = shell.engine.client().update_item().table_name(&shell.table);
        let text = |text: String| AttributeValue::S(text);
        let update = update.key("PK", text("ENTITY#u".to_owned()));
        let update = update.key("SK", text(format!("#USAGE#r#hour#{start}")));
        let update = update.update_expression("ADD u_rpm :one");
        update.expression_attribute_values(":one", AttributeValue::N("1000".to_owned())).send().await.unwrap();
        // An entry of the quarantine that cannot be read hides nothing that was found.
        let put = shell.engine.client().put_item().table_name(&shell.table);
        let put = put.item("PK", text("QUARANTINE#".to_owned()));
        put.item("SK", text(format!("-#-#{:016x}", 1))).send().await.unwrap();
        let found = check("u r", 1);
        assert_eq!(lengths(&found).1, 2, "the day has less, the records have less: {found}");
        assert!(found["differ"][0]["what"].as_str().unwrap().contains("rpm 3 and 4"), "{found}");
        // The records agree with the other kind.
        let (agree, differ) = lengths(&check("u r --windows day/Asia/Tokyo", 1));
        assert!(agree >= 1 && differ == 1, "{agree} {differ}");
        let shown = shell.run("usage check u r");
        assert!(shown.text(1).contains("\ndiffers      u on r, hour "), "{}", shown.out);
        check("v", 0);

        for bad in ["usage check", "usage check u --from now", "usage check u --from 7", "usage check u --output csv"] {
            assert_eq!(shell.run(bad).code, 2, "{bad}");
        }
    })
    .await;
}
