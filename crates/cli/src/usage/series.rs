//! The data of a chart: one limit over time, empty windows included.
//!
//! A window without consumption is not stored, so a chart computes which windows there could be. If
//! there are more than it has room for, adjacent windows are added up.

use std::collections::{BTreeMap, BTreeSet};

use chrono::DateTime;
use sluicegate::types::{LimitName, UsageWindow, WindowKind, WindowSpan};
use sluicegate_core::{AmountOf, Currency, Window};

use crate::error::CliError;
use crate::output::counted;
use crate::whose::Whose;

/// More windows than a person looks at; a chart adds them up anyway.
const WINDOWS_MAX: usize = 100_000;

/// The requested usage.
pub(super) struct Question {
    pub(super) whose: Whose,
    pub(super) span: WindowSpan,
}

/// One limit over time.
pub(super) struct Series {
    pub(super) limit: LimitName,
    pub(super) kind: WindowKind,
    /// In the order of time, without gaps.
    pub(super) slots: Vec<Slot>,
}

/// One window, or the sum of several adjacent ones.
pub(super) struct Slot {
    pub(super) first: Window,
    /// The number of windows in it.
    pub(super) windows: usize,
    /// Millitokens by consumer; empty: no data.
    pub(super) parts: BTreeMap<String, i128>,
}

impl Slot {
    pub(super) fn total(&self) -> i128 {
        self.parts.values().sum()
    }

    pub(super) fn has_data(&self) -> bool {
        !self.parts.is_empty()
    }

    /// The start in the time zone of the windows: `2026-01-28 14:00`.
    pub(super) fn label(&self) -> String {
        time(
            self.first,
            match self.first.kind() {
                WindowKind::Minute | WindowKind::Hour => "%Y-%m-%d %H:%M",
                WindowKind::MONTH => "%Y-%m",
                WindowKind::Calendar(_) => "%Y-%m-%d",
            },
        )
    }
}

/// The start of a window on the clocks of its time zone, in a format of chrono's.
pub(super) fn time(window: Window, format: &str) -> String {
    let start = DateTime::from_timestamp(window.local_start_s(), 0).unwrap_or_default();
    start.format(format).to_string()
}

impl Question {
    /// Refuses spans with so many windows that a chart would be useless.
    pub(super) fn check_length(&self) -> Result<(), CliError> {
        if self.windows().nth(WINDOWS_MAX).is_some() {
            return Err(CliError::BadInput(format!(
                "a chart of more than {WINDOWS_MAX} windows; bring --from and --to together, or take a longer --window"
            )));
        }
        Ok(())
    }

    /// `user-123 on gpt-4, by hour, 2026-01-28T00:00:00Z to 2026-01-29T00:00:00Z`.
    pub(super) fn title(&self) -> String {
        let instant = |at: sluicegate::types::EpochMillis| {
            let at = DateTime::from_timestamp_millis(at.get()).unwrap_or_default();
            at.format("%Y-%m-%d %H:%M").to_string()
        };
        let Self { whose, span } = self;
        let (from, to) = (instant(span.starts.start), instant(span.starts.end));
        format!("{whose}, by {}, {from} to {to} UTC", span.kind)
    }

    /// The message that there is nothing to show, and the likely reason.
    pub(super) fn nothing(&self) -> String {
        format!("no usage of {}; try another --window or an earlier --from", self.title())
    }

    fn windows(&self) -> impl Iterator<Item = Window> {
        let ends = self.span.ends();
        let next = move |window: &Window| {
            let next = window.next()?;
            (next <= ends?.1).then_some(next)
        };
        std::iter::successors(ends.map(|(first, _)| first), next)
    }
}

impl Series {
    /// One series for each limit that was consumed.
    pub(super) fn all(question: &Question, usages: &[UsageWindow]) -> Vec<Self> {
        let limits: BTreeSet<&LimitName> =
            usages.iter().flat_map(|usage| usage.consumed_milli.keys()).collect();
        let windows: Vec<Window> = question.windows().collect();
        let of = |limit: &LimitName| {
            let mut parts: BTreeMap<i64, BTreeMap<String, i128>> = BTreeMap::new();
            for usage in usages {
                let Some(milli) = usage.consumed_milli.get(limit) else { continue };
                let part = match &question.whose {
                    Whose::Resource(_) => usage.entity.to_string(),
                    Whose::Entity(_) | Whose::Bucket(..) => usage.resource.to_string(),
                };
                let of_window = parts.entry(usage.window.start_s()).or_default();
                *of_window.entry(part).or_default() += *milli;
            }
            let slots = windows.iter().map(|window| Slot {
                first: *window,
                windows: 1,
                parts: parts.remove(&window.start_s()).unwrap_or_default(),
            });
            Self { limit: limit.clone(), kind: question.span.kind, slots: slots.collect() }
        };
        limits.into_iter().map(of).collect()
    }

    /// The same series with at most so many slots.
    pub(super) fn at_most(self, most: usize) -> Self {
        let together = self.slots.len().div_ceil(most.max(1));
        if together <= 1 {
            return self;
        }
        let mut slots: Vec<Slot> = Vec::with_capacity(most);
        for (n, slot) in self.slots.into_iter().enumerate() {
            match slots.last_mut() {
                Some(last) if n % together != 0 => {
                    last.windows += slot.windows;
                    for (part, milli) in slot.parts {
                        *last.parts.entry(part).or_default() += milli;
                    }
                }
                _ => slots.push(slot),
            }
        }
        Self { slots, ..self }
    }

    /// The unit of one slot: `hour`, or `6 hours`.
    pub(super) fn unit(&self) -> String {
        match self.slots.first().map_or(1, |slot| slot.windows) {
            1 => self.kind.unit().to_owned(),
            several => counted(several, self.kind.unit()),
        }
    }

    /// `tokens`, or the code of a currency.
    pub(super) fn counted_in(&self) -> &'static str {
        Currency::of(self.limit.as_str()).map_or("tokens", Currency::code)
    }

    /// An amount as a number.
    pub(super) fn amount(&self, milli: i128) -> String {
        AmountOf::new(self.limit.as_str(), milli).plain()
    }

    pub(super) fn total(&self) -> i128 {
        self.slots.iter().map(Slot::total).sum()
    }

    /// The consumers, the largest first.
    pub(super) fn parts(&self) -> Vec<String> {
        let mut totals: BTreeMap<&String, i128> = BTreeMap::new();
        for (part, milli) in self.slots.iter().flat_map(|slot| &slot.parts) {
            *totals.entry(part).or_default() += *milli;
        }
        let mut parts: Vec<_> = totals.into_iter().collect();
        parts.sort_by(|(a, x), (b, y)| y.cmp(x).then(a.cmp(b)));
        parts.into_iter().map(|(part, _)| part.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate::types::EpochMillis;
    use sluicegate::{EntityId, Resource};

    pub(crate) fn question(hours: i64) -> Question {
        let at = |hour: i64| EpochMillis::new(1_769_558_400_000 + hour * 3_600_000).unwrap();
        let resource = Resource::new("gpt-4").unwrap();
        let span = WindowSpan { kind: WindowKind::Hour, starts: at(0)..at(hours) };
        Question { whose: Whose::Resource(resource), span }
    }

    fn usage(entity: &str, hour: i64, milli: i128) -> UsageWindow {
        let at = EpochMillis::new(1_769_558_400_000 + hour * 3_600_000).unwrap();
        UsageWindow {
            entity: EntityId::new(entity).unwrap(),
            resource: Resource::new("gpt-4").unwrap(),
            window: WindowKind::Hour.containing(at),
            consumed_milli: [(LimitName::new("rpm").unwrap(), milli)].into(),
            events: 1,
            expires_at_s: None,
        }
    }

    #[test]
    fn windows_without_data_have_a_place_and_neighbours_add_up() {
        let question = question(7);
        let usages = [usage("a", 0, 5), usage("b", 0, 7), usage("a", 4, 1), usage("b", 6, 2)];
        let series = Series::all(&question, &usages).remove(0);
        let totals = |series: &Series| -> Vec<Option<i128>> {
            series.slots.iter().map(|slot| slot.has_data().then(|| slot.total())).collect()
        };
        assert_eq!(totals(&series), [Some(12), None, None, None, Some(1), None, Some(2)]);
        assert_eq!(
            (series.unit(), series.parts()),
            ("hour".to_owned(), vec!["b".to_owned(), "a".to_owned()])
        );
        let series = series.at_most(3);
        assert_eq!(totals(&series), [Some(12), Some(1), Some(2)]);
        assert_eq!((series.unit(), series.total()), ("3 hours".to_owned(), 15));
    }

    /// The slots of a chart, each with its hours, and the tokens of one usage window.
    fn slots(kind: &str, from: &str, to: &str, used_at: &str) -> Vec<(String, i64, i128)> {
        let at = |text: &str| {
            let at = DateTime::parse_from_rfc3339(text).unwrap();
            EpochMillis::new(at.timestamp_millis()).unwrap()
        };
        let kind: WindowKind = kind.parse().unwrap();
        let span = WindowSpan { kind, starts: at(from)..at(to) };
        let question = Question { span, ..question(1) };
        let usage = UsageWindow { window: kind.containing(at(used_at)), ..usage("a", 0, 5) };
        let slots = Series::all(&question, &[usage]).remove(0).slots.into_iter();
        let hours = |window: Window| (window.end_s() - window.start_s()) / 3_600;
        slots.map(|slot| (slot.label(), hours(slot.first), slot.total())).collect()
    }

    #[test]
    fn days_of_23_and_25_hours_are_one_slot_each_with_their_local_date() {
        let day = |label: &str, hours, milli| (label.to_owned(), hours, milli);
        assert_eq!(
            slots(
                "day/Europe/Berlin",
                "2026-03-27T23:00:00Z",
                "2026-03-30T23:00:00Z",
                "2026-03-29T21:59:59Z"
            ),
            [
                day("2026-03-28", 24, 0),
                day("2026-03-29", 23, 5),
                day("2026-03-30", 24, 0),
                day("2026-03-31", 24, 0)
            ]
        );
        assert_eq!(
            slots(
                "day/Europe/Berlin",
                "2026-10-23T22:00:00Z",
                "2026-10-26T23:00:00Z",
                "2026-10-25T22:59:59Z"
            ),
            [day("2026-10-24", 24, 0), day("2026-10-25", 25, 5), day("2026-10-26", 24, 0)]
        );
    }

    #[test]
    fn periods_are_labelled_by_their_first_day() {
        for (kind, label) in [
            ("week@sun", "2026-03-29"),
            ("month", "2026-03"),
            ("month@15/Europe/Berlin", "2026-03-15"),
            ("year/Asia/Tokyo", "2026-01-01"),
        ] {
            let now = "2026-03-29T12:00:00Z";
            let slots = slots(kind, "2025-12-31T00:00:00Z", now, now);
            assert_eq!(slots.last().unwrap().0, label, "{kind}");
        }
    }

    #[test]
    fn charts_of_too_many_windows_are_refused() {
        let windows = i64::try_from(WINDOWS_MAX).unwrap();
        assert!(question(windows).check_length().is_ok());
        assert!(question(windows + 1).check_length().is_err());
    }
}
