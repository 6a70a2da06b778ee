//! Bringing the records of each item into the order in which its stream had them.
//!
//! A stream delivers the records of an item in order, and exact counting relies on it: a record
//! behind a later one cannot be told from a duplicate. Files may be given in any order, though.

use std::collections::{HashMap, HashSet};

use serde_json::value::RawValue;
use sluicegate_core::{SequenceNumber, StreamLabel, StreamRecord};

type Item = (StreamLabel, String, String);

/// The records of one item: where they stand and their positions.
#[derive(Default)]
struct Places {
    at: Vec<(usize, SequenceNumber)>,
    newest: Option<SequenceNumber>,
    seen: HashSet<SequenceNumber>,
    late: usize,
}

/// Sorts the records of every item that is out of order among the places they stand at; returns how
/// many came late. Duplicates are not late; records without item or position stay where they are.
pub(super) fn restore(records: &mut [Box<RawValue>]) -> usize {
    let mut items: HashMap<Item, Places> = HashMap::new();
    for (at, raw) in records.iter().enumerate() {
        let Ok(record) = StreamRecord::from_json(raw.get()) else { continue };
        let (Ok(stream), Some(sequence)) = (record.stream(), record.sequence()) else { continue };
        let (pk, sk) = record.keys();
        items.entry((stream, pk.to_owned(), sk.to_owned())).or_default().add(at, sequence);
    }
    let late: Vec<Places> = items.into_values().filter(|places| places.late > 0).collect();
    for places in &late {
        let mut sorted = places.at.clone();
        sorted.sort_by_key(|(_, sequence)| *sequence);
        let moved: Vec<_> = sorted.iter().map(|(at, _)| records[*at].clone()).collect();
        for ((to, _), record) in places.at.iter().zip(moved) {
            records[*to] = record;
        }
    }
    late.iter().map(|places| places.late).sum()
}

impl Places {
    fn add(&mut self, at: usize, sequence: SequenceNumber) {
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

    fn record(item: &str, sequence: u32) -> Box<RawValue> {
        let json = format!(
            r##"{{"eventName":"REMOVE","dynamodb":{{"SequenceNumber":"{sequence}","Keys":
            {{"PK":{{"S":"{item}"}},"SK":{{"S":"x"}}}}}}}}"##
        );
        RawValue::from_string(json).unwrap()
    }

    fn restored(order: &[(&str, u32)]) -> (usize, Vec<(String, String)>) {
        let mut records: Vec<_> = order.iter().map(|(item, n)| record(item, *n)).collect();
        let late = restore(&mut records);
        let shown = records.iter().map(|raw| {
            let record = StreamRecord::from_json(raw.get()).unwrap();
            (record.keys().0.to_owned(), record.sequence().unwrap().to_string())
        });
        (late, shown.collect())
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
    fn what_is_in_order_or_comes_again_stays() {
        let given = [("a", 1), ("a", 2), ("a", 1), ("b", 1), ("a", 3), ("a", 2)];
        assert_eq!(restored(&given), (0, named(&given)));
    }
}
