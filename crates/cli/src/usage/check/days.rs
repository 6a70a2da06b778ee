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

type Bucket = (EntityId, Resource);

/// The hours and the days of the same time, as they were read one after the other.
struct Read {
    hours: Vec<UsageWindow>,
    days: Vec<UsageWindow>,
    broken: usize,
}

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
    let starts = first.start()..last.next().map_or(EpochMillis::MAX, Window::start);
    let hours = WindowSpan { kind: WindowKind::Hour, starts };
    let read = async |whose: &Whose| {
        let hours = read(connection, whose, &hours).await?;
        let days = read(connection, whose, days).await?;
        let broken = hours.broken + days.broken;
        Ok(Read { hours: hours.items, days: days.items, broken })
    };
    check_read(read, whose, SystemClock.now().get() / 1_000, findings).await
}

async fn check_read(
    read: impl AsyncFn(&Whose) -> Result<Read, CliError>,
    whose: &Whose,
    now_s: i64,
    findings: &mut Findings,
) -> Result<(), CliError> {
    let all = read(whose).await?;
    findings.broken(all.broken);
    let nothing = match (all.hours.is_empty(), all.days.is_empty()) {
        (true, true) => Some("there is no usage between --from and --to"),
        (true, false) => Some("no hours are kept, or they have expired"),
        (false, true) => Some("no days are kept"),
        (false, false) => None,
    };
    if let Some(why) = nothing {
        findings.unchecked("hours against days", why);
        return Ok(());
    }
    for ((entity, resource), mut found) in compare(&all, now_s) {
        if !found.differ.is_empty() {
            // Records may have been counted while the windows of all buckets were read.
            let bucket = Whose::Bucket(entity, resource);
            let alone = compare(&read(&bucket).await?, now_s).into_values().next();
            found = alone.unwrap_or(found);
        }
        findings.append(found);
    }
    Ok(())
}

/// The findings of each bucket.
fn compare(Read { hours, days, .. }: &Read, now_s: i64) -> BTreeMap<Bucket, Findings> {
    let bucket = |usage: &UsageWindow| (usage.entity.clone(), usage.resource.clone());
    let mut sums: BTreeMap<(Bucket, Window), Figures> = BTreeMap::new();
    for usage in hours {
        let day = WindowKind::DAY.containing(usage.window.start());
        sums.entry((bucket(usage), day)).or_default().add(&usage.into());
    }
    let days: BTreeMap<(Bucket, Window), &UsageWindow> =
        days.iter().map(|usage| ((bucket(usage), usage.window), usage)).collect();
    let mut of_buckets: BTreeMap<Bucket, Findings> = BTreeMap::new();
    for day in sums.keys().chain(days.keys()).collect::<BTreeSet<_>>() {
        let (bucket, window) = day;
        let findings = of_buckets.entry(bucket.clone()).or_default();
        let name = format!("{} on {}, day {}", bucket.0, bucket.1, window.start_text());
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
    of_buckets
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
    use futures_util::FutureExt as _;
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

    fn read(hours: &[(i64, i128)], days: &[(i64, i128)]) -> Read {
        let all = |kind, of: &[(i64, i128)]| -> Vec<UsageWindow> {
            of.iter().map(|(hour, milli)| usage(kind, *hour, *milli)).collect()
        };
        let (hours, mut days) = (all(WindowKind::Hour, hours), all(WindowKind::DAY, days));
        // Each hour is one record.
        for day in &mut days {
            let of_day = hours.iter().filter(|hour| {
                (day.window.start_s()..day.window.end_s()).contains(&hour.window.start_s())
            });
            day.events = of_day.count().max(1) as u64;
        }
        Read { hours, days, broken: 0 }
    }

    /// The findings of a check that reads everything, and of one that reads `alone` of the bucket.
    fn checked(all: &Read, alone: &Read, now_s: i64) -> (usize, usize, usize) {
        let bucket = Whose::Bucket(EntityId::new("u").unwrap(), Resource::new("r").unwrap());
        let read = async |whose: &Whose| {
            let Read { hours, days, broken } = if *whose == bucket { alone } else { all };
            Ok(Read { hours: hours.clone(), days: days.clone(), broken: *broken })
        };
        let whose = Whose::Resource(Resource::new("r").unwrap());
        let mut findings = Findings::default();
        check_read(read, &whose, now_s, &mut findings).now_or_never().unwrap().unwrap();
        (findings.agree, findings.differ.len(), findings.unchecked.len())
    }

    fn compared(hours: &[(i64, i128)], days: &[(i64, i128)], now_s: i64) -> (usize, usize, usize) {
        checked(&read(hours, days), &read(hours, days), now_s)
    }

    #[test]
    fn a_record_that_was_counted_between_two_reads_is_no_difference() {
        let now_s = DAY_S + 100 * HOUR_S;
        let (before, after) = (read(&[(0, 5)], &[(0, 12)]), read(&[(0, 12)], &[(0, 12)]));
        assert_eq!(checked(&before, &after, now_s), (1, 0, 0));
        assert_eq!(checked(&before, &before, now_s), (0, 1, 0));
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
