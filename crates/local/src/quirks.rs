//! The differences between the reports of the embedded engine and those of DynamoDB.
//!
//! They are in one place, so that workarounds for fixed differences are dropped together; a test of
//! the stream source (`tests/poller/stream.rs`) detects a new version that fixes one. Known, and
//! without a workaround here: a write that changes nothing still emits a MODIFY, the open shard
//! reports an `EndingSequenceNumber` (which is never read), and ARNs carry the region `dynoxide`
//! and a stream label of epoch seconds instead of an ISO time.

use aws_sdk_dynamodbstreams::types::Identity;

/// The identity that DynamoDB writes for a deletion by TTL, the only one that it records.
const TTL_IDENTITY: (&str, &str) = ("Service", "dynamodb.amazonaws.com");

/// The type and principal of the identity of a record.
///
/// The engine spells the members in lower case where the Streams API has `Type` and `PrincipalId`,
/// so the SDK finds an identity without members: that can only be the one of TTL.
pub(crate) fn user_identity(identity: &Identity) -> (&str, &str) {
    match (identity.r#type(), identity.principal_id()) {
        (None, None) => TTL_IDENTITY,
        (kind, principal) => (kind.unwrap_or_default(), principal.unwrap_or_default()),
    }
}
