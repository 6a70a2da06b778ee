//! Compares hours with days: both count the same records, by different writes.

use std::collections::{BTreeMap, BTreeSet};

use sluicegate::types::{EpochMillis, UsageWindow, WindowKind, WindowSpan};
use sluicegate::{Clock, EntityId, Resource, SystemClock};
use sluicegate_core::Window;

use super::findings::{Figures, Findings};
use crate::connection::Connection;
use crate::error::CliError;
use crate::usage::windows::read;
use crate::whose::Whose;

const HOUR_S: i64 = 3_600;

/// One day of one bucket.
type Day = (EntityId, Resource, Window);

pub(super) async fn check(
    connection: &Connection,
    whose: &Whose,
    days: &WindowSpan,
    findings: &mut Findings,
) -> Result<(), CliError> {
    let Some((first, last)) = days.ends() else {
        findings.unchecked("hours against days", "no day starts between --from and --to");
        return Ok(());
    };
    let instant = |seconds: i64| EpochMillis::new(seconds * 1_000).unwrap_or(EpochMillis::MAX);
    let starts = instant(first.start_s())..instant(last.end_s());
    let hours = read(connection, whose, &WindowSpan { kind: WindowKind::Hour, starts }).await?;
    let days = read(connection, whose, days).await?;
    findings.broken(hours.broken + days.broken);
    compare(&hours.items, &days.items, SystemClock.now().get() / 1_000, findings);
    Ok(())
}

fn compare(hours: &[UsageWindow], days: &[UsageWindow], now_s: i64, findings: &mut Findings) {
    let of = "hours against days";
    match (hours.is_empty(), days.is_empty()) {
        (true, true) => return findings.unchecked(of, "there is no usage between --from and --to"),
        (true, false) => return findings.unchecked(of, "no hours are kept, or they have expired"),
        (false, true) => return findings.unchecked(of, "no days are kept"),
        (false, false) => {}
    }
    let mut sums: BTreeMap<Day, Figures> = BTreeMap::new();
    for usage in hours {
        let start = EpochMillis::new(usage.window.start_s() * 1_000).unwrap_or(EpochMillis::MIN);
        let day = WindowKind::DAY.containing(start);
        let day = (usage.entity.clone(), usage.resource.clone(), day);
        sums.entry(day).or_default().add(&usage.into());
    }
    let days: BTreeMap<Day, &UsageWindow> = days
        .iter()
        .map(|usage| ((usage.entity.clone(), usage.resource.clone(), usage.window), usage))
        .collect();
    for day in sums.keys().chain(days.keys()).collect::<BTreeSet<_>>() {
        let (entity, resource, window) = day;
        let name = format!("{entity} on {resource}, day {}", window.start_text());
        let of_day = days.get(day).map(|usage| Figures::from(*usage)).unwrap_or_default();
        let of_hours = sums.get(day).cloned().unwrap_or_default();
        let differences = of_day.differences(&of_hours);
        if differences.is_empty() {
            findings.agree += 1;
        } else if days.get(day).is_some_and(|usage| may_miss_hours(usage, now_s)) {
            findings.unchecked(name, "its first hours may have expired");
        } else {
            let differences = differences.join(", ");
            findings.differs(name, format!("the day and its hours have {differences}"));
        }
    }
}

/// True if the first hour of a day may be deleted by now: windows are kept equally long after their
/// ends, so it is deleted before the day.
fn may_miss_hours(day: &UsageWindow, now_s: i64) -> bool {
    day.expires_at_s.is_some_and(|expires_at_s| {
        let kept_s = expires_at_s - day.window.end_s();
        now_s >= day.window.start_s() + HOUR_S + kept_s
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate::types::LimitName;

    const DAY_S: i64 = 1_769_558_400;
    const KEPT_S: i64 = 90 * 86_400;

    fn usage(kind: WindowKind, hour: i64, milli: i128) -> UsageWindow {
        let window = kind.containing(EpochMillis::new((DAY_S + hour * HOUR_S) * 1_000).unwrap());
        UsageWindow {
            entity: EntityId::new("u").unwrap(),
            resource: Resource::new("r").unwrap(),
            window,
            consumed_milli: [(LimitName::new("rpm").unwrap(), milli)].into(),
            events: 1,
            expires_at_s: Some(window.end_s() + KEPT_S),
        }
    }

    fn compared(hours: &[(i64, i128)], days: &[(i64, i128)], now_s: i64) -> (usize, usize, usize) {
        let all = |kind, of: &[(i64, i128)]| -> Vec<UsageWindow> {
            of.iter().map(|(hour, milli)| usage(kind, *hour, *milli)).collect()
        };
        let mut findings = Findings::default();
        let (hours, mut days) = (all(WindowKind::Hour, hours), all(WindowKind::DAY, days));
        // Each hour is one record.
        for day in &mut days {
            let of_day = hours.iter().filter(|hour| {
                (day.window.start_s()..day.window.end_s()).contains(&hour.window.start_s())
            });
            day.events = of_day.count().max(1) as u64;
        }
        compare(&hours, &days, now_s, &mut findings);
        (findings.agree, findings.differ.len(), findings.unchecked.len())
    }

    #[test]
    fn days_are_the_sums_of_their_hours() {
        let now_s = DAY_S + 100 * HOUR_S;
        assert_eq!(compared(&[(0, 5), (23, 7), (24, 1)], &[(0, 12), (24, 1)], now_s), (2, 0, 0));
        assert_eq!(compared(&[(0, 5), (23, 7), (24, 1)], &[(0, 13), (24, 1)], now_s), (1, 1, 0));
        assert_eq!(compared(&[(0, 5), (24, 1)], &[(0, 5)], now_s), (1, 1, 0), "a day is missing");
        assert_eq!(compared(&[(0, 5)], &[(0, 5), (24, 1)], now_s), (1, 1, 0), "hours are missing");
    }

    #[test]
    fn days_that_are_not_kept_or_expired_are_not_checked() {
        let now_s = DAY_S + 100 * HOUR_S;
        assert_eq!(compared(&[], &[], now_s), (0, 0, 1));
        assert_eq!(compared(&[(0, 5)], &[], now_s), (0, 0, 1));
        assert_eq!(compared(&[], &[(0, 5)], now_s), (0, 0, 1));
        let (before, after) = (DAY_S + HOUR_S + KEPT_S - 1, DAY_S + HOUR_S + KEPT_S);
        assert_eq!(compared(&[(1, 5)], &[(0, 6)], before), (0, 1, 0));
        assert_eq!(compared(&[(1, 5)], &[(0, 6)], after), (0, 0, 1));
    }
}
