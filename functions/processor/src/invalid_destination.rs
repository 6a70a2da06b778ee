//! The reasons why a destination of alerts cannot be used.

/// A destination that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InvalidDestination {
    /// The ARN is not that of an SNS topic or an EventBridge event bus.
    #[error(
        "{0:?} is not a destination for alerts: give an https:// URL, arn:aws:sns:REGION:ACCOUNT:TOPIC or arn:aws:events:REGION:ACCOUNT:event-bus/NAME"
    )]
    Unknown(String),
    /// The text is not a URL. It is not repeated here, because it may be a secret.
    #[error(
        "the destination for alerts is not an https:// URL, nor arn:aws:sns:REGION:ACCOUNT:TOPIC, nor arn:aws:events:REGION:ACCOUNT:event-bus/NAME"
    )]
    Url,
    /// Alerts would travel unencrypted.
    #[error("the URL for alerts is not an https:// URL: only a host on loopback may be http://")]
    Unencrypted,
    /// The secret of the signatures is missing, not base64, or too short.
    #[error(
        "the secret for alerts is not whsec_ and the base64 of at least 16 bytes: make one with `openssl rand -base64 32`"
    )]
    Secret,
    /// The certificates of this machine cannot be read.
    #[error("the root certificates of this machine cannot be read: {0}")]
    Certificates(#[from] std::io::Error),
    /// The program is built without the clients of SNS and EventBridge.
    #[error(
        "this program cannot deliver alerts to {0}: build it with the cargo feature `aws-alerts`, or give an https:// URL"
    )]
    NotBuilt(String),
}
