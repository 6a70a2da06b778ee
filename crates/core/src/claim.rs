//! The tokens that a refill claim adds to one balance.

use crate::{Condition, EpochMillis, LimitBalance, LimitName, Millitokens, Rule};

/// The time for which a claim serves later writers, in milliseconds. If the refill of a bucket was
/// claimed this recently, a writer takes from it without another claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClaimInterval(pub u32);

impl Default for ClaimInterval {
    /// 100 ms.
    fn default() -> Self {
        Self(100)
    }
}

impl ClaimInterval {
    /// The instant one interval ago.
    pub(crate) fn before(self, now: EpochMillis) -> EpochMillis {
        EpochMillis::new(now.get() - i64::from(self.0)).unwrap_or(EpochMillis::MIN)
    }
}

/// The gain of one balance: the refill between two instants, and the returned tokens.
#[derive(Clone, Copy)]
pub(crate) struct Gain {
    pub(crate) since: EpochMillis,
    pub(crate) until: EpochMillis,
    pub(crate) returned: Millitokens,
}

/// The tokens that a claim adds to one balance, and the condition under which they are right.
pub(crate) struct Claim {
    /// Millitokens; negative where it trims a surplus.
    pub(crate) tokens: i64,
    /// The condition on the balance before the claim.
    pub(crate) condition: Condition,
}

impl Claim {
    /// The gain, as far as it fits under the cap. `amount` is the amount that the write takes after
    /// the claim, or the larger one that the balance must cover then.
    pub(crate) fn of(
        limit: &LimitName,
        balance: &LimitBalance,
        cap: Millitokens,
        amount: Millitokens,
        Gain { since, until, returned }: Gain,
        interval: ClaimInterval,
    ) -> Self {
        let refill = balance.rule.refill();
        let (tokens, cap) = (i128::from(balance.tokens.get()), i128::from(cap.get()));
        let accrued_since_claim = refill.accrued_between(since, until);
        let forgiven = refill.forgiven(tokens, since, until);
        // A debt of one millitoken stands for any debt.
        let would_forgive_debt = refill.forgiven(-1, since, until) > 0;
        let gain = forgiven + accrued_since_claim + i128::from(returned.get());
        // After this write, the room below the cap shall hold the refill of the next interval, so
        // that the writers of that time need no claim of their own. The write takes `amount` after
        // the claim, which makes some of that room. The claim itself leaves the rest: the headroom.
        // If 10 tokens accrue in an interval and the amount is 3, the headroom is 7.
        let amount = i128::from(amount.get()).max(0);
        let accrues_per_interval = refill.accrued_between(interval.before(until), until);
        // A calendar limit has no headroom: it would withhold tokens until the next boundary.
        let accrues_evenly = refill.calendar().is_none();
        let headroom = if accrues_evenly {
            (accrues_per_interval - amount).min(cap - amount).max(0)
        } else {
            0
        };
        // A claim over an interval or more must leave the headroom. A shorter one must only stay at
        // or below the cap: otherwise busy writers would keep the bucket below its burst for ever
        // (ADR 6). A claim that would leave less room than it must is cut. A cut claim leaves the
        // whole headroom, even if it is over less than an interval.
        let room_at_least = if accrued_since_claim < accrues_per_interval { 0 } else { headroom };
        if tokens + gain <= cap - room_at_least && !would_forgive_debt {
            // If another writer gives tokens back first, this gain may exceed the cap.
            let condition = Condition::AtMost(limit.clone(), clamped_milli(cap - gain));
            return Self { tokens: clamped_milli(gain), condition };
        }
        // The claim was cut for exactly this balance, or forgives exactly its debt. If the balance
        // has changed, the write fails and is planned anew. Without this condition, refill would be
        // lost, or the debt that a debit made meanwhile would not be forgiven.
        let condition = Condition::Exactly(limit.clone(), balance.tokens);
        Self { tokens: clamped_milli(gain.min(cap - headroom - tokens)), condition }
    }

    /// The claim that turns a rate into a calendar limit or a quota. [`Rule::adopt`] says with
    /// which balance it begins.
    pub(crate) fn of_former_rate(
        limit: &LimitName,
        balance: &LimitBalance,
        rule: Rule,
        Gain { since, until, returned }: Gain,
    ) -> Self {
        let stored = i128::from(balance.tokens.get());
        let held = Millitokens::saturating(stored + i128::from(returned.get()));
        let worth = balance.rule.effective(held, since, until);
        let kept = rule.adopt(balance.rule, worth.get().into());
        // Right for exactly this balance: under the new rule the limit is full, less its debt. If
        // another writer has taken tokens meanwhile, this claim would give them back, so that they
        // would be granted twice.
        let condition = Condition::Exactly(limit.clone(), balance.tokens);
        Self { tokens: clamped_milli(kept - stored), condition }
    }
}

/// Clamps to twice the range of [`Millitokens`], which still fits an `i64`. No balance is beyond
/// the range of [`Millitokens`], so clamping a bound never changes its comparison with a balance.
pub(crate) fn clamped_milli(milli: i128) -> i64 {
    let most = 2 * i128::from(Millitokens::MAX.get());
    i64::try_from(milli.clamp(-most, most)).unwrap_or(0)
}
