//! The requests that enter a queue, and their outcomes.

use std::sync::Arc;

use super::lease_terms::LeaseTerms;
use crate::{
    Amounts, CompositeBucket, Configuration, EpochMillis, LimitName, LimitStatus, RequestId,
    WritePath, WritePlan,
};

/// A request as it enters a queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct QueuedRequest {
    /// Names the request. A request that enters again under the same id is the same request. A
    /// [`Purpose::ReturnForLeaver`] has the id of the acquire whose tokens it gives back.
    pub id: RequestId,
    /// Its purpose.
    pub purpose: Purpose,
    /// Its demand on each bucket of the queue, in the order of the queue.
    pub demands: Vec<BucketDemand>,
    /// The start of the call.
    pub started_at: EpochMillis,
    /// True if the queue may send the request back ([`Outcome::OutdatedLimits`]), because the item
    /// follows newer stored limits: the caller then reads them and enters again. If false, the
    /// queue decides by the older limits.
    pub may_send_back_for_limits: bool,
}

/// The purpose of a request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// Takes all of its amounts or nothing. Its tokens are given back if its caller has left.
    Acquire,
    /// Adds its amounts to the consumption, and is never refused; negative amounts give tokens
    /// back. It stands even if its caller has left.
    Correct,
    /// Takes tokens of one bucket. It takes at least its amounts. If the bucket can spare more, it
    /// takes up to the amounts that its terms want (`LeaseTerms::wanted`). The same write settles
    /// earlier leases. A lease stands even if its caller has left: it gets its outcome when it
    /// enters again under its id.
    Lease(Arc<LeaseTerms>),
    /// Gives back the tokens of an acquire whose caller has left. The queue writes it only while
    /// some caller waits, which may be one whose refusal waits for this write.
    ReturnForLeaver,
}

/// The demand of a request on one bucket.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BucketDemand {
    /// The amount of each limit.
    pub amounts: Amounts,
    /// The limits of the bucket as the caller knows them.
    pub configuration: Arc<Configuration>,
}

/// The outcome of a request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It took effect.
    Done(Done),
    /// Some limit is short. The status of the request's limits, bucket by bucket, by the table's
    /// answers.
    Refused(Vec<Vec<LimitStatus>>),
    /// The item of this bucket follows newer stored limits than the request: read them again, and
    /// enter again.
    OutdatedLimits(usize),
    /// Neither the request nor the item of one of its buckets knows the limit.
    UnknownLimit(LimitName),
    /// The item of this bucket lacks the limit and has no room for another.
    NoRoom(usize, LimitName),
    /// The answer to a write was lost, and nothing can tell any more if the write took effect, or
    /// how much it took. A lease, or a request that gives tokens back, gets this outcome. The queue
    /// writes every other request again. But if more writes are lost than one write can fence, all
    /// requests of the oldest lost writes get this outcome.
    Ambiguous,
    /// The request has used all of its attempts, and none is known to have succeeded: other writers
    /// came first, the table was busy, or answers were lost.
    Contended {
        /// True if an attempt may have taken effect, or may still.
        is_in_doubt: bool,
    },
    /// The table cannot be used ([`Answer::TableUnusable`]).
    Failed {
        /// True if an attempt may have taken effect, or may still.
        is_in_doubt: bool,
    },
}

/// The effect of a request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Done {
    /// The path of the write; `None`: an earlier attempt took effect, or there was nothing to
    /// write.
    pub path: Option<WritePath>,
    /// The buckets after the request, as far as they are known.
    pub images: Vec<Option<Arc<CompositeBucket>>>,
    /// The tokens that a lease took.
    pub leased: Amounts,
    /// Limits of a correction that the bucket does not have: nothing was corrected there.
    pub dropped: Vec<LimitName>,
    /// True if a correction was written without its conditions on the balance.
    pub is_forced: bool,
    /// Writes that carried the request.
    pub attempts: u32,
}

/// The state of a request whose caller leaves.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum StateOnLeave {
    /// Nothing happened, and nothing will.
    Nothing,
    /// A write that carries it may have taken effect, or may still.
    InDoubt,
    /// It took effect already.
    Done(Done),
    /// It was refused, and only waits for a write that gives back tokens of other callers.
    Refused(Vec<Vec<LimitStatus>>),
}

/// The next action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Wait for a request to enter.
    Idle,
    /// Read these buckets by a strongly consistent read.
    Read(Vec<usize>),
    /// Send this write.
    Write(Arc<Write>),
    /// Wait, then ask again: other writers came first, or the table is busy or did not answer.
    Pause {
        /// Pauses of this queue in a row, this one included.
        pauses_in_a_row: u32,
        /// True if other writers came first and no request asks for tokens.
        corrections_were_outrun: bool,
    },
}

/// A write of one bucket, or of several together.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Write {
    /// Its plans, each with the index of its bucket in the queue.
    pub plans: Vec<(usize, WritePlan)>,
    /// The request id that the write leaves in the item, and a number that tells its plans from
    /// earlier ones under that id. Plans that are sent again unchanged keep both. `None`: an upkeep
    /// write, which takes nothing and is safe to do twice.
    pub id: Option<(RequestId, u32)>,
}

/// An answer of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The buckets that were read.
    Read(Vec<Option<Arc<CompositeBucket>>>),
    /// The write was done. The item after each plan, if the table returns it.
    Written(Vec<Option<Arc<CompositeBucket>>>),
    /// Nothing was done: a condition does not hold. The current item of each plan; the outer
    /// `None`: the table does not return it.
    ConditionFailed(Vec<Option<Option<Arc<CompositeBucket>>>>),
    /// Nothing was done; the same call may succeed in a moment.
    Busy,
    /// The call never reached the table: nothing was done. Unless an earlier attempt of the write
    /// is in doubt, the queue does not count it as an attempt of its requests.
    NotSent,
    /// No answer says if the call was carried out: there was silence, or the store failed. It may
    /// have been, or may still be.
    Lost,
    /// The table, or an item of these buckets, cannot be used, and surely nothing was done.
    TableUnusable,
}
