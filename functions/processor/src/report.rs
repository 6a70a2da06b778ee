//! The figures of one event.

/// Figures of one event.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Report {
    /// Records delivered.
    pub records: u64,
    /// Counters whose change was read from them.
    pub deltas: u64,
    /// Updates of usage windows. A group of more than 200 limits takes several.
    pub window_updates: u64,
    /// Records that at least one of their windows was done with before, or that came twice in the
    /// event.
    pub duplicates_dropped: u64,
    /// Records that one window counted now, while another window skipped them because they are at
    /// or below its watermark. Usually an earlier delivery, which failed in part, counted them in
    /// that other window. If none did, records came out of order, and the other window lacks them:
    /// `usage check` tells.
    pub partly_counted: u64,
    /// Entries added to quarantine.
    pub quarantined: u64,
    /// Alerts added to the outbox.
    pub alerts: u64,
    /// Alerts that were delivered.
    pub alerts_sent: u64,
    /// Failed deliveries of alerts, and failed repetitions of their marks. They are tried again,
    /// unless a delivery failed too often.
    pub alerts_failed: u64,
    /// Alerts that failed too often: a person must look at them.
    pub alerts_given_up: u64,
    /// Windows and quarantine entries whose write must be repeated by a later delivery.
    pub retryable_failures: u64,
    /// Write capacity units of windows, claims and quarantine entries, as DynamoDB reported them.
    /// The answer to a failed condition does not name its units. Here it counts as one unit or as
    /// none, so the sum is a lower bound.
    pub write_units: f64,
    /// Age of the oldest record when it was processed, in milliseconds.
    pub record_age_ms: Option<f64>,
}
