//! Brings the records of each item into the order of its stream.
//!
//! A stream delivers the records of an item in order, and exact counting relies on it: a record
//! behind a later one cannot be told from a duplicate. Files may be given in any order, though.
//! Memory holds 80 bytes for every item, and 80 more for every record of an item that has a record
//! out of order.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::io;

use serde_json::value::RawValue;
use sluicegate_core::{SequenceNumber, StreamRecord};

use super::spool::Spool;

/// The hash of an item's stream and key. Two items with one hash are ordered together, which
/// changes nothing for either.
type Item = u64;

/// The order in which the records of a spool are replayed.
#[derive(Default)]
pub(super) struct Order {
    hasher: RandomState,
    /// The highest position of each item so far.
    newest: HashMap<Item, SequenceNumber>,
    /// Items with a record that stands behind a later one, or comes again.
    suspects: HashSet<Item>,
    /// Places in the file whose records are exchanged: from the record there to its replacement.
    moves: HashMap<u64, u64>,
    moved: usize,
}

/// The records of one item: their places in the file and their positions in the stream.
#[derive(Default)]
struct Places {
    at: Vec<(u64, SequenceNumber)>,
    newest: Option<SequenceNumber>,
    seen: HashSet<SequenceNumber>,
    late: usize,
}

impl Order {
    /// Notes a record as it is read.
    pub(super) fn note(&mut self, record: &str) {
        let Some((item, sequence)) = self.item(record) else { return };
        let newest = self.newest.entry(item).or_insert(sequence);
        if sequence < *newest {
            self.suspects.insert(item);
        }
        *newest = sequence.max(*newest);
    }

    /// Sorts the records of every item that is out of order among their places in the file.
    /// Duplicates are not late; records without item or position stay where they are.
    pub(super) fn restore(&mut self, records: &mut Spool) -> io::Result<()> {
        self.newest = HashMap::new();
        if self.suspects.is_empty() {
            return Ok(());
        }
        let mut items: HashMap<Item, Places> = HashMap::new();
        while let Some((at, record)) = records.next()? {
            match self.item(record.get()) {
                Some((item, sequence)) if self.suspects.contains(&item) => {
                    items.entry(item).or_default().add(at, sequence);
                }
                _ => {}
            }
        }
        records.rewind()?;
        for places in items.into_values().filter(|places| places.late > 0) {
            let mut sorted = places.at.clone();
            sorted.sort_by_key(|(_, sequence)| *sequence);
            let places_taken = places.at.iter().zip(sorted).map(|((to, _), (from, _))| (*to, from));
            self.moves.extend(places_taken.filter(|(to, from)| to != from));
            self.moved += places.late;
        }
        Ok(())
    }

    /// The number of records that came late.
    pub(super) const fn moved(&self) -> usize {
        self.moved
    }

    /// The next record in this order; `None` after the last.
    pub(super) fn next(&self, records: &mut Spool) -> io::Result<Option<Box<RawValue>>> {
        let Some((at, record)) = records.next()? else { return Ok(None) };
        match self.moves.get(&at) {
            Some(from) => records.record(*from).map(Some),
            None => Ok(Some(record)),
        }
    }

    fn item(&self, record: &str) -> Option<(Item, SequenceNumber)> {
        let record = StreamRecord::from_json(record).ok()?;
        let (stream, sequence) = (record.stream().ok()?, record.sequence()?);
        Some((self.hasher.hash_one((stream, record.keys())), sequence))
    }
}

impl Places {
    fn add(&mut self, at: u64, sequence: SequenceNumber) {
        self.at.push((at, sequence));
        if self.seen.insert(sequence) && Some(sequence) < self.newest {
            self.late += 1;
        }
        self.newest = self.newest.max(Some(sequence));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(item: &str, sequence: u32) -> String {
        format!(
            r##"{{"eventName":"REMOVE","dynamodb":{{"SequenceNumber":"{sequence}","Keys":
            {{"PK":{{"S":"{item}"}},"SK":{{"S":"x"}}}}}}}}"##
        )
    }

    fn restored(given: &[(&str, u32)]) -> (usize, Vec<(String, String)>) {
        let (mut records, mut order) = (Spool::new().unwrap(), Order::default());
        for (item, n) in given {
            let record = record(item, *n);
            order.note(&record);
            records.push(&record).unwrap();
        }
        records.rewind().unwrap();
        order.restore(&mut records).unwrap();
        // As often as requested.
        let shown = |records: &mut Spool| -> Vec<(String, String)> {
            let next = || order.next(records).unwrap();
            let shown = std::iter::from_fn(next).map(|raw| {
                let record = StreamRecord::from_json(raw.get()).unwrap();
                (record.keys().0.to_owned(), record.sequence().unwrap().to_string())
            });
            shown.collect()
        };
        let first = shown(&mut records);
        records.rewind().unwrap();
        assert_eq!(shown(&mut records), first);
        (order.moved(), first)
    }

    fn named(order: &[(&str, u32)]) -> Vec<(String, String)> {
        order.iter().map(|(item, n)| ((*item).to_owned(), n.to_string())).collect()
    }

    #[test]
    fn records_of_an_item_change_places_among_themselves() {
        let given = [("a", 3), ("b", 9), ("a", 1), ("a", 2), ("b", 10)];
        let expected = [("a", 1), ("b", 9), ("a", 2), ("a", 3), ("b", 10)];
        assert_eq!(restored(&given), (2, named(&expected)));
    }

    #[test]
    fn records_in_order_or_repeated_stay() {
        let given = [("a", 1), ("a", 2), ("a", 1), ("b", 1), ("a", 3), ("a", 2)];
        assert_eq!(restored(&given), (0, named(&given)));
    }
}
