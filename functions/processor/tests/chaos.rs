//! Adverse deliveries to the real `bootstrap` binary. Batches are split, repeated, repeated late,
//! out of order and beside newer ones; answers are lost or ask for more; a table throttles and
//! loses replies. The windows are exact at the end.
//!
//! Only the first delivery of a bucket's records is in order, as a stream's is. Two processes run
//! as one function, so that late and new batches are handled at the same time.
//! `SLUICEGATE_TEST_RECORDS` sets the number of records, for a soak; `SLUICEGATE_TEST_SEED` repeats
//! the seed that a failure named.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests panic")]

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_lambda_events::event::streams::{DynamoDbBatchItemFailure, DynamoDbEventResponse};
use fastrand::Rng;
use serde_json::json;
use serde_json::value::RawValue;
use sluicegate_core::StreamRecord;
use sluicegate_local::poller::{Backoff, BatchSize, Handler, Poller, Settings};
use sluicegate_local::{BoxError, EmbeddedEngine, Storage, client, table};
use sluicegate_testkit::history::{History, Shape};
use sluicegate_testkit::usage::read_usages;
use sluicegate_testkit::{
    AtLeastOnce, Fault, FunctionProcess, InvocationResult, Proxy, RecordedSource, RuntimeApi,
};
use tokio::task::JoinSet;

const TABLE: &str = "sluicegate-chaos";
/// Far more time than an invocation takes.
const LONG: Duration = Duration::from_secs(60);
/// Batches that may come again.
const REMEMBERED: usize = 50;

type Records = Vec<Box<RawValue>>;

/// A function behind a delivery that misbehaves.
struct Chaos {
    api: Arc<RuntimeApi>,
    state: Mutex<State>,
}

struct State {
    rng: Rng,
    /// Batches delivered before, in part or as a whole.
    past: Vec<Records>,
    /// Deliveries in flight beside the poller's own.
    late: JoinSet<()>,
    redeliveries: usize,
}

/// The answer that the poller gets for a batch that the function has handled.
enum Told {
    TheTruth,
    ThatItFailed,
    ThatItFailedFrom(Option<String>),
}

impl Chaos {
    fn new(api: Arc<RuntimeApi>, seed: u64) -> Self {
        let rng = Rng::with_seed(seed);
        let state = State { rng, past: Vec::new(), late: JoinSet::new(), redeliveries: 0 };
        Self { api, state: Mutex::new(state) }
    }

    /// Part of a past batch, in any order.
    fn redelivery(&self) -> Option<Records> {
        let State { rng, past, redeliveries, .. } = &mut *self.state.lock().unwrap();
        if past.is_empty() || rng.u8(..100) >= 40 {
            return None;
        }
        let batch = &past[rng.usize(..past.len())];
        let first = rng.usize(..batch.len());
        let mut part = batch[first..=rng.usize(first..batch.len())].to_vec();
        if rng.bool() {
            rng.shuffle(&mut part);
        }
        *redeliveries += 1;
        Some(part)
    }

    /// Lets a redelivery arrive after some time, concurrently with the current delivery.
    fn redeliver_later(&self, records: &[Box<RawValue>]) {
        let (api, event) = (self.api.clone(), event(records));
        let mut state = self.state.lock().unwrap();
        let delay = Duration::from_millis(state.rng.u64(..200));
        state.late.spawn(async move {
            tokio::time::sleep(delay).await;
            api.invoke(event, LONG).await;
        });
    }

    fn remember(&self, records: &[Box<RawValue>]) -> Told {
        let State { rng, past, .. } = &mut *self.state.lock().unwrap();
        if past.len() == REMEMBERED {
            past.swap_remove(rng.usize(..REMEMBERED));
        }
        past.push(records.to_vec());
        match rng.u8(..100) {
            0..10 => Told::ThatItFailed,
            10..20 => Told::ThatItFailedFrom(position(&records[rng.usize(..records.len())])),
            _ => Told::TheTruth,
        }
    }

    async fn invoke(&self, records: &[Box<RawValue>]) -> Result<DynamoDbEventResponse, BoxError> {
        match self.api.invoke(event(records), LONG).await {
            InvocationResult::Response(body) => Ok(serde_json::from_slice(&body)?),
            other => Err(format!("{other:?}").into()),
        }
    }
}

impl Handler for Chaos {
    type Error = BoxError;

    async fn handle(&self, records: &[Box<RawValue>]) -> Result<DynamoDbEventResponse, BoxError> {
        while let Some(part) = self.redelivery() {
            if part.len() % 2 == 0 {
                self.redeliver_later(&part);
            } else {
                self.invoke(&part).await?;
            }
        }
        let answer = self.invoke(records).await?;
        match self.remember(records) {
            Told::TheTruth => Ok(answer),
            Told::ThatItFailed => Err("told so".into()),
            // A failure that the function reported wins over an invented one.
            Told::ThatItFailedFrom(_) if !answer.batch_item_failures.is_empty() => Ok(answer),
            Told::ThatItFailedFrom(position) => {
                let mut failure = DynamoDbBatchItemFailure::default();
                failure.item_identifier = position;
                let mut answer = DynamoDbEventResponse::default();
                answer.batch_item_failures.push(failure);
                Ok(answer)
            }
        }
    }
}

fn event(records: &[Box<RawValue>]) -> Vec<u8> {
    serde_json::to_vec(&json!({"Records": records})).unwrap()
}

fn position(record: &RawValue) -> Option<String> {
    Some(StreamRecord::stream_and_sequence_of(record.get()).1?.to_string())
}

fn number(variable: &str) -> Option<u64> {
    Some(std::env::var(variable).ok()?.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn windows_are_exact_whatever_the_delivery_does() {
    let seed = number("SLUICEGATE_TEST_SEED").unwrap_or_else(|| fastrand::u64(..));
    let length = number("SLUICEGATE_TEST_RECORDS").unwrap_or(10_000).try_into().unwrap();
    println!("seed {seed}, {length} records");
    let shape = Shape { pause_ms: 20_000, ..Shape::new(seed, length) };
    let history = History::generate(&shape);

    let engine = EmbeddedEngine::start(Storage::Temporary).await.unwrap();
    let client = client::dynamodb(&engine.endpoint_url());
    table::create_table(&client, TABLE).await.unwrap();
    let proxy = Proxy::start(&engine.endpoint_url()).await;
    let faults = Mutex::new(Rng::with_seed(seed));
    proxy.inject(move |_| match faults.lock().unwrap().u8(..100) {
        0..2 => Fault::THROTTLED,
        2..4 => Fault::LoseReply,
        4 => Fault::INTERNAL,
        _ => Fault::None,
    });
    let api = Arc::new(RuntimeApi::start().await);
    let url = proxy.endpoint_url();
    let function = || {
        let env = [("TABLE_NAME", TABLE), ("AWS_ENDPOINT_URL", &url)];
        FunctionProcess::spawn(Path::new(env!("CARGO_BIN_EXE_bootstrap")), &api, env)
    };
    let functions = [function(), function()];

    let settings = Settings {
        batch_size: BatchSize::new(250).unwrap(),
        backoff: Backoff { first: Duration::ZERO, longest: Duration::ZERO },
    };
    let chaos = Chaos::new(api.clone(), seed);
    let source = RecordedSource::new(history.records.clone());
    let delivery = AtLeastOnce::seeded(&chaos, seed);
    Poller::new(source, &delivery, settings).drain().await.unwrap();
    let delivered = delivery.delivered();
    let State { late, redeliveries, .. } = chaos.state.into_inner().unwrap();
    late.join_all().await;

    println!("{delivered} records delivered, {redeliveries} redeliveries beside them");
    assert!(delivered > length && redeliveries > 10, "it was no chaos");
    let found = read_usages(&client, TABLE).await;
    assert!(found == history.windows, "seed {seed}: the windows are not those of the history");
    for function in functions {
        function.stop().await;
    }
    engine.stop().await.unwrap();
}
