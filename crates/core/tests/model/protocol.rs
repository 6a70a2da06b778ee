//! The protocol as a state machine: what may happen next, in every order.

use sluicegate_core::{Amounts, Answer};
use stateright::{Model, Property};

use super::support::{Purpose, Reply, Request, Scenario, System, Violation, request_id};

/// One scenario and its bounds.
#[derive(Debug, Clone)]
pub(crate) struct Protocol {
    pub(crate) scenario: Scenario,
    pub(crate) start: System,
    /// The requests of each caller, in this order.
    pub(crate) scripts: Vec<Vec<(Purpose, Amounts)>>,
    /// The milliseconds of each tick of the clock.
    pub(crate) ticks: Vec<i64>,
    /// The most replies that are lost, and writes that are late or throttled.
    pub(crate) faults: Faults,
    /// True if a queue may believe that other processes claim all the time.
    pub(crate) is_claimed: Vec<bool>,
    /// True if callers may leave while their requests wait.
    pub(crate) leaves: u8,
    /// True if the item is deleted once it has expired.
    pub(crate) expires: bool,
}

/// The most faults of each kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Faults {
    pub(crate) lost: u8,
    pub(crate) late: u8,
    pub(crate) throttled: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct State {
    system: System,
    /// The number of requests that each caller has started.
    started: Vec<usize>,
    ticks: usize,
    leaves: u8,
    faults: Faults,
    broken: Option<Violation>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    /// The next request of a caller enters the queue of its process, which does what it says.
    Enter(usize, bool),
    /// A caller does not wait any more.
    Leave(usize),
    /// A process does what its queue says.
    Act(usize, bool),
    Land(usize, Reply),
    Late(usize),
    Throttle(usize),
    Tick,
    Delete,
}

/// The invariants, by the violation that would break them.
pub(crate) fn invariants() -> [(&'static str, Violation); 11] {
    [
        ("never negative on acquire", Violation::Negative),
        ("no over-admission", Violation::OverAdmitted),
        ("no lost refill", Violation::LostRefill),
        ("no lost consumption", Violation::LostConsumption),
        ("nothing applies twice", Violation::DoubleApplied),
        ("what is granted took effect", Violation::Phantom),
        ("no false refusal", Violation::FalseRefusal),
        ("no stump", Violation::Stump),
        ("nothing is forgiven by expiry", Violation::Forgiven),
        ("time does not go back", Violation::WentBack),
        ("nothing is taken for nobody", Violation::Unreturned),
    ]
}

macro_rules! kept {
    ($index:literal) => {
        Property::always(invariants()[$index].0, |_, state: &State| {
            state.broken != Some(invariants()[$index].1)
        })
    };
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            system: self.start.clone(),
            started: vec![0; self.scripts.len()],
            ticks: 0,
            leaves: self.leaves,
            faults: self.faults,
            broken: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() {
            return;
        }
        let system = &state.system;
        for (caller, script) in self.scripts.iter().enumerate() {
            let waits = system.callers[caller].request.is_some();
            if !waits && state.started[caller] < script.len() {
                let has_call_in_flight = system.has_call_in_flight(system.callers[caller].process);
                let is_claimed =
                    if has_call_in_flight { &[false] } else { self.is_claimed.as_slice() };
                actions.extend(is_claimed.iter().map(|is| Action::Enter(caller, *is)));
            }
            if waits && state.leaves > 0 {
                actions.push(Action::Leave(caller));
            }
        }
        for process in (0..system.processes.len()).filter(|process| system.is_ready(*process)) {
            actions.extend(self.is_claimed.iter().map(|is| Action::Act(process, *is)));
        }
        for (index, flight) in system.flights.iter().enumerate() {
            actions.push(Action::Land(index, Reply::Delivered));
            if flight.waiting.is_none() {
                continue;
            }
            if state.faults.lost > 0 {
                actions.push(Action::Land(index, Reply::Lost));
            }
            if state.faults.late > 0 {
                actions.push(Action::Late(index));
            }
            if state.faults.throttled > 0 {
                actions.push(Action::Throttle(index));
            }
        }
        if let Some(millis) = self.ticks.get(state.ticks) {
            // Only writes that nobody waits for disappear.
            let oldest = system.table.now_ms + millis - self.scenario.timing.flight_ms;
            if system.flights.iter().all(|f| f.waiting.is_none() || f.decided_ms >= oldest) {
                actions.push(Action::Tick);
            }
        }
        if self.expires && system.table.is_expired() {
            actions.push(Action::Delete);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        let system = &mut state.system;
        let checked = match action {
            Action::Enter(caller, is_claimed) => {
                let step = state.started[caller];
                let (purpose, amounts) = self.scripts[caller][step].clone();
                let id = request_id(caller, u64::try_from(step).unwrap());
                state.started[caller] += 1;
                let request = Request { purpose, amounts, id };
                let process = system.callers[caller].process;
                let entered = system.enter(&self.scenario, caller, request);
                entered.and_then(|()| system.act(&self.scenario, process, is_claimed))
            }
            Action::Leave(caller) => {
                state.leaves -= 1;
                system.leave(&self.scenario, caller);
                Ok(())
            }
            Action::Act(process, is_claimed) => system.act(&self.scenario, process, is_claimed),
            Action::Land(flight, reply) => {
                state.faults.lost -= u8::from(reply == Reply::Lost);
                system.land(&self.scenario, flight, reply)
            }
            Action::Late(flight) => {
                state.faults.late -= 1;
                system.time_out(flight);
                Ok(())
            }
            Action::Throttle(flight) => {
                state.faults.throttled -= 1;
                system.reject(flight, Answer::Busy);
                Ok(())
            }
            Action::Tick => {
                let millis = self.ticks[state.ticks];
                state.ticks += 1;
                system.pass(&self.scenario, millis)
            }
            Action::Delete => system.table.delete(),
        };
        let settled = || match state.system.has_nothing_open() {
            true => state.system.table.check_settled(),
            false => Ok(()),
        };
        state.broken = checked.and_then(|()| settled()).err();
        // In which order they were sent makes no difference.
        state.system.flights.sort_by(|a, b| (&a.id, a.decided_ms).cmp(&(&b.id, b.decided_ms)));
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            kept!(0),
            kept!(1),
            kept!(2),
            kept!(3),
            kept!(4),
            kept!(5),
            kept!(6),
            kept!(7),
            kept!(8),
            kept!(9),
            kept!(10),
            Property::sometimes("everybody gets an answer", |model: &Self, state: &State| {
                let started = state.started.iter().zip(&model.scripts);
                started.into_iter().all(|(started, script)| *started == script.len())
                    && state.system.callers.iter().all(|caller| caller.request.is_none())
            }),
            Property::sometimes("something is granted or corrected", |_, state: &State| {
                state.system.tally.granted + state.system.tally.corrected > 0
            }),
        ]
    }
}
