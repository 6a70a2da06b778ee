//! The tokens that a process holds: their age, their number, and their end.

use std::collections::HashMap;
use std::time::Duration;

use sluicegate::dynamo::DynamoTable;
use sluicegate::error::InvalidRequest;
use sluicegate::leasing::Accounting;
use sluicegate::settings::Cascade;
use sluicegate::types::{EntityRecord, LimitsScope};
use sluicegate::{
    AcquireError, CompositeStore, EntityId, LeaseMode, LeaseSettings, Limit, LimitSet, Limiter,
    TestClock,
};
use sluicegate_testkit::{EngineKind, RunningEngine};

use super::{Counted, Mortal, SECOND, ample, builder, consumed, leased, limiter, strict};
use crate::support::{DEADLINE, Engine as _, T0, at, bucket, name, patient};

#[tokio::test(start_paused = true)]
async fn a_shutdown_reports_what_it_could_not_settle() {
    let table = Counted::new(1);
    let mortal = Mortal::new(&table);
    let clock = TestClock::at(at(T0));
    let mode = LeaseMode::WriteBehind { threshold: 10 };
    let settings = LeaseSettings { mode, ..LeaseSettings::default() };
    let limiter = leased(mortal.clone(), clock, settings);
    for entity in ["u0", "u1"] {
        let request = limiter.acquire(entity, "r").consume("rps", 1).limits(ample());
        request.no_cascade().await.unwrap();
    }
    mortal.kill();
    let report = limiter.shutdown(SECOND).await;
    let mut left: Vec<_> = report.unsettled.iter().map(|(id, _)| id.entity.as_str()).collect();
    left.sort_unstable();
    assert_eq!((report.settled, left), (0, vec!["u0", "u1"]));
}

/// `try_acquire` makes no call: it takes what is held, and has more leased in the background.
#[tokio::test(start_paused = true)]
async fn held_tokens_are_taken_without_waiting() {
    let table = Counted::new(1);
    let limiter = strict(&table);
    let request = || limiter.acquire("u0", "r").consume("rps", 1).limits(ample()).no_cascade();
    assert!(request().try_acquire().unwrap().is_none());
    request().await.unwrap();
    let mut taken = 1;
    for n in 0..1_000 {
        match request().try_acquire().unwrap() {
            Some(permit) if n % 100 == 0 => _ = permit.release().await.unwrap(),
            Some(_) => taken += 1,
            None => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
    assert!(taken > 500, "{taken}");
    assert!(limiter.shutdown(SECOND).await.unsettled.is_empty());
    assert_eq!(consumed(&table, "u0").await, taken);
    assert!(request().try_acquire().unwrap().is_none());
    let plain = sluicegate::Limiter::new(sluicegate::MemoryStore::new());
    let error = plain.acquire("u", "r").consume("rps", 1).limits(ample()).try_acquire();
    assert_eq!(error.unwrap_err(), InvalidRequest::NotLeasing);
}

/// The limits of a request, its parent, and its amounts.
type Form = (usize, Option<&'static str>, &'static [(&'static str, i64)]);

/// Requests of one entity that differ in amounts, limits or parent, or are not valid, are told
/// apart.
#[tokio::test(start_paused = true)]
async fn requests_by_names_of_one_entity_are_told_apart() {
    let table = Counted::new(1);
    let limiter = strict(&table);
    let rules = [60_000, 30_000]
        .map(|rpm| LimitSet::new(["rps", "tps"].map(|name| Limit::per_minute(name, rpm))).unwrap());
    let request = |rule: usize, parent: Option<&str>, amounts: &[(&str, i64)]| {
        let request = limiter.acquire("u0", "r").limits(&rules[rule]);
        let request = match parent {
            Some(parent) => request.cascade_to(parent),
            None => request.no_cascade(),
        };
        amounts.iter().fold(request, |request, (limit, tokens)| request.consume(limit, *tokens))
    };
    let forms: [Form; 6] = [
        (0, None, &[("rps", 1), ("tps", 5)]),
        (0, None, &[("tps", 2), ("rps", 3)]),
        (0, None, &[("rps", 1)]),
        (0, Some("team"), &[("rps", 2)]),
        (0, None, &[("tps", 4)]),
        (1, Some("team"), &[("tps", 4)]),
    ];
    let mut taken = HashMap::new();
    let mut held = 0;
    for n in 0..600 {
        // Each form several times in a row.
        let (rule, parent, amounts) = forms[n / 4 % forms.len()];
        let permit = match request(rule, parent, amounts).try_acquire().unwrap() {
            Some(permit) => {
                held += 1;
                permit
            }
            None => request(rule, parent, amounts).await.unwrap(),
        };
        let buckets: Vec<_> = permit.buckets().map(|bucket| bucket.entity.as_str()).collect();
        assert!(buckets.into_iter().eq(std::iter::once("u0").chain(parent)));
        if n % 5 == 0 {
            permit.release().await.unwrap();
        } else {
            let more = i64::from(n % 7 == 0);
            if more > 0 {
                permit.adjust(amounts[0].0, more).await.unwrap();
            }
            for entity in std::iter::once("u0").chain(parent) {
                for (limit, tokens) in amounts.iter().chain([&(amounts[0].0, more)]) {
                    *taken.entry((entity, *limit)).or_insert(0) += i128::from(*tokens);
                }
            }
        }
        let twice = request(0, None, &[("rps", 1), ("rps", 1)]).try_acquire();
        assert!(matches!(twice, Err(InvalidRequest::DuplicateLimit(_))), "{twice:?}");
        for amount in [0, -1] {
            let invalid = request(0, None, &[("rps", amount), ("tps", 1)]).try_acquire();
            assert!(matches!(invalid, Err(InvalidRequest::Amount { .. })), "{invalid:?}");
        }
        assert!(request(0, None, &[("xps", 1)]).try_acquire().unwrap().is_none());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert!(held > 500, "{held}");
    assert!(limiter.shutdown(SECOND).await.unsettled.is_empty());
    for (entity, limit) in [("u0", "rps"), ("u0", "tps"), ("team", "rps"), ("team", "tps")] {
        let stored = table.memory().image(&bucket(entity, "r")).await.unwrap();
        let consumed = stored.limits[&name(limit)].consumed.get() / 1_000;
        assert_eq!(consumed, taken[&(entity, limit)], "{limit} of {entity}");
    }
}

/// A remembered request keeps nothing of its bucket: after a pause, another limit can be leased.
#[tokio::test(start_paused = true)]
async fn an_idle_bucket_is_forgotten_although_its_request_is_remembered() {
    let table = Counted::new(1);
    let limiter = strict(&table);
    for asked in [&["rps"][..], &["rps", "tps"]] {
        let limits = asked.iter().map(|name| Limit::per_minute(name, 60_000));
        let limits = LimitSet::new(limits).unwrap();
        let request = || {
            let request = limiter.acquire("u0", "r").limits(&limits).no_cascade();
            asked.iter().fold(request, |request, limit| request.consume(limit, 1))
        };
        let mut held = 0;
        for _ in 0..100 {
            match request().try_acquire().unwrap() {
                Some(_) => held += 1,
                None => drop(request().await.unwrap()),
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(held > 80, "{asked:?}: {held}");
        tokio::time::sleep(5 * SECOND).await;
        assert_eq!(limiter.leased().unwrap().held_keys(), 0);
    }
}

/// A prepared call keeps its bucket over a pause, and what was counted before it is not counted
/// again.
#[tokio::test(start_paused = true)]
async fn decisions_are_counted_once() {
    let table = Counted::new(1);
    let limiter = strict(&table);
    let call = limiter.acquire("u0", "r").consume("rps", 1).limits(ample()).no_cascade();
    let call = call.prepare().await.unwrap();
    for bursts in 1..=3 {
        for _ in 0..50 {
            drop(call.acquire().await.unwrap());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        tokio::time::sleep(5 * SECOND).await;
        assert_eq!(limiter.leased().unwrap().decisions(), 50 * bursts);
    }
}

/// `try_acquire` does not ask the store, so it follows only this process's own changes at once.
#[tokio::test]
async fn held_tokens_follow_own_changes_at_once() {
    let engine = RunningEngine::start(EngineKind::Embedded).await;
    let table = DynamoTable::new(engine.client(), engine.create_table().await);
    let clock = TestClock::at(at(T0));
    let settings = LeaseSettings { deadline: DEADLINE, ..LeaseSettings::default() };
    let limiter = Limiter::builder(CompositeStore::with_table(table)).clock(clock.clone());
    let limiter = patient(limiter.leasing(settings));
    let [entity, parent] = ["u0", "team"].map(|entity| EntityId::new(entity).unwrap());
    let scope = LimitsScope::Entity(entity.clone());
    limiter.set_limits(&scope, &ample()).await.unwrap();
    let request = || limiter.acquire("u0", "r").consume("rps", 1);
    let take = async || loop {
        if let Some(permit) = request().try_acquire().unwrap() {
            break permit;
        }
        request().await.unwrap();
        clock.advance(Duration::from_millis(1));
    };
    let take_twice = async || [take().await, take().await].map(|permit| permit.remaining().len());
    assert_eq!(take_twice().await, [1, 1]);

    let record = EntityRecord { entity: entity.clone(), parent: Some(parent), cascade: true };
    limiter.put_entity(&record).await.unwrap();
    assert_eq!(take_twice().await, [1, 1], "the parent has no limits yet");
    let scope = LimitsScope::Entity(record.parent.clone().unwrap());
    limiter.set_limits(&scope, &ample()).await.unwrap();
    assert!(request().try_acquire().unwrap().is_none(), "nothing is held of the parent");
    assert_eq!(take_twice().await, [2, 2]);
    limiter.delete_entity(&entity).await.unwrap();
    assert_eq!(take_twice().await, [1, 1]);
    limiter.put_entity(&record).await.unwrap();
    assert_eq!(take_twice().await, [2, 2]);
    assert!(limiter.shutdown(DEADLINE).await.unsettled.is_empty());
    engine.stop().await;
}

/// A caller that stops waiting for a flush loses nothing.
#[tokio::test(start_paused = true)]
async fn a_flush_that_nobody_waits_for_settles_all_the_same() {
    for accounting in [Accounting::AtLease, Accounting::AtSettle] {
        let table = Counted::new(10);
        let mode = LeaseMode::Strict(accounting);
        let limiter = super::limiter(&table, mode);
        for _ in 0..100 {
            let request = limiter.acquire("u0", "r").consume("rps", 1).limits(ample());
            request.no_cascade().await.unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let flush = limiter.flush(SECOND);
        tokio::time::timeout(Duration::from_millis(1), flush).await.unwrap_err();
        tokio::time::sleep(SECOND).await;
        let report = limiter.shutdown(SECOND).await;
        assert!(report.unsettled.is_empty(), "{report:?}");
        assert_eq!(consumed(&table, "u0").await, 100, "{mode:?}");
    }
}

/// A process whose runtime ended, as between two tests or two jobs, looks after its held tokens in
/// the next one.
#[test]
fn a_new_runtime_looks_after_what_is_held() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let table = Counted::new(1);
    let clock = TestClock::at(at(T0));
    let limiter = leased(table.clone(), clock.clone(), LeaseSettings::default());
    let ask = async |entity: &str| {
        for _ in 0..50 {
            let request = limiter.acquire(entity, "r").consume("rps", 1).limits(ample());
            request.no_cascade().await.unwrap();
            clock.advance(Duration::from_millis(1));
        }
    };
    runtime().block_on(ask("u0"));
    assert_eq!(limiter.leased().unwrap().held_keys(), 1);
    runtime().block_on(async {
        ask("u1").await;
        // Long enough for a hundred looks, each when the clock says so.
        for _ in 0..10_000 {
            if limiter.leased().unwrap().held_keys() == 0 {
                break;
            }
            clock.advance(Duration::from_millis(50));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    assert_eq!(limiter.leased().unwrap().held_keys(), 0);
}

/// Requests meanwhile get their tokens, and afterwards no tokens are held that would not be
/// settled.
#[tokio::test(start_paused = true)]
async fn nothing_is_leased_after_the_end() {
    for mode in [LeaseMode::default(), LeaseMode::WriteBehind { threshold: 10 }] {
        let table = Counted::new(20);
        let limiter = super::limiter(&table, mode);
        let ask = |n: usize| {
            let request =
                limiter.acquire(format!("u{}", n % 2), "r").consume("rps", 1).limits(ample());
            request.no_cascade().into_future()
        };
        for n in 0..100 {
            ask(n).await.unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        tokio::time::sleep(2 * SECOND).await;
        let asking = futures_util::future::join_all((0..32).map(ask));
        let (leases, report) = tokio::join!(asking, async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            limiter.shutdown(SECOND).await
        });
        assert!(leases.iter().all(Result::is_ok) && report.unsettled.is_empty(), "{report:?}");
        for entity in ["u0", "u1"] {
            assert_eq!(consumed(&table, entity).await, 50 + 16, "{mode:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn leased_cascade_cancel_returns_child_tokens() {
    let table = Counted::new(10);
    let limiter = super::strict(&table);
    let ask = || limiter.acquire("u0", "r").consume("rps", 1).limits(ample());
    for _ in 0..100 {
        ask().no_cascade().await.unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let both = ask().cascade_to("parent").into_future();
    tokio::time::timeout(Duration::from_millis(5), both).await.unwrap_err();
    let report = limiter.shutdown(SECOND).await;
    assert!(report.unsettled.is_empty(), "{report:?}");
    assert_eq!(consumed(&table, "u0").await, 100);
    assert_eq!(consumed(&table, "parent").await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_ticket_of_a_bucket_that_was_forgotten_gives_back() {
    let table = Counted::new(1);
    let limiter = strict(&table);
    let call = limiter.acquire("u0", "r").consume("rps", 1).limits(ample()).no_cascade();
    let call = call.prepare().await.unwrap();
    let mut kept = 0;
    let ticket = loop {
        if let Some(ticket) = call.try_acquire_for("u1") {
            break ticket;
        }
        drop(call.acquire_for("u1").await.unwrap());
        kept += 1;
    };
    tokio::time::sleep(5 * SECOND).await;
    assert_eq!(
        (limiter.leased().unwrap().held_keys(), consumed(&table, "u1").await),
        (0, kept + 1)
    );
    ticket.release();
    assert!(limiter.shutdown(SECOND).await.unsettled.is_empty());
    assert_eq!(consumed(&table, "u1").await, kept);
}

/// A release with a key goes to the store, which has not debited what was handed out.
#[tokio::test(start_paused = true)]
async fn tokens_that_were_not_debited_yet_can_be_given_back_once() {
    let table = Counted::new(1);
    let limiter = limiter(&table, LeaseMode::WriteBehind { threshold: 50 });
    for n in 0..4 {
        let request = limiter.acquire("u", "r").consume("rps", 8).no_cascade();
        let limits = || [Limit::quota("rps", 100)];
        drop(request.limits(limits()).await.unwrap());
        let refund = limiter.adjust("u", "r").by("rps", -8).no_cascade().limits(limits());
        let adjusted = refund.once(format!("key-{n}"), at(4_000_000_000_000)).await.unwrap();
        assert!(!adjusted.already_made && adjusted.dropped.is_empty(), "{adjusted:?}");
    }
    assert!(limiter.shutdown(SECOND).await.unsettled.is_empty());
    let stored = table.memory().image(&bucket("u", "r")).await.unwrap().limits[&name("rps")];
    assert_eq!((stored.tokens.get(), stored.consumed.get()), (100_000, 0));
}

/// Whichever entity the call was prepared for: the common parent has no parent, others have it.
#[tokio::test(start_paused = true)]
async fn prepared_call_follows_the_common_parent() {
    let org = EntityId::new("org").unwrap();
    for prepared_for in ["u0", "org"] {
        let table = Counted::new(1);
        let limiter = builder(&table, LeaseMode::default());
        let limiter = patient(limiter.cascade(Cascade::To(org.clone())));
        let call = limiter.acquire(prepared_for, "r").consume("rps", 1).limits(ample());
        let call = call.prepare().await.unwrap();
        let mut taken = [0, 0];
        for _ in 0..50 {
            for (taken, entity) in taken.iter_mut().zip(["u1", "org"]) {
                drop(call.acquire_for(entity).await.unwrap());
                *taken += 1 + i64::from(call.try_acquire_for(entity).is_some());
                tokio::time::sleep(SECOND / 1_000).await;
            }
        }
        assert!(limiter.shutdown(SECOND).await.unsettled.is_empty());
        let [by_child, by_parent] = taken;
        assert!(by_child > 50 && by_parent > 50, "held tokens are taken: {taken:?}");
        assert_eq!(consumed(&table, "u1").await, by_child, "{prepared_for}");
        assert_eq!(consumed(&table, "org").await, by_child + by_parent, "{prepared_for}");
    }
}

/// It would take twice from one bucket and, under `Local`, lock it twice.
#[tokio::test(start_paused = true)]
async fn prepared_call_is_not_made_for_its_own_parent() {
    let table = Counted::new(1);
    let limiter = strict(&table);
    let call = limiter.acquire("u0", "r").consume("rps", 1).limits(ample()).cascade_to("parent");
    let call = call.prepare().await.unwrap();
    for _ in 0..50 {
        drop(call.acquire().await.unwrap());
        tokio::time::sleep(SECOND / 1_000).await;
    }
    assert!(call.try_acquire().is_some() && call.try_acquire_for("parent").is_none());
    let invalid = call.acquire_for("parent").await.map(drop);
    assert!(
        matches!(&invalid, Err(AcquireError::InvalidRequest(InvalidRequest::OwnParent(_)))),
        "{invalid:?}"
    );
}

/// The second request enters between the first one's demand and its write.
#[tokio::test(start_paused = true)]
async fn leased_requests_with_other_limits_each_get_theirs() {
    for mode in [LeaseMode::default(), LeaseMode::WriteBehind { threshold: 10 }] {
        let table = Counted::new(10);
        let limiter = limiter(&table, mode);
        let [rps, tps] = ["rps", "tps"].map(|name| Limit::per_second(name, 1_000));
        let both = limiter.acquire("u0", "r").consume("tps", 1).limits([rps.clone(), tps]);
        let one = limiter.acquire("u0", "r").consume("rps", 1).limits([rps]);
        let (both, one) = tokio::join!(both.no_cascade(), one.no_cascade());
        assert!(both.is_ok() && one.is_ok(), "{mode:?}: {both:?} {one:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn anothers_tokens_are_found_however_many_resources_were_asked_for() {
    let table = Counted::new(1);
    let limiter = strict(&table);
    let ask = |resource: String| {
        limiter.acquire("u0", resource).consume("rps", 1).limits(ample()).no_cascade()
    };
    for n in 0..2_000 {
        drop(ask(format!("r{n}")).await.unwrap());
    }
    let call = ask("r".into()).prepare().await.unwrap();
    for n in 2_000..4_000 {
        drop(ask(format!("r{n}")).await.unwrap());
    }
    for _ in 0..50 {
        drop(call.acquire_for("u1").await.unwrap());
        tokio::time::sleep(SECOND / 1_000).await;
    }
    assert!(call.try_acquire_for("u1").is_some());
}

/// A limit of ten a second, at a hundred requests a second that never wait.
#[tokio::test(start_paused = true)]
async fn requests_that_never_wait_get_what_is_refilled() {
    for mode in [LeaseMode::default(), LeaseMode::WriteBehind { threshold: 100 }] {
        let table = Counted::new(2);
        let limiter = limiter(&table, mode);
        let request = || {
            let limits = [Limit::per_second("rps", 10)];
            limiter.acquire("u0", "r").consume("rps", 1).limits(limits).no_cascade()
        };
        request().await.unwrap();
        let mut granted = 1;
        for _ in 0..3_000 {
            granted += i64::from(request().try_acquire().unwrap().is_some());
            tokio::time::sleep(SECOND / 100).await;
        }
        assert!((200..=312).contains(&granted), "{mode:?}: {granted} in 30 s");
        limiter.shutdown(SECOND).await;
        assert_eq!(consumed(&table, "u0").await, granted, "{mode:?}");
    }
}
