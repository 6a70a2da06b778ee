use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use serde_dynamo::Item;
use sluicegate_core::keys::LimitsScope;
use sluicegate_core::{
    Change, ConfigStamp, LevelVersions, LimitName, Millitokens, Refill, RequestId, Resource, Rule,
    StoredLimits, WritePlan,
};

use super::*;
use crate::clock::TestClock;
use crate::composite::directory::Directory;
use crate::leasing_store::LeaseCalls as _;
use crate::lock::lock;
use crate::memory::MemoryTable;
use crate::store::{BucketGrant, Store as _};
use crate::table::{ReadItems, TableError, TransactError, WriteError, Written};
use sluicegate_core::KnownImage;

/// Buckets in memory. Every entity is a child of its own team, and has limits of its own.
#[derive(Default)]
struct OwnLimits {
    memory: MemoryTable,
    reads: AtomicU32,
    /// Changes of the limits since the first version.
    changes: AtomicU64,
    /// The ids of the writes that took.
    written: Mutex<Vec<RequestId>>,
}

fn rules() -> Rules {
    let amount = Millitokens::from_tokens(1_000).unwrap();
    let rule = Rule::new(amount, Refill::new(amount, 60_000).unwrap()).unwrap();
    Rules::from([(LimitName::new("rpm").unwrap(), rule)])
}

fn stored(key: &ItemKey, version: u64) -> Option<Item> {
    match key {
        ItemKey::Entity(entity) if !entity.as_str().starts_with("team") => {
            let parent = EntityId::new(format!("team-{entity}")).ok();
            let record = EntityRecord { entity: entity.clone(), parent, cascade: true };
            Some(record.to_item())
        }
        ItemKey::Limits(scope @ LimitsScope::Entity(_)) => {
            let (scope, deleted) = (scope.clone(), Default::default());
            let updated_at = EpochMillis::new(1).unwrap();
            let stored = StoredLimits { scope, rules: rules(), deleted, updated_at, version };
            Some(stored.to_item())
        }
        _ => None,
    }
}

impl Table for OwnLimits {
    async fn write(&self, bucket: &BucketId, plan: &WritePlan) -> Result<Written, WriteError> {
        let remembered = plan.changes.iter().filter_map(|change| match change {
            Change::Remember(id) => Some(id.clone()),
            _ => None,
        });
        lock(&self.written).extend(remembered);
        self.memory.write(bucket, plan).await
    }

    async fn transact_write(
        &self,
        writes: &[(BucketId, WritePlan)],
        mark: Option<&crate::store::Mark>,
        token: &str,
    ) -> Result<f64, TransactError> {
        self.memory.transact_write(writes, mark, token).await
    }

    async fn read(&self, keys: &[ItemKey], with: Consistency) -> Result<ReadItems, TableError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let version = 1 + self.changes.load(Ordering::Relaxed);
        let mut found = self.memory.read(keys, with).await?;
        for (key, item) in keys.iter().zip(&mut found.items) {
            *item = item.take().or_else(|| stored(key, version));
        }
        tokio::task::yield_now().await;
        Ok(found)
    }
}

fn store(remembers: usize) -> CompositeStore<OwnLimits> {
    let mut store = CompositeStore::with_table(OwnLimits::default());
    store.directory = Directory::remembering(remembers);
    store
}

const TIME: Duration = Duration::from_secs(20);

fn request(entity: &str) -> Request {
    Request {
        entity: EntityId::new(entity).unwrap(),
        resource: Resource::new("r").unwrap(),
        amounts: [(LimitName::new("rpm").unwrap(), Millitokens::from_tokens(1).unwrap())].into(),
        limits: Arc::default(),
        parent_limits: None,
        cascade: Cascade::Stored,
        deadline: TIME,
    }
}

fn clock() -> TestClock {
    TestClock::at(EpochMillis::new(1_769_608_800_000).unwrap())
}

#[tokio::test]
async fn parent_is_charged_however_little_the_directory_remembers() {
    for remembers in [0, 1, 16] {
        let (store, clock) = (store(remembers), clock());
        for turn in 0..3 {
            let entities: Vec<_> = (0..400).map(|n| format!("u{n}")).collect();
            let acquire = async |entity: &String| store.acquire(&request(entity), &clock).await;
            for (entity, grant) in entities.iter().zip(join_all(entities.iter().map(acquire)).await)
            {
                let parts: Vec<BucketGrant> = grant.unwrap().parts;
                let charged: Vec<_> =
                    parts.iter().map(|part| part.bucket.entity.as_str()).collect();
                assert_eq!(charged, [entity.as_str(), &format!("team-{entity}")], "turn {turn}");
            }
        }
    }
}

/// A clock whose every reading is a minute after the one before.
struct Leaping(TestClock);

impl crate::clock::Clock for Leaping {
    fn now(&self) -> EpochMillis {
        self.0.advance(Duration::from_secs(60));
        self.0.now()
    }

    fn sleep(&self, time: Duration) -> futures_util::future::BoxFuture<'static, ()> {
        self.0.sleep(time)
    }

    fn share(&self) -> Arc<dyn crate::clock::Clock> {
        self.0.share()
    }
}

#[tokio::test]
async fn parent_is_charged_when_its_record_expires_meanwhile() {
    let (store, clock) = (store(1_000), Leaping(clock()));
    for _ in 0..3 {
        let grant = store.acquire(&request("u"), &clock).await.unwrap();
        assert_eq!(grant.parts.len(), 2);
    }
}

/// In an outage, every request asks for the known data: none may begin a call on the table.
#[tokio::test]
async fn nothing_is_read_for_a_request_without_time() {
    let (store, clock) = (store(1_000), clock());
    let grant = store.acquire(&request("u"), &clock).await.unwrap();
    let part = &grant.parts[0];
    let mut ahead = part.image.as_deref().unwrap().clone();
    ahead.config_stamp = ConfigStamp::Versions(LevelVersions([0, 2, 0, 0]));
    let (image, as_of) = (Some(Arc::new(ahead)), EpochMillis::new(1_769_608_800_000).unwrap());
    store.known_bucket(&part.bucket).newest.learn_unless_older(KnownImage {
        image,
        as_of,
        is_authoritative: true,
    });
    let reads = store.table.reads.load(Ordering::Relaxed);
    let parts = store.parts(&request("u"), Duration::ZERO, &clock).await.unwrap().unwrap();
    assert_eq!(parts.len(), 2);
    assert_eq!(store.table.reads.load(Ordering::Relaxed), reads);
    // With time, it reads.
    store.parts(&request("u"), TIME, &clock).await.unwrap();
    assert_eq!(store.table.reads.load(Ordering::Relaxed), reads + 1);
}

/// If the first write happened after all, the queue gives its tokens back: the request must not
/// take them for its own when it enters again.
#[tokio::test]
async fn a_request_whose_limits_are_read_again_enters_under_another_id() {
    let (store, clock) = (store(1_000), clock());
    let request = Request { cascade: Cascade::No, ..request("u") };
    store.acquire(&request, &clock).await.unwrap();
    let other = CompositeStore { table: store.table.clone(), ..self::store(1_000) };
    store.table.changes.store(1, Ordering::Relaxed);
    clock.advance(Duration::from_secs(1));
    other.acquire(&request, &clock).await.unwrap();
    lock(&store.table.written).clear();
    let reads = store.table.reads.load(Ordering::Relaxed);
    // Its first write comes second, and the item follows newer limits.
    store.acquire(&request, &clock).await.unwrap();
    assert_eq!(store.table.reads.load(Ordering::Relaxed), reads + 1);
    let written = lock(&store.table.written).clone();
    assert_eq!(written.len(), 2);
    assert_ne!(written[0], written[1]);
}

/// A read that began before this process changed the limits may be answered after that.
#[test]
fn late_answer_does_not_undo_what_this_process_stored() {
    let (directory, now) = (Directory::default(), EpochMillis::new(1_000).unwrap());
    let key = ItemKey::Limits(LimitsScope::Entity(EntityId::new("u").unwrap()));
    let old = StoredLimits::from_item(&stored(&key, 1).unwrap()).unwrap().unwrap();
    directory.note_limits(&old.scope, Some(&StoredLimits { version: 2, ..old.clone() }), now);
    let learn = |consistency, version| {
        let item = StoredLimits { version, ..old.clone() }.to_item();
        directory.learn(&key, Some(&item), consistency, now).unwrap();
        let bucket =
            BucketId { entity: EntityId::new("u").unwrap(), resource: Resource::new("r").unwrap() };
        directory.levels(&bucket, now).rules().versions
    };
    assert_eq!(learn(Consistency::Eventual, 1), LevelVersions([0, 2, 0, 0]));
    assert_eq!(learn(Consistency::Eventual, 3), LevelVersions([0, 3, 0, 0]));
    // It was restored from a backup.
    assert_eq!(learn(Consistency::Strong, 1), LevelVersions([0, 1, 0, 0]));
}

/// A replica may answer with the record as it was before.
#[test]
fn late_answer_does_not_undo_an_entity_that_this_process_changed() {
    let (directory, now) = (Directory::default(), EpochMillis::new(1_000).unwrap());
    let entity = EntityId::new("u").unwrap();
    let (key, later) = (ItemKey::Entity(entity.clone()), EpochMillis::new(62_000).unwrap());
    let old = stored(&key, 1).unwrap();
    let learn = |now| {
        directory.learn(&key, Some(&old), Consistency::Eventual, now).unwrap();
        directory.entity(&entity, now).unwrap()
    };
    assert!(learn(now).is_some());
    directory.note_entity(&entity, Some(None), now);
    assert_eq!(learn(now), None, "it was deleted");
    assert!(learn(later).is_some(), "and stored again by another process");
}

#[tokio::test]
async fn configuration_is_kept_while_other_entities_are_learned() {
    let (store, clock) = (store(100_000), clock());
    let configuration = async |entity: &str| {
        let parts = store.parts(&request(entity), TIME, &clock).await.unwrap().unwrap();
        parts.into_iter().map(|part| part.configuration).collect::<Vec<_>>()
    };
    let warm = configuration("u").await;
    for n in 0..2_000 {
        configuration(&format!("cold-{n}")).await;
    }
    let same = |(a, b): (&Arc<Configuration>, &Arc<Configuration>)| Arc::ptr_eq(a, b);
    assert!(warm.iter().zip(&configuration("u").await).all(same), "made again");
    // A change of one of its own levels is noticed.
    store.directory.note_limits(&LimitsScope::System, None, EpochMillis::new(0).unwrap());
    assert!(!warm.iter().zip(&configuration("u").await).any(same), "not made again");
}
