//! An alert as an event: CloudEvents 1.0 in JSON.

use aws_sdk_dynamodb::primitives::{DateTime, DateTimeFormat};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use sluicegate_core::{EpochMillis, OutboxEntry, Window};

/// The type of the events. A change of their data that receivers notice needs a new type.
pub(crate) const TYPE: &str = "sluicegate.threshold.reached.v1";

/// An event that is ready to be sent.
#[derive(Debug)]
pub(crate) struct Event {
    /// The same in every delivery of the alert, and different in every table.
    pub(crate) id: String,
    /// The time at which the processor found that the threshold was reached.
    #[cfg_attr(not(feature = "aws-alerts"), expect(dead_code, reason = "for EventBridge"))]
    pub(crate) at: EpochMillis,
    /// The event in JSON.
    pub(crate) body: String,
}

impl Event {
    /// The event of an entry of the outbox. The `source` names the table.
    pub(crate) fn new(source: &str, entry: &OutboxEntry) -> Self {
        let id = id(source, entry);
        let body = cloud_event(source, &id, entry).to_string();
        Self { id, at: entry.at, body }
    }
}

/// The id of the alert, and a hash of the source: two tables may send the same alert to one
/// receiver.
fn id(source: &str, entry: &OutboxEntry) -> String {
    let hash = Sha256::digest(source);
    let hash: String = hash.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{hash}", entry.alert.id())
}

/// Amounts are decimals of tokens or of the currency's unit. They are texts, because many JSON
/// readers round numbers.
fn cloud_event(source: &str, id: &str, entry: &OutboxEntry) -> Value {
    let alert = &entry.alert;
    let limit = &alert.limit;
    let plain = |milli: i128| limit.show(milli).plain();
    json!({
        "specversion": "1.0",
        "id": id,
        "source": source,
        "type": TYPE,
        "time": time(entry.at),
        "datacontenttype": "application/json",
        "data": {
            "entity": alert.bucket.entity.as_str(),
            "resource": alert.bucket.resource.as_str(),
            "limit": limit.as_str(),
            "window": window(alert.window),
            "threshold": alert.threshold.show(limit).to_string(),
            "sum": plain(alert.sum_milli),
            "amount": alert.amount.map(|amount| plain(amount.get().into())),
        },
    })
}

fn window(window: Window) -> Value {
    let end = EpochMillis::new(window.end_s().saturating_mul(1_000)).unwrap_or(EpochMillis::MAX);
    json!({"kind": window.kind().to_string(), "start": window.start_text(), "end": time(end)})
}

fn time(at: EpochMillis) -> String {
    // Instants end with the year 9999, which every format has.
    DateTime::from_millis(at.get()).fmt(DateTimeFormat::DateTime).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_core::fixtures::{at, bucket, milli, name};
    use sluicegate_core::{Alert, Threshold, WindowKind};

    #[test]
    fn an_event_has_what_a_receiver_needs() {
        let alert = Alert {
            bucket: bucket("team-7", "gpt-4"),
            limit: name("usd"),
            window: WindowKind::MONTH.containing(at(1_769_608_800_123)),
            threshold: Threshold::Percent(80),
            sum_milli: 160_500_000_000,
            amount: Some(milli(200_000_000_000)),
        };
        let entry = OutboxEntry::new(alert, at(1_769_608_800_123));
        let (source, other) = ("/sluicegate/eu-west-1/limits", "/sluicegate/us-east-1/limits");
        let event = Event::new(source, &entry);
        let body: Value = serde_json::from_str(&event.body).unwrap();
        assert_eq!(body["id"], *event.id);
        insta::assert_json_snapshot!(body);
        assert_ne!(Event::new(other, &entry).id, event.id, "a table of another region");
    }
}
