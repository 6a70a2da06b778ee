//! `migrate` on a table in use: killed twice and started again, while producers of this library
//! acquire from every bucket of it. Nothing is lost, nothing is counted twice.
//!
//! `SLUICEGATE_TEST_BUCKETS` sets how many buckets of two limits, for a soak.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_sdk_dynamodb::types::Select;
use sluicegate::dynamo::DynamoTable;
use sluicegate::{Clock, CompositeStore, Limiter, OnUnavailable, SystemClock};
use sluicegate_core::fixtures::{at, milli, rule};
use sluicegate_core::keys::LegacyKey;
use sluicegate_core::{CompositeBucket, LegacyLimit};
use sluicegate_local::poller::{Poller, Settings as PollerSettings};
use sluicegate_local::{EmbeddedEngine, InProcess, Storage};
use sluicegate_processor::{Processor, Settings};
use sluicegate_testkit::legacy::{self, key};
use sluicegate_testkit::usage::{read_quarantine, read_usages, scan};
use sluicegate_testkit::{EngineKind, Fault, Proxy, RunningEngine, engines_under_test};

use crate::support::{Said, Shell, finish};

const LIMITERS: usize = 2;
const TASKS_OF_EACH: usize = 3;
/// Longer than any answer takes: every producer knows the result of its calls.
const DEADLINE: Duration = Duration::from_secs(60);
const RPM_MILLI: i64 = 1_000;
const TPM_MILLI: i64 = 10_000;
/// The number of a hundred buckets that only the command may convert in each of its first two runs.
const RESERVED: [usize; 2] = [60, 30];
/// The number of a hundred after which it is killed.
const KILLED_AFTER: usize = 10;

/// Acquires that were granted, by entity.
type Grants = BTreeMap<String, i64>;

fn buckets(kind: &EngineKind) -> usize {
    let asked = std::env::var("SLUICEGATE_TEST_BUCKETS").ok();
    let default = if *kind == EngineKind::Embedded { 600 } else { 100 };
    asked.map_or(default, |asked| asked.parse().expect("a number of buckets"))
}

fn entity(n: usize) -> String {
    format!("user-{n}")
}

/// A quota, and a limit that refills and is never full: the result for either is known exactly.
fn items(buckets: usize) -> Vec<(LegacyKey, LegacyLimit)> {
    let mut rng = fastrand::Rng::with_seed(17);
    let now = SystemClock.now().get();
    let mut item = |n: usize, limit: &str, refill_milli: i64| {
        let bucket = LegacyLimit {
            rule: rule(1_000_000_000_000, refill_milli, 60_000),
            tokens: milli(rng.i64(500_000_000..600_000_000)),
            refilled_at: at(now - rng.i64(1..3_600_000)),
            consumed: Some(milli(rng.i64(0..1_000_000))),
            expires_at_s: None,
        };
        (key(&entity(n), "gpt-4", limit), bucket)
    };
    (0..buckets).flat_map(|n| [item(n, "rpm", 0), item(n, "tpm", 7_777)]).collect()
}

/// Producers that acquire from all buckets, over and over.
struct Producers {
    tasks: Vec<tokio::task::JoinHandle<Grants>>,
    work: Arc<Work>,
}

struct Work {
    buckets: usize,
    is_over: AtomicBool,
    /// Buckets that no producer has acquired from yet.
    untouched: Mutex<Vec<usize>>,
    /// The number of them that producers must not touch for now.
    reserved: AtomicUsize,
}

impl Work {
    /// Every bucket once, as soon as that is allowed; in between, any earlier one.
    fn next(&self, rng: &mut fastrand::Rng) -> usize {
        let mut untouched = self.untouched.lock().unwrap();
        if untouched.len() > self.reserved.load(Ordering::Relaxed) {
            return untouched.pop().unwrap();
        }
        loop {
            let any = rng.usize(..self.buckets);
            if !untouched.contains(&any) {
                return any;
            }
        }
    }
}

impl Producers {
    fn start(shell: &Shell, buckets: usize) -> Self {
        let mut untouched: Vec<_> = (0..buckets).collect();
        fastrand::Rng::with_seed(18).shuffle(&mut untouched);
        let work = Arc::new(Work {
            buckets,
            is_over: AtomicBool::new(false),
            untouched: Mutex::new(untouched),
            reserved: AtomicUsize::new(buckets * RESERVED[0] / 100),
        });
        let mut tasks = Vec::new();
        for _ in 0..LIMITERS {
            let table = DynamoTable::new(shell.engine.client(), &shell.table).converting_legacy();
            let limiter = Limiter::builder(CompositeStore::with_table(table))
                .deadline(DEADLINE)
                .on_unavailable(OnUnavailable::Deny)
                .build();
            for _ in 0..TASKS_OF_EACH {
                let seed = tasks.len() as u64;
                tasks.push(tokio::spawn(produce(limiter.clone(), work.clone(), seed)));
            }
        }
        Self { tasks, work }
    }

    fn reserve(&self, percent: usize) {
        self.work.reserved.store(self.work.buckets * percent / 100, Ordering::Relaxed);
    }

    /// Lets them acquire from the rest, and stops them.
    async fn stop(self) -> Grants {
        self.reserve(0);
        while !self.work.untouched.lock().unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.work.is_over.store(true, Ordering::Relaxed);
        let mut together = Grants::new();
        for task in self.tasks {
            for (entity, grants) in task.await.unwrap() {
                *together.entry(entity).or_default() += grants;
            }
        }
        together
    }
}

async fn produce(limiter: Limiter, work: Arc<Work>, seed: u64) -> Grants {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut grants = Grants::new();
    while !work.is_over.load(Ordering::Relaxed) {
        let entity = entity(work.next(&mut rng));
        let request = limiter.acquire(&entity, "gpt-4").no_cascade();
        let request = request.consume_milli("rpm", RPM_MILLI).consume_milli("tpm", TPM_MILLI);
        request.await.unwrap_or_else(|error| panic!("{entity}: {error:?}"));
        *grants.entry(entity).or_default() += 1;
    }
    grants
}

async fn legacy_left(shell: &Shell) -> usize {
    let (mut left, mut start) = (0, None);
    loop {
        let scan = shell.engine.client().scan().table_name(&shell.table).select(Select::Count);
        let scan = scan.filter_expression("attribute_exists(last_refill_ms)");
        let page = scan.set_exclusive_start_key(start).send().await.unwrap();
        left += usize::try_from(page.count).unwrap();
        start = page.last_evaluated_key;
        if start.is_none() {
            return left;
        }
    }
}

/// Runs the command until it has sent so many transactions, and kills it in the middle of the next.
async fn kill_after(shell: &Shell, transactions: u64) {
    let proxy = Proxy::start(shell.engine.endpoint_url()).await;
    proxy.inject(move |call| match call.operation {
        // Some never arrive, some take effect when the command is long dead.
        "TransactWriteItems" if call.number > transactions && call.number.is_multiple_of(2) => {
            Fault::Late(Duration::from_millis(300))
        }
        "TransactWriteItems" if call.number > transactions => Fault::Delay(DEADLINE * 60),
        _ => Fault::None,
    });
    let mut command = shell.command();
    command.env("AWS_ENDPOINT_URL", proxy.endpoint_url()).args(["migrate", "--yes"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    while proxy.received("TransactWriteItems") <= transactions + 2 {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it could be killed");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // Until the writes in flight have taken effect.
    tokio::time::sleep(Duration::from_millis(600)).await;
}

fn migrate(shell: &Shell) -> Said {
    finish(shell.command().args(["migrate", "--yes", "--output", "json"]))
}

/// Compares the table with the known results.
async fn check(shell: &Shell, items: &[(LegacyKey, LegacyLimit)], grants: &Grants) {
    let client = shell.engine.client();
    let mut composites = BTreeMap::new();
    for item in scan(client, &shell.table).await {
        if let Some(image) = CompositeBucket::from_item(&item.into()).unwrap() {
            composites.insert(image.entity.to_string(), image);
        }
    }
    assert_eq!(composites.len(), items.len() / 2);
    for (key, before) in items {
        let image = &composites[key.bucket.entity.as_str()];
        let after = image.limits[&key.limit];
        let each = if key.limit.as_str() == "rpm" { RPM_MILLI } else { TPM_MILLI };
        let taken = grants[key.bucket.entity.as_str()] * each;
        assert_eq!(after.rule, before.rule);
        assert_eq!(
            after.consumed.get(),
            i128::from(before.consumed.unwrap().get() + taken),
            "{key:?}"
        );
        let accrued = before.rule.refill().accrued_between(before.refilled_at, image.refilled_at);
        let expected = before.tokens.get() - taken + i64::try_from(accrued).unwrap();
        assert_eq!(after.tokens.get(), expected, "{key:?}");
    }
}

/// Counts the whole stream, and compares the windows with the grants.
async fn check_windows(shell: &Shell, grants: &Grants) {
    let client = shell.engine.client();
    let processor = Processor::new(client.clone(), Settings::new(&shell.table));
    let function = InProcess::new(processor, DEADLINE);
    let stream = shell.engine.stream(&shell.table).await;
    Poller::new(stream, function, PollerSettings::default()).drain().await.unwrap();
    for kind in ["hour", "day"] {
        let mut counted = Grants::new();
        for ((entity, _, _, _), usage) in
            read_usages(client, &shell.table).await.into_iter().filter(|(id, _)| id.2 == kind)
        {
            let (rpm, tpm) = (usage.consumed_milli["rpm"], usage.consumed_milli["tpm"]);
            assert_eq!(tpm * i128::from(RPM_MILLI), rpm * i128::from(TPM_MILLI));
            *counted.entry(entity).or_default() += i64::try_from(rpm).unwrap() / RPM_MILLI;
        }
        assert_eq!(&counted, grants, "{kind}");
    }
    assert!(read_quarantine(client, &shell.table).await.is_empty());
}

async fn convert_in_use(shell: &Shell, buckets: usize) {
    let items = items(buckets);
    let placed = items.iter().map(|(key, bucket)| legacy::item(key, bucket));
    legacy::put(shell.engine.client(), &shell.table, placed).await;

    let producers = Producers::start(shell, buckets);
    for reserved in RESERVED {
        producers.reserve(reserved);
        kill_after(shell, (buckets * KILLED_AFTER / 100) as u64).await;
    }
    let report = migrate(shell).json(0);
    assert!(report["converted_buckets"].as_u64() > Some(0), "{report}");
    assert_eq!(legacy_left(shell).await, 0, "{report}");
    let grants = producers.stop().await;
    assert_eq!(grants.len(), buckets);
    let again = migrate(shell).json(0);
    assert_eq!(again["converted_buckets"], 0, "{again}");

    check(shell, &items, &grants).await;
    check_windows(shell, &grants).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_bucket_of_a_table_in_use_is_converted_once() {
    for kind in engines_under_test() {
        let buckets = buckets(&kind);
        let file = match kind {
            // In memory, each write would scan the whole stream.
            EngineKind::Embedded => Some(EmbeddedEngine::start(Storage::Temporary).await.unwrap()),
            _ => None,
        };
        let kind = file.as_ref().map_or(kind, |file| EngineKind::Endpoint(file.endpoint_url()));
        let engine = RunningEngine::start(kind).await;
        let table = engine.create_table().await;
        let shell = Shell { engine, table };
        convert_in_use(&shell, buckets).await;
        shell.engine.stop().await;
        if let Some(file) = file {
            file.stop().await.unwrap();
        }
    }
}
