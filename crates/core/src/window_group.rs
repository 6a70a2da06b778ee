//! Groups the records of a batch by usage window, and adds up the deltas of each group.
//!
//! A group ([`WindowGroup`]) has the records of one bucket item and one stream that count in one
//! window; each shard of a bucket is an item. It becomes one update of that window, or several if
//! its records name more limits than one update can.
//!
//! An update carries the positions of its first and its last record. The table applies it only
//! while the window's watermark is absent or below the first position. Otherwise the table returns
//! the watermark, and [`WindowGroup::next_update`] gives the update of the records after it. The
//! condition and the addition are one write, so a record is counted once, however often and in
//! whatever batches it is delivered.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::keys::{self, ItemKey};
use crate::{
    EntityId, LimitName, RecordDeltas, Resource, SequenceNumber, StreamLabel, Window, WindowKinds,
};

/// The maximum number of limits in one update, unless a single record names more. An expression of
/// 4 KB holds 326 of them, and DynamoDB documents a maximum of 300 operators.
const LIMITS_PER_UPDATE: usize = 200;

/// The records of a batch, grouped by usage window.
#[derive(Debug)]
pub struct GroupedBatch<'a> {
    /// One group for each stream, shard, entity, resource and window, in the order of the first
    /// record of each bucket.
    pub groups: Vec<WindowGroup<'a>>,
    /// Copies of records that the batch contained already.
    pub duplicates: usize,
}

/// A group: the records of one bucket item and one stream that count in one window.
#[derive(Debug, Clone)]
pub struct WindowGroup<'a> {
    entity: EntityId,
    resource: Resource,
    window: Window,
    stream: StreamLabel,
    shard: Option<u32>,
    /// At least one, in the order of their positions, each position once.
    records: Vec<Arc<RecordDeltas<'a>>>,
}

/// One update of a window. It applies only while the window's watermark is absent or below `first`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WindowUpdate {
    /// Position of its oldest record.
    pub first: SequenceNumber,
    /// Position of its newest record: the new watermark.
    pub last: SequenceNumber,
    /// The number of its records.
    pub record_count: usize,
    /// Millitokens by limit, sorted by limit; a net of zero is included.
    pub consumed_milli: Vec<(LimitName, i128)>,
}

/// Groups the records of a batch by window, for each of the given kinds of windows. A record is in
/// one group of each kind.
#[must_use]
pub fn group_by_window<'a>(
    records: Vec<RecordDeltas<'a>>,
    kinds: &WindowKinds,
) -> GroupedBatch<'a> {
    // One list for each bucket item and stream.
    let mut records_of_buckets: Vec<Vec<Arc<RecordDeltas<'a>>>> = Vec::new();
    let mut index: HashMap<(EntityId, Resource, Option<u32>, StreamLabel), usize> = HashMap::new();
    for record in records {
        let (entity, resource) = (record.entity.clone(), record.resource.clone());
        let key = (entity, resource, record.shard, record.stream.clone());
        let at = *index.entry(key).or_insert(records_of_buckets.len());
        if at == records_of_buckets.len() {
            records_of_buckets.push(Vec::new());
        }
        records_of_buckets[at].push(Arc::new(record));
    }
    let mut grouped = GroupedBatch { groups: Vec::new(), duplicates: 0 };
    for mut records in records_of_buckets {
        let delivered = records.len();
        records.sort_by_key(|record| record.sequence);
        records.dedup_by_key(|record| record.sequence);
        grouped.duplicates += delivered - records.len();
        grouped.groups.extend(groups_of_bucket(&records, kinds));
    }
    grouped
}

/// Groups the records of one bucket's item and one stream, which are in the order of their
/// positions.
fn groups_of_bucket<'a>(
    records: &[Arc<RecordDeltas<'a>>],
    kinds: &WindowKinds,
) -> impl Iterator<Item = WindowGroup<'a>> {
    let mut windows: BTreeMap<Window, Vec<Arc<RecordDeltas<'a>>>> = BTreeMap::new();
    // The outer loop goes over the kinds. Otherwise two calendars could displace each other in the
    // cache of `Calendar::period` at every record.
    for kind in kinds.iter() {
        for record in records {
            windows.entry(kind.containing(record.at)).or_default().push(Arc::clone(record));
        }
    }
    windows.into_iter().filter_map(|(window, records)| {
        let record = records.first()?;
        Some(WindowGroup {
            entity: record.entity.clone(),
            resource: record.resource.clone(),
            stream: record.stream.clone(),
            shard: record.shard,
            window,
            records,
        })
    })
}

impl<'a> WindowGroup<'a> {
    /// The usage item that the records count in.
    #[must_use]
    pub fn key(&self) -> ItemKey {
        ItemKey::Usage(self.entity.clone(), self.resource.clone(), self.window)
    }

    /// The window.
    #[must_use]
    pub const fn window(&self) -> Window {
        self.window
    }

    /// The attribute of the window that holds the watermark of these records: one for each stream
    /// and, of a bucket in shards, for each shard.
    #[must_use]
    pub fn watermark_attribute(&self) -> String {
        keys::watermark_attribute(&self.stream, self.shard)
    }

    /// The records, oldest first.
    #[must_use]
    pub fn records(&self) -> &[Arc<RecordDeltas<'a>>] {
        &self.records
    }

    /// The records above this watermark. A window is done with the others: it counted them, or they
    /// went to quarantine.
    #[must_use]
    pub fn pending(&self, watermark: Option<&SequenceNumber>) -> &[Arc<RecordDeltas<'a>>] {
        let done =
            watermark.map_or(0, |wm| self.records.partition_point(|record| record.sequence <= *wm));
        &self.records[done..]
    }

    /// The next update for a window with this watermark; `None` if no record is above it. If the
    /// records name more limits than fit one update, it adds up the first records only. The next
    /// update then begins after the [`WindowUpdate::last`] of this one.
    #[must_use]
    pub fn next_update(&self, watermark: Option<&SequenceNumber>) -> Option<WindowUpdate> {
        WindowUpdate::of(self.pending(watermark))
    }
}

impl WindowUpdate {
    /// Adds up records of one window in the order of their positions; `None` when there are none.
    fn of(records: &[Arc<RecordDeltas<'_>>]) -> Option<Self> {
        let first = records.first()?.sequence;
        let mut update = Self { first, last: first, record_count: 0, consumed_milli: Vec::new() };
        for record in records {
            if update.record_count > 0 && !update.has_room_for(record) {
                break;
            }
            update.add(record);
        }
        Some(update)
    }

    fn has_room_for(&self, record: &RecordDeltas<'_>) -> bool {
        let named = self.consumed_milli.len();
        // The exact count, of names that are new, is needed near `LIMITS_PER_UPDATE` only.
        named + record.deltas.len() <= LIMITS_PER_UPDATE || {
            let is_new =
                |limit| self.consumed_milli.binary_search_by(|(l, _)| l.cmp(limit)).is_err();
            named + record.deltas.iter().filter(|delta| is_new(&delta.limit)).count()
                <= LIMITS_PER_UPDATE
        }
    }

    fn add(&mut self, record: &RecordDeltas<'_>) {
        self.last = record.sequence;
        self.record_count += 1;
        for delta in &record.deltas {
            match self.consumed_milli.binary_search_by(|(limit, _)| limit.cmp(&delta.limit)) {
                Ok(at) => self.consumed_milli[at].1 += delta.consumed_milli,
                Err(at) => {
                    self.consumed_milli.insert(at, (delta.limit.clone(), delta.consumed_milli));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Delta, WindowKind, fixtures};

    fn record(
        entity: &str,
        sequence: u64,
        at: i64,
        deltas: &[(&str, i128)],
    ) -> RecordDeltas<'static> {
        RecordDeltas {
            json: "",
            stream: StreamLabel::default(),
            sequence: SequenceNumber::parse(&format!("{sequence}")).unwrap(),
            entity: EntityId::new(entity).unwrap(),
            resource: Resource::new("gpt-4").unwrap(),
            shard: None,
            at: fixtures::at(at),
            deltas: deltas
                .iter()
                .map(|&(limit, consumed_milli)| Delta {
                    limit: fixtures::name(limit),
                    consumed_milli,
                })
                .collect(),
        }
    }

    fn sequence(n: u64) -> SequenceNumber {
        SequenceNumber::parse(&n.to_string()).unwrap()
    }

    #[test]
    fn one_group_per_window_in_order_without_duplicates() {
        let hour = 3_600_000;
        let batch = vec![
            record("a", 3, hour, &[("rpm", 1_000)]),
            record("a", 1, 0, &[("rpm", 1_000), ("tpm", 70)]),
            record("b", 2, 0, &[("rpm", 5)]),
            record("a", 3, hour, &[("rpm", 1_000)]),
            record("a", 2, 1, &[("tpm", -70)]),
        ];
        let grouped = group_by_window(batch, &WindowKinds::default());
        assert_eq!(grouped.duplicates, 1);
        assert_eq!(grouped.groups.len(), 5);
        let first = grouped.groups[0].next_update(None).unwrap();
        assert_eq!((first.first, first.last, first.record_count), (sequence(1), sequence(2), 2));
        let named: Vec<_> =
            first.consumed_milli.iter().map(|(limit, n)| (limit.as_str(), *n)).collect();
        assert_eq!(named, [("rpm", 1_000), ("tpm", 0)], "a net of zero is named");
        assert_eq!(grouped.groups[2].window().kind(), WindowKind::DAY);
        assert_eq!(grouped.groups[2].next_update(None).unwrap().record_count, 3);
    }

    #[test]
    fn records_count_in_the_period_of_their_calendar() {
        // The 15th begins in Berlin at 2026-01-14T23:00:00Z.
        let midnight = 1_768_431_600_000;
        let after_ms = [(0, -2), (1, -1), (2, 0), (3, 1)];
        let batch = after_ms.map(|(n, ms)| record("a", n, midnight + ms, &[("rpm", 1)])).into();
        let grouped = group_by_window(batch, &"day,month@15/Europe/Berlin".parse().unwrap());
        let counted = |group: &WindowGroup<'_>| (group.key().sk(), group.records().len());
        let counted: Vec<_> = grouped.groups.iter().map(counted).collect();
        let key = |window: &str| format!("#USAGE#gpt-4#{window}");
        assert_eq!(
            counted,
            [
                (key("day#2026-01-14T00:00:00Z"), 4),
                (key("month@15/Europe/Berlin#2025-12-14T23:00:00Z"), 2),
                (key("month@15/Europe/Berlin#2026-01-14T23:00:00Z"), 2),
            ]
        );
    }

    #[test]
    fn a_watermark_drops_what_is_at_or_below_it() {
        let batch = (1..=4).map(|n| record("a", n * 10, 0, &[("rpm", 1)])).collect();
        let grouped = group_by_window(batch, &WindowKind::DAY.into());
        let group = &grouped.groups[0];
        let rest = group.next_update(Some(&sequence(20))).unwrap();
        assert_eq!((rest.first, rest.record_count), (sequence(30), 2));
        assert_eq!(group.next_update(Some(&sequence(25))), Some(rest));
        assert_eq!(group.next_update(Some(&sequence(40))), None);
        assert_eq!(group.next_update(None).unwrap().record_count, 4);
    }

    #[test]
    fn more_limits_than_an_expression_holds_are_several_updates() {
        let names: Vec<String> = (0..450).map(|n| format!("limit-{n}")).collect();
        let batch =
            (0..900).map(|n| record("a", n, 0, &[(&names[usize::try_from(n).unwrap() % 450], 1)]));
        let grouped = group_by_window(batch.collect(), &WindowKind::Hour.into());
        let (mut watermark, mut records, mut updates) = (None, 0, 0);
        while let Some(update) = grouped.groups[0].next_update(watermark.as_ref()) {
            assert!(update.consumed_milli.len() <= LIMITS_PER_UPDATE);
            records += update.record_count;
            updates += 1;
            watermark = Some(update.last);
        }
        assert_eq!((records, updates), (900, 5));
        // One record is never cut.
        let all: Vec<_> = names.iter().map(|name| (name.as_str(), 1)).collect();
        let grouped = group_by_window(vec![record("a", 1, 0, &all)], &WindowKind::Hour.into());
        assert_eq!(grouped.groups[0].next_update(None).unwrap().consumed_milli.len(), 450);
    }

    #[test]
    fn streams_are_counted_side_by_side() {
        let mut other = record("a", 1, 0, &[("rpm", 1)]);
        other.stream = StreamLabel::from_arn(Some("x/stream/2026")).unwrap();
        let grouped = group_by_window(
            vec![record("a", 1, 0, &[("rpm", 1)]), other],
            &WindowKind::Hour.into(),
        );
        assert_eq!((grouped.groups.len(), grouped.duplicates), (2, 0));
    }

    #[test]
    fn sums_do_not_overflow() {
        let most = 2 * crate::MillitokenSum::MAX.get();
        let batch = (1..=10_000).map(|n| record("a", n, 0, &[("rpm", most)])).collect();
        let grouped = group_by_window(batch, &WindowKind::Hour.into());
        let update = grouped.groups[0].next_update(None).unwrap();
        assert_eq!(update.consumed_milli[0].1, 10_000 * most);
    }
}
