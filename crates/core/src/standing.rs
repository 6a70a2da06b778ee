//! How the limits of a bucket stand: what is there, and how long until what is asked is there.

use crate::configuration::Differences;
use crate::{
    Amounts, CompositeBucket, Configuration, EpochMillis, LimitName, MillitokenSum, Millitokens,
    Rule, Wait,
};

static NOTHING: Amounts = Amounts::new();

/// How one limit stands to what is asked of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
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
    pub consumed: MillitokenSum,
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

pub(crate) fn full(limit: &LimitName, rule: Rule, asked: Millitokens) -> Standing {
    let wait = if asked > rule.burst() { Wait::ExceedsBurst } else { Wait::None };
    let (limit, available, consumed) = (limit.clone(), rule.burst(), MillitokenSum::default());
    Standing { limit, rule, asked, available, wait, consumed }
}

/// An image as the configuration would have it.
pub(crate) struct View<'a> {
    pub(crate) image: &'a CompositeBucket,
    pub(crate) differences: &'a Differences,
    pub(crate) now: EpochMillis,
}

impl View<'_> {
    /// How a limit stands; `None` when neither the item nor the configuration has it.
    pub(crate) fn standing(
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

/// The balances of a view after what is returned, as far as it fits.
pub(crate) fn returned_to(view: &View<'_>, limit: &LimitName, returned: &Amounts) -> Millitokens {
    let tokens = view.image.limits.get(limit).map_or(0, |bucket| bucket.tokens.get());
    let returned = returned.get(limit).map_or(0, |amount| amount.get());
    Millitokens::saturating(i128::from(tokens) + i128::from(returned))
}
