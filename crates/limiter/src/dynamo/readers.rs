//! Reads ranges of items: usage windows, the buckets of a resource, the children of a parent.
//!
//! An answer is a stream that reads the next page when the last one is used up, and holds one page
//! at most. Its reads are eventually consistent: that costs half, and an index offers nothing else.
//! Usage windows lag behind the buckets anyway. (`usage_at` differs in both.)

use std::num::NonZeroU16;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::operation::query::QueryOutput;
use aws_sdk_dynamodb::operation::scan::ScanOutput;
use aws_sdk_dynamodb::operation::scan::builders::ScanFluentBuilder;
use futures_util::stream::{self, Stream, StreamExt, TryStreamExt};
use serde_dynamo::Item;
use sluicegate_core::keys::{self, GSI1, ItemKey, KeyRange, PK, SK};
use sluicegate_core::{
    AlertSettings, CompositeBucket, EntityId, ItemError, OutboxEntry, QuarantineEntry, Resource,
    UsageWindow, WindowSpan,
};

use super::RequestError;
use super::fetch::{self, KEYS_PER_READ};
use super::item::{Attributes, decode};
use super::legacy::listing::{merged, row, with_composites};
use super::read_error::ReadError;
use super::stored_expressions::{self as expressions, Filter, Query};
use crate::table::Consistency;

/// Reads ranges of items of one table.
///
/// The streams must be pinned, and do not borrow the reader:
///
/// ```no_run
/// use futures_util::TryStreamExt;
/// use sluicegate::dynamo::{ReadError, Reader};
/// use sluicegate::types::{EpochMillis, WindowKind, WindowSpan};
/// use sluicegate::{EntityId, Resource};
///
/// async fn tokens_of_a_day(
///     reader: &Reader,
///     user: &EntityId,
///     model: &Resource,
///     midnight: EpochMillis,
///     next_midnight: EpochMillis,
/// ) -> Result<i128, ReadError> {
///     let span = WindowSpan { kind: WindowKind::Hour, starts: midnight..next_midnight };
///     let mut windows = std::pin::pin!(reader.usage(user, model, &span));
///     let mut milli = 0;
///     while let Some(window) = windows.try_next().await? {
///         milli += window.consumed_milli.values().sum::<i128>();
///     }
///     Ok(milli / 1_000)
/// }
/// ```
#[derive(Debug, Clone)]
pub struct Reader {
    pub(super) client: Client,
    pub(super) table: String,
    pub(super) page_size: Option<NonZeroU16>,
    /// See [`including_legacy`](Self::including_legacy).
    includes_legacy: bool,
}

/// The position of a query: before its first page, or behind a page that was not the last.
struct Position {
    reader: Reader,
    query: Query,
    start: Option<Attributes>,
}

impl Reader {
    /// Reads from `table`. The SDK's own retries may be on.
    #[must_use]
    pub fn new(client: Client, table: impl Into<String>) -> Self {
        Self { client, table: table.into(), page_size: None, includes_legacy: false }
    }

    /// Sets the most items of a page. Without it, a page is one answer of DynamoDB, 1 MB; pages of
    /// items that are fetched by their keys have 100 at most.
    #[must_use]
    pub const fn page_size(mut self, items: NonZeroU16) -> Self {
        self.page_size = Some(items);
        self
    }

    /// Also lists buckets in the older layout of one item per limit, in the form that they would be
    /// converted to. A bucket that is converted between two pages of a list may be left out, or
    /// lack limits.
    #[must_use]
    pub const fn including_legacy(mut self) -> Self {
        self.includes_legacy = true;
        self
    }

    /// Usage windows of an entity and a resource, earliest first.
    ///
    /// A window whose records all went to quarantine is listed without figures.
    pub fn usage(
        &self,
        entity: &EntityId,
        resource: &Resource,
        span: &WindowSpan,
    ) -> impl Stream<Item = Result<UsageWindow, ReadError>> + Send + use<> {
        let range = KeyRange::usage(entity, resource, span);
        items(self.pages(range.map(expressions::query)), UsageWindow::from_item)
    }

    /// Usage windows of an entity on all resources, by resource and then earliest first.
    ///
    /// DynamoDB reads, and bills, every usage window of the entity, and then drops those of other
    /// kinds and times: the resource stands before the time in the key.
    pub fn usage_of_entity(
        &self,
        entity: &EntityId,
        span: &WindowSpan,
    ) -> impl Stream<Item = Result<UsageWindow, ReadError>> + Send + use<> {
        let query = expressions::query_span(KeyRange::usage_of_entity(entity), span);
        items(self.pages(query), UsageWindow::from_item)
    }

    /// Usage windows of a resource over all entities, earliest first and then by entity.
    ///
    /// The index holds the keys; the windows are fetched by them, a page at a time.
    pub fn usage_of_resource(
        &self,
        resource: &Resource,
        span: &WindowSpan,
    ) -> impl Stream<Item = Result<UsageWindow, ReadError>> + Send + use<> {
        let range = KeyRange::usage_of_resource(resource, span);
        items(self.fetched_pages(range), UsageWindow::from_item)
    }

    /// The usage windows with these keys, in this order. Each key may be given once; those without a
    /// window are left out. The reads are strongly consistent.
    ///
    /// # Errors
    /// [`ReadError`]; a broken window is an error, too.
    pub async fn usage_at(&self, windows: &[ItemKey]) -> Result<Vec<UsageWindow>, ReadError> {
        let mut usages = Vec::with_capacity(windows.len());
        for windows in windows.chunks(KEYS_PER_READ.into()) {
            let keys = windows.iter().map(expressions::key).collect();
            let items = fetch::in_order(&self.client, &self.table, keys, Consistency::Strong);
            for item in items.await? {
                usages.extend(decode(item, UsageWindow::from_item)?);
            }
        }
        Ok(usages)
    }

    /// The buckets of a resource, by entity. Fetched by their keys, a page at a time.
    pub fn buckets_of_resource(
        &self,
        resource: &Resource,
    ) -> impl Stream<Item = Result<CompositeBucket, ReadError>> + Send + use<> {
        let range = KeyRange::buckets_of_resource(resource);
        self.buckets(self.fetched_pages(Some(range)))
    }

    /// The buckets of an entity, by resource.
    pub fn buckets_of_entity(
        &self,
        entity: &EntityId,
    ) -> impl Stream<Item = Result<CompositeBucket, ReadError>> + Send + use<> {
        let query = expressions::query(KeyRange::buckets_of_entity(entity));
        self.buckets(self.pages(Some(query)))
    }

    fn buckets<P>(
        &self,
        pages: P,
    ) -> impl Stream<Item = Result<CompositeBucket, ReadError>> + Send + use<P>
    where
        P: Stream<Item = Result<Vec<Attributes>, ReadError>> + Send + 'static,
    {
        if self.includes_legacy {
            merged(items(pages, row)).left_stream()
        } else {
            items(pages, CompositeBucket::from_item).right_stream()
        }
    }

    /// Records that the processor put into quarantine, by stream and position; closed entries too.
    pub fn quarantine(
        &self,
    ) -> impl Stream<Item = Result<QuarantineEntry, ReadError>> + Send + use<> {
        let query = expressions::query(KeyRange::quarantine());
        items(self.pages(Some(query)), QuarantineEntry::from_item)
    }

    /// The alert thresholds of every scope that ever had any.
    pub fn alerts(&self) -> impl Stream<Item = Result<AlertSettings, ReadError>> + Send + use<> {
        let query = expressions::query(KeyRange::alert_settings());
        items(self.pages(Some(query)), AlertSettings::from_item)
    }

    /// The alerts of the outbox: closed entries, then those that wait for their delivery, each by
    /// the times of their claims.
    pub fn outbox(&self) -> impl Stream<Item = Result<OutboxEntry, ReadError>> + Send + use<> {
        let pages = [KeyRange::closed_alerts(), KeyRange::open_alerts()].map(|range| {
            items(self.pages(Some(expressions::query(range))), OutboxEntry::from_item)
        });
        let [closed, open] = pages;
        closed.chain(open)
    }

    /// The children of a parent, by their names. They are read from the index alone.
    pub fn children(
        &self,
        parent: &EntityId,
    ) -> impl Stream<Item = Result<EntityId, ReadError>> + Send + use<> {
        let query = expressions::query(KeyRange::children(parent));
        items(self.pages(Some(query)), child_of)
    }

    /// Sends a scan of the items of a filter that come after `start`.
    pub(super) async fn scan(
        &self,
        scan: ScanFluentBuilder,
        filter: Filter,
        start: Option<Attributes>,
    ) -> Result<ScanOutput, RequestError> {
        let output = scan
            .table_name(&self.table)
            .filter_expression(filter.condition)
            .projection_expression(filter.projection)
            .set_expression_attribute_names(Some(filter.placeholders.names))
            .set_expression_attribute_values(Some(filter.placeholders.values))
            .set_limit(self.page_size.map(|items| items.get().into()))
            .set_exclusive_start_key(start)
            .send()
            .await
            .map_err(|error| RequestError::of("Scan", &self.table, error))?;
        match output.items {
            Some(_) => Ok(output),
            None => Err(RequestError::empty("Scan", &self.table)),
        }
    }

    /// The pages of a query; none for no query.
    fn pages(
        &self,
        query: Option<Query>,
    ) -> impl Stream<Item = Result<Vec<Attributes>, ReadError>> + Send + use<> {
        let reader = self.clone();
        let start = query.map(|query| Position { reader, query, start: None });
        stream::try_unfold(start, async |position| {
            let Some(mut position) = position else { return Ok(None) };
            let page = position.read().await?;
            position.start = page.last_evaluated_key;
            let next = position.start.is_some().then_some(position);
            Ok(Some((page.items.unwrap_or_default(), next)))
        })
    }

    /// The pages of a query of an index, with the whole items in place of their keys.
    fn fetched_pages(
        &self,
        range: Option<KeyRange>,
    ) -> impl Stream<Item = Result<Vec<Attributes>, ReadError>> + Send + use<> {
        let most = NonZeroU16::MIN.saturating_add(KEYS_PER_READ - 1);
        let page_size = self.page_size.map_or(most, |items| items.min(most));
        let reader = self.clone().page_size(page_size);
        let keys = reader.pages(range.map(expressions::query));
        keys.and_then(move |page| {
            let Self { client, table, includes_legacy, .. } = reader.clone();
            let keys = page.into_iter().map(key_of).collect();
            async move {
                if includes_legacy {
                    return with_composites(&client, &table, keys).await;
                }
                fetch::in_order(&client, &table, keys, Consistency::Eventual).await
            }
        })
    }
}

impl Position {
    async fn read(&self) -> Result<QueryOutput, RequestError> {
        let Self { reader, query, start } = self;
        let output = reader
            .client
            .query()
            .table_name(&reader.table)
            .set_index_name(query.index.map(str::to_owned))
            .key_condition_expression(&query.condition)
            .set_filter_expression(query.filter.clone())
            .set_expression_attribute_names(Some(query.placeholders.names.clone()))
            .set_expression_attribute_values(Some(query.placeholders.values.clone()))
            .set_limit(reader.page_size.map(|items| items.get().into()))
            .set_exclusive_start_key(start.clone())
            .send()
            .await
            .map_err(|error| RequestError::of("Query", &reader.table, error))?;
        match output.items {
            Some(_) => Ok(output),
            None => Err(RequestError::empty("Query", &reader.table)),
        }
    }
}

/// The values in pages of items; items of other kinds are skipped.
fn items<T: Send + 'static>(
    pages: impl Stream<Item = Result<Vec<Attributes>, ReadError>> + Send,
    from_item: fn(&Item) -> Result<Option<T>, ItemError>,
) -> impl Stream<Item = Result<T, ReadError>> + Send {
    let read = move |item| decode(item, from_item).map_err(ReadError::from).transpose();
    pages.map_ok(move |page| stream::iter(page.into_iter().filter_map(read))).try_flatten()
}

fn key_of(mut index_item: Attributes) -> Attributes {
    index_item.retain(|name, _| name == PK || name == SK);
    index_item
}

fn child_of(item: &Item) -> Result<Option<EntityId>, ItemError> {
    let child = match item.inner().get(GSI1.sk) {
        Some(serde_dynamo::AttributeValue::S(child)) => keys::parse_child(child),
        _ => None,
    };
    Ok(child.map(EntityId::new).transpose()?)
}
