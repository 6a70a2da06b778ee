//! Stored limits that change at random, on every level, under three processes: one asks the table
//! each time, one leases, one leases by prepared calls.
//!
//! Each process has its own cache and its own clock, seconds apart; each change is stamped by one
//! of these clocks. Time is simulated, and a read that may lag does.
//!
//! `SLUICEGATE_TEST_SEEDS=FROM..TO` runs other seeds.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sluicegate::store::{Consistency, Table, TableError};
use sluicegate::types::{BucketId, EntityRecord, LimitsScope};
use sluicegate::{CompositeStore, EntityId, LeaseSettings, Limit, Limiter, Resource};
use sluicegate_core::keys::ItemKey;
use sluicegate_core::{Change, LimitName, Rule, StoredLimits, WritePlan};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::simulated::Simulated;
use crate::support::{Memory, bucket, name, patient};

const SECOND: Duration = Duration::from_secs(1);
/// A copy of a level is valid for a minute; then the next request reads it again. A process that is
/// refused waits four seconds more if another one claimed with an older copy (ADR 14).
const FOLLOWED: Duration = Duration::from_secs(65);
/// The longest lag of an eventually consistent read.
const LAG: Duration = Duration::from_millis(300);
/// The offsets of the processes' clocks, in milliseconds.
const CLOCKS: [i64; 3] = [-4_000, 0, 3_000];
const SEEDS: std::ops::Range<u64> = 0..1;

/// A level as it was from some instant on.
type History = Vec<(Instant, StoredLimits)>;

/// A table whose levels the test changes, as one process reaches it.
#[derive(Debug, Clone, Default)]
struct SharedTable {
    buckets: Memory,
    levels: Arc<Mutex<HashMap<LimitsScope, History>>>,
    /// Writes of this process that no request asked for, by bucket: those that were done, and those
    /// that lost to another process.
    extra: Arc<Mutex<BTreeMap<BucketId, [u32; 2]>>>,
}

impl SharedTable {
    /// The same table as another process reaches it.
    fn of_another_process(&self) -> Self {
        Self { extra: Arc::default(), ..self.clone() }
    }

    fn level(&self, scope: &LimitsScope, consistency: Consistency) -> Option<StoredLimits> {
        let levels = self.levels.lock().unwrap();
        let lag = match consistency {
            Consistency::Strong => Duration::ZERO,
            Consistency::Eventual => LAG.mul_f64(fastrand::f64()),
        };
        let history = levels.get(scope)?.iter().rev();
        let mut visible = history.filter(|(since, _)| *since + lag <= Instant::now());
        visible.next().map(|(_, level)| level.clone())
    }

    /// Stores a limit on a level, or deletes it there.
    fn change(&self, scope: &LimitsScope, limit: &LimitName, rule: Option<Rule>, clock: Simulated) {
        let mut levels = self.levels.lock().unwrap();
        let history = levels.entry(scope.clone()).or_default();
        let now = sluicegate::Clock::now(&clock);
        let mut level = match history.last() {
            Some((_, last)) => {
                StoredLimits { updated_at: now, version: last.version + 1, ..last.clone() }
            }
            None => StoredLimits {
                scope: scope.clone(),
                rules: BTreeMap::new(),
                deleted: Default::default(),
                updated_at: now,
                version: 1,
            },
        };
        match rule {
            Some(rule) => {
                level.rules.insert(limit.clone(), rule);
                level.deleted.remove(limit);
            }
            None if level.rules.remove(limit).is_some() => {
                level.deleted.insert(limit.clone(), level.version);
            }
            None => return,
        }
        history.push((Instant::now(), level));
    }

    /// The limits that a bucket should have.
    fn wanted(&self, bucket: &BucketId) -> BTreeMap<LimitName, Rule> {
        let mut wanted = BTreeMap::new();
        for scope in LimitsScope::levels(bucket) {
            let level = self.level(&scope, Consistency::Strong);
            for (limit, rule) in level.into_iter().flat_map(|level| level.rules) {
                wanted.entry(limit).or_insert(rule);
            }
        }
        wanted
    }

    /// The limits that a bucket has.
    fn stored(&self, bucket: &BucketId) -> BTreeMap<LimitName, Rule> {
        let stored = self.buckets.stored_now(bucket);
        let limits = stored.iter().flat_map(|stored| &stored.limits);
        limits.map(|(limit, bucket)| (limit.clone(), bucket.rule)).collect()
    }

    fn note(&self, bucket: &BucketId, plan: &WritePlan, is_done: bool) {
        let is_of_request =
            |change: &Change| matches!(change, Change::Remember(_) | Change::Put(_));
        if !plan.changes.iter().any(is_of_request) {
            let mut extra = self.extra.lock().unwrap();
            extra.entry(bucket.clone()).or_default()[usize::from(!is_done)] += 1;
        }
    }

    async fn travel() {
        tokio::time::sleep(Duration::from_micros(fastrand::u64(2_000..6_000))).await;
    }
}

impl Table for SharedTable {
    async fn write(
        &self,
        bucket: &BucketId,
        plan: &WritePlan,
    ) -> Result<sluicegate::store::Written, sluicegate::store::WriteError> {
        Self::travel().await;
        let written = self.buckets.write(bucket, plan).await;
        self.note(bucket, plan, written.is_ok());
        Self::travel().await;
        written
    }

    async fn transact_write(
        &self,
        writes: &[(BucketId, WritePlan)],
        mark: Option<&sluicegate::store::Mark>,
        token: &str,
    ) -> Result<f64, sluicegate::store::TransactError> {
        Self::travel().await;
        let written = self.buckets.transact_write(writes, mark, token).await;
        Self::travel().await;
        written
    }

    async fn read(
        &self,
        keys: &[ItemKey],
        consistency: Consistency,
    ) -> Result<sluicegate::store::ReadItems, TableError> {
        Self::travel().await;
        let mut found = self.buckets.read(keys, consistency).await?;
        for (key, item) in keys.iter().zip(&mut found.items) {
            match key {
                ItemKey::Limits(scope) => {
                    *item = self.level(scope, consistency).map(|level| level.to_item());
                }
                ItemKey::Entity(entity) if *entity == child() => {
                    let parent = Some(EntityId::new("team").unwrap());
                    let record = EntityRecord { entity: entity.clone(), parent, cascade: true };
                    *item = Some(record.to_item());
                }
                _ => {}
            }
        }
        Self::travel().await;
        Ok(found)
    }
}

fn child() -> EntityId {
    EntityId::new("child").unwrap()
}

/// The entities that a process asks for: one with a parent and one without, which the others share,
/// and one that only it uses.
fn used_by(process: usize) -> [&'static str; 3] {
    ["child", "single", ["plain", "leased", "prepared"][process]]
}

/// All entities that have buckets.
const ENTITIES: [&str; 6] = ["team", "child", "single", "plain", "leased", "prepared"];

fn random_scope(random: &mut fastrand::Rng) -> LimitsScope {
    let entity = EntityId::new(ENTITIES[random.usize(..ENTITIES.len())]).unwrap();
    let resource = Resource::new("r").unwrap();
    match random.u8(..4) {
        0 => LimitsScope::EntityResource(entity, resource),
        1 => LimitsScope::Entity(entity),
        2 => LimitsScope::Resource(resource),
        _ => LimitsScope::System,
    }
}

/// So much a minute, or a quota.
fn random_rule(random: &mut fastrand::Rng) -> Rule {
    let amount = [6, 60, 600, 6_000, 60_000][random.usize(..5)];
    if random.u8(..3) == 0 { rule(Limit::quota("rpm", amount)) } else { a_minute(amount) }
}

fn a_minute(amount: u64) -> Rule {
    rule(Limit::per_minute("rpm", amount))
}

fn rule(limit: Limit) -> Rule {
    limit.check().unwrap().1
}

/// Starts a process that asks repeatedly for tokens of its buckets, each at a pace of its own.
fn start_process(tasks: &mut JoinSet<()>, table: &SharedTable, clock: Simulated, process: usize) {
    let store = CompositeStore::with_table(table.clone());
    let plain = patient(Limiter::builder(store).clock(clock));
    let store = CompositeStore::with_table(table.clone());
    let leased = Limiter::builder(store).clock(clock).leasing(LeaseSettings::default());
    let leased = patient(leased);
    for entity in used_by(process) {
        let tokens = [1, 1, 1, 500][fastrand::usize(..4)];
        // Tokens that are held cost little, also at a steady pace.
        let quickest_ms = if process == 0 { 70 } else { 7 };
        let pace = Duration::from_millis([quickest_ms, 100, 250][fastrand::usize(..3)]);
        let (plain, leased) = (plain.clone(), leased.clone());
        tasks.spawn(async move {
            let prepared = leased.acquire(entity, "r").consume("rpm", tokens).prepare();
            let prepared = if process == 2 { Some(prepared.await.unwrap()) } else { None };
            loop {
                match (process, &prepared) {
                    (_, Some(call)) => _ = call.acquire().await,
                    (0, _) => _ = plain.acquire(entity, "r").consume("rpm", tokens).await,
                    _ => _ = leased.acquire(entity, "r").consume("rpm", tokens).await,
                }
                tokio::time::sleep(pace).await;
            }
        });
    }
}

/// One random history of changes.
async fn history(seed: u64) {
    fastrand::seed(seed);
    let mut random = fastrand::Rng::with_seed(seed);
    let start = Instant::now();
    let table = SharedTable::default();
    let clock = |process: usize| Simulated { start, off_ms: CLOCKS[process] };
    // One level always names the requested limit.
    table.change(&LimitsScope::System, &name("rpm"), Some(a_minute(600)), clock(1));
    let tables: Vec<_> = CLOCKS.iter().map(|_| table.of_another_process()).collect();
    let mut processes = JoinSet::new();
    for (process, table) in tables.iter().enumerate() {
        start_process(&mut processes, table, clock(process), process);
    }
    let changes = random.u32(1..9);
    for _ in 0..changes {
        // Often within the difference of the clocks, sometimes when copies have expired.
        let longest_ms = if random.bool() { 8_000 } else { 70_000 };
        tokio::time::sleep(Duration::from_millis(random.u64(..longest_ms))).await;
        let scope = random_scope(&mut random);
        let limit = name(["rpm", "rpm", "rpm", "tpm"][random.usize(..4)]);
        let is_deleted = random.u8(..4) == 0 && scope != LimitsScope::System;
        let rule = (!is_deleted).then(|| random_rule(&mut random));
        table.change(&scope, &limit, rule, clock(random.usize(..3)));
    }
    tokio::time::sleep(FOLLOWED).await;
    let after = Instant::now();
    while after.elapsed() < FOLLOWED {
        for bucket in ENTITIES.map(|entity| bucket(entity, "r")) {
            let (stored, wanted) = (table.stored(&bucket), table.wanted(&bucket));
            let since = after.elapsed();
            assert_eq!(stored, wanted, "seed {seed}: {bucket}, {since:?} after it should follow");
        }
        tokio::time::sleep(SECOND / 4).await;
    }
    for bucket in ENTITIES.map(|entity| bucket(entity, "r")) {
        let extra = |table: &SharedTable| table.extra.lock().unwrap().get(&bucket).copied();
        let extra: Vec<_> = tables.iter().map(|table| extra(table).unwrap_or_default()).collect();
        let case = format!("seed {seed}: {changes} changes, [done, lost] on {bucket}: {extra:?}");
        // The first process brings a change; the others find it there, or lose to it.
        assert!(extra.iter().map(|[done, _]| done).sum::<u32>() <= changes, "{case}");
        assert!(extra.iter().all(|[_, lost]| *lost <= changes), "{case}");
    }
    processes.shutdown().await;
}

fn seeds() -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("SLUICEGATE_TEST_SEEDS") else { return SEEDS };
    let (from, to) = text.split_once("..").expect("SLUICEGATE_TEST_SEEDS is FROM..TO");
    from.parse().unwrap()..to.parse().unwrap()
}

#[tokio::test(start_paused = true)]
async fn buckets_follow_stored_limits_within_a_minute_and_stay_so() {
    for seed in seeds() {
        history(seed).await;
    }
}
