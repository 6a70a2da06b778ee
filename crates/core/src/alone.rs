//! Taking in place from an image that no other process writes. The result is that of
//! [`decide`](crate::decide) and its plan.

use crate::{Amounts, CompositeBucket, EpochMillis, Millitokens, is_refill_time_ahead};

impl CompositeBucket {
    /// Claims the refill of every limit up to `now` and takes. The configuration must be the one
    /// that the image follows already.
    ///
    /// False, and nothing is taken, where a limit is missing or short, or a clock is wrong: then
    /// [`decide`](crate::decide) says what to do. The refill may be claimed by then.
    #[must_use]
    pub fn take_alone(&mut self, amounts: &Amounts, now: EpochMillis) -> bool {
        if is_refill_time_ahead(self, now) {
            return false;
        }
        let since = self.refilled_at;
        for balance in self.limits.values_mut() {
            balance.tokens = balance.rule.effective(balance.tokens, since, now);
        }
        self.refilled_at = now.max(since);
        let is_enough = |(limit, amount): (&_, &_)| {
            self.limits.get(limit).is_some_and(|balance| balance.tokens >= *amount)
        };
        if !amounts.iter().all(is_enough) {
            return false;
        }
        for (limit, amount) in amounts {
            if let Some(balance) = self.limits.get_mut(limit) {
                let tokens = i128::from(balance.tokens.get()) - i128::from(amount.get());
                balance.tokens = Millitokens::saturating(tokens);
                balance.consumed = balance.consumed.plus(amount.get());
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fixtures::{self, at, milli};
    use crate::{
        Acquire, ClaimInterval, Configuration, Decision, EntityId, LimitBalance, LimitName,
        MillitokenSum, RefillHint, RequestId, Resource, Rule, Rules, RulesHash, decide,
    };

    const T0: i64 = 1_769_608_800_000;

    fn rule() -> impl Strategy<Value = Rule> {
        // A midnight in Guam is at T0 and a day before.
        let debts = ["day/Pacific/Guam", "day/Pacific/Guam,debt=forgiven", "week"];
        let calendar = (1..1_000_i64, prop::sample::select(debts.to_vec()));
        let calendar = calendar.prop_map(|(amount, at)| fixtures::by_calendar(amount, at));
        let even = (1..1_000_i64, 0..1_000_i64, 1..100_000_i64)
            .prop_map(|(burst, amount, period_ms)| fixtures::rule(burst, amount, period_ms));
        prop_oneof![even, calendar]
    }

    fn image(limits: Vec<(Rule, i64)>) -> CompositeBucket {
        let name = |n| LimitName::new(format!("l{n}")).unwrap();
        let limits: Vec<_> = (0..).map(name).zip(limits).collect();
        let rules: Rules = limits.iter().map(|(limit, (rule, _))| (limit.clone(), *rule)).collect();
        let balance =
            |rule, tokens| LimitBalance { rule, tokens: milli(tokens), consumed: milli(7).into() };
        CompositeBucket {
            entity: EntityId::new("u").unwrap(),
            resource: Resource::new("r").unwrap(),
            refilled_at: at(T0 - 30_000),
            limits: limits.into_iter().map(|(name, (rule, t))| (name, balance(rule, t))).collect(),
            expires_at_s: None,
            config_stamp: crate::ConfigStamp::None,
            rules_hash: Some(RulesHash::of(&rules)),
            request_ids: Vec::new(),
        }
    }

    /// The balance and the consumption of every limit.
    fn worth(image: &CompositeBucket, now: EpochMillis) -> Vec<(Millitokens, MillitokenSum)> {
        let of = |balance: &LimitBalance| {
            (balance.rule.effective(balance.tokens, image.refilled_at, now), balance.consumed)
        };
        image.limits.values().map(of).collect()
    }

    proptest! {
        #[test]
        fn it_comes_to_what_a_decision_does(
            limits in prop::collection::vec((rule(), -500..1_500_i64), 1..4),
            asks in prop::collection::btree_map(0..4_usize, 1..1_200_i64, 1..3),
            later in prop_oneof![-120_000..120_000_i64, Just(0), 0..1_000_i64],
        ) {
            let before = image(limits);
            let now = at(T0 + later);
            let amounts: Amounts = asks
                .into_iter()
                .map(|(n, amount)| (LimitName::new(format!("l{n}")).unwrap(), milli(amount)))
                .collect();
            let mut after = before.clone();
            let is_taken = after.take_alone(&amounts, now);

            let rules = before.limits.iter().map(|(limit, balance)| (limit.clone(), balance.rule));
            let acquire = Acquire {
                bucket: &before.id(),
                amounts: &amounts,
                configuration: &Configuration::explicit(rules.collect::<Rules>()),
                id: &RequestId::from_bits(1),
                interval: ClaimInterval(0),
                hint: RefillHint::TrustImage,
            };
            match decide(Some(&before), acquire, now) {
                Decision::Write(plan) if is_taken => {
                    let planned = plan.apply(Some(&before)).unwrap();
                    prop_assert_eq!(worth(&after, now), worth(&planned, now));
                }
                Decision::Write(_) => prop_assert!(is_refill_time_ahead(&before, now)),
                other => {
                    prop_assert!(!is_taken, "{:?}", other);
                    prop_assert_eq!(worth(&after, now), worth(&before, now));
                }
            }
        }
    }
}
