//! Attribute names of a bucket item.

use crate::LimitName;

/// The entity of a bucket item.
pub const ENTITY_ID: &str = "entity_id";
/// The resource of a bucket item.
pub const RESOURCE: &str = "resource";
/// The time of the last refill claim for all limits of a bucket item, epoch milliseconds.
pub const REFILLED_AT: &str = "rf";
/// The versions of the four stored levels that a bucket item follows, narrowest first: `2.0.5.3`.
pub const CONFIG_VERSIONS: &str = "cv";
/// The newest `updated_at` of the configuration that a bucket item follows, epoch milliseconds: in
/// items that have no [`CONFIG_VERSIONS`] yet.
pub const CONFIG_EPOCH: &str = "ep";
/// Hash of all rules in a bucket item.
pub const RULES_HASH: &str = "pv";
/// The ids of the last four writes of a bucket item, or of lost writes that they fenced, newest
/// first.
pub const REQUEST_IDS: [&str; 4] = ["lr", "lr1", "lr2", "lr3"];
/// Stands in [`REQUEST_IDS`] where an item has had fewer writes.
pub const NO_REQUEST_ID: &str = "-";
/// Marks a bucket item that was converted from the layout of one item per limit.
pub const MIGRATED: &str = "mg";

/// A field of one limit in a bucket item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BucketField {
    /// The stored balance in millitokens, `tk`.
    Tokens,
    /// The nominal capacity in millitokens, `cp`.
    Capacity,
    /// The balance of a full bucket in millitokens, `bx`.
    Burst,
    /// The refill amount in millitokens, `ra`.
    RefillAmount,
    /// The refill period in milliseconds, `rp`.
    RefillPeriod,
    /// The counter of everything consumed, in millitokens, `tc`.
    Consumed,
}

impl BucketField {
    /// All fields of a limit that are numbers.
    pub const ALL: [Self; 6] = [
        Self::Tokens,
        Self::Capacity,
        Self::Burst,
        Self::RefillAmount,
        Self::RefillPeriod,
        Self::Consumed,
    ];

    /// The fields of a rule: capacity, burst, and the amount and the period of the refill.
    pub(crate) const RULE: [Self; 4] =
        [Self::Capacity, Self::Burst, Self::RefillAmount, Self::RefillPeriod];

    const fn suffix(self) -> &'static str {
        match self {
            Self::Tokens => "tk",
            Self::Capacity => "cp",
            Self::Burst => "bx",
            Self::RefillAmount => "ra",
            Self::RefillPeriod => "rp",
            Self::Consumed => "tc",
        }
    }
}

/// The attribute of one field of one limit in a bucket item.
#[must_use]
pub fn bucket_attribute(limit: &LimitName, field: BucketField) -> String {
    // Every write builds several names, and this is faster than `format!`.
    ["b_", limit.as_str(), "_", field.suffix()].concat()
}

/// The attribute with the boundaries of a calendar limit. The `ra` of such a limit is zero, so that
/// a producer that does not know this attribute never refills the limit.
#[must_use]
pub fn calendar_attribute(limit: &LimitName) -> String {
    ["b_", limit.as_str(), "_cal"].concat()
}

/// The limit of a [`calendar_attribute`], which is not checked yet.
#[must_use]
pub fn parse_calendar_attribute(attribute: &str) -> Option<&str> {
    attribute.strip_prefix("b_")?.strip_suffix("_cal")
}

/// The limit and field of a bucket attribute, split at the last `_`; the limit is not checked yet.
#[must_use]
pub fn parse_bucket_attribute(attribute: &str) -> Option<(&str, BucketField)> {
    let (limit, suffix) = attribute.strip_prefix("b_")?.rsplit_once('_')?;
    let field = BucketField::ALL.into_iter().find(|field| field.suffix() == suffix)?;
    Some((limit, field))
}

/// The limit of a `tc` attribute: [`parse_bucket_attribute`] for the one field that metering reads.
#[must_use]
pub fn parse_counter_attribute(attribute: &str) -> Option<&str> {
    attribute.strip_prefix("b_")?.strip_suffix("_tc")
}

/// True if metering reads this attribute of a bucket item.
#[must_use]
pub fn is_metered(attribute: &str) -> bool {
    parse_counter_attribute(attribute).is_some() || matches!(attribute, REFILLED_AT | MIGRATED)
}
