//! Delivery as Lambda's event source mapping does it, over recorded shards.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::value::{RawValue, to_raw_value};

use sluicegate_local::Error;
use sluicegate_local::poller::{Backoff, Page, Poller, Position, Record, Settings, Shard, Source};
use sluicegate_testkit::RecordedSource;
use tokio::time::Instant;

use crate::script::{Answer, Script, id, number, record, records, settings};

/// The position after record `number`.
fn after(number: u64) -> Position {
    Position::new(id(number).unwrap())
}

#[tokio::test]
async fn batches_are_full_and_in_order() {
    let source = RecordedSource::new(records(1..=7));
    let handler = Script::new(|_: &[u64]| Answer::Done);
    let mut poller = Poller::new(source, &handler, settings(3));
    poller.drain().await.unwrap();
    assert_eq!(handler.batches(), [vec![1, 2, 3], vec![4, 5, 6], vec![7]]);
    assert_eq!(poller.checkpoints()[RecordedSource::SHARD_ID], after(7));
}

#[tokio::test]
async fn a_batch_ends_before_the_payload_limit() {
    let filler = "x".repeat(4 * 1024 * 1024);
    let large = |n| {
        let json = serde_json::json!({"dynamodb": {"SequenceNumber": id(n), "Filler": filler}});
        serde_json::value::to_raw_value(&json).unwrap()
    };
    let source = RecordedSource::new(vec![large(1), large(2), record(3)]);
    let handler = Script::new(|_: &[u64]| Answer::Done);
    Poller::new(source, &handler, settings(100)).drain().await.unwrap();
    assert_eq!(handler.batches(), [vec![1], vec![2, 3]]);
}

#[tokio::test]
async fn children_start_when_their_parent_is_done_and_strangers_are_not_waited_for() {
    let source = RecordedSource::default()
        .with_shard("child-a", Some("parent"), records(10..=12))
        .with_shard("grandchild", Some("child-a"), records(20..=21))
        .with_shard("parent", Some("trimmed long ago"), records(1..=5))
        .with_shard("child-b", Some("parent"), records(30..=31));
    // The parent fails at first, so that a child that does not wait would overtake it.
    let stumbles = AtomicU32::new(0);
    let handler = Script::new(|batch: &[u64]| {
        let stumbles_now = batch == [3, 4] && stumbles.fetch_add(1, Ordering::Relaxed) < 3;
        if stumbles_now { Answer::Failed(vec![id(3)]) } else { Answer::Done }
    });
    let mut poller = Poller::new(source, &handler, settings(2));
    poller.drain().await.unwrap();
    let done = poller.checkpoints();
    let ends = [("child-a", 12), ("child-b", 31), ("grandchild", 21), ("parent", 5)];
    assert!(done.into_iter().eq(ends.map(|(id, last)| (id.to_owned(), after(last)))));
    let batches = handler.batches();
    let at = |batch: &[u64]| batches.iter().rposition(|b| b == batch).unwrap();
    assert!(at(&[5]) < at(&[10, 11]) && at(&[5]) < at(&[30, 31]));
    assert!(at(&[12]) < at(&[20, 21]));
}

#[tokio::test]
async fn a_partial_failure_starts_again_at_the_lowest_identifier() {
    let calls = AtomicU32::new(0);
    let handler = Script::new(|_: &[u64]| match calls.fetch_add(1, Ordering::Relaxed) {
        0 => Answer::Failed(vec![id(5), id(3), id(4)]),
        1 => Answer::Failed(vec![id(4)]),
        _ => Answer::Done,
    });
    let source = RecordedSource::new(records(1..=5));
    Poller::new(source, &handler, settings(100)).drain().await.unwrap();
    assert_eq!(handler.batches(), [vec![1, 2, 3, 4, 5], vec![3, 4, 5], vec![4, 5]]);
}

#[tokio::test]
async fn an_identifier_that_names_no_record_fails_the_whole_batch() {
    for odd in [None, Some(String::new()), Some("2".to_owned()), id(9)] {
        let calls = AtomicU32::new(0);
        let handler = Script::new(|_: &[u64]| match calls.fetch_add(1, Ordering::Relaxed) {
            0 => Answer::Failed(vec![id(3), odd.clone()]),
            _ => Answer::Done,
        });
        let mut poller = Poller::new(RecordedSource::new(records(1..=3)), &handler, settings(9));
        poller.drain().await.unwrap();
        assert_eq!(handler.batches(), [vec![1, 2, 3], vec![1, 2, 3]], "{odd:?}");
    }
}

#[tokio::test]
async fn halving_isolates_a_poison_record() {
    let handler = Script::new(|batch: &[u64]| match batch {
        [_] => Answer::Done,
        _ if batch.contains(&6) => Answer::Error,
        _ => Answer::Done,
    });
    let source = RecordedSource::new(records(1..=8));
    Poller::new(source, &handler, settings(8)).drain().await.unwrap();
    let expected: [&[u64]; 7] =
        [&[1, 2, 3, 4, 5, 6, 7, 8], &[1, 2, 3, 4], &[5, 6, 7, 8], &[5, 6], &[5], &[6], &[7, 8]];
    assert_eq!(handler.batches(), expected);
}

#[tokio::test(start_paused = true)]
async fn a_stopped_poller_starts_again_before_the_record_that_stopped_it() {
    let source = RecordedSource::new(records(1..=9));
    let poisoned =
        Script::new(
            |batch: &[u64]| {
                if batch.contains(&5) { Answer::Failed(vec![id(5)]) } else { Answer::Done }
            },
        );
    let hour = Duration::from_secs(3_600);
    let slow = Settings { backoff: Backoff { first: hour, longest: hour }, ..settings(4) };
    let mut poller = Poller::new(source.clone(), &poisoned, slow);
    assert!(poller.turn(Duration::from_secs(1), std::future::pending()).await.unwrap());

    // Checkpoints survive serialisation.
    let written = serde_json::to_string(&poller.checkpoints()).unwrap();
    let checkpoints = serde_json::from_str(&written).unwrap();
    let cured = Script::new(|_: &[u64]| Answer::Done);
    let mut poller = Poller::new(source, &cured, settings(4)).starting_after(checkpoints);
    poller.drain().await.unwrap();
    assert_eq!(cured.batches(), [vec![5, 6, 7, 8], vec![9]]);
}

#[tokio::test(start_paused = true)]
async fn retries_go_on_for_ever_with_growing_waits() {
    let start = tokio::time::Instant::now();
    let handler = Script::new(|_: &[u64]| {
        // A table that is throttled for a day.
        if start.elapsed() < Duration::from_secs(86_400) {
            Answer::Failed(vec![id(1)])
        } else {
            Answer::Done
        }
    });
    let settings = Settings {
        backoff: Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(60) },
        ..settings(2)
    };
    let source = RecordedSource::new(records(1..=2));
    Poller::new(source, &handler, settings).drain().await.unwrap();
    let retries = handler.batches().len() - 1;
    assert!((1_440..1_450).contains(&retries), "{retries}");
}

/// An open shard to which records are added while it is read.
#[derive(Default)]
struct Growing(Mutex<VecDeque<Box<RawValue>>>);

impl Source for &Growing {
    async fn shards(&self) -> Result<Vec<Shard>, Error> {
        Ok(vec![Shard { id: "open".into(), parent: None, is_closed: false }])
    }

    async fn read(&self, _: &str, _: Option<&Position>, limit: usize) -> Result<Page, Error> {
        let mut waiting = self.0.lock().unwrap();
        let take = limit.min(waiting.len());
        let records = waiting
            .drain(..take)
            .map(|json| Record { position: after(number(&json)), json })
            .collect();
        Ok(Page { records, ended: false })
    }
}

#[tokio::test]
async fn records_are_delivered_as_read_even_if_doubled_or_out_of_order() {
    let source = Growing(Mutex::new(records([2, 1, 2, 2]).into()));
    let handler = Script::new(|_: &[u64]| Answer::Done);
    Poller::new(&source, &handler, settings(1)).drain().await.unwrap();
    assert_eq!(handler.batches(), [[2], [1], [2], [2]]);
}

/// An open shard whose writers never pause: each read takes a second and finds a record that was
/// just made, by a clock that is so many seconds ahead of this machine's.
struct Busy {
    reads: AtomicU64,
    ahead_s: i64,
    began: (SystemTime, Instant),
}

impl Busy {
    fn new(ahead_s: i64) -> Self {
        Self { reads: AtomicU64::default(), ahead_s, began: (SystemTime::now(), Instant::now()) }
    }
}

impl Source for Busy {
    async fn shards(&self) -> Result<Vec<Shard>, Error> {
        (&Growing::default()).shards().await
    }

    async fn read(&self, _: &str, _: Option<&Position>, _: usize) -> Result<Page, Error> {
        let number = self.reads.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(1)).await;
        let created = self.began.0 + self.began.1.elapsed();
        let created_s = created.duration_since(UNIX_EPOCH).unwrap().as_secs();
        let created_s = created_s.checked_add_signed(self.ahead_s).unwrap();
        let change = serde_json::json!({
            "SequenceNumber": id(number), "ApproximateCreationDateTime": created_s,
        });
        let json = to_raw_value(&serde_json::json!({"dynamodb": change})).unwrap();
        let record = Record { position: after(number), json };
        Ok(Page { records: vec![record], ended: false })
    }
}

#[tokio::test(start_paused = true)]
async fn a_drain_ends_beside_writers_that_never_pause() {
    // If this machine's clock is ahead, the records of that time count as earlier ones.
    for (ahead_s, records) in [(0, 2..=4), (30, 2..=4), (-30, 31..=34)] {
        let handler = Script::new(|_: &[u64]| Answer::Done);
        let mut poller = Poller::new(Busy::new(ahead_s), &handler, settings(1));
        let drained = tokio::time::timeout(Duration::from_secs(60), poller.drain()).await;
        drained.expect("it ends").unwrap();
        let delivered = handler.batches();
        assert!(records.contains(&delivered.len()), "{ahead_s}: {delivered:?}");
        let last = after(delivered.concat().pop().unwrap());
        assert_eq!(poller.checkpoints()["open"], last, "what was read is delivered");
    }
}

#[tokio::test(start_paused = true)]
async fn turns_go_on_where_the_last_ended_until_the_shutdown() {
    let source = Growing::default();
    let handler = Script::new(|_: &[u64]| Answer::Done);
    let mut poller = Poller::new(&source, &handler, settings(10));
    let start = tokio::time::Instant::now();
    let mut shutdown = std::pin::pin!(tokio::time::sleep(Duration::from_secs(5)));
    let mut turns = 0;
    loop {
        source.0.lock().unwrap().push_back(record(turns));
        turns += 1;
        if !poller.turn(Duration::from_secs(2), shutdown.as_mut()).await.unwrap() {
            break;
        }
    }
    assert_eq!((turns, start.elapsed()), (3, Duration::from_secs(5)));
    assert_eq!(handler.batches(), [[0], [1], [2]]);
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_is_too_short_for_a_batch_delivers_what_it_read() {
    let handler = Script::new(|_: &[u64]| Answer::Done);
    let mut poller = Poller::new(Busy::new(0), &handler, settings(100));
    for turn in 1..=3 {
        poller.turn(Duration::from_millis(2_500), std::future::pending()).await.unwrap();
        assert_eq!(handler.batches().len(), turn);
    }
    let delivered = handler.batches().concat();
    assert!(delivered.is_sorted_by(|one, next| one + 1 == *next), "{delivered:?}");
}

#[tokio::test(start_paused = true)]
async fn shutting_down_cuts_a_retry_short_and_keeps_what_is_done() {
    let handler = Script::new(|_: &[u64]| Answer::Failed(vec![id(2)]));
    let hour = Duration::from_secs(3_600);
    let settings = Settings { backoff: Backoff { first: hour, longest: hour }, ..settings(2) };
    let start = tokio::time::Instant::now();
    let source = RecordedSource::new(records(1..=2));
    let mut poller = Poller::new(source.clone(), &handler, settings.clone());
    let shutdown = tokio::time::sleep(Duration::from_secs(1));
    assert!(!poller.turn(hour, shutdown).await.unwrap());
    assert_eq!(poller.checkpoints()[RecordedSource::SHARD_ID], after(1));
    assert_eq!(start.elapsed(), Duration::from_secs(1));

    // A drain whose deliveries fail for ever ends as well.
    let mut poller = Poller::new(source, &handler, settings);
    poller.drain_until(tokio::time::sleep(Duration::from_secs(1))).await.unwrap();
    assert_eq!(poller.checkpoints()[RecordedSource::SHARD_ID], after(1));
    assert_eq!(start.elapsed(), Duration::from_secs(2));
}

#[tokio::test]
async fn a_poller_can_run_in_a_task_of_its_own() {
    let handler = Script::new(|_: &[u64]| Answer::Done);
    let mut poller = Poller::new(RecordedSource::new(records(1..=3)), handler, settings(3));
    let run = async move { poller.drain().await.map(|()| poller.checkpoints()) };
    let done = tokio::spawn(run).await.unwrap().unwrap();
    assert_eq!(done[RecordedSource::SHARD_ID], after(3));
}
