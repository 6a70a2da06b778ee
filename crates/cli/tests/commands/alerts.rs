//! `alerts`: thresholds in the table, and the alerts that a processor makes of them.

use aws_sdk_dynamodb::types::AttributeValue;
use serde_json::json;
use sluicegate_core::{OutboxEntry, OutboxState};
use sluicegate_testkit::usage::read_outbox;
use sluicegate_testkit::{Mood, Receiver};

use crate::support::{finish, on_every_engine};

#[tokio::test(flavor = "multi_thread")]
async fn thresholds_are_stored_shown_and_deleted() {
    on_every_engine(async |shell| {
        assert_eq!(shell.run("alerts show --output json").json(0), json!([]));
        let set = shell.run("alerts set --system usd=80%,100% tpm=5000/hour");
        assert!(set.err.contains("the calendar of each limit"), "{}", set.err);
        let set = shell.run("alerts set --resource s tpm=5000/hour");
        assert!(set.err.is_empty(), "{}", set.err);
        let set = shell.run("alerts set --resource s tpm=5000/hour,7/month");
        assert!(set.err.ends_with("by default): month\n"), "{}", set.err);
        shell.run("alerts delete --resource s tpm --yes").text(0);
        shell.run("alerts set --entity u usd=50%").text(0);
        let set = shell.run("alerts set --entity u tpm=7/day --output json").json(0);
        let thresholds = json!({"tpm": "7/day", "usd": "50%"});
        assert_eq!(set, json!([{"level": "entity u", "thresholds": thresholds}]));
        let shown = shell.run("alerts show --output json").json(0);
        assert_eq!(shown.as_array().unwrap().len(), 2, "{shown}");
        assert!(shell.run("alerts show").text(0).contains("80%,100%"));

        assert!(shell.run("alerts delete --entity u usd").error(2).contains("--yes"));
        assert!(shell.run("alerts delete --entity u rpm --yes").error(1).contains("rpm"));
        assert!(shell.run("alerts delete --resource r usd --yes").error(1).contains("resource r"));
        let left = shell.run("alerts delete --entity u usd tpm usd --yes --output json").json(0);
        assert_eq!(left, json!([]));
        assert_eq!(shell.run("alerts show --output json").json(0).as_array().unwrap().len(), 1);
        for bad in
            ["usd", "usd=", "usd=80", "usd=0%", "usd=5/fortnight", "usd=1% usd=2%", "USD=80%"]
        {
            assert_eq!(shell.run(&format!("alerts set --system {bad}")).code, 2, "{bad}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_processor_with_alerts_puts_what_was_reached_into_the_outbox() {
    on_every_engine(async |shell| {
        shell.run("alerts set --entity team usd=80%,100% rpm=2/hour").text(0);
        shell.run("limits set --system usd=10/day rpm=100/min").text(0);
        shell.run("acquire team r --consume usd=8.5 --consume rpm=1").text(0);
        shell.run("acquire other r --consume usd=9").text(0);
        shell.run("process --once").text(0);
        assert_eq!(shell.run("alerts outbox").text(0), "the outbox is empty\n", "alerts are off");
        shell.run("acquire team r --consume rpm=1 --consume usd=0.1").text(0);
        for _ in 0..2 {
            shell.run("process --once --alerts").text(0);
        }
        let outbox = shell.run("alerts outbox --output json").json(0);
        let mut shown: Vec<_> = outbox.as_array().unwrap().iter().collect();
        shown.sort_by_key(|entry| entry["threshold"].to_string());
        let [requests, dollars] = shown[..] else { panic!("{outbox}") };
        assert_eq!(
            (&requests["threshold"], &requests["sum_milli"]),
            (&json!("2/hour"), &json!(2_000))
        );
        assert_eq!(dollars["threshold"], "80%");
        assert_eq!(dollars["sum_milli"], json!(8_600_000_000_i64));
        assert_eq!(dollars["amount_milli"], json!(10_000_000_000_i64));
        assert_eq!((&dollars["state"], &dollars["entity"]), (&json!("open"), &json!("team")));
        assert!(shell.run("alerts outbox").text(0).contains("8.60 USD"));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_processor_with_an_endpoint_posts_what_was_reached() {
    on_every_engine(async |shell| {
        let receiver = Receiver::start(Mood::Fine).await;
        shell.run("alerts set --system rpm=1/hour").text(0);
        shell.run("acquire u r --consume rpm=1 --limit rpm=5/min").text(0);
        let secret = "--alerts-secret whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        for bad in ["http://example.com", "here", "arn:aws:sqs:us-east-1:123456789012:queue"] {
            let bad = format!("--alerts-to {bad}");
            assert_eq!(shell.run(&format!("process --once {secret} {bad}")).code, 2, "{bad}");
        }
        assert_eq!(shell.run("process --once --alerts-to https://example.com").code, 2);
        let url = receiver.url();
        shell.run(&format!("process --once {secret} --alerts-to {url}")).text(0);
        assert_eq!(shell.run("alerts outbox").text(0), "the outbox is empty\n");
        let closed = shell.run("alerts outbox --closed --output json").json(0);
        assert_eq!(closed[0]["state"], "sent");
        let received = receiver.received();
        assert_eq!(received.len(), 1);
        let id = received[0].body["id"].as_str().unwrap();
        assert!(id.starts_with(closed[0]["id"].as_str().unwrap()), "{id}");
    })
    .await;
}

/// A cron job must hear of it, and a later run delivers although nothing new was consumed.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_delivery_is_reported_and_left_for_a_later_run() {
    on_every_engine(async |shell| {
        let secret = "--alerts-secret whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        let once = |receiver: &Receiver| {
            shell.run(&format!("process --once {secret} --alerts-to {}", receiver.url()))
        };
        let (down, fine) = (Receiver::start(Mood::Down).await, Receiver::start(Mood::Fine).await);
        shell.run("alerts set --system rpm=1/hour").text(0);
        shell.run("acquire u r --consume rpm=1 --limit rpm=5/min").text(0);
        shell.run("process --once --alerts").text(0);
        let delivered = once(&fine);
        assert_eq!(delivered.code, 0);
        assert_eq!(fine.received().len(), 1, "another process left it open");

        shell.run("acquire u2 r --consume rpm=1 --limit rpm=5/min").text(0);
        let failed = once(&down);
        assert_eq!(failed.code, 1, "{}", failed.err);
        assert!(failed.err.contains("1 failed deliveries"), "{}", failed.err);
        assert!(failed.err.contains("HTTP 503"), "{}", failed.err);
        assert_eq!(once(&fine).code, 1, "it waits for its next attempt");
        assert!(shell.run("alerts outbox").text(0).contains("open, again at 20"));
        let listed = shell.run("alerts outbox --output json").json(0);
        assert!(listed[0]["next_attempt"].as_str().unwrap() > listed[0]["time"].as_str().unwrap());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn alerts_that_were_given_up_are_delivered_after_a_retry() {
    on_every_engine(async |shell| {
        shell.run("alerts set --system rpm=1/hour").text(0);
        for user in ["u", "v"] {
            shell.run(&format!("acquire {user} r --consume rpm=1 --limit rpm=5/min")).text(0);
        }
        shell.run("process --once --alerts").text(0);
        assert_eq!(shell.run("alerts retry").text(0), "no alert was given up\n", "they are open");
        // After a day in which the destination accepted none.
        let (client, table) = (shell.engine.client(), &shell.table);
        for entry in read_outbox(client, table).await {
            let key = [("PK", entry.key().pk()), ("SK", entry.key().sk())];
            let key = key.map(|(name, value)| (name.to_owned(), AttributeValue::S(value)));
            let delete = client.delete_item().table_name(table).set_key(Some(key.into()));
            delete.send().await.unwrap();
            let item = OutboxEntry { state: OutboxState::Failed, ..entry }.to_item();
            let put = client.put_item().table_name(table).set_item(Some(item.into()));
            put.send().await.unwrap();
        }
        let listed = shell.run("alerts outbox --output json").json(0);
        assert!(
            shell.run("alerts retry 12").error(1).contains("no alert with the id 12 was given up")
        );
        let id = listed[0]["id"].as_str().unwrap();
        let opened = shell.run(&format!("alerts retry {id} --output json")).json(0);
        assert_eq!((&opened[0]["id"], &opened[0]["state"]), (&listed[0]["id"], &json!("open")));
        assert_eq!(opened[0]["next_attempt"], json!(null), "no delivery of it has failed");
        assert_eq!(shell.run("alerts retry --output json").json(0).as_array().unwrap().len(), 1);
        let receiver = Receiver::start(Mood::Fine).await;
        let secret = "--alerts-secret whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        let to = receiver.url();
        shell.run(&format!("process --once {secret} --alerts-to {to}")).text(0);
        assert_eq!(receiver.received().len(), 2);
        assert_eq!(shell.run("alerts outbox").text(0), "the outbox is empty\n");
    })
    .await;
}

/// The engine is at the endpoint of the command line, which is not that of EventBridge.
#[tokio::test(flavor = "multi_thread")]
async fn a_processor_with_an_event_bus_puts_events_where_the_environment_says() {
    on_every_engine(async |shell| {
        let receiver = Receiver::start(Mood::Fine).await;
        shell.run("alerts set --system rpm=1/hour").text(0);
        shell.run("acquire u r --consume rpm=1 --limit rpm=5/min").text(0);
        let bus = "arn:aws:events:eu-west-1:123456789012:event-bus/alerts";
        let mut command = shell.command();
        command.args(["process", "--once", "--alerts-to", bus, "--endpoint-url"]);
        command.arg(shell.engine.endpoint_url()).env("AWS_ENDPOINT_URL", receiver.endpoint_url());
        finish(&mut command).text(0);
        let closed = shell.run("alerts outbox --closed --output json").json(0);
        assert_eq!(closed[0]["state"], "sent");
        let received = receiver.received();
        assert_eq!(received.len(), 1);
        let id = received[0].body["id"].as_str().unwrap();
        assert!(id.starts_with(closed[0]["id"].as_str().unwrap()), "{id}");
        assert_eq!(received[0].parameters["EventBusName"], bus);
    })
    .await;
}
