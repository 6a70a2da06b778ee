//! Negative controls: the conditions of the write paths, each left out of the plans to show what
//! it is for.

use sluicegate_core::{Condition as C, WritePath as Path};

use super::scenario::Purpose;

/// One kind of condition on one path.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Control {
    pub(crate) name: &'static str,
    /// The scenario of the model checker that shows what it is for.
    pub(crate) scenario: &'static str,
    /// True if it leaves out a condition of a plan.
    pub(crate) drops: fn(Purpose, Path, &C) -> bool,
}

macro_rules! control {
    ($name:literal, $scenario:literal, $purpose:pat, $path:pat, $condition:pat) => {
        Control {
            name: $name,
            scenario: $scenario,
            drops: |purpose, path, condition| {
                matches!((purpose, path, condition), ($purpose, $path, $condition))
            },
        }
    };
}

/// Every condition but those that others imply.
pub(crate) const CONTROLS: &[Control] = &[
    control!("absent of create", "creation", _, Path::Create, C::Absent),
    control!("lock of a claim", "one bucket, two writers", _, Path::Claim, C::RefilledAt(_)),
    control!("floor of a claim", "one bucket, two writers", _, Path::Claim, C::AtLeast(..)),
    control!("ceiling of a claim", "corrections", _, Path::Claim, C::AtMost(..)),
    control!("balance of a cut claim", "one bucket, two writers", _, Path::Claim, C::Exactly(..)),
    control!("rules of a claim", "a slower rate", _, Path::Claim, C::RulesHash(_)),
    control!(
        "floor of an unclaimed take",
        "one bucket, two writers",
        _,
        Path::Unclaimed,
        C::AtLeast(..)
    ),
    control!(
        "ceiling of an unclaimed take",
        "a bucket that is nearly full",
        Purpose::Acquire,
        Path::Unclaimed,
        C::AtMost(..)
    ),
    control!(
        "claim before an unclaimed take",
        "one bucket, two writers",
        _,
        Path::Unclaimed,
        C::RefilledSince(_)
    ),
    control!("rules of an unclaimed take", "a lower burst", _, Path::Unclaimed, C::RulesHash(_)),
    control!(
        "ceiling of a debit",
        "a lower burst",
        Purpose::Adjust,
        Path::Unclaimed,
        C::AtMost(..)
    ),
    control!(
        "claim before a debit",
        "corrections",
        Purpose::Adjust,
        Path::Unclaimed,
        C::RefilledSince(_)
    ),
    control!(
        "rules of a debit",
        "a lower burst",
        Purpose::Adjust,
        Path::Unclaimed,
        C::RulesHash(_)
    ),
    control!(
        "lock of a claiming debit",
        "two limits",
        Purpose::Adjust,
        Path::Claim,
        C::RefilledAt(_)
    ),
    control!(
        "ceiling of a claiming debit",
        "corrections",
        Purpose::Adjust,
        Path::Claim,
        C::AtMost(..)
    ),
    control!(
        "balance of a claiming debit",
        "two limits",
        Purpose::Adjust,
        Path::Claim,
        C::Exactly(..)
    ),
    control!(
        "rules of a claiming debit",
        "a slower rate",
        Purpose::Adjust,
        Path::Claim,
        C::RulesHash(_)
    ),
    control!(
        "existence of adjust",
        "a dropped limit",
        _,
        Path::AddOnly,
        C::AtLeast(..) | C::AtMost(..)
    ),
    control!("memory", "lost replies", _, _, C::Unseen(_)),
    control!("memory of a claim", "late writes", _, Path::Claim, C::Unseen(_)),
    control!("memory of an unclaimed take", "lost replies", _, Path::Unclaimed, C::Unseen(_)),
    control!("memory of adjust", "late writes", _, Path::AddOnly, C::Unseen(_)),
];

/// The conditions that the hash of the rules implies between writers that keep it.
pub(crate) const IMPLIED: &[Control] = &[
    control!("absence of a new limit", "an added limit", _, _, C::HasNot(_)),
    control!(
        "existence of a conditional debit",
        "a dropped limit",
        Purpose::Adjust,
        Path::Claim | Path::Unclaimed,
        C::AtLeast(..)
    ),
];
