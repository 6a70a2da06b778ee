//! Finds every bucket of the older layout, by a scan in segments that may run concurrently.

use aws_sdk_dynamodb::operation::scan::ScanOutput;
use aws_sdk_dynamodb::types::ReturnConsumedCapacity;
use futures_util::stream::{self, Stream};
use sluicegate_core::BucketId;
use sluicegate_core::keys::{LegacyKey, PK, SK};

use crate::dynamo::answers::{text, units};
use crate::dynamo::item::Attributes;
use crate::dynamo::{BrokenItem, ReadError, Reader, stored_expressions as expressions};

/// A part of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Its number, from 0 and below `of`.
    pub number: u16,
    /// The number of segments, at least 1.
    pub of: u16,
}

/// The result of one request of a scan.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct LegacyPage {
    /// Items that were read, of all kinds.
    pub scanned: u64,
    /// Buckets that have items in the older layout. One that fills more than a page is named once.
    pub buckets: Vec<BucketId>,
    /// Items whose keys hold an invalid name.
    pub broken: Vec<BrokenItem>,
    /// Read units consumed.
    pub read_units: f64,
}

/// The position of a scan.
struct ScanPosition {
    reader: Reader,
    segment: Segment,
    start: Option<Attributes>,
    last: Option<BucketId>,
}

impl Reader {
    /// Every bucket of a segment that has items in the older layout, page by page.
    ///
    /// The reads are eventually consistent, half a unit for 4 KB of anything that the table holds.
    pub fn legacy_buckets(
        &self,
        segment: Segment,
    ) -> impl Stream<Item = Result<LegacyPage, ReadError>> + Send + use<> {
        let start = ScanPosition { reader: self.clone(), segment, start: None, last: None };
        stream::try_unfold(Some(start), async |position| {
            let Some(mut position) = position else { return Ok(None) };
            let scan = position
                .reader
                .client
                .scan()
                .segment(position.segment.number.into())
                .total_segments(position.segment.of.into())
                .return_consumed_capacity(ReturnConsumedCapacity::Total);
            let (filter, start) = (expressions::legacy_items(), position.start.take());
            let output = position.reader.scan(scan, filter, start).await?;
            position.start = output.last_evaluated_key.clone();
            let page = position.page(output);
            let next = position.start.is_some().then_some(position);
            Ok(Some((page, next)))
        })
    }
}

impl ScanPosition {
    fn page(&mut self, output: ScanOutput) -> LegacyPage {
        let mut page = LegacyPage {
            scanned: u64::try_from(output.scanned_count).unwrap_or(0),
            read_units: units(output.consumed_capacity.as_ref()),
            ..LegacyPage::default()
        };
        for item in output.items.unwrap_or_default() {
            let (pk, sk) = (text(&item, PK), text(&item, SK));
            match LegacyKey::parse(&pk, &sk) {
                Ok(Some(key)) if self.last.as_ref() != Some(&key.bucket) => {
                    self.last = Some(key.bucket.clone());
                    page.buckets.push(key.bucket);
                }
                Ok(_) => {}
                Err(source) => page.broken.push(BrokenItem { pk, sk, source: source.into() }),
            }
        }
        page
    }
}
