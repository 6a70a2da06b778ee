//! The cost of a request.

use std::ops::AddAssign;

use sluicegate_core::WritePath;

/// The cost of an acquire.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cost {
    /// The path of the last write; `Unclaimed` if an attempt whose answer was lost had taken the
    /// tokens. `None` if nothing was written (shadow mode, leased tokens, an unavailable store).
    pub path: Option<WritePath>,
    /// Writes attempted, those included whose answer was lost. A write that found no connection
    /// does not count.
    pub attempts: u32,
    /// Write units spent, refused attempts included: each counts as one unit, in a transaction as
    /// two for each item.
    pub write_units: f64,
    /// Read units spent.
    pub read_units: f64,
}

impl AddAssign for Cost {
    /// The path is that of the later cost, if it has one.
    fn add_assign(&mut self, later: Self) {
        self.path = later.path.or(self.path);
        self.attempts += later.attempts;
        self.write_units += later.write_units;
        self.read_units += later.read_units;
    }
}
