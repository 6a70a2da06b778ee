//! The scenarios, each with its bounds: small enough to be exhaustive, large enough that every
//! condition of a write has something to prevent.

use std::sync::Arc;

use sluicegate_core::{
    Amounts, BucketId, CompositeBucket, Configuration, LimitBalance, Rule, RulesHash,
};

use super::protocol::{Faults, Protocol};
use super::support::{
    Caller, Control, Mistake, Process, Purpose, Scenario, System, T0, Table, Timing, at, bucket_id,
    by_calendar, milli, name, rule, stored,
};

pub(crate) const SCENARIOS: &[&str] = &[
    "one bucket, two writers",
    "one bucket, three writers",
    "two limits",
    "creation",
    "corrections",
    "a debit of a bucket that filled up",
    "a bucket that is nearly full",
    "a slower rate",
    "a lower burst",
    "an added limit",
    "a dropped limit",
    "expiry",
    "clocks apart",
    "a boundary of a calendar",
    "a boundary that forgives",
    "a boundary, clocks apart",
    "a lower amount near a boundary",
    "a rate that becomes a budget",
    "a raised quota",
    "lost replies",
    "late writes",
    "combined, lost replies",
    "combined, late writes",
];

const INTERVAL_MS: u32 = 20;

/// Three tokens, ten a second.
fn fast() -> Rule {
    rule(3_000, 10_000, 1_000)
}

/// Two tokens, one a day.
fn slow() -> Rule {
    rule(2_000, 1_000, 86_400_000)
}

fn asks(amounts: &[(&str, i64)]) -> Amounts {
    amounts.iter().map(|(limit, amount)| (name(limit), milli(*amount))).collect()
}

fn take(amounts: &[(&str, i64)]) -> (Purpose, Amounts) {
    (Purpose::Acquire, asks(amounts))
}

fn force(amounts: &[(&str, i64)]) -> (Purpose, Amounts) {
    (Purpose::Forced, asks(amounts))
}

fn correct(amounts: &[(&str, i64)]) -> (Purpose, Amounts) {
    (Purpose::Adjust, asks(amounts))
}

/// An item that follows a configuration, claimed at the start, with these balances.
fn item(configuration: &Configuration, balances: &[i64]) -> CompositeBucket {
    let BucketId { entity, resource } = bucket_id();
    let rules = configuration.rules();
    CompositeBucket {
        entity,
        resource,
        refilled_at: at(T0),
        limits: rules
            .iter()
            .zip(balances)
            .map(|((limit, rule), tokens)| {
                let (tokens, consumed) = (milli(*tokens), milli(0).into());
                let bucket = LimitBalance { rule: *rule, tokens, consumed };
                (limit.clone(), bucket)
            })
            .collect(),
        expires_at_s: Some(T0 / 1_000 + 4 * 86_400),
        config_stamp: configuration.stamp(),
        rules_hash: Some(RulesHash::of(&rules)),
        request_ids: Vec::new(),
    }
}

/// Processes of one caller each that all know the item and the first configuration, no faults, claims
/// by others believed in or not.
fn warm(
    configurations: Vec<Configuration>,
    balances: &[i64],
    scripts: Vec<Vec<(Purpose, Amounts)>>,
    ticks: &[i64],
) -> Protocol {
    with_interval(INTERVAL_MS, configurations, balances, scripts, ticks)
}

/// The same with another claim interval.
fn with_interval(
    interval_ms: u32,
    configurations: Vec<Configuration>,
    balances: &[i64],
    scripts: Vec<Vec<(Purpose, Amounts)>>,
    ticks: &[i64],
) -> Protocol {
    let timing = Timing { spread_ms: 0, flight_ms: 5, interval_ms };
    let item = item(&configurations[0], balances);
    let processes = vec![Process::new(0, Some(Some(item.clone())), timing); scripts.len()];
    let configurations = configurations.into_iter().map(Arc::new).collect();
    Protocol {
        scenario: Scenario { timing, configurations, without: None, mistake: None },
        start: System::new(Table::holding(Some(item), timing), processes),
        scripts,
        ticks: ticks.to_vec(),
        faults: Faults::default(),
        is_claimed: vec![false, true],
        leaves: 0,
        expires: false,
    }
}

/// The same without an item.
fn cold(mut protocol: Protocol) -> Protocol {
    let timing = protocol.scenario.timing;
    for process in &mut protocol.start.processes {
        *process = Process::new(0, Some(None), timing);
    }
    protocol.start.table = Table::holding(None, timing);
    protocol
}

fn one() -> Vec<Configuration> {
    vec![stored(1, &[("a", fast())], &[])]
}

/// The time from the start until midnight in Guam.
const UNTIL_BOUNDARY_MS: i64 = 86_399_877;

/// Beside a rate, two tokens a day by the calendar of Guam.
fn with_budget(debt: &str) -> Vec<Configuration> {
    let budget = by_calendar(2_000, &format!("day/Pacific/Guam{debt}"));
    vec![stored(1, &[("a", fast()), ("b", budget)], &[])]
}

fn two() -> Vec<Configuration> {
    vec![stored(1, &[("a", fast()), ("b", slow())], &[])]
}

pub(crate) fn scenario(which: &str, without: Option<Control>) -> Protocol {
    let mut protocol = named(which);
    protocol.scenario.without = without;
    protocol
}

fn named(which: &str) -> Protocol {
    let (a1, a2, a3) = (take(&[("a", 1_000)]), take(&[("a", 2_000)]), take(&[("a", 3_000)]));
    match which {
        "one bucket, two writers" => {
            let scripts = vec![vec![a1.clone(), a3, a1.clone()], vec![a2.clone(), a1, a2]];
            warm(one(), &[1_000], scripts, &[1, 0, 99, 1, 300])
        }
        "one bucket, three writers" => {
            let scripts =
                vec![vec![a1.clone(), a2.clone()], vec![a2.clone(), a1.clone()], vec![a2, a1]];
            warm(one(), &[2_500], scripts, &[1, 50, 2])
        }
        "two limits" => {
            let both = take(&[("a", 1_500), ("b", 500)]);
            let scripts = vec![
                vec![both.clone(), a2],
                vec![both.clone(), take(&[("b", 1_000)])],
                vec![correct(&[("a", -100), ("b", 100)]), both],
            ];
            warm(two(), &[2_000, 1_000], scripts, &[1, 60, 250])
        }
        "creation" => {
            let back = correct(&[("a", -1_000)]);
            let scripts = vec![vec![a2.clone(), back], vec![a1, correct(&[("b", 500)])], vec![a2]];
            cold(warm(two(), &[], scripts, &[1, 100]))
        }
        "corrections" => {
            let (back, debit) = (correct(&[("a", -1_000)]), correct(&[("a", 1_500)]));
            let forced = force(&[("a", 1_000)]);
            let scripts = vec![vec![a2.clone(), back], vec![a2, debit], vec![a1, forced]];
            warm(one(), &[2_900], scripts, &[1, 120])
        }
        "a debit of a bucket that filled up" => {
            let debit = correct(&[("a", 2_000)]);
            let scripts = vec![vec![a2, debit], vec![a1, a3]];
            warm(one(), &[3_000], scripts, &[1, 5, 900, 2])
        }
        "a bucket that is nearly full" => {
            // A refund after a claim: it is full before the interval of the claim is over.
            let little = take(&[("a", 400)]);
            let scripts = vec![vec![little.clone(), correct(&[("a", -1_000)])], vec![little]];
            with_interval(100, one(), &[3_000], scripts, &[120, 80])
        }
        "lost replies" => {
            let scripts = vec![vec![a1.clone(), correct(&[("a", -500)])], vec![a1, a2]];
            let faults = Faults { lost: 2, late: 0, throttled: 1 };
            Protocol { faults, ..warm(one(), &[2_000], scripts, &[1, 100]) }
        }
        "late writes" => {
            let scripts = vec![vec![a1.clone(), correct(&[("a", -700)])], vec![a1.clone(), a1]];
            let faults = Faults { lost: 0, late: 2, throttled: 0 };
            let is_claimed = vec![false];
            Protocol { faults, is_claimed, ..cold(warm(one(), &[], scripts, &[1, 4, 100])) }
        }
        "a slower rate" => {
            // Far from full: a claim of the whole gap holds for any balance below the cap.
            let before = stored(1, &[("a", rule(9_000, 100_000, 1_000))], &[]);
            let after = stored(2, &[("a", rule(9_000, 10_000, 1_000))], &[]);
            let debit = correct(&[("a", 400)]);
            let half = take(&[("a", 500)]);
            let scripts = vec![vec![half.clone(), a1.clone()], vec![debit, a1], vec![half]];
            first_knows_more(warm(vec![before, after], &[500], scripts, &[1, 21, 40]))
        }
        "a lower burst" => {
            let lower = stored(2, &[("a", rule(1_000, 10_000, 1_000))], &[]);
            let (back, debit) = (correct(&[("a", -1_000)]), correct(&[("a", 1_000)]));
            let scripts = vec![vec![a1.clone(), back], vec![debit, a2], vec![a1]];
            let configurations = [one(), vec![lower]].concat();
            let ticks = [1, 12, 90];
            first_knows_more(with_interval(100, configurations, &[2_990], scripts, &ticks))
        }
        "an added limit" => {
            let added = two().remove(0);
            let both = take(&[("a", 1_000), ("b", 1_000)]);
            let scripts = vec![vec![both.clone(), a1], vec![both], vec![take(&[("a", 500)])]];
            let mut protocol = warm([one(), vec![added]].concat(), &[2_000], scripts, &[1, 80]);
            protocol.start.processes[0].configuration = 1;
            protocol.start.processes[1].configuration = 1;
            protocol
        }
        "a dropped limit" => {
            let dropped = stored(2, &[("a", fast())], &["b"]);
            let both = correct(&[("a", 1), ("b", 500)]);
            let scripts = vec![
                vec![a1.clone(), a2],
                vec![correct(&[("b", -500)]), both],
                vec![a1, take(&[("b", 500)])],
            ];
            first_knows_more(warm(
                [two(), vec![dropped]].concat(),
                &[2_000, 1_000],
                scripts,
                &[1, 80],
            ))
        }
        "expiry" => {
            let scripts = vec![
                vec![a2.clone(), correct(&[("a", 2_500)])],
                vec![correct(&[("a", -1_000)]), a1],
            ];
            let mut protocol = warm(one(), &[2_000], scripts, &[1, 60_700, 1_000]);
            if let Some(item) = &mut protocol.start.table.item {
                item.expires_at_s = Some(T0 / 1_000 + 61);
            }
            Protocol { expires: true, ..protocol }
        }
        "clocks apart" => {
            let scripts = vec![vec![a2.clone(), a1.clone()], vec![a1, a2.clone()], vec![a2]];
            clocks_apart(warm(one(), &[2_000], scripts, &[1, 60, 300]), 10)
        }
        "a boundary of a calendar" => {
            let (b, back) = (take(&[("a", 500), ("b", 1_500)]), correct(&[("b", -700)]));
            let scripts = vec![vec![b.clone(), b.clone()], vec![b, back]];
            warm(with_budget(""), &[3_000, 1_600], scripts, &[1, UNTIL_BOUNDARY_MS - 2, 3, 30])
        }
        "a boundary that forgives" => {
            let b = take(&[("b", 1_000)]);
            let scripts = vec![vec![correct(&[("b", 900)]), b.clone()], vec![b.clone(), b]];
            let ticks = [UNTIL_BOUNDARY_MS - 1, 2, 30];
            warm(with_budget(",debt=forgiven"), &[3_000, -400], scripts, &ticks)
        }
        "a boundary, clocks apart" => {
            let b = take(&[("b", 1_500)]);
            let scripts = vec![vec![b.clone(), b.clone()], vec![b.clone(), b]];
            let ticks = [UNTIL_BOUNDARY_MS - 4_000, 3_000, 2_000, 4_000];
            let protocol = warm(with_budget(""), &[3_000, 1_600], scripts, &ticks);
            clocks_apart(protocol, 5_000)
        }
        "a lower amount near a boundary" => {
            let mut configurations = with_budget("");
            let lower = by_calendar(1_000, "day/Pacific/Guam");
            configurations.push(stored(2, &[("a", fast()), ("b", lower)], &[]));
            let b = take(&[("b", 400)]);
            let scripts = vec![vec![b.clone(), b.clone()], vec![correct(&[("b", 300)]), b]];
            let ticks = [UNTIL_BOUNDARY_MS - 1, 2];
            first_knows_more(warm(configurations, &[3_000, 900], scripts, &ticks))
        }
        "a rate that becomes a budget" => {
            let mut configurations = two();
            let budget = by_calendar(1_000, "day/Pacific/Guam");
            configurations.push(stored(2, &[("a", fast()), ("b", budget)], &[]));
            let b = take(&[("b", 400)]);
            let scripts = vec![vec![b.clone(), b.clone()], vec![correct(&[("b", 300)]), b]];
            first_knows_more(warm(configurations, &[3_000, 200], scripts, &[1, 60_000]))
        }
        "a raised quota" => {
            let with_quota = |version, burst| {
                let quota = rule(burst, 0, 1_000);
                stored(version, &[("a", fast()), ("b", quota)], &[])
            };
            let b = take(&[("b", 400)]);
            let scripts = vec![vec![b.clone(), b.clone()], vec![correct(&[("b", -300)]), b]];
            let configurations = vec![with_quota(1, 1_000), with_quota(2, 1_500)];
            first_knows_more(warm(configurations, &[3_000, 200], scripts, &[1, 60]))
        }
        "combined, lost replies" => combined(Faults { lost: 1, late: 0, throttled: 0 }),
        "combined, late writes" => combined(Faults { lost: 0, late: 1, throttled: 0 }),
        other => panic!("no scenario is called {other}"),
    }
}

/// The clock of the first process is behind that of the second.
fn clocks_apart(mut protocol: Protocol, spread_ms: i64) -> Protocol {
    protocol.scenario.timing.spread_ms = spread_ms;
    protocol.start.processes[0].clock_ms = -spread_ms / 2;
    protocol.start.processes[1].clock_ms = spread_ms / 2;
    let item = protocol.start.table.item.take();
    protocol.start.table = Table::holding(item, protocol.scenario.timing);
    protocol
}

/// The first process has the newest configuration.
fn first_knows_more(mut protocol: Protocol) -> Protocol {
    protocol.start.processes[0].configuration = 1;
    protocol
}

/// Two processes with two callers each, whose requests go in one write; a caller may leave, and the
/// second process learns of newer limits.
fn combined(faults: Faults) -> Protocol {
    let (a1, a2) = (take(&[("a", 1_000)]), take(&[("a", 2_000)]));
    let newer = stored(2, &[("a", rule(4_000, 20_000, 1_000))], &[]);
    let scripts = vec![vec![a1.clone()], vec![a2], vec![a1.clone()], vec![a1]];
    let configurations = [one(), vec![newer]].concat();
    let mut protocol = warm(configurations, &[3_000], scripts, &[100]);
    protocol.start.processes.truncate(2);
    let caller = |process| Caller { process, request: None };
    protocol.start.callers = [0, 0, 1, 1].map(caller).into();
    protocol.start.processes[1].configuration = 1;
    Protocol { faults, leaves: 1, is_claimed: vec![false], ..protocol }
}

/// A scenario whose driver gets something wrong.
pub(crate) fn mistaken(which: &str, mistake: Mistake) -> Protocol {
    let mut protocol = named(which);
    protocol.scenario.mistake = Some(mistake);
    protocol
}
