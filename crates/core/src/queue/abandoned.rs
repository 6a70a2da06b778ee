//! Writes whose answers were lost and that are no longer sent again: they may have happened, and
//! may still.

use super::member::Member;
use super::request::{BucketDemand, Purpose, QueuedRequest};
use crate::{Amounts, CompositeBucket, Millitokens, RequestId};

/// A write that may have happened, or may still.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct AbandonedWrite {
    pub(super) id: RequestId,
    /// The ids in the newest known image of bucket 0 when the write was sent, or when it last
    /// counted as ambiguous. The first bucket of a queue stands for all, because every write of the
    /// queue puts its id into each of them.
    pub(super) ids_before: Vec<RequestId>,
    pub(super) requests: Vec<AbandonedRequest>,
}

/// A request of such a write.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct AbandonedRequest {
    pub(super) id: RequestId,
    pub(super) purpose: Purpose,
    pub(super) demands: Vec<BucketDemand>,
    pub(super) leased: Amounts,
}

impl AbandonedWrite {
    pub(super) fn new<W>(
        id: &RequestId,
        members: &[Member<W>],
        ids_before: Vec<RequestId>,
    ) -> Self {
        let request = |member: &Member<W>| AbandonedRequest {
            id: member.request.id.clone(),
            purpose: member.request.purpose.clone(),
            demands: member.request.demands.clone(),
            leased: member.leased.clone(),
        };
        Self { id: id.clone(), ids_before, requests: members.iter().map(request).collect() }
    }

    pub(super) fn has(&self, id: &RequestId) -> bool {
        self.requests.iter().any(|request| request.id == *id)
    }
}

impl AbandonedRequest {
    pub(super) fn is(&self, other: &QueuedRequest) -> bool {
        // A lease may enter again with other terms, for example only to settle.
        let is_lease = |purpose: &Purpose| matches!(purpose, Purpose::Lease(_));
        let is_same = self.purpose == other.purpose;
        self.id == other.id && (is_same || is_lease(&self.purpose) && is_lease(&other.purpose))
    }

    /// True if it is a correction that takes tokens.
    pub(super) fn corrects_upwards(&self) -> bool {
        let mut amounts = self.demands.iter().flat_map(|demand| demand.amounts.values());
        self.purpose == Purpose::Correct && amounts.any(|amount| *amount > Millitokens::ZERO)
    }
}

/// True if the item may have forgotten the lost attempt of a write, so that the image cannot tell
/// whether the attempt happened. That is so in two cases: there is no item; or its list of ids is
/// full and has none of `ids_before`, the ids from before the write, so that `id` may have come and
/// gone. `id` itself is left out of the comparison, because it says nothing of the lost attempt: a
/// later attempt of the same write, or the write's fence, may have put it into the item.
pub(super) fn may_have_forgotten(
    ids_before: &[RequestId],
    image: Option<&CompositeBucket>,
    id: &RequestId,
) -> bool {
    let Some(image) = image else { return true };
    let mut others = image.request_ids.iter().filter(|seen| *seen != id);
    let is_full = image.request_ids.len() >= RequestId::REMEMBERED;
    is_full && !others.any(|seen| ids_before.contains(seen))
}
