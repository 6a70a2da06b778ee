//! A process that leases: what it holds, and the one write that it waits for.

use std::collections::BTreeMap;

use sluicegate_core::{
    Acquire, Adjustment, Amounts, ClaimInterval, CompositeBucket, Configuration, Decision,
    EpochMillis, Presume, RequestId, Settle, Settlement, WritePlan, lease, settle,
};

use super::{Accounting, bucket_id, limit, milli};

/// A write under way; amounts in millitokens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Flight {
    pub(crate) plan: WritePlan,
    id: RequestId,
    pub(crate) leased: i64,
    /// What the first attempt under this id leases.
    hoped: i64,
    pub(crate) returned: i64,
    pub(crate) used: i64,
    pub(crate) decided_at: EpochMillis,
    /// An earlier attempt may still land.
    is_resent: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) enum Phase {
    #[default]
    Idle,
    Waiting(Flight),
    /// Nobody knows whether it was done, or will be.
    Unanswered(Flight),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Process {
    pub(crate) is_alive: bool,
    pub(crate) may_take_back: bool,
    /// What it may hand out.
    pub(crate) held: i64,
    /// What it was leased by the table and is neither handed out nor returned.
    pub(crate) out: i64,
    /// Handed out and not on its way to the table.
    used: i64,
    pub(crate) handed_out: i64,
    pub(crate) writes: u8,
    pub(crate) phase: Phase,
    /// On its way and not counted yet.
    counting: i64,
    known: Option<CompositeBucket>,
}

impl Process {
    pub(crate) fn new(known: CompositeBucket) -> Self {
        Self { is_alive: true, may_take_back: true, known: Some(known), ..Self::default() }
    }

    /// Ends it; what it waited for.
    pub(crate) fn die(&mut self) -> Phase {
        let phase = std::mem::take(&mut self.phase);
        *self = Self { writes: self.writes, ..Self::default() };
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

    /// Begins a write that leases; `None`: it is not the time for one.
    pub(crate) fn lease(
        &mut self,
        n: usize,
        size: i64,
        returns: bool,
        accounting: Accounting,
        configuration: &Configuration,
        now: EpochMillis,
    ) -> Option<()> {
        let returned = if returns { std::mem::take(&mut self.held) } else { 0 };
        self.begin(n, size, returned, accounting, configuration, now)
    }

    /// Begins a write that gives everything back.
    pub(crate) fn settle(
        &mut self,
        n: usize,
        accounting: Accounting,
        configuration: &Configuration,
        now: EpochMillis,
    ) -> Option<()> {
        let returned = std::mem::take(&mut self.held);
        self.begin(n, 0, returned, accounting, configuration, now)
    }

    fn begin(
        &mut self,
        n: usize,
        leased: i64,
        returned: i64,
        accounting: Accounting,
        configuration: &Configuration,
        now: EpochMillis,
    ) -> Option<()> {
        let id = RequestId::from_bits(u64::from(self.writes) * 2 + u64::try_from(n).ok()?);
        self.writes += 1;
        self.counting = std::mem::take(&mut self.used);
        let order = (leased, returned, self.counting);
        self.phase = Phase::Waiting(self.flight(id, order, accounting, configuration, now)?);
        Some(())
    }

    /// The write, decided by what is known; `None`: it would not be sent.
    fn flight(
        &self,
        id: RequestId,
        (leased, returned, used): (i64, i64, i64),
        accounting: Accounting,
        configuration: &Configuration,
        now: EpochMillis,
    ) -> Option<Flight> {
        let of = |amount: i64| -> Amounts { BTreeMap::from([(limit(), milli(amount))]) };
        let counted = match accounting {
            Accounting::AtLease => leased - returned,
            Accounting::AtSettle => used,
        };
        let settlement = Settlement { returned: of(returned), counted: of(counted) };
        let bucket = &bucket_id();
        let image = self.known.as_ref();
        let plan = if leased == 0 {
            let order = Settle { bucket, settlement: &settlement, configuration, id: &id };
            match settle(image, order, now) {
                Adjustment::Write { plan, .. } => plan,
                Adjustment::Landed | Adjustment::Gone(_) => return None,
            }
        } else {
            let amounts = &of(leased);
            let (interval, presume) = (ClaimInterval::default(), Presume::Unchanged);
            let order = Acquire { bucket, amounts, configuration, id: &id, interval, presume };
            match lease(image, order, &settlement, now) {
                Decision::Write(plan) => plan,
                _ => return None,
            }
        };
        Some(Flight {
            plan,
            id,
            leased,
            hoped: leased,
            returned,
            used,
            decided_at: now,
            is_resent: false,
        })
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
    pub(crate) fn answered(&mut self, flight: Flight, is_done: bool, image: CompositeBucket) {
        self.known = Some(image);
        let known = self.known.as_ref();
        if is_done {
            self.held += flight.leased;
        } else if known.is_some_and(|image| image.request_ids.contains(&flight.id)) {
            // It was refused because the first attempt was not.
            self.held += flight.hoped;
        } else if flight.is_resent {
            self.phase = Phase::Unanswered(flight);
        } else {
            self.held += flight.returned;
            self.used += std::mem::take(&mut self.counting);
        }
    }

    /// Looks whether a write was done; if not, sends it again or makes it impossible.
    pub(crate) fn resolve(
        &mut self,
        image: CompositeBucket,
        accounting: Accounting,
        configuration: &Configuration,
        now: EpochMillis,
    ) {
        let Phase::Unanswered(flight) = std::mem::take(&mut self.phase) else { return };
        let is_done = image.request_ids.contains(&flight.id);
        self.known = Some(image);
        // One of two attempts, of which one leases: nobody holds what it may have leased.
        let hoped = if flight.leased == flight.hoped { flight.hoped } else { 0 };
        if is_done {
            self.held += hoped;
            return;
        }
        let Flight { id, returned, used, .. } = flight;
        let again = |leased| {
            let order = (leased, returned, used);
            let flight = self.flight(id.clone(), order, accounting, configuration, now)?;
            Some(Flight { hoped, is_resent: true, ..flight })
        };
        let leased = flight.leased;
        self.phase = again(leased).or_else(|| again(0)).map_or(Phase::Idle, Phase::Waiting);
    }
}
