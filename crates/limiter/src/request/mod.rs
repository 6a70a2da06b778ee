//! The requests that a caller builds and awaits: for tokens, corrections and peeks.

mod acquire;
mod adjust;
mod peek;
mod send;
mod wait;

pub use self::acquire::AcquireRequest;
#[cfg(feature = "leasing")]
pub(crate) use self::acquire::RequestTerms;
pub use self::adjust::AdjustRequest;
pub use self::peek::PeekRequest;
#[cfg(feature = "leasing")]
pub(crate) use self::send::{count, in_acquire_span};
#[cfg(feature = "leasing")]
pub(crate) use self::wait::wait_for;
pub use crate::cost::Cost;
pub use crate::degraded::{Cause, Degraded};
pub use crate::limit_set::IntoLimits;
pub use crate::store::Adjusted;
