//! Buckets of the process while the store is unavailable, and the debits when it answers again.

use std::time::Duration;

use sluicegate::{AcquireError, Limit, LimitStatus, Limiter, OnUnavailable};

use super::{DEADLINE, PROBED, ask, away, hung, is_unavailable, limiter, timed};
use crate::scripted::{Act, Scripted};
use crate::support::{bucket, name};

/// Balance and counter of `rpm` in the store, in tokens.
fn stored(table: &Scripted, entity: &str) -> (i64, i64) {
    let stored = table.memory.stored_now(&bucket(entity, "r")).unwrap();
    let rpm = stored.limits[&name("rpm")];
    (rpm.tokens.get() / 1_000, i64::try_from(rpm.consumed.get() / 1_000).unwrap())
}

/// The number of `asks` requests for a token that are granted, all of them without the store.
async fn granted(limiter: &Limiter, asks: u32) -> i64 {
    let mut granted = 0;
    for _ in 0..asks {
        match ask!(limiter, 1).await {
            Ok(permit) => {
                assert!(permit.degraded().is_some());
                granted += 1;
            }
            Err(error) => assert!(matches!(error, AcquireError::LimitExceeded(_)), "{error:?}"),
        }
    }
    granted
}

#[tokio::test(start_paused = true)]
async fn the_same_limits_hold_and_refill_by_the_same_clock() {
    let (limiter, _, clock) = hung(OnUnavailable::Local).await;
    assert_eq!(granted(&limiter, 100).await, 60);
    let Err(AcquireError::LimitExceeded(exceeded)) = ask!(limiter, 3).await else {
        panic!("three are not available");
    };
    assert_eq!(exceeded.retry_after, Some(Duration::from_secs(3)));
    clock.advance(Duration::from_millis(2_999));
    assert!(ask!(limiter, 3).await.is_err());
    clock.advance(Duration::from_millis(1));
    let permit = ask!(limiter, 3).await.unwrap();
    assert_eq!(permit.remaining()[0].available.get(), 0);
    let never = ask!(limiter, 61).await;
    assert!(matches!(never, Err(AcquireError::NeverAdmissible(_))), "{never:?}");
}

#[tokio::test(start_paused = true)]
async fn a_bucket_begins_with_what_the_store_said_last() {
    let (limiter, table, _) = limiter(OnUnavailable::Local);
    ask!(limiter, 40).await.unwrap();
    table.always(Act::Hang);
    assert_eq!(granted(&limiter, 40).await, 20);
    // Its limits are known, too: a request need not bring them.
    let exceeded = limiter.acquire("u", "r").consume("rpm", 1).await;
    assert!(matches!(exceeded, Err(AcquireError::LimitExceeded(_))), "{exceeded:?}");
}

#[tokio::test(start_paused = true)]
async fn answer_between_two_outages_is_newer() {
    let (limiter, table, _) = limiter(OnUnavailable::Local);
    ask!(limiter, 10).await.unwrap();
    table.always(Act::Hang);
    assert_eq!(granted(&limiter, 5).await, 5);
    table.always(Act::Answer);
    tokio::time::sleep(PROBED * 2).await;
    ask!(limiter, 20).await.unwrap();
    table.always(Act::Hang);
    assert_eq!(granted(&limiter, 60).await, 60 - 10 - 5 - 20);
}

#[tokio::test(start_paused = true)]
async fn limits_that_nobody_here_knows_are_not_made_up() {
    let (limiter, _, _) = away(OnUnavailable::Local).await;
    is_unavailable(limiter.acquire("stranger", "r").consume("rpm", 1).await);
    is_unavailable(limiter.acquire("u", "r").consume("tpm", 1).await);
    assert!(ask!(limiter, 1).await.is_ok(), "a refusal is of one request");
}

/// Twice: the grants of the second outage are not those of the first.
#[tokio::test(start_paused = true)]
async fn local_consumption_is_debited_after_an_outage() {
    let (limiter, table, _) = limiter(OnUnavailable::Local);
    ask!(limiter, 10).await.unwrap();
    for (taken, all) in [(7, 17), (9, 26)] {
        table.always(Act::Hang);
        assert_eq!(granted(&limiter, taken).await, i64::from(taken));
        assert_eq!(stored(&table, "u"), (60 - all + i64::from(taken), all - i64::from(taken)));
        table.always(Act::Answer);
        tokio::time::sleep(PROBED * 2).await;
        assert_eq!(stored(&table, "u"), (60 - all, all));
    }
    // The requests in flight when the outage was not yet found, and the sum of the rest.
    let debits = limiter.counters().outage_debits.get();
    assert!((2..=4).contains(&debits), "{debits}");
    table.always(Act::Hang);
    assert_eq!(granted(&limiter, 60).await, 60 - 26);
    table.always(Act::Answer);
    tokio::time::sleep(PROBED * 2).await;
    assert_eq!(stored(&table, "u"), (0, 60));
    let exceeded = ask!(limiter, 1).await;
    assert!(matches!(exceeded, Err(AcquireError::LimitExceeded(_))), "{exceeded:?}");
    assert_eq!(limiter.counters().outage_debits_lost.get(), 0);
}

/// The bucket was full when the first outage took everything: the refill before that is not granted
/// again.
#[tokio::test(start_paused = true)]
async fn second_outage_after_an_idle_time_begins_with_what_is_left() {
    let (limiter, table, clock) = limiter(OnUnavailable::Local);
    ask!(limiter, 10).await.unwrap();
    clock.advance(Duration::from_secs(600));
    table.always(Act::Hang);
    assert_eq!(granted(&limiter, 100).await, 60);
    table.always(Act::Answer);
    tokio::time::sleep(PROBED * 2).await;
    assert_eq!(limiter.counters().outage_debits_lost.get(), 0);
    clock.advance(Duration::from_secs(5));
    table.always(Act::Hang);
    assert_eq!(granted(&limiter, 100).await, 5);
}

/// A request may be granted before the outage's debits are made.
#[tokio::test(start_paused = true)]
async fn local_second_outage_begins_without_what_the_first_one_took() {
    let (limiter, table, _) = limiter(OnUnavailable::Local);
    ask!(limiter, 10).await.unwrap();
    table.always(Act::Hang);
    assert_eq!(granted(&limiter, 20).await, 20);
    table.always(Act::Answer);
    while ask!(limiter, 1).await.unwrap().degraded().is_some() {
        tokio::time::sleep(PROBED / 10).await;
    }
    tokio::time::sleep(PROBED * 2).await;
    let (left, _) = stored(&table, "u");
    table.always(Act::Hang);
    assert_eq!(granted(&limiter, 60).await, left);
}

/// One call that is not answered is no outage, and is debited nevertheless.
#[tokio::test(start_paused = true)]
async fn one_local_grant_is_debited_without_an_outage() {
    let (limiter, table, _) = limiter(OnUnavailable::Local);
    ask!(limiter, 10).await.unwrap();
    table.on_writes([Act::Hang]);
    let (permit, took) = timed(ask!(limiter, 5)).await;
    assert!(permit.unwrap().degraded().is_some());
    assert_eq!((took, limiter.counters().outages.get()), (DEADLINE, 0));
    tokio::time::sleep(PROBED).await;
    assert_eq!(stored(&table, "u"), (45, 15));
}

#[tokio::test(start_paused = true)]
async fn a_debt_whose_answer_is_lost_is_taken_once() {
    let (limiter, table, _) = limiter(OnUnavailable::Local);
    ask!(limiter, 10).await.unwrap();
    table.on_writes([Act::Hang]);
    ask!(limiter, 5).await.unwrap();
    // Done, and no answer until the correction gives up; then the same correction again.
    table.on_writes([Act::LoseReply]);
    table.on_reads([Act::Hang]);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(stored(&table, "u"), (45, 15));
    assert_eq!(limiter.counters().outage_debits.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_childs_and_its_parents_bucket_are_taken_from_together() {
    let (limiter, table, _) = limiter(OnUnavailable::Local);
    let ask = |child: &str, tokens| {
        let limits = [Limit::per_minute("rpm", 60)];
        let parent = [Limit::per_minute("rpm", 100)];
        let request = limiter.acquire(child, "r").consume("rpm", tokens).limits(limits);
        request.cascade_to("p").parent_limits(parent).into_future()
    };
    ask("a", 10).await.unwrap();
    table.always(Act::Hang);
    ask("a", 50).await.unwrap();
    let Err(AcquireError::LimitExceeded(exceeded)) = ask("b", 50).await else {
        panic!("the parent has 40");
    };
    let violated: Vec<&LimitStatus> = exceeded.violations().collect();
    assert_eq!((violated.len(), violated[0].entity.as_str(), exceeded.limits.len()), (1, "p", 2));
    ask("b", 40).await.unwrap();
    assert!(ask("b", 1).await.is_err());

    table.always(Act::Answer);
    tokio::time::sleep(PROBED * 3).await;
    assert_eq!((stored(&table, "a"), stored(&table, "b")), ((0, 60), (20, 40)));
    assert_eq!(stored(&table, "p"), (0, 100));
}

#[tokio::test(start_paused = true)]
async fn waiter_for_tokens_waits_for_those_of_the_process() {
    let (limiter, _, clock) = away(OnUnavailable::Local).await;
    ask!(limiter, 55).await.unwrap();
    let waiting = tokio::spawn({
        let limiter = limiter.clone();
        async move { ask!(limiter, 2).wait_up_to(Duration::from_secs(5)).await.is_ok() }
    });
    while clock.sleepers() == 0 {
        tokio::task::yield_now().await;
    }
    clock.advance(Duration::from_secs(2));
    assert!(waiting.await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn debts_beyond_the_kept_buckets_are_counted() {
    let (limiter, table, _) = away(OnUnavailable::Local).await;
    for n in 0..10_001 {
        let entity = format!("user-{n}");
        let limits = [Limit::per_minute("rpm", 60)];
        limiter.acquire(entity, "r").consume("rpm", 1).limits(limits).no_cascade().await.unwrap();
    }
    // The bucket that found the outage has pending debits as well: those in flight, and more.
    let lost = limiter.counters().outage_debits_lost.get();
    assert!((2..=3).contains(&lost), "{lost}");
    table.always(Act::Answer);
    while limiter.counters().outage_debits.get() < 10_000 {
        tokio::time::sleep(PROBED).await;
    }
    assert_eq!((stored(&table, "user-0"), stored(&table, "u")), ((59, 1), (55, 5)));
    assert_eq!(limiter.counters().outage_debits_lost.get(), lost);
}
