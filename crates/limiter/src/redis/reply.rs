//! Reading what the scripts answer.

use redis::Value;
use sluicegate_core::{
    Bucket, BucketId, CompositeBucket, EpochMillis, LimitName, MillitokenSum, Millitokens, Refill,
    RequestId, Rule,
};

use super::range::in_lowest_terms;
use super::trouble::odd;
use crate::table::Trouble;

/// What a call came to, as `bucket.lua` numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    Granted,
    /// The bucket remembers the id.
    Landed,
    Short,
    Unknown,
    Full,
    /// A refund that may have been made.
    Ambiguous,
    /// There was nothing to write.
    Nothing,
}

/// An answer, read from its beginning.
#[derive(Debug)]
pub(super) struct Reply(std::vec::IntoIter<Value>);

/// What most answers begin with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Header {
    /// The time that the decision was made by.
    pub(super) now: EpochMillis,
    /// Some bucket's refill time was more than a minute ahead.
    pub(super) was_ahead: bool,
    /// The bucket can no longer tell whether an earlier attempt was done.
    pub(super) is_overrun: bool,
}

impl Reply {
    pub(super) fn new(values: Vec<Value>) -> Self {
        Self(values.into_iter())
    }

    pub(super) fn status(&mut self) -> Result<Status, Trouble> {
        use Status::{Ambiguous, Full, Granted, Landed, Nothing, Short, Unknown};
        match self.int()? {
            0 => Ok(Granted),
            1 => Ok(Landed),
            2 => Ok(Short),
            3 => Ok(Unknown),
            4 => Ok(Full),
            5 => Ok(Ambiguous),
            6 => Ok(Nothing),
            other => Err(unexpected("a status", &Value::Int(other))),
        }
    }

    pub(super) fn header(&mut self) -> Result<Header, Trouble> {
        let now = self.instant()?;
        Ok(Header { now, was_ahead: self.int()? == 1, is_overrun: self.int()? == 1 })
    }

    fn next(&mut self) -> Value {
        self.0.next().unwrap_or(Value::Nil)
    }

    pub(super) fn int(&mut self) -> Result<i64, Trouble> {
        match self.next() {
            Value::Int(number) => Ok(number),
            other => Err(unexpected("a number", &other)),
        }
    }

    pub(super) fn instant(&mut self) -> Result<EpochMillis, Trouble> {
        EpochMillis::new(self.int()?).map_err(|error| odd(error.into()))
    }

    /// Millitokens, if the limit is there.
    pub(super) fn milli(&mut self) -> Result<Option<Millitokens>, Trouble> {
        match self.next() {
            Value::Nil => Ok(None),
            Value::Int(number) => Ok(Some(Millitokens::saturating(number.into()))),
            other => Err(unexpected("an amount", &other)),
        }
    }

    /// A counter, if the limit is there.
    pub(super) fn sum(&mut self) -> Result<Option<MillitokenSum>, Trouble> {
        match self.next() {
            Value::Nil => Ok(None),
            Value::Int(number) => Ok(Some(MillitokenSum::default().plus(number))),
            other => Err(unexpected("a sum", &other)),
        }
    }

    /// The next text, if there is one.
    pub(super) fn text(&mut self) -> Result<Option<String>, Trouble> {
        match self.next() {
            Value::Nil => Ok(None),
            Value::BulkString(bytes) => {
                String::from_utf8(bytes).map(Some).map_err(|e| odd(e.into()))
            }
            other => Err(unexpected("a text", &other)),
        }
    }

    pub(super) fn limit(&mut self) -> Result<LimitName, Trouble> {
        let name = self.text()?.unwrap_or_default();
        LimitName::new(name).map_err(|error| odd(error.into()))
    }

    /// The limits that follow.
    pub(super) fn limits(&mut self) -> Result<Vec<LimitName>, Trouble> {
        (0..self.0.len()).map(|_| self.limit()).collect()
    }

    /// A bucket as it is stored; `None`: there is none.
    pub(super) fn bucket(&mut self, id: &BucketId) -> Result<Option<CompositeBucket>, Trouble> {
        match self.next() {
            Value::Array(fields) if fields.is_empty() => Ok(None),
            Value::Array(fields) => bucket(id, Self::new(fields)).map(Some),
            other => Err(unexpected("a bucket", &other)),
        }
    }
}

fn unexpected(what: &str, value: &Value) -> Trouble {
    odd(format!("{value:?} where {what} should be").into())
}

/// Limits stand among the fields by their rules; the amounts of one alone have plain names.
fn bucket(id: &BucketId, mut pairs: Reply) -> Result<CompositeBucket, Trouble> {
    let mut fields = std::collections::HashMap::new();
    while let (Some(field), Some(value)) = (pairs.text()?, pairs.text()?) {
        fields.insert(field, value);
    }
    let rules: Vec<_> = fields
        .iter()
        .filter_map(|(field, rule)| Some((field.strip_prefix("rule:")?, rule)))
        .collect();
    let suffix = |name| if rules.len() > 1 { format!(":{name}") } else { String::new() };
    let number = |field: &str| -> Result<i64, Trouble> {
        let text = fields.get(field).map_or("0", String::as_str);
        text.parse().map_err(|error: std::num::ParseIntError| odd(error.into()))
    };
    let limits = rules.iter().map(|(name, text)| {
        let own = suffix(name);
        let tokens = Millitokens::saturating(number(&format!("tokens{own}"))?.into());
        let consumed = MillitokenSum::default().plus(number(&format!("tc{own}"))?);
        let limit = LimitName::new(name).map_err(|error| odd(error.into()))?;
        Ok((limit, Bucket { rule: rule(text)?, tokens, consumed }))
    });
    let ids = fields.get("ids").map_or("", String::as_str);
    Ok(CompositeBucket {
        entity: id.entity.clone(),
        resource: id.resource.clone(),
        refilled_at: EpochMillis::new(number("lastRefill")?).map_err(|error| odd(error.into()))?,
        limits: limits.collect::<Result<_, Trouble>>()?,
        expires_at_s: None,
        config_stamp: sluicegate_core::ConfigStamp::None,
        rules_hash: None,
        request_ids: ids.split_whitespace().map(RequestId::stored).collect(),
    })
}

/// A rule as a hash has it: capacity, burst, refill amount and period, and the last two in lowest
/// terms, which the scripts count by.
pub(super) fn rule_text(rule: Rule) -> String {
    let (refill, milli) = (rule.refill(), Millitokens::get);
    let (capacity, burst, amount) =
        (milli(rule.capacity()), milli(rule.burst()), milli(refill.amount()));
    let (num, den) = in_lowest_terms(refill);
    format!("{capacity} {burst} {amount} {} {num} {den}", refill.period_ms())
}

/// The rule that a text says.
pub(super) fn rule(text: &str) -> Result<Rule, Trouble> {
    let parse = || {
        let mut numbers = text.split(' ').map(|number| number.parse().ok());
        let mut next = || numbers.next().flatten();
        let mut milli = || Millitokens::new(next()?).ok();
        let (capacity, burst, amount) = (milli()?, milli()?, milli()?);
        let refill = Refill::new(amount, next()?).ok()?;
        Rule::with_burst(capacity, burst, refill).ok()
    };
    parse().ok_or_else(|| odd(format!("{text:?} is no rule").into()))
}
