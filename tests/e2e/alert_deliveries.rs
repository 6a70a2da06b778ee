//! Deliveries of alerts to a receiver on loopback.

use std::collections::BTreeSet;
use std::time::Duration;

use sluicegate_core::{OutboxEntry, OutboxState};
use sluicegate_processor::{Destination, HandleError, Processor, Settings};
use sluicegate_testkit::history::{History, Shape};
use sluicegate_testkit::usage::read_outbox;
use sluicegate_testkit::{Fault, Mood, Proxy, Received, Receiver, RunningEngine};

use crate::alerts::{assert_alerted, table_with_thresholds};
use crate::support::{self, contains, deliver, on_every_engine, records_for, soon};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const TOPIC: &str = "arn:aws:sns:eu-west-1:123456789012:alerts.fifo";
const BUS: &str = "arn:aws:events:eu-west-1:123456789012:event-bus/alerts";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Webhook,
    Topic,
    EventBus,
}

const PLACES: [Place; 3] = [Place::Webhook, Place::Topic, Place::EventBus];

fn processor(engine: &RunningEngine, table: &str, place: Place, receiver: &Receiver) -> Processor {
    let text = match place {
        Place::Webhook => receiver.url(),
        Place::Topic => TOPIC,
        Place::EventBus => BUS,
    };
    let secret = if place == Place::Webhook { SECRET } else { "" };
    let destination = Destination::new(text, secret).unwrap();
    let destination = destination.first_pause(Duration::from_millis(1));
    let processor = Processor::new(engine.client().clone(), Settings::new(table));
    processor.delivering_to(destination, &receiver.sdk_config())
}

/// The request has the names that its destination needs.
fn assert_well_formed(place: Place, received: &Received) {
    let (id, parameters) = (&received.body["id"], &received.parameters);
    let header = |name| received.headers[name].to_str().unwrap();
    match place {
        Place::Webhook => {
            assert_eq!(header("webhook-id"), id);
            assert!(header("webhook-signature").starts_with("v1,"));
            return;
        }
        Place::Topic => {
            assert_eq!(parameters["TopicArn"], TOPIC);
            assert_eq!(&parameters["MessageGroupId"], id);
            assert_eq!(&parameters["MessageDeduplicationId"], id);
        }
        Place::EventBus => {
            assert_eq!(parameters["EventBusName"], BUS);
            assert_eq!(parameters["Source"], "sluicegate");
            assert_eq!(parameters["DetailType"], received.body["type"]);
            assert!(parameters["Time"].is_number(), "{parameters}");
        }
    }
    assert!(header("authorization").contains("/eu-west-1/"), "the region of the ARN");
}

fn ids(entries: &[OutboxEntry]) -> BTreeSet<String> {
    entries.iter().map(|entry| entry.alert.id().to_string()).collect()
}

/// The id of a delivery without the part that names the table.
fn alert_id(body: &serde_json::Value) -> &str {
    body["id"].as_str().unwrap().split_once('-').unwrap().0
}

fn are_closed(entries: &[OutboxEntry]) -> bool {
    entries.iter().all(|entry| !matches!(entry.state, OutboxState::Open { .. }))
}

/// Each batch has a processor of its own, which finds what the ones before it left open.
#[tokio::test(flavor = "multi_thread")]
async fn alerts_reach_a_receiver_that_fails_at_random() {
    on_every_engine(async |engine| {
        for place in PLACES {
            let history = History::generate(&Shape::new(6, records_for(engine.kind(), 1_000, 300)));
            let table = table_with_thresholds(engine).await;
            let receiver = Receiver::start(Mood::Moody(6)).await;
            let (mut sent, mut failed) = (0, 0);
            for batch in history.records.chunks(250) {
                let processor = processor(engine, &table, place, &receiver);
                let report = deliver(&processor, batch).await.report;
                (sent, failed) = (sent + report.alerts_sent, failed + report.alerts_failed);
            }
            assert!(sent > 20 && failed > 20, "{place:?}: {sent} sent, {failed} failed");
            assert_alerted(engine, &table, &history, "delivered").await;
            let last = processor(engine, &table, place, &receiver);
            while !are_closed(&read_outbox(engine.client(), &table).await) {
                last.deliver_alerts(soon(10)).await.unwrap();
                tokio::time::sleep(Duration::from_millis(5)).await;
            }

            let entries = read_outbox(engine.client(), &table).await;
            assert!(entries.iter().all(|entry| entry.state == OutboxState::Sent));
            let received = receiver.received();
            let id = |body: &serde_json::Value| alert_id(body).to_owned();
            let accepted = received.iter().filter(|received| received.is_accepted);
            let accepted: Vec<_> = accepted.map(|received| id(&received.body)).collect();
            let once: BTreeSet<_> = accepted.iter().cloned().collect();
            assert_eq!(once, ids(&entries), "{place:?}: each id at least once, and none unknown");
            assert_eq!(accepted.len(), once.len(), "what was accepted is not sent again");
            assert!(received.len() > accepted.len(), "some were received and not accepted");
            for received in &received {
                assert!(once.contains(&id(&received.body)), "an unknown id");
                assert_well_formed(place, received);
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn alerts_that_no_receiver_takes_are_given_up_and_kept() {
    on_every_engine(async |engine| {
        for place in PLACES {
            let history = History::generate(&Shape { pause_ms: 10, ..Shape::new(11, 200) });
            let table = table_with_thresholds(engine).await;
            let receiver = Receiver::start(Mood::Down).await;
            let processor = processor(engine, &table, place, &receiver);
            deliver(&processor, &history.records).await;
            let mut given_up = 0;
            while !are_closed(&read_outbox(engine.client(), &table).await) {
                given_up += deliver(&processor, &[]).await.report.alerts_given_up;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let entries = read_outbox(engine.client(), &table).await;
            assert!(given_up >= 20 && given_up == u64::try_from(entries.len()).unwrap());
            for entry in entries {
                assert_eq!((entry.state, entry.expires_at_s), (OutboxState::Failed, None));
                let reason = entry.reason.unwrap();
                assert!(reason.contains("503"), "{place:?}: {reason}");
            }
        }
    })
    .await;
}

/// On a table that nobody uses, an event without records is all that comes.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_without_records_delivers_what_another_processor_left() {
    on_every_engine(async |engine| {
        let history = History::generate(&Shape { pause_ms: 10, ..Shape::new(11, 200) });
        let table = table_with_thresholds(engine).await;
        let down = Receiver::start(Mood::Down).await;
        let left = deliver(&processor(engine, &table, Place::Topic, &down), &history.records).await;
        assert_eq!((left.report.alerts_failed, left.report.alerts_sent), (8, 0));
        assert_eq!(down.received().len(), 8, "none is begun and abandoned");

        tokio::time::sleep(Duration::from_millis(5)).await;
        let receiver = Receiver::start(Mood::Fine).await;
        let report = deliver(&processor(engine, &table, Place::Topic, &receiver), &[]).await.report;
        let entries = read_outbox(engine.client(), &table).await;
        assert!(entries.iter().all(|entry| entry.state == OutboxState::Sent), "{entries:?}");
        assert_eq!(report.alerts_sent, u64::try_from(entries.len()).unwrap());

        let missing = processor(engine, "sluicegate-no-such-table", Place::Topic, &receiver);
        let outcome = missing.handle(&[], soon(10)).await;
        assert!(matches!(outcome.response, Err(HandleError::AlertsNotRead { .. })), "{outcome:?}");
        let idle = support::processor(engine, "sluicegate-no-such-table");
        let outcome = idle.handle(&[], soon(10)).await;
        assert!(outcome.response.is_ok(), "without a destination it reads nothing");
    })
    .await;
}

/// The role may deliver and may not mark: an alert is not mailed every minute.
#[tokio::test(flavor = "multi_thread")]
async fn an_alert_that_cannot_be_marked_is_delivered_once() {
    on_every_engine(async |engine| {
        let history = History::generate(&Shape { pause_ms: 10, ..Shape::new(11, 200) });
        let table = table_with_thresholds(engine).await;
        let proxy = Proxy::start(engine.endpoint_url()).await;
        let receiver = Receiver::start(Mood::Fine).await;
        let destination = Destination::new(receiver.url(), SECRET).unwrap();
        let destination = destination.first_pause(Duration::from_millis(1));
        let client = sluicegate_local::client::dynamodb(&proxy.endpoint_url());
        let processor = Processor::new(client, Settings::new(&table));
        let processor = processor.delivering_to(destination, &receiver.sdk_config());
        // Only a mark deletes.
        proxy.inject(|call| match contains(call.body, b"\"Delete\"") {
            true => Fault::DENIED,
            false => Fault::None,
        });
        let mut count = 8;
        for records in history.records.chunks(history.records.len() / 2) {
            deliver(&processor, records).await;
            for _ in 0..20 {
                deliver(&processor, &[]).await;
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            let entries = read_outbox(engine.client(), &table).await;
            assert!(entries.len() > count && !are_closed(&entries), "{entries:?}");
            count = entries.len();
            assert_eq!(receiver.received().len(), count, "new ones too, each once");
        }
        let entries = read_outbox(engine.client(), &table).await;

        proxy.inject(|_| Fault::None);
        while !are_closed(&read_outbox(engine.client(), &table).await) {
            deliver(&processor, &[]).await;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        assert_eq!(receiver.received().len(), entries.len(), "each once");
    })
    .await;
}

/// Each delivery takes until its timeout. The stream waits for the first ones and for no more.
#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_never_answers_is_left_alone() {
    on_every_engine(async |engine| {
        let history = History::generate(&Shape { pause_ms: 10, ..Shape::new(11, 200) });
        let table = table_with_thresholds(engine).await;
        let receiver = Receiver::start(Mood::Silent).await;
        let destination = Destination::new(receiver.url(), SECRET).unwrap();
        let processor = Processor::new(engine.client().clone(), Settings::new(&table));
        let processor = processor.delivering_to(destination, &receiver.sdk_config());
        let failed = deliver(&processor, &history.records).await.report.alerts_failed;
        assert_eq!(failed, 8, "deliveries at once");
        for _ in 0..3 {
            assert_eq!(deliver(&processor, &[]).await.report.alerts_failed, 0);
        }
        let waiting = read_outbox(engine.client(), &table).await.len();
        assert!(receiver.received().len() < waiting, "of {waiting}");
    })
    .await;
}
