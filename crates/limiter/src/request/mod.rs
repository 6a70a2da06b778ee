//! The requests that a caller builds and awaits: for tokens, corrections and peeks.

mod acquire;
mod adjust;
mod attempt;
mod count;
mod peek;
mod send;

pub use self::acquire::AcquireRequest;
#[cfg(feature = "leasing")]
pub(crate) use self::acquire::RequestTerms;
pub use self::adjust::AdjustRequest;
#[cfg(feature = "leasing")]
pub(crate) use self::attempt::{in_acquire_span, wait_for};
#[cfg(feature = "leasing")]
pub(crate) use self::count::count;
pub use self::peek::PeekRequest;
pub use crate::cost::Cost;
pub use crate::degraded::{Cause, Degraded};
pub use crate::limit_set::IntoLimits;
pub use crate::store::Adjusted;
