//! Finds the resources that have usage windows, by a scan of the index.

use aws_sdk_dynamodb::operation::scan::ScanOutput;
use futures_util::stream::{self, Stream, TryStreamExt};
use sluicegate_core::keys::{self, GSI2};
use sluicegate_core::{Resource, WindowSpan};

use super::answers::text;
use super::item::Attributes;
use super::stored_expressions::{self as expressions, Filter};
use super::{BrokenItem, ReadError, Reader};

/// The position of a scan of the index.
struct IndexPosition {
    reader: Reader,
    filter: Filter,
    start: Option<Attributes>,
    last: Option<String>,
}

impl Reader {
    /// Resources with usage windows in a span, in no order. A resource may be named again after a
    /// page.
    ///
    /// No key leads to all resources, so the whole index is scanned: half a read unit for 4 KB of
    /// keys, about 200 bytes for each bucket and each usage window of the table. The scan needs the
    /// permission `dynamodb:Scan` on the index.
    pub fn resources_with_usage(
        &self,
        span: &WindowSpan,
    ) -> impl Stream<Item = Result<Resource, ReadError>> + Send + use<> {
        let position = expressions::resources_of(span).map(|filter| IndexPosition {
            reader: self.clone(),
            filter,
            start: None,
            last: None,
        });
        let pages = stream::try_unfold(position, async |position| {
            let Some(mut position) = position else { return Ok(None) };
            let scan = position.reader.client.scan().index_name(GSI2.name);
            let (filter, start) = (position.filter.clone(), position.start.take());
            let output = position.reader.scan(scan, filter, start).await?;
            position.start = output.last_evaluated_key.clone();
            let resources = position.resources(output);
            let next = position.start.is_some().then_some(position);
            Ok::<_, ReadError>(Some((stream::iter(resources), next)))
        });
        pages.try_flatten()
    }
}

impl IndexPosition {
    /// The resources of a page. The keys of one resource are adjacent in the index.
    fn resources(&mut self, output: ScanOutput) -> Vec<Result<Resource, ReadError>> {
        let mut resources = Vec::new();
        for item in output.items.unwrap_or_default() {
            let pk = text(&item, GSI2.pk);
            if self.last.as_ref() == Some(&pk) {
                continue;
            }
            if let Some(name) = keys::parse_index_resource(&pk) {
                resources.push(Resource::new(name).map_err(|source| {
                    let (pk, sk) = (pk.clone(), format!("of {}", GSI2.name));
                    Box::new(BrokenItem { pk, sk, source: source.into() }).into()
                }));
            }
            self.last = Some(pk);
        }
        resources
    }
}
