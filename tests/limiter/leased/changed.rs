//! Limits and parents that change while a process holds tokens.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sluicegate::leasing::{Accounting, PreparedPermit};
use sluicegate::store::{
    Consistency, ReadItems, Table, TableError, TransactError, WriteError, Written,
};
use sluicegate::types::{BucketId, EntityRecord, LimitsScope, StoredLimits};
use sluicegate::{EntityId, LeaseMode, LeaseSettings, Limit, Limiter};
use sluicegate_core::keys::ItemKey;
use sluicegate_core::{Rule, WritePlan};
use tokio::time::{Instant, sleep};

use super::{Counted, SECOND, leased};
use crate::simulated::Simulated;
use crate::support::{Shared as _, T0, at, bucket, name};

const MINUTE: Duration = Duration::from_secs(60);
/// The time between two requests.
const PACE: Duration = Duration::from_millis(7);
const AWAY_MS: u64 = 8;

/// A table that also stores limits and entities.
#[derive(Debug, Clone)]
struct Configured {
    counted: Counted,
    limits: Arc<Mutex<HashMap<LimitsScope, StoredLimits>>>,
    entities: Arc<Mutex<HashMap<EntityId, EntityRecord>>>,
    /// The number of limits and entities that were read.
    lookups: Arc<AtomicU64>,
    start: Instant,
}

impl Configured {
    fn new() -> Self {
        let counted = Counted::new(AWAY_MS);
        let (limits, entities, lookups) = Default::default();
        Self { counted, limits, entities, lookups, start: Instant::now() }
    }

    fn limiter(&self, mode: LeaseMode) -> Limiter {
        let clock = Simulated { start: self.start, off_ms: 0 };
        leased(self.clone(), clock, LeaseSettings { mode, ..LeaseSettings::default() })
    }

    /// Stores limits of the system.
    fn set_limits(&self, limits: &[(&str, Rule)]) {
        self.set_limits_of(LimitsScope::System, limits);
    }

    fn set_limits_of(&self, scope: LimitsScope, limits: &[(&str, Rule)]) {
        let rules = limits.iter().map(|(limit, rule)| (name(limit), *rule)).collect();
        let passed = i64::try_from(self.start.elapsed().as_millis()).unwrap();
        let (dropped, updated_at) = (Default::default(), at(T0 + passed));
        let mut limits = self.limits.lock().unwrap();
        let version = limits.get(&scope).map_or(1, |stored| stored.version + 1);
        let stored = StoredLimits { scope: scope.clone(), rules, dropped, updated_at, version };
        limits.insert(scope, stored);
    }

    fn put_entity(&self, entity: &str, parent: &str) {
        let [entity, parent] = [entity, parent].map(|entity| bucket(entity, "r").entity);
        let record = EntityRecord { entity: entity.clone(), parent: Some(parent), cascade: true };
        self.entities.lock().unwrap().insert(entity, record);
    }

    fn lookups(&self) -> u64 {
        self.lookups.swap(0, Ordering::Relaxed)
    }

    async fn consumed(&self, entity: &str) -> i64 {
        super::consumed(&self.counted, entity).await
    }
}

impl Table for Configured {
    async fn write(&self, bucket: &BucketId, plan: &WritePlan) -> Result<Written, WriteError> {
        self.counted.write(bucket, plan).await
    }

    async fn transact_write(
        &self,
        writes: &[(BucketId, WritePlan)],
        mark: Option<&sluicegate::store::Mark>,
        token: &str,
    ) -> Result<f64, TransactError> {
        self.counted.transact_write(writes, mark, token).await
    }

    async fn read(
        &self,
        keys: &[ItemKey],
        consistency: Consistency,
    ) -> Result<ReadItems, TableError> {
        let mut found = self.counted.read(keys, consistency).await?;
        for (key, item) in keys.iter().zip(&mut found.items) {
            *item = match key {
                ItemKey::Limits(scope) => {
                    self.limits.lock().unwrap().get(scope).map(StoredLimits::to_item)
                }
                ItemKey::Entity(entity) => {
                    self.entities.lock().unwrap().get(entity).map(EntityRecord::to_item)
                }
                _ => continue,
            };
            self.lookups.fetch_add(1, Ordering::Relaxed);
        }
        Ok(found)
    }
}

fn per_minute(tokens: i64) -> Rule {
    let amount = sluicegate::types::Millitokens::from_tokens(tokens).unwrap();
    Rule::new(amount, sluicegate::types::Refill::new(amount, 60_000).unwrap()).unwrap()
}

/// The number of requests at a steady pace that were admitted in this time.
async fn admitted(time: Duration, ask: impl AsyncFn() -> bool) -> i64 {
    let until = Instant::now() + time;
    let mut admitted = 0;
    while Instant::now() < until {
        admitted += i64::from(ask().await);
        sleep(PACE).await;
    }
    admitted
}

const MODES: [LeaseMode; 3] = [
    LeaseMode::Strict(Accounting::AtLease),
    LeaseMode::WriteBehind { threshold: 50 },
    // Never low.
    LeaseMode::WriteBehind { threshold: 1_000_000 },
];

/// Lowers limits to 60 a minute; returns the admissions in the minute after the first.
async fn after_lowering(
    table: &Configured,
    lower: impl FnOnce(),
    ask: impl AsyncFn() -> bool,
) -> i64 {
    assert!(admitted(5 * SECOND, &ask).await > 600);
    table.lookups();
    lower();
    admitted(MINUTE + SECOND, &ask).await;
    admitted(MINUTE, &ask).await
}

/// The burst at most, and what is earned.
const LOWERED: std::ops::RangeInclusive<i64> = 55..=120;

#[tokio::test(start_paused = true)]
async fn leased_steady_pace_follows_stored_limits() {
    for mode in MODES {
        for is_prepared in [false, true] {
            let table = Configured::new();
            let limiter = table.limiter(mode);
            table.set_limits(&[("rps", per_minute(60_000))]);
            let ask = || limiter.acquire("u0", "r").consume("rps", 1).no_cascade();
            let call = ask().prepare().await.unwrap();
            let lower = || table.set_limits(&[("rps", per_minute(60))]);
            let admitted = if is_prepared {
                after_lowering(&table, lower, async || call.acquire().await.is_ok()).await
            } else {
                after_lowering(&table, lower, async || ask().await.is_ok()).await
            };
            let case = format!("{mode:?}, prepared {is_prepared}: {admitted} admitted");
            println!("{case}, {} lookups", table.lookups());
            assert!(LOWERED.contains(&admitted), "{case}");
        }
    }
}

/// Limits in a request: the newest request's limits hold.
#[tokio::test(start_paused = true)]
async fn leased_steady_pace_follows_limits_of_requests() {
    for mode in MODES {
        let table = Configured::new();
        let limiter = table.limiter(mode);
        let per_minute = AtomicU64::new(60_000);
        let ask = async || {
            let limits = [Limit::per_minute("rps", per_minute.load(Ordering::Relaxed))];
            let request = limiter.acquire("u0", "r").consume("rps", 1).limits(limits);
            request.no_cascade().await.is_ok()
        };
        let lower = || per_minute.store(60, Ordering::Relaxed);
        let admitted = after_lowering(&table, lower, ask).await;
        assert!(LOWERED.contains(&admitted), "{mode:?}: {admitted} admitted");
        assert_eq!(table.lookups(), 0);
    }
}

/// They follow at once, also where a commit is the only write.
#[tokio::test(start_paused = true)]
async fn leased_requests_by_names_follow_their_newest_limits_at_once() {
    for mode in MODES {
        let table = Configured::new();
        let limiter = table.limiter(mode);
        let ask = async |per_minute| {
            let limits = [Limit::per_minute("rps", per_minute)];
            let request = limiter.acquire("u0", "r").consume("rps", 1).limits(limits);
            request.no_cascade().await.is_ok()
        };
        assert!(admitted(5 * SECOND, async || ask(60_000).await).await > 600);
        admitted(2 * SECOND, async || ask(60).await).await;
        let after = admitted(MINUTE, async || ask(60).await).await;
        assert!(LOWERED.contains(&after), "{mode:?}: {after} admitted");
    }
}

/// A call that is prepared anew brings its limits, though its tokens are there already.
#[tokio::test(start_paused = true)]
async fn leased_prepared_anew_follows_its_limits() {
    for mode in MODES {
        let table = Configured::new();
        let limiter = table.limiter(mode);
        let prepare = async |per_minute| {
            let limits = [Limit::per_minute("rps", per_minute)];
            let request = limiter.acquire("u0", "r").consume("rps", 1).limits(limits);
            request.no_cascade().prepare().await.unwrap()
        };
        let call = prepare(60_000).await;
        assert!(admitted(5 * SECOND, async || call.acquire().await.is_ok()).await > 600);
        let call = prepare(60).await;
        let ask = async || call.acquire().await.is_ok();
        admitted(2 * SECOND, &ask).await;
        let admitted = admitted(MINUTE, &ask).await;
        assert!(LOWERED.contains(&admitted), "{mode:?}: {admitted} admitted");
    }
}

/// The bucket has the versions of the deleted level, as if this process had an old copy.
#[tokio::test(start_paused = true)]
async fn leased_follows_a_level_that_was_deleted_by_hand() {
    for mode in MODES {
        let table = Configured::new();
        let limiter = table.limiter(mode);
        let own = LimitsScope::Entity(bucket("u0", "r").entity);
        table.set_limits(&[("rps", per_minute(60))]);
        table.set_limits_of(own.clone(), &[("rps", per_minute(60_000))]);
        let call = limiter.acquire("u0", "r").consume("rps", 1).no_cascade();
        let call = call.prepare().await.unwrap();
        let delete = || drop(table.limits.lock().unwrap().remove(&own));
        let after = after_lowering(&table, delete, async || call.acquire().await.is_ok()).await;
        assert!(LOWERED.contains(&after), "{mode:?}: {after} admitted");
    }
}

/// The entity that prepared the call has larger limits of its own. They are not those of the others.
#[tokio::test(start_paused = true)]
async fn leased_prepared_for_others_brings_them_no_stored_limits() {
    for mode in MODES {
        let table = Configured::new();
        let limiter = table.limiter(mode);
        table.set_limits(&[("rps", per_minute(60))]);
        let own = LimitsScope::Entity(bucket("u0", "r").entity);
        table.set_limits_of(own, &[("rps", per_minute(60_000))]);
        let call = limiter.acquire("u0", "r").consume("rps", 1).no_cascade();
        let call = call.prepare().await.unwrap();
        for _ in 0..3 {
            // The second one finds nothing held, and the first one's write is in flight.
            let second = async {
                sleep(Duration::from_millis(2)).await;
                drop(call.try_acquire_for("u1"));
            };
            let (first, ()) = tokio::join!(call.acquire_for("u1"), second);
            drop(first.unwrap());
            sleep(5 * SECOND).await;
            let stored = table.counted.memory().stored(&bucket("u1", "r")).await.unwrap();
            assert_eq!(stored.limits[&name("rps")].rule, per_minute(60), "{mode:?}");
        }
    }
}

/// The permits are settled when the process has forgotten the bucket, and the stored limits.
#[tokio::test(start_paused = true)]
async fn leased_prepared_for_others_keeps_all_limits_of_a_forgotten_bucket() {
    for is_released in [false, true] {
        let table = Configured::new();
        let limiter = table.limiter(LeaseMode::default());
        table.set_limits(&[("rps", per_minute(60_000)), ("tps", per_minute(60_000))]);
        let call = limiter.acquire("u0", "r").consume("rps", 1).no_cascade();
        let call = call.prepare().await.unwrap();
        let ask = async || drop(call.acquire_for("u1").await.unwrap());
        let permit = loop {
            if let Some(permit) = call.try_acquire_for("u1") {
                break permit;
            }
            ask().await;
        };
        if is_released {
            sleep(5 * SECOND).await;
            permit.release();
        } else {
            sleep(2 * MINUTE).await;
            permit.into_permit().adjust("rps", -1).await.unwrap();
        }
        for _ in 0..50 {
            ask().await;
            sleep(PACE).await;
        }
        assert!(call.try_acquire_for("u1").is_some(), "released {is_released}");
    }
}

/// The second request names all of its limits, so it reads none, and enters while the first one's
/// write is prepared.
#[tokio::test(start_paused = true)]
async fn leased_requests_of_stored_limits_keep_them_beside_others() {
    for mode in MODES {
        for millis in 0..20 {
            let table = Configured::new();
            let limiter = table.limiter(mode);
            table.set_limits(&[("tps", per_minute(60_000))]);
            let rps = [Limit::per_minute("rps", 60_000)];
            let request = || limiter.acquire("u0", "r").limits(rps.clone()).no_cascade();
            let both = request().consume("rps", 1).consume("tps", 1);
            let one = async {
                sleep(Duration::from_millis(millis)).await;
                request().consume("rps", 1).await
            };
            let (both, one) = tokio::join!(both, one);
            assert!(both.is_ok() && one.is_ok(), "{mode:?}, {millis} ms: {both:?} {one:?}");
        }
    }
}

/// Once a minute and level, however many renewals there are.
#[tokio::test(start_paused = true)]
async fn leased_renewals_look_limits_up_once_a_minute() {
    for mode in MODES {
        let table = Configured::new();
        let limiter = table.limiter(mode);
        table.set_limits(&[("rps", per_minute(60_000))]);
        let call = limiter.acquire("u0", "r").consume("rps", 1).no_cascade();
        let call = call.prepare().await.unwrap();
        table.lookups();
        admitted(10 * MINUTE, async || call.acquire().await.is_ok()).await;
        let lookups = table.lookups();
        // Four levels.
        assert!((36..=44).contains(&lookups), "{mode:?}: {lookups} lookups");
    }
}

/// Raised limits reach it as well.
#[tokio::test(start_paused = true)]
async fn leased_steady_pace_follows_raised_limits() {
    for mode in MODES {
        let table = Configured::new();
        let limiter = table.limiter(mode);
        table.set_limits(&[("rps", per_minute(600))]);
        let call = limiter.acquire("u0", "r").consume("rps", 1).no_cascade();
        let call = call.prepare().await.unwrap();
        let ask = async || call.acquire().await.is_ok();
        let before = admitted(MINUTE, &ask).await;
        table.set_limits(&[("rps", per_minute(60_000))]);
        admitted(MINUTE + 5 * SECOND, &ask).await;
        let after = admitted(MINUTE, &ask).await;
        println!("{mode:?}: {before} before, {after} after");
        assert!(before <= 1_200, "{mode:?}: {before}");
        // A request every 7 ms, each a little later where it waits for the table.
        assert!(after >= 7_000, "{mode:?}: {after}");
    }
}

/// A parent that is stored later, and another one after it: held and requested tokens come from the
/// same buckets.
#[tokio::test(start_paused = true)]
async fn leased_prepared_follows_a_changed_parent() {
    for mode in MODES {
        for tries in [false, true] {
            let table = Configured::new();
            let limiter = table.limiter(mode);
            table.set_limits(&[("rps", per_minute(60_000))]);
            let call = limiter.acquire("u0", "r").consume("rps", 1).prepare().await.unwrap();
            let ask = async || match call.try_acquire() {
                Some(_) => true,
                None if tries && fastrand::u8(..8) > 0 => false,
                None => call.acquire().await.is_ok(),
            };
            let case = format!("{mode:?}, tries {tries}");
            assert!(admitted(5 * SECOND, &ask).await > 100, "{case}");
            let mut charged = Vec::new();
            for parent in ["team", "org"] {
                table.put_entity("u0", parent);
                admitted(MINUTE + SECOND, &ask).await;
                limiter.flush(SECOND).await;
                let before = [table.consumed("u0").await, table.consumed(parent).await];
                let admitted = admitted(30 * SECOND, &ask).await;
                limiter.flush(SECOND).await;
                let after = [table.consumed("u0").await, table.consumed(parent).await];
                assert!(admitted > 2_000, "{case}, {parent}: {admitted}");
                assert_eq!(after, before.map(|before| before + admitted), "{case}, {parent}");
                charged.push(table.consumed("team").await);
            }
            assert!(charged[1] > charged[0], "for up to a minute");
            let team = table.consumed("team").await;
            admitted(10 * SECOND, &ask).await;
            limiter.flush(SECOND).await;
            assert_eq!(table.consumed("team").await, team, "{case}");
        }
    }
}

/// Permits of an earlier result are given back to the buckets that they were taken from.
#[tokio::test(start_paused = true)]
async fn leased_ticket_of_an_earlier_parent_is_given_back_to_it() {
    let table = Configured::new();
    let limiter = table.limiter(LeaseMode::default());
    table.set_limits(&[("rps", per_minute(60_000))]);
    table.put_entity("u0", "team");
    let call = limiter.acquire("u0", "r").consume("rps", 1).prepare().await.unwrap();
    let ask = async || call.acquire().await.is_ok();
    let mut taken = 1 + admitted(5 * SECOND, &ask).await;
    let ticket = loop {
        match call.try_acquire() {
            Some(ticket) => break ticket,
            None => taken += i64::from(ask().await),
        }
    };
    table.put_entity("u0", "org");
    taken += admitted(MINUTE + SECOND, &ask).await;
    ticket.release();
    taken -= 1;
    assert!(limiter.shutdown(SECOND).await.unsettled.is_empty());
    let parents = table.consumed("team").await + table.consumed("org").await;
    assert_eq!([table.consumed("u0").await, parents], [taken, taken]);
}

/// Each entity has its own parent.
#[tokio::test(start_paused = true)]
async fn leased_prepared_for_others_follows_their_parents() {
    let table = Configured::new();
    let limiter = table.limiter(LeaseMode::default());
    table.set_limits(&[("rps", per_minute(60_000))]);
    table.put_entity("u0", "team");
    let call = limiter.acquire("u0", "r").consume("rps", 1).prepare().await.unwrap();
    let ask = async || call.acquire_for("u1").await.is_ok();
    let first = admitted(5 * SECOND, &ask).await;
    table.put_entity("u1", "org");
    admitted(MINUTE + SECOND, &ask).await;
    limiter.flush(SECOND).await;
    let before = table.consumed("org").await;
    let second = admitted(5 * SECOND, &ask).await;
    limiter.flush(SECOND).await;
    assert!(first > 400 && second > 400, "{first}, {second}");
    assert_eq!(table.consumed("org").await, before + second);
    assert_eq!(table.consumed("team").await, 0);
}

/// A remembered request follows a changed parent, also if its bucket needs no lease for minutes.
#[tokio::test(start_paused = true)]
async fn leased_request_by_names_follows_a_changed_parent() {
    let held_long = LeaseSettings {
        min_requests: 100_000,
        max_requests: 100_000,
        max_age: 10 * MINUTE,
        ..LeaseSettings::default()
    };
    for settings in [LeaseSettings::default(), held_long] {
        let table = Configured::new();
        let clock = Simulated { start: table.start, off_ms: 0 };
        let limiter = leased(table.clone(), clock, settings);
        table.set_limits(&[("rps", per_minute(60_000))]);
        let request = || limiter.acquire("u0", "r").consume("rps", 1);
        let take = async || match request().try_acquire().unwrap() {
            Some(permit) => permit,
            None => request().await.unwrap(),
        };
        let ask = async || {
            take().await;
            true
        };
        for parent in ["team", "org"] {
            admitted(5 * SECOND, &ask).await;
            table.put_entity("u0", parent);
            admitted(MINUTE + SECOND, &ask).await;
            let buckets: Vec<_> =
                take().await.buckets().map(|bucket| bucket.entity.to_string()).collect();
            assert_eq!(buckets, ["u0", parent]);
            limiter.flush(SECOND).await;
            let before = [table.consumed("u0").await, table.consumed(parent).await];
            let admitted = admitted(5 * SECOND, &ask).await;
            limiter.flush(SECOND).await;
            let after = [table.consumed("u0").await, table.consumed(parent).await];
            assert!(admitted > 400, "{parent}: {admitted}");
            assert_eq!(after, before.map(|before| before + admitted), "{parent}");
        }
    }
}

/// Held tokens of another entity and of its own stored parent are taken without a call.
#[tokio::test(start_paused = true)]
async fn prepared_call_with_a_stored_parent_is_made_for_others_without_a_call() {
    let table = Configured::new();
    let limiter = table.limiter(LeaseMode::default());
    table.set_limits(&[("rps", per_minute(60_000))]);
    table.put_entity("u0", "team");
    table.put_entity("u1", "org");
    let call = limiter.acquire("u0", "r").consume("rps", 1).prepare().await.unwrap();
    assert!(call.try_acquire_for("u1").is_none(), "this process has not seen u1");
    let ask = async || call.acquire_for("u1").await.is_ok();
    admitted(2 * SECOND, &ask).await;
    let taken: Vec<_> = (0..100).filter_map(|_| call.try_acquire_for("u1")).collect();
    assert!(taken.len() >= 20, "{}", taken.len());
    taken.into_iter().for_each(PreparedPermit::release);
    let taken: i64 = (0..20).map(|_| i64::from(call.try_acquire_for("u1").is_some())).sum();
    limiter.flush(SECOND).await;
    assert_eq!(taken, 20);
    assert_eq!(table.consumed("u1").await, table.consumed("org").await);
    assert_eq!(table.consumed("team").await, 0);
}

/// A call that has seen many changes still takes from the right buckets.
#[tokio::test(start_paused = true)]
async fn leased_prepared_follows_any_number_of_changes() {
    let table = Configured::new();
    let limiter = table.limiter(LeaseMode::default());
    table.set_limits(&[("rps", per_minute(60_000))]);
    let call = limiter.acquire("u0", "r").consume("rps", 1).prepare().await.unwrap();
    let ask = async || call.acquire().await.is_ok();
    for n in 0..80 {
        table.put_entity("u0", if n % 2 == 0 { "team" } else { "org" });
        sleep(MINUTE + SECOND).await;
        admitted(SECOND, &ask).await;
    }
    // The last one is the organisation.
    limiter.flush(SECOND).await;
    let before = [table.consumed("team").await, table.consumed("org").await];
    let tried = AtomicU64::new(0);
    let more = admitted(5 * SECOND, async || match call.try_acquire() {
        Some(_) => {
            tried.fetch_add(1, Ordering::Relaxed);
            true
        }
        None => ask().await,
    });
    let more = more.await;
    limiter.flush(SECOND).await;
    let after = [table.consumed("team").await, table.consumed("org").await];
    assert_eq!(after, [before[0], before[1] + more]);
    let tried = tried.into_inner();
    assert!(tried > 400, "{tried} of {more} were held");
}
