//! What a caller makes, fills in and awaits: requests for tokens, corrections and looks.

mod acquire;
mod adjust;
mod peek;
mod send;

pub use self::acquire::AcquireRequest;
pub use self::adjust::AdjustRequest;
pub use self::peek::PeekRequest;
