//! Sending one request: which refusals can be repeated, and for how long.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

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
        let reason = explain(error);
        if let Some(code) = error.code() {
            return Self::of_code(code, reason);
        }
        match error {
            // No credentials, no such endpoint: the same in a moment.
            SdkError::ConstructionFailure(_) => Self::Setup(reason),
            SdkError::DispatchFailure(failure)
                if failure.is_user() || (failure.is_other() && failure.as_other().is_none()) =>
            {
                Self::Setup(reason)
            }
            _ => Self::Transient(reason),
        }
    }

    /// Sorts an error code of DynamoDB, or the code of a cancelled transaction's item.
    pub(crate) fn of_code(code: &str, reason: String) -> Self {
        match code {
            "ValidationException"
            | "ValidationError"
            | "ItemCollectionSizeLimitExceededException" => Self::Invalid(reason),
            "AccessDeniedException"
            | "ResourceNotFoundException"
            | "UnrecognizedClientException"
            | "IncompleteSignatureException"
            | "InvalidSignatureException"
            | "MissingAuthenticationTokenException"
            | "ExpiredTokenException"
            | "InvalidClientTokenId" => Self::Setup(reason),
            _ => Self::Transient(reason),
        }
    }

    pub(crate) fn out_of_time() -> Self {
        Self::Transient("the invocation ran out of time".to_owned())
    }

    /// What is refused although it was made to fit: a person must look at the table, and the
    /// records stay in the stream until then.
    pub(crate) fn repairable(self) -> Self {
        match self {
            Self::Invalid(reason) => Self::Setup(reason),
            other => other,
        }
    }

    pub(crate) fn reason(self) -> String {
        match self {
            Self::Transient(reason) | Self::Setup(reason) | Self::Invalid(reason) => reason,
        }
    }
}

/// Now, in epoch seconds.
pub(crate) fn epoch_s() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_secs()).unwrap_or(i64::MAX)
}

/// What went wrong, in one line of at most a few hundred characters: DynamoDB's own words, or the
/// chain of causes.
pub fn explain<E, R>(error: &SdkError<E, R>) -> String
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
    R: std::fmt::Debug,
{
    let text = match error.meta().message() {
        Some(message) => format!("{}: {message}", error.code().unwrap_or("error")),
        None => {
            let mut text = error.to_string();
            let mut source = std::error::Error::source(error);
            while let Some(cause) = source {
                text = format!("{text}: {cause}");
                source = cause.source();
            }
            text
        }
    };
    one_line(&text, 400)
}

/// The first characters of a text, with line breaks and other control characters spelled out.
pub(crate) fn one_line(text: &str, most: usize) -> String {
    let mut line = String::new();
    for character in text.chars().take(most) {
        match character {
            '\n' => line.push(' '),
            c if c.is_control() => line.extend(c.escape_default()),
            c => line.push(c),
        }
    }
    line
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

    #[test]
    fn a_reason_is_one_short_line() {
        assert_eq!(one_line("a\nb\u{1b}[31m\u{e9}", 100), "a b\\u{1b}[31m\u{e9}");
        assert_eq!(one_line("\u{e9}\u{e9}\u{e9}", 2), "\u{e9}\u{e9}");
    }

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
