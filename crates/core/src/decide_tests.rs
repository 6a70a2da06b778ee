//! Single decisions. Schedules of many writers are in `tests/simulation`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::fixtures::{at, milli, name, rule};
use crate::{
    ClaimInterval, Configuration, EntityId, LIMITS_MAX, LevelVersions, LimitBalance, RefillHint,
    RequestId, Resource, Rule, Rules, RulesHash, StoredRules, WritePath,
};

const T0: i64 = 1_769_608_800_000;

fn item(limits: &[(&str, Rule, i64)]) -> CompositeBucket {
    let bucket =
        |rule, tokens| LimitBalance { rule, tokens: milli(tokens), consumed: milli(0).into() };
    let rules = limits.iter().map(|(limit, rule, _)| (name(limit), *rule)).collect::<Rules>();
    CompositeBucket {
        entity: EntityId::new("u").unwrap(),
        resource: Resource::new("r").unwrap(),
        refilled_at: at(T0),
        limits: limits
            .iter()
            .map(|(limit, rule, tokens)| (name(limit), bucket(*rule, *tokens)))
            .collect(),
        expires_at_s: None,
        config_stamp: crate::ConfigStamp::None,
        rules_hash: Some(RulesHash::of(&rules)),
        request_ids: Vec::new(),
    }
}

/// 100 a second with a burst of 50, and one of a day: both full.
fn full_bucket() -> CompositeBucket {
    item(&[
        ("fast", rule(50_000, 100_000, 1_000), 50_000),
        ("slow", rule(5_000, 1_000, 86_400_000), 5_000),
    ])
}

fn asks(amounts: &[(&str, i64)]) -> Amounts {
    amounts.iter().map(|(limit, amount)| (name(limit), milli(*amount))).collect()
}

static NEXT_ID: AtomicU64 = AtomicU64::new(0);

fn decide_with(
    image: &CompositeBucket,
    amounts: &Amounts,
    configuration: &Configuration,
    hint: RefillHint,
    now: EpochMillis,
) -> Decision {
    let acquire = Acquire {
        bucket: &image.id(),
        amounts,
        configuration,
        id: &RequestId::from_bits(NEXT_ID.fetch_add(1, Ordering::Relaxed)),
        interval: ClaimInterval::default(),
        hint,
    };
    decide(Some(image), acquire, now)
}

/// Decides on an acquire of a bucket whose limits nobody configures otherwise.
fn decide_on(image: &CompositeBucket, amounts: &Amounts, now: EpochMillis) -> Decision {
    decide_with(image, amounts, &Configuration::default(), RefillHint::TrustImage, now)
}

fn plan(decision: Decision) -> WritePlan {
    match decision {
        Decision::Write(plan) => plan,
        other => panic!("{other:?}"),
    }
}

/// Acquires what is certainly there.
fn acquire(item: &CompositeBucket, amounts: &Amounts, now: EpochMillis) -> CompositeBucket {
    plan(decide_on(item, amounts, now)).apply(Some(item)).unwrap()
}

#[test]
fn the_trace_of_the_reference_ends_where_it_should() {
    // Balance 90, 100 a minute, burst 100; writers ask for 3 and 7 in the same second.
    let rpm = name("rpm");
    let item = item(&[("rpm", rule(100_000, 100_000, 60_000), 90_000)]);
    let write = |image: &CompositeBucket, tokens: i64| {
        plan(decide_on(image, &asks(&[("rpm", tokens * 1_000)]), at(T0 + 1_000)))
    };
    let (a, b) = (write(&item, 3), write(&item, 7));
    assert_eq!((a.path, b.path), (WritePath::Claim, WritePath::Claim));
    let after = a.apply(Some(&item)).unwrap();
    assert_eq!(b.apply(Some(&after)), None, "the loser of the lock");
    let again = write(&after, 7);
    assert_eq!(again.path, WritePath::Unclaimed);
    let end = again.apply(Some(&after)).unwrap().limits[&rpm];
    assert!((81_666..=81_667).contains(&end.tokens.get()), "{end:?}");
    assert_eq!(end.consumed.get(), 10_000);
}

#[test]
fn a_shortage_says_how_long_to_wait() {
    let mut item = full_bucket();
    item.limits.get_mut(&name("fast")).unwrap().tokens = milli(0);
    let asked = Amounts::from([(name("fast"), milli(1_000)), (name("slow"), milli(1_000))]);
    let on = |millis| decide_on(&item, &asked, at(T0 + millis));
    let Decision::Short(limits) = on(0) else { panic!("short") };
    let waits: Vec<_> = limits.iter().map(|s| (s.limit.as_str(), s.wait)).collect();
    assert_eq!(waits, [("fast", Wait::Millis(10)), ("slow", Wait::None)]);
    assert!(matches!(on(9), Decision::Short(_)) && matches!(on(10), Decision::Write(_)));
}

#[test]
fn the_wait_is_exact_to_the_millisecond() {
    for (amount, period_ms) in [(7_919, 997), (7_000, 3_600_000), (1, 1), (1_000_003, 1_000)] {
        for (tokens, asked) in [(0, 1), (-5_003, 1_000), (999, 1_000), (17, 9_999)] {
            let item = item(&[("odd", rule(10_000, amount, period_ms), tokens)]);
            let asked = asks(&[("odd", asked)]);
            let Decision::Short(limits) = decide_on(&item, &asked, at(T0)) else { panic!("short") };
            let Wait::Millis(wait) = limits[0].wait else { panic!("{limits:?}") };
            let then = T0 + i64::try_from(wait).unwrap();
            let early = decide_on(&item, &asked, at(then - 1));
            assert!(matches!(early, Decision::Short(_)), "{early:?}");
            acquire(&item, &asked, at(then));
        }
    }
}

#[test]
fn a_slow_limit_earns_its_due_beside_a_busy_one() {
    let mut item = item(&[
        ("day", rule(1_000, 1_000, 86_400_000), 0),
        ("rpm", rule(60_000, 60_000, 60_000), 0),
    ]);
    for second in 1..=6 * 3_600 {
        item = acquire(&item, &asks(&[("rpm", 1_000)]), at(T0 + 1_000 * second));
    }
    // A quarter of a day, one claim a second.
    let earned = item.limits[&name("day")].tokens.get();
    assert!((249..=251).contains(&earned), "{earned}");
}

#[test]
fn odd_polls_neither_lose_nor_make_refill() {
    let mut item = item(&[
        ("hourly", rule(20_000, 7_000, 3_600_000), 0),
        ("probe", rule(1_000_000, 1_000_000, 1_000), 1_000_000),
    ]);
    let mut now = T0;
    while now + 333 <= T0 + 2 * 3_600_000 {
        now += 333;
        item = acquire(&item, &asks(&[("probe", 1)]), at(now));
    }
    let earned = item.limits[&name("hourly")].tokens.get();
    assert!((13_999..=14_001).contains(&earned), "{earned}");
}

#[test]
fn a_debt_on_one_limit_does_not_refuse_another() {
    let mut item = full_bucket();
    item.limits.get_mut(&name("slow")).unwrap().tokens = milli(-90_000);
    for millis in [0, 50, 200] {
        let after = acquire(&item, &asks(&[("fast", 20_000)]), at(T0 + millis));
        assert_eq!(after.limits[&name("slow")].consumed, milli(0).into(), "after {millis} ms");
    }
    let both = decide_on(&item, &asks(&[("fast", 1), ("slow", 1)]), at(T0 + 200));
    assert!(matches!(both, Decision::Short(_)), "{both:?}");
}

fn stored(version: u64, rules: &[(&str, Rule)]) -> Configuration {
    let rules = rules.iter().map(|(limit, rule)| (name(limit), *rule)).collect();
    let versions = LevelVersions([0, 0, 0, version]);
    let stored = StoredRules { rules, versions, ..StoredRules::default() };
    Configuration { stored: Some(stored), ..Configuration::default() }
}

#[test]
fn two_writers_add_a_limit_at_once() {
    let (old, new) = (rule(50_000, 100_000, 1_000), rule(9_000, 9_000, 60_000));
    let before = item(&[("old", old, 50_000)]);
    let configuration = stored(1, &[("old", old), ("new", new)]);
    let write = |image: &CompositeBucket, amount| {
        let asked = asks(&[("new", amount)]);
        plan(decide_with(image, &asked, &configuration, RefillHint::AssumeClaimed, at(T0)))
    };
    let (first, second) = (write(&before, 2_000), write(&before, 3_000));
    let after = first.apply(Some(&before)).unwrap();
    assert_eq!(second.apply(Some(&after)), None, "the limit is there by now");
    let after = write(&after, 3_000).apply(Some(&after)).unwrap();
    let added = after.limits[&name("new")];
    assert_eq!((added.tokens, added.consumed), (milli(4_000), milli(5_000).into()));
    // Another producer adds a limit and leaves the hash: only the limit itself tells.
    let mut foreign = before.clone();
    foreign.limits.insert(name("new"), added);
    assert_eq!(first.apply(Some(&foreign)), None, "its counter would start again");
}

#[test]
fn a_change_of_rules_claims_at_the_old_rate_first() {
    let (slow, fast) = (rule(50_000, 1_000, 1_000), rule(50_000, 100_000, 1_000));
    let before = item(&[("a", slow, 10_000)]);
    let asked = asks(&[("a", 12_000)]);
    let configuration = stored(1, &[("a", fast)]);
    let on = |millis| {
        decide_with(&before, &asked, &configuration, RefillHint::TrustImage, at(T0 + millis))
    };
    // Two seconds at the old rate earn the missing two tokens, not two hundred.
    assert!(matches!(on(1_000), Decision::Short(_)));
    let after = plan(on(2_000)).apply(Some(&before)).unwrap();
    let changed = after.limits[&name("a")];
    assert_eq!((changed.rule, changed.tokens), (fast, milli(0)));
    assert_eq!(after.config_stamp, LevelVersions([0, 0, 0, 1]).into());
    // From now on it is the new one.
    acquire(&after, &asks(&[("a", 10_000)]), at(T0 + 2_100));
}

#[test]
fn tokens_above_a_lowered_burst_are_gone() {
    let (high, low) = (rule(50_000, 1_000, 1_000), rule(5_000, 1_000, 1_000));
    let before = item(&[("a", high, 50_000)]);
    let configuration = stored(1, &[("a", low)]);
    let ask = |amount| {
        let asked = asks(&[("a", amount)]);
        decide_with(&before, &asked, &configuration, RefillHint::TrustImage, at(T0 + 1))
    };
    let Decision::Short(limits) = ask(5_001) else { panic!("short") };
    assert_eq!((limits[0].wait, limits[0].available), (Wait::ExceedsBurst, milli(5_000)));
    let after = plan(ask(4_000)).apply(Some(&before)).unwrap();
    assert_eq!(after.limits[&name("a")].tokens, milli(1_000));
}

#[test]
fn a_timestamp_far_ahead_is_pulled_back_by_whoever_writes_next() {
    let mut item = full_bucket();
    item.refilled_at = at(T0 + 60_001);
    item.limits.get_mut(&name("fast")).unwrap().tokens = milli(7_000);
    let asked = Amounts::from([(name("fast"), milli(7_000))]);
    let Decision::Write(plan) = decide_on(&item, &asked, at(T0)) else { panic!("write") };
    let after = plan.apply(Some(&item)).unwrap();
    assert_eq!((plan.path, after.refilled_at), (WritePath::Claim, at(T0)));
    assert_eq!(after.limits[&name("fast")].tokens, milli(0), "nothing was claimed");
    // A millisecond less is no error of a clock: nobody moves it.
    item.refilled_at = at(T0 + 60_000);
    let Decision::Write(plan) = decide_on(&item, &asked, at(T0)) else { panic!("write") };
    assert_eq!(plan.path, WritePath::Unclaimed);
}

#[test]
fn a_shortage_under_a_timestamp_far_ahead_is_repaired_before_it_is_said() {
    let mut item = full_bucket();
    item.refilled_at = at(T0 + 3_600_000);
    item.limits.get_mut(&name("fast")).unwrap().tokens = milli(0);
    let asked = Amounts::from([(name("fast"), milli(1_000))]);
    let (id, bucket, configuration) =
        (RequestId::from_bits(7), item.id(), Configuration::default());
    let acquire = Acquire {
        bucket: &bucket,
        amounts: &asked,
        configuration: &configuration,
        id: &id,
        interval: ClaimInterval::default(),
        hint: RefillHint::TrustImage,
    };
    let Decision::Repair(plan) = decide(Some(&item), acquire, at(T0)) else { panic!("repair") };
    let repaired = plan.apply(Some(&item)).unwrap();
    assert_eq!((repaired.refilled_at, &repaired.limits), (at(T0), &item.limits));
    // The repair granted nothing, so the item must not take the request for one that landed.
    let again = decide(Some(&repaired), acquire, at(T0));
    assert!(matches!(again, Decision::Short(_)), "{again:?}");
    let later = decide(Some(&repaired), acquire, at(T0 + 10));
    assert!(matches!(later, Decision::Write(_)), "{later:?}");
    // A refusal that no wait can lift needs no repair.
    let never = Amounts::from([(name("fast"), milli(50_001))]);
    let never = decide(Some(&item), Acquire { amounts: &never, ..acquire }, at(T0));
    assert!(matches!(never, Decision::Short(_)), "{never:?}");
}

/// `count` limits from `first` on, by name.
fn many(first: usize, count: usize) -> Rules {
    (first..first + count).map(|n| (name(&format!("l{n:02}")), rule(5_000, 1_000, 1_000))).collect()
}

fn item_of(rules: &Rules) -> CompositeBucket {
    let limits: Vec<_> = rules.iter().map(|(limit, rule)| (limit.as_str(), *rule, 3_000)).collect();
    item(&limits)
}

#[test]
fn a_full_item_takes_no_other_limit_and_works_on() {
    let image = item_of(&many(0, LIMITS_MAX));
    let configuration = Configuration::explicit(many(LIMITS_MAX - 1, 3));
    let ask = |limit: &str, now_ms| {
        let amounts = asks(&[(limit, 1_000)]);
        decide_with(&image, &amounts, &configuration, RefillHint::TrustImage, at(now_ms))
    };
    assert_eq!(ask("l40", T0), Decision::NoRoom(name("l40")));
    assert_eq!(ask("l99", T0), Decision::UnknownLimit(name("l99")));
    for (now_ms, path) in [(T0 + 50, WritePath::Unclaimed), (T0 + 1_000, WritePath::Claim)] {
        let Decision::Write(plan) = ask("l39", now_ms) else { panic!("its own limits work") };
        let after = plan.apply(Some(&image)).unwrap();
        assert_eq!((plan.path, after.limits.len()), (path, LIMITS_MAX), "others are left out");
    }
    // Another producer knows no such bound.
    let image = item_of(&many(0, LIMITS_MAX + 9));
    let Decision::Write(_) = decide_on(&image, &asks(&[("l45", 1_000)]), at(T0 + 1_000)) else {
        panic!("what it has can be had")
    };
}

#[test]
fn unrequested_limit_that_does_not_fit_is_left_out() {
    let configuration = Configuration::explicit(many(0, LIMITS_MAX + 1));
    let amounts = asks(&[("l07", 1_000), ("l40", 1_000)]);
    let acquire = Acquire {
        bucket: &full_bucket().id(),
        amounts: &amounts,
        configuration: &configuration,
        id: &RequestId::from_bits(1),
        interval: ClaimInterval::default(),
        hint: RefillHint::TrustImage,
    };
    let Decision::Write(plan) = decide(None, acquire, at(T0)) else { panic!("create") };
    let created = plan.apply(None).unwrap();
    assert!(created.limits.keys().eq(amounts.keys()), "{:?}", created.limits.keys());
    assert_eq!(
        created.rules_hash,
        Some(RulesHash::of(created.limits.iter().map(|(limit, bucket)| (limit, &bucket.rule))))
    );

    let image = item_of(&many(0, LIMITS_MAX - 1));
    let amounts = asks(&[("l39", 1_000)]);
    let decision =
        decide_with(&image, &amounts, &configuration, RefillHint::TrustImage, at(T0 + 1_000));
    let Decision::Write(plan) = decision else { panic!("{decision:?}") };
    let after = plan.apply(Some(&image)).unwrap();
    assert_eq!((after.limits.len(), after.limits.contains_key(&name("l39"))), (LIMITS_MAX, true));
}

#[test]
fn dropped_limits_go_before_others_come() {
    let image = item_of(&many(0, LIMITS_MAX));
    let stored = StoredRules {
        rules: many(50, LIMITS_MAX),
        deleted: many(0, LIMITS_MAX)
            .into_keys()
            .map(|limit| (limit, LevelVersions([0, 0, 0, 1])))
            .collect(),
        versions: LevelVersions([0, 0, 0, 1]),
        ..StoredRules::default()
    };
    let configuration = Configuration { explicit: Arc::default(), stored: Some(stored) };
    let amounts = asks(&[("l50", 1_000)]);
    let ask = |image: &CompositeBucket| {
        decide_with(image, &amounts, &configuration, RefillHint::TrustImage, at(T0 + 1_000))
    };
    let Decision::Repair(plan) = ask(&image) else { panic!("first they go") };
    let empty = plan.apply(Some(&image)).unwrap();
    assert!(empty.limits.is_empty() && empty.request_ids.is_empty());
    let Decision::Write(plan) = ask(&empty) else { panic!("then others come") };
    let after = plan.apply(Some(&empty)).unwrap();
    assert!(after.limits.keys().eq(many(50, LIMITS_MAX).keys()));
    assert_eq!(after.limits[&name("l50")].consumed, milli(1_000).into());
}
