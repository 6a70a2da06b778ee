//! Negative controls: the conditions of the write paths, each left out of the plans to show what
//! it is for.

use sluicegate_core::{Condition as C, WritePath as Path};

use super::call::Purpose;

/// One kind of condition on one path.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Control {
    pub(crate) name: &'static str,
    /// Whether it leaves out a condition of a plan.
    pub(crate) drops: fn(Purpose, Path, &C) -> bool,
}

macro_rules! control {
    ($name:literal, $purpose:pat, $path:pat, $condition:pat) => {
        Control {
            name: $name,
            drops: |purpose, path, condition| {
                matches!((purpose, path, condition), ($purpose, $path, $condition))
            },
        }
    };
}

/// Every condition but those that others imply.
pub(crate) const CONTROLS: &[Control] = &[
    control!("absent of create", _, Path::Create, C::Absent),
    control!("lock of normal", _, Path::Normal, C::RefilledAt(_)),
    control!("floor of normal", _, Path::Normal, C::AtLeast(..)),
    control!("ceiling of normal", _, Path::Normal, C::AtMost(..)),
    control!("balance of a cut claim", _, Path::Normal, C::Exactly(..)),
    control!("rules of normal", _, Path::Normal, C::RulesHash(_)),
    control!("floor of retry", _, Path::Retry, C::AtLeast(..)),
    control!("guard of retry", Purpose::Acquire, Path::Retry, C::AtMost(..)),
    control!("claim before retry", _, Path::Retry, C::RefilledSince(_)),
    control!("rules of retry", _, Path::Retry, C::RulesHash(_)),
    control!("guard of a debit", Purpose::Adjust, Path::Retry, C::AtMost(..)),
    control!("claim before a debit", Purpose::Adjust, Path::Retry, C::RefilledSince(_)),
    control!("rules of a debit", Purpose::Adjust, Path::Retry, C::RulesHash(_)),
    control!("lock of a claiming debit", Purpose::Adjust, Path::Normal, C::RefilledAt(_)),
    control!("ceiling of a claiming debit", Purpose::Adjust, Path::Normal, C::AtMost(..)),
    control!("balance of a claiming debit", Purpose::Adjust, Path::Normal, C::Exactly(..)),
    control!("rules of a claiming debit", Purpose::Adjust, Path::Normal, C::RulesHash(_)),
    control!("existence of adjust", _, Path::Adjust, C::Has(_)),
    control!("memory", _, _, C::Unseen(_)),
    control!("memory of normal", _, Path::Normal, C::Unseen(_)),
    control!("memory of retry", _, Path::Retry, C::Unseen(_)),
    control!("memory of adjust", _, Path::Adjust, C::Unseen(_)),
];

/// What the hash of the rules implies between writers that keep it.
pub(crate) const IMPLIED: &[Control] = &[
    control!("absence of a new limit", _, _, C::HasNot(_)),
    control!("existence of a guarded debit", _, Path::Normal | Path::Retry, C::Has(_)),
];
