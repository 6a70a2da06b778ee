//! Sending one request: which refusals can be repeated, and for how long.

use std::time::Duration;

use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use tokio::time::Instant;

/// First pause before a repetition; doubles with each one.
const BASE_PAUSE: Duration = Duration::from_millis(25);
/// Longest pause.
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// Why DynamoDB did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// Throttled, overloaded or out of reach: worth repeating within this invocation.
    Transient(String),
    /// Not allowed, or no such table: a person must act, so a later delivery repeats it.
    Setup(String),
    /// The request itself is not acceptable and never will be.
    Invalid(String),
}

impl Refusal {
    /// Sorts an error by what can be done about it. A lost reply is transient: every write of the
    /// processor is guarded, so repeating one that landed changes nothing.
    pub(crate) fn of<E, R>(error: &SdkError<E, R>) -> Self
    where
        E: ProvideErrorMetadata + std::error::Error + 'static,
        R: std::fmt::Debug,
    {
        let reason = match error.meta().message() {
            Some(message) => format!("{}: {message}", error.code().unwrap_or("error")),
            None => chain(error),
        };
        match error.code() {
            Some("ValidationException" | "ItemCollectionSizeLimitExceededException") => {
                Self::Invalid(reason)
            }
            Some(
                "AccessDeniedException"
                | "ResourceNotFoundException"
                | "UnrecognizedClientException"
                | "IncompleteSignatureException"
                | "InvalidSignatureException"
                | "MissingAuthenticationTokenException"
                | "ExpiredTokenException"
                | "InvalidClientTokenId",
            ) => Self::Setup(reason),
            _ => match error {
                SdkError::ConstructionFailure(_) => Self::Setup(reason),
                _ => Self::Transient(reason),
            },
        }
    }

    pub(crate) fn out_of_time() -> Self {
        Self::Transient("the invocation ran out of time".to_owned())
    }

    pub(crate) fn reason(self) -> String {
        match self {
            Self::Transient(reason) | Self::Setup(reason) | Self::Invalid(reason) => reason,
        }
    }
}

/// The message of an error and of everything that caused it.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// Pauses between repetitions, with full jitter, until the deadline.
pub(crate) struct Backoff {
    deadline: Instant,
    pause: Duration,
}

impl Backoff {
    pub(crate) const fn until(deadline: Instant) -> Self {
        Self { deadline, pause: BASE_PAUSE }
    }

    /// Waits before the next repetition; false when there is no time left for one.
    pub(crate) async fn pause(&mut self) -> bool {
        let pause = self.pause.mul_f64(fastrand::f64());
        self.pause = (self.pause * 2).min(MAX_PAUSE);
        if Instant::now() + pause >= self.deadline {
            return false;
        }
        tokio::time::sleep(pause).await;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_and_end_before_the_deadline() {
        let deadline = Instant::now() + Duration::from_secs(30);
        let mut backoff = Backoff::until(deadline);
        let mut pauses = 0;
        while backoff.pause().await {
            pauses += 1;
        }
        assert!(Instant::now() < deadline);
        // Mean pause is half a second once grown: about 60, and never a busy loop.
        assert!((20..400).contains(&pauses), "{pauses}");
        assert!(!Backoff::until(Instant::now()).pause().await);
    }
}
