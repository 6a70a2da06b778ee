//! `budget`: what is left of budgets, and what was used of them.

use aws_sdk_dynamodb::types::AttributeValue;
use serde_json::json;

use crate::support::on_every_engine;

#[tokio::test(flavor = "multi_thread")]
async fn budget_is_what_was_granted_and_counted() {
    on_every_engine(async |shell| {
        let limits = "--limit usd=10/month,tz=Europe/Berlin --limit rpm=100/min";
        let take = |words: &str| shell.run(&format!("acquire team-7 gpt-4 {words} {limits}"));
        take("--consume usd=4.25 --consume rpm=1").text(0);
        let budget = || shell.run("budget team-7 --output json").json(0);
        let before = budget();
        assert_eq!(before.as_array().unwrap().len(), 1, "rpm is no budget: {before}");
        let before = &before[0];
        assert_eq!(
            (&before["limit"], &before["rule"], &before["granted_milli"], &before["left_milli"]),
            (
                &json!("usd"),
                &json!("usd=10/month,tz=Europe/Berlin"),
                &json!(4_250_000_000_i64),
                &json!(5_750_000_000_i64)
            )
        );
        assert_eq!((&before["used_milli"], &before["lasts"]), (&json!(null), &json!("unknown")));
        assert!(before["resets_at"].as_str().unwrap().ends_with(":00:00Z"), "{before}");

        shell.run("process --once").text(0);
        take("--consume usd=0.75").text(0);
        let after = &budget()[0];
        assert_eq!(after["used_milli"], json!(4_250_000_000_i64));
        assert_eq!(after["difference_milli"], json!(750_000_000), "not counted yet");
        let shown = shell.run("budget team-7");
        for text in ["usd=10/month,tz=Europe/Berlin", "5.00 USD", "4.25 USD", "0.75 USD"] {
            assert!(shown.text(0).contains(text), "{text}: {}", shown.out);
        }
        let nothing = shell.run("budget somebody-else");
        assert!(nothing.error(1).contains("limits set --entity"), "{}", nothing.err);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_bucket_is_not_taken_for_a_missing_one() {
    on_every_engine(async |shell| {
        shell.run("acquire q m --consume usd=1 --limit usd=5/month").text(0);
        let key = [("PK", "ENTITY#q"), ("SK", "#BUCKET#m")];
        let key = key.map(|(name, value)| (name.to_owned(), AttributeValue::S(value.to_owned())));
        let update = shell.engine.client().update_item().table_name(&shell.table);
        let update = update.set_key(Some(key.into())).update_expression("SET b_usd_tc = :many");
        let many = AttributeValue::S("many".to_owned());
        update.expression_attribute_values(":many", many).send().await.unwrap();
        let shown = shell.run("budget q");
        assert_eq!(shown.code, 1, "{}", shown.err);
        assert!(shown.err.contains("cannot be read"), "{}", shown.err);
        assert!(!shown.err.contains("limits set"), "{}", shown.err);
    })
    .await;
}
