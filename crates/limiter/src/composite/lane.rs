//! The requests of this process on one bucket, or on a child's and its parent's bucket: one write
//! at a time.
//!
//! A [`WriteQueue`] decides what to do next. One of the waiting callers, the leader, does it for
//! all of them. If the leader's own request is resolved, runs out of time or is dropped, the lane
//! keeps the call that the leader awaited, and the next caller continues with it.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use sluicegate_core::{
    Action, Answer, BucketId, Counts, EpochMillis, Left, Policy, QueuedRequest, RequestId, Write,
    WriteQueue,
};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, Sleep};

use super::newest_image::Shared;
use super::table_call::{Asked, Calls, Cost, Expired, Flight, Settled, Told};
use crate::call::new_id;
use crate::clock::Clock;
use crate::table::TableError;

/// How long the table may take to answer before it is asked again, because all callers wait for the
/// answer. At least this, and at least twice the time of its last answer; doubled each time that it
/// does not answer.
const ANSWERED_WITHIN: Duration = Duration::from_millis(500);
const PATIENCE_MAX: Duration = Duration::from_secs(8);
/// How late a leader may be before another caller leads instead: the leader's owner may not poll
/// it.
const LATE_MAX: Duration = Duration::from_millis(250);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_millis(50);
/// The longest pause if no caller waits for tokens.
const PATIENT_MAX: Duration = Duration::from_millis(500);

/// The requests on one bucket, or on a child's and its parent's.
pub(crate) struct Lane {
    buckets: Vec<BucketId>,
    /// The image that all lanes of this process on a bucket share.
    images: Vec<Arc<Shared>>,
    state: Mutex<LaneState>,
    /// Notified when the leader stops.
    free: Notify,
}

struct LaneState {
    queue: WriteQueue<LaneWaiter>,
    /// The last write, if it may be sent again.
    last: Option<Arc<Write>>,
    /// The call on the table; `None` while the leader awaits it.
    flight: Option<(Flight, Instant)>,
    /// The time by which the leader acts; `None`: there is no leader.
    led_until: Option<Instant>,
    /// Counts the leaders.
    term: u64,
    /// The reason why the table did not do the last call.
    table_error: Option<Arc<TableError>>,
    /// The duration of its quickest answer, [`PAUSE_MAX`] at most.
    quickest: Duration,
    /// How long the next answer may take.
    patience: Duration,
    /// The time of the table's last answer.
    told_at: Instant,
    latest: EpochMillis,
    /// True if several callers waited for the last answer.
    is_shared: bool,
}

/// A caller that waits.
struct LaneWaiter {
    sender: oneshot::Sender<Settled>,
    cost: Cost,
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lane").field("buckets", &self.buckets).finish_non_exhaustive()
    }
}

impl Lane {
    pub(super) fn new(buckets: Vec<BucketId>, images: Vec<Arc<Shared>>, policy: Policy) -> Self {
        let state = LaneState {
            queue: WriteQueue::new(buckets.iter().cloned(), policy),
            last: None,
            flight: None,
            led_until: None,
            term: 0,
            table_error: None,
            quickest: PAUSE_MAX,
            patience: ANSWERED_WITHIN,
            told_at: Instant::now(),
            latest: EpochMillis::MIN,
            is_shared: false,
        };
        Self { buckets, images, state: Mutex::new(state), free: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, LaneState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Settles a request, together with others on the lane, or gives it up at its deadline.
    pub(super) async fn settle(
        &self,
        calls: &dyn Calls,
        request: QueuedRequest,
        deadline: Instant,
        clock: &dyn Clock,
    ) -> Result<Settled, Expired> {
        let (sender, mut receiver) = oneshot::channel();
        let mut member = Member { lane: self, id: request.id.clone(), is_open: true };
        let entered_at = Instant::now();
        {
            let mut state = self.lock();
            self.look(&mut state);
            let waiter = LaneWaiter { sender, cost: Cost::default() };
            state.queue.enter(request, waiter, clock.now());
            self.dispatch(&mut state, calls);
        }
        let mut sleep = std::pin::pin!(tokio::time::sleep_until(deadline));
        let mut timer = Timer { sleep: sleep.as_mut(), deadline };
        let settled = loop {
            if let Ok(settled) = receiver.try_recv() {
                break Some(settled);
            }
            match self.lead() {
                Some(leading) => {
                    if !leading.until(&mut receiver, &mut timer, calls, clock).await {
                        break None;
                    }
                }
                None => {
                    let late = self.lock().led_until.unwrap_or(deadline);
                    tokio::select! {
                        biased;
                        settled = &mut receiver => break settled.ok(),
                        // It leads or passes the lead on, whatever the outcome of its own request.
                        () = self.free.notified() => {}
                        () = timer.at(late) => if timer.is_over() {
                            break None;
                        }
                    }
                }
            }
        };
        if let Some(settled) = settled {
            member.is_open = false;
            return Ok(settled);
        }
        let (left, cost) = member.leave();
        // It may have been settled at this very moment.
        if let Ok(settled) = receiver.try_recv() {
            return Ok(settled);
        }
        let state = self.lock();
        let is_silent = state.told_at <= entered_at;
        Err(Expired { left, cost, table_error: state.table_error.clone(), is_silent })
    }

    /// Lets a correction that waits drop its guards.
    pub(super) fn force(&self, id: &RequestId) {
        self.lock().queue.force(id);
    }

    /// The most that a lease with an unknown outcome took.
    #[cfg(feature = "leasing")]
    pub(super) fn doubtful_lease(&self, id: &RequestId) -> Option<sluicegate_core::Amounts> {
        self.lock().queue.doubtful_lease(id)
    }

    /// Becomes the leader, if there is no active one.
    fn lead(&self) -> Option<Leader<'_>> {
        let (mut state, now) = (self.lock(), Instant::now());
        if let Some(until) = state.led_until {
            if now < until {
                return None;
            }
            // The old leader has the call, and may never poll it.
            if state.queue.is_asking() {
                let latest = state.latest;
                state.queue.answered(Answer::Lost, latest);
            }
        }
        state.term += 1;
        let (flight, since) = state.flight.take().unzip();
        let since = since.unwrap_or(now);
        state.led_until = Some(now.max(since + state.patience) + LATE_MAX);
        Some(Leader { lane: self, term: state.term, flight, since })
    }

    /// Takes over the images that other lanes learned of the buckets.
    fn look(&self, state: &mut LaneState) {
        for (index, image) in self.images.iter().enumerate() {
            if let Some(known) = image.known() {
                state.queue.learn(index, &known);
            }
        }
    }

    /// Sends the callers the outcomes of their requests.
    fn dispatch(&self, state: &mut LaneState, calls: &dyn Calls) {
        let counts = state.queue.take_counts();
        if counts != Counts::default() {
            calls.count(counts, &self.buckets);
        }
        for (LaneWaiter { sender, cost }, outcome) in state.queue.take_resolved() {
            let table_error = state.table_error.clone();
            // A caller that has just left gets none.
            drop(sender.send(Settled { outcome, cost, table_error }));
        }
    }

    /// Takes over an answer to the leader of this term; returns true if it still leads.
    fn told(
        &self,
        term: u64,
        (told, took): (Told, Duration),
        calls: &dyn Calls,
        clock: &dyn Clock,
    ) -> bool {
        let mut state = self.lock();
        let state = &mut *state;
        if state.term != term {
            return false;
        }
        let waiters = state.queue.waiters().count().max(1);
        state.is_shared = waiters > 1;
        let share = 1.0 / f64::from(u32::try_from(waiters).unwrap_or(u32::MAX));
        for waiter in state.queue.waiters() {
            waiter.cost.write_units += told.write_units * share;
            waiter.cost.read_units += told.read_units * share;
        }
        state.quickest = state.quickest.min(took);
        if told.answer == Answer::Lost {
            state.patience = state.patience.saturating_mul(2).min(PATIENCE_MAX);
        } else {
            state.told_at = Instant::now();
            state.patience = ANSWERED_WITHIN.max(took.saturating_mul(2)).min(PATIENCE_MAX);
        }
        if matches!(told.answer, Answer::Written(_) | Answer::Refused(_) | Answer::Failed) {
            // It is not sent again.
            state.last = None;
        }
        state.table_error = told.table_error.map(Arc::new);
        state.latest = clock.now();
        state.queue.answered(told.answer, state.latest);
        for (index, image) in self.images.iter().enumerate() {
            if let Some(known) = state.queue.known(index) {
                image.learn(known.clone());
            }
        }
        self.dispatch(state, calls);
        state.led_until = Some(Instant::now() + LATE_MAX);
        true
    }

    /// Drops state that no caller waits for any more.
    fn tidy(state: &mut LaneState) {
        if state.led_until.is_none() && state.queue.is_idle() && state.flight.take().is_some() {
            state.queue.answered(Answer::Lost, state.latest);
        }
    }
}

/// The one timer of a caller: registering another may cost a system call.
struct Timer<'a> {
    sleep: Pin<&'a mut Sleep>,
    deadline: Instant,
}

impl Timer<'_> {
    /// Waits until an instant, or until the caller's deadline if that is earlier.
    async fn at(&mut self, instant: Instant) {
        let instant = instant.min(self.deadline);
        if self.sleep.deadline() != instant {
            self.sleep.as_mut().reset(instant);
        }
        self.sleep.as_mut().await;
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.deadline
    }
}

/// A request that waits.
struct Member<'a> {
    lane: &'a Lane,
    id: RequestId,
    is_open: bool,
}

impl Member<'_> {
    fn leave(&mut self) -> (Left, Cost) {
        self.is_open = false;
        let mut state = self.lane.lock();
        let (left, waiter) = state.queue.leave(&self.id);
        Lane::tidy(&mut state);
        (left, waiter.map(|waiter| waiter.cost).unwrap_or_default())
    }
}

impl Drop for Member<'_> {
    fn drop(&mut self) {
        if self.is_open {
            self.leave();
        }
    }
}

/// The caller that carries out the actions of the queue.
struct Leader<'a> {
    lane: &'a Lane,
    term: u64,
    flight: Option<Flight>,
    /// The time at which it began to await the call.
    since: Instant,
}

impl Leader<'_> {
    /// Leads until its own request is settled or another caller leads; false: its time is up.
    async fn until(
        mut self,
        receiver: &mut oneshot::Receiver<Settled>,
        timer: &mut Timer<'_>,
        calls: &dyn Calls,
        clock: &dyn Clock,
    ) -> bool {
        let mut must_yield = self.lane.lock().is_shared;
        while receiver.is_empty() {
            if self.flight.is_some() {
                let late = self.since + self.lane.lock().patience;
                let told = tokio::select! {
                    biased;
                    told = self.told() => told,
                    () = timer.at(late) => {
                        if timer.is_over() {
                            return false;
                        }
                        self.flight = None;
                        Told::failed(TableError::Unreachable("the table did not answer in time".into()))
                    }
                };
                if !self.lane.told(self.term, (told, self.since.elapsed()), calls, clock) {
                    return true;
                }
                must_yield = self.lane.lock().is_shared;
                continue;
            }
            // Callers whose requests were just settled may send the next ones, and share the next
            // write.
            if std::mem::take(&mut must_yield) {
                tokio::task::yield_now().await;
            }
            let pause = {
                let mut state = self.lane.lock();
                let state = &mut *state;
                if state.term != self.term {
                    return true;
                }
                self.lane.look(state);
                state.latest = clock.now();
                let action = state.queue.next(state.latest, &mut new_id);
                self.lane.dispatch(state, calls);
                let latest = Instant::now() + state.patience + LATE_MAX;
                state.led_until = Some(latest);
                match action {
                    Action::Idle => return true,
                    Action::Pause { in_a_row, is_patient } => {
                        Some(pause(in_a_row, is_patient, state.quickest))
                    }
                    Action::Read(buckets) => {
                        let keys = buckets.iter().map(|index| self.lane.buckets[*index].clone());
                        self.flight = Some(calls.call(Asked::Read(keys.collect())));
                        None
                    }
                    Action::Write(write) => {
                        // The same transaction again is the same attempt.
                        let is_new =
                            !state.last.as_ref().is_some_and(|last| Arc::ptr_eq(last, &write));
                        for waiter in state.queue.waiters() {
                            waiter.cost.attempts += u32::from(is_new);
                        }
                        state.last = Some(write.clone());
                        let buckets = self.lane.buckets.clone();
                        self.flight = Some(calls.call(Asked::Write(buckets, write)));
                        None
                    }
                }
            };
            match pause {
                Some(pause) => {
                    timer.at(Instant::now() + pause).await;
                    if timer.is_over() {
                        return false;
                    }
                }
                None => self.since = Instant::now(),
            }
        }
        true
    }

    /// Waits for the answer. If it is dropped before that, the next leader waits.
    async fn told(&mut self) -> Told {
        let told = std::future::poll_fn(|context: &mut Context<'_>| match &mut self.flight {
            Some(flight) => flight.as_mut().poll(context),
            None => Poll::Pending,
        });
        let told = told.await;
        self.flight = None;
        told
    }
}

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        let mut state = self.lane.lock();
        if state.term != self.term {
            return;
        }
        state.led_until = None;
        state.flight = self.flight.take().map(|flight| (flight, self.since));
        let is_idle = state.queue.is_idle();
        Lane::tidy(&mut state);
        drop(state);
        if !is_idle {
            self.lane.free.notify_one();
        }
    }
}

/// A random pause that grows: by round trips if other writers came first and no caller waits for
/// tokens.
fn pause(in_a_row: u32, is_patient: bool, quickest: Duration) -> Duration {
    let in_a_row = in_a_row.min(12);
    let longest = match is_patient {
        true => {
            quickest.max(Duration::from_millis(1)).saturating_mul(2 << in_a_row).min(PATIENT_MAX)
        }
        false => Duration::from_millis(1 << (in_a_row - 1)).min(PAUSE_MAX),
    };
    longest.mul_f64(fastrand::f64())
}
