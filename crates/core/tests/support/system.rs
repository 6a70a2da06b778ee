//! The table, the processes with their queues and the writes in flight: every step that a schedule
//! is made of.

use std::sync::Arc;

use sluicegate_core::{
    Action, Answer, BucketDemand, Change, ClaimInterval, CompositeBucket, ContentionEstimate,
    KnownImage, Outcome, QueueSettings, QueuedRequest, RequestId, StateOnLeave, Write, WritePath,
    WriteQueue,
};

use super::exact::{Timing, Violation};
use super::fixtures::{T0, at, bucket_id};
use super::scenario::{Caller, Flight, Mistake, Purpose, Reply, Request, Scenario, Tally};
use super::table::Table;

/// Attempts of a correction under its conditions on the balance, as the queue has it. After that it
/// is written without them.
const ATTEMPTS_BEFORE_FORCED: u32 = 12;

/// One process.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Process {
    /// Added to the true time.
    pub(crate) clock_ms: i64,
    /// The configuration that it knows.
    pub(crate) configuration: usize,
    queue: WriteQueue<usize>,
    ids: u64,
    /// A write whose answer was lost, and its requests: it may be sent again.
    lost: Option<(RequestId, Vec<Request>)>,
}

/// Everything at one instant.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct System {
    pub(crate) table: Table,
    pub(crate) processes: Vec<Process>,
    pub(crate) callers: Vec<Caller>,
    pub(crate) flights: Vec<Flight>,
    pub(crate) tally: Tally,
    /// The next reads that are not answered.
    pub(crate) lost_reads: u32,
}

type Checked = Result<(), Violation>;

impl Process {
    /// A process that believes this of the item, whatever the table says.
    pub(crate) fn new(
        clock_ms: i64,
        image: Option<Option<CompositeBucket>>,
        timing: Timing,
    ) -> Self {
        let interval = ClaimInterval(timing.interval_ms);
        let policy = QueueSettings { interval, refusal_age_max_ms: 0, is_transactional: false };
        let mut queue = WriteQueue::new([bucket_id()], policy);
        if let Some(image) = image {
            let (image, as_of) = (image.map(Arc::new), at(T0));
            queue.learn_unless_older(0, &KnownImage { image, as_of, is_authoritative: false });
        }
        Self { clock_ms, configuration: 0, queue, ids: 0, lost: None }
    }
}

impl System {
    /// Processes with one caller each.
    pub(crate) fn new(table: Table, processes: Vec<Process>) -> Self {
        let caller = |process| Caller { process, request: None };
        let callers = (0..processes.len()).map(caller).collect();
        let (flights, tally) = (Vec::new(), Tally::default());
        Self { table, processes, callers, flights, tally, lost_reads: 0 }
    }

    /// True if a process has something to do and waits for no answer.
    pub(crate) fn is_ready(&self, process: usize) -> bool {
        let queue = &self.processes[process].queue;
        !queue.has_no_caller() && !queue.has_call_in_flight()
    }

    /// True if a process waits for an answer.
    pub(crate) fn has_call_in_flight(&self, process: usize) -> bool {
        self.processes[process].queue.has_call_in_flight()
    }

    /// A request enters the queue of its process.
    pub(crate) fn enter(
        &mut self,
        scenario: &Scenario,
        caller: usize,
        request: Request,
    ) -> Checked {
        let index = self.callers[caller].process;
        let process = &mut self.processes[index];
        let now = at(self.table.now_ms + process.clock_ms);
        let purpose = match request.purpose {
            Purpose::Acquire | Purpose::Repair => sluicegate_core::Purpose::Acquire,
            Purpose::Adjust | Purpose::Forced => sluicegate_core::Purpose::Correct,
        };
        let (id, amounts) = (request.id.clone(), request.amounts.clone());
        let configuration = scenario.configurations[process.configuration].clone();
        let demands = vec![BucketDemand { amounts, configuration }];
        let entering = QueuedRequest {
            id,
            purpose,
            demands,
            started_at: now,
            may_send_back_for_limits: false,
        };
        process.queue.enter(entering, caller, now);
        if request.purpose == Purpose::Forced {
            process.queue.force(&request.id);
        }
        self.callers[caller].request = Some(request);
        self.resolve(index)
    }

    /// A caller stops waiting.
    pub(crate) fn leave(&mut self, scenario: &Scenario, caller: usize) {
        let Some(request) = self.callers[caller].request.take() else { return };
        if scenario.mistake == Some(Mistake::ForgetsWhoLeft) {
            return;
        }
        let index = self.callers[caller].process;
        let queue = &mut self.processes[index].queue;
        let (left, _) = queue.leave(&request.id);
        if let StateOnLeave::Done(_) = left {
            self.table.held(&request);
        }
        let is_abandoned = queue.has_no_caller() && queue.has_call_in_flight();
        let flight = self.flights.iter().position(|flight| flight.waiting == Some(index));
        if let (true, Some(flight)) = (is_abandoned, flight) {
            self.time_out(flight);
        }
    }

    /// A process does what its queue says, as far as it gets without the answer to a write.
    pub(crate) fn act(&mut self, scenario: &Scenario, index: usize, is_claimed: bool) -> Checked {
        let result = self.proceed(scenario, index, is_claimed);
        *self.processes[index].queue.contention(0) = ContentionEstimate::QUIET;
        result
    }

    fn proceed(&mut self, scenario: &Scenario, index: usize, is_claimed: bool) -> Checked {
        let estimate =
            if is_claimed { ContentionEstimate::CLAIMED } else { ContentionEstimate::QUIET };
        if !self.has_call_in_flight(index) {
            *self.processes[index].queue.contention(0) = estimate;
        }
        loop {
            self.resolve(index)?;
            let process = &mut self.processes[index];
            if process.queue.has_call_in_flight() {
                return Ok(());
            }
            let now = at(self.table.now_ms + process.clock_ms);
            let ids = &mut process.ids;
            let mut new_id = || {
                *ids += 1;
                request_id(1_000 + index, *ids)
            };
            let action = process.queue.next(now, &mut new_id);
            match action {
                Action::Idle => return self.resolve(index),
                Action::Pause { .. } => {}
                Action::Read(_) if self.lost_reads > 0 => {
                    self.lost_reads -= 1;
                    process.queue.answered(Answer::Lost, now);
                }
                Action::Read(_) => {
                    let image = self.table.item.clone().map(Arc::new);
                    process.queue.answered(Answer::Read(vec![image]), now);
                }
                Action::Write(write) => self.send(scenario, index, write),
            }
        }
    }

    fn send(&mut self, scenario: &Scenario, index: usize, write: Arc<Write>) {
        let (_, plan) = write.plans[0].clone();
        if matches!(plan.changes.as_slice(), [Change::ExpiresAt(_)]) {
            self.table.maintain(&plan);
            let image = self.table.item.clone().map(Arc::new);
            self.answer(index, Answer::Written(vec![image]));
            return;
        }
        let id = write.id.as_ref().map(|(id, _)| id.clone());
        let is_upkeep = id.is_none();
        let process = &mut self.processes[index];
        let requests: Vec<_> = match &process.lost {
            _ if is_upkeep => Vec::new(),
            Some((id, requests)) if Some(id) == write.id.as_ref().map(|(id, _)| id) => {
                requests.clone()
            }
            _ => {
                process.lost = None;
                let known = process.queue.known(0).and_then(|known| known.image.clone());
                let callers = process.queue.callers_of_call();
                let mut requests: Vec<_> =
                    callers.filter_map(|caller| self.callers[*caller].request.clone()).collect();
                for request in requests.iter_mut().filter(|r| r.purpose != Purpose::Acquire) {
                    // Corrections of limits that the item does not have are dropped.
                    request.amounts.retain(|limit, _| match &known {
                        Some(known) => known.limits.contains_key(limit),
                        None => matches!(&plan.changes[0], Change::Put(item) if item.limits.contains_key(limit)),
                    });
                }
                requests
            }
        };
        let has = |purpose| requests.iter().any(|request| request.purpose == purpose);
        let is_forced =
            write.id.as_ref().is_some_and(|(_, attempt)| *attempt >= ATTEMPTS_BEFORE_FORCED);
        let purpose = match plan.path {
            _ if is_upkeep => Purpose::Repair,
            _ if has(Purpose::Acquire) => Purpose::Acquire,
            WritePath::AddOnly if is_forced || has(Purpose::Forced) => Purpose::Forced,
            _ => Purpose::Adjust,
        };
        self.tally.combined += u32::from(requests.len() > 1);
        let mut plan = plan;
        if let Some(control) = scenario.without {
            plan.conditions.retain(|c| !(control.drops)(purpose, plan.path, c));
        }
        let id = id.unwrap_or_else(|| RequestId::stored("upkeep"));
        let (decided_ms, waiting) = (self.table.now_ms, Some(index));
        self.flights.push(Flight { purpose, id, requests, plan, decided_ms, waiting });
    }

    fn answer(&mut self, index: usize, answer: Answer) {
        let process = &mut self.processes[index];
        process.queue.answered(answer, at(self.table.now_ms + process.clock_ms));
    }

    /// Tells callers what became of their requests.
    fn resolve(&mut self, index: usize) -> Checked {
        let counts = self.processes[index].queue.drain_counts();
        if counts.ambiguous > 0 {
            // Nobody knows what became of a write: what it took may not be given back.
            self.table.forget_held();
        }
        for (caller, outcome) in self.processes[index].queue.drain_resolved() {
            let Some(request) = self.callers[caller].request.take() else { continue };
            match outcome {
                Outcome::Done(done) => {
                    let is_gone = request.amounts.keys().all(|limit| done.dropped.contains(limit));
                    if !is_gone {
                        self.table.confirm(&request.id)?;
                        self.table.held(&request);
                    }
                    match request.purpose {
                        Purpose::Acquire => self.tally.granted += 1,
                        _ => self.tally.corrected += 1,
                    }
                }
                Outcome::Refused(limits) => {
                    self.table.refuse(&limits[0])?;
                    self.tally.refused += 1;
                }
                _ => {}
            }
            // It looked at the item, and moved its expiry where that was needed.
            self.table.unwatched = false;
        }
        Ok(())
    }

    /// A write reaches the table.
    pub(crate) fn land(&mut self, scenario: &Scenario, flight: usize, reply: Reply) -> Checked {
        let flight = self.flights.remove(flight);
        let stale = scenario.mistake == Some(Mistake::InventsImages);
        let expected = flight.waiting.filter(|_| stale).and_then(|index| {
            let known = self.processes[index].queue.known(0)?;
            flight.plan.changed(known.image.as_deref())
        });
        let applied = self.table.write(&flight, scenario.timing)?;
        let Some(index) = flight.waiting else {
            let mut waiting = self.callers.iter().filter_map(|caller| caller.request.as_ref());
            self.table.unwatched |= applied
                && waiting.all(|request| flight.requests.iter().all(|sent| sent.id != request.id));
            return Ok(());
        };
        if reply == Reply::Lost {
            self.lose(scenario, index, &flight);
            return Ok(());
        }
        let image = expected.or_else(|| self.table.item.clone()).map(Arc::new);
        let answer = match applied {
            true => Answer::Written(vec![image]),
            false => Answer::ConditionFailed(vec![Some(image)]),
        };
        self.answer(index, answer);
        self.act(scenario, index, false)
    }

    /// A write does not reach the table, and its process gets an answer that says so.
    pub(crate) fn reject(&mut self, flight: usize, answer: Answer) {
        if let Some(index) = self.flights.remove(flight).waiting {
            self.answer(index, answer);
        }
    }

    /// A process gives up waiting for a write that may still land.
    pub(crate) fn time_out(&mut self, flight: usize) {
        if let Some(index) = self.flights[flight].waiting.take() {
            let flight = self.flights[flight].clone();
            self.remember_lost(index, &flight);
            self.answer(index, Answer::Lost);
        }
    }

    fn lose(&mut self, scenario: &Scenario, index: usize, flight: &Flight) {
        self.remember_lost(index, flight);
        self.answer(index, Answer::Lost);
        if scenario.mistake != Some(Mistake::ResolvesOneAlone) {
            return;
        }
        let is_sent = |caller: &&mut Caller| {
            let id = caller.request.as_ref().map(|request| &request.id);
            flight.requests.iter().any(|sent| Some(&sent.id) == id)
        };
        let process = &mut self.processes[index];
        if let Some(caller) = self.callers.iter_mut().find(is_sent)
            && let Some(request) = &caller.request
        {
            process.queue.leave(&request.id);
            self.table.held(request);
            self.tally.granted += 1;
            caller.request = None;
        }
    }

    fn remember_lost(&mut self, index: usize, flight: &Flight) {
        if flight.purpose != Purpose::Repair {
            self.processes[index].lost = Some((flight.id.clone(), flight.requests.clone()));
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

    /// True if no request waits, no write is in flight, and no process has anything to give back.
    pub(crate) fn has_nothing_open(&self) -> bool {
        let has_nothing_open = |process: &Process| process.queue.has_nothing_open();
        self.flights.is_empty()
            && self.callers.iter().all(|caller| caller.request.is_none())
            && self.processes.iter().all(has_nothing_open)
    }

    /// The same for the process of a caller.
    pub(crate) fn has_nothing_open_for(&self, caller: usize) -> bool {
        self.processes[self.callers[caller].process].queue.has_nothing_open()
    }

    /// Every process ends.
    pub(crate) fn forget_calls(&mut self, timing: Timing) {
        self.flights.clear();
        self.table.forget_held();
        for process in &mut self.processes {
            let (clock_ms, configuration) = (process.clock_ms, process.configuration);
            let fresh = Process::new(clock_ms, None, timing);
            *process = Process { configuration, ids: process.ids, ..fresh };
        }
        self.callers.iter_mut().for_each(|caller| caller.request = None);
    }
}

/// The id of a caller's request, in whatever order the requests of others happen.
pub(crate) fn request_id(caller: usize, request: u64) -> RequestId {
    RequestId::from_bits(u64::try_from(caller).unwrap() << 32 | request)
}
