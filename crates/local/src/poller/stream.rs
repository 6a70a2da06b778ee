//! A real stream, through the DynamoDB Streams API.
//!
//! A shard has ended when a read returns no further iterator. It is closed, and will end, if it has
//! a child; its `EndingSequenceNumber` says nothing, because some engines report one for open shards
//! too. Iterators are kept between reads, because only following one gets past a stretch of empty
//! pages; they live for 15 minutes and are fetched anew from the position when they have expired.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use aws_sdk_dynamodbstreams::Client;
use aws_sdk_dynamodbstreams::operation::get_records::{GetRecordsError, GetRecordsOutput};
use aws_sdk_dynamodbstreams::operation::get_shard_iterator::GetShardIteratorError;
use aws_sdk_dynamodbstreams::types::ShardIteratorType;

use super::record::to_lambda_record;
use super::source::{Page, Position, Record, Shard, Source};
use crate::{BoxError, Error};

/// The most records that GetRecords returns.
const PAGE_RECORDS_MAX: usize = 1_000;

/// Reads the stream of a table.
pub struct StreamSource {
    client: Client,
    stream_arn: String,
    cursors: Mutex<HashMap<String, Cursor>>,
}

/// The end of the last read of a shard.
struct Cursor {
    after: Option<Position>,
    iterator: String,
}

/// The reason why an iterator cannot be used; neither is an error for the reader.
enum Unusable {
    Expired,
    Trimmed,
}

impl StreamSource {
    /// A source over one stream; [`stream_arn`](crate::table::stream_arn) returns its ARN.
    pub fn new(client: Client, stream_arn: impl Into<String>) -> Self {
        Self { client, stream_arn: stream_arn.into(), cursors: Mutex::default() }
    }

    fn cursors(&self) -> MutexGuard<'_, HashMap<String, Cursor>> {
        self.cursors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The iterator of the last read if this read continues there, or else a new one.
    async fn iterator(&self, shard: &str, after: Option<&Position>) -> Result<String, Error> {
        let kept = self.cursors().remove(shard);
        if let Some(cursor) = kept.filter(|cursor| cursor.after.as_ref() == after) {
            return Ok(cursor.iterator);
        }
        self.fetch_iterator(shard, after).await
    }

    async fn fetch_iterator(&self, shard: &str, after: Option<&Position>) -> Result<String, Error> {
        let request = self.client.get_shard_iterator().stream_arn(&self.stream_arn).shard_id(shard);
        let request = match after {
            Some(position) => request
                .shard_iterator_type(ShardIteratorType::AfterSequenceNumber)
                .sequence_number(position.as_str()),
            None => request.shard_iterator_type(ShardIteratorType::TrimHorizon),
        };
        let output = match request.send().await {
            Ok(output) => output,
            Err(error) => {
                let trimmed = error
                    .as_service_error()
                    .is_some_and(GetShardIteratorError::is_trimmed_data_access_exception);
                if trimmed && after.is_some() {
                    self.warn_trimmed(shard);
                    return Box::pin(self.fetch_iterator(shard, None)).await;
                }
                return Err(failed("GetShardIterator", shard)(error));
            }
        };
        output
            .shard_iterator
            .ok_or_else(|| failed("GetShardIterator", shard)("the reply has no iterator"))
    }

    async fn get_records(
        &self,
        shard: &str,
        iterator: String,
        limit: usize,
    ) -> Result<Result<GetRecordsOutput, Unusable>, Error> {
        let limit = i32::try_from(limit.min(PAGE_RECORDS_MAX)).unwrap_or(i32::MAX);
        let sent = self.client.get_records().shard_iterator(iterator).limit(limit).send().await;
        match sent {
            Ok(output) => Ok(Ok(output)),
            Err(error) => match error.as_service_error() {
                Some(GetRecordsError::ExpiredIteratorException(_)) => Ok(Err(Unusable::Expired)),
                Some(GetRecordsError::TrimmedDataAccessException(_)) => Ok(Err(Unusable::Trimmed)),
                _ => Err(failed("GetRecords", shard)(error)),
            },
        }
    }

    /// The records of a reply. A reply with neither records nor an iterator is an error, not the
    /// end of the shard: a reply about an ended shard has a list of records, even if it is empty.
    fn page(&self, shard: &str, output: &mut GetRecordsOutput) -> Result<Vec<Record>, Error> {
        let records = output
            .records
            .take()
            .ok_or_else(|| failed("GetRecords", shard)("the reply is empty"))?;
        let convert = |record: aws_sdk_dynamodbstreams::types::Record| {
            let sequence_number = record
                .dynamodb()
                .and_then(|change| change.sequence_number())
                .ok_or_else(|| failed("GetRecords", shard)("a record has no sequence number"))?
                .to_owned();
            let json = to_lambda_record(record, &self.stream_arn)
                .map_err(|error| failed("GetRecords", shard)(error))?;
            Ok(Record { position: Position::new(sequence_number), json })
        };
        records.into_iter().map(convert).collect()
    }

    fn warn_trimmed(&self, shard: &str) {
        tracing::warn!(
            shard,
            stream = self.stream_arn,
            "records after the checkpoint are gone (older than 24 h); going on with the oldest left"
        );
    }
}

impl Source for StreamSource {
    async fn shards(&self) -> Result<Vec<Shard>, Error> {
        let mut shards = Vec::new();
        let mut start = None;
        loop {
            let described = self
                .client
                .describe_stream()
                .stream_arn(&self.stream_arn)
                .set_exclusive_start_shard_id(start)
                .send()
                .await
                .map_err(failed("DescribeStream", &self.stream_arn))?;
            let description = described
                .stream_description
                .ok_or_else(|| failed("DescribeStream", &self.stream_arn)("the reply is empty"))?;
            for shard in description.shards.unwrap_or_default() {
                if let Some(id) = shard.shard_id {
                    shards.push(Shard { id, parent: shard.parent_shard_id, is_closed: false });
                }
            }
            start = description.last_evaluated_shard_id;
            if start.is_none() {
                let parents: BTreeSet<_> =
                    shards.iter().filter_map(|shard| shard.parent.clone()).collect();
                for shard in &mut shards {
                    shard.is_closed = parents.contains(&shard.id);
                }
                return Ok(shards);
            }
        }
    }

    async fn read(
        &self,
        shard: &str,
        after: Option<&Position>,
        limit: usize,
    ) -> Result<Page, Error> {
        let iterator = self.iterator(shard, after).await?;
        let mut output = match self.get_records(shard, iterator, limit).await? {
            Ok(output) => output,
            Err(unusable) => {
                let after = match unusable {
                    Unusable::Expired => after,
                    Unusable::Trimmed => {
                        self.warn_trimmed(shard);
                        None
                    }
                };
                let iterator = self.fetch_iterator(shard, after).await?;
                self.get_records(shard, iterator, limit).await?.map_err(|_| {
                    failed("GetRecords", shard)("a fresh iterator is expired or trimmed already")
                })?
            }
        };
        let records = self.page(shard, &mut output)?;
        let ended = match output.next_shard_iterator {
            Some(iterator) => {
                let after = records.last().map(|last| &last.position).or(after).cloned();
                self.cursors().insert(shard.to_owned(), Cursor { after, iterator });
                false
            }
            None => true,
        };
        Ok(Page { records, ended })
    }
}

fn failed<E: Into<BoxError>>(operation: &'static str, subject: &str) -> impl FnOnce(E) -> Error {
    let subject = subject.to_owned();
    move |source| Error::Stream { operation, subject, source: source.into() }
}
