//! The layout of a bucket's value, and of the rules in a script's arguments.
//!
//! | bytes | |
//! |---|---|
//! | 48 | the ids of the last four requests that wrote, newest first, 12 bytes each; blanks for none |
//! | 8 | when refill was last counted, for all limits |
//! | 24 for each limit | the balance then, negative for a debt; the consumption, low and high part |
//! | any | the amounts of remembered leases: `id limit amount limit amount;` of each |
//! | the rest | the rules |
//!
//! The rules:
//!
//! | bytes | |
//! |---|---|
//! | 24 for each limit | the burst; the refill amount and the refill period, in lowest terms |
//! | any, for each limit | the name and a zero byte; the capacity (8); the divisor of the lowest terms (8), or zero and the calendar and a zero byte |
//! | 1 | the number of limits |
//! | 2 | the length of the rules, with these last four bytes |
//! | 1 | the version of this layout |
//!
//! A calendar limit has no refill amount, and as its period the longest of its calendar, negative.
//! Every number is an integer, stored as a little-endian double: the scripts read it without a
//! conversion. A script compares the rules in its arguments with those of the bucket as bytes.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use sluicegate_core::{
    BucketId, CompositeBucket, ConfigStamp, EpochMillis, LimitBalance, LimitName, MillitokenSum,
    Millitokens, Refill, RequestId, Rule, Rules,
};

use super::range::in_lowest_terms;

/// Bytes of an id. Ids of this crate have ten characters; `redis-benchmark` generates twelve.
const ID_BYTES: usize = 12;
const VERSION: u8 = 1;
const IDS_BYTES: usize = RequestId::REMEMBERED * ID_BYTES;
const TRIPLE_BYTES: usize = 24;
const END_BYTES: usize = 4;
/// The unit of the high part of a counter.
const PART: i128 = 1_000_000_000_000_000;
/// Replaces the burst of a limit that the caller has no rule for.
const NO_RULE: i64 = -1;
/// The longest time that a bucket is kept, in seconds.
const KEPT_MAX_S: i128 = 100_000_000_000;

/// An id in the form of the scripts. One that this crate did not make is hashed to the same width.
pub(super) fn id_text(id: &RequestId) -> String {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let text = id.as_str();
    if text.len() == 10 && text.bytes().all(is_letter) {
        let mut padded = String::with_capacity(ID_BYTES);
        padded.push_str(text);
        padded.push_str("..");
        return padded;
    }
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    id_text(&RequestId::from_bits(hasher.finish()))
}

/// Appends a number, whose range was checked.
pub(super) fn push(bytes: &mut Vec<u8>, number: i64) {
    bytes.extend_from_slice(&(number as f64).to_le_bytes());
}

/// Appends the rules of these limits.
pub(super) fn push_rules<'a>(
    bytes: &mut Vec<u8>,
    limits: impl Iterator<Item = (&'a LimitName, Option<Rule>)> + Clone,
) {
    let start = bytes.len();
    let mut count = 0_u8;
    for (_, rule) in limits.clone() {
        let (amount, period_ms) = rule.map_or((0, 1), |rule| rate(rule.refill()));
        push(bytes, rule.map_or(NO_RULE, |rule| rule.burst().get()));
        push(bytes, amount);
        push(bytes, period_ms);
        count = count.saturating_add(1);
    }
    for (limit, rule) in limits {
        bytes.extend_from_slice(limit.as_str().as_bytes());
        bytes.push(0);
        push(bytes, rule.map_or(0, |rule| rule.capacity().get()));
        match rule.map(Rule::refill) {
            None => push(bytes, 1),
            Some(refill) => match refill.calendar() {
                None => push(bytes, refill.period_ms() / in_lowest_terms(refill).1),
                Some(calendar) => {
                    push(bytes, 0);
                    bytes.extend_from_slice(calendar.to_string().as_bytes());
                    bytes.push(0);
                }
            },
        }
    }
    let length = u16::try_from(bytes.len() - start + END_BYTES).unwrap_or(u16::MAX);
    bytes.push(count);
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.push(VERSION);
}

/// The refill amount and the refill period as a script has them.
fn rate(refill: Refill) -> (i64, i64) {
    match refill.calendar() {
        None => in_lowest_terms(refill),
        Some(at) => (0, -at.calendar.longest_ms()),
    }
}

/// The seconds that a bucket of these limits is kept while it has no debt: twice the time that the
/// slowest needs to fill. `None`: one never fills.
pub(super) fn kept_s(rules: &Rules) -> Option<i128> {
    let mut longest = 0;
    for rule in rules.values() {
        let (amount, period_ms) = in_lowest_terms(rule.refill());
        let most = i128::from(rule.capacity().max(rule.burst()).get()) * i128::from(period_ms);
        let a_second = i128::from(amount) * 1_000;
        if a_second == 0 {
            return None;
        }
        longest = longest.max(most.div_euclid(a_second) + i128::from(most % a_second != 0));
    }
    Some((2 * longest).clamp(1, KEPT_MAX_S))
}

/// The time up to which the bucket in a value has counted its refill.
pub(super) fn refilled_at(value: &[u8]) -> Option<EpochMillis> {
    EpochMillis::new(number(&mut value.get(IDS_BYTES..)?)?).ok()
}

/// The bucket in a value; `None`: the value is not a bucket.
pub(super) fn bucket(id: &BucketId, value: &[u8]) -> Option<CompositeBucket> {
    let (_, &[count, low, high, VERSION]) = value.split_last_chunk::<END_BYTES>()? else {
        return None;
    };
    let (count, length) = (usize::from(count), usize::from(u16::from_le_bytes([low, high])));
    let rules = value.get(value.len().checked_sub(length)?..)?;
    let (ids, mut numbers) = value.split_at_checked(IDS_BYTES)?;
    let (mut triples, mut names) = rules.split_at_checked(count * TRIPLE_BYTES)?;
    let refilled_at = EpochMillis::new(number(&mut numbers)?).ok()?;
    let mut limits = BTreeMap::new();
    for _ in 0..count {
        let tokens = milli(&mut numbers)?;
        let (low, high) = (number(&mut numbers)?, number(&mut numbers)?);
        let consumed = MillitokenSum::new(i128::from(high) * PART + i128::from(low)).ok()?;
        let (burst, amount, period_ms) =
            (milli(&mut triples)?, number(&mut triples)?, number(&mut triples)?);
        let end = names.iter().position(|byte| *byte == 0)?;
        let limit = LimitName::new(std::str::from_utf8(&names[..end]).ok()?).ok()?;
        names = &names[end + 1..];
        let (capacity, divisor) = (milli(&mut names)?, number(&mut names)?);
        let refill = if divisor == 0 {
            let end = names.iter().position(|byte| *byte == 0)?;
            let calendar = std::str::from_utf8(&names[..end]).ok()?.parse().ok()?;
            names = &names[end + 1..];
            Refill::by_calendar(burst, calendar).ok()?
        } else {
            let amount = Millitokens::new(amount.checked_mul(divisor)?).ok()?;
            Refill::new(amount, period_ms.checked_mul(divisor)?).ok()?
        };
        let rule = Rule::with_burst(capacity, burst, refill).ok()?;
        limits.insert(limit, LimitBalance { rule, tokens, consumed });
    }
    let ends_id = |byte: &u8| matches!(byte, b'.' | b' ');
    let ids = ids.chunks(ID_BYTES).filter_map(|id| id.split(ends_id).next());
    let ids = ids.filter_map(|id| std::str::from_utf8(id).ok()).filter(|id| !id.is_empty());
    Some(CompositeBucket {
        entity: id.entity.clone(),
        resource: id.resource.clone(),
        refilled_at,
        limits,
        expires_at_s: None,
        config_stamp: ConfigStamp::None,
        rules_hash: None,
        request_ids: ids.map(RequestId::stored).collect(),
    })
}

/// The next number; `None`: there is none, or it is not an integer.
#[expect(clippy::cast_possible_truncation, reason = "a whole number below 2^53")]
fn number(bytes: &mut &[u8]) -> Option<i64> {
    const MOST: f64 = (1_u64 << 53) as f64;
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    let number = f64::from_le_bytes(*first);
    (number.fract() == 0.0 && number.abs() <= MOST).then_some(number as i64)
}

fn milli(bytes: &mut &[u8]) -> Option<Millitokens> {
    Millitokens::new(number(bytes)?).ok()
}

#[cfg(test)]
mod tests {
    use sluicegate_core::{EntityId, Resource};

    use super::*;

    fn rules() -> Rules {
        let milli = |amount| Millitokens::new(amount).unwrap();
        let rule = |capacity, burst, (amount, period_ms)| {
            let refill = Refill::new(milli(amount), period_ms).unwrap();
            Rule::with_burst(milli(capacity), milli(burst), refill).unwrap()
        };
        let a_day = (1_000_000_000, 86_400_000);
        [
            ("day", rule(1_000_000_000, 1_500_000_000, a_day)),
            ("quota", rule(5_000, 5_000, (0, 1_000))),
            ("rpm.v2", rule(7, 7, (Millitokens::MAX.get(), 1_000_000_000))),
        ]
        .map(|(name, rule)| (LimitName::new(name).unwrap(), rule))
        .into()
    }

    fn id() -> BucketId {
        BucketId { entity: EntityId::new("u").unwrap(), resource: Resource::new("r").unwrap() }
    }

    fn value(ids: &str, leases: &str) -> Vec<u8> {
        let mut value = format!("{ids:48}").into_bytes();
        push(&mut value, 1_769_608_800_000);
        for n in 0..3 {
            [-5 * n, 7, n - 1].into_iter().for_each(|number| push(&mut value, number));
        }
        value.extend_from_slice(leases.as_bytes());
        push_rules(&mut value, rules().iter().map(|(limit, rule)| (limit, Some(*rule))));
        value
    }

    #[test]
    fn a_bucket_is_read_as_it_was_written() {
        let ids = [RequestId::from_bits(1), RequestId::from_bits(u64::MAX)];
        let text = format!("{}{}", id_text(&ids[0]), id_text(&ids[1]));
        for leases in ["", "AAAAAAAAAA.. day 7 quota 1;"] {
            let bucket = bucket(&id(), &value(&text, leases)).unwrap();
            assert_eq!(bucket.request_ids, ids);
            assert_eq!(bucket.refilled_at.get(), 1_769_608_800_000);
            let rules_read: Rules = bucket
                .limits
                .iter()
                .map(|(limit, balance)| (limit.clone(), balance.rule))
                .collect();
            assert_eq!(rules_read, rules());
            let amounts = bucket.limits.values().map(|b| (b.tokens.get(), b.consumed.get()));
            let expected = [(0, 7 - PART), (-5, 7), (-10, 7 + PART)];
            assert!(amounts.eq(expected), "{bucket:?}");
        }
    }

    #[test]
    fn a_value_that_was_cut_or_changed_is_no_bucket() {
        let whole = value("", "");
        for end in 0..whole.len() {
            assert_eq!(bucket(&id(), &whole[..end]), None, "{end}");
        }
        for version in [0, VERSION + 1] {
            let mut other = whole.clone();
            *other.last_mut().unwrap() = version;
            assert_eq!(bucket(&id(), &other), None);
        }
        let mut half = whole;
        half[IDS_BYTES..IDS_BYTES + 8].copy_from_slice(&0.5_f64.to_le_bytes());
        assert_eq!(bucket(&id(), &half), None, "an instant is a whole number");
    }

    #[test]
    fn ids_are_twelve_bytes_whoever_made_them() {
        assert_eq!(id_text(&RequestId::from_bits(0)), "AAAAAAAAAA..");
        let texts = ["", "a b", "AAAA;AAAAA", "more-than-twelve-bytes"];
        let ids: std::collections::BTreeSet<_> =
            texts.map(|text| id_text(&RequestId::stored(text))).into();
        assert_eq!(ids.len(), texts.len());
        assert!(ids.iter().all(|id| id.len() == ID_BYTES && id.ends_with("..")));
    }

    #[test]
    fn a_bucket_is_kept_until_its_slowest_limit_is_full_twice() {
        let mut rules = rules();
        assert_eq!(kept_s(&rules), None, "a quota never fills");
        rules.retain(|limit, _| limit.as_str() != "quota");
        assert_eq!(kept_s(&rules), Some(2 * 129_600));
        rules.retain(|limit, _| limit.as_str() != "day");
        assert_eq!(kept_s(&rules), Some(2));
        assert_eq!(kept_s(&Rules::new()), Some(1));
    }
}
