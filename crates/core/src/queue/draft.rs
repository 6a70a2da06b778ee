//! The write that is being put together: the demand of its requests on each bucket.

use std::sync::Arc;

use super::bucket::QueueBucket;
use super::settings::QueueSettings;
use crate::correction::{add_only, stays_in_range};
use crate::debit::{Debit, new_item, take_unclaimed, take_with_claim};
use crate::decide::take_from;
use crate::status::View;
use crate::{
    Acquire, Amounts, Change, CompositeBucket, Configuration, EpochMillis, LimitName, Millitokens,
    RefillHint, RequestId, WritePlan,
};

/// The demand of a write on one bucket: the sums over its requests, in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct BucketDraft {
    /// For each limit, the tokens that the balance must cover before anything is taken
    /// ([`Debit::must_cover`]). The refill and the returned tokens of this write count as part of
    /// the balance.
    pub(super) must_cover: Amounts,
    taken: Amounts,
    /// Tokens that come back before anything is taken. A write that takes adds them as far as they
    /// fit; any other write adds them whole, and what is above the burst is worth nothing.
    pub(super) returned: Amounts,
    /// Tokens that come back after an earlier request of this write took of the same limit. They
    /// are added without a cap. No further request that takes of that limit goes into this write:
    /// the balance may be above the cap.
    added_uncapped: Amounts,
    /// The amounts that the counters move by.
    counted: Amounts,
    /// The configuration of the first acquire or lease; without an item, also that of a correction.
    pub(super) configuration: Option<Arc<Configuration>>,
}

/// The requests of a write that is being put together.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Draft {
    pub(super) buckets: Vec<BucketDraft>,
    /// True if an acquire or a lease takes tokens.
    pub(super) acquires: bool,
    /// True if it has a correction, a return for a leaver, or a lease that only settles.
    pub(super) corrects: bool,
    /// True if a correction takes more tokens.
    pub(super) corrects_upwards: bool,
    /// True if a forced correction takes tokens: the write has no conditions on the balance but its
    /// range. The price: the next claim may undo such a debit. (A comment in `take_unclaimed`,
    /// `debit.rs`, has an example in numbers.)
    pub(super) is_forced: bool,
}

impl Draft {
    /// True if the write gives tokens back. If such a write took effect twice, too much would be
    /// admitted.
    pub(super) fn returns_tokens(&self) -> bool {
        let returns = |drafted: &BucketDraft| {
            !drafted.returned.is_empty() || !drafted.added_uncapped.is_empty()
        };
        self.buckets.iter().any(returns)
    }
}

impl BucketDraft {
    /// The sums that the balances must cover if this request is granted after the requests of the
    /// draft; `None`: it cannot go in this write.
    pub(super) fn must_cover_with(&self, amounts: &Amounts) -> Option<Amounts> {
        let must_cover = |(limit, more): (&LimitName, &Millitokens)| {
            let may_take_more = !self.added_uncapped.contains_key(limit);
            let must_cover = sum(&self.taken, limit, *more).filter(|_| may_take_more)?;
            Some((limit.clone(), must_cover))
        };
        amounts.iter().map(must_cover).collect()
    }

    /// Adds a request that is granted.
    pub(super) fn grant(&mut self, amounts: &Amounts, must_cover: Amounts) {
        self.must_cover.extend(must_cover);
        self.taken += amounts;
        self.counted += amounts;
    }

    /// Adds a correction; false: it cannot go in the same write.
    pub(super) fn correct(&mut self, amounts: &Amounts) -> bool {
        let fits = |(limit, more): (&LimitName, &Millitokens)| match *more < Millitokens::ZERO {
            true => {
                let back = negative(*more);
                sum(&self.returned, limit, back).is_some()
                    && sum(&self.added_uncapped, limit, back).is_some()
            }
            false => {
                !self.added_uncapped.contains_key(limit) && sum(&self.taken, limit, *more).is_some()
            }
        };
        let fits = amounts.iter().all(fits);
        for (limit, more) in amounts.iter().filter(|_| fits) {
            match *more < Millitokens::ZERO {
                true if self.taken.contains_key(limit) => {
                    self.added_uncapped.add(limit, negative(*more));
                }
                true => self.returned.add(limit, negative(*more)),
                false => self.taken.add(limit, *more),
            }
            self.counted.add(limit, *more);
        }
        fits
    }

    /// Adds a lease to a draft that takes nothing yet.
    pub(super) fn lease(&mut self, leased: &Amounts, returned: &Amounts, counted: &Amounts) {
        self.must_cover.extend(leased.clone());
        self.taken += leased;
        self.returned += returned;
        self.counted += counted;
    }

    /// The plan that carries out this bucket's part of `draft`, under this id. It fences off the
    /// lost writes that may still arrive.
    pub(super) fn plan(
        &self,
        bucket: &QueueBucket,
        draft: &Draft,
        (id, fenced_off): (&RequestId, &[RequestId]),
        (settings, hint): (QueueSettings, RefillHint),
        now: EpochMillis,
    ) -> WritePlan {
        let none = Configuration::default();
        let configuration = self.configuration.as_deref().unwrap_or(&none);
        let Some(image) = bucket.image() else {
            let debited = less(self.taken.clone(), &self.added_uncapped);
            let amounts = (&debited, &self.counted);
            let mut plan = new_item(&bucket.id, amounts, configuration, id, now);
            if let [Change::Put(item)] = plan.changes.as_mut_slice() {
                item.request_ids.extend_from_slice(fenced_off);
            }
            return plan;
        };
        if draft.is_forced || !draft.acquires && !draft.corrects_upwards {
            let moved = less(less(self.taken.clone(), &self.returned), &self.added_uncapped);
            return add_only((&within_range(image, moved), &self.counted), id, fenced_off);
        }
        let debited = less(self.taken.clone(), &self.added_uncapped);
        // A write that only acquires and leases takes what the balance covers, so it keeps the
        // balance in its range. `within_range` would cut it too much: it counts neither the refill
        // that this write may claim, nor the returned tokens.
        let debited = if draft.corrects { within_range(image, debited) } else { debited };
        let expires = match draft.acquires {
            true => !configuration.never_expires(),
            false => image.expires_at_s.is_some(),
        };
        let debit = Debit {
            amounts: &debited,
            returned: &self.returned,
            counted: &self.counted,
            must_cover: &self.must_cover,
            id: Some(id),
            fenced_off,
            interval: settings.interval,
            expires,
        };
        let mut plan = if draft.acquires {
            let (amounts, interval) = (&self.must_cover, settings.interval);
            let acquire =
                Acquire { bucket: &bucket.id, amounts, configuration, id, interval, hint };
            take_from(image, acquire, &debit, now)
        } else {
            let unchanged = Default::default();
            let view = View { image, differences: &unchanged, now };
            take_unclaimed(&view, &debit, hint).unwrap_or_else(|| take_with_claim(&view, &debit))
        };
        if draft.corrects {
            // By how much the balances move if all returned tokens fit.
            let moved = within_range(image, less(debited, &self.returned));
            plan.conditions.extend(moved.iter().map(|(limit, by)| stays_in_range(limit, *by)));
        }
        plan
    }
}

/// The part of the amounts by which the balances can move within the range of [`Millitokens`]. The
/// counters move by the whole amounts.
fn within_range(image: &CompositeBucket, amounts: Amounts) -> Amounts {
    let fit = |(limit, amount): (LimitName, Millitokens)| {
        let tokens = image.limits.get(&limit).map_or(0, |balance| i128::from(balance.tokens.get()));
        let after = Millitokens::saturating(tokens - i128::from(amount.get()));
        (limit, Millitokens::saturating(tokens - i128::from(after.get())))
    };
    amounts.into_iter().map(fit).collect()
}

/// The first amounts less the second.
pub(super) fn less(mut amounts: Amounts, others: &Amounts) -> Amounts {
    amounts -= others;
    amounts
}

fn sum(amounts: &Amounts, limit: &LimitName, more: Millitokens) -> Option<Millitokens> {
    Millitokens::new(amounts.of(limit).get().checked_add(more.get())?).ok()
}

fn negative(amount: Millitokens) -> Millitokens {
    Millitokens::saturating(-i128::from(amount.get()))
}
