//! Two processes that lease from one bucket, in every order of what may happen to them: leases of one
//! to three tokens, returns before and after a refill, lost and late answers, a crash at any step.
//!
//! Each process has the queue that the limiter drives. Where an answer is lost the caller stays, or it
//! leaves and enters again under the same id.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests panic and report")]

mod ahead;
mod process;

use process::{Flight, Phase, Process};
use sluicegate_core::fixtures::{self, at, milli};
use sluicegate_core::{
    BucketId, Change, CompositeBucket, Configuration, LimitBalance, LimitName, RequestId, Rule,
    Rules, RulesHash,
};
use stateright::{Checker as _, Model, Property};

const T0: i64 = 1_769_608_800_000;

/// The time at which consumption is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Accounting {
    AtLease,
    AtSettle,
}

#[derive(Debug, Clone)]
struct Leases {
    accounting: Accounting,
    configuration: Configuration,
    /// The bucket at the start, of three tokens and ten a second.
    tokens: i64,
    ticks_ms: Vec<i64>,
    /// Writes that each process may begin.
    writes: [u8; 2],
    faults: Faults,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Faults {
    lost: u8,
    late: u8,
    crashes: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    image: CompositeBucket,
    now_ms: i64,
    ticked: usize,
    processes: [Process; 2],
    /// Writes that nobody waits for any more. They are not on their way for so long that the item
    /// forgets the ids of those that keep them from happening.
    late: Vec<(usize, Flight)>,
    /// Ids of writes that the item was given.
    ids: usize,
    faults: Faults,
    handed_out: i64,
    /// The tokens that crashed processes held, and those that they had not counted.
    lost: i64,
    lost_uncounted: i64,
    /// The tokens that accrued while the slowest write was on its way.
    slack: i64,
    /// The least of what was handed out and held less what had accrued, at any instant so far.
    lowest: i64,
    is_broken: Option<&'static str>,
}

/// The caller of a write without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Caller {
    Leaves,
    Stays,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Action {
    HandOut(usize),
    TakeBack(usize),
    /// Leases so many and returns what is held, or not.
    Lease(usize, i64, bool),
    Settle(usize),
    Land(usize),
    /// Its answer is lost, and the caller leaves or stays.
    LandAndLose(usize, Caller),
    GoLate(usize, Caller),
    LandLate(usize),
    Resolve(usize),
    Correct(usize),
    Crash(usize),
    Tick,
}

fn limit() -> LimitName {
    fixtures::name("rps")
}

fn bucket_id() -> BucketId {
    fixtures::bucket("user", "r")
}

fn rule() -> Rule {
    fixtures::rule(3_000, 10_000, 1_000)
}

impl State {
    fn accrued(&self) -> i64 {
        i64::try_from(rule().refill().accrued_between(at(T0), at(self.now_ms))).unwrap()
    }

    /// The tokens that, by the table, living processes hold.
    fn out(&self) -> i64 {
        self.processes.iter().map(|process| process.out).sum()
    }

    /// True if a process that knows the outcome of all its writes does not hold what it leased.
    fn has_leaked(&self) -> bool {
        self.processes.iter().enumerate().any(|(n, process)| {
            let is_open = process.phase != Phase::Idle || self.late.iter().any(|(of, _)| *of == n);
            process.is_alive && !process.is_lost && !is_open && process.held != process.out
        })
    }

    /// The tokens that may still come back from processes that crashed.
    fn returning(&self) -> i64 {
        let is_dead = |(of, _): &&(usize, Flight)| !self.processes[*of].is_alive;
        self.late.iter().filter(is_dead).map(|(_, flight)| flight.returned).sum()
    }

    fn check(&mut self, accounting: Accounting) {
        let balance = self.handed_out - self.accrued();
        self.lowest = self.lowest.min(balance + self.out() + self.returning());
        let uncounted: i64 = self.processes.iter().map(Process::uncounted).sum();
        let consumed = self.image.limits[&limit()].consumed.get();
        let consumed = i64::try_from(consumed).unwrap();
        let counts = match accounting {
            Accounting::AtLease => consumed == self.handed_out + self.out() + self.lost,
            Accounting::AtSettle => consumed + uncounted + self.lost_uncounted == self.handed_out,
        };
        self.is_broken = if balance > self.lowest + rule().burst().get() + self.slack {
            Some("never over")
        } else if self.processes.iter().any(|process| process.held > process.out) {
            Some("no token twice")
        } else if self.has_leaked() {
            Some("no token lost")
        } else if !counts {
            Some("nothing uncounted")
        } else {
            None
        };
    }

    /// Lands a write of a process; true when it was done.
    fn land(&mut self, of: usize, flight: &Flight) -> bool {
        if !flight.plan.holds(Some(&self.image)) {
            return false;
        }
        self.image = flight.plan.changed(Some(&self.image)).unwrap();
        let is_id = |change: &&Change| matches!(change, Change::Remember(_));
        self.ids += flight.plan.changes.iter().filter(is_id).count();
        let accrued = rule().refill().accrued_between(flight.decided_at, at(self.now_ms));
        self.slack = self.slack.max(i64::try_from(accrued).unwrap());
        let process = &mut self.processes[of];
        let out = flight.leased - flight.returned;
        if process.is_alive {
            process.out += out;
            process.settled(flight);
        } else {
            self.lost += out;
            self.lost_uncounted -= flight.used;
        }
        true
    }

    fn lose_answer(&mut self, of: usize, flight: Flight, caller: Caller) {
        let now = at(self.now_ms);
        match caller {
            Caller::Leaves => self.processes[of].unanswered_and_left(flight, now),
            Caller::Stays => self.processes[of].unanswered(flight, &self.image, now),
        }
    }

    fn crash(&mut self, of: usize) {
        let process = &mut self.processes[of];
        self.lost += process.out;
        self.lost_uncounted += process.uncounted();
        if let Phase::Waiting(flight) = process.die() {
            self.late.push((of, Flight { ids: self.ids, ..flight }));
        }
    }
}

impl Model for Leases {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let BucketId { entity, resource } = bucket_id();
        let bucket =
            LimitBalance { rule: rule(), tokens: milli(self.tokens), consumed: milli(0).into() };
        let image = CompositeBucket {
            entity,
            resource,
            refilled_at: at(T0),
            limits: [(limit(), bucket)].into(),
            expires_at_s: None,
            config_stamp: sluicegate_core::ConfigStamp::None,
            rules_hash: Some(RulesHash::of(&self.configuration.rules())),
            request_ids: Vec::new(),
        };
        let processes = [0, 1].map(|number| Process::new(number, image.clone(), at(T0)));
        vec![State {
            image,
            now_ms: T0,
            ticked: 0,
            processes,
            late: Vec::new(),
            ids: 0,
            faults: self.faults,
            handed_out: 0,
            lost: 0,
            lost_uncounted: 0,
            slack: 0,
            lowest: 0,
            is_broken: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.is_broken.is_some() {
            return;
        }
        for (n, process) in state.processes.iter().enumerate().filter(|(_, p)| p.is_alive) {
            if process.held >= 1_000 {
                actions.push(Action::HandOut(n));
            }
            if process.handed_out >= 1_000 && process.may_take_back {
                actions.push(Action::TakeBack(n));
            }
            if state.faults.crashes > 0 {
                actions.push(Action::Crash(n));
            }
            match &process.phase {
                Phase::Idle if process.writes < self.writes[n] && !process.is_lost => {
                    for size in [1, 3] {
                        actions.push(Action::Lease(n, size * 1_000, false));
                    }
                    if process.held > 0 {
                        actions.push(Action::Lease(n, 1_000, true));
                    }
                    actions.push(Action::Settle(n));
                }
                Phase::Idle => {}
                Phase::Waiting(_) => {
                    actions.push(Action::Land(n));
                    for caller in [Caller::Leaves, Caller::Stays] {
                        if state.faults.lost > 0 {
                            actions.push(Action::LandAndLose(n, caller));
                        }
                        if state.faults.late > 0 {
                            actions.push(Action::GoLate(n, caller));
                        }
                    }
                }
                Phase::Unanswered(_) => {
                    actions.push(Action::Resolve(n));
                    if process.may_correct {
                        actions.push(Action::Correct(n));
                    }
                }
            }
        }
        let is_in_time =
            |index: &usize| state.late[*index].1.ids + RequestId::REMEMBERED > state.ids;
        actions.extend((0..state.late.len()).filter(is_in_time).map(Action::LandLate));
        let is_under_way = |process: &Process| matches!(process.phase, Phase::Waiting(_));
        if state.ticked < self.ticks_ms.len() && !state.processes.iter().any(is_under_way) {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        let now = at(state.now_ms);
        match action {
            Action::HandOut(n) => {
                state.handed_out += state.processes[n].hand_out();
            }
            Action::TakeBack(n) => {
                state.processes[n].take_back();
                state.handed_out -= 1_000;
            }
            Action::Lease(n, size, returns) => {
                let table = (&state.image, &self.configuration, now);
                state.processes[n].begin(n, size, returns, table, self.accounting)?;
            }
            Action::Settle(n) => {
                let table = (&state.image, &self.configuration, now);
                state.processes[n].begin(n, 0, true, table, self.accounting)?;
            }
            Action::Land(n) => {
                let flight = state.processes[n].answer();
                let is_done = state.land(n, &flight);
                state.processes[n].answered(flight, is_done, &state.image, now);
            }
            Action::LandAndLose(n, caller) => {
                state.faults.lost -= 1;
                let flight = state.processes[n].answer();
                state.land(n, &flight);
                state.lose_answer(n, flight, caller);
            }
            Action::GoLate(n, caller) => {
                state.faults.late -= 1;
                let flight = state.processes[n].answer();
                state.late.push((n, Flight { ids: state.ids, ..flight.clone() }));
                state.lose_answer(n, flight, caller);
            }
            Action::LandLate(index) => {
                let (n, flight) = state.late.remove(index);
                state.land(n, &flight);
            }
            Action::Resolve(n) => {
                let table = (&state.image, &self.configuration, now);
                state.processes[n].resolve(table);
            }
            Action::Correct(n) => {
                state.processes[n].may_correct = false;
                let table = (&state.image, &self.configuration, now);
                state.processes[n].correct(n, table)?;
            }
            Action::Crash(n) => {
                state.faults.crashes -= 1;
                state.crash(n);
            }
            Action::Tick => {
                state.now_ms += self.ticks_ms[state.ticked];
                state.ticked += 1;
            }
        }
        state.check(self.accounting);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        macro_rules! kept {
            ($name:literal) => {
                Property::always($name, |_, state: &State| state.is_broken != Some($name))
            };
        }
        vec![
            kept!("never over"),
            kept!("no token twice"),
            kept!("no token lost"),
            kept!("nothing uncounted"),
            Property::sometimes("everything is settled", |model: &Self, state: &State| {
                let is_settled = |process: &Process| process.out == 0 && process.uncounted() == 0;
                let writes = state.processes.iter().map(|process| process.writes);
                state.handed_out > 0
                    && state.processes.iter().all(is_settled)
                    && writes.eq(model.writes)
            }),
            Property::sometimes("a crash loses tokens", |model: &Self, state: &State| {
                state.lost > 0 || model.faults.crashes == 0
            }),
        ]
    }
}

fn checked(model: Leases) {
    let started = std::time::Instant::now();
    let name = format!("{:?}, ticks {:?}, {:?}", model.accounting, model.ticks_ms, model.faults);
    let checker = model.checker().threads(2).spawn_bfs().join();
    println!("{name}: {} states, {:.1?}", checker.unique_state_count(), started.elapsed());
    checker.assert_properties();
}

fn model(accounting: Accounting, ticks_ms: &[i64], writes: [u8; 2], faults: Faults) -> Leases {
    let configuration = Configuration::explicit(Rules::from([(limit(), rule())]));
    let ticks_ms = ticks_ms.to_vec();
    Leases { accounting, configuration, tokens: 3_000, ticks_ms, writes, faults }
}

#[test]
fn whatever_is_lost_no_token_is_there_twice() {
    for accounting in [Accounting::AtLease, Accounting::AtSettle] {
        checked(model(accounting, &[300], [1, 1], Faults { lost: 1, late: 1, crashes: 1 }));
    }
    checked(model(Accounting::AtLease, &[300], [2, 1], Faults { lost: 1, late: 0, crashes: 0 }));
    for accounting in [Accounting::AtLease, Accounting::AtSettle] {
        checked(model(accounting, &[300], [2, 1], Faults { lost: 0, late: 1, crashes: 0 }));
    }
}

#[test]
fn a_return_after_a_refill_is_not_granted_on_top_of_it() {
    for accounting in [Accounting::AtLease, Accounting::AtSettle] {
        checked(model(accounting, &[100, 300], [2, 1], Faults { lost: 0, late: 0, crashes: 1 }));
    }
}
