//! The boundaries of calendar limits, which a script cannot compute.
//!
//! A call tells the script the span of time around it in which its calendars have no boundary. Nearly
//! every bucket was refilled in that span, so there is nothing to count. For another bucket the script
//! does nothing and returns the time and the bucket's last refill; the next attempt brings the number
//! of boundaries between them.

use std::collections::BTreeSet;

use sluicegate_core::{CalendarRefill, EpochMillis};

use super::reply::Reply;
use super::script::Call;
use super::script_bucket::ScriptBucket;
use super::value::push;
use crate::table::TableError;

/// An argument for each bucket of a call; none if there are no calendars.
#[derive(Debug, Default)]
pub(super) struct Boundaries(Vec<Vec<u8>>);

impl Boundaries {
    /// The span around `now` for the calendars of these buckets.
    pub(super) fn around(now: EpochMillis, buckets: &[ScriptBucket]) -> Self {
        let calendars = |bucket: &ScriptBucket| -> BTreeSet<String> {
            let rules = bucket.configuration.explicit.values();
            rules.filter_map(|rule| rule.refill().calendar()).map(|at| at.to_string()).collect()
        };
        let calendars: Vec<_> = buckets.iter().map(calendars).collect();
        if calendars.iter().all(BTreeSet::is_empty) {
            return Self::default();
        }
        let packed = |calendars: &BTreeSet<String>| packed(calendars, now, now);
        Self(calendars.iter().filter_map(packed).collect())
    }

    /// The boundaries that a script asks for; `None`: the reply is another one.
    pub(super) fn asked_by(reply: &mut Reply, buckets: usize) -> Result<Option<Self>, TableError> {
        if !reply.asks_for_boundaries() {
            return Ok(None);
        }
        _ = reply.int()?;
        let now = reply.instant()?;
        let mut counted = Vec::with_capacity(buckets);
        for _ in 0..buckets {
            let since = reply.instant()?;
            let calendars = reply.text()?.unwrap_or_default();
            let calendars = calendars.split_whitespace().map(str::to_owned).collect();
            let unknown = || super::error::odd(format!("a calendar of {calendars:?}").into());
            counted.push(packed(&calendars, since, now).ok_or_else(unknown)?);
        }
        Ok(Some(Self(counted)))
    }

    /// Adds the arguments, behind all others.
    pub(super) fn append_to(&self, call: &mut Call) {
        self.0.iter().for_each(|counted| call.arg(counted.as_slice()));
    }
}

/// The boundaries of each calendar after `since`, up to any instant in the span around `now`. `None`: a
/// calendar is not known here.
fn packed(calendars: &BTreeSet<String>, since: EpochMillis, now: EpochMillis) -> Option<Vec<u8>> {
    let (mut start, mut end) = (EpochMillis::MIN, None);
    let mut counts = Vec::new();
    for text in calendars {
        let calendar = text.parse::<CalendarRefill>().ok()?.calendar;
        let period = calendar.period(now);
        start = start.max(period.start);
        end = [end, period.end].into_iter().flatten().min();
        counts.extend_from_slice(text.as_bytes());
        counts.push(0);
        push(&mut counts, calendar.boundaries(since, now));
    }
    let mut packed = Vec::with_capacity(64);
    let count = i64::try_from(calendars.len()).ok()?;
    // No instant is later than the end of the year 9999.
    let end_ms = end.map_or(EpochMillis::MAX.get() + 1, EpochMillis::get);
    for number in [since.get(), start.get(), end_ms, count] {
        push(&mut packed, number);
    }
    packed.extend_from_slice(&counts);
    Some(packed)
}
