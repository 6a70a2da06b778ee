//! The one place that alerts are delivered to: a webhook, an SNS topic or an EventBridge event bus.

use std::time::Duration;

#[cfg(feature = "aws-alerts")]
use crate::arn::Arn;
use crate::invalid_destination::InvalidDestination;
use crate::settings::SettingsError;
use crate::webhook::Webhook;

/// The pause after the first failed delivery.
const FIRST_PAUSE: Duration = Duration::from_secs(60);
/// The pause doubles this many times, up to 64 minutes.
const DOUBLINGS_MAX: u32 = 6;

/// The place that alerts are delivered to.
#[derive(Debug, Clone)]
pub struct Destination {
    pub(crate) target: Target,
    first_pause: Duration,
}

#[derive(Debug, Clone)]
pub(crate) enum Target {
    Webhook(Box<Webhook>),
    #[cfg(feature = "aws-alerts")]
    Aws(Arn),
}

impl Destination {
    /// A destination from its text: an `https://` URL, the ARN of an SNS topic, or that of an
    /// EventBridge event bus. The secret is that of a webhook's signatures: base64, with or without
    /// `whsec_` before it. A topic or an event bus needs no secret and ignores it.
    ///
    /// # Errors
    /// [`InvalidDestination`] says what to give instead.
    pub fn new(text: &str, secret: &str) -> Result<Self, InvalidDestination> {
        let text = text.trim();
        let target = if text.starts_with("arn:") {
            aws_target(text)?
        } else {
            Target::Webhook(Box::new(Webhook::new(text, secret)?))
        };
        Ok(Self { target, first_pause: FIRST_PAUSE })
    }

    /// Reads `ALERTS_TO` and `ALERTS_SECRET` through `get`; `None` if no destination is set. An
    /// empty value counts as not set.
    ///
    /// # Errors
    /// [`SettingsError::Destination`].
    pub fn from_env(get: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, SettingsError> {
        let get = |name| get(name).filter(|value| !value.trim().is_empty());
        let Some(text) = get("ALERTS_TO") else { return Ok(None) };
        let secret = get("ALERTS_SECRET").unwrap_or_default();
        if text.starts_with("arn:") && !secret.is_empty() {
            tracing::warn!(
                "ALERTS_SECRET is for URLs: empty AlertsSecret, or the template gives no right to deliver"
            );
        }
        let destination = Self::new(&text, &secret);
        destination.map(Some).map_err(|error| SettingsError::Destination(error.to_string()))
    }

    /// Sets the pause after the first failed delivery, a minute by default. It doubles with each
    /// further failure, up to 64 times its length.
    #[must_use]
    pub const fn first_pause(mut self, pause: Duration) -> Self {
        self.first_pause = pause;
        self
    }

    /// The pause after this number of failed deliveries, which is at least one.
    pub(crate) fn pause(&self, failures: u32) -> Duration {
        self.first_pause * 2_u32.pow(failures.saturating_sub(1).min(DOUBLINGS_MAX))
    }
}

#[cfg(feature = "aws-alerts")]
fn aws_target(text: &str) -> Result<Target, InvalidDestination> {
    let unknown = || InvalidDestination::Unknown(text.to_owned());
    Arn::parse(text).map(Target::Aws).ok_or_else(unknown)
}

#[cfg(not(feature = "aws-alerts"))]
fn aws_target(text: &str) -> Result<Target, InvalidDestination> {
    Err(InvalidDestination::NotBuilt(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(feature = "aws-alerts")]
    use crate::arn::Service;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    #[test]
    fn alerts_travel_encrypted_and_signed() {
        for url in ["http://example.com", "ftp://example.com"] {
            let refused = Destination::new(url, SECRET);
            assert!(matches!(refused, Err(InvalidDestination::Unencrypted)), "{url}");
        }
        for secret in ["", "whsec_", "whsec_c2hvcnQ=", "not base64 but long enough"] {
            let refused = Destination::new("https://example.com", secret);
            assert!(matches!(refused, Err(InvalidDestination::Secret)), "{secret}");
        }
        assert!(Destination::new("http://127.0.0.1:8080/x", SECRET).is_ok());
    }

    #[test]
    fn a_text_that_is_no_destination_is_named() {
        for text in [
            "arn:aws:sqs:us-east-1:123456789012:queue",
            "arn:aws:sns:us-east-1:123456789012:topic:f8a6ff7e-2f5c-4d06-8d0a-5f9d2f4d7c11",
            "arn:aws:sns:us-east-1:topic",
            "arn:aws:sns::123456789012:topic",
            "arn:aws:events:us-east-1:123456789012:rule/alerts",
            "arn:aws:events:us-east-1:123456789012:event-bus/",
        ] {
            let refused = Destination::new(text, SECRET).unwrap_err();
            #[cfg(feature = "aws-alerts")]
            assert!(matches!(&refused, InvalidDestination::Unknown(_)), "{text}: {refused}");
            assert!(refused.to_string().contains(text), "{refused}");
        }
        for text in ["example.com/a/b", "https://", "", SECRET] {
            let refused = Destination::new(text, SECRET).unwrap_err();
            assert!(matches!(refused, InvalidDestination::Url), "{text}");
        }
        let refused = Destination::new(SECRET, "").unwrap_err();
        assert!(!refused.to_string().contains(SECRET), "it may be a secret: {refused}");
    }

    #[cfg(feature = "aws-alerts")]
    #[test]
    fn an_arn_says_the_service_and_the_region() {
        for (text, service, region) in [
            ("arn:aws:sns:eu-central-1:123456789012:my_topic-1", Service::Topic, "eu-central-1"),
            ("arn:aws-cn:sns:cn-north-1:123456789012:t.fifo", Service::Topic, "cn-north-1"),
            (
                " arn:aws:events:us-east-1:123456789012:event-bus/default ",
                Service::EventBus,
                "us-east-1",
            ),
        ] {
            let target = Destination::new(text, "").unwrap().target;
            let Target::Aws(arn) = target else { panic!("{target:?}") };
            assert_eq!((arn.text(), arn.service(), arn.region()), (text.trim(), service, region));
        }
    }

    #[test]
    fn pauses_double_up_to_an_hour() {
        let destination = Destination::new("https://example.com", SECRET).unwrap();
        let pauses = [1, 2, 7, 100].map(|failures| destination.pause(failures).as_secs());
        assert_eq!(pauses, [60, 120, 3_840, 3_840]);
    }
}
