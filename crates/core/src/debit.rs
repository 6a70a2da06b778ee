//! The plans of writes that take tokens: from an item that exists, and by a new item.
//!
//! [`take_with_claim`] claims the refill of every limit up to now. It requires that the refill
//! timestamp is still that of the image. [`take_unclaimed`] takes from the balance without a claim,
//! after an earlier write claimed a moment ago.

use std::collections::{BTreeMap, BTreeSet};

use crate::claim::{Claim, Gain, clamped_milli};
use crate::plan::{Change, Condition, WritePath, WritePlan};
use crate::status::View;
use crate::{
    Acquire, Amounts, BucketId, ClaimInterval, CompositeBucket, Configuration, EpochMillis,
    LimitBalance, LimitName, Millitokens, RefillHint, RequestId, Rule, RulesHash, expiry,
    is_refill_time_ahead,
};

/// The amounts that a write takes from a bucket, or gives back.
pub(crate) struct Debit<'a> {
    /// The tokens taken, less those that later requests of this write give back. So the amount of a
    /// limit may be below what the balance must cover, or negative.
    pub(crate) amounts: &'a Amounts,
    /// Tokens that come back before anything is taken, as far as they fit.
    pub(crate) returned: &'a Amounts,
    /// The amounts that the counters move by.
    pub(crate) counted: &'a Amounts,
    /// For each limit, a running sum: all that the requests of this write take, up to and including
    /// the last acquire or lease of that limit. The balance, with refill and returned tokens, must
    /// cover it. Corrections after that request are never refused, so nothing must cover them.
    pub(crate) must_cover: &'a Amounts,
    /// `None`: a claim without a request. Its other conditions keep it from happening twice.
    pub(crate) id: Option<&'a RequestId>,
    /// Lost writes that may still arrive. This write fences them off: it requires that they did not
    /// happen, and leaves their ids in the item, so that they cannot happen later.
    pub(crate) fenced_off: &'a [RequestId],
    pub(crate) interval: ClaimInterval,
    pub(crate) expires: bool,
}

impl<'a> Debit<'a> {
    /// Only claims.
    pub(crate) fn claim_only(acquire: Acquire<'a>) -> Self {
        Self {
            amounts: Amounts::EMPTY,
            returned: Amounts::EMPTY,
            counted: Amounts::EMPTY,
            must_cover: Amounts::EMPTY,
            id: None,
            fenced_off: &[],
            interval: acquire.interval,
            expires: !acquire.configuration.never_expires(),
        }
    }

    /// A plan that moves no balance yet. It only puts the ids of the debit into the item, which
    /// must not remember them.
    fn plan(&self, path: WritePath) -> WritePlan {
        let ids = || self.fenced_off.iter().chain(self.id).cloned();
        WritePlan {
            path,
            changes: ids().map(Change::Remember).collect(),
            conditions: ids().map(Condition::Unseen).collect(),
        }
    }

    fn limits(&self) -> BTreeSet<&'a LimitName> {
        [self.amounts, self.returned, self.counted].iter().flat_map(|some| some.keys()).collect()
    }

    /// The amounts of a limit that are taken, returned and counted.
    fn of(&self, limit: &LimitName) -> [Millitokens; 3] {
        [self.amounts, self.returned, self.counted].map(|amounts| amounts.of(limit))
    }
}

/// Takes without a claim, if an earlier write claimed within the interval and every balance is
/// enough without the refill since. With [`RefillHint::AssumeClaimed`] the image need not show
/// this: the conditions of the plan require it of the item.
pub(crate) fn take_unclaimed(
    view: &View<'_>,
    debit: &Debit<'_>,
    hint: RefillHint,
) -> Option<WritePlan> {
    let image = view.image;
    let is_assumed = hint == RefillHint::AssumeClaimed;
    let oldest_claim_at = debit.interval.before(view.now);
    if !is_assumed && image.refilled_at < oldest_claim_at {
        return None;
    }
    let since = oldest_claim_at.max(image.refilled_at);
    let mut plan = debit.plan(WritePath::Unclaimed);
    plan.conditions.push(Condition::RefilledSince(since));
    plan.conditions.push(Condition::RulesHash(image.rules_hash.clone()));
    for limit in debit.limits() {
        let [amount, returned, counted] = debit.of(limit);
        let floor = debit.must_cover.of(limit);
        let balance = image.limits.get(limit)?;
        let refill = balance.rule.refill();
        if refill.calendar().is_some() && refill.accrued_between(since, view.now) > 0 {
            // A calendar's boundary must be claimed first. Otherwise tokens taken after the
            // boundary would look like a debt from before it, and might be forgiven.
            return None;
        }
        if amount.max(returned) > Millitokens::ZERO {
            // Take only while the balance has room for the refill that is not claimed yet. Refill
            // above the cap is lost: if the balance is 10 of a burst of 10, and 3 tokens accrued
            // since the claim, these 3 are lost. Taking 3 now would make room, and the next claim
            // would add them after all.
            let refill_since = refill.accrued_between(since, view.now);
            let highest = i128::from(balance.rule.burst().get()) - refill_since;
            let ceiling = clamped_milli(highest - i128::from(returned.get()));
            if floor > Millitokens::ZERO && highest < i128::from(floor.get()) {
                // No balance covers the amount and still leaves room for that refill.
                return None;
            }
            plan.conditions.push(Condition::AtMost(limit.clone(), ceiling));
        }
        if floor > Millitokens::ZERO {
            let floor = floor.get() - returned.get();
            plan.conditions.push(Condition::AtLeast(limit.clone(), floor));
        }
        plan.changes.push(add(limit, returned.get(), amount, counted));
    }
    (is_assumed || plan.holds(Some(image))).then_some(plan)
}

/// Claims the refill of every limit up to now, takes, and brings the item to the configuration.
pub(crate) fn take_with_claim(view: &View<'_>, debit: &Debit<'_>) -> WritePlan {
    let View { image, differences, now } = *view;
    // A clock that is a little behind claims nothing. A refill timestamp far ahead is pulled back:
    // otherwise one bad clock would stop refill for all processes.
    let until = if is_refill_time_ahead(image, now) { now } else { now.max(image.refilled_at) };
    let since = image.refilled_at.min(until);
    let mut plan = debit.plan(WritePath::Claim);
    plan.changes.push(Change::RefilledAt(until));
    plan.conditions.push(Condition::RefilledAt(image.refilled_at));
    plan.conditions.push(Condition::RulesHash(image.rules_hash.clone()));
    let mut after = BTreeMap::new();
    let mut expiry_conditions = Vec::new();
    let mut lowers_amount = false;
    for (limit, balance) in &image.limits {
        if differences.removed.contains(limit) {
            plan.changes.push(Change::Remove(limit.clone()));
            continue;
        }
        let rule = differences.changed.get(limit).copied().unwrap_or(balance.rule);
        let [amount, returned, counted] = debit.of(limit);
        // The refill up to now is claimed under the old rule.
        let gain = Gain { since, until, returned };
        // `Claim::of` may cut a claim, to leave room for the refill of the next interval. Even then
        // the balance must cover `must_cover`. If tokens come back after the takes, `must_cover` is
        // above `amount`, from which these tokens are subtracted.
        let covered = amount.max(debit.must_cover.of(limit));
        let claim_up_to = |cap| Claim::of(limit, balance, cap, covered, gain, debit.interval);
        let old_burst = balance.rule.burst();
        let claim = match (rule.is_rate(), balance.rule.is_rate()) {
            (false, false) => {
                // A changed amount moves the balance, as in `Rule::adopt`.
                let more = i128::from(rule.burst().get()) - i128::from(old_burst.get());
                lowers_amount |= more < 0;
                let claim = claim_up_to(old_burst);
                Claim { tokens: clamped_milli(i128::from(claim.tokens) + more), ..claim }
            }
            (false, true) => Claim::of_former_rate(limit, balance, rule, gain),
            (true, _) => claim_up_to(old_burst.min(rule.burst())),
        };
        let tokens =
            i128::from(balance.tokens.get()) + i128::from(claim.tokens) - i128::from(amount.get());
        let floor = debit.must_cover.of(limit);
        if floor > Millitokens::ZERO {
            // The condition on the refill timestamp is not enough: a write without a claim changes
            // the balance, but not the timestamp.
            let floor = floor.get().saturating_sub(claim.tokens);
            plan.conditions.push(Condition::AtLeast(limit.clone(), floor));
        }
        // A bucket in debt must not expire before the debt is refilled. The plan's expiry is late
        // enough for the debt that the image shows, but other writers may have taken more since. So
        // the plan requires a balance for which its expiry is still late enough. If the balance
        // must cover the amount, there is no debt after the write.
        let leaves_no_debt = floor > Millitokens::ZERO && floor >= amount;
        if !leaves_no_debt && !matches!(claim.condition, Condition::Exactly(..)) {
            let moved = tokens - i128::from(balance.tokens.get());
            let least = clamped_milli(expiry::least_for_expiry(rule, tokens) - moved);
            expiry_conditions.push(Condition::AtLeast(limit.clone(), least));
        }
        plan.conditions.push(claim.condition);
        plan.changes.push(add(limit, claim.tokens, amount, counted));
        if rule != balance.rule {
            plan.changes.push(Change::Rule(limit.clone(), rule));
        }
        after.insert(
            limit,
            LimitBalance { rule, tokens: Millitokens::saturating(tokens), ..*balance },
        );
    }
    for (limit, rule) in &differences.missing {
        let [amount, _, counted] = debit.of(limit);
        let balance = new_balance(*rule, amount, counted);
        plan.conditions.push(Condition::HasNot(limit.clone()));
        plan.changes.push(Change::Seed(limit.clone(), balance));
        after.insert(limit, balance);
    }
    let hash = RulesHash::of(after.iter().map(|(limit, balance)| (*limit, &balance.rule)));
    if image.rules_hash.as_ref() != Some(&hash) {
        plan.changes.push(Change::RulesHash(hash));
    }
    if let Some(versions) = differences.versions {
        // Another writer may have brought the item to newer stored limits without a change of rules
        // or refill time. Only this condition fails then.
        plan.conditions.push(Condition::ConfigStamp(image.config_stamp));
        plan.changes.push(Change::ConfigVersions(versions));
    }
    let expires_at_s = expiry::expiry_s(after.values(), until).filter(|_| debit.expires);
    let moves_expiry = expires_at_s != image.expires_at_s;
    if moves_expiry || lowers_amount {
        // Another writer may have taken more meanwhile, and moved the expiry for it. Then this
        // plan's expiry would be too early.
        plan.conditions.extend(expiry_conditions.into_iter().filter(|_| expires_at_s.is_some()));
    }
    if moves_expiry {
        plan.changes.push(Change::ExpiresAt(expires_at_s));
    }
    plan
}

/// Adds a claim, takes an amount and counts what was consumed.
pub(crate) fn add(
    limit: &LimitName,
    claimed: i64,
    amount: Millitokens,
    counted: Millitokens,
) -> Change {
    Change::Add {
        limit: limit.clone(),
        tokens: clamped_milli(i128::from(claimed) - i128::from(amount.get())),
        consumed: counted.get(),
    }
}

/// Puts a new item: a full bucket less what this write takes. Returned tokens leave it full.
pub(crate) fn new_item(
    bucket: &BucketId,
    (amounts, counted): (&Amounts, &Amounts),
    configuration: &Configuration,
    id: &RequestId,
    now: EpochMillis,
) -> WritePlan {
    let rules = configuration.rules_with_room(amounts);
    let limits: BTreeMap<_, _> = rules
        .iter()
        .map(|(limit, rule)| {
            (limit.clone(), new_balance(*rule, amounts.of(limit), counted.of(limit)))
        })
        .collect();
    let expires_at_s =
        expiry::expiry_s(limits.values(), now).filter(|_| !configuration.never_expires());
    let item = CompositeBucket {
        entity: bucket.entity.clone(),
        resource: bucket.resource.clone(),
        refilled_at: now,
        limits,
        expires_at_s,
        config_stamp: configuration.stamp(),
        rules_hash: Some(RulesHash::of(&rules)),
        request_ids: vec![id.clone()],
    };
    WritePlan {
        path: WritePath::Create,
        changes: vec![Change::Put(Box::new(item))],
        conditions: vec![Condition::Absent],
    }
}

/// The balance of a new item: a full bucket less what its first write takes.
pub(crate) fn new_balance(rule: Rule, taken: Millitokens, consumed: Millitokens) -> LimitBalance {
    let taken = i128::from(taken.get()).max(0);
    let tokens = Millitokens::saturating(i128::from(rule.burst().get()) - taken);
    LimitBalance { rule, tokens, consumed: consumed.into() }
}
