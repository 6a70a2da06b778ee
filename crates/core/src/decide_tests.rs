//! Writers with images that are out of date, writes in flight and refunds, against an exact bucket.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::{EntityId, Refill, Resource};

const T0: i64 = 1_769_608_800_000;
/// Longest time from a decision to the write, in milliseconds.
const IN_FLIGHT_MS: i64 = 5;
const WRITERS: usize = 6;

fn milli(amount: i64) -> Millitokens {
    Millitokens::new(amount).unwrap()
}

fn at(millis: i64) -> EpochMillis {
    EpochMillis::new(millis).unwrap()
}

fn name(limit: &str) -> LimitName {
    LimitName::new(limit).unwrap()
}

/// 100 a second with a burst of 50, and one of a day: both full.
fn full_bucket() -> CompositeBucket {
    let bucket = |burst, amount, period_ms| {
        let refill = Refill::new(milli(amount), period_ms).unwrap();
        let rule = Rule::new(milli(burst), refill).unwrap();
        Bucket { rule, tokens: milli(burst), consumed: milli(0) }
    };
    CompositeBucket {
        entity: EntityId::new("u").unwrap(),
        resource: Resource::new("r").unwrap(),
        refilled_at: at(T0),
        limits: BTreeMap::from([
            (name("fast"), bucket(50_000, 100_000, 1_000)),
            (name("slow"), bucket(5_000, 1_000, 86_400_000)),
        ]),
        expires_at_s: None,
        config_epoch: None,
        rules_hash: Some(RulesHash::stored("hash")),
        request_ids: Vec::new(),
    }
}

static NEXT_ID: AtomicU64 = AtomicU64::new(0);

/// Decides on an acquire of a bucket whose limits nobody configures otherwise.
fn decide_on(image: &CompositeBucket, amounts: &Amounts, now: EpochMillis) -> Decision {
    let acquire = Acquire {
        bucket: &image.id(),
        amounts,
        configuration: &Configuration::default(),
        id: &RequestId::from_bits(NEXT_ID.fetch_add(1, Ordering::Relaxed)),
        interval: ClaimInterval::default(),
        presume: Presume::Unchanged,
    };
    decide(Some(image), acquire, now)
}

/// A bucket that is refilled continuously and takes whatever it is told.
struct Exact {
    tokens: i128,
    since: EpochMillis,
}

impl Exact {
    fn advance(&mut self, rule: Rule, now: EpochMillis) {
        let refilled = self.tokens + rule.refill().gap(self.since, now);
        self.tokens = refilled.min(rule.burst().get().into());
        self.since = self.since.max(now);
    }
}

/// What went wrong first in a run, if anything did.
#[derive(Debug, PartialEq, Eq)]
enum Violation {
    Negative,
    OverAdmitted,
    LostRefill,
    LostConsumption,
}

/// One schedule; `weaken` may drop conditions from every plan.
fn run(seed: u64, weaken: &dyn Fn(&mut WritePlan)) -> Result<usize, Violation> {
    let mut rng = steps(seed);
    let mut pick = |below: u64| i64::try_from(rng.next().unwrap() % below).unwrap();
    let fast = name("fast");
    let rule = full_bucket().limits[&fast].rule;
    let mut item = full_bucket();
    let mut images = vec![item.clone(); WRITERS];
    let mut flying: Vec<Option<(i64, WritePlan, i64)>> = vec![None; WRITERS];
    let mut exact = Exact { tokens: 50_000, since: at(T0) };
    let (mut now, mut admitted, mut net) = (T0, Vec::new(), 0);
    for _ in 0..3_000 {
        // Mostly busy, at times idle long enough to fill up.
        now += if pick(200) == 0 { pick(3_000) } else { pick(4) };
        exact.advance(rule, at(now));
        let writer = usize::try_from(pick(WRITERS as u64)).unwrap();
        if pick(25) == 0 {
            // A refund, unconditional.
            let back = pick(2_000);
            let bucket = item.limits.get_mut(&fast).unwrap();
            bucket.tokens = milli(bucket.tokens.get() + back);
            bucket.consumed = milli(bucket.consumed.get() - back);
            exact.tokens += i128::from(back);
            net -= back;
            admitted.push((now, -back));
        } else if let Some((decided, plan, amount)) = flying[writer].take() {
            if now - decided > IN_FLIGHT_MS {
                continue;
            }
            match plan.apply(Some(&item)) {
                Some(after) => {
                    item = after;
                    admitted.push((now, amount));
                    exact.tokens -= i128::from(amount);
                    net += amount;
                }
                None => images[writer] = item.clone(),
            }
            if plan.path == WritePath::Normal || pick(3) == 0 {
                images[writer] = item.clone();
            }
        } else {
            let amount = 1_000 + pick(9_000);
            let asked = Amounts::from([(fast.clone(), milli(amount))]);
            match decide_on(&images[writer], &asked, at(now)) {
                Decision::Write(mut plan) => {
                    weaken(&mut plan);
                    flying[writer] = Some((now, plan, amount));
                }
                // "No" is only said from a fresh image.
                Decision::Short(_) => images[writer] = item.clone(),
                other => panic!("{other:?}"),
            }
        }
        check(&item, &fast, rule, at(now), &exact, net)?;
    }
    over_admission(&admitted, rule).map(|()| admitted.len())
}

fn check(
    item: &CompositeBucket,
    fast: &LimitName,
    rule: Rule,
    now: EpochMillis,
    exact: &Exact,
    net: i64,
) -> Result<(), Violation> {
    let bucket = item.limits[fast];
    if bucket.tokens < Millitokens::ZERO {
        return Err(Violation::Negative);
    }
    if bucket.consumed.get() != net {
        return Err(Violation::LostConsumption);
    }
    // Near a full bucket up to what accrues in an interval is withheld; a write in flight while the
    // bucket fills up is judged by the time it was decided at.
    let worth = i128::from(rule.effective(bucket.tokens, item.refilled_at, now).get());
    let withheld = rule.refill().gap(ClaimInterval::default().before(now), now);
    let lost = exact.tokens.min(rule.burst().get().into()) - worth;
    if lost > withheld + 2 { Err(Violation::LostRefill) } else { Ok(()) }
}

/// No interval admits more than the burst and what accrues in it (and while a write is in flight).
fn over_admission(admitted: &[(i64, i64)], rule: Rule) -> Result<(), Violation> {
    for (n, &(from, _)) in admitted.iter().enumerate() {
        let mut sum = 0;
        for &(to, amount) in &admitted[n..] {
            sum += i128::from(amount);
            let accrued = rule.refill().gap(at(from - IN_FLIGHT_MS), at(to));
            if sum > i128::from(rule.burst().get()) + accrued + 1 {
                return Err(Violation::OverAdmitted);
            }
        }
    }
    Ok(())
}

fn steps(mut seed: u64) -> impl Iterator<Item = u64> {
    seed = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    std::iter::repeat_with(move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed >> 11
    })
}

#[test]
fn schedules_keep_every_invariant() {
    for seed in 0..60 {
        let admitted = run(seed, &|_| ());
        assert!(admitted.as_ref().is_ok_and(|n| *n > 300), "seed {seed}: {admitted:?}");
    }
}

/// Each condition, dropped from the plan, breaks something in some schedule. (The hash of the rules
/// and the time of Retry guard against changes of rules and clocks, which these schedules lack.)
#[test]
fn no_condition_is_idle() {
    let without = |what: &str, drop: &dyn Fn(WritePath, &Condition) -> bool| {
        let broken = (0..200).find_map(|seed| {
            let weaken = |plan: &mut WritePlan| {
                let path = plan.path;
                plan.conditions.retain(|condition| !drop(path, condition));
            };
            run(seed, &weaken).err()
        });
        println!("without {what}: {broken:?}");
        assert!(broken.is_some(), "{what} protects nothing");
    };
    use Condition as C;
    use WritePath::{Normal, Retry};
    without("the lock of Normal", &|path, c| path == Normal && matches!(c, C::RefilledAt(_)));
    without("the floor of Normal", &|path, c| path == Normal && matches!(c, C::AtLeast(..)));
    without("the ceilings of Normal", &|path, c| {
        path == Normal && matches!(c, C::AtMost(..) | C::Exactly(..))
    });
    without("the floor of Retry", &|path, c| path == Retry && matches!(c, C::AtLeast(..)));
    without("the guard of Retry", &|path, c| path == Retry && matches!(c, C::AtMost(..)));
}

#[test]
fn the_trace_of_the_reference_ends_where_it_should() {
    // Balance 90, 100 a minute, burst 100; writers ask for 3 and 7 in the same second.
    let refill = Refill::new(milli(100_000), 60_000).unwrap();
    let rule = Rule::new(milli(100_000), refill).unwrap();
    let rpm = name("rpm");
    let mut item = full_bucket();
    item.limits =
        BTreeMap::from([(rpm.clone(), Bucket { rule, tokens: milli(90_000), consumed: milli(0) })]);
    let asked = |tokens: i64| Amounts::from([(rpm.clone(), milli(tokens * 1_000))]);
    let write =
        |image: &CompositeBucket, tokens| match decide_on(image, &asked(tokens), at(T0 + 1_000)) {
            Decision::Write(plan) => plan,
            other => panic!("{other:?}"),
        };
    let (a, b) = (write(&item, 3), write(&item, 7));
    assert_eq!((a.path, b.path), (WritePath::Normal, WritePath::Normal));
    let after = a.apply(Some(&item)).unwrap();
    assert_eq!(b.apply(Some(&after)), None, "the loser of the lock");
    let again = write(&after, 7);
    assert_eq!(again.path, WritePath::Retry);
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
    let Decision::Short(standings) = on(0) else { panic!("short") };
    let waits: Vec<_> = standings.iter().map(|s| (s.limit.as_str(), s.wait)).collect();
    assert_eq!(waits, [("fast", Wait::Millis(10)), ("slow", Wait::None)]);
    assert!(matches!(on(9), Decision::Short(_)) && matches!(on(10), Decision::Write(_)));
}
