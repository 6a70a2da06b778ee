//! Windows of one kind over a span of time.

use std::ops::Range;

use crate::{EpochMillis, Window, WindowKind};

/// The windows of one kind that start in a span of time: at its start or later, before its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WindowSpan {
    /// The kind.
    pub kind: WindowKind,
    /// The range of their starts, its end excluded.
    pub starts: Range<EpochMillis>,
}

impl WindowSpan {
    /// The windows of `kind` that start within a window, such as the hours of a day.
    ///
    /// ```
    /// use sluicegate_core::{EpochMillis, WindowKind, WindowSpan};
    ///
    /// let now = EpochMillis::new(1_769_608_800_000)?;
    /// let hours = WindowSpan::within(WindowKind::DAY.containing(now), WindowKind::Hour);
    /// assert!(hours.holds(WindowKind::Hour.containing(now)));
    /// # Ok::<(), sluicegate_core::OutOfRange>(())
    /// ```
    #[must_use]
    pub fn within(window: Window, kind: WindowKind) -> Self {
        let end = EpochMillis::new(window.end_s() * 1_000).unwrap_or(EpochMillis::MAX);
        Self { kind, starts: window.start()..end }
    }

    /// The newest windows of `kind` before `end`, as many as a person looks at: 60 minutes, 24
    /// hours, 30 days, or 12 weeks, months or years.
    #[must_use]
    pub fn until(end: EpochMillis, kind: WindowKind) -> Self {
        let before = |millis| EpochMillis::new(end.get() - millis).unwrap_or(EpochMillis::MIN);
        let start = match kind {
            WindowKind::Minute => before(3_600_000),
            WindowKind::Hour => before(86_400_000),
            WindowKind::Calendar(calendar) => {
                let periods = if calendar.unit() == "day" { 30 } else { 12 };
                // The end may be a boundary, and belongs to no window of the span.
                let last = EpochMillis::new(end.get() - 1).unwrap_or(EpochMillis::MIN);
                let first = calendar.period(last).index + 1 - periods;
                calendar.start_of(first).unwrap_or(EpochMillis::MIN)
            }
        };
        Self { kind, starts: start..end }
    }

    /// The first and the last window; `None` when no window starts in the span.
    #[must_use]
    pub fn ends(&self) -> Option<(Window, Window)> {
        let last_start = EpochMillis::new(self.starts.end.get() - 1).ok()?;
        let last = self.kind.containing(last_start);
        let first = self.kind.containing(self.starts.start);
        let first = if first.start() < self.starts.start { first.next()? } else { first };
        (first.start_s() <= last.start_s()).then_some((first, last))
    }

    /// True if a window is in the span.
    #[must_use]
    pub fn holds(&self, window: Window) -> bool {
        window.kind() == self.kind && self.starts.contains(&window.start())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::at;
    use crate::window::tests::window_kind;
    use proptest::prelude::*;

    fn ends(kind: WindowKind, from: i64, to: i64) -> Option<(i64, i64)> {
        let span = WindowSpan { kind, starts: at(from)..at(to) };
        span.ends().map(|(first, last)| (first.start_s(), last.start_s()))
    }

    #[test]
    fn the_start_belongs_to_a_span_and_the_end_does_not() {
        let hour = WindowKind::Hour;
        assert_eq!(ends(hour, 0, 7_200_000), Some((0, 3_600)));
        assert_eq!(ends(hour, 0, 7_200_001), Some((0, 7_200)));
        assert_eq!(ends(hour, 1, 3_600_001), Some((3_600, 3_600)));
        assert_eq!(ends(hour, 1, 3_600_000), None);
        assert_eq!(ends(hour, 5, 5), None);
        assert_eq!(ends(hour, 9, 5), None);
        assert_eq!(ends(hour, 0, 0), None);
        let last = EpochMillis::MAX.get();
        assert_eq!(ends(WindowKind::MONTH, last - 1, last), None);
    }

    #[test]
    fn within_covers_a_window_and_no_other() {
        let day = WindowKind::DAY.containing(at(1_769_608_800_000));
        let hours = WindowSpan::within(day, WindowKind::Hour);
        let ends = hours.ends().map(|(first, last)| (first.start_s(), last.end_s()));
        assert_eq!(ends, Some((day.start_s(), day.end_s())));
        assert!(WindowSpan::within(day, WindowKind::DAY).holds(day));
        let last = WindowKind::Hour.containing(EpochMillis::MAX);
        assert!(WindowSpan::within(last, WindowKind::Minute).ends().is_some());
    }

    #[test]
    fn a_span_until_now_ends_with_the_current_period() {
        // 2026-03-29T12:00:00Z, the day on which Berlin's summer time begins.
        let now = at(1_774_785_600_000);
        for (kind, first, last) in [
            ("minute", "2026-03-29T11:00:00Z", "2026-03-29T11:59:00Z"),
            ("hour", "2026-03-28T12:00:00Z", "2026-03-29T11:00:00Z"),
            ("day", "2026-02-28T00:00:00Z", "2026-03-29T00:00:00Z"),
            ("day/Europe/Berlin", "2026-02-27T23:00:00Z", "2026-03-28T23:00:00Z"),
            ("week@sun", "2026-01-11T00:00:00Z", "2026-03-29T00:00:00Z"),
            ("month", "2025-04-01T00:00:00Z", "2026-03-01T00:00:00Z"),
            ("month@15/Europe/Berlin", "2025-04-14T22:00:00Z", "2026-03-14T23:00:00Z"),
            ("year", "2015-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
        ] {
            let (start, end) = WindowSpan::until(now, kind.parse().unwrap()).ends().unwrap();
            assert_eq!((start.start_text().as_str(), end.start_text().as_str()), (first, last));
        }
    }

    #[test]
    fn a_span_until_a_boundary_has_as_many_windows() {
        // 2026-03-01T00:00:00Z
        let (first, last) =
            WindowSpan::until(at(1_772_323_200_000), WindowKind::MONTH).ends().unwrap();
        assert_eq!(first.start_text(), "2025-03-01T00:00:00Z");
        assert_eq!(last.start_text(), "2026-02-01T00:00:00Z");
    }

    proptest! {
        #[test]
        fn the_ends_are_in_the_span_and_their_neighbours_are_not(
            kind in window_kind(),
            from in 0..=4_000_000_000_000_i64,
            length_ms in 0..=10_000_000_000_i64,
        ) {
            let span = WindowSpan { kind, starts: at(from)..at(from + length_ms) };
            if let Some((first, last)) = span.ends() {
                prop_assert!(span.holds(first) && span.holds(last));
                prop_assert!(!span.holds(span.kind.containing(at(last.end_s() * 1_000))));
                if first.start_s() > 0 {
                    prop_assert!(!span.holds(span.kind.containing(at(first.start().get() - 1))));
                }
            } else {
                prop_assert!(!span.holds(span.kind.containing(span.starts.start)));
                let next = span.kind.containing(span.starts.start).end_s() * 1_000;
                prop_assert!(next >= span.starts.end.get());
            }
        }
    }
}
