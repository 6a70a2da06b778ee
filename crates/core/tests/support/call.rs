//! One logical request of a writer, and its attempts on their way to the table.

use sluicegate_core::{
    Acquire, Adjust, Adjustment, Amounts, ClaimInterval, CompositeBucket, Configuration, Decision,
    EpochMillis, Force, Millitokens, Presume, RequestId, Standing, WritePlan, adjust, decide,
    reconfigure,
};

use super::fixtures::bucket_id;

/// What a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Purpose {
    /// Takes, or is refused.
    Acquire,
    /// Corrects, under guards.
    Adjust,
    /// Corrects, as a last resort.
    Forced,
    /// Takes nothing: brings back a timestamp that is ahead.
    Repair,
}

/// A request under way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Call {
    pub(crate) purpose: Purpose,
    pub(crate) amounts: Amounts,
    pub(crate) id: RequestId,
    /// Whether the writer's image came from the table during this call.
    pub(crate) fresh: bool,
    /// The ids that the item was known to remember before an attempt whose outcome is unknown.
    pub(crate) doubt: Option<Vec<RequestId>>,
    /// How many writes were sent.
    pub(crate) attempts: u8,
}

/// A write on its way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Flight {
    pub(crate) purpose: Purpose,
    pub(crate) id: RequestId,
    pub(crate) amounts: Amounts,
    pub(crate) plan: WritePlan,
    pub(crate) decided_ms: i64,
    /// Who waits for the reply; `None`: nobody any more.
    pub(crate) waiting: Option<usize>,
}

/// What a writer does next.
pub(crate) enum Move {
    Send(Purpose, Amounts, WritePlan),
    Look,
    Landed,
    Refuse(Vec<Standing>),
    /// There is nothing that the request could apply to.
    Drop,
}

/// What a decision is made with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms<'a> {
    pub(crate) configuration: &'a Configuration,
    pub(crate) interval: ClaimInterval,
    pub(crate) presume: Presume,
    pub(crate) now: EpochMillis,
}

impl Call {
    pub(crate) const fn new(purpose: Purpose, amounts: Amounts, id: RequestId) -> Self {
        Self { purpose, amounts, id, fresh: false, doubt: None, attempts: 0 }
    }

    /// Gives something back: repeating it without knowing would admit too much.
    fn is_refund(&self) -> bool {
        self.purpose != Purpose::Acquire && self.amounts.values().any(|a| *a < Millitokens::ZERO)
    }

    /// Whether others may have pushed the id of this request out of the item's memory.
    fn is_ambiguous(&self, image: Option<&CompositeBucket>) -> bool {
        let (Some(known), Some(image)) = (&self.doubt, image) else { return false };
        image.request_ids.len() == RequestId::REMEMBERED
            && !image.request_ids.iter().any(|id| *id == self.id || known.contains(id))
    }

    pub(crate) fn next(&mut self, image: Option<&CompositeBucket>, terms: Terms<'_>) -> Move {
        if self.doubt.is_some() && self.is_refund() && !self.fresh {
            return Move::Look;
        }
        if self.fresh && self.is_ambiguous(image) && self.is_refund() {
            return Move::Drop;
        }
        if self.fresh
            && let (Some(known), Some(image)) = (&mut self.doubt, image)
        {
            known.clone_from(&image.request_ids);
        }
        match self.purpose {
            Purpose::Acquire | Purpose::Repair => self.acquire(image, terms),
            Purpose::Adjust => self.adjust(image, terms, Force::No),
            Purpose::Forced => self.adjust(image, terms, Force::Yes),
        }
    }

    fn acquire(&self, image: Option<&CompositeBucket>, terms: Terms<'_>) -> Move {
        let Terms { configuration, interval, presume, now } = terms;
        let (bucket, amounts, id) = (&bucket_id(), &self.amounts, &self.id);
        let acquire = Acquire { bucket, amounts, configuration, id, interval, presume };
        match decide(image, acquire, now) {
            Decision::Write(plan) => Move::Send(Purpose::Acquire, self.amounts.clone(), plan),
            Decision::Repair(plan) => Move::Send(Purpose::Repair, Amounts::new(), plan),
            Decision::Landed => Move::Landed,
            // "No" is only said from an image that the table has just returned.
            Decision::Short(_) | Decision::Unknown(_) | Decision::Full(_) if !self.fresh => {
                Move::Look
            }
            Decision::Short(standings) => {
                let plan = image.and_then(|image| reconfigure(image, acquire, now));
                match plan {
                    Some(plan) => Move::Send(Purpose::Repair, Amounts::new(), plan),
                    None => Move::Refuse(standings),
                }
            }
            Decision::Unknown(_) | Decision::Full(_) => Move::Drop,
        }
    }

    fn adjust(&self, image: Option<&CompositeBucket>, terms: Terms<'_>, force: Force) -> Move {
        let Terms { configuration, interval, presume, now } = terms;
        let (bucket, amounts, id) = (&bucket_id(), &self.amounts, &self.id);
        let request = Adjust { bucket, amounts, configuration, id, interval, presume, force };
        match adjust(image, request, now) {
            Adjustment::Write { dropped, .. } | Adjustment::Gone(dropped)
                if !dropped.is_empty() && !self.fresh =>
            {
                Move::Look
            }
            Adjustment::Write { plan, dropped } => {
                let mut amounts = self.amounts.clone();
                amounts.retain(|limit, _| !dropped.contains(limit));
                Move::Send(self.purpose, amounts, plan)
            }
            Adjustment::Landed => Move::Landed,
            Adjustment::Gone(_) => Move::Drop,
        }
    }
}
