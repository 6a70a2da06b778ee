//! The addition of a refill claim to one balance.

use crate::{Condition, EpochMillis, LimitBalance, LimitName, Millitokens, Rule};

/// The time for which a claim serves later writers, in milliseconds: a writer takes from a bucket whose
/// refill was claimed this recently without another claim.
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

/// The addition of a claim to one balance, and the condition under which it is right.
pub(crate) struct Claim {
    /// Millitokens; negative where it trims a surplus.
    pub(crate) tokens: i64,
    /// Its condition on the balance before it.
    pub(crate) condition: Condition,
}

impl Claim {
    /// The gain, as far as it fits under the cap with room for `amount`.
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
        let accrued = refill.gap(since, until);
        let forgiven = refill.forgiven(tokens, since, until);
        let may_forgive = refill.forgiven(-1, since, until) > 0;
        let gap = forgiven + accrued + i128::from(returned.get());
        // After this write the balance shall be below its cap by what accrues in the next interval, so
        // that the writers of that time need no claim of their own. The write takes `amount` after the
        // claim, so the claim itself leaves the rest below the cap: the headroom. With 10 tokens that
        // accrue and an amount of 3, the headroom is 7.
        let amount = i128::from(amount.get()).max(0);
        let accrues = refill.gap(interval.before(until), until);
        // A calendar limit keeps none: it would withhold tokens until the next boundary.
        let accrues_evenly = refill.calendar().is_none();
        let headroom = if accrues_evenly { (accrues - amount).min(cap - amount).max(0) } else { 0 };
        // A claim that would leave less is cut, and then leaves the whole headroom. A claim over less than
        // an interval may leave nothing: if it were cut, too, busy writers would keep the bucket below its
        // burst for ever (ADR 6).
        let left_at_least = if accrued < accrues { 0 } else { headroom };
        if tokens + gap <= cap - left_at_least && !may_forgive {
            // A refund that lands first must not be topped up by a refill computed without it.
            let condition = Condition::AtMost(limit.clone(), milli(cap - gap));
            return Self { tokens: milli(gap), condition };
        }
        // It was cut for exactly this balance, or forgives exactly its debt. If the balance has
        // changed, the write fails and is planned anew: otherwise refill would be lost, or the debt
        // that a debit made meanwhile would not be forgiven.
        let condition = Condition::Exactly(limit.clone(), balance.tokens);
        Self { tokens: milli(gap.min(cap - headroom - tokens)), condition }
    }

    /// The claim that makes a rate a calendar limit: its first period has what [`Rule::adopt`] says.
    pub(crate) fn of_first_period(
        limit: &LimitName,
        balance: &LimitBalance,
        rule: Rule,
        Gain { since, until, returned }: Gain,
    ) -> Self {
        let stored = i128::from(balance.tokens.get());
        let held = Millitokens::saturating(stored + i128::from(returned.get()));
        let worth = balance.rule.effective(held, since, until);
        let kept = rule.adopt(balance.rule, worth.get().into());
        // Right for exactly this balance: of what another writer takes meanwhile, the part that makes
        // a debt counts in the first period, and the part that was covered does not.
        let condition = Condition::Exactly(limit.clone(), balance.tokens);
        Self { tokens: milli(kept - stored), condition }
    }
}

/// Clamps to twice the range of [`Millitokens`], which still fits an `i64`. No balance and no burst
/// is beyond that range, so that the clamping never changes a comparison.
pub(crate) fn milli(milli: i128) -> i64 {
    let most = 2 * i128::from(Millitokens::MAX.get());
    i64::try_from(milli.clamp(-most, most)).unwrap_or(0)
}
