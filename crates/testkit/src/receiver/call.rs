//! The protocols of a receiver: the event in a request, and the answer to it.

use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

/// A delivery, in one of the protocols.
pub(super) struct Call {
    kind: Kind,
    /// The parameters of a call of SNS or EventBridge.
    pub(super) parameters: Value,
    event: String,
}

enum Kind {
    Webhook,
    Sns,
    EventBridge,
}

/// The answer to a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    Accepted,
    /// The receiver has nothing.
    Refused,
    /// The receiver has the event and answers that it failed.
    Lost,
}

impl Call {
    pub(super) fn read(headers: &HeaderMap, request: &str) -> Self {
        let header = |name| headers.get(name).map(|value| value.to_str().expect("text"));
        if header("x-amz-target") == Some("AWSEvents.PutEvents") {
            let request: Value = serde_json::from_str(request).expect("JSON");
            let entries = request["Entries"].as_array().expect("entries");
            let [entry] = entries.as_slice() else { panic!("one event a call: {request}") };
            let event = entry["Detail"].as_str().expect("a detail").to_owned();
            return Self { kind: Kind::EventBridge, parameters: entry.clone(), event };
        }
        if header("content-type") == Some("application/x-www-form-urlencoded") {
            let fields = form_urlencoded::parse(request.as_bytes());
            let parameters: Map<_, _> =
                fields.map(|(name, value)| (name.into_owned(), json!(value))).collect();
            assert_eq!(parameters["Action"], "Publish");
            let event = parameters["Message"].as_str().expect("a message").to_owned();
            return Self { kind: Kind::Sns, parameters: parameters.into(), event };
        }
        Self { kind: Kind::Webhook, parameters: Value::Null, event: request.to_owned() }
    }

    /// The event in JSON.
    pub(super) fn event(&self) -> &str {
        &self.event
    }

    pub(super) fn response(&self, answer: Answer) -> Response {
        let down = StatusCode::SERVICE_UNAVAILABLE;
        match (&self.kind, answer) {
            (Kind::Webhook, Answer::Accepted) => StatusCode::ACCEPTED.into_response(),
            (Kind::Webhook, _) => down.into_response(),
            (Kind::Sns, Answer::Accepted) => {
                "<PublishResponse xmlns=\"http://sns.amazonaws.com/doc/2010-03-31/\"><PublishResult><MessageId>1</MessageId></PublishResult></PublishResponse>".into_response()
            }
            (Kind::Sns, _) => {
                (down, "<ErrorResponse xmlns=\"http://sns.amazonaws.com/doc/2010-03-31/\"><Error><Type>Receiver</Type><Code>ServiceUnavailable</Code><Message>503</Message></Error></ErrorResponse>").into_response()
            }
            (Kind::EventBridge, Answer::Accepted) => {
                json!({"FailedEntryCount": 0, "Entries": [{"EventId": "1"}]}).to_string().into_response()
            }
            // The call succeeds, and its entry does not.
            (Kind::EventBridge, Answer::Refused) => {
                let entry = json!({"ErrorCode": "InternalFailure", "ErrorMessage": "503"});
                json!({"FailedEntryCount": 1, "Entries": [entry]}).to_string().into_response()
            }
            (Kind::EventBridge, Answer::Lost) => {
                (down, json!({"__type": "InternalException", "message": "503"}).to_string()).into_response()
            }
        }
    }
}
