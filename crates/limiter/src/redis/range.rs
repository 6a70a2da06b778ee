//! What a script counts exactly. Lua's numbers are doubles, which hold every integer below 2^53.

use sluicegate_core::{Amounts, LimitName, Millitokens, Rules};

use crate::error::InvalidRequest;

/// The largest balance, burst, capacity and amount: 10^15 millitokens, a trillion tokens. The sum
/// of any four of them is below 2^53.
pub(super) const MILLI_MAX: i64 = 1_000_000_000_000_000;

/// Refill amount times refill period stays below this, so that neither is rounded.
const PRODUCT_END: i128 = 1 << 53;

/// Checks what is asked or corrected.
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
        let refill = rule.refill();
        let product = i128::from(refill.amount().get()) * i128::from(refill.period_ms());
        let milli = |amount: Millitokens| i128::from(amount.get());
        at_most("capacity in millitokens", limit, milli(rule.capacity()), MILLI_MAX.into())?;
        at_most("burst in millitokens", limit, milli(rule.burst()), MILLI_MAX.into())?;
        let what = "refill in millitokens times its period in milliseconds";
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
    use sluicegate_core::{Refill, Rule};

    use super::*;

    fn check(burst: i64, amount: i64, period_ms: i64) -> Result<(), InvalidRequest> {
        let milli = |amount| Millitokens::new(amount).unwrap();
        let rule = Rule::new(milli(burst), Refill::new(milli(amount), period_ms).unwrap()).unwrap();
        check_rules(&[(LimitName::new("rpm").unwrap(), rule)].into())
    }

    #[test]
    fn the_ends_of_the_range_are_told_in_words() {
        const HALF: i64 = 1 << 52;
        assert_eq!(check(MILLI_MAX, HALF - 1, 2), Ok(()));
        assert_eq!(
            check(1, HALF, 2).unwrap_err().to_string(),
            "rpm: refill in millitokens times its period in milliseconds is 9007199254740992: this store counts exactly up to 9007199254740991"
        );
        assert!(check(MILLI_MAX + 1, 1, 1).is_err());
        let asked = |milli| [(LimitName::new("rpm").unwrap(), Millitokens::new(milli).unwrap())];
        assert_eq!(check_amounts(&asked(-MILLI_MAX).into()), Ok(()));
        assert!(check_amounts(&asked(-MILLI_MAX - 1).into()).is_err());
    }
}
