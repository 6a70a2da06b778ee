//! The boundaries of calendar limits, which a script cannot compute.
//!
//! A call tells the script the span of time around it in which its calendars have no boundary. Nearly
//! every bucket was refilled in that span, so there is nothing to count. For another bucket the script
//! does nothing and returns the time and the bucket's last refill; the next attempt brings the number
//! of boundaries between them.

use std::collections::BTreeMap;

use sluicegate_core::{Calendar, CalendarRefill, EpochMillis, InvalidCalendar};

use super::reply::Reply;
use super::script::Call;
use super::script_bucket::ScriptBucket;
use super::value::push;
use crate::table::TableError;

/// The calendars of a bucket, by the text that the bucket has.
type Calendars = BTreeMap<String, Calendar>;

/// An argument for each bucket of a call; none if there are no calendars.
#[derive(Debug, Default)]
pub(super) struct Boundaries(Vec<Vec<u8>>);

impl Boundaries {
    /// The span around `now` for the calendars of these buckets.
    pub(super) fn around(now: EpochMillis, buckets: &[ScriptBucket]) -> Self {
        let calendars = |bucket: &ScriptBucket| -> Calendars {
            let rules = bucket.configuration.explicit.values();
            let calendars = rules.filter_map(|rule| rule.refill().calendar());
            calendars.map(|at| (at.to_string(), at.calendar)).collect()
        };
        let calendars: Vec<_> = buckets.iter().map(calendars).collect();
        if calendars.iter().all(Calendars::is_empty) {
            return Self::default();
        }
        Self(calendars.iter().map(|calendars| packed(calendars, now, now)).collect())
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
            let named =
                |text: &str| Ok((text.to_owned(), text.parse::<CalendarRefill>()?.calendar));
            let calendars: Result<Calendars, InvalidCalendar> =
                calendars.split_whitespace().map(named).collect();
            let calendars = calendars.map_err(|unknown| super::error::odd(unknown.into()))?;
            counted.push(packed(&calendars, since, now));
        }
        Ok(Some(Self(counted)))
    }

    /// Adds the arguments, behind all others.
    pub(super) fn append_to(&self, call: &mut Call) {
        self.0.iter().for_each(|counted| call.arg(counted.as_slice()));
    }
}

/// The boundaries of each calendar after `since`, up to any instant in the span around `now`.
fn packed(calendars: &Calendars, since: EpochMillis, now: EpochMillis) -> Vec<u8> {
    let (mut start, mut end, mut count) = (EpochMillis::MIN, None, 0);
    let mut counts = Vec::new();
    for (text, calendar) in calendars {
        let period = calendar.period(now);
        start = start.max(period.start);
        end = [end, period.end].into_iter().flatten().min();
        counts.extend_from_slice(text.as_bytes());
        counts.push(0);
        push(&mut counts, calendar.boundaries(since, now));
        count += 1;
    }
    let mut packed = Vec::with_capacity(64);
    // No instant is later than the end of the year 9999.
    let end_ms = end.map_or(EpochMillis::MAX.get() + 1, EpochMillis::get);
    for number in [since.get(), start.get(), end_ms, count] {
        push(&mut packed, number);
    }
    packed.extend_from_slice(&counts);
    packed
}
