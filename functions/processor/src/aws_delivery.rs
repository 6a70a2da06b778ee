//! Sends alerts to an SNS topic or to an EventBridge event bus.
//!
//! Each call is one attempt: the outbox repeats deliveries, and counts them.

use std::time::Duration;

use aws_config::SdkConfig;
use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_sdk_dynamodb::config::Region;
use aws_sdk_dynamodb::config::http::HttpResponse;
use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_eventbridge::primitives::DateTime;
use aws_sdk_eventbridge::types::{PutEventsRequestEntry, PutEventsResultEntry};

use crate::arn::{Arn, Service};
use crate::cloud_event::{Event, TYPE};
use crate::write_error::{explain, one_line};

/// The time for one delivery.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The source of the events, in rules of an event bus.
const SOURCE: &str = "sluicegate";
/// The most characters of a service's answer that are kept.
const REASON_CHARS: usize = 400;

/// A topic or an event bus, with the client of its service.
#[derive(Debug)]
pub(crate) struct AwsDelivery {
    arn: Arn,
    client: Client,
}

#[derive(Debug)]
enum Client {
    Sns(aws_sdk_sns::Client),
    EventBridge(aws_sdk_eventbridge::Client),
}

impl AwsDelivery {
    /// The client calls the region of the ARN.
    pub(crate) fn new(arn: Arn, config: &SdkConfig) -> Self {
        let config = config
            .to_builder()
            .region(Region::new(arn.region().to_owned()))
            .retry_config(RetryConfig::disabled())
            .timeout_config(TimeoutConfig::builder().operation_timeout(TIMEOUT).build())
            .build();
        let client = match arn.service() {
            Service::Topic => Client::Sns(aws_sdk_sns::Client::new(&config)),
            Service::EventBus => Client::EventBridge(aws_sdk_eventbridge::Client::new(&config)),
        };
        Self { arn, client }
    }

    /// Sends an event. The reason of a failure is one line.
    pub(crate) async fn send(&self, event: Event) -> Result<(), String> {
        match &self.client {
            Client::Sns(client) => self.publish(client, event).await,
            Client::EventBridge(client) => self.put_event(client, event).await,
        }
    }

    async fn publish(&self, client: &aws_sdk_sns::Client, event: Event) -> Result<(), String> {
        let mut request = client.publish().topic_arn(self.arn.text()).message(event.body);
        if self.arn.is_fifo() {
            // Each alert is a message group of its own: the order of alerts does not matter, so
            // none waits for another one.
            request = request.message_group_id(&event.id).message_deduplication_id(&event.id);
        }
        request.send().await.map(|_| ()).map_err(|error| self.reason(&error))
    }

    async fn put_event(
        &self,
        client: &aws_sdk_eventbridge::Client,
        event: Event,
    ) -> Result<(), String> {
        let entry = PutEventsRequestEntry::builder()
            .event_bus_name(self.arn.text())
            .source(SOURCE)
            .detail_type(TYPE)
            .time(DateTime::from_millis(event.at.get()))
            .detail(event.body)
            .build();
        let answer = client.put_events().entries(entry).send().await;
        let answer = answer.map_err(|error| self.reason(&error))?;
        // The call may succeed and refuse its entry.
        match answer.entries() {
            [entry] if answer.failed_entry_count() == 0 && entry.event_id().is_some() => Ok(()),
            [entry] => Err(self.reason_of_entry(entry)),
            _ => Err("the answer does not say if the event was accepted".to_owned()),
        }
    }

    fn reason<E>(&self, error: &SdkError<E, HttpResponse>) -> String
    where
        E: ProvideErrorMetadata + std::error::Error + 'static,
    {
        self.advised(error.code().unwrap_or_default(), &explain(error))
    }

    fn reason_of_entry(&self, entry: &PutEventsResultEntry) -> String {
        let code = entry.error_code().unwrap_or("refused");
        let message = entry.error_message().unwrap_or("the event bus gives no reason");
        self.advised(code, &one_line(&format!("{code}: {message}"), REASON_CHARS))
    }

    /// The reason, with what to do about it.
    fn advised(&self, code: &str, reason: &str) -> String {
        let arn = self.arn.text();
        match (code, self.arn.service()) {
            ("AuthorizationError" | "AccessDenied" | "AccessDeniedException", service) => {
                let action = match service {
                    Service::Topic => "sns:Publish",
                    Service::EventBus => "events:PutEvents",
                };
                format!("{reason}; allow {action} on {arn}")
            }
            ("KMSAccessDenied" | "KMSAccessDeniedException", _) => {
                format!("{reason}; allow kms:GenerateDataKey and kms:Decrypt on the topic's key")
            }
            ("NotFound" | "ResourceNotFoundException", _) => {
                format!("{reason}; make {arn}, or name another destination")
            }
            _ => reason.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivery(arn: &str) -> AwsDelivery {
        let latest = aws_config::BehaviorVersion::latest();
        let config = SdkConfig::builder().behavior_version(latest).build();
        AwsDelivery::new(Arn::parse(arn).unwrap(), &config)
    }

    #[test]
    fn a_reason_says_what_to_do() {
        let topic = "arn:aws:sns:us-east-1:123456789012:alerts";
        let bus = "arn:aws:events:us-east-1:123456789012:event-bus/alerts";
        for (arn, code, advice) in [
            (topic, "AuthorizationError", format!("allow sns:Publish on {topic}")),
            (bus, "AccessDeniedException", format!("allow events:PutEvents on {bus}")),
            (topic, "KMSAccessDenied", "on the topic's key".to_owned()),
            (topic, "NotFound", format!("make {topic}, or name another destination")),
            (bus, "ResourceNotFoundException", format!("make {bus}, or name another destination")),
            (bus, "InternalFailure", "no".to_owned()),
        ] {
            let entry = PutEventsResultEntry::builder().error_code(code).error_message("no");
            let reason = delivery(arn).reason_of_entry(&entry.build());
            assert!(reason.starts_with(&format!("{code}: no")), "{reason}");
            assert!(reason.ends_with(&advice), "{reason}");
        }
    }
}
