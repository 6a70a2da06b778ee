//! A write to a composite bucket as a value: what it changes and on which conditions.
//!
//! The write queue makes plans, stores send them, and [`WritePlan::apply`] applies a plan to an
//! item in memory: the product, its model and its tests use the same value. A test shows the
//! purpose of a condition by dropping it from the value.

use crate::{
    CompositeBucket, ConfigStamp, EpochMillis, LevelVersions, LimitBalance, LimitName, Millitokens,
    RequestId, Rule, RulesHash,
};

/// The write path that made a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WritePath {
    /// The item is new.
    Create,
    /// Claims the refill of every limit, and takes what is asked, if anything.
    Claim,
    /// Takes from the balances without a claim; an earlier write claimed a moment ago.
    Unclaimed,
    /// Moves balances under no condition on them except their range (returned tokens, forced
    /// corrections), or moves the expiry. Other corrections of an item use `Claim` and `Unclaimed`.
    AddOnly,
}

impl WritePath {
    /// The path in lower case, as spans and reports name it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Claim => "claim",
            Self::Unclaimed => "unclaimed",
            Self::AddOnly => "add_only",
        }
    }
}

/// One write of one item, all or nothing.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WritePlan {
    /// The path that made it.
    pub path: WritePath,
    /// Its changes; each attribute at most once, except those of [`Change::Remember`]. Only the
    /// order of the `Remember` changes matters. Each puts its id in front of the earlier ones. So
    /// the item keeps the id of the last `Remember` longest.
    pub changes: Vec<Change>,
    /// Its conditions: all must hold.
    pub conditions: Vec<Condition>,
}

/// A change of an item.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Change {
    /// Writes the whole item.
    Put(Box<CompositeBucket>),
    /// Moves the refill timestamp.
    RefilledAt(EpochMillis),
    /// Adds to the balance and the counter of a limit.
    Add {
        /// The limit.
        limit: LimitName,
        /// Added to the balance: the claimed less the taken amount, in millitokens.
        tokens: i64,
        /// Added to the counter, in millitokens. It may differ from the taken amount.
        consumed: i64,
    },
    /// Writes a limit that the item lacks. Its consumption is added to a counter that another
    /// producer may have left there.
    Seed(LimitName, LimitBalance),
    /// Writes the rule of a limit that the item has.
    Rule(LimitName, Rule),
    /// Removes a limit.
    Remove(LimitName),
    /// Writes the hash of all rules.
    RulesHash(RulesHash),
    /// Writes the versions of the stored levels that the item follows, in place of its old stamp.
    ConfigVersions(LevelVersions),
    /// Writes the expiry in epoch seconds; `None` removes it.
    ExpiresAt(Option<i64>),
    /// Puts an id in front of those that the item remembers.
    Remember(RequestId),
}

/// A condition on the item as it is when the write happens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Condition {
    /// There is no item.
    Absent,
    /// The refill timestamp is this one.
    RefilledAt(EpochMillis),
    /// The refill timestamp is this one or a later one.
    RefilledSince(EpochMillis),
    /// The hash of the rules is this one; `None`: the item has none.
    RulesHash(Option<RulesHash>),
    /// The item follows these stored limits.
    ConfigStamp(ConfigStamp),
    /// The balance of a limit is at least this, in millitokens.
    AtLeast(LimitName, i64),
    /// The balance of a limit is at most this, in millitokens.
    AtMost(LimitName, i64),
    /// The balance of a limit is exactly this.
    Exactly(LimitName, Millitokens),
    /// The item does not have this limit.
    HasNot(LimitName),
    /// The item does not remember this id.
    Unseen(RequestId),
    /// The item expires, and before this instant in epoch seconds.
    ExpiresBefore(i64),
}

impl WritePlan {
    /// True if all its conditions hold for the item.
    #[must_use]
    pub fn holds(&self, item: Option<&CompositeBucket>) -> bool {
        self.conditions.iter().all(|condition| condition.holds(item))
    }

    /// The item after the write; `None` when a condition does not hold. If a test removed
    /// conditions from the plan, also `None` when the plan changes a limit or an item that does not
    /// exist.
    #[must_use]
    pub fn apply(&self, item: Option<&CompositeBucket>) -> Option<CompositeBucket> {
        if self.holds(item) { self.changed(item) } else { None }
    }

    /// The item after the changes, whether the conditions hold or not: the best guess at an item
    /// that was written without being returned. `None`: the plan changes an item or a limit that
    /// does not exist.
    #[must_use]
    pub fn changed(&self, item: Option<&CompositeBucket>) -> Option<CompositeBucket> {
        let mut after = item.cloned();
        for change in &self.changes {
            match (change, &mut after) {
                (Change::Put(new), after) => *after = Some(new.as_ref().clone()),
                (change, Some(item)) => change.apply(item)?,
                (_, None) => return None,
            }
        }
        after
    }
}

impl Change {
    fn apply(&self, item: &mut CompositeBucket) -> Option<()> {
        match self {
            Self::Put(new) => *item = new.as_ref().clone(),
            Self::RefilledAt(at) => item.refilled_at = *at,
            Self::Add { limit, tokens, consumed } => {
                let balance = item.limits.get_mut(limit)?;
                let sum = i128::from(balance.tokens.get()) + i128::from(*tokens);
                balance.tokens = Millitokens::saturating(sum);
                balance.consumed = balance.consumed.plus(*consumed);
            }
            Self::Seed(limit, balance) => _ = item.limits.insert(limit.clone(), *balance),
            Self::Rule(limit, rule) => item.limits.get_mut(limit)?.rule = *rule,
            Self::Remove(limit) => _ = item.limits.remove(limit),
            Self::RulesHash(hash) => item.rules_hash = Some(hash.clone()),
            Self::ConfigVersions(versions) => {
                item.config_stamp = ConfigStamp::Versions(*versions);
            }
            Self::ExpiresAt(expires_at_s) => item.expires_at_s = *expires_at_s,
            Self::Remember(id) => {
                item.request_ids.insert(0, id.clone());
                item.request_ids.truncate(RequestId::REMEMBERED);
            }
        }
        Some(())
    }
}

impl Condition {
    /// True if it holds for the item. A missing attribute satisfies no comparison, as in DynamoDB's
    /// own conditions.
    #[must_use]
    pub fn holds(&self, item: Option<&CompositeBucket>) -> bool {
        let balance = |limit| item.and_then(|item| item.limits.get(limit));
        let tokens = |limit| balance(limit).map(|balance| balance.tokens.get());
        match self {
            Self::Absent => item.is_none(),
            Self::RefilledAt(at) => item.is_some_and(|item| item.refilled_at == *at),
            Self::RefilledSince(at) => item.is_some_and(|item| item.refilled_at >= *at),
            Self::RulesHash(hash) => {
                item.and_then(|item| item.rules_hash.as_ref()) == hash.as_ref()
            }
            Self::ConfigStamp(stamp) => item.is_some_and(|item| item.config_stamp == *stamp),
            Self::AtLeast(limit, least) => tokens(limit).is_some_and(|tokens| tokens >= *least),
            Self::AtMost(limit, most) => tokens(limit).is_some_and(|tokens| tokens <= *most),
            Self::Exactly(limit, seen) => tokens(limit) == Some(seen.get()),
            Self::HasNot(limit) => balance(limit).is_none(),
            Self::Unseen(id) => item.is_none_or(|item| !item.request_ids.contains(id)),
            Self::ExpiresBefore(at_s) => {
                item.and_then(|item| item.expires_at_s).is_some_and(|expires| expires < *at_s)
            }
        }
    }
}
