//! The table, its writers and the writes on their way: every step that a schedule is made of.

use sluicegate_core::{ClaimInterval, CompositeBucket, Configuration, Presume, RequestId, extend};

use super::call::{Call, Flight, Move, Terms};
use super::control::Control;
use super::exact::{Timing, Violation};
use super::fixtures::at;
use super::table::Table;

/// What does not change during a run.
#[derive(Debug, Clone)]
pub(crate) struct Scenario {
    pub(crate) timing: Timing,
    /// What writers may take for the configuration.
    pub(crate) configurations: Vec<Configuration>,
    /// Conditions to leave out.
    pub(crate) without: Option<Control>,
}

/// One process.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Writer {
    /// Added to the true time.
    pub(crate) clock_ms: i64,
    /// Which of the configurations it knows.
    pub(crate) configuration: usize,
    /// The newest image that it has seen; `None`: no item.
    pub(crate) image: Option<CompositeBucket>,
    pub(crate) call: Option<Call>,
}

/// What becomes of the reply to a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Reply {
    Delivered,
    Lost,
}

/// How often what happened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Tally {
    pub(crate) granted: u32,
    pub(crate) refused: u32,
    pub(crate) corrected: u32,
}

/// Everything at one instant.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct System {
    pub(crate) table: Table,
    pub(crate) writers: Vec<Writer>,
    pub(crate) flights: Vec<Flight>,
    pub(crate) tally: Tally,
}

type Checked = Result<(), Violation>;

impl System {
    pub(crate) fn new(table: Table, writers: Vec<Writer>) -> Self {
        Self { table, writers, flights: Vec::new(), tally: Tally::default() }
    }

    /// Whether a writer has a call and waits for nothing.
    pub(crate) fn is_ready(&self, writer: usize) -> bool {
        self.writers[writer].call.is_some() && !self.is_waiting(writer)
    }

    pub(crate) fn is_waiting(&self, writer: usize) -> bool {
        self.flights.iter().any(|flight| flight.waiting == Some(writer))
    }

    /// A writer decides and acts on it, as far as it gets without the table's answer to a write.
    pub(crate) fn act(&mut self, scenario: &Scenario, index: usize, presume: Presume) -> Checked {
        if let Some(call) = &mut self.writers[index].call {
            // It may have been a while.
            call.fresh = false;
        }
        self.proceed(scenario, index, presume)
    }

    fn proceed(&mut self, scenario: &Scenario, index: usize, presume: Presume) -> Checked {
        loop {
            let writer = &mut self.writers[index];
            let now = at(self.table.now_ms + writer.clock_ms);
            let terms = Terms {
                configuration: &scenario.configurations[writer.configuration],
                interval: ClaimInterval(scenario.timing.interval_ms),
                presume,
                now,
            };
            let Some(call) = &mut writer.call else { return Ok(()) };
            match call.next(writer.image.as_ref(), terms) {
                Move::Look => {
                    call.fresh = true;
                    writer.image.clone_from(&self.table.item);
                }
                Move::Send(purpose, amounts, mut plan) => {
                    if let Some(control) = scenario.without {
                        plan.conditions.retain(|c| !(control.drops)(purpose, plan.path, c));
                    }
                    call.attempts = call.attempts.saturating_add(1);
                    let (id, decided_ms, waiting) =
                        (call.id.clone(), self.table.now_ms, Some(index));
                    let flight = Flight { purpose, id, amounts, plan, decided_ms, waiting };
                    self.flights.push(flight);
                    return Ok(());
                }
                Move::Landed => {
                    self.table.confirm(&call.id)?;
                    return self.done(index);
                }
                Move::Refuse(standings) => {
                    self.table.refuse(&standings)?;
                    self.tally.refused += 1;
                    writer.call = None;
                    return Ok(());
                }
                Move::Drop => {
                    writer.call = None;
                    self.extend(index);
                    return Ok(());
                }
            }
        }
    }

    /// A call took effect, as the writer's image shows.
    fn done(&mut self, index: usize) -> Checked {
        self.extend(index);
        match self.writers[index].call.take().map(|call| call.purpose) {
            Some(super::Purpose::Acquire) => self.tally.granted += 1,
            _ => self.tally.corrected += 1,
        }
        Ok(())
    }

    /// Moves an expiry that comes too early, as the writer's image shows it.
    fn extend(&mut self, index: usize) {
        let writer = &self.writers[index];
        let now = at(self.table.now_ms + writer.clock_ms);
        if let Some(plan) = writer.image.as_ref().and_then(|image| extend(image, now)) {
            self.table.maintain(&plan);
        }
        self.table.unwatched = false;
    }

    /// A write reaches the table.
    pub(crate) fn land(&mut self, scenario: &Scenario, flight: usize, reply: Reply) -> Checked {
        let flight = self.flights.remove(flight);
        let applied = self.table.write(&flight, scenario.timing)?;
        let Some(index) = flight.waiting else {
            let mut calls = self.writers.iter().filter_map(|writer| writer.call.as_ref());
            self.table.unwatched |= applied && calls.all(|call| call.id != flight.id);
            return Ok(());
        };
        if reply == Reply::Lost {
            self.doubt(index);
            return Ok(());
        }
        let writer = &mut self.writers[index];
        writer.image.clone_from(&self.table.item);
        let Some(call) = &mut writer.call else { return Ok(()) };
        call.fresh = true;
        if applied && flight.purpose != super::Purpose::Repair {
            return self.done(index);
        }
        self.proceed(scenario, index, Presume::Unchanged)
    }

    /// A write does not reach the table, and its writer is told so.
    pub(crate) fn throttle(&mut self, flight: usize) {
        self.flights.remove(flight);
    }

    /// The writer gives up waiting for a write that may still land.
    pub(crate) fn time_out(&mut self, flight: usize) {
        if let Some(index) = self.flights[flight].waiting.take() {
            self.doubt(index);
        }
    }

    /// A writer does not know what became of its write.
    fn doubt(&mut self, index: usize) {
        let writer = &mut self.writers[index];
        if let Some(call) = &mut writer.call {
            let known = writer.image.as_ref().map(|image| image.request_ids.clone());
            call.doubt.get_or_insert(known.unwrap_or_default());
            call.fresh = false;
        }
    }

    /// Time passes; no write is on its way for longer than the longest flight.
    pub(crate) fn pass(&mut self, scenario: &Scenario, millis: i64) -> Checked {
        self.table.now_ms += millis;
        let oldest = self.table.now_ms - scenario.timing.flight_ms;
        while let Some(late) = self.flights.iter().position(|f| f.decided_ms < oldest) {
            self.time_out(late);
            self.flights.remove(late);
        }
        self.table.check()
    }

    pub(crate) fn forget_calls(&mut self) {
        self.flights.clear();
        for writer in &mut self.writers {
            writer.call = None;
        }
    }
}

/// The id of a writer's call, in whatever order the calls of others happen.
pub(crate) fn request_id(writer: usize, call: u64) -> RequestId {
    RequestId::from_bits(u64::try_from(writer).unwrap() << 32 | call)
}
