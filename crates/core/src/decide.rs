//! What to do with a request for tokens, given what is known of the bucket.
//!
//! The decision is a pure function of the newest image, the request and the time. Whatever it
//! decides is safe on an image that is out of date: every plan carries the conditions under which
//! its arithmetic is right, and a write that fails hands back the image for the next decision.

use std::collections::{BTreeMap, BTreeSet};

use crate::claim::{Claim, Gain, milli};
use crate::configuration::Differences;
use crate::lease::{Settlement, returned_to};
use crate::plan::{Change, Condition, WritePath, WritePlan};
use crate::{
    Amounts, Bucket, BucketId, ClaimInterval, CompositeBucket, Configuration, EpochMillis,
    LimitName, Millitokens, RequestId, Rule, RulesHash, Wait, expiry,
};

/// An `rf` this far ahead of the clock, in milliseconds, is an error of some clock.
const AHEAD_MS: i64 = 60_000;

/// A request for tokens of one bucket.
#[derive(Debug, Clone, Copy)]
pub struct Acquire<'a> {
    /// Which bucket.
    pub bucket: &'a BucketId,
    /// How much, of at most [`LIMITS_MAX`](crate::LIMITS_MAX) limits; every amount is positive.
    pub amounts: &'a Amounts,
    /// What the limits should be.
    pub configuration: &'a Configuration,
    /// The id of the request, the same for all its attempts.
    pub id: &'a RequestId,
    /// How long a claim serves the writers behind it.
    pub interval: ClaimInterval,
    /// What to take for granted.
    pub presume: Presume,
}

/// What a decision takes for granted about writers that it has not seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Presume {
    /// The item is as the image shows it.
    Unchanged,
    /// Somebody claimed within the last interval, although the image does not show it yet: with
    /// many processes on one bucket every image is out of date, and a lock tied to it would make
    /// them lose to one another.
    ClaimedSince,
    /// It is time for this writer to claim, although the last claim still serves: those behind it
    /// then need not wait for one. It does not where that would fill the bucket: writes under way
    /// know ceilings that only the last claim left room for, and all of them would be refused.
    ClaimDue,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Write this, and the request is granted.
    Write(WritePlan),
    /// Write this and decide again: a clock that was ahead has stopped refill, or limits must go
    /// before there is room for others.
    Repair(WritePlan),
    /// The image remembers the request: it was granted.
    Landed,
    /// Say no: at least one of these has a wait.
    Short(Vec<Standing>),
    /// Nobody knows this limit: neither the configuration nor the item.
    Unknown(LimitName),
    /// The item lacks this limit and has no room for another.
    Full(LimitName),
}

/// How one limit stands to what is asked of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// The limit.
    pub limit: LimitName,
    /// Its rule.
    pub rule: Rule,
    /// What is asked.
    pub asked: Millitokens,
    /// What is there; negative while a debt stands.
    pub available: Millitokens,
    /// How long until what is asked is there.
    pub wait: Wait,
    /// Everything consumed less everything returned since the bucket was made.
    pub consumed: Millitokens,
}

/// Whether `rf` is so far ahead of this clock that some clock must be wrong.
#[must_use]
pub fn is_clock_ahead(image: &CompositeBucket, now: EpochMillis) -> bool {
    is_ahead(image.refilled_at, now)
}

pub(crate) fn is_ahead(refilled_at: EpochMillis, now: EpochMillis) -> bool {
    refilled_at.get() > now.get() + AHEAD_MS
}

/// Decides on an acquire from what is known of the item; `None`: there is none.
#[must_use]
pub fn decide(image: Option<&CompositeBucket>, acquire: Acquire<'_>, now: EpochMillis) -> Decision {
    decide_settling(image, acquire, None, now)
}

/// The same, in a write that also settles.
pub(crate) fn decide_settling(
    image: Option<&CompositeBucket>,
    acquire: Acquire<'_>,
    settlement: Option<&Settlement>,
    now: EpochMillis,
) -> Decision {
    let returned = settlement.map_or(&NOTHING, |settlement| &settlement.returned);
    let counted = settlement.map_or(acquire.amounts, |settlement| &settlement.counted);
    let Some(image) = image else { return create(acquire, counted, now) };
    if image.request_ids.contains(acquire.id) {
        return Decision::Landed;
    }
    let mut differences = acquire.configuration.compare(image);
    differences.fit(image, acquire.amounts);
    if differences.is_crowded(image) {
        return make_room(image, acquire, differences, now);
    }
    let view = View { image, differences: &differences, now };
    let mut standings = Vec::with_capacity(acquire.amounts.len());
    for (limit, amount) in acquire.amounts {
        match view.standing(limit, *amount, returned) {
            Some(standing) => standings.push(standing),
            None => return Decision::Unknown(limit.clone()),
        }
    }
    let ahead = is_clock_ahead(image, now);
    if standings.iter().any(|standing| standing.wait != Wait::None) {
        let never = standings.iter().any(|standing| standing.wait == Wait::ExceedsBurst);
        return match ahead && !never {
            true => Decision::Repair(normal(&view, &Take::nothing(acquire))),
            false => Decision::Short(standings),
        };
    }
    let take = Take {
        amounts: acquire.amounts,
        returned,
        counted,
        floors: true,
        id: Some(acquire.id),
        ..Take::nothing(acquire)
    };
    let mut asked = acquire.amounts.keys().filter_map(|limit| image.limits.get(limit));
    let claims_early = acquire.presume == Presume::ClaimDue
        && asked.all(|bucket| leaves_room(bucket, image, acquire.interval, now));
    let may_retry = differences.is_empty() && !ahead && !claims_early;
    let retry = if may_retry { retry(&view, &take, acquire.presume) } else { None };
    Decision::Write(retry.unwrap_or_else(|| normal(&view, &take)))
}

/// Whether a bucket has room for what accrues in an interval, after a claim of all refill up to now.
fn leaves_room(
    bucket: &Bucket,
    image: &CompositeBucket,
    interval: ClaimInterval,
    now: EpochMillis,
) -> bool {
    let refill = bucket.rule.refill();
    let claimed = i128::from(bucket.tokens.get()) + refill.gap(image.refilled_at, now);
    claimed + refill.gap(interval.before(now), now) <= bucket.rule.burst().get().into()
}

/// Removes what the configuration dropped, if anything, so that what is asked may fit.
fn make_room(
    image: &CompositeBucket,
    acquire: Acquire<'_>,
    mut differences: Differences,
    now: EpochMillis,
) -> Decision {
    let missing = std::mem::take(&mut differences.missing);
    match missing.into_keys().next() {
        Some(limit) if differences.removed.is_empty() => Decision::Full(limit),
        _ => {
            let view = View { image, differences: &differences, now };
            Decision::Repair(normal(&view, &Take::nothing(acquire)))
        }
    }
}

/// How every limit of an item stands, the configuration applied; what is asked of each is zero
/// unless `amounts` says otherwise.
#[must_use]
pub fn standings(
    image: Option<&CompositeBucket>,
    amounts: &Amounts,
    configuration: &Configuration,
    now: EpochMillis,
) -> Vec<Standing> {
    standings_after(image, amounts, &NOTHING, configuration, now)
}

/// The same, once some tokens are returned.
pub(crate) fn standings_after(
    image: Option<&CompositeBucket>,
    amounts: &Amounts,
    returned: &Amounts,
    configuration: &Configuration,
    now: EpochMillis,
) -> Vec<Standing> {
    let asked = |limit| amounts.get(limit).copied().unwrap_or(Millitokens::ZERO);
    let Some(image) = image else {
        let rules = configuration.rules();
        return rules.iter().map(|(limit, rule)| full(limit, *rule, asked(limit))).collect();
    };
    let differences = configuration.compare(image);
    let view = View { image, differences: &differences, now };
    let limits = image.limits.keys().chain(differences.missing.keys());
    limits.filter_map(|limit| view.standing(limit, asked(limit), returned)).collect()
}

fn full(limit: &LimitName, rule: Rule, asked: Millitokens) -> Standing {
    let wait = if asked > rule.burst() { Wait::ExceedsBurst } else { Wait::None };
    let (limit, available, consumed) = (limit.clone(), rule.burst(), Millitokens::ZERO);
    Standing { limit, rule, asked, available, wait, consumed }
}

fn create(acquire: Acquire<'_>, counted: &Amounts, now: EpochMillis) -> Decision {
    let rules = acquire.configuration.rules();
    if let Some(limit) = acquire.amounts.keys().find(|limit| !rules.contains_key(*limit)) {
        return Decision::Unknown(limit.clone());
    }
    let standings: Vec<_> =
        acquire.amounts.iter().map(|(limit, asked)| full(limit, rules[limit], *asked)).collect();
    if standings.iter().any(|standing| standing.wait != Wait::None) {
        return Decision::Short(standings);
    }
    let Acquire { bucket, amounts, configuration, id, .. } = acquire;
    Decision::Write(new_item(bucket, (amounts, counted), configuration, id, now))
}

/// Puts a full bucket less what is taken at once; a refund leaves it full.
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
            (limit.clone(), new_bucket(*rule, amount(amounts, limit), amount(counted, limit)))
        })
        .collect();
    let expires_at_s =
        expiry::expiry_s(limits.values(), now).filter(|_| !configuration.is_personal());
    let item = CompositeBucket {
        entity: bucket.entity.clone(),
        resource: bucket.resource.clone(),
        refilled_at: now,
        limits,
        expires_at_s,
        config_epoch: configuration.epoch(),
        rules_hash: Some(RulesHash::of(&rules)),
        request_ids: vec![id.clone()],
    };
    WritePlan {
        path: WritePath::Create,
        changes: vec![Change::Put(Box::new(item))],
        conditions: vec![Condition::Absent],
    }
}

fn amount(amounts: &Amounts, limit: &LimitName) -> Millitokens {
    amounts.get(limit).copied().unwrap_or(Millitokens::ZERO)
}

fn new_bucket(rule: Rule, taken: Millitokens, consumed: Millitokens) -> Bucket {
    let taken = i128::from(taken.get()).max(0);
    let tokens = Millitokens::saturating(i128::from(rule.burst().get()) - taken);
    Bucket { rule, tokens, consumed }
}

/// An image as the configuration would have it.
pub(crate) struct View<'a> {
    pub(crate) image: &'a CompositeBucket,
    pub(crate) differences: &'a Differences,
    pub(crate) now: EpochMillis,
}

impl View<'_> {
    /// How a limit stands; `None` when neither the item nor the configuration has it.
    fn standing(
        &self,
        limit: &LimitName,
        asked: Millitokens,
        returned: &Amounts,
    ) -> Option<Standing> {
        if let Some(rule) = self.differences.missing.get(limit) {
            return Some(full(limit, *rule, asked));
        }
        let bucket = self.image.limits.get(limit)?;
        if self.differences.removed.contains(limit) {
            return None;
        }
        let (refilled_at, now, consumed) = (self.image.refilled_at, self.now, bucket.consumed);
        let tokens = returned_to(self, limit, returned);
        let worth = bucket.rule.effective(tokens, refilled_at, now);
        let Some(rule) = self.differences.changed.get(limit).copied() else {
            let rule = bucket.rule;
            let wait = rule.wait_for(asked, tokens, refilled_at, now);
            let (limit, available) = (limit.clone(), worth);
            return Some(Standing { limit, rule, asked, available, wait, consumed });
        };
        // The refill up to now is claimed at the old rate; what is above the new burst is gone.
        let available = worth.min(rule.burst());
        let wait = rule.wait_for(asked, available, now, now);
        Some(Standing { limit: limit.clone(), rule, asked, available, wait, consumed })
    }
}

/// What a write takes from a bucket, or gives back.
pub(crate) struct Take<'a> {
    pub(crate) amounts: &'a Amounts,
    /// What comes back first, as far as it fits.
    pub(crate) returned: &'a Amounts,
    /// What the counters move by.
    pub(crate) counted: &'a Amounts,
    /// Whether the balances must cover the amounts.
    pub(crate) floors: bool,
    /// `None`: a claim on behalf of nobody, which its lock alone keeps from happening twice.
    pub(crate) id: Option<&'a RequestId>,
    pub(crate) interval: ClaimInterval,
    pub(crate) expires: bool,
}

pub(crate) static NOTHING: Amounts = Amounts::new();

impl<'a> Take<'a> {
    /// Only claims.
    fn nothing(acquire: Acquire<'a>) -> Self {
        Self {
            amounts: &NOTHING,
            returned: &NOTHING,
            counted: &NOTHING,
            floors: false,
            id: None,
            interval: acquire.interval,
            expires: !acquire.configuration.is_personal(),
        }
    }

    /// A plan that happens once under its id, and nothing else yet.
    fn plan(&self, path: WritePath) -> WritePlan {
        WritePlan {
            path,
            changes: self.id.cloned().map(Change::Remember).into_iter().collect(),
            conditions: self.id.cloned().map(Condition::Unseen).into_iter().collect(),
        }
    }

    fn limits(&self) -> BTreeSet<&'a LimitName> {
        [self.amounts, self.returned, self.counted].iter().flat_map(|some| some.keys()).collect()
    }

    /// What is asked of a limit, comes back to it and is counted.
    fn of(&self, limit: &LimitName) -> [Millitokens; 3] {
        [self.amounts, self.returned, self.counted].map(|amounts| amount(amounts, limit))
    }
}

/// Takes without a claim, if somebody claimed within the interval and every balance is enough
/// without what accrued since.
pub(crate) fn retry(view: &View<'_>, take: &Take<'_>, presume: Presume) -> Option<WritePlan> {
    let image = view.image;
    let since = take.interval.before(view.now).max(image.refilled_at);
    let mut plan = take.plan(WritePath::Retry);
    plan.conditions.push(Condition::RefilledSince(since));
    plan.conditions.push(Condition::RulesHash(image.rules_hash.clone()));
    for limit in take.limits() {
        let [amount, returned, counted] = take.of(limit);
        let bucket = image.limits.get(limit)?;
        if amount.max(returned) > Millitokens::ZERO {
            // Full meanwhile: what accrued since the claim would be granted twice, by this write
            // that makes room for it and by the next claim.
            let unclaimed = bucket.rule.refill().gap(since, view.now);
            let room = i128::from(bucket.rule.burst().get()) - unclaimed;
            let ceiling = milli(room - i128::from(returned.get()));
            if take.floors && room < i128::from(amount.get()) {
                // No balance is both enough and low enough.
                return None;
            }
            plan.conditions.push(Condition::AtMost(limit.clone(), ceiling));
        }
        if take.floors && amount > Millitokens::ZERO {
            let floor = amount.get() - returned.get();
            plan.conditions.push(Condition::AtLeast(limit.clone(), floor));
        }
        plan.changes.push(taken(limit, returned.get(), amount, counted));
    }
    (presume == Presume::ClaimedSince || plan.holds(Some(image))).then_some(plan)
}

/// Claims the refill of every limit up to now, takes, and brings the item to the configuration.
pub(crate) fn normal(view: &View<'_>, take: &Take<'_>) -> WritePlan {
    let View { image, differences, now } = *view;
    // A clock that is a little behind claims nothing; an `rf` far ahead is pulled back, or one bad
    // clock would freeze refill for all.
    let until = if is_clock_ahead(image, now) { now } else { now.max(image.refilled_at) };
    let since = image.refilled_at.min(until);
    let mut plan = take.plan(WritePath::Normal);
    plan.changes.push(Change::RefilledAt(until));
    plan.conditions.push(Condition::RefilledAt(image.refilled_at));
    plan.conditions.push(Condition::RulesHash(image.rules_hash.clone()));
    let mut after = BTreeMap::new();
    for (limit, bucket) in &image.limits {
        if differences.removed.contains(limit) {
            plan.changes.push(Change::Remove(limit.clone()));
            continue;
        }
        let rule = differences.changed.get(limit).copied().unwrap_or(bucket.rule);
        let [amount, returned, counted] = take.of(limit);
        let cap = bucket.rule.burst().min(rule.burst());
        let gain = Gain { since, until, returned };
        let claim = Claim::of(limit, bucket, cap, amount, gain, take.interval);
        if take.floors && amount > Millitokens::ZERO {
            // The lock is not enough: Retry and Adjust change the balance and leave the timestamp.
            let floor = amount.get().saturating_sub(claim.tokens);
            plan.conditions.push(Condition::AtLeast(limit.clone(), floor));
        }
        plan.conditions.push(claim.condition);
        plan.changes.push(taken(limit, claim.tokens, amount, counted));
        if rule != bucket.rule {
            plan.changes.push(Change::Rule(limit.clone(), rule));
        }
        let tokens =
            i128::from(bucket.tokens.get()) + i128::from(claim.tokens) - i128::from(amount.get());
        after.insert(limit, Bucket { rule, tokens: Millitokens::saturating(tokens), ..*bucket });
    }
    for (limit, rule) in &differences.missing {
        let [amount, _, counted] = take.of(limit);
        let bucket = new_bucket(*rule, amount, counted);
        plan.conditions.push(Condition::HasNot(limit.clone()));
        plan.changes.push(Change::Seed(limit.clone(), bucket));
        after.insert(limit, bucket);
    }
    let hash = RulesHash::of(after.iter().map(|(limit, bucket)| (*limit, &bucket.rule)));
    if image.rules_hash.as_ref() != Some(&hash) {
        plan.changes.push(Change::RulesHash(hash));
    }
    plan.changes.extend(differences.epoch.map(Change::ConfigEpoch));
    let expires_at_s = expiry::expiry_s(after.values(), until).filter(|_| take.expires);
    if expires_at_s != image.expires_at_s {
        plan.changes.push(Change::ExpiresAt(expires_at_s));
    }
    plan
}

/// Adds a claim, takes an amount and counts what was consumed.
pub(crate) fn taken(
    limit: &LimitName,
    claimed: i64,
    amount: Millitokens,
    counted: Millitokens,
) -> Change {
    Change::Add {
        limit: limit.clone(),
        tokens: milli(i128::from(claimed) - i128::from(amount.get())),
        consumed: counted.get(),
    }
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
