//! Attribute names of entities and of stored limits.

use crate::LimitName;

/// The parent of an entity.
pub const PARENT_ID: &str = "parent_id";
/// True if an acquire takes from the parent's bucket too.
pub const CASCADE: &str = "cascade";
/// The time of the last change of stored limits, epoch milliseconds. People read it. In an item
/// without [`LIMITS_VERSION`], it is the version.
pub const UPDATED_AT: &str = "updated_at";
/// A counter that every change and deletion of stored limits moves. It starts from the time, so
/// that limits which were deleted by hand and stored again do not pass for the deleted ones.
pub const LIMITS_VERSION: &str = "version";

/// A field of one limit in an item of stored limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LimitField {
    /// The nominal capacity in millitokens, `cp`.
    Capacity,
    /// The balance of a full bucket in millitokens, `bx`.
    Burst,
    /// The refill amount in millitokens, `ra`.
    RefillAmount,
    /// The refill period in milliseconds, `rp`.
    RefillPeriod,
    /// The boundaries of a calendar limit, `cal`. Its `ra` is zero.
    Calendar,
    /// `dl`: the version that the deletion of the limit made. It stands in place of the other
    /// fields.
    Tombstone,
}

impl LimitField {
    /// The fields of every limit that is not deleted.
    pub const RULE: [Self; 4] =
        [Self::Capacity, Self::Burst, Self::RefillAmount, Self::RefillPeriod];

    const fn suffix(self) -> &'static str {
        match self {
            Self::Capacity => "cp",
            Self::Burst => "bx",
            Self::RefillAmount => "ra",
            Self::RefillPeriod => "rp",
            Self::Calendar => "cal",
            Self::Tombstone => "dl",
        }
    }
}

/// The attribute of one field of one stored limit.
#[must_use]
pub fn limit_attribute(limit: &LimitName, field: LimitField) -> String {
    format!("l_{limit}_{}", field.suffix())
}

/// The limit and field of an attribute of stored limits, split at the last `_`; the limit is not
/// checked yet.
#[must_use]
pub fn parse_limit_attribute(attribute: &str) -> Option<(&str, LimitField)> {
    let (limit, suffix) = attribute.strip_prefix("l_")?.rsplit_once('_')?;
    let field = LimitField::RULE
        .into_iter()
        .chain([LimitField::Calendar, LimitField::Tombstone])
        .find(|field| field.suffix() == suffix)?;
    Some((limit, field))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn attributes_parse_back(limit in "[A-Za-z0-9_.-]{1,64}") {
            let name = LimitName::new(&limit).unwrap();
            for field in LimitField::RULE.into_iter().chain([LimitField::Tombstone]) {
                let attribute = limit_attribute(&name, field);
                prop_assert_eq!(parse_limit_attribute(&attribute), Some((limit.as_str(), field)));
            }
        }
    }

    #[test]
    fn other_attributes_are_none() {
        for attribute in ["updated_at", "l_rpm", "l_rpm_tk", "b_rpm_cp", "lr1"] {
            assert_eq!(parse_limit_attribute(attribute), None, "{attribute}");
        }
    }
}
