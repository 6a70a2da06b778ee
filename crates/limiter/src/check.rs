//! Limits and amounts as a caller names them, checked once and turned into valid types.

use sluicegate_core::{Amounts, LIMITS_MAX, LimitName, Millitokens, Rules};
use smol_str::SmolStr;

use crate::error::InvalidRequest;
use crate::limit::Limit;

/// Limits as rules, each named once.
pub(crate) fn rules(limits: &[Limit]) -> Result<Rules, InvalidRequest> {
    if limits.len() > LIMITS_MAX {
        return Err(InvalidRequest::TooManyLimits { count: limits.len(), max: LIMITS_MAX });
    }
    let mut rules = Rules::new();
    for limit in limits {
        let (name, rule) = limit.check()?;
        if rules.insert(name.clone(), rule).is_some() {
            return Err(InvalidRequest::DuplicateLimit(name));
        }
    }
    Ok(rules)
}

/// The amount requested of each limit, each named once; `is_allowed` says which amounts are valid.
pub(crate) fn checked_amounts(
    asked: &[(SmolStr, i128)],
    is_allowed: fn(Millitokens) -> bool,
) -> Result<Amounts, InvalidRequest> {
    let mut amounts = Amounts::new();
    for (limit, milli) in asked {
        let (limit, amount) = amount(limit.clone(), *milli)?;
        if !is_allowed(amount) {
            return Err(InvalidRequest::Amount { limit, milli: *milli });
        }
        if amounts.insert(limit.clone(), amount).is_some() {
            return Err(InvalidRequest::DuplicateLimit(limit));
        }
    }
    Ok(amounts)
}

/// A limit's name and an amount of it, each within its range.
pub(crate) fn amount(
    limit: SmolStr,
    milli: i128,
) -> Result<(LimitName, Millitokens), InvalidRequest> {
    let limit = LimitName::try_from(limit).map_err(InvalidRequest::LimitName)?;
    let amount = i64::try_from(milli).ok().and_then(|milli| Millitokens::new(milli).ok());
    let Some(amount) = amount else { return Err(InvalidRequest::Amount { limit, milli }) };
    Ok((limit, amount))
}
