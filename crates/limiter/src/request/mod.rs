//! The requests that a caller builds and awaits: for tokens, corrections and peeks.

mod acquire;
mod adjust;
mod outcome;
mod peek;
mod send;

pub use self::acquire::AcquireRequest;
pub use self::adjust::AdjustRequest;
#[cfg(feature = "leasing")]
pub(crate) use self::outcome::count;
pub use self::peek::PeekRequest;
#[cfg(feature = "leasing")]
pub(crate) use self::send::{attempt, wait_for};
pub use crate::cost::Cost;
pub use crate::degraded::{Cause, Degraded};
pub use crate::limit_set::IntoLimits;
pub use crate::permit::Remaining;
pub use crate::store::Adjusted;
