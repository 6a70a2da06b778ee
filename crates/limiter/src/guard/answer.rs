//! Tells an answer of the store from a sign that the store is unavailable.

use crate::error::{AcquireError, AdjustError, InvalidRequest};
use crate::store_error::BoxError;

/// An error that may mean that the store is unavailable.
pub(super) trait StoreError {
    /// The error met instead of an answer.
    fn away(&self) -> Option<&BoxError>;
    /// The reason why the request is invalid.
    fn invalid(&self) -> Option<&InvalidRequest>;
}

impl StoreError for AcquireError {
    fn away(&self) -> Option<&BoxError> {
        let Self::Unavailable(source) = self else { return None };
        // The deadline ended a write, and the last result of the store was not silence.
        let is_answer = |error: &Self| matches!(error, Self::Contended { .. } | Self::Setup(_));
        let has_answered = source.downcast_ref().is_some_and(is_answer);
        (!has_answered).then_some(source)
    }

    fn invalid(&self) -> Option<&InvalidRequest> {
        let Self::InvalidRequest(invalid) = self else { return None };
        Some(invalid)
    }
}

impl StoreError for AdjustError {
    fn away(&self) -> Option<&BoxError> {
        let source = match self {
            Self::Unavailable(source) | Self::Ambiguous(source) => source,
            _ => return None,
        };
        match source.downcast_ref() {
            Some(Self::Unavailable(source)) => Some(source),
            Some(_) => None,
            None => matches!(self, Self::Unavailable(_)).then_some(source),
        }
    }

    fn invalid(&self) -> Option<&InvalidRequest> {
        let Self::InvalidRequest(invalid) = self else { return None };
        Some(invalid)
    }
}

/// True if it took a call of the store to find out.
pub(super) const fn is_told(invalid: &InvalidRequest) -> bool {
    matches!(invalid, InvalidRequest::UnknownLimit(_) | InvalidRequest::BucketFull { .. })
}

/// True if the result came from the store.
pub(super) fn is_answer<T, E: StoreError>(result: &Result<T, E>) -> bool {
    result.as_ref().err().and_then(StoreError::away).is_none()
}

/// An error with its sources.
pub(super) fn described(error: &BoxError) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    text
}
