//! Compares windows with the counters of the buckets, through the records in between.
//!
//! The records that the stream holds of a bucket lead from one value of its counters to the one in
//! the table; their windows must hold their amounts. A window that began before the first of them
//! may hold more, never less.

use std::collections::BTreeMap;

use sluicegate::dynamo::DynamoTable;
use sluicegate::dynamo::{TableSetupError, stream_arn};
use sluicegate::error::ItemError;
use sluicegate::store::{Consistency, Table};
use sluicegate::types::{CompositeBucket, EpochMillis, WindowKind, WindowSpan};
use sluicegate::{Clock as _, EntityId, Resource, SystemClock};
use sluicegate_core::keys::ItemKey;
use sluicegate_core::{Window, WindowKinds};
use sluicegate_local::poller::{Poller, Settings, StreamSource};
use sluicegate_processor::chain;

use super::findings::{Figures, Findings};
use super::records::{Change, Collector, Counters, History};
use crate::connection::Connection;
use crate::error::CliError;
use crate::usage::windows::read;
use crate::whose::Whose;

const OF: &str = "windows against counters";
/// A record is counted by then, in milliseconds: Lambda gathers a batch for five minutes at most.
const COUNTED_WITHIN_MS: i64 = 6 * 60_000;

pub(super) async fn check(
    connection: &Connection,
    whose: &Whose,
    kinds: &WindowKinds,
    findings: &mut Findings,
) -> Result<(), CliError> {
    let arn = match stream_arn(&connection.client(), connection.table()).await {
        Ok(arn) => arn,
        Err(TableSetupError::NoStream { .. }) => {
            findings.unchecked(OF, "the table has no stream");
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    let source = StreamSource::new(connection.streams(), arn);
    let collector = Collector::new(whose);
    let drained = Poller::new(source, &collector, Settings::default()).drain().await;
    drained.map_err(|error| {
        CliError::Store(format!(
            "the stream cannot be read: {}; allow dynamodb:GetRecords on it",
            chain(&error)
        ))
    })?;
    let found = collector.into_found();
    if found.is_empty() {
        findings.unchecked(OF, format!("the stream holds no record of {whose} any more"));
    }
    for ((entity, resource), history) in found {
        check_bucket(connection, &entity, &resource, history, kinds, findings).await?;
    }
    Ok(())
}

async fn check_bucket(
    connection: &Connection,
    entity: &EntityId,
    resource: &Resource,
    history: History,
    kinds: &WindowKinds,
    findings: &mut Findings,
) -> Result<(), CliError> {
    let name = format!("{entity} on {resource}");
    let changes = match history {
        History::Changes(changes) => changes,
        History::Malformed(why) => {
            findings.unchecked(name, format!("a record cannot be counted: {why}"));
            return Ok(());
        }
    };
    let counters = match counters(connection, entity, resource).await? {
        Ok(counters) => counters,
        Err(broken) => {
            findings.unchecked(name, format!("the bucket is broken: {broken}"));
            return Ok(());
        }
    };
    if !lead_up(&changes, counters.as_ref()) {
        let why =
            "the stream does not have all records up to the counters yet, or any more; try again";
        findings.unchecked(name, why);
        return Ok(());
    }
    let mut is_counted = false;
    for kind in kinds.iter() {
        let held = held(connection, entity, resource, kind, &changes).await?;
        is_counted |= !held.is_empty();
        compare(&name, kind, &changes, &held, findings);
    }
    for kind in [WindowKind::Hour, WindowKind::DAY] {
        is_counted |= !held(connection, entity, resource, kind, &changes).await?.is_empty();
    }
    if !is_counted {
        not_counted(&name, &changes, SystemClock.now(), findings);
    }
    Ok(())
}

/// Notes that no window counts the changes.
fn not_counted(name: &str, changes: &[Change], now: EpochMillis, findings: &mut Findings) {
    let times = changes.iter().filter_map(|change| Some(change.counts.as_ref()?.0));
    match times.min() {
        Some(first) if now.get() - first.get() > COUNTED_WITHIN_MS => findings.differs(
            name,
            "no window counts its records in the stream: does the processor run, and which kinds \
             does it count?",
        ),
        Some(_) => findings.unchecked(name, "its records are new and may be counted in a moment"),
        None => {}
    }
}

/// The current counters of a bucket; none: the bucket does not exist.
async fn counters(
    connection: &Connection,
    entity: &EntityId,
    resource: &Resource,
) -> Result<Result<Option<Counters>, ItemError>, CliError> {
    let table = DynamoTable::new(&connection.client(), connection.table());
    let keys = [ItemKey::Bucket(entity.clone(), resource.clone())];
    let found = table.read(&keys, Consistency::Strong).await?;
    let Some(item) = found.items.into_iter().next().flatten() else { return Ok(Ok(None)) };
    let of = |bucket: CompositeBucket| {
        let limits = bucket.limits.into_iter();
        limits.map(|(limit, bucket)| (limit, bucket.consumed.get())).collect()
    };
    Ok(CompositeBucket::from_item(&item).map(|bucket| bucket.map(of)))
}

/// True if each change begins where the one before it ended, and the last ends at the counters.
fn lead_up(changes: &[Change], counters: Option<&Counters>) -> bool {
    let is_gapless = changes.windows(2).all(|pair| pair[0].after == pair[1].before);
    is_gapless && changes.last().is_some_and(|last| last.after.as_ref() == counters)
}

/// The windows of one kind that count the changes.
async fn held(
    connection: &Connection,
    entity: &EntityId,
    resource: &Resource,
    kind: WindowKind,
    changes: &[Change],
) -> Result<BTreeMap<Window, Figures>, CliError> {
    let times = || changes.iter().filter_map(|change| Some(change.counts.as_ref()?.0));
    let (Some(first), Some(last)) = (times().min(), times().max()) else {
        return Ok(BTreeMap::new());
    };
    let instant = |seconds: i64| EpochMillis::new(seconds * 1_000).unwrap_or(EpochMillis::MAX);
    let starts = instant(kind.containing(first).start_s())..instant(kind.containing(last).end_s());
    let whose = Whose::Bucket(entity.clone(), resource.clone());
    // Broken ones were reported with the hours and days; here they are missing.
    let windows = read(connection, &whose, &WindowSpan { kind, starts }).await?.items;
    Ok(windows.iter().map(|usage| (usage.window, usage.into())).collect())
}

fn compare(
    name: &str,
    kind: WindowKind,
    changes: &[Change],
    held: &BTreeMap<Window, Figures>,
    findings: &mut Findings,
) {
    // A kind that is not counted is not missing.
    if held.is_empty() {
        return;
    }
    let mut expected: BTreeMap<Window, Figures> = BTreeMap::new();
    for (at, figures) in changes.iter().filter_map(|change| change.counts.as_ref()) {
        expected.entry(kind.containing(*at)).or_default().add(figures);
    }
    let began_before = expected.keys().next().copied();
    for (window, expected) in &expected {
        let name = format!("{name}, {kind} {}", window.start_text());
        let Some(held) = held.get(window) else {
            let what = "the window is missing or cannot be read; if this kind is no longer \
                counted, leave it out of --windows";
            findings.differs(name, what);
            continue;
        };
        let differences = held.differences(expected);
        if differences.is_empty() {
            findings.agree += 1;
        } else if Some(*window) == began_before && held.events > expected.events {
            findings.unchecked(name, "it began before the first record that the stream still has");
        } else {
            let differences = differences.join(", ");
            findings
                .differs(name, format!("the window and the stream's records have {differences}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate::types::LimitName;

    const HOUR_MS: i64 = 3_600_000;

    fn rpm() -> LimitName {
        LimitName::new("rpm").unwrap()
    }

    /// Changes of the counter at these hours.
    fn changes(from: Option<i128>, steps: &[(i64, i128)]) -> Vec<Change> {
        let mut counter = from;
        let mut changes = Vec::new();
        for (hour, milli) in steps {
            let before = counter.map(|counter| [(rpm(), counter)].into());
            counter = Some(counter.unwrap_or(0) + milli);
            let figures = Figures { consumed_milli: [(rpm(), *milli)].into(), events: 1 };
            changes.push(Change {
                before,
                after: counter.map(|counter| [(rpm(), counter)].into()),
                counts: Some((EpochMillis::new(hour * HOUR_MS).unwrap(), figures)),
            });
        }
        changes
    }

    #[test]
    fn changes_without_gaps_lead_up_to_the_counter() {
        let mut changes = changes(Some(7), &[(0, 5), (1, 6), (1, -2)]);
        let counters = |milli| Counters::from([(rpm(), milli)]);
        assert!(lead_up(&changes, Some(&counters(16))));
        assert!(!lead_up(&changes, Some(&counters(17))));
        assert!(!lead_up(&changes, None));
        changes.remove(1);
        assert!(!lead_up(&changes, Some(&counters(16))));
    }

    #[test]
    fn records_that_no_window_counts_differ_when_they_are_old() {
        let changes = changes(None, &[(5, 5), (6, 6)]);
        let found = |now_ms: i64, changes: &[Change]| {
            let (mut findings, now) = (Findings::default(), EpochMillis::new(now_ms).unwrap());
            not_counted("u", changes, now, &mut findings);
            (findings.differ.len(), findings.unchecked.len())
        };
        assert_eq!(found(5 * HOUR_MS + COUNTED_WITHIN_MS, &changes), (0, 1));
        assert_eq!(found(5 * HOUR_MS + COUNTED_WITHIN_MS + 1, &changes), (1, 0));
        assert_eq!(found(9 * HOUR_MS, &[]), (0, 0), "nothing is to be counted");
    }

    #[test]
    fn windows_hold_what_the_records_say() {
        let changes = changes(None, &[(5, 5), (5, 6), (6, 7)]);
        let compared = |held: &[(i64, i128, u64)]| {
            let held = held.iter().map(|(hour, milli, events)| {
                let at = EpochMillis::new(hour * HOUR_MS).unwrap();
                let consumed_milli = [(rpm(), *milli)].into();
                (WindowKind::Hour.containing(at), Figures { consumed_milli, events: *events })
            });
            let mut findings = Findings::default();
            compare("u", WindowKind::Hour, &changes, &held.collect(), &mut findings);
            (findings.agree, findings.differ.len(), findings.unchecked.len())
        };
        assert_eq!(compared(&[(5, 11, 2), (6, 7, 1)]), (2, 0, 0));
        assert_eq!(compared(&[(5, 111, 9), (6, 7, 1)]), (1, 0, 1), "it began before");
        assert_eq!(compared(&[(5, 5, 1), (6, 7, 1)]), (1, 1, 0), "it misses a record");
        assert_eq!(compared(&[(5, 11, 2), (6, 14, 2)]), (1, 1, 0), "counted twice");
        assert_eq!(compared(&[(5, 11, 2)]), (1, 1, 0), "a window is missing");
        assert_eq!(compared(&[(5, 12, 2), (6, 7, 1)]), (1, 1, 0), "a wrong sum");
        assert_eq!(compared(&[]), (0, 0, 0), "hours are not counted");
    }
}
