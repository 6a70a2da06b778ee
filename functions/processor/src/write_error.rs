//! The reasons why a request to DynamoDB failed, sorted by what can be done about them.

use aws_sdk_dynamodb::config::http::HttpResponse;
use aws_sdk_dynamodb::error::{BuildError, ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::types::CancellationReason;
use sluicegate_core::ErrorClass;

/// The reason why a write was not done, or may not have been.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WriteError {
    /// Throttled, overloaded or out of reach: worth repeating, while this invocation has time.
    Transient {
        reason: String,
        /// True if the write may have been done nevertheless: there was no answer, or the answer
        /// does not say if it was done.
        maybe_done: bool,
    },
    /// Access is denied, the table does not exist, or an item is broken: a person must act first,
    /// and a later delivery repeats the write.
    NeedsOperator(String),
    /// The request itself is invalid and always will be.
    Invalid(String),
}

impl WriteError {
    /// Sorts an error. A lost reply is transient: every write of the processor has a condition,
    /// so repeating one that was done changes nothing.
    pub(crate) fn of<E>(error: &SdkError<E, HttpResponse>) -> Self
    where
        E: ProvideErrorMetadata + std::error::Error + 'static,
    {
        let reason = explain(error);
        let status = error.raw_response().map_or(0, |answer| answer.status().as_u16());
        if let Some(class) = ErrorClass::of_answer(error.code(), status) {
            return Self::of_class(class, reason);
        }
        match error {
            // There are no credentials or no such endpoint: a repetition fails too.
            SdkError::ConstructionFailure(_) => Self::NeedsOperator(reason),
            SdkError::DispatchFailure(failure)
                if failure.is_user() || (failure.is_other() && failure.as_other().is_none()) =>
            {
                Self::NeedsOperator(reason)
            }
            _ => Self::Transient { reason, maybe_done: true },
        }
    }

    /// An unknown refusal does not show that the record is at fault. So it is not `Invalid`: a
    /// person must act, and a later delivery repeats the write.
    const fn of_class(class: ErrorClass, reason: String) -> Self {
        match class {
            ErrorClass::Invalid => Self::Invalid(reason),
            ErrorClass::NoTable | ErrorClass::Denied | ErrorClass::Rejected => {
                Self::NeedsOperator(reason)
            }
            ErrorClass::StoreFailed => Self::Transient { reason, maybe_done: true },
            ErrorClass::Conflict | ErrorClass::Throttled => {
                Self::Transient { reason, maybe_done: false }
            }
        }
    }

    /// Sorts a cancelled transaction by the first of its items that caused the cancellation.
    pub(crate) fn of_reasons(reasons: &[CancellationReason]) -> Self {
        let cause = reasons.iter().find(|reason| reason.code() != Some("None"));
        // Cancelled without a reason: handled as another writer's conflict.
        let code = cause.and_then(CancellationReason::code).unwrap_or("TransactionConflict");
        let message = cause.and_then(CancellationReason::message).unwrap_or_default();
        let reason = format!("{code}: {}", one_line(message, REASON_CHARS));
        Self::of_class(ErrorClass::of_reason(code), reason)
    }

    /// An answer of 200 without the requested consumed capacity: it may come from something other
    /// than DynamoDB.
    pub(crate) fn empty_answer() -> Self {
        let reason = "the answer is empty: it does not say what was done".to_owned();
        Self::Transient { reason, maybe_done: true }
    }

    pub(crate) fn out_of_time() -> Self {
        Self::Transient { reason: "the invocation ran out of time".to_owned(), maybe_done: true }
    }

    /// Treats an invalid request as an error for a person. The processor built the request within
    /// DynamoDB's limits, so no record is at fault. The records are not quarantined: later
    /// deliveries repeat the write.
    pub(crate) fn invalid_as_needs_operator(self) -> Self {
        match self {
            Self::Invalid(reason) => Self::NeedsOperator(reason),
            other => other,
        }
    }

    pub(crate) fn reason(self) -> String {
        match self {
            Self::Transient { reason, .. }
            | Self::NeedsOperator(reason)
            | Self::Invalid(reason) => reason,
        }
    }
}

/// A request without a part that DynamoDB requires.
impl From<BuildError> for WriteError {
    fn from(error: BuildError) -> Self {
        Self::NeedsOperator(error.to_string())
    }
}

/// True if this item's condition cancelled the transaction.
pub(crate) fn is_failed_condition(reason: &CancellationReason) -> bool {
    reason.code() == Some("ConditionalCheckFailed")
}

/// The error in one line of at most a few hundred characters: the service's message if it has one,
/// otherwise the chain of causes.
pub fn explain<E, R>(error: &SdkError<E, R>) -> String
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
    R: std::fmt::Debug,
{
    match error.meta().message() {
        Some(message) => {
            one_line(&format!("{}: {message}", error.code().unwrap_or("error")), REASON_CHARS)
        }
        None => chain(error),
    }
}

/// An error and all its causes, in one line of at most a few hundred characters.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    one_line(&text, REASON_CHARS)
}

const REASON_CHARS: usize = 400;

/// The first characters of a text, in one line. A line feed becomes a space. Other control
/// characters, invisible characters and those that change the text direction are escaped.
pub fn one_line(text: &str, most_chars: usize) -> String {
    let mut line = String::new();
    for character in text.chars().take(most_chars) {
        match character {
            '\n' => line.push(' '),
            c if c.is_control() || is_unseen(c) => line.extend(c.escape_default()),
            c => line.push(c),
        }
    }
    line
}

/// True if a character has no width or changes the text direction: with such characters, two
/// different names can look the same. These are Unicode's format characters, fillers, line and
/// paragraph separators, and variation selectors.
const fn is_unseen(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}'
        | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use aws_sdk_dynamodb::error::ErrorMetadata;
    use aws_sdk_dynamodb::operation::update_item::UpdateItemError;

    use super::*;

    #[test]
    fn a_reason_is_one_short_line() {
        assert_eq!(one_line("a\nb\u{1b}[31m\u{e9}", 100), "a b\\u{1b}[31m\u{e9}");
        assert_eq!(one_line("\u{e9}\u{e9}\u{e9}", 2), "\u{e9}\u{e9}");
        assert_eq!(one_line("\u{202e}a\u{200b}b\u{feff}", 9), "\\u{202e}a\\u{200b}b\\u{feff}");
        assert_eq!(one_line("caf\u{e9} \u{5d0} \u{1f600}\t", 9), "caf\u{e9} \u{5d0} \u{1f600}\\t");
    }

    #[test]
    fn a_throttled_write_did_not_happen_and_an_internal_error_may_have() {
        let maybe_done = |code: &str| {
            let metadata = ErrorMetadata::builder().code(code).build();
            let answer = HttpResponse::new(400.try_into().unwrap(), "".into());
            let error = SdkError::service_error(UpdateItemError::generic(metadata), answer);
            match WriteError::of(&error) {
                WriteError::Transient { maybe_done, .. } => Some(maybe_done),
                WriteError::NeedsOperator(_) | WriteError::Invalid(_) => None,
            }
        };
        assert_eq!(maybe_done("ProvisionedThroughputExceededException"), Some(false));
        assert_eq!(maybe_done("TransactionConflict"), Some(false));
        assert_eq!(maybe_done("InternalServerError"), Some(true));
        assert_eq!(maybe_done("ServiceUnavailable"), Some(true));
        assert_eq!(maybe_done("AccessDeniedException"), None);
        assert_eq!(maybe_done("ValidationException"), None);
        assert_eq!(maybe_done("NobodyKnowsException"), None);
    }
}
