//! The consumption in one stream record: the difference of the `tc` counters of its two images.
//!
//! On every write path the counters grow by what is consumed, shrink by what is returned, and do
//! not move otherwise. So the sum of the differences over all records of an item is the growth of
//! its counters.

use crate::keys::{self, ItemKey, ShardKey};
use crate::record::{Image, ImageValue};
use crate::{
    BadSequenceNumber, BadStreamArn, BucketId, EntityId, EpochMillis, EventName, LimitName,
    MillitokenSum, NameError, Resource, SequenceNumber, StreamLabel, StreamRecord,
};

/// Change of one limit's counter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delta {
    /// The limit.
    pub limit: LimitName,
    /// The consumption in millitokens; negative when more was returned. Never zero. Within
    /// +-2 * 10^33, the difference of two counters.
    pub consumed_milli: i128,
}

/// The consumption in one stream record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordDeltas<'a> {
    /// The record as it was delivered.
    pub json: &'a str,
    /// The stream of the record.
    pub stream: StreamLabel,
    /// The position of the record in its stream.
    pub sequence: SequenceNumber,
    /// The entity that consumed.
    pub entity: EntityId,
    /// The resource that was consumed.
    pub resource: Resource,
    /// The shard of the bucket whose item changed, if the bucket has shards.
    pub shard: Option<u32>,
    /// The time of the consumption, which decides the usage windows.
    pub at: EpochMillis,
    /// At least one delta, sorted by limit.
    pub deltas: Vec<Delta>,
}

impl RecordDeltas<'_> {
    /// Partition key and sort key of the item that changed.
    #[must_use]
    pub fn item_keys(&self) -> (String, String) {
        let (entity, resource) = (self.entity.clone(), self.resource.clone());
        match self.shard {
            Some(shard) => {
                let key = ShardKey { bucket: BucketId { entity, resource }, shard };
                (key.pk(), key.sk().to_owned())
            }
            None => {
                let key = ItemKey::Bucket(entity, resource);
                (key.pk(), key.sk())
            }
        }
    }
}

/// The reason why a record cannot be counted. It concerns the whole record: none of its deltas is
/// usable.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// An image is missing that the event must have.
    #[error("{event_name} without {image}: the stream's view type must be NEW_AND_OLD_IMAGES")]
    WrongViewType {
        /// The kind of change of the item.
        event_name: EventName,
        /// The image that is missing, `OldImage` or `NewImage`.
        image: &'static str,
    },
    /// A counter or the refill timestamp is not an integer in its range.
    #[error("{attribute} in {image} is not an integer in range: {value}")]
    BadNumber {
        /// The attribute.
        attribute: String,
        /// `OldImage` or `NewImage`.
        image: &'static str,
        /// The value.
        value: String,
    },
    /// An image names a counter more than once.
    #[error("{image} has the counter of limit {limit:?} more than once")]
    Repeated {
        /// The limit, cut to 80 characters.
        limit: String,
        /// `OldImage` or `NewImage`.
        image: &'static str,
    },
    /// The entity, the resource or a limit has a name that the schema does not allow.
    #[error(transparent)]
    BadName(#[from] NameError),
    /// The record has neither a refill timestamp nor a creation time, so its time is unknown.
    #[error(
        "neither the refill timestamp (rf) nor ApproximateCreationDateTime gives a time between 1970 and 9999"
    )]
    NoTime,
    /// Without a position a record cannot be counted exactly once.
    #[error("the record has no SequenceNumber")]
    NoSequenceNumber,
    /// The ARN of the stream has no label.
    #[error(transparent)]
    BadStreamArn(#[from] BadStreamArn),
    /// The position is not a number.
    #[error(transparent)]
    BadSequenceNumber(#[from] BadSequenceNumber),
}

/// Compares both images of a record and returns one delta for each limit whose counter changed;
/// `None` when the record counts nothing.
///
/// An INSERT counts from zero, but the INSERT of an item that was converted from the older layout
/// gives nothing, because its history was counted before. A MODIFY compares the two images. A
/// counter that is not in the old image counts from zero. A counter that is not in the new image
/// (its limit was removed) gives nothing. A REMOVE and items that are not composite buckets give
/// nothing.
///
/// If the write changed the refill timestamp, the record's time ([`RecordDeltas::at`]) is the new
/// timestamp. A write that claims no refill ([`WritePath::Unclaimed`], [`WritePath::AddOnly`]) does
/// not change the timestamp, so the timestamp may be older than the write. If the timestamp did not
/// change, the record's time is the later of the refill timestamp and the record's creation time,
/// or the one of them that exists.
///
/// [`WritePath::Unclaimed`]: crate::WritePath::Unclaimed
/// [`WritePath::AddOnly`]: crate::WritePath::AddOnly
///
/// # Errors
/// [`RecordError`] for a composite bucket whose record cannot be counted.
pub fn extract_deltas<'a>(
    record: &StreamRecord<'a>,
) -> Result<Option<RecordDeltas<'a>>, RecordError> {
    let (pk, sk) = record.keys();
    // Items of other kinds are left out before their names are parsed: a bad name there is no
    // error.
    if record.event_name == EventName::Remove || !sk.starts_with(keys::BUCKET_PREFIX) {
        return Ok(None);
    }
    let Some(ItemKey::Bucket(entity, resource)) = ItemKey::parse(pk, sk)? else {
        return Ok(None);
    };
    deltas_of(record, BucketId { entity, resource }, None)
}

/// [`extract_deltas`] for the shards of buckets in the layout of zae-limiter 0.10 and later
/// ([`ShardKey`]); `None` for any other item. A shard has its counters and refill timestamp in the
/// same attributes as a composite bucket. The counter of zae-limiter's own limit on the writes
/// of a partition gives no delta.
///
/// # Errors
/// [`RecordError`] for a shard whose record cannot be counted.
pub fn extract_shard_deltas<'a>(
    record: &StreamRecord<'a>,
) -> Result<Option<RecordDeltas<'a>>, RecordError> {
    if record.event_name == EventName::Remove {
        return Ok(None);
    }
    let (pk, sk) = record.keys();
    match ShardKey::parse(pk, sk)? {
        Some(ShardKey { bucket, shard }) => deltas_of(record, bucket, Some(shard)),
        None => Ok(None),
    }
}

/// The deltas of a record that is no REMOVE.
fn deltas_of<'a>(
    record: &StreamRecord<'a>,
    bucket: BucketId,
    shard: Option<u32>,
) -> Result<Option<RecordDeltas<'a>>, RecordError> {
    let event_name = record.event_name;
    let change = &record.change;
    let present =
        |image: &'_ Option<Image<'_>>| image.as_ref().is_some_and(|i| i.attribute_count > 0);
    let (Some(new), true) = (&change.new, present(&change.new)) else {
        return Err(RecordError::WrongViewType { event_name, image: "NewImage" });
    };
    let empty = Image::default();
    let old = match (event_name, &change.old) {
        (EventName::Modify, Some(old)) if old.attribute_count > 0 => old,
        (EventName::Modify, _) => {
            return Err(RecordError::WrongViewType { event_name, image: "OldImage" });
        }
        _ if new.was_converted => return Ok(None),
        _ => &empty,
    };
    let mut deltas = compare(old, new)?;
    if shard.is_some() {
        deltas.retain(|delta| delta.limit.as_str() != keys::WRITE_CAPACITY_LIMIT);
    }
    if deltas.is_empty() {
        return Ok(None);
    }
    let sequence = change.sequence.as_ref().ok_or(RecordError::NoSequenceNumber)?;
    Ok(Some(RecordDeltas {
        json: record.json,
        stream: record.stream()?,
        sequence: SequenceNumber::parse(&sequence.0)?,
        entity: bucket.entity,
        resource: bucket.resource,
        shard,
        at: record_time(old, new, record.created())?,
        deltas,
    }))
}

/// Compares the counters of both images: one pass over two sorted lists.
fn compare(old: &Image<'_>, new: &Image<'_>) -> Result<Vec<Delta>, RecordError> {
    for (image, name) in [(old, "OldImage"), (new, "NewImage")] {
        if let Some(pair) = image.counters.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            let limit = crate::excerpt::excerpt(&pair[0].0.0);
            return Err(RecordError::Repeated { limit, image: name });
        }
    }
    let mut deltas = Vec::with_capacity(new.counters.len());
    let mut old_counters = old.counters.iter().peekable();
    for (limit, value) in &new.counters {
        let new_count = counter(&limit.0, value, "NewImage")?;
        // A limit that the old image does not name counts from zero.
        let mut old_count = 0;
        while let Some((name, value)) = old_counters.next_if(|(name, _)| name <= limit) {
            let count = counter(&name.0, value, "OldImage")?;
            if name == limit {
                old_count = count;
            }
        }
        if new_count != old_count {
            let limit = LimitName::new(&limit.0)?;
            deltas.push(Delta { limit, consumed_milli: new_count - old_count });
        }
    }
    for (name, value) in old_counters {
        counter(&name.0, value, "OldImage")?;
    }
    Ok(deltas)
}

fn counter(limit: &str, value: &ImageValue<'_>, image: &'static str) -> Result<i128, RecordError> {
    let number = match value {
        ImageValue::Number(digits) => {
            digits.0.parse().ok().and_then(|n| MillitokenSum::new(n).ok())
        }
        ImageValue::Other => None,
    };
    number.map(MillitokenSum::get).ok_or_else(|| {
        bad_number(&format!("counter of limit {:?}", crate::excerpt::excerpt(limit)), value, image)
    })
}

fn record_time(
    old: &Image<'_>,
    new: &Image<'_>,
    created: Option<EpochMillis>,
) -> Result<EpochMillis, RecordError> {
    let refilled = new.refilled_at.as_ref().map(|rf| instant(rf, "NewImage")).transpose()?;
    match refilled {
        Some(refilled) if new.refilled_at != old.refilled_at => Ok(refilled),
        Some(refilled) => Ok(created.map_or(refilled, |created| created.max(refilled))),
        None => created.ok_or(RecordError::NoTime),
    }
}

fn instant(value: &ImageValue<'_>, image: &'static str) -> Result<EpochMillis, RecordError> {
    let millis = match value {
        ImageValue::Number(digits) => digits.0.parse().ok().and_then(|n| EpochMillis::new(n).ok()),
        ImageValue::Other => None,
    };
    millis.ok_or_else(|| bad_number("rf", value, image))
}

fn bad_number(attribute: &str, value: &ImageValue<'_>, image: &'static str) -> RecordError {
    let value = match value {
        ImageValue::Number(digits) => {
            format!("the number {:?}", crate::excerpt::excerpt(&digits.0))
        }
        ImageValue::Other => "not a number at all".to_owned(),
    };
    RecordError::BadNumber { attribute: attribute.to_owned(), image, value }
}

#[cfg(test)]
#[path = "delta_tests.rs"]
mod tests;
