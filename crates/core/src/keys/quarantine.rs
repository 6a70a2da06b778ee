//! Quarantined records: their attribute names, and the identity in their sort key.

use crate::{SequenceNumber, StreamLabel, WindowKind};

/// A quarantined record as JSON.
pub const RECORD: &str = "record";
/// The reason why a record was quarantined.
pub const REASON: &str = "reason";
/// [`OPEN`], [`DONE`] or [`DROPPED`].
pub const STATE: &str = "state";
/// The state of a quarantined record that waits for a recount, or for a person to give it up.
pub const OPEN: &str = "open";
/// The state of a quarantined record that was counted, or that consumed nothing: the entry stays as
/// a tombstone.
pub const DONE: &str = "done";
/// The state of a quarantined record that a person gave up: the entry is a tombstone, too.
pub const DROPPED: &str = "dropped";
/// The number of limits of a quarantined record that were counted already, if its recount takes
/// several transactions.
pub const COUNTED_LIMITS: &str = "counted_limits";
/// Set on a quarantine entry whose record was too large for an item and was cut.
pub const TRUNCATED: &str = "truncated";

/// Identifies a quarantined record, or one kind of window that could not take a record.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct QuarantineId {
    /// The stream that delivered the record.
    pub stream: StreamLabel,
    /// The record's position, if it has a readable one.
    pub sequence: Option<SequenceNumber>,
    /// A digest of the item's key, because records of two items may share a position. If the record
    /// cannot be parsed, or its position or its ARN is unreadable, a digest of the record's bytes.
    /// A record without an ARN counts as readable: its label is `-`.
    pub digest: Digest,
    /// The one kind of window that lacks the record; `None`: an entry of the whole record.
    pub kind: Option<WindowKind>,
}

/// 64 bits of a hash, spelled as 16 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(pub u64);

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl QuarantineId {
    /// The sort key.
    pub(super) fn sk(&self) -> String {
        let sequence = self.sequence.as_ref().map_or("-", SequenceNumber::padded);
        let kind = self.kind.map(|kind| format!("#{kind}")).unwrap_or_default();
        format!("{}#{sequence}#{}{kind}", self.stream, self.digest)
    }

    /// Reads an id back from a sort key; `None` if the key is spelled otherwise.
    pub(super) fn parse(sk: &str) -> Option<Self> {
        let mut parts = sk.split('#');
        let stream = StreamLabel::parse(parts.next()?)?;
        let sequence = match parts.next()? {
            "-" => None,
            digits => Some(SequenceNumber::parse(digits).ok()?),
        };
        let digest = parts.next().filter(|hex| hex.len() == 16)?;
        let digest = Digest(u64::from_str_radix(digest, 16).ok()?);
        let kind = match parts.next() {
            None => None,
            Some(kind) => Some(WindowKind::from_key(kind)?),
        };
        parts.next().is_none().then_some(Self { stream, sequence, digest, kind })
    }
}
