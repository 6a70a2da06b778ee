//! Distinguishes an answer of the store from a sign that the store is unavailable.

use crate::error::{AcquireError, AdjustError, InvalidRequest};
use crate::store_error::BoxError;

/// An error that may mean that the store is unavailable.
pub(crate) trait MaybeOutage {
    /// The error that came instead of an answer; `None`: the store answered.
    fn outage(&self) -> Option<&BoxError>;
    /// The reason why the request is invalid.
    fn invalid(&self) -> Option<&InvalidRequest>;
}

impl MaybeOutage for AcquireError {
    fn outage(&self) -> Option<&BoxError> {
        let Self::Unavailable(source) = self else { return None };
        // `Unavailable` around one of these: a write is in doubt, but the store answers. See
        // `unavailable_if_in_doubt` and `error_at_deadline` in `composite/undecided_error.rs`.
        let is_answer = |error: &Self| matches!(error, Self::Contended { .. } | Self::Setup(_));
        let has_answered = source.downcast_ref().is_some_and(is_answer);
        (!has_answered).then_some(source)
    }

    fn invalid(&self) -> Option<&InvalidRequest> {
        let Self::InvalidRequest(invalid) = self else { return None };
        Some(invalid)
    }
}

impl MaybeOutage for AdjustError {
    fn outage(&self) -> Option<&BoxError> {
        let source = match self {
            Self::Unavailable(source) | Self::Ambiguous(source) => source,
            _ => return None,
        };
        match source.downcast_ref() {
            Some(Self::Unavailable(source)) => Some(source),
            // Any other error inside is the store's answer: the table at `not_corrected` in
            // `composite/adjust.rs` lists them.
            Some(_) => None,
            // An `Ambiguous` that holds no `AdjustError` is the store's answer, too.
            None => matches!(self, Self::Unavailable(_)).then_some(source),
        }
    }

    fn invalid(&self) -> Option<&InvalidRequest> {
        let Self::InvalidRequest(invalid) = self else { return None };
        Some(invalid)
    }
}

/// True if the limiter needed an answer of the store to find the request invalid.
pub(super) const fn came_from_store(invalid: &InvalidRequest) -> bool {
    matches!(invalid, InvalidRequest::UnknownLimit(_) | InvalidRequest::BucketFull { .. })
}

/// True unless the result is an outage.
pub(super) fn is_answer<T, E: MaybeOutage>(result: &Result<T, E>) -> bool {
    result.as_ref().err().and_then(MaybeOutage::outage).is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_that_the_item_no_longer_shows_is_no_outage() {
        let forgotten = AdjustError::Ambiguous("the item no longer shows the write".into());
        let error = AdjustError::Unavailable(forgotten.into());
        assert!(error.to_string().starts_with("an answer of the store was lost"), "{error}");
        assert!(is_answer(&Err::<(), _>(error)));
        assert!(!is_answer(&Err::<(), _>(AdjustError::Unavailable("no answer".into()))));
    }
}
