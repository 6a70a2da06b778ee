//! Where the embedded engine differs from DynamoDB in what it reports.
//!
//! One place, so that what a new version of the engine fixes is found and dropped together; a test
//! of the stream source (`poller::stream_tests`) notices when it does. Known and not worked around here:
//! a write that changes nothing still emits a MODIFY, the open shard reports an
//! `EndingSequenceNumber` (nothing reads it), and ARNs carry the region `dynoxide` and a stream
//! label of epoch seconds instead of an ISO time.

use aws_sdk_dynamodbstreams::types::Identity;

/// What DynamoDB writes as the identity behind a deletion by TTL, the only one that it records.
const TTL_IDENTITY: (&str, &str) = ("Service", "dynamodb.amazonaws.com");

/// Type and principal of the identity behind a record.
///
/// The engine spells the members in lower case where the Streams API has `Type` and `PrincipalId`,
/// so the SDK finds an identity without members: that can only be the one of TTL.
pub(crate) fn user_identity(identity: &Identity) -> (&str, &str) {
    match (identity.r#type(), identity.principal_id()) {
        (None, None) => TTL_IDENTITY,
        (kind, principal) => (kind.unwrap_or_default(), principal.unwrap_or_default()),
    }
}
