//! Every interleaving of two or three writers, checked exhaustively within the bounds that each
//! scenario states: who writes what, which instants there are, how many replies get lost.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests panic and report")]

#[path = "../support/mod.rs"]
mod support;

mod protocol;
mod scenarios;
mod versions;

use protocol::Protocol;
use protocol::invariants;
use scenarios::{SCENARIOS, mistaken, scenario};
use stateright::{Checker as _, HasDiscoveries, Model as _};
use support::{CONTROLS, Control, IMPLIED, Mistake};

#[test]
fn scenarios_keep_every_invariant() {
    let mut sum = 0;
    for name in SCENARIOS {
        let started = std::time::Instant::now();
        let checker = scenario(name, None).checker().threads(2).spawn_bfs().join();
        let (states, elapsed) = (checker.unique_state_count(), started.elapsed());
        println!("{name}: {states} states, depth {}, {elapsed:.1?}", checker.max_depth());
        checker.assert_properties();
        sum += states;
    }
    println!("{sum} states in all");
}

/// The shortest schedule that breaks an invariant once a condition is left out.
fn counterexample(name: &str, control: Control) -> Option<(&'static str, usize)> {
    broken(scenario(name, Some(control)))
}

/// The shortest schedule that breaks an invariant.
fn broken(protocol: Protocol) -> Option<(&'static str, usize)> {
    let names = invariants().map(|(name, _)| name).into_iter().collect();
    let checker =
        protocol.checker().threads(2).finish_when(HasDiscoveries::AnyOf(names)).spawn_bfs().join();
    let mut discoveries = checker.discoveries();
    invariants().into_iter().find_map(|(invariant, _)| {
        discoveries.remove(invariant).map(|path| (invariant, path.into_actions().len()))
    })
}

#[test]
fn without_a_condition_some_interleaving_breaks_an_invariant() {
    for control in CONTROLS {
        let Control { name, scenario, .. } = control;
        let Some((invariant, steps)) = counterexample(scenario, *control) else {
            panic!("without {name} nothing breaks in \"{scenario}\"");
        };
        println!("without {name}: not \"{invariant}\" after {steps} steps of \"{scenario}\"");
    }
}

#[test]
fn implied_conditions_can_be_removed() {
    for control in IMPLIED {
        assert_eq!(counterexample(control.scenario, *control), None, "without {}", control.name);
    }
}

#[test]
fn a_driver_that_is_mistaken_breaks_an_invariant() {
    for (mistake, scenario) in [
        (Mistake::ForgetsWhoLeft, "combined, late writes"),
        (Mistake::ResolvesOneAlone, "combined, lost replies"),
        (Mistake::InventsImages, "combined, late writes"),
    ] {
        let Some((invariant, steps)) = broken(mistaken(scenario, mistake)) else {
            panic!("{mistake:?} breaks nothing in \"{scenario}\"");
        };
        println!("{mistake:?}: not \"{invariant}\" after {steps} steps of \"{scenario}\"");
    }
}
