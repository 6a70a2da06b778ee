//! Deliberate at-least-once delivery: splits, overlaps and redeliveries chosen by a seed.
//!
//! Each shard draws from its own generator, so the choices do not depend on how shards interleave.
//! Every delivery stays in shard order within a batch.

use std::collections::VecDeque;

use fastrand::Rng;

use super::batch::Batch;
use super::settings::Duplicates;
use super::source::Record;

/// The number of batches that a redelivery may go back.
const HISTORY: usize = 4;

pub(super) struct Faults {
    settings: Duplicates,
    rng: Rng,
    /// Fresh batches delivered, newest last.
    history: VecDeque<Batch>,
}

impl Faults {
    pub(super) fn new(settings: Duplicates, shard: &str) -> Self {
        let rng = Rng::with_seed(settings.seed ^ fnv1a(shard));
        Self { settings, rng, history: VecDeque::new() }
    }

    /// Records to begin the next batch with; fewer than `batch_size`, so that it makes progress.
    pub(super) fn overlap(&mut self, batch_size: usize) -> Vec<Record> {
        if !self.strikes(self.settings.overlap_percent) || batch_size < 2 {
            return Vec::new();
        }
        match self.history.back() {
            Some(last) => last.tail(self.rng.usize(1..batch_size.min(last.len() + 1))),
            None => Vec::new(),
        }
    }

    /// The number of `available` records to deliver now.
    pub(super) fn split(&mut self, available: usize) -> usize {
        if available > 1 && self.strikes(self.settings.split_percent) {
            return self.rng.usize(1..available);
        }
        available
    }

    /// Notes a batch that succeeded; returns the batches to deliver again.
    pub(super) fn succeeded(&mut self, batch: Batch) -> Vec<Batch> {
        self.history.push_back(batch);
        if self.history.len() > HISTORY {
            self.history.pop_front();
        }
        if !self.strikes(self.settings.redeliver_percent) {
            return Vec::new();
        }
        let start = self.rng.usize(0..self.history.len());
        self.history.iter().skip(start).cloned().map(Batch::repeated).collect()
    }

    fn strikes(&mut self, percent: u8) -> bool {
        self.rng.u8(0..100) < percent
    }
}

/// A stable hash: the standard library's may change between versions, and with it every schedule of
/// a seed.
fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Answer, Numbers, Script, records, settings};
    use super::super::{Poller, RecordedSource, Settings};
    use super::*;

    async fn deliveries(duplicates: Duplicates, batch_size: usize) -> Vec<Numbers> {
        let settings = Settings { duplicates: Some(duplicates), ..settings(batch_size) };
        let handler = Script::new(|_: &[u64]| Answer::Done);
        let mut poller = Poller::new(RecordedSource::new(records(1..=200)), &handler, settings);
        let report = poller.drain().await.unwrap();
        assert_eq!(report.records, 200, "the report counts each record once");
        handler.batches()
    }

    #[tokio::test]
    async fn a_seed_stands_for_one_schedule() {
        let first = deliveries(Duplicates::seeded(7), 10).await;
        assert_eq!(first, deliveries(Duplicates::seeded(7), 10).await);
        assert_ne!(first, deliveries(Duplicates::seeded(8), 10).await);
    }

    #[tokio::test]
    async fn batches_keep_their_order_and_size_whatever_is_repeated() {
        for (seed, batch_size) in (0..40).zip([1, 2, 7, 100].into_iter().cycle()) {
            let batches = deliveries(Duplicates::seeded(seed), batch_size).await;
            let mut newest = 0;
            for batch in &batches {
                assert!((1..=batch_size).contains(&batch.len()));
                assert!(batch.windows(2).all(|pair| pair[1] == pair[0] + 1), "{batch:?}");
                assert!(batch[0] <= newest + 1, "nothing is skipped");
                newest = newest.max(batch[batch.len() - 1]);
            }
            assert_eq!(newest, 200);
        }
    }

    #[tokio::test]
    async fn each_kind_of_repetition_happens_when_asked_for() {
        let none =
            Duplicates { seed: 1, redeliver_percent: 0, overlap_percent: 0, split_percent: 0 };
        assert_eq!(deliveries(none, 50).await.len(), 4);

        let overlap = deliveries(Duplicates { overlap_percent: 100, ..none }, 50).await;
        assert!(overlap.windows(2).all(|pair| pair[1][0] <= *pair[0].last().unwrap()));

        let redeliver = deliveries(Duplicates { redeliver_percent: 100, ..none }, 50).await;
        assert!(redeliver.len() >= 8, "every batch twice at least: {}", redeliver.len());

        let split = deliveries(Duplicates { split_percent: 100, ..none }, 50).await;
        assert_eq!(split.iter().map(Vec::len).sum::<usize>(), 200);
        assert!(split.len() > 4);
    }
}
