//! `budget`: what is left of budgets, and what was used of them.

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
