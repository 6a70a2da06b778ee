use super::*;
use crate::{
    Acquire, Bucket, Decision, EntityId, Refill, Resource, Rule, Rules, RulesHash, decide,
};

const T0: i64 = 1_769_608_800_000;
const HOUR_MS: i64 = 3_600_000;

fn milli(amount: i64) -> Millitokens {
    Millitokens::new(amount).unwrap()
}

fn at(millis: i64) -> EpochMillis {
    EpochMillis::new(millis).unwrap()
}

fn name(limit: &str) -> LimitName {
    LimitName::new(limit).unwrap()
}

fn asks(amounts: &[(&str, i64)]) -> Amounts {
    amounts.iter().map(|(limit, amount)| (name(limit), milli(*amount))).collect()
}

/// 60 a minute, at most 60 at once.
fn rpm() -> Rule {
    Rule::new(milli(60_000), Refill::new(milli(60_000), 60_000).unwrap()).unwrap()
}

fn bucket_id() -> BucketId {
    BucketId { entity: EntityId::new("u").unwrap(), resource: Resource::new("r").unwrap() }
}

fn configuration() -> Configuration {
    Configuration::explicit(Rules::from([(name("rpm"), rpm()), (name("tpm"), rpm())]))
}

/// Claimed at T0, expires when both could have filled twice.
fn item(tokens: i64) -> CompositeBucket {
    let BucketId { entity, resource } = bucket_id();
    let rules = configuration().rules();
    let bucket = |rule| Bucket { rule, tokens: milli(tokens), consumed: milli(7_000).into() };
    CompositeBucket {
        entity,
        resource,
        refilled_at: at(T0),
        rules_hash: Some(RulesHash::of(&rules)),
        limits: rules.into_iter().map(|(limit, rule)| (limit, bucket(rule))).collect(),
        expires_at_s: Some(T0 / 1_000 + 180),
        config_stamp: crate::ConfigStamp::None,
        request_ids: Vec::new(),
    }
}

fn id(bits: u64) -> RequestId {
    RequestId::from_bits(bits)
}

fn decide_on(
    image: Option<&CompositeBucket>,
    amounts: &Amounts,
    (bits, force): (u64, Force),
    now_ms: i64,
) -> Adjustment {
    let request = Adjust {
        bucket: &bucket_id(),
        amounts,
        configuration: &configuration(),
        id: &id(bits),
        interval: ClaimInterval::default(),
        hint: RefillHint::TrustImage,
        force,
    };
    adjust(image, request, at(now_ms))
}

fn plan(adjustment: Adjustment) -> WritePlan {
    match adjustment {
        Adjustment::Write { plan, dropped } if dropped.is_empty() => plan,
        other => panic!("{other:?}"),
    }
}

fn acquire(image: &CompositeBucket, amount: i64, hint: RefillHint, now_ms: i64) -> Decision {
    let acquire = Acquire {
        bucket: &bucket_id(),
        amounts: &asks(&[("rpm", amount)]),
        configuration: &configuration(),
        id: &id(1_000_000 + u64::try_from(now_ms - T0).unwrap()),
        interval: ClaimInterval::default(),
        hint,
    };
    decide(Some(image), acquire, at(now_ms))
}

#[test]
fn a_correction_of_an_expired_bucket_leaves_one_that_works() {
    for (amount, tokens) in [(10_000, 50_000), (-10_000, 60_000), (90_000, -30_000)] {
        let debit = asks(&[("rpm", amount)]);
        let plan = plan(decide_on(None, &debit, (1, Force::No), T0));
        assert_eq!(plan.path, WritePath::Create);
        let item = plan.apply(None).unwrap();
        let (rpm, tpm) = (item.limits[&name("rpm")], item.limits[&name("tpm")]);
        assert_eq!((rpm.tokens, rpm.consumed), (milli(tokens), milli(amount).into()));
        assert_eq!((tpm.tokens, tpm.consumed), (milli(60_000), milli(0).into()));
        assert_eq!(extend(&item, at(T0)), None, "its expiry covers the debt");
        let later = acquire(&item, 30_000, RefillHint::TrustImage, T0 + 60_000);
        let Decision::Write(later) = later else { panic!("{later:?}") };
        let rpm = later.apply(Some(&item)).unwrap().limits[&name("rpm")];
        assert_eq!(rpm.consumed, milli(amount + 30_000).into());
    }
}

#[test]
fn what_concerns_a_removed_limit_is_dropped_and_said() {
    let item = item(0);
    let both = asks(&[("gone", -5_000), ("rpm", -3_000)]);
    let Adjustment::Write { plan, dropped } = decide_on(Some(&item), &both, (1, Force::No), T0)
    else {
        panic!("write")
    };
    assert_eq!(dropped, [name("gone")]);
    let after = plan.apply(Some(&item)).unwrap();
    assert_eq!(after.limits[&name("rpm")].tokens, milli(3_000));
    assert_eq!(after.limits.len(), 2, "no stump");
    for image in [Some(&item), None] {
        let alone = decide_on(image, &asks(&[("gone", -5_000)]), (1, Force::No), T0);
        assert_eq!(alone, Adjustment::NoSuchLimits(vec![name("gone")]));
    }
    // It was removed while the write was on its way.
    let mut removed = item.clone();
    removed.limits.remove(&name("rpm"));
    assert_eq!(plan.apply(Some(&removed)), None);
    assert!(!plan.holds(Some(&removed)) && !plan.holds(None));
}

#[test]
fn a_debit_keeps_the_guards_of_an_acquire_and_not_its_floor() {
    let item = item(1_000);
    let debit = asks(&[("rpm", 5_000)]);
    for (after_ms, path) in [(50, WritePath::Retry), (500, WritePath::Normal)] {
        let plan = plan(decide_on(Some(&item), &debit, (1, Force::No), T0 + after_ms));
        assert_eq!(plan.path, path);
        let least = |c: &Condition| matches!(c, Condition::AtLeast(_, least) if *least > 0);
        assert!(!plan.conditions.iter().any(least), "{plan:?}");
        let after = plan.apply(Some(&item)).unwrap();
        assert!(after.limits[&name("rpm")].tokens < Millitokens::ZERO, "{after:?}");
        // The bucket filled up meanwhile: the debit would be forgiven by that refill.
        let mut full = item.clone();
        full.limits.get_mut(&name("rpm")).unwrap().tokens = milli(60_000);
        assert_eq!(plan.apply(Some(&full)), None, "{path:?}");
    }
}

#[test]
fn a_forced_debit_lands_whatever_the_balance() {
    let debit = asks(&[("rpm", 5_000)]);
    for tokens in [60_000, 0, -70_000] {
        let item = item(tokens);
        let plan = plan(decide_on(Some(&item), &debit, (1, Force::Yes), T0 + HOUR_MS));
        assert_eq!(plan.path, WritePath::Adjust);
        let least = Millitokens::MIN.get() + 5_000;
        let is_there = Condition::AtLeast(name("rpm"), least);
        assert_eq!(plan.conditions, [Condition::Unseen(id(1)), is_there]);
        let after = plan.apply(Some(&item)).unwrap();
        let rpm = after.limits[&name("rpm")];
        assert_eq!((rpm.tokens, rpm.consumed), (milli(tokens - 5_000), milli(12_000).into()));
        assert_eq!(after.refilled_at, item.refilled_at);
    }
}

#[test]
fn the_item_remembers_the_last_four() {
    let refund = asks(&[("rpm", -1)]);
    let mut item = item(0);
    for bits in 1..=4 {
        let plan = plan(decide_on(Some(&item), &refund, (bits, Force::No), T0));
        item = plan.apply(Some(&item)).unwrap();
        // A first attempt that was late does not land again.
        assert_eq!(plan.apply(Some(&item)), None);
    }
    assert_eq!(item.request_ids, [id(4), id(3), id(2), id(1)]);
    assert_eq!(decide_on(Some(&item), &refund, (1, Force::Yes), T0), Adjustment::AlreadyApplied);
    let fifth = plan(decide_on(Some(&item), &refund, (5, Force::No), T0));
    item = fifth.apply(Some(&item)).unwrap();
    assert_eq!(item.request_ids, [id(5), id(4), id(3), id(2)]);
    assert_ne!(decide_on(Some(&item), &refund, (1, Force::No), T0), Adjustment::AlreadyApplied);
}

#[test]
fn an_idle_bucket_gives_its_burst_once_whatever_drains_it() {
    // Nobody came for an hour: every image is as old as that.
    let idle = item(60_000);
    let start = T0 + HOUR_MS;
    let debits = [None, Some(RefillHint::TrustImage), Some(RefillHint::AssumeRefilled)];
    for (debit, hint) in debits.into_iter().flat_map(|debit| {
        [RefillHint::TrustImage, RefillHint::AssumeRefilled].map(|hint| (debit, hint))
    }) {
        let (mut item, mut image, mut taken) = (idle.clone(), idle.clone(), 0);
        if let Some(hint) = debit {
            let (bucket, amounts, configuration, id) =
                (bucket_id(), asks(&[("rpm", 40_000)]), configuration(), id(1));
            let request = Adjust {
                bucket: &bucket,
                amounts: &amounts,
                configuration: &configuration,
                id: &id,
                interval: ClaimInterval::default(),
                hint,
                force: Force::No,
            };
            let first = plan(adjust(Some(&item), request, at(start)));
            // A write that presumes a claim fails, and its writer knows better then.
            let again = Adjust { hint: RefillHint::TrustImage, ..request };
            let landed = first.apply(Some(&item)).unwrap_or_else(|| {
                plan(adjust(Some(&item), again, at(start))).apply(Some(&item)).unwrap()
            });
            (item, taken) = (landed, 40_000);
        }
        for now_ms in start..start + 1_000 {
            // A write that fails hands over the item, and then there is nothing to hint.
            for hint in [hint, RefillHint::TrustImage] {
                let Decision::Write(plan) = acquire(&image, 1_000, hint, now_ms) else { break };
                let after = plan.apply(Some(&item));
                taken += if after.is_some() { 1_000 } else { 0 };
                item = after.clone().unwrap_or(item);
                image = item.clone();
                if after.is_some() {
                    break;
                }
            }
        }
        assert!((60_000..=61_000).contains(&taken), "{debit:?} {hint:?}: {taken}");
    }
}

#[test]
fn a_debt_that_the_expiry_does_not_cover_moves_it() {
    let covered = item(-50_000);
    assert_eq!(extend(&covered, at(T0)), None);
    let debt = item(-400_000);
    let plan = extend(&debt, at(T0 + 5_000)).unwrap();
    let after = plan.apply(Some(&debt)).unwrap();
    // A minute, and twice the 460 seconds from the debt to full.
    assert_eq!(after.expires_at_s, Some(T0 / 1_000 + 5 + 60 + 2 * 460));
    assert_eq!(extend(&after, at(T0 + 5_000)), None);
    assert_eq!(plan.apply(Some(&after)), None, "never moved back");
    let kept = CompositeBucket { expires_at_s: None, ..debt };
    assert_eq!(extend(&kept, at(T0)), None);
}

#[test]
fn a_claim_from_an_old_image_does_not_shorten_the_expiry_of_a_debt() {
    let now = T0 + 500;
    let seen = item(30_000);
    let after_debit_of = |amount: i64| {
        let debit = asks(&[("tpm", amount)]);
        let forced = plan(decide_on(Some(&seen), &debit, (1, Force::Yes), T0));
        let item = forced.apply(Some(&seen)).unwrap();
        extend(&item, at(T0)).map_or(item.clone(), |plan| plan.apply(Some(&item)).unwrap())
    };
    let claims = [
        acquire(&seen, 1_000, RefillHint::TrustImage, now),
        Decision::Write(plan(decide_on(
            Some(&seen),
            &asks(&[("rpm", 70_000)]),
            (2, Force::No),
            now,
        ))),
    ];
    for claim in claims {
        let Decision::Write(claim) = claim else { panic!("{claim:?}") };
        assert_eq!(claim.path, WritePath::Normal);
        for (debit, is_covered) in [(60_000, true), (90_000, true), (1_000_000, false)] {
            let stored = after_debit_of(debit);
            let after = claim.apply(Some(&stored));
            assert_eq!(after.is_some(), is_covered, "{debit}: {claim:?}");
            let Some(after) = after else { continue };
            assert_eq!(extend(&after, at(now)), None, "{debit}");
        }
    }
}
