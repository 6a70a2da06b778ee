//! The meaning of the error codes of AWS: one list for every caller of DynamoDB.
//!
//! A code that is not in it is sorted by the HTTP status of its answer. Nothing here knows how
//! an answer arrives.

/// The meaning of an error of DynamoDB for the request that met it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorClass {
    /// Another transaction writes the item, or an earlier copy of this one is in progress. This
    /// copy did nothing; it may pass in a moment.
    Conflict,
    /// There is no capacity for the request now. Nothing was done.
    Throttled,
    /// There is no such table. Nothing was done.
    NoTable,
    /// The credentials are not valid, have expired, or lack a permission. Nothing was done.
    Denied,
    /// The request is not acceptable and never will be. Nothing was done.
    Invalid,
    /// The answer refuses the request, and this list does not name the reason. Nothing was done.
    Rejected,
    /// The store failed inside (of HTTP: 5xx, but not 501). The request may have been done.
    StoreFailed,
}

/// The server did not read the whole request in time, which says nothing of the request.
const REQUEST_TIMEOUT: u16 = 408;
const TOO_MANY_REQUESTS: u16 = 429;
/// The server does not implement the request, so no repetition succeeds.
const NOT_IMPLEMENTED: u16 = 501;

impl ErrorClass {
    /// Sorts the answer to a request by its error code, otherwise by its HTTP status. `None`: it is
    /// no answer of DynamoDB, so the request counts as not answered.
    #[must_use]
    pub fn of_answer(code: Option<&str>, status: u16) -> Option<Self> {
        code.and_then(Self::of_known).or(match status {
            REQUEST_TIMEOUT => None,
            TOO_MANY_REQUESTS => Some(Self::Throttled),
            300..500 | NOT_IMPLEMENTED => Some(Self::Rejected),
            500.. => Some(Self::StoreFailed),
            _ => None,
        })
    }

    /// Sorts the code of one item of a cancelled transaction, which comes with a status of 400.
    #[must_use]
    pub fn of_reason(code: &str) -> Self {
        Self::of_known(code).unwrap_or(Self::Rejected)
    }

    /// DynamoDB spells some codes with `Exception` in one place and without in another.
    fn of_known(code: &str) -> Option<Self> {
        Some(match code.strip_suffix("Exception").unwrap_or(code) {
            "TransactionConflict" | "TransactionInProgress" | "ReplicatedWriteConflict" => {
                Self::Conflict
            }
            "ProvisionedThroughputExceeded"
            | "Throttling"
            | "ThrottlingError"
            | "RequestLimitExceeded" => Self::Throttled,
            "ResourceNotFound" => Self::NoTable,
            "AccessDenied"
            | "UnrecognizedClient"
            | "IncompleteSignature"
            | "InvalidSignature"
            | "MissingAuthenticationToken"
            | "ExpiredToken"
            | "InvalidClientTokenId" => Self::Denied,
            "Validation" | "ValidationError" | "ItemCollectionSizeLimitExceeded" => Self::Invalid,
            "InternalServerError" | "InternalFailure" | "ServiceUnavailable" => Self::StoreFailed,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::ErrorClass::{Conflict, Denied, Invalid, NoTable, Rejected, StoreFailed, Throttled};
    use super::*;

    #[test]
    fn a_known_code_decides_whatever_its_spelling_and_status() {
        for (code, class) in [
            ("TransactionConflictException", Conflict),
            ("TransactionConflict", Conflict),
            ("ReplicatedWriteConflictException", Conflict),
            ("ProvisionedThroughputExceededException", Throttled),
            ("ThrottlingError", Throttled),
            ("ThrottlingException", Throttled),
            ("ResourceNotFoundException", NoTable),
            ("AccessDenied", Denied),
            ("ExpiredTokenException", Denied),
            ("ExpiredToken", Denied),
            ("ValidationError", Invalid),
            ("ValidationException", Invalid),
            ("InternalServerError", StoreFailed),
            ("ServiceUnavailable", StoreFailed),
        ] {
            for status in [0, 400, 500] {
                assert_eq!(ErrorClass::of_answer(Some(code), status), Some(class), "{code}");
            }
            assert_eq!(ErrorClass::of_reason(code), class, "{code}");
        }
    }

    #[test]
    fn any_other_answer_is_a_refusal_or_a_failure_inside() {
        for code in [None, Some("NobodyKnowsException")] {
            for (status, class) in [
                (301, Some(Rejected)),
                (400, Some(Rejected)),
                (404, Some(Rejected)),
                (408, None),
                (429, Some(Throttled)),
                (500, Some(StoreFailed)),
                (501, Some(Rejected)),
                (503, Some(StoreFailed)),
                (200, None),
                (0, None),
            ] {
                assert_eq!(ErrorClass::of_answer(code, status), class, "{code:?} {status}");
            }
        }
        assert_eq!(ErrorClass::of_reason("NobodyKnows"), Rejected);
    }
}
