//! A write to a composite bucket as a value: what it changes and on which conditions.
//!
//! Deciding makes plans, stores send them, and [`WritePlan::apply`] says what a plan does to an
//! item: the same words for the product, for its model and for its tests. Dropping a condition from
//! the value is how a test shows what the condition is for.

use crate::{CompositeBucket, EpochMillis, LimitName, Millitokens};

/// Which of the write paths made a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WritePath {
    /// The item is new.
    Create,
    /// Claims the refill of every limit and consumes.
    Normal,
    /// Consumes what is there; somebody else claimed a moment ago.
    Retry,
}

/// One write of one item, all or nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WritePlan {
    /// The path that made it.
    pub path: WritePath,
    /// What it changes, in no particular order; each attribute at most once.
    pub changes: Vec<Change>,
    /// When it may happen: all of them.
    pub conditions: Vec<Condition>,
}

/// A change of an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Writes the whole item.
    Put(Box<CompositeBucket>),
    /// Moves the refill timestamp.
    RefilledAt(EpochMillis),
    /// Adds to the balance and the counter of a limit.
    Add {
        /// The limit.
        limit: LimitName,
        /// Added to the balance: what is claimed less what is consumed, in millitokens.
        tokens: i64,
        /// Added to the counter, in millitokens.
        consumed: i64,
    },
}

/// A condition on the item as it is when the write happens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// There is no item.
    Absent,
    /// The refill timestamp is this one.
    RefilledAt(EpochMillis),
    /// The refill timestamp is this one or a later one.
    RefilledSince(EpochMillis),
    /// The hash of the rules is this one; `None`: the item has none.
    RulesHash(Option<String>),
    /// The balance of a limit is at least this, in millitokens.
    AtLeast(LimitName, i64),
    /// The balance of a limit is at most this, in millitokens.
    AtMost(LimitName, i64),
    /// The balance of a limit is exactly this.
    Exactly(LimitName, Millitokens),
}

impl WritePlan {
    /// What the item is after the write; `None` when a condition does not hold.
    #[must_use]
    pub fn apply(&self, item: Option<&CompositeBucket>) -> Option<CompositeBucket> {
        if !self.conditions.iter().all(|condition| condition.holds(item)) {
            return None;
        }
        let mut after = item.cloned();
        for change in &self.changes {
            match (change, &mut after) {
                (Change::Put(new), after) => *after = Some(new.as_ref().clone()),
                (Change::RefilledAt(at), Some(item)) => item.refilled_at = *at,
                (Change::Add { limit, tokens, consumed }, Some(item)) => {
                    let bucket = item.limits.get_mut(limit)?;
                    bucket.tokens = add(bucket.tokens, *tokens);
                    bucket.consumed = add(bucket.consumed, *consumed);
                }
                (_, None) => return None,
            }
        }
        after
    }
}

impl Condition {
    /// Whether it holds for the item. On an item or a limit that is not there only
    /// [`Condition::Absent`] does.
    #[must_use]
    pub fn holds(&self, item: Option<&CompositeBucket>) -> bool {
        let Some(item) = item else { return *self == Self::Absent };
        let balance = |limit| item.limits.get(limit).map(|bucket| bucket.tokens.get());
        match self {
            Self::Absent => false,
            Self::RefilledAt(at) => item.refilled_at == *at,
            Self::RefilledSince(at) => item.refilled_at >= *at,
            Self::RulesHash(hash) => item.rules_hash == *hash,
            Self::AtLeast(limit, least) => balance(limit).is_some_and(|tokens| tokens >= *least),
            Self::AtMost(limit, most) => balance(limit).is_some_and(|tokens| tokens <= *most),
            Self::Exactly(limit, seen) => balance(limit) == Some(seen.get()),
        }
    }
}

fn add(amount: Millitokens, more: i64) -> Millitokens {
    Millitokens::saturating(i128::from(amount.get()) + i128::from(more))
}
