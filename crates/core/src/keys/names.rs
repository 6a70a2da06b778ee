//! The names of the table: its key attributes, its indexes, and how each kind of key begins.

/// Partition key of the table.
pub const PK: &str = "PK";
/// Sort key of the table.
pub const SK: &str = "SK";

/// A global secondary index: its name and its two key attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Index {
    /// Name of the index.
    pub name: &'static str,
    /// Its partition key.
    pub pk: &'static str,
    /// Its sort key.
    pub sk: &'static str,
}

/// Children by parent.
pub const GSI1: Index = Index { name: "GSI1", pk: "GSI1PK", sk: "GSI1SK" };
/// Buckets and usage windows by resource.
pub const GSI2: Index = Index { name: "GSI2", pk: "GSI2PK", sk: "GSI2SK" };
/// Expiry in epoch seconds, the table's TTL attribute.
pub const TTL: &str = "ttl";

/// Begins the sort key of every bucket item.
pub const BUCKET_PREFIX: &str = "#BUCKET#";
/// The attribute of a mark with the fingerprint of its correction.
pub const MARK_FINGERPRINT: &str = "fingerprint";
pub(super) const MARK_PREFIX: &str = "#MARK#";
pub(super) const ENTITY_PREFIX: &str = "ENTITY#";
pub(super) const RESOURCE_PREFIX: &str = "RESOURCE#";
pub(super) const USAGE_PREFIX: &str = "#USAGE#";
pub(super) const LIMITS: &str = "#LIMITS";
pub(super) const META: &str = "#META";
pub(super) const SYSTEM: &str = "SYSTEM#";
pub(super) const VERSION: &str = "#VERSION";
pub(super) const QUARANTINE: &str = "QUARANTINE#";
pub(super) const ALERTS: &str = "ALERTS#";
pub(super) const OUTBOX: &str = "OUTBOX#";
