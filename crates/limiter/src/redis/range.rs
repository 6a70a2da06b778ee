//! The range in which a script counts exactly. Lua's numbers are doubles, which hold every integer
//! below 2^53.

use sluicegate_core::{Amounts, LimitName, Millitokens, Refill, Rules};

use crate::error::InvalidRequest;

/// The largest balance, burst, capacity and amount: 10^15 millitokens, a trillion tokens, or a million
/// units of a currency. The sum
/// of any four of them is below 2^53.
pub(super) const MILLI_MAX: i64 = 1_000_000_000_000_000;

/// The amount times the period of a rate in lowest terms stays below this, so that neither is
/// rounded.
const PRODUCT_END: i128 = 1 << 53;

/// Millitokens and milliseconds of a rate in lowest terms. The refill is the same: a million tokens
/// a day are 625 millitokens every 54 ms.
pub(super) fn in_lowest_terms(refill: Refill) -> (i64, i64) {
    let (amount, period_ms) = (refill.amount().get(), refill.period_ms());
    let (mut divisor, mut rest) = (period_ms, amount);
    while rest != 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    (amount / divisor, period_ms / divisor)
}

/// Checks requested or corrected amounts.
pub(super) fn check_amounts(amounts: &Amounts) -> Result<(), InvalidRequest> {
    amounts.iter().try_for_each(|(limit, amount)| {
        at_most(
            "amount in millitokens",
            limit,
            amount.get().unsigned_abs().into(),
            MILLI_MAX.into(),
        )
    })
}

/// Checks limits.
pub(super) fn check_rules(rules: &Rules) -> Result<(), InvalidRequest> {
    for (limit, rule) in rules {
        let (amount, period_ms) = in_lowest_terms(rule.refill());
        let product = i128::from(amount) * i128::from(period_ms);
        let milli = |amount: Millitokens| i128::from(amount.get());
        at_most("capacity in millitokens", limit, milli(rule.capacity()), MILLI_MAX.into())?;
        at_most("burst in millitokens", limit, milli(rule.burst()), MILLI_MAX.into())?;
        if rule.refill().calendar().is_some() {
            continue;
        }
        let what = "the rate in lowest terms, millitokens times milliseconds,";
        at_most(what, limit, product, PRODUCT_END - 1)?;
    }
    Ok(())
}

fn at_most(
    what: &'static str,
    limit: &LimitName,
    value: i128,
    max: i128,
) -> Result<(), InvalidRequest> {
    if value <= max {
        return Ok(());
    }
    Err(InvalidRequest::BeyondStore { limit: limit.clone(), what, value, max })
}

#[cfg(test)]
mod tests {
    use sluicegate_core::Rule;

    use super::*;

    fn check(burst: i64, amount: i64, period_ms: i64) -> Result<(), InvalidRequest> {
        let milli = |amount| Millitokens::new(amount).unwrap();
        let rule = Rule::new(milli(burst), Refill::new(milli(amount), period_ms).unwrap()).unwrap();
        check_rules(&[(LimitName::new("rpm").unwrap(), rule)].into())
    }

    #[test]
    fn the_ends_of_the_range_are_told_in_words() {
        const HALF: i64 = (1 << 52) - 1;
        assert_eq!(check(MILLI_MAX, HALF, 2), Ok(()));
        assert_eq!(
            check(1, HALF + 2, 2).unwrap_err().to_string(),
            "rpm: the rate in lowest terms, millitokens times milliseconds, is 9007199254740994: this store counts exactly up to 9007199254740991"
        );
        assert!(check(MILLI_MAX + 1, 1, 1).is_err());
        let asked = |milli| [(LimitName::new("rpm").unwrap(), Millitokens::new(milli).unwrap())];
        assert_eq!(check_amounts(&asked(-MILLI_MAX).into()), Ok(()));
        assert!(check_amounts(&asked(-MILLI_MAX - 1).into()).is_err());
    }

    #[test]
    fn a_rate_counts_in_lowest_terms() {
        let terms = |amount, period_ms| {
            in_lowest_terms(Refill::new(Millitokens::new(amount).unwrap(), period_ms).unwrap())
        };
        assert_eq!(terms(1_000_000_000, 86_400_000), (625, 54));
        assert_eq!(terms(0, 1_000), (0, 1));
        assert_eq!(terms(7, 3), (7, 3));
        // A billion tokens a day.
        assert_eq!(check(1, 1_000_000_000_000, 86_400_000), Ok(()));
    }
}
