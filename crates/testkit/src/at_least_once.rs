//! Deliberate at-least-once delivery: splits, overlaps and redeliveries chosen by a seed.

use std::sync::{Mutex, MutexGuard};

use aws_lambda_events::event::streams::DynamoDbEventResponse;
use fastrand::Rng;
use serde_json::value::RawValue;
use sluicegate_local::poller::Handler;

/// The number of batches that a redelivery may go back.
const BATCHES_BACK: usize = 4;

/// A handler that gets the batches of one shard as at-least-once delivery may hand them over: split,
/// with records of the batch before in front, and again.
///
/// Each delivery has consecutive records, and no more than the poller's largest batch. The same seed
/// over the same records makes the same choices. If a delivery fails, the poller delivers its batch
/// again; the poller's checkpoint moves only past records that are done. It panics if two shards are
/// delivered at once.
#[derive(Debug)]
pub struct AtLeastOnce<H> {
    handler: H,
    percent: Percent,
    state: Mutex<State>,
    /// Held while a batch is delivered.
    turn: tokio::sync::Mutex<()>,
}

/// The frequencies of the faults, in percent of the deliveries.
#[derive(Debug, Clone, Copy)]
struct Percent {
    /// After a delivery succeeded, go back to one of the last records and deliver from there again.
    redeliver: u8,
    /// Begin a delivery with the last records of the one before.
    overlap: u8,
    /// Cut a delivery short at a random record.
    split: u8,
}

#[derive(Debug)]
struct State {
    rng: Rng,
    /// The newest records delivered, in the order of the shard, each of them once.
    log: Vec<Box<RawValue>>,
    /// The records in the largest batch so far.
    batch_size: usize,
    delivered: usize,
    /// Those of them that were in no delivery before, unless one failed.
    fresh: usize,
}

impl<H: Handler> AtLeastOnce<H> {
    /// Each fault in one of four deliveries.
    pub fn seeded(handler: H, seed: u64) -> Self {
        Self::new(handler, seed, Percent { redeliver: 25, overlap: 25, split: 25 })
    }

    fn new(handler: H, seed: u64, percent: Percent) -> Self {
        let rng = Rng::with_seed(seed);
        let state = State { rng, log: Vec::new(), batch_size: 0, delivered: 0, fresh: 0 };
        Self { handler, percent, state: Mutex::new(state), turn: tokio::sync::Mutex::default() }
    }

    /// The number of records in all deliveries so far.
    pub fn delivered(&self) -> usize {
        self.state().delivered
    }

    /// The number of records that were delivered again so far, after a delivery that succeeded.
    pub fn repeated(&self) -> usize {
        let state = self.state();
        state.delivered - state.fresh
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    async fn deliver(&self, records: &[Box<RawValue>]) -> Result<DynamoDbEventResponse, H::Error> {
        self.state().delivered += records.len();
        self.handler.handle(records).await
    }
}

impl<H: Handler> Handler for AtLeastOnce<H> {
    type Error = H::Error;

    async fn handle(
        &self,
        records: &[Box<RawValue>],
    ) -> Result<DynamoDbEventResponse, Self::Error> {
        let _turn = self.turn.try_lock().expect("this handler delivers one shard at a time");
        self.state().go_to(records);
        let mut rest = records;
        while !rest.is_empty() {
            let (delivery, fresh) = self.state().cut(rest, self.percent);
            let response = self.deliver(&delivery).await?;
            if !response.batch_item_failures.is_empty() {
                return Ok(response);
            }
            rest = &rest[fresh..];
            let again = self.state().again(self.percent);
            for delivery in again {
                let response = self.deliver(&delivery).await?;
                if !response.batch_item_failures.is_empty() {
                    return Ok(response);
                }
            }
        }
        Ok(DynamoDbEventResponse::default())
    }
}

impl State {
    /// Ends the log before the batch that the poller delivers: all records before it are done.
    fn go_to(&mut self, batch: &[Box<RawValue>]) {
        let first = batch[0].get();
        if let Some(index) = self.log.iter().rposition(|record| record.get() == first) {
            self.log.truncate(index);
        }
        self.batch_size = self.batch_size.max(batch.len());
        self.log.drain(..self.oldest());
    }

    /// The index of the oldest record to deliver again.
    fn oldest(&self) -> usize {
        self.log.len().saturating_sub(BATCHES_BACK * self.batch_size)
    }

    /// The next delivery, and the number of records of `rest` in it.
    fn cut(&mut self, rest: &[Box<RawValue>], percent: Percent) -> (Vec<Box<RawValue>>, usize) {
        let repeated_max = self.log.len().min(self.batch_size - 1);
        let overlaps = self.strikes(percent.overlap) && repeated_max > 0;
        let repeated = if overlaps { self.rng.usize(1..=repeated_max) } else { 0 };
        let mut fresh = rest.len().min(self.batch_size - repeated);
        if fresh > 1 && self.strikes(percent.split) {
            fresh = self.rng.usize(1..fresh);
        }
        self.fresh += fresh;
        let start = self.log.len() - repeated;
        self.log.extend_from_slice(&rest[..fresh]);
        (self.log[start..].to_vec(), fresh)
    }

    /// The deliveries to repeat after one succeeded.
    fn again(&mut self, percent: Percent) -> Vec<Vec<Box<RawValue>>> {
        if !self.strikes(percent.redeliver) {
            return Vec::new();
        }
        let start = self.rng.usize(self.oldest()..self.log.len());
        self.log[start..].chunks(self.batch_size).map(<[_]>::to_vec).collect()
    }

    fn strikes(&mut self, percent: u8) -> bool {
        self.rng.u8(0..100) < percent
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use aws_lambda_events::event::streams::DynamoDbBatchItemFailure;
    use serde_json::json;
    use serde_json::value::to_raw_value;
    use sluicegate_local::poller::{BatchSize, Poller, Position, Settings};

    use super::*;
    use crate::RecordedSource;

    const RECORDS: u64 = 200;
    const NONE: Percent = Percent { redeliver: 0, overlap: 0, split: 0 };

    /// Notes the numbers of the records in each delivery, and fails one delivery of so many, from
    /// its middle on.
    #[derive(Default)]
    struct Notes {
        batches: Mutex<Vec<Vec<u64>>>,
        fails_each: Option<usize>,
    }

    impl Handler for Notes {
        type Error = Infallible;

        async fn handle(
            &self,
            records: &[Box<RawValue>],
        ) -> Result<DynamoDbEventResponse, Self::Error> {
            let number = |record: &RawValue| {
                let value: serde_json::Value = serde_json::from_str(record.get()).unwrap();
                value["dynamodb"]["SequenceNumber"].as_str().unwrap().parse().unwrap()
            };
            let batch: Vec<u64> = records.iter().map(|record| number(record)).collect();
            let mut response = DynamoDbEventResponse::default();
            let mut batches = self.batches.lock().unwrap();
            if self.fails_each.is_some_and(|each| batches.len() % each == each - 1) {
                let mut failure = DynamoDbBatchItemFailure::default();
                failure.item_identifier = Some(batch[batch.len() / 2].to_string());
                response.batch_item_failures.push(failure);
            }
            batches.push(batch);
            Ok(response)
        }
    }

    async fn deliveries(
        seed: u64,
        percent: Percent,
        batch_size: usize,
        fails_each: Option<usize>,
    ) -> Vec<Vec<u64>> {
        let record =
            |n: u64| to_raw_value(&json!({"dynamodb": {"SequenceNumber": n.to_string()}})).unwrap();
        let notes = Notes { fails_each, ..Notes::default() };
        let handler = AtLeastOnce::new(&notes, seed, percent);
        let source = RecordedSource::new((1..=RECORDS).map(record).collect());
        let batch_size = BatchSize::new(batch_size).unwrap();
        let settings = Settings { batch_size, ..Settings::default() };
        let mut poller = Poller::new(source, &handler, settings);
        poller.drain().await.unwrap();
        let checkpoints = poller.checkpoints();
        assert_eq!(checkpoints[RecordedSource::SHARD_ID], Position::new(RECORDS.to_string()));
        let delivered = handler.delivered();
        let batches = notes.batches.into_inner().unwrap();
        assert_eq!(batches.iter().map(Vec::len).sum::<usize>(), delivered);
        batches
    }

    async fn seeded(seed: u64, batch_size: usize) -> Vec<Vec<u64>> {
        let percent = Percent { redeliver: 25, overlap: 25, split: 25 };
        deliveries(seed, percent, batch_size, None).await
    }

    #[tokio::test]
    async fn a_seed_stands_for_one_schedule() {
        let first = seeded(7, 10).await;
        assert_eq!(first, seeded(7, 10).await);
        assert_ne!(first, seeded(8, 10).await);
    }

    #[tokio::test(start_paused = true)]
    async fn deliveries_keep_their_order_and_size_whatever_is_repeated() {
        let percent = Percent { redeliver: 25, overlap: 25, split: 25 };
        for (seed, batch_size) in (0..40).zip([1, 2, 7, 100].into_iter().cycle()) {
            for fails_each in [None, Some(7)] {
                let mut newest = 0;
                for batch in deliveries(seed, percent, batch_size, fails_each).await {
                    assert!((1..=batch_size).contains(&batch.len()));
                    assert!(batch.windows(2).all(|pair| pair[1] == pair[0] + 1), "{batch:?}");
                    assert!(batch[0] <= newest + 1, "nothing is skipped");
                    newest = newest.max(batch[batch.len() - 1]);
                }
                assert_eq!(newest, RECORDS);
            }
        }
    }

    #[tokio::test]
    async fn each_kind_of_repetition_happens_when_asked_for() {
        assert_eq!(deliveries(1, NONE, 50, None).await.len(), 4);

        let overlap = deliveries(1, Percent { overlap: 100, ..NONE }, 50, None).await;
        assert!(overlap.windows(2).all(|pair| pair[1][0] <= *pair[0].last().unwrap()));

        let redeliver = deliveries(1, Percent { redeliver: 100, ..NONE }, 50, None).await;
        assert!(redeliver.len() >= 8, "every batch is followed by records: {}", redeliver.len());

        let split = deliveries(1, Percent { split: 100, ..NONE }, 50, None).await;
        assert_eq!(split.iter().map(Vec::len).sum::<usize>(), 200);
        assert!(split.len() > 4);
    }
}
