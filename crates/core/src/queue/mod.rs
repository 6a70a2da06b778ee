//! A queue has one write in flight at a time. Requests that arrive meanwhile wait, and share the
//! next write. Other queues of the process may write the same bucket (with a parent or a child of
//! its entity, or for corrections with a mark); to this queue they are other writers.
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
//! * A lost answer leaves all requests of the write in doubt together. They are sent again under
//!   the same id until the item shows if the write happened. If they cannot be sent again (for
//!   example, because all callers have left, or a condition of the write failed), the write becomes
//!   *abandoned*. The next write is a *fence*: it requires that the lost write did not happen, and
//!   also puts the lost write's id into the item. While the item remembers that id, the lost write
//!   cannot happen.
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
