//! Round numbers on the axes.

use sluicegate::types::WindowKind;

use sluicegate_core::Currency;

use super::super::series::{Series, Slot, time};

/// The billionths of money in a thousandth of its unit.
const NANOS_PER_THOUSANDTH: i128 = 1_000_000;
/// The most ticks, zero included.
const TICKS_MAX: i128 = 6;

/// The ends of an axis and the distance of its ticks, in millitokens.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Scale {
    pub(super) low: i128,
    pub(super) high: i128,
    pub(super) step: i128,
}

impl Scale {
    /// Covers zero and both extremes with ticks at 1, 2 or 5 times a power of ten.
    pub(super) fn covering(least: i128, most: i128) -> Self {
        let (least, most) = (least.min(0), most.max(0));
        // The sum is zero: one token is as good as any end.
        let most = if most == least { 1_000 } else { most };
        let span = most - least;
        let mut power = 1;
        let step = loop {
            let fits = |factor: &i128| span <= factor * power * (TICKS_MAX - 2);
            match [1, 2, 5].into_iter().find(fits) {
                Some(factor) => break factor * power,
                None => power *= 10,
            }
        };
        Self {
            low: least.div_euclid(step) * step,
            high: (most + step - 1).div_euclid(step) * step,
            step,
        }
    }

    pub(super) fn ticks(&self) -> impl Iterator<Item = i128> + '_ {
        let mut next = self.low;
        std::iter::from_fn(move || {
            let tick = (next <= self.high).then_some(next);
            next += self.step;
            tick
        })
    }
}

/// An amount of a limit in few characters: `0.5`, `20`, `1.5k`, `200k`, `3M`.
pub(super) fn short(series: &Series, milli: i128) -> String {
    match Currency::of(series.limit.as_str()) {
        None => in_thousandths(milli),
        Some(_) if milli % NANOS_PER_THOUSANDTH == 0 => {
            in_thousandths(milli / NANOS_PER_THOUSANDTH)
        }
        Some(_) => series.amount(milli),
    }
}

/// Thousandths in few characters.
fn in_thousandths(milli: i128) -> String {
    let units = [
        (1_000_000_000_000_000_i128, "T"),
        (1_000_000_000_000, "G"),
        (1_000_000_000, "M"),
        (1_000_000, "k"),
    ];
    let size = milli.abs();
    let (unit, suffix) = units.into_iter().find(|(unit, _)| size >= *unit).unwrap_or((1_000, ""));
    let thousandths = size * 1_000 / unit;
    let sign = if milli < 0 { "-" } else { "" };
    format!("{sign}{}{suffix}", crate::output::tokens(thousandths))
}

/// The label of a slot: the time, and the date if it differs from the previous label's.
pub(super) struct Label {
    pub(super) slot: usize,
    pub(super) upper: String,
    pub(super) lower: Option<String>,
}

/// The intervals between labels that are easy to read.
const STEPS: [usize; 14] = [1, 2, 3, 4, 6, 12, 24, 48, 72, 96, 120, 168, 240, 480];

/// At most so many labels, at round times if every slot is one window.
pub(super) fn labels(slots: &[Slot], most: usize) -> Vec<Label> {
    let fits = |step: &usize| slots.len().div_ceil(*step) <= most.max(1);
    let step = STEPS.into_iter().find(fits).unwrap_or_else(|| slots.len().div_ceil(most.max(1)));
    let is_labelled = |(n, slot): &(usize, &Slot)| {
        let unit_s = match slot.first.kind() {
            WindowKind::Minute => 60,
            WindowKind::Hour => 3_600,
            WindowKind::Calendar(_) => 0,
        };
        let Ok(step) = i64::try_from(step) else { return false };
        if slot.windows > 1 || unit_s == 0 || slots.len() < 2 {
            return i64::try_from(*n).is_ok_and(|n| n % step == 0);
        }
        (slot.first.start_s() / unit_s) % step == 0
    };
    let mut before = String::new();
    let label = |(n, slot): (usize, &Slot)| {
        let (upper, lower) = match slot.first.kind() {
            WindowKind::Minute | WindowKind::Hour => ("%H:%M", "%b %-d"),
            WindowKind::MONTH => ("%b", "%Y"),
            WindowKind::Calendar(_) => ("%b %-d", "%Y"),
        };
        let (upper, lower) = (time(slot.first, upper), time(slot.first, lower));
        let is_new = lower != before;
        before.clone_from(&lower);
        Label { slot: n, upper, lower: is_new.then_some(lower) }
    };
    slots.iter().enumerate().filter(is_labelled).map(label).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use sluicegate::types::EpochMillis;

    use super::*;

    #[test]
    fn scales_cover_zero_and_both_ends_with_few_round_ticks() {
        for (least, most) in
            [(0, 0), (1, 1), (0, 4_321), (0, 999_999), (-700, 12), (-9, -3), (0, i64::MAX.into())]
        {
            let scale = Scale::covering(least, most);
            assert!(scale.low <= least.min(0) && scale.high >= most.max(0), "{scale:?}");
            let ticks: Vec<_> = scale.ticks().collect();
            assert!(ticks.contains(&0) && ticks.len() <= 7 && ticks.len() >= 2, "{ticks:?}");
        }
        assert_eq!(Scale::covering(0, 4_321), Scale { low: 0, high: 6_000, step: 2_000 });
    }

    #[test]
    fn calendar_labels_are_local_dates() {
        let kind: WindowKind = "day/Europe/Berlin".parse().unwrap();
        // From 2026-03-27T23:00:00Z on; the third day begins an hour early.
        let starts = [1_774_652_400, 1_774_738_800, 1_774_821_600, 1_774_908_000_i64];
        let slot = |start_s: i64| {
            let first = kind.containing(EpochMillis::new(start_s * 1_000).unwrap());
            assert_eq!(first.start_s(), start_s);
            Slot { first, windows: 1, parts: BTreeMap::new() }
        };
        let labels = labels(&starts.map(slot), 10);
        let labels: Vec<_> =
            labels.iter().map(|l| (l.upper.as_str(), l.lower.as_deref())).collect();
        assert_eq!(
            labels,
            [("Mar 28", Some("2026")), ("Mar 29", None), ("Mar 30", None), ("Mar 31", None)]
        );
    }

    #[test]
    fn numbers_are_short() {
        for (milli, shown) in [
            (0, "0"),
            (500, "0.5"),
            (20_000, "20"),
            (1_500_000, "1.5k"),
            (200_000_000, "200k"),
            (3_000_000_000, "3M"),
            (-2_000_000, "-2k"),
        ] {
            assert_eq!(in_thousandths(milli), shown);
        }
    }
}
