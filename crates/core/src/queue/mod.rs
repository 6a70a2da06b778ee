//! A queue decides the next write of a process on a bucket, or on those of a child and its parent.
//! It has one write in flight at a time. Requests that arrive meanwhile wait, and share the next
//! write. Other queues of the process may write the same bucket (with a parent or a child of its
//! entity, or for corrections with a mark); to this queue they are other writers.
//!
//! The queue performs no I/O. Its driver tells it which requests [enter](WriteQueue::enter) and
//! [leave](WriteQueue::leave), asks it for the [next](WriteQueue::next) action, carries that out
//! and tells it the [answer](WriteQueue::answered). The limiter drives it, and so do the simulation
//! and the model checker.
//!
//! * Requests are decided in order of arrival against the newest image. A request that does not fit
//!   lets a smaller one behind it pass, and is decided anew after the next answer.
//! * A request is refused only from an image that the table returned, or from a new item that the
//!   table acknowledged, never from what a write of this process is expected to leave.
//! * A write is sent only while some caller waits. If the next write only gives back tokens of
//!   callers that left, and every waiting caller is to be refused, the refusals wait until that
//!   write is answered: otherwise nobody would be left to send it.
//! * A lost answer leaves all requests of the write in doubt together. They are sent again under
//!   the same id until the item shows if the write happened. If they cannot be sent again (for
//!   example, because all callers have left, or a condition of the write failed), the write becomes
//!   *abandoned*. The next write that carries requests is a *fence*: it requires that the lost
//!   write did not happen, and also puts the lost write's id into the item. While the item
//!   remembers that id, the lost write cannot happen. Upkeep has no id and fences nothing.
//!
//! The next action is the first of these that applies: a pause, the extension of an expiry, the
//! repetition of a write in doubt, a read of unknown buckets, a read that the last answer made
//! necessary or that replaces a write which would probably fail, a write that carries a caller, a
//! write that only returns tokens for callers that left (unless a waiting request needs a read),
//! upkeep, the read that a waiting request needs (`drive.rs`, `compose.rs`).
//!
//! The life of a write that carries requests:
//!
//! | state | held in | next state, with the file that decides |
//! |---|---|---|
//! | in flight | `shared`, `flight` | answered: done, its requests are resolved (`answers.rs`, `written`); a condition failed: done if the image shows its id; otherwise its requests wait again, and it is abandoned if an earlier attempt is in doubt (`condition_failed`); the answer was lost: in doubt (`lost`); the table was busy, or was not reached: its requests wait again, or it is in doubt if an earlier attempt is (`answered_write`); the table cannot be used: its requests fail (returns for leavers wait again), and it is abandoned if an earlier attempt is in doubt (`fail_write`) |
//! | in doubt | `shared`, `is_in_doubt` | sent again under its id: in flight (`compose.rs`, `repeat`); an image shows its id: done (`lost.rs`, `conclude_by_image`); it cannot be sent again: abandoned, its requests wait again (`give_up_write`) |
//! | abandoned | `abandoned` | an image shows its id: done (`lost.rs`, `resolve_abandoned`); the next write that carries requests, which is its fence, succeeds: the abandoned one did not happen, or nothing can tell any more (`end_abandoned`); too many are abandoned: the oldest counts as ambiguous (`forget_surplus_abandoned`) |
//!
//! * A waiting request takes nothing if its caller leaves, unless an abandoned write carries it. If
//!   the caller of an acquire leaves while a write of it is in flight or in doubt, and that write
//!   takes effect, a later write gives the tokens back. Corrections and leases are not given back.

mod abandoned;
mod answers;
mod bucket;
mod compose;
mod contention;
mod draft;
mod drive;
mod lease_terms;
mod leases;
mod lost;
mod member;
mod place;
mod refusal;
mod request;
mod settings;
mod state;

pub use self::bucket::KnownImage;
pub use self::contention::ContentionEstimate;
pub use self::lease_terms::LeaseTerms;
pub use self::request::{
    Action, Answer, BucketDemand, Done, Outcome, Purpose, QueuedRequest, StateOnLeave, Write,
};
pub use self::settings::{Counts, QueueSettings};
pub use self::state::WriteQueue;
