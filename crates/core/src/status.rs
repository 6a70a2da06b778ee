//! The status of a bucket's limits: the balance, and the wait until the asked amount is there.

use std::fmt;

use crate::configuration::Differences;
use crate::{
    Amounts, BucketId, CompositeBucket, Configuration, Currency, EntityId, EpochMillis, LimitName,
    MillitokenSum, Millitokens, Rule, Wait,
};

/// The status of one limit of one entity, given the asked amount.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LimitStatus {
    /// The entity: with cascade the child or the parent.
    pub entity: EntityId,
    /// Its name.
    pub limit: LimitName,
    /// Its rule.
    pub rule: Rule,
    /// The amount that was asked, in millitokens.
    pub asked: Millitokens,
    /// The balance, in millitokens; negative while a debt stands.
    pub available: Millitokens,
    /// The time until the bucket has the asked amount.
    pub wait: Wait,
    /// Everything consumed since the bucket was made, less what was given back, in millitokens.
    pub consumed: MillitokenSum,
}

impl LimitStatus {
    /// True if the limit cannot give the asked amount now.
    #[must_use]
    pub fn is_violated(&self) -> bool {
        self.wait != Wait::None
    }

    /// Changes the status to that after another request took this amount at `now`, the time of the
    /// status.
    pub fn take(&mut self, amount: Millitokens, now: EpochMillis) {
        let left = i128::from(self.available.get()) - i128::from(amount.get());
        self.available = Millitokens::saturating(left);
        self.wait = self.rule.wait_for(self.asked, self.available, now, now);
    }

    /// True if it is a calendar limit, or one that counts money.
    #[must_use]
    pub fn is_budget(&self) -> bool {
        self.rule.refill().calendar().is_some() || Currency::of(self.limit.as_str()).is_some()
    }

    /// A limit whose bucket is full.
    pub(crate) fn full(
        entity: &EntityId,
        limit: &LimitName,
        rule: Rule,
        asked: Millitokens,
    ) -> Self {
        let wait = if asked > rule.burst() { Wait::ExceedsBurst } else { Wait::None };
        let (entity, limit, available) = (entity.clone(), limit.clone(), rule.burst());
        Self { entity, limit, rule, asked, available, wait, consumed: MillitokenSum::default() }
    }
}

impl fmt::Display for LimitStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { entity, limit, asked, available, .. } = self;
        let (available, asked) = (limit.show(*available), limit.show(*asked));
        write!(f, "{limit} of {entity} has {available} of the {asked} asked for")
    }
}

/// The status of every limit of a bucket, as if its item already followed the configuration. An
/// `image` of `None` stands for a missing item. The asked amount is zero where `amounts` does not
/// name the limit.
#[must_use]
pub fn evaluate(
    bucket: &BucketId,
    image: Option<&CompositeBucket>,
    amounts: &Amounts,
    configuration: &Configuration,
    now: EpochMillis,
) -> Vec<LimitStatus> {
    evaluate_with_returned(bucket, image, (amounts, Amounts::EMPTY), configuration, now)
}

/// The same, as if `returned` had come back before.
pub(crate) fn evaluate_with_returned(
    bucket: &BucketId,
    image: Option<&CompositeBucket>,
    (amounts, returned): (&Amounts, &Amounts),
    configuration: &Configuration,
    now: EpochMillis,
) -> Vec<LimitStatus> {
    let Some(image) = image else {
        let full = |(limit, rule): (&LimitName, &Rule)| {
            LimitStatus::full(&bucket.entity, limit, *rule, amounts.of(limit))
        };
        return configuration.rules().iter().map(full).collect();
    };
    let differences = configuration.compare(image);
    let view = View { image, differences: &differences, now };
    let limits = image.limits.keys().chain(differences.missing.keys());
    limits.filter_map(|limit| view.status(limit, amounts.of(limit), returned)).collect()
}

/// An image as the configuration would have it.
pub(crate) struct View<'a> {
    pub(crate) image: &'a CompositeBucket,
    pub(crate) differences: &'a Differences,
    pub(crate) now: EpochMillis,
}

impl View<'_> {
    /// The status of a limit; `None` when neither the item nor the configuration has it.
    pub(crate) fn status(
        &self,
        limit: &LimitName,
        asked: Millitokens,
        returned: &Amounts,
    ) -> Option<LimitStatus> {
        let entity = &self.image.entity;
        if let Some(rule) = self.differences.missing.get(limit) {
            return Some(LimitStatus::full(entity, limit, *rule, asked));
        }
        let balance = self.image.limits.get(limit)?;
        if self.differences.removed.contains(limit) {
            return None;
        }
        let (refilled_at, now, consumed) = (self.image.refilled_at, self.now, balance.consumed);
        let tokens = with_returned(balance.tokens, returned.of(limit));
        let worth = balance.rule.effective(tokens, refilled_at, now);
        let (rule, available, wait) = match self.differences.changed.get(limit) {
            None => (balance.rule, worth, balance.rule.wait_for(asked, tokens, refilled_at, now)),
            // The refill up to now is claimed at the old rate.
            Some(rule) => {
                let kept = rule.adopt(balance.rule, worth.get().into());
                let available = Millitokens::saturating(kept);
                (*rule, available, rule.wait_for(asked, available, now, now))
            }
        };
        let (entity, limit) = (entity.clone(), limit.clone());
        Some(LimitStatus { entity, limit, rule, asked, available, wait, consumed })
    }
}

/// A balance plus the tokens that come back. The cap is not applied here.
fn with_returned(tokens: Millitokens, returned: Millitokens) -> Millitokens {
    Millitokens::saturating(i128::from(tokens.get()) + i128::from(returned.get()))
}
