//! No condition of a write fails while no other process writes the bucket, whatever the process
//! writes. A plan whose conditions contradict each other looks like one that was outrun: it is made
//! anew, as impossible as before, until its callers have no attempts left.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "tests panic")]

#[allow(dead_code, unused_imports, reason = "shared with other tests")]
#[path = "support/fixtures.rs"]
mod fixtures;
#[allow(dead_code, reason = "shared with other tests")]
#[path = "support/lone.rs"]
mod lone;

use std::sync::Arc;

use proptest::prelude::*;
use proptest::sample::select;
use sluicegate_core::{
    Action, Amounts, Answer, CompositeBucket, Configuration, LeaseRange, LeaseTerms, Outcome,
    Purpose, QueuedRequest, RequestId, Rule, Rules,
};

use self::fixtures::{T0, at, by_calendar, milli, name};
use self::lone::{Lone, lease, request};

const LIMITS: [&str; 2] = ["a", "b"];

fn rule() -> impl Strategy<Value = Rule> {
    let bursts = select(vec![1, 1_000, 5_000, 60_000, 100_000]);
    let refills = select(vec![1, 7, 1_000, 60_000, 100_000, 1_000_000]);
    let periods = select(vec![1, 50, 100, 1_000, 60_000]);
    let calendars = select(vec!["day", "day/Europe/Berlin,debt=forgiven", "month,debt=forgiven"]);
    prop_oneof![
        6 => (bursts, refills, periods)
            .prop_map(|(burst, refill, period_ms)| fixtures::rule(burst, refill, period_ms)),
        1 => (1..50_000_i64).prop_map(|amount| fixtures::rule(amount, 0, 1_000)),
        1 => (1..20_000_i64, calendars)
            .prop_map(|(amount, calendar)| by_calendar(amount, calendar)),
    ]
}

/// The amount of one limit, as a part of its burst, in thousandths; negative: a return.
type Parts = [Option<i64>; 2];

#[derive(Debug, Clone)]
enum Call {
    Acquire(Parts),
    Correct(Parts),
    /// The least that is wanted (or nothing, beyond the first), and what is returned.
    Lease(Parts, Parts),
}

fn call() -> impl Strategy<Value = Call> {
    let part = || prop_oneof![Just(1), 1..100_i64, 1..=1_000_i64];
    let parts = move || [prop::option::weighted(0.7, part()), prop::option::weighted(0.7, part())];
    let sign = |signs: [bool; 2], mut parts: Parts| {
        let signed = parts.iter_mut().flatten().zip(signs);
        signed.filter(|(_, returns)| *returns).for_each(|(part, _)| *part = -*part);
        parts
    };
    prop_oneof![
        3 => parts().prop_map(Call::Acquire),
        3 => (any::<[bool; 2]>(), parts())
            .prop_map(move |(signs, parts)| Call::Correct(sign(signs, parts))),
        1 => (parts(), parts()).prop_map(|(wanted, returned)| Call::Lease(wanted, returned)),
    ]
}

impl Call {
    /// `None`: it names no amount.
    fn request(&self, n: u64, rules: &Rules, now_ms: i64) -> Option<QueuedRequest> {
        let amounts = |parts: &Parts| -> Amounts {
            let of = |(limit, part): (_, &Option<i64>)| {
                let (limit, part) = (name(limit), (*part)?);
                let milli_tokens = rules[&limit].burst().get() * part / 1_000;
                let least = if part > 0 { milli_tokens.max(1) } else { milli_tokens.min(-1) };
                Some((limit, milli(least)))
            };
            LIMITS.into_iter().zip(parts).filter_map(of).collect()
        };
        let (id, configuration) = (RequestId::from_bits(n), Configuration::explicit(rules.clone()));
        let (purpose, amounts) = match self {
            Self::Acquire(parts) => (Purpose::Acquire, amounts(parts)),
            Self::Correct(parts) => (Purpose::Correct, amounts(parts)),
            Self::Lease(wanted, returned) => {
                let range = |(limit, least)| (limit, LeaseRange { least, most: least });
                let wanted = amounts(wanted).into_iter().map(range).collect();
                let terms = LeaseTerms { wanted, returned: amounts(returned), counted: None };
                let is_empty = terms.wanted.is_empty() && terms.returned.is_empty();
                return (!is_empty).then(|| lease(id, terms, &configuration, at(now_ms)));
            }
        };
        (!amounts.is_empty()).then(|| request(id, purpose, amounts, &configuration, at(now_ms)))
    }
}

/// Calls that enter together, some time after those before them, perhaps with another rule for a
/// limit.
type Round = (i64, Option<(&'static str, Rule)>, Vec<Call>);

fn round() -> impl Strategy<Value = Round> {
    let later = select(vec![0, 1, 5, 99, 100, 101, 500, 5_000, 70_000, 40_000_000, -50, -20_000]);
    let changed = prop::option::weighted(0.1, (select(LIMITS.to_vec()), rule()));
    (later, changed, prop::collection::vec(call(), 1..5))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn a_process_alone_on_its_bucket_is_never_outrun(
        rules in [rule(), rule()],
        rounds in prop::collection::vec(round(), 1..12),
    ) {
        let mut rules: Rules = LIMITS.into_iter().map(name).zip(rules).collect();
        let (mut stored, mut process) = (None::<CompositeBucket>, Lone::seeing(None, at(T0)));
        let (mut now_ms, mut n) = (T0, 0);
        for (later, changed, calls) in rounds {
            now_ms += later;
            rules.extend(changed.map(|(limit, rule)| (name(limit), rule)));
            for call in calls {
                n += 1;
                if let Some(request) = call.request(n, &rules, now_ms) {
                    process.queue.enter(request, (), at(now_ms));
                }
            }
            for step in 0.. {
                prop_assert!(step < 100, "the queue comes to no end");
                let mut id = || RequestId::from_bits({ n += 1; n });
                let action = process.queue.next(at(now_ms), &mut id);
                for ((), outcome) in process.queue.drain_resolved() {
                    let is_said = matches!(outcome, Outcome::Done(_) | Outcome::Refused(_));
                    prop_assert!(is_said, "{:?}", outcome);
                }
                match action {
                    Action::Idle => break,
                    Action::Pause { .. } => now_ms += 1,
                    Action::Read(_) => {
                        let image = stored.clone().map(Arc::new);
                        process.queue.answered(Answer::Read(vec![image]), at(now_ms));
                    }
                    Action::Write(write) => {
                        let plan = &write.plans[0].1;
                        let after = plan.apply(stored.as_ref());
                        prop_assert!(after.is_some(), "{:?} of {:?}", plan, stored);
                        stored = after;
                        process.written(stored.as_ref(), at(now_ms));
                    }
                }
            }
        }
    }
}
