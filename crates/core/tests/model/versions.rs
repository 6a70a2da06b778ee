//! Two levels whose limits change by clocks apart, two processes that cache each level on its own,
//! and one item: a change that reached the item is never undone, and whoever knows all levels brings
//! the item to them.

use sluicegate_core::keys::LimitsScope;
use sluicegate_core::{
    Acquire, Amounts, BucketId, Change, ClaimInterval, CompositeBucket, Condition, ConfigStamp,
    Configuration, LevelVersions, LimitBalance, RefillHint, RequestId, Rule, RulesHash,
    StoredLimits, StoredRules, WritePlan, reconfigure,
};
use stateright::{Checker as _, HasDiscoveries, Model, Property};

use super::support::{T0, at, bucket_id, milli, name, rule};

/// The limit that each level names, and how far its clock is off, in milliseconds.
const LEVELS: [(&str, i64); 2] = [("a", 0), ("b", -50)];
const UNDONE: &str = "no change is undone";
const IGNORED: &str = "no change is ignored";

/// The value by which copies are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compared {
    /// A version for every level: what is shipped.
    EveryLevel,
    /// One version for all levels, which a change of any moves.
    AllLevels,
    /// The time of the newest change.
    Newest,
}

#[derive(Debug, Clone)]
struct Versions {
    compared: Compared,
    /// The stamp of the item at the start; `None`: the versions of the levels.
    start: Option<ConfigStamp>,
    changes: u8,
    /// The number of times that a level is deleted by hand and stored again.
    by_hand: u8,
    /// The version that it has then: of a clock that goes on, or of one that is far behind.
    version_by_hand: u64,
    /// True if a plan keeps its condition on the stamp of the item.
    keeps_condition: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Level {
    version: u64,
    updated_at: i64,
    /// Counts its changes, whatever becomes of the version.
    change: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Process {
    cache: [Level; 2],
    image: CompositeBucket,
    /// A write on its way, and the changes that it brings.
    flight: Option<(WritePlan, [u64; 2])>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    levels: [Level; 2],
    item: CompositeBucket,
    /// The changes that the item follows.
    follows: [u64; 2],
    processes: [Process; 2],
    changes: u8,
    by_hand: u8,
    broken: Option<&'static str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Action {
    Change(usize),
    ByHand(usize),
    /// A process reads a level again.
    Read(usize, usize),
    /// A process sees the item.
    Look(usize),
    Decide(usize),
    Land(usize),
}

impl Level {
    /// Every other change is back at the rule of before.
    fn rule(self) -> Rule {
        rule(if self.change.is_multiple_of(2) { 1_000 } else { 2_000 }, 1, 86_400_000)
    }
}

impl Versions {
    fn configuration(&self, levels: &[Level; 2]) -> Configuration {
        let BucketId { entity, resource } = bucket_id();
        let scopes = [LimitsScope::EntityResource(entity, resource), LimitsScope::System];
        let stored: Vec<_> = scopes
            .into_iter()
            .zip(LEVELS)
            .zip(levels)
            .map(|((scope, (limit, _)), level)| StoredLimits {
                scope,
                rules: [(name(limit), level.rule())].into(),
                deleted: Default::default(),
                updated_at: at(level.updated_at),
                version: level.version,
            })
            .collect();
        let mut rules = StoredRules::of_levels(&stored);
        let one = |version| LevelVersions([0, 0, 0, version]);
        rules.versions = match self.compared {
            Compared::EveryLevel => rules.versions,
            Compared::AllLevels => one(rules.versions.0.iter().sum()),
            Compared::Newest => one(rules.updated_at.unwrap().get().unsigned_abs()),
        };
        Configuration { stored: Some(rules), ..Configuration::default() }
    }

    fn decide(&self, state: &mut State, index: usize) {
        let (levels, process) = (state.levels, &mut state.processes[index]);
        let mut configuration = self.configuration(&process.cache);
        if configuration.is_behind(&process.image) {
            process.cache = levels;
            configuration = self.configuration(&levels);
            if configuration.is_behind(&process.image) {
                let stored = configuration.stored.as_mut().unwrap();
                stored.outranks = Some(process.image.config_stamp);
            }
        }
        let acquire = Acquire {
            bucket: &bucket_id(),
            amounts: &Amounts::new(),
            configuration: &configuration,
            id: &RequestId::from_bits(1),
            interval: ClaimInterval::default(),
            hint: RefillHint::TrustImage,
        };
        let plan = reconfigure(&process.image, acquire, at(T0));
        if process.cache == levels && process.image == state.item {
            let after = plan.as_ref().and_then(|plan| plan.apply(Some(&state.item)));
            let after = after.as_ref().unwrap_or(&state.item);
            let is_current = |((limit, _), level): (&(&str, i64), &Level)| {
                after.limits[&name(limit)].rule == level.rule()
            };
            if !LEVELS.iter().zip(&levels).all(is_current) {
                state.broken = Some(IGNORED);
            }
        }
        process.flight = plan.map(|mut plan| {
            let is_kept = |condition: &Condition| {
                self.keeps_condition || !matches!(condition, Condition::ConfigStamp(_))
            };
            plan.conditions.retain(is_kept);
            (plan, process.cache.map(|level| level.change))
        });
    }
}

fn land(state: &mut State, index: usize) {
    let process = &mut state.processes[index];
    let Some((plan, changes)) = process.flight.take() else { return };
    if let Some(after) = plan.apply(Some(&state.item)) {
        let is_config = |change: &Change| matches!(change, Change::ConfigVersions(_));
        assert!(plan.changes.iter().any(is_config));
        if changes.iter().zip(&state.follows).any(|(new, old)| new < old) {
            state.broken = Some(UNDONE);
        }
        (state.item, state.follows) = (after, changes);
    }
    process.image = state.item.clone();
}

impl Model for Versions {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let levels = LEVELS.map(|(_, off_ms)| Level {
            version: 5,
            updated_at: T0 - 1_000 + off_ms,
            change: 0,
        });
        let configuration = self.configuration(&levels);
        let rules = configuration.rules();
        let bucket =
            |rule: &Rule| LimitBalance { rule: *rule, tokens: milli(0), consumed: milli(0).into() };
        let BucketId { entity, resource } = bucket_id();
        let item = CompositeBucket {
            entity,
            resource,
            refilled_at: at(T0),
            limits: rules.iter().map(|(limit, rule)| (limit.clone(), bucket(rule))).collect(),
            expires_at_s: None,
            config_stamp: self.start.unwrap_or_else(|| configuration.stamp()),
            rules_hash: Some(RulesHash::of(&rules)),
            request_ids: Vec::new(),
        };
        let process = Process { cache: levels, image: item.clone(), flight: None };
        vec![State {
            levels,
            item,
            follows: [0; 2],
            processes: [process.clone(), process],
            changes: self.changes,
            by_hand: self.by_hand,
            broken: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() {
            return;
        }
        for level in 0..LEVELS.len() {
            if state.changes > 0 {
                actions.push(Action::Change(level));
            }
            if state.by_hand > 0 {
                actions.push(Action::ByHand(level));
            }
        }
        for (index, process) in state.processes.iter().enumerate() {
            if process.flight.is_some() {
                actions.push(Action::Land(index));
                continue;
            }
            actions.push(Action::Decide(index));
            if process.image != state.item {
                actions.push(Action::Look(index));
            }
            let old = (0..LEVELS.len()).filter(|n| process.cache[*n] != state.levels[*n]);
            actions.extend(old.map(|level| Action::Read(index, level)));
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Change(n) | Action::ByHand(n) => {
                let level = &mut state.levels[n];
                level.change += 1;
                level.updated_at = T0 + i64::try_from(level.change).unwrap() + LEVELS[n].1;
                if action == Action::ByHand(n) {
                    (level.version, state.by_hand) = (self.version_by_hand, state.by_hand - 1);
                } else {
                    level.version += 1;
                    state.changes -= 1;
                }
            }
            Action::Read(process, level) => {
                state.processes[process].cache[level] = state.levels[level];
            }
            Action::Look(process) => state.processes[process].image = state.item.clone(),
            Action::Decide(process) => self.decide(&mut state, process),
            Action::Land(process) => land(&mut state, process),
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(UNDONE, |_, state: &State| state.broken != Some(UNDONE)),
            Property::always(IGNORED, |_, state: &State| state.broken != Some(IGNORED)),
            Property::sometimes("the item follows every change", |_, state: &State| {
                state.changes == 0
                    && state.by_hand == 0
                    && state.follows == state.levels.map(|level| level.change)
            }),
        ]
    }
}

const SHIPPED: Versions = Versions {
    compared: Compared::EveryLevel,
    start: None,
    changes: 3,
    by_hand: 0,
    version_by_hand: 1_000,
    keeps_condition: true,
};

#[test]
fn versions_of_levels_bring_every_change_to_the_item_and_undo_none() {
    let epoch = Some(ConfigStamp::Epoch(at(T0 + 1)));
    let by_hand = Versions { changes: 1, by_hand: 1, ..SHIPPED };
    for (what, model) in [
        ("changes", SHIPPED),
        ("from a time", Versions { start: epoch, ..SHIPPED }),
        ("by hand", by_hand.clone()),
    ] {
        let checker = model.checker().threads(2).spawn_bfs().join();
        println!("versions, {what}: {} states", checker.unique_state_count());
        checker.assert_properties();
    }
    // Until a copy from before it expires, that one passes for the newer.
    let checker = Versions { version_by_hand: 2, ..by_hand }.checker().threads(2);
    checker.spawn_bfs().join().assert_no_discovery(IGNORED);
}

#[test]
fn one_number_for_all_levels_or_no_condition_breaks_an_invariant() {
    for (what, model, invariant) in [
        ("one version", Versions { compared: Compared::AllLevels, ..SHIPPED }, UNDONE),
        ("the newest change", Versions { compared: Compared::Newest, ..SHIPPED }, IGNORED),
        ("no condition", Versions { keeps_condition: false, ..SHIPPED }, UNDONE),
    ] {
        let checker = model
            .checker()
            .threads(2)
            .finish_when(HasDiscoveries::AnyOf([invariant].into()))
            .spawn_bfs()
            .join();
        let found = checker.discovery(invariant);
        let steps = found.unwrap_or_else(|| panic!("{what} breaks nothing")).into_actions();
        println!("with {what}: not \"{invariant}\" after {steps:?}");
    }
}
