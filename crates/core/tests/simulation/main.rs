//! Seeded schedules of many writers with stale images, writes in flight, lost and delayed replies,
//! clocks that differ and limits that change, against exact buckets.
//!
//! `SLUICEGATE_TEST_SEEDS=FROM..TO` runs other seeds, for as long as one likes.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests panic and report")]

#[path = "../support/mod.rs"]
mod support;

mod rng;
mod schedule;

use std::ops::Range;
use std::thread;

use schedule::{Run, run, run_by_calendar};
use support::{CONTROLS, Control, IMPLIED};

const SEEDS: Range<u64> = 0..10_000;
/// Seeds beyond these that found a defect.
const FOUND: [u64; 4] = [477_693, 16_723, 27_499, 65_112];
/// Seeds among which each control must break something.
const CONTROL_SEEDS: Range<u64> = 0..50_000;
/// Seeds in which conditions that others imply must not be missed.
const IMPLIED_SEEDS: Range<u64> = 0..2_000;

fn seeds() -> Range<u64> {
    let Ok(text) = std::env::var("SLUICEGATE_TEST_SEEDS") else { return SEEDS };
    let parsed = text.split_once("..").and_then(|(from, to)| {
        let seeds: Range<u64> = from.parse().ok()?..to.parse().ok()?;
        (!seeds.is_empty()).then_some(seeds)
    });
    parsed.unwrap_or_else(|| panic!("SLUICEGATE_TEST_SEEDS={text} is not FROM..TO"))
}

#[test]
fn schedules_keep_every_invariant() {
    run_all(run);
}

#[test]
fn schedules_at_a_calendar_boundary_keep_every_invariant() {
    run_all(run_by_calendar);
}

fn run_all(run: fn(u64, Option<Control>) -> Run) {
    let seeds = seeds();
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let totals = thread::scope(|scope| {
        let parts: Vec<_> = (0..workers)
            .map(|worker| {
                let seeds = seeds.clone().chain(FOUND).skip(worker).step_by(workers);
                scope.spawn(move || {
                    let mut total = [0; 4];
                    for seed in seeds {
                        let (tally, ambiguous) = run(seed, None)
                            .unwrap_or_else(|violation| panic!("seed {seed}: {violation:?}"));
                        let counts = [tally.granted, tally.refused, tally.corrected, ambiguous];
                        for (sum, count) in total.iter_mut().zip(counts) {
                            *sum += u64::from(count);
                        }
                    }
                    total
                })
            })
            .collect();
        parts.into_iter().map(|part| part.join().unwrap()).collect::<Vec<_>>()
    });
    let sum = |index: usize| totals.iter().map(|total| total[index]).sum::<u64>();
    let [granted, refused, corrected, ambiguous] = [sum(0), sum(1), sum(2), sum(3)];
    println!(
        "seeds {seeds:?}: {granted} granted, {refused} refused, {corrected} corrected, \
         {ambiguous} twice beyond the item's memory"
    );
    let schedules = seeds.end - seeds.start;
    assert!(granted > 5 * schedules && refused > 0 && corrected > schedules, "idle schedules");
}

/// Conditions that others imply are kept for writers that do not know the others: another producer
/// of the same schema adds a limit and leaves the hash of the rules as it was.
#[test]
fn implied_conditions_can_be_removed() {
    for control in IMPLIED {
        for seed in IMPLIED_SEEDS {
            let broken = run(seed, Some(*control)).err();
            assert_eq!(broken, None, "without {} in seed {seed}", control.name);
        }
    }
}

#[test]
fn every_condition_matters() {
    let idle: Vec<_> = CONTROLS
        .iter()
        .filter(|control| {
            let broken = CONTROL_SEEDS.clone().find_map(|seed| {
                run(seed, Some(**control)).err().map(|violation| (seed, violation))
            });
            match broken {
                Some((seed, violation)) => {
                    println!("without {}: {violation:?} in seed {seed}", control.name);
                }
                None => println!("without {}: nothing", control.name),
            }
            broken.is_none()
        })
        .map(|control| control.name)
        .collect();
    assert!(idle.is_empty(), "these protect nothing: {idle:?}");
}
