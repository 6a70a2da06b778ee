//! The result of an acquire: tokens that are already taken, to be corrected or given back.

mod correct;
mod correction_log;
mod lazy_grants;

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use sluicegate_core::{
    Amounts, BucketId, EpochMillis, LimitBalance, LimitName, LimitStatus, Millitokens, Wait,
};

use self::correction_log::{CorrectionChange, CorrectionLog};
pub(crate) use self::lazy_grants::LazyGrants;
use crate::check::amount;
use crate::cost::Cost;
use crate::degraded::Degraded;
use crate::error::{AcquireError, AdjustError, InvalidRequest, LimitExceeded};
use crate::guard::Granted;
use crate::limiter::Limiter;
use crate::lock::lock;
use crate::store::{Adjusted, BucketGrant, Grant};

/// The balance of a limit of the request at the grant, and the corrections since.
struct Balance<'p> {
    part: &'p BucketGrant,
    limit: &'p LimitName,
    granted: Millitokens,
    stored: &'p LimitBalance,
    refilled_at: EpochMillis,
    adjusted: i64,
}

impl Balance<'_> {
    const fn burst(&self) -> Millitokens {
        self.stored.rule.burst()
    }

    /// The tokens that are left now.
    fn at(&self, now: EpochMillis) -> Millitokens {
        self.corrected(self.stored.rule.effective(self.stored.tokens, self.refilled_at, now))
    }

    /// The share of the burst that `available` is, from 0 to 1.
    #[expect(clippy::cast_precision_loss, reason = "a share needs no more precision")]
    fn share(&self, available: Millitokens) -> f64 {
        if self.burst() <= Millitokens::ZERO {
            return 0.0;
        }
        (available.get().max(0) as f64 / self.burst().get() as f64).min(1.0)
    }

    /// True if at most `near_share` of the burst was left at the last refill.
    fn was_near(&self, near_share: f64) -> bool {
        self.share(self.corrected(self.stored.tokens.min(self.burst()))) <= near_share
    }

    /// True if at most `near_share` of the burst is left now.
    fn is_near(&self, near_share: f64, now: EpochMillis) -> bool {
        self.share(self.at(now)) <= near_share
    }

    /// The balance after the corrections. They are subtracted from `tokens`, which is capped at the
    /// burst already: refill that the cap has cut off cannot make up for a correction.
    fn corrected(&self, tokens: Millitokens) -> Millitokens {
        let available = i128::from(tokens.get()) - i128::from(self.adjusted);
        Millitokens::saturating(available).min(self.burst())
    }
}

fn balances<'p>(
    parts: &'p [BucketGrant],
    logs: &[CorrectionLog],
) -> impl Iterator<Item = Balance<'p>> {
    let of_part = move |(n, part): (usize, &'p BucketGrant)| {
        let balance = move |(limit, &granted): (&'p LimitName, &'p Millitokens)| {
            let image = part.image.as_ref()?;
            let stored = image.limits.get(limit)?;
            let taken = logs.get(n).map_or(granted, |log| log.taken(limit));
            let adjusted = taken.get() - granted.get();
            let refilled_at = image.refilled_at;
            Some(Balance { part, limit, granted, stored, refilled_at, adjusted })
        };
        part.amounts.iter().filter_map(balance)
    };
    parts.iter().enumerate().flat_map(of_part)
}

/// True if a limit of the request was nearly used up at its last refill. It need not be now.
#[cfg(feature = "leasing")]
pub(crate) fn may_be_near_limit(parts: &[BucketGrant], near_share: f64) -> bool {
    balances(parts, &[]).any(|balance| balance.was_near(near_share))
}

/// Tokens that were taken before the limited work starts.
///
/// Dropping a permit makes no call, and the consumption stays as it is.
pub struct Permit {
    limiter: Limiter,
    correction_deadline: Duration,
    parts: LazyGrants,
    /// One log per part, from the first correction on.
    logs: Mutex<Vec<CorrectionLog>>,
    shadowed: Option<LimitExceeded>,
    degraded: Option<Degraded>,
    cost: Cost,
}

impl Permit {
    /// The permit of the answer to a request; in shadow mode, also of a refusal.
    pub(crate) fn of(
        limiter: &Limiter,
        correction_deadline: Duration,
        answer: Result<Granted, AcquireError>,
    ) -> Result<Self, AcquireError> {
        let of =
            |parts: Vec<BucketGrant>| Self::uncorrected(limiter, correction_deadline, parts.into());
        Ok(match answer {
            Ok(Granted::Normal(Grant { parts, cost })) => {
                #[cfg(feature = "leasing")]
                let parts = match limiter.leased() {
                    Some(leased) => leased.with_held_tokens(parts),
                    None => parts,
                };
                Self { cost, ..of(parts) }
            }
            Ok(Granted::Degraded(reason, parts)) => Self { degraded: Some(reason), ..of(parts) },
            Err(error) => {
                Self { shadowed: Some(limiter.admit_in_shadow(error)?), ..of(Vec::new()) }
            }
        })
    }

    /// A permit that is not corrected yet, and has cost nothing.
    pub(crate) fn uncorrected(
        limiter: &Limiter,
        correction_deadline: Duration,
        parts: LazyGrants,
    ) -> Self {
        Self {
            limiter: limiter.clone(),
            correction_deadline,
            parts,
            logs: Mutex::default(),
            shadowed: None,
            degraded: None,
            cost: Cost::default(),
        }
    }

    /// Adds `by` tokens to the consumption of a limit; a negative amount subtracts. The limit may
    /// be any limit of the bucket. This is never refused: a balance may go below zero, and the next
    /// acquires wait it out. A balance goes no further than 10^15 tokens either way (10^12 on
    /// Redis); the excess is counted and moves no balance. One write unit, and one more for a
    /// parent's bucket.
    ///
    /// For a permit that was granted while the store was unavailable
    /// ([`degraded`](Self::degraded)), this corrects nothing, and [`Adjusted::degraded`] says so.
    ///
    /// # Errors
    /// [`AdjustError`]. After one that [may be repeated](AdjustError::may_be_repeated):
    ///
    /// - The correction counts as not made, although it may have reached one of two buckets.
    /// - Another call sends each bucket the difference. The same amount completes the correction,
    ///   another amount replaces it, and zero cancels it.
    /// - If the answer to a debit was lost, the next call first sends it again under its id, so it
    ///   is done once.
    /// - Once the bucket has forgotten the id ([`guide`](crate::guide#lost-answers)), such a debit
    ///   may be done twice, so that too little is granted, never too much.
    ///
    /// If the future is dropped, the same holds, with two exceptions. Tokens that were being given
    /// back count as given back. If the dropped correction takes of one limit and gives back of
    /// another, the next call sends the debit under a new id, so it may be done twice.
    ///
    /// After [`Ambiguous`](AdjustError::Ambiguous), which occurs only if tokens were to be given
    /// back, the correction counts as made: another call is another correction.
    pub async fn adjust(&self, limit: impl AsRef<str>, by: i64) -> Result<Adjusted, AdjustError> {
        self.adjust_one(limit.as_ref(), i128::from(by) * 1_000).await
    }

    /// As [`adjust`](Self::adjust), in thousandths of a token.
    ///
    /// # Errors
    /// [`AdjustError`].
    pub async fn adjust_milli(
        &self,
        limit: impl AsRef<str>,
        by_milli: i64,
    ) -> Result<Adjusted, AdjustError> {
        self.adjust_one(limit.as_ref(), by_milli.into()).await
    }

    /// As [`adjust`](Self::adjust), for several limits in one write for each bucket.
    /// [`Adjusted::dropped`] names limits that a corrected bucket lacks; the others are corrected.
    ///
    /// # Errors
    /// [`AdjustError`]; [`InvalidRequest::UnknownLimit`] if neither the buckets nor the limits of
    /// the request know any of these limits.
    pub async fn adjust_all(&self, by: &Amounts) -> Result<Adjusted, AdjustError> {
        self.adjust_each(by, |_| by.clone()).await
    }

    async fn adjust_one(&self, limit: &str, milli: i128) -> Result<Adjusted, AdjustError> {
        let by = Amounts::from([amount(limit.into(), milli)?]);
        self.adjust_each(&by, |_| by.clone()).await
    }

    /// Corrects the consumption of several limits to these amounts, in one write for each bucket:
    /// call this when the work is done and its cost is known. Limits that are not named stay as
    /// they are.
    ///
    /// ```
    /// # use sluicegate::{Limit, Limiter, MemoryStore};
    /// # use sluicegate::types::{Amounts, LimitName, Millitokens};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::builder(MemoryStore::new()).build();
    /// let limits = ["tpm=1000/min".parse::<Limit>()?, "usd=200/month".parse()?];
    /// let amounts = |tokens: i64, nanos| -> Result<Amounts, Box<dyn std::error::Error>> {
    ///     let tpm = (LimitName::new("tpm")?, Millitokens::from_tokens(tokens)?);
    ///     Ok(Amounts::from([tpm, (LimitName::new("usd")?, Millitokens::new(nanos)?)]))
    /// };
    /// let estimate = amounts(500, 10_000_000)?;
    /// let permit = limiter.acquire("u", "gpt-4").consume_all(&estimate).limits(limits).await?;
    /// // The work took fewer tokens, but they cost more.
    /// permit.correct_to(&amounts(410, 12_345_678)?).await?;
    /// assert_eq!(permit.remaining()[1].available.get(), 200_000_000_000 - 12_345_678);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`adjust_all`](Self::adjust_all). [`InvalidRequest::NegativeTotal`], also if the
    /// permit was granted while the store was unavailable.
    pub async fn correct_to(&self, amounts: &Amounts) -> Result<Adjusted, AdjustError> {
        if let Some((limit, _)) = amounts.iter().find(|(_, total)| **total < Millitokens::ZERO) {
            return Err(InvalidRequest::NegativeTotal(limit.clone()).into());
        }
        self.adjust_each(amounts, |log| {
            let mut by = amounts.clone();
            by -= &amounts.keys().map(|limit| (limit.clone(), log.consumed(limit))).collect();
            by
        })
        .await
    }

    /// Corrects each bucket by amounts of these limits.
    async fn adjust_each(
        &self,
        limits: &Amounts,
        by: impl Fn(&CorrectionLog) -> Amounts,
    ) -> Result<Adjusted, AdjustError> {
        let knows = |part: &BucketGrant, limit: &LimitName| {
            let image = part.image.as_ref();
            part.configuration.rule(limit).is_some()
                || image.is_some_and(|image| image.limits.contains_key(limit))
        };
        // The parent may lack a limit; the entity's own bucket is asked in any case.
        let by: Vec<_> = self.logs().iter().map(by).collect();
        let of_part = |((n, part), mut mine): ((usize, &BucketGrant), Amounts)| {
            mine.retain(|limit, _| n == 0 || knows(part, limit));
            (!mine.is_empty()).then_some((n, mine))
        };
        let changes: Vec<_> = self.parts.iter().enumerate().zip(by).filter_map(of_part).collect();
        let changes = changes.iter().map(|(n, by)| (*n, CorrectionChange::Adjust(by)));
        let adjusted = self.correct(changes.collect()).await?;
        let is_unknown = |limit: &&LimitName| {
            adjusted.dropped.contains(limit) && !self.parts.iter().any(|part| knows(part, limit))
        };
        let unknown: Vec<_> = limits.keys().filter(is_unknown).collect();
        match unknown.first() {
            None => Ok(adjusted),
            Some(limit) if unknown.len() == limits.len() => {
                Err(InvalidRequest::UnknownLimit((*limit).clone()).into())
            }
            // Other limits were corrected: an error would make the caller correct them again.
            Some(limit) => {
                tracing::warn!(%limit, "a correction names a limit that no bucket has");
                Ok(adjusted)
            }
        }
    }

    /// Gives back everything that was acquired and adjusted: the work did not happen. Does nothing
    /// if the permit was granted while the store was unavailable, as for [`adjust`](Self::adjust).
    ///
    /// # Errors
    /// [`AdjustError`]. Tokens that were not given back stay consumed, so that too little is
    /// granted; a caller that wants to try again uses [`give_back`](Self::give_back).
    pub async fn release(self) -> Result<Adjusted, AdjustError> {
        self.give_back().await
    }

    /// As [`release`](Self::release), for a permit that is shared or may have to try again. Several
    /// callers may call this; the tokens go back once, even if all stop waiting. A later adjustment
    /// consumes tokens again. A debit whose answer was lost is settled first.
    ///
    /// # Errors
    /// [`AdjustError`]. Calling again gives back the rest, bucket by bucket. After
    /// [`Ambiguous`](AdjustError::Ambiguous), nothing is left to give back in that bucket.
    pub async fn give_back(&self) -> Result<Adjusted, AdjustError> {
        // A parent from which nothing was taken has no part in the result.
        let has_nothing_left: Vec<_> =
            self.logs().iter().map(CorrectionLog::has_nothing_left).collect();
        let all = (0..self.parts.len()).filter(|n| !has_nothing_left[*n]);
        self.correct(all.map(|n| (n, CorrectionChange::GiveBack)).collect()).await
    }

    fn logs(&self) -> MutexGuard<'_, Vec<CorrectionLog>> {
        let mut logs = lock(&self.logs);
        if logs.is_empty() {
            logs.extend(self.parts.iter().map(|part| CorrectionLog::new(part.amounts.clone())));
        }
        logs
    }

    /// The status of the request's limits, as of the grant and the adjustments since: the amounts
    /// that were granted, and no wait. With leasing, the balances contain the tokens that this
    /// process holds. Empty if the balances are not known.
    #[must_use]
    pub fn remaining(&self) -> Vec<LimitStatus> {
        let now = self.limiter.clock().now();
        let remaining = |balance: Balance<'_>| LimitStatus {
            entity: balance.part.bucket.entity.clone(),
            limit: balance.limit.clone(),
            rule: balance.stored.rule,
            asked: balance.granted,
            available: balance.at(now),
            wait: Wait::None,
            consumed: balance.stored.consumed.plus(balance.adjusted),
        };
        balances(&self.parts, &lock(&self.logs)).map(remaining).collect()
    }

    /// The limits of the request that are nearly used up, in any bucket.
    pub(crate) fn near_limits(&self) -> Vec<&LimitName> {
        let near_share = self.limiter.options().near_share;
        // Most balances are high enough even without their refill, which costs a clock reading and
        // divisions.
        let is_near = |balance: &Balance<'_>| {
            balance.was_near(near_share) && balance.is_near(near_share, self.limiter.clock().now())
        };
        let logs = lock(&self.logs);
        balances(&self.parts, &logs).filter(is_near).map(|balance| balance.limit).collect()
    }

    /// The buckets of the request: the entity's own first, then its parent's. The parent's is there
    /// also if it has none of the requested limits, so that nothing was taken from it.
    pub fn buckets(&self) -> impl Iterator<Item = &BucketId> {
        self.parts.iter().map(|part| &part.bucket)
    }

    /// True if a limit of the request is nearly used up: see
    /// [`LimiterBuilder::near_share`](crate::LimiterBuilder::near_share).
    #[must_use]
    pub fn is_near_limit(&self) -> bool {
        self.shadowed.is_some() || !self.near_limits().is_empty()
    }

    /// In shadow mode: the refusal that the request would have got. Then nothing was taken, and
    /// adjusting or releasing does nothing.
    #[must_use]
    pub const fn shadowed(&self) -> Option<&LimitExceeded> {
        self.shadowed.as_ref()
    }

    /// The reason for a grant without the store, if it was one: see
    /// [`OnUnavailable`](crate::OnUnavailable). Then adjusting or releasing does nothing, and the
    /// result says so.
    #[must_use]
    pub const fn degraded(&self) -> Option<&Degraded> {
        self.degraded.as_ref()
    }

    /// The tokens that were taken from the buckets of the store or from held tokens.
    #[cfg(feature = "leasing")]
    pub(crate) fn debited(&self) -> &[BucketGrant] {
        if self.degraded.is_some() { &[] } else { &self.parts }
    }

    /// The cost of the acquire.
    #[must_use]
    pub const fn cost(&self) -> Cost {
        self.cost
    }
}

impl std::fmt::Debug for Permit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { parts, logs, shadowed, degraded, .. } = self;
        let buckets: Vec<_> = parts.iter().map(|part| &part.bucket).collect();
        f.debug_struct("Permit")
            .field("buckets", &buckets)
            .field("logs", logs)
            .field("shadowed", shadowed)
            .field("degraded", degraded)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod scripted_store;
#[cfg(test)]
mod tests;
