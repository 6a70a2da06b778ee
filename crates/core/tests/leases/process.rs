//! A process that leases: what it holds, and the one request that its queue carries out.

use std::sync::Arc;

use sluicegate_core::{
    Action, Amounts, Answer, BucketDemand, ClaimInterval, CompositeBucket, Configuration,
    EpochMillis, KnownImage, LeaseRange, LeaseTerms, Outcome, Purpose, QueueSettings,
    QueuedRequest, RequestId, Write, WritePlan, WriteQueue,
};

use super::{Accounting, bucket_id, limit, milli};

/// The amounts that a request leases and settles, in millitokens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Order {
    id: RequestId,
    leased: i64,
    returned: i64,
    used: i64,
    accounting: Accounting,
    /// It corrects nothing, while this lease is in doubt.
    behind: Option<Box<Order>>,
}

/// A write under way; amounts in millitokens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Flight {
    pub(crate) plan: WritePlan,
    pub(crate) leased: i64,
    pub(crate) returned: i64,
    pub(crate) used: i64,
    pub(crate) decided_at: EpochMillis,
    /// The number of ids of writes that the item had been given then.
    pub(crate) ids: usize,
    pub(crate) order: Order,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) enum Phase {
    #[default]
    Idle,
    Waiting(Flight),
    /// Its answer is lost: nobody knows whether it was done, or will be.
    Unanswered(Order),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Process {
    /// Tells its ids from those of the other process.
    number: u64,
    pub(crate) is_alive: bool,
    pub(crate) may_take_back: bool,
    /// The tokens that it may hand out.
    pub(crate) held: i64,
    /// The tokens that the table leased to it and that are neither handed out nor returned.
    pub(crate) out: i64,
    /// Handed out and not on its way to the table.
    used: i64,
    pub(crate) handed_out: i64,
    pub(crate) writes: u8,
    pub(crate) phase: Phase,
    /// True if it still may correct something while a lease is in doubt.
    pub(crate) may_correct: bool,
    /// True if the tokens that one of its leases took will never be known.
    pub(crate) is_lost: bool,
    /// On its way and not counted yet.
    counting: i64,
    queue: WriteQueue<()>,
}

impl Process {
    /// The process with this number, 0 or 1.
    pub(crate) fn new(number: u64, known: CompositeBucket, now: EpochMillis) -> Self {
        let interval = ClaimInterval::default();
        let policy = QueueSettings { interval, refusal_age_max_ms: 0, is_transactional: false };
        let mut queue = WriteQueue::new([bucket_id()], policy);
        let image = Some(Arc::new(known));
        queue.learn_unless_older(0, &KnownImage { image, as_of: now, is_authoritative: false });
        Self {
            number,
            is_alive: true,
            may_take_back: true,
            held: 0,
            out: 0,
            used: 0,
            handed_out: 0,
            writes: 0,
            phase: Phase::Idle,
            may_correct: true,
            is_lost: false,
            counting: 0,
            queue,
        }
    }

    /// Ends it; what it waited for.
    pub(crate) fn die(&mut self) -> Phase {
        let phase = std::mem::take(&mut self.phase);
        let policy = QueueSettings {
            interval: ClaimInterval::default(),
            refusal_age_max_ms: 0,
            is_transactional: false,
        };
        self.queue = WriteQueue::new([bucket_id()], policy);
        (self.is_alive, self.may_take_back) = (false, false);
        (self.held, self.out, self.used, self.handed_out, self.counting) = (0, 0, 0, 0, 0);
        phase
    }

    pub(crate) const fn uncounted(&self) -> i64 {
        self.used + self.counting
    }

    /// Hands out what it holds.
    pub(crate) fn hand_out(&mut self) -> i64 {
        let milli = std::mem::take(&mut self.held);
        self.out -= milli;
        self.used += milli;
        self.handed_out += milli;
        milli
    }

    pub(crate) fn take_back(&mut self) {
        self.held += 1_000;
        self.out += 1_000;
        self.used -= 1_000;
        self.handed_out -= 1_000;
        self.may_take_back = false;
    }

    /// Begins a request that leases so much, or nothing, and gives back what is held where it
    /// `returns`; `None`: nothing would be sent.
    pub(crate) fn begin(
        &mut self,
        n: usize,
        leased: i64,
        returns: bool,
        table: (&CompositeBucket, &Configuration, EpochMillis),
        accounting: Accounting,
    ) -> Option<()> {
        let returned = if returns { std::mem::take(&mut self.held) } else { 0 };
        let id = RequestId::from_bits(u64::from(self.writes) * 2 + u64::try_from(n).ok()?);
        self.writes += 1;
        self.counting = std::mem::take(&mut self.used);
        let (used, behind) = (self.counting, None);
        let order = Order { id, leased, returned, used, accounting, behind };
        self.enter(order, table);
        matches!(self.phase, Phase::Waiting(_)).then_some(())
    }

    /// Asks again what became of a request, under its id.
    pub(crate) fn resolve(&mut self, table: (&CompositeBucket, &Configuration, EpochMillis)) {
        if let Phase::Unanswered(order) = std::mem::take(&mut self.phase) {
            self.enter(order, table);
        }
    }

    /// Another request of this process, while a lease of it is in doubt.
    pub(crate) fn correct(
        &mut self,
        n: usize,
        table: (&CompositeBucket, &Configuration, EpochMillis),
    ) -> Option<()> {
        let Phase::Unanswered(lease) = std::mem::take(&mut self.phase) else { return None };
        let id = RequestId::from_bits(100 + u64::from(self.writes) * 2 + u64::try_from(n).ok()?);
        let accounting = lease.accounting;
        let behind = Some(Box::new(lease));
        self.enter(Order { id, leased: 0, returned: 0, used: 0, accounting, behind }, table);
        matches!(self.phase, Phase::Waiting(_)).then_some(())
    }

    fn enter(
        &mut self,
        order: Order,
        (image, configuration, now): (&CompositeBucket, &Configuration, EpochMillis),
    ) {
        let of = |amount: i64| -> Amounts { Amounts::from([(limit(), milli(amount))]) };
        let want = LeaseRange { least: milli(order.leased), most: milli(order.leased) };
        let terms = LeaseTerms {
            wanted: (order.leased > 0).then_some((limit(), want)).into_iter().collect(),
            returned: if order.returned > 0 { of(order.returned) } else { Amounts::new() },
            counted: (order.accounting == Accounting::AtSettle).then(|| of(order.used)),
        };
        let configuration = Arc::new(configuration.clone());
        let amounts = if order.behind.is_some() { of(0) } else { terms.least() };
        let demands = vec![BucketDemand { amounts, configuration }];
        let (id, purpose) = match &order.behind {
            None => (order.id.clone(), Purpose::Lease(Arc::new(terms))),
            Some(_) => (order.id.clone(), Purpose::Correct),
        };
        let entering = QueuedRequest {
            id,
            purpose,
            demands,
            started_at: now,
            may_send_back_for_limits: false,
        };
        self.queue.enter(entering, (), now);
        self.advance(order, image, now);
    }

    /// Does what the queue says, up to the next write.
    fn advance(&mut self, order: Order, image: &CompositeBucket, now: EpochMillis) {
        let mut fence = 0;
        let mut new_id = || {
            fence += 2;
            RequestId::from_bits(1_000 * (1 + u64::from(self.writes)) + fence + self.number)
        };
        loop {
            if let Some(((), outcome)) = self.queue.drain_resolved().pop() {
                match outcome {
                    Outcome::Done(_) if order.behind.is_some() => {
                        self.phase = order.behind.map_or(Phase::Idle, |b| Phase::Unanswered(*b));
                    }
                    Outcome::Done(done) => {
                        self.held += done.leased.get(&limit()).map_or(0, |milli| milli.get());
                    }
                    // It was to be settled by a write that did not happen.
                    Outcome::Refused(_) => {
                        self.held += order.returned;
                        self.used += std::mem::take(&mut self.counting);
                    }
                    // Four others wrote meanwhile: nobody knows what it took.
                    Outcome::Ambiguous => self.is_lost = true,
                    other => panic!("{other:?}"),
                }
                return;
            }
            match self.queue.next(now, &mut new_id) {
                Action::Pause { .. } | Action::Idle => {}
                Action::Read(_) => {
                    let image = Some(Arc::new(image.clone()));
                    self.queue.answered(Answer::Read(vec![image]), now);
                }
                Action::Write(write) => {
                    self.phase = Phase::Waiting(self.flight(order, &write, now));
                    return;
                }
            }
        }
    }

    fn flight(&self, order: Order, write: &Write, now: EpochMillis) -> Flight {
        let (_, plan) = write.plans[0].clone();
        // One that only makes room or brings limits leases nothing.
        let is_sent = write.id.is_some() && order.behind.is_none();
        let carried = self.queue.lease_in_doubt(&order.id).filter(|_| is_sent);
        let is_carried = carried.is_some();
        let leased = carried.and_then(|leased| Some(leased.get(&limit())?.get())).unwrap_or(0);
        let returned = if is_carried { order.returned } else { 0 };
        let used = if is_carried { order.used } else { 0 };
        Flight { plan, leased, returned, used, decided_at: now, ids: 0, order }
    }

    /// The write that it waits for.
    pub(crate) fn answer(&mut self) -> Flight {
        let Phase::Waiting(flight) = std::mem::take(&mut self.phase) else {
            panic!("nothing is under way")
        };
        flight
    }

    /// The table did a write, whether this process knows or not.
    pub(crate) fn settled(&mut self, flight: &Flight) {
        self.counting -= flight.used;
    }

    /// An answer came.
    pub(crate) fn answered(
        &mut self,
        flight: Flight,
        is_done: bool,
        image: &CompositeBucket,
        now: EpochMillis,
    ) {
        let found = Some(Arc::new(image.clone()));
        let answer = match is_done {
            true => Answer::Written(vec![found]),
            false => Answer::ConditionFailed(vec![Some(found)]),
        };
        self.queue.answered(answer, now);
        self.advance(flight.order, image, now);
    }

    /// No answer comes, and the caller stays: its queue asks again.
    pub(crate) fn unanswered(&mut self, flight: Flight, image: &CompositeBucket, now: EpochMillis) {
        self.queue.answered(Answer::Lost, now);
        self.advance(flight.order, image, now);
    }

    /// No answer comes, and the caller leaves.
    pub(crate) fn unanswered_and_left(&mut self, flight: Flight, now: EpochMillis) {
        self.queue.leave(&flight.order.id);
        self.queue.answered(Answer::Lost, now);
        let Order { behind, .. } = &flight.order;
        let lease = behind.as_deref().unwrap_or(&flight.order).clone();
        self.phase = Phase::Unanswered(lease);
    }
}
