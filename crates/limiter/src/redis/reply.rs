//! Reads the replies of the scripts.

use redis::Value;
use sluicegate_core::{BucketId, CompositeBucket, EpochMillis, LimitName};

use super::error::{broken, odd};
use super::value;
use crate::table::TableError;

/// The result of a call, as `bucket.lua` numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    Granted,
    /// The bucket remembers the id: an earlier attempt took effect.
    AlreadyApplied,
    /// A limit has less than the request asks for.
    Short,
    /// The entity's bucket has no limit of a requested name, and the call has no rule for it.
    UnknownLimit,
    /// The bucket has no room for another limit.
    BucketFull,
    /// The bucket cannot tell if an earlier attempt took effect. Nothing was written now.
    Ambiguous,
    /// There was nothing to write.
    Nothing,
    /// There is a mark of this key, with another fingerprint.
    KeyReused,
}

const UNKNOWN_LIMIT: i64 = 3;
const BUCKET_FULL: i64 = 4;
/// The status of a script that asks for boundaries, as `bucket.lua` numbers it.
const COUNT_BOUNDARIES: i64 = 7;

/// A reply, read from its beginning.
#[derive(Debug)]
pub(super) struct Reply(std::vec::IntoIter<Value>);

/// The beginning of most replies.
#[derive(Debug, Clone, Copy)]
pub(super) struct Header {
    /// The time of the decision.
    pub(super) now: EpochMillis,
    /// True if some bucket's refill time was more than a minute ahead.
    pub(super) was_ahead: bool,
    /// True if the bucket cannot tell any more if an earlier attempt took effect.
    pub(super) is_ambiguous: bool,
}

impl Reply {
    pub(super) fn new(values: Vec<Value>) -> Self {
        Self(values.into_iter())
    }

    /// True for the reply of `usual.lua`: it holds the buckets afterwards, and nothing else.
    pub(super) fn is_usual(&self) -> bool {
        matches!(self.0.as_slice().first(), Some(Value::BulkString(_)))
    }

    /// True if the script did nothing, because boundaries of calendars were not counted.
    pub(super) fn asks_for_boundaries(&self) -> bool {
        matches!(self.0.as_slice().first(), Some(Value::Int(COUNT_BOUNDARIES)))
    }

    /// The time of the decision, if the reply tells it: in its header, or as the refill time of a
    /// bucket that was just written.
    pub(super) fn time(&self) -> Option<EpochMillis> {
        match self.0.as_slice() {
            [Value::BulkString(bucket), ..] => value::refilled_at(bucket),
            // These have no header.
            [Value::Int(UNKNOWN_LIMIT | BUCKET_FULL), ..] => None,
            [Value::Int(_), Value::Int(now), ..] => EpochMillis::new(*now).ok(),
            _ => None,
        }
    }

    pub(super) fn status(&mut self) -> Result<Status, TableError> {
        use Status::{
            AlreadyApplied, Ambiguous, BucketFull, Granted, KeyReused, Nothing, Short, UnknownLimit,
        };
        match self.int()? {
            0 => Ok(Granted),
            1 => Ok(AlreadyApplied),
            2 => Ok(Short),
            UNKNOWN_LIMIT => Ok(UnknownLimit),
            BUCKET_FULL => Ok(BucketFull),
            5 => Ok(Ambiguous),
            6 => Ok(Nothing),
            8 => Ok(KeyReused),
            other => Err(unexpected("a status", &Value::Int(other))),
        }
    }

    pub(super) fn header(&mut self) -> Result<Header, TableError> {
        let now = self.instant()?;
        Ok(Header { now, was_ahead: self.int()? == 1, is_ambiguous: self.int()? == 1 })
    }

    fn next(&mut self) -> Value {
        self.0.next().unwrap_or(Value::Nil)
    }

    pub(super) fn int(&mut self) -> Result<i64, TableError> {
        match self.next() {
            Value::Int(number) => Ok(number),
            other => Err(unexpected("a number", &other)),
        }
    }

    pub(super) fn instant(&mut self) -> Result<EpochMillis, TableError> {
        EpochMillis::new(self.int()?).map_err(|error| odd(error.into()))
    }

    /// Millitokens, if the limit is there.
    #[cfg(feature = "leasing")]
    pub(super) fn milli(&mut self) -> Result<Option<sluicegate_core::Millitokens>, TableError> {
        match self.next() {
            Value::Nil => Ok(None),
            Value::Int(number) => Ok(Some(sluicegate_core::Millitokens::saturating(number.into()))),
            other => Err(unexpected("an amount", &other)),
        }
    }

    /// The next text, if there is one.
    pub(super) fn text(&mut self) -> Result<Option<String>, TableError> {
        match self.next() {
            Value::Nil => Ok(None),
            Value::BulkString(bytes) => {
                String::from_utf8(bytes).map(Some).map_err(|e| odd(e.into()))
            }
            other => Err(unexpected("a text", &other)),
        }
    }

    pub(super) fn limit(&mut self) -> Result<LimitName, TableError> {
        let name = self.text()?.unwrap_or_default();
        LimitName::new(name).map_err(|error| odd(error.into()))
    }

    /// The limits that follow.
    pub(super) fn limits(&mut self) -> Result<Vec<LimitName>, TableError> {
        (0..self.0.len()).map(|_| self.limit()).collect()
    }

    /// A bucket as it is stored; `None`: there is none.
    pub(super) fn bucket(&mut self, id: &BucketId) -> Result<Option<CompositeBucket>, TableError> {
        match self.next() {
            Value::Nil => Ok(None),
            Value::BulkString(bytes) => match value::bucket(id, &bytes) {
                Some(bucket) => Ok(Some(bucket)),
                None => Err(broken(&id.to_string(), "the value", "what a bucket has there")),
            },
            other => Err(unexpected("a bucket", &other)),
        }
    }
}

fn unexpected(what: &str, value: &Value) -> TableError {
    odd(format!("{value:?} where {what} should be").into())
}
