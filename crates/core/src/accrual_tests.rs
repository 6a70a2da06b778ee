use super::*;
use crate::claim::{Claim, ClaimInterval, Gain};
use crate::fixtures::{at, by_calendar, milli, name, rule};
use crate::{Amounts, CompositeBucket, Condition, ConfigStamp, EntityId, LimitBalance, Resource};
use proptest::prelude::*;

const DAY_MS: i64 = 86_400_000;
const T0: i64 = 1_700_000_000_123;

/// A small deterministic generator: proptest cases of 10^5 elements would not shrink in time.
fn steps(mut seed: u64) -> impl Iterator<Item = u64> {
    std::iter::repeat_with(move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    })
}

#[test]
fn a_hundred_thousand_claims_telescope_for_every_rate() {
    // From one token a day to a million tokens a second.
    let rates = [(1_000, DAY_MS), (7_000, 3_600_000), (60_000, 60_000), (1_000_000_000, 1_000)];
    for (amount, period_ms) in rates {
        let refill = Refill::new(milli(amount), period_ms).unwrap();
        let (mut now, mut claimed) = (T0, 0);
        for step in steps(amount.unsigned_abs() + 1).take(100_000) {
            // Mostly a few milliseconds, at times an hour.
            let ahead = if step % 97 == 0 { step % 3_600_000 } else { step % 50 };
            let next = now + i64::try_from(ahead).unwrap();
            claimed += refill.accrued_between(at(now), at(next));
            now = next;
        }
        assert_eq!(claimed, refill.accrued_between(at(T0), at(now)), "{amount} per {period_ms} ms");
        // The ideal, as an exact fraction over the period: off by less than one millitoken.
        let ideal = i128::from(now - T0) * i128::from(amount);
        let error = claimed * i128::from(period_ms) - ideal;
        assert!(error.abs() < i128::from(period_ms), "{amount} per {period_ms} ms");
    }
}

#[test]
fn one_per_day_earns_although_it_is_claimed_every_second() {
    let refill = Refill::new(milli(1_000), DAY_MS).unwrap();
    let claimed: i128 = (0..86_400)
        .map(|s| refill.accrued_between(at(T0 + s * 1_000), at(T0 + (s + 1) * 1_000)))
        .sum();
    assert_eq!(claimed, 1_000);
}

#[test]
fn a_full_bucket_stays_at_its_burst_and_a_debt_is_earned_back() {
    let rule = rule(60_000, 60_000, 60_000);
    assert_eq!(rule.effective(milli(60_000), at(T0), at(T0 + DAY_MS)).get(), 60_000);
    assert_eq!(rule.effective(milli(75_000), at(T0), at(T0)).get(), 60_000);
    assert_eq!(rule.effective(milli(-5_000), at(T0), at(T0 + 2_000)).get(), -3_000);
}

#[test]
fn a_clock_that_goes_back_earns_nothing() {
    let rule = rule(60_000, 60_000, 60_000);
    assert_eq!(rule.effective(milli(10), at(T0), at(T0 - 1)).get(), 10);
    assert_eq!(rule.refill().accrued_between(at(T0), at(0)), 0);
}

#[test]
fn never_admissible_amount_has_no_wait() {
    let quota = rule(10_000, 0, 1);
    assert_eq!(quota.wait_for(milli(1_000), milli(0), at(T0), at(T0)), Wait::NoRefill);
    assert_eq!(quota.wait_for(milli(10_001), milli(0), at(T0), at(T0)), Wait::ExceedsBurst);
    assert_eq!(quota.wait_for(milli(10_000), milli(10_000), at(T0), at(T0)), Wait::None);
}

#[test]
fn the_ends_of_every_range_do_not_overflow() {
    let extremes = [Millitokens::MIN, milli(-1), Millitokens::ZERO, milli(1), Millitokens::MAX];
    let instants = [EpochMillis::MIN, at(1), at(T0), EpochMillis::MAX];
    for (amount, period_ms) in
        [(0, 1), (1, 1), (1, Refill::MAX_PERIOD_MS), (Millitokens::MAX.get(), 1)]
    {
        for burst in [0, 1, Millitokens::MAX.get()] {
            let rule = rule(burst, amount, period_ms);
            for stored in extremes {
                for asked in extremes {
                    for rf in instants {
                        for now in instants {
                            let effective = rule.effective(stored, rf, now);
                            assert!(effective <= rule.burst());
                            assert!(effective >= stored.min(rule.burst()));
                            let ready = rule.wait_for(asked, stored, rf, now) == Wait::None;
                            assert_eq!(ready, asked <= effective);
                        }
                    }
                }
            }
        }
    }
    assert!(Refill::new(milli(-1), 1).is_err());
    assert!(Refill::new(milli(1), 0).is_err());
    assert!(Refill::new(milli(1), Refill::MAX_PERIOD_MS + 1).is_err());
}

proptest! {
    #[test]
    fn any_partition_of_an_interval_sums_to_the_whole(
        amount in 0..=1_000_000_000_000_i64,
        period_ms in 1..=Refill::MAX_PERIOD_MS,
        mut instants in proptest::collection::vec(0..=EpochMillis::MAX.get(), 2..40),
    ) {
        let refill = Refill::new(milli(amount), period_ms).unwrap();
        instants.sort_unstable();
        let parts: i128 = instants.windows(2).map(|w| refill.accrued_between(at(w[0]), at(w[1]))).sum();
        let whole = refill.accrued_between(at(instants[0]), at(instants[instants.len() - 1]));
        prop_assert_eq!(parts, whole);
    }

    #[test]
    fn the_wait_is_exact_on_both_sides(
        burst in 1..=10_000_000_000_i64,
        amount in 1..=1_000_000_000_i64,
        period_ms in 1..=DAY_MS,
        debt in 0..=1_000_000_000_i64,
        asked_share in 0.0..=1.0_f64,
        behind in 0..=10_000_i64,
    ) {
        let rule = rule(burst, amount, period_ms);
        #[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "any amount will do")]
        let asked = milli(((burst as f64 * asked_share) as i64).clamp(1, burst));
        let (stored, rf, now) = (milli(-debt), at(T0), at(T0 - behind));
        let Wait::Millis(wait) = rule.wait_for(asked, stored, rf, now) else {
            return Err(TestCaseError::fail("a balance at or below zero always waits"));
        };
        let ready = i64::try_from(wait).unwrap() + now.get();
        prop_assume!(ready <= EpochMillis::MAX.get());
        prop_assert!(rule.effective(stored, rf, at(ready)) >= asked);
        prop_assert!(rule.effective(stored, rf, at(ready - 1)) < asked);
    }
}

/// 2026-11-23T19:00:00Z, a Monday.
const MONDAY: i64 = 1_795_460_400_000;

#[test]
fn calendar_limit_is_full_again_at_the_boundary() {
    let week = by_calendar(5_000, "week");
    let boundary = MONDAY - 19 * 3_600_000 + 7 * DAY_MS;
    assert_eq!(week.effective(milli(100), at(MONDAY), at(boundary - 1)), milli(100));
    assert_eq!(week.effective(milli(100), at(MONDAY), at(boundary)), milli(5_000));
    let wait = |asked| week.wait_for(milli(asked), milli(100), at(MONDAY), at(MONDAY + 1));
    assert_eq!(wait(100), Wait::None);
    assert_eq!(wait(101), Wait::Millis((boundary - MONDAY - 1).unsigned_abs()));
    assert_eq!(wait(5_001), Wait::ExceedsBurst);
}

#[test]
fn debt_of_a_calendar_limit_is_carried_or_forgiven() {
    let after_weeks = |n: i64| at(MONDAY + n * 7 * DAY_MS);
    for (boundaries, balances, full_after) in [
        ("week", [-7_000, -2_000, 3_000, 5_000], 3),
        ("week,debt=forgiven", [-7_000, 5_000, 5_000, 5_000], 1),
    ] {
        let week = by_calendar(5_000, boundaries);
        for (n, balance) in (0..).zip(balances) {
            let effective = week.effective(milli(-7_000), at(MONDAY), after_weeks(n));
            assert_eq!(effective, milli(balance), "{boundaries} after {n} weeks");
        }
        let wait = week.wait_for(milli(5_000), milli(-7_000), at(MONDAY), at(MONDAY));
        let full_at = MONDAY - 19 * 3_600_000 + full_after * 7 * DAY_MS;
        assert_eq!(wait, Wait::Millis((full_at - MONDAY).unsigned_abs()), "{boundaries}");
    }
}

/// A debit that comes between the image and the claim makes a debt, which this claim does not
/// forgive.
#[test]
fn claim_that_may_forgive_a_debt_requires_the_balance_that_it_saw() {
    let claim = |boundaries: &str, tokens: i64| {
        let rule = by_calendar(5_000, boundaries);
        let balance = LimitBalance { rule, tokens: milli(tokens), consumed: milli(0).into() };
        let (since, until) = (at(MONDAY), at(MONDAY + 7 * DAY_MS));
        let gain = Gain { since, until, returned: milli(0) };
        Claim::of(&name("x"), &balance, milli(5_000), milli(1_000), gain, ClaimInterval::default())
    };
    for tokens in [-7_000, -1, 0] {
        let claimed = claim("week,debt=forgiven", tokens);
        assert_eq!(claimed.condition, Condition::Exactly(name("x"), milli(tokens)), "{tokens}");
        assert_eq!(tokens + claimed.tokens, 5_000);
    }
    let carried = claim("week", 0);
    assert_eq!(carried.condition, Condition::AtMost(name("x"), 0));
    assert_eq!(carried.tokens, 5_000);
}

#[test]
fn calendar_limit_keeps_what_its_period_consumed_when_its_amount_changes() {
    let (month, more) = (by_calendar(200, "month"), by_calendar(300, "month"));
    assert_eq!(more.adopt(month, 20), 120);
    assert_eq!(month.adopt(more, 20), -80);
    assert_eq!(by_calendar(200, "month@15").adopt(month, 20), 20);
    assert_eq!(rule(100, 1, 1).adopt(month, 180), 100);
}

#[test]
fn rate_that_becomes_a_calendar_limit_is_full_less_its_debt() {
    let month = by_calendar(300, "month");
    // A raised rate is not full, although nothing was consumed.
    assert_eq!(month.adopt(rule(10_000, 1, 1), 98), 300);
    assert_eq!(month.adopt(rule(100, 1, 1), -40), 260);
    // A quota says what was consumed.
    assert_eq!(month.adopt(rule(100, 0, 1), 40), 240);
}

#[test]
fn changed_quota_keeps_what_was_consumed() {
    let (quota, raised) = (rule(100, 0, 1), rule(300, 0, 1));
    assert_eq!(raised.adopt(quota, 40), 240);
    assert_eq!(quota.adopt(raised, 240), 40);
    assert_eq!(quota.adopt(raised, 180), -20);
    assert_eq!(quota.adopt(by_calendar(300, "month"), 240), 40);
    // The balance of a rate tells no consumption.
    assert_eq!(raised.adopt(rule(100, 1, 1), 40), 300);
    assert_eq!(raised.adopt(rule(100, 1, 1), -40), 260);
    assert_eq!(rule(300, 1, 1).adopt(quota, 40), 40);
}

#[test]
fn boundaries_read_back_as_items_have_them() {
    for text in ["month", "month@15/Europe/Berlin,debt=forgiven", "week@sun,debt=forgiven"] {
        assert_eq!(text.parse::<CalendarRefill>().unwrap().to_string(), text);
    }
    assert!("month,debt=carried".parse::<CalendarRefill>().is_err());
}

fn calendar_rule() -> impl Strategy<Value = Rule> {
    let debt = prop_oneof![Just(Debt::Carried), Just(Debt::Forgiven)];
    (1..=1_000_000_000_000_i64, crate::calendar::tests::calendar(), debt).prop_map(
        |(amount, calendar, debt)| {
            Rule::by_calendar(milli(amount), CalendarRefill { calendar, debt }).unwrap()
        },
    )
}

proptest! {
    #[test]
    fn calendar_limit_earns_the_same_in_any_partition_of_time(
        rule in calendar_rule(),
        mut instants in proptest::collection::vec(0..=EpochMillis::MAX.get(), 2..20),
    ) {
        instants.sort_unstable();
        let gap = |from, until| rule.refill().accrued_between(at(from), at(until));
        let parts: i128 = instants.windows(2).map(|w| gap(w[0], w[1])).sum();
        prop_assert_eq!(parts, gap(instants[0], instants[instants.len() - 1]));
    }

    #[test]
    fn wait_of_a_calendar_limit_is_exact_on_both_sides(
        rule in calendar_rule(),
        stored_share in -3.0..1.0_f64,
        asked_share in 0.0..=1.0_f64,
        rf in 0..=EpochMillis::MAX.get(),
        later in prop_oneof![-60_000..60_000_i64, 0..=100 * DAY_MS],
    ) {
        let burst = rule.burst().get();
        #[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "any amount will do")]
        let share = |share: f64| milli((burst as f64 * share) as i64);
        let (stored, asked) = (share(stored_share), share(asked_share).max(milli(1)));
        let (rf, now) = (at(rf), at((rf + later).clamp(0, EpochMillis::MAX.get())));
        match rule.wait_for(asked, stored, rf, now) {
            Wait::None => prop_assert!(rule.effective(stored, rf, now) >= asked),
            Wait::Millis(wait) => {
                prop_assert!(rule.effective(stored, rf, now) < asked);
                let ready = i64::try_from(wait).ok().and_then(|wait| now.get().checked_add(wait));
                let Some(ready) = ready.filter(|ready| *ready <= EpochMillis::MAX.get()) else {
                    return Ok(());
                };
                prop_assert!(rule.effective(stored, rf, at(ready)) >= asked);
                prop_assert!(rule.effective(stored, rf, at(ready - 1)) < asked);
            }
            other => prop_assert!(false, "{:?}", other),
        }
    }
}

proptest! {
    /// A bucket with a rate beside the calendar limit, so that the refill time moves all the time.
    /// One period admits at most the amount, less the debt that it began with.
    #[test]
    fn period_admits_its_amount_less_a_carried_debt(
        rule in calendar_rule(),
        start in 0..=EpochMillis::MAX.get() - 4_000 * DAY_MS,
        steps in proptest::collection::vec(
            (prop_oneof![0..=1_000_i64, 0..=3 * DAY_MS, 0..=400 * DAY_MS], 1..=1_200_i64, 0..4_u8),
            1..60,
        ),
    ) {
        let (calendar, amount) = (rule.refill().calendar().unwrap(), rule.burst().get());
        let (budget, rate, evenly) = (name("usd"), name("rps"), crate::fixtures::rule(1_000, 1, 1));
        let full = |rule: Rule| LimitBalance { rule, tokens: rule.burst(), consumed: milli(0).into() };
        let mut bucket = CompositeBucket {
            entity: EntityId::new("u").unwrap(),
            resource: Resource::new("r").unwrap(),
            refilled_at: at(start),
            limits: [(budget.clone(), full(rule)), (rate.clone(), full(evenly))].into(),
            expires_at_s: None,
            config_stamp: ConfigStamp::None,
            rules_hash: None,
            request_ids: Vec::new(),
        };
        let (mut now, mut period, mut admitted) = (start, calendar.calendar.period(at(start)).index, 0);
        let mut room = amount;
        for (later, share, kind) in steps {
            now = (now + later).min(EpochMillis::MAX.get());
            let (before, asked) = (period, (i128::from(amount) * i128::from(share) / 1_000).max(1));
            period = calendar.calendar.period(at(now)).index;
            if period != before {
                let debt = bucket.limits[&budget].tokens.get().min(0);
                let debt = if calendar.debt == Debt::Forgiven { 0 } else { debt };
                let credit = i128::from(amount) * i128::from(period - before - 1);
                let carried = (i128::from(debt) + credit).min(0);
                (admitted, room) = (0, i64::try_from(i128::from(amount) + carried).unwrap_or(i64::MIN));
            }
            let asked = milli(i64::try_from(asked).unwrap());
            // The refill time moves without the calendar limit.
            let _ = bucket.take_alone(&Amounts::from([(rate.clone(), milli(1))]), at(now));
            let found = bucket.limits[&budget].tokens;
            if bucket.take_alone(&Amounts::from([(budget.clone(), asked)]), at(now)) {
                admitted += asked.get();
                prop_assert!(admitted <= room, "{admitted} of {room}");
            } else {
                prop_assert!(found < asked, "refused although there was room");
                prop_assert_eq!(i128::from(found), i128::from(room) - i128::from(admitted));
            }
            if kind == 0 {
                // It cost more than the estimate.
                let tokens = &mut bucket.limits.get_mut(&budget).unwrap().tokens;
                *tokens = Millitokens::saturating(i128::from(*tokens) - i128::from(asked));
                admitted += asked.get();
            }
        }
    }
}
