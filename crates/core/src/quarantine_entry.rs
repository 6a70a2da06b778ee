//! A record in quarantine, as it is read back from the table.

use serde_dynamo::{AttributeValue, Item};

use crate::ItemError;
use crate::item::{find, key_of, number, text_of, wrong_type};
use crate::keys::{self, ItemKey, QuarantineId};

/// A record that was kept instead of counted, for all its windows or for one of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuarantineEntry {
    /// Its identity.
    pub id: QuarantineId,
    /// Its state: open, or resolved and how.
    pub state: QuarantineState,
    /// The reason why it was not counted, as a sentence.
    pub reason: String,
    /// The record as it was delivered. If it was cut, it may not be valid JSON.
    pub record: String,
    /// True if the record was too large for an item and was cut: to the part that metering reads,
    /// or to its beginning if that part is also too large.
    pub is_truncated: bool,
    /// The number of its limits, in the order of their names, that a recount has counted. In an
    /// open entry it is zero, unless a recount of more than 200 limits stopped half-way.
    pub counted_limits: usize,
}

/// The state of a quarantined record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuarantineState {
    /// It waits for a recount, or for a person to give it up.
    Open,
    /// It was counted, or it consumed nothing.
    Done,
    /// A person gave it up.
    Dropped,
}

impl QuarantineState {
    /// The state as it stands in the item.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Open => keys::OPEN,
            Self::Done => keys::DONE,
            Self::Dropped => keys::DROPPED,
        }
    }
}

impl QuarantineEntry {
    /// The key of the item.
    #[must_use]
    pub fn key(&self) -> ItemKey {
        ItemKey::Quarantine(self.id.clone())
    }

    /// Reads an item; `None` when its keys are not those of a quarantine entry.
    ///
    /// # Errors
    /// [`ItemError`] when an attribute is missing or of the wrong type, or the state is unknown.
    pub fn from_item(item: &Item) -> Result<Option<Self>, ItemError> {
        let Some(ItemKey::Quarantine(id)) = key_of(item)? else { return Ok(None) };
        let state = match text_of(item, keys::STATE)? {
            keys::OPEN => QuarantineState::Open,
            keys::DONE => QuarantineState::Done,
            keys::DROPPED => QuarantineState::Dropped,
            _ => {
                return Err(wrong_type(keys::STATE, "open, done or dropped"));
            }
        };
        Ok(Some(Self {
            id,
            state,
            reason: text_of(item, keys::REASON)?.to_owned(),
            record: text_of(item, keys::RECORD)?.to_owned(),
            is_truncated: item.inner().get(keys::TRUNCATED) == Some(&AttributeValue::Bool(true)),
            counted_limits: number(find(item, keys::COUNTED_LIMITS))?.unwrap_or(0),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn item(changed: &[(&str, &str)]) -> Item {
        let mut item: HashMap<String, AttributeValue> = HashMap::new();
        for (name, value) in [
            ("PK", "QUARANTINE#"),
            ("SK", "-#0000000000000000000000000000000000000007#00000000000000ff#hour"),
            ("state", "open"),
            ("reason", "odd"),
            ("record", "{}"),
        ]
        .iter()
        .chain(changed)
        {
            item.insert((*name).to_owned(), AttributeValue::S((*value).to_owned()));
        }
        item.into()
    }

    #[test]
    fn entries_are_read_back() {
        let entry = QuarantineEntry::from_item(&item(&[])).unwrap().unwrap();
        assert_eq!((entry.state, entry.counted_limits), (QuarantineState::Open, 0));
        assert!(entry.id.kind.is_some() && !entry.is_truncated);
        for state in [QuarantineState::Open, QuarantineState::Done, QuarantineState::Dropped] {
            let item = item(&[("state", state.as_str())]);
            assert_eq!(QuarantineEntry::from_item(&item).unwrap().unwrap().state, state);
        }
        assert!(QuarantineEntry::from_item(&item(&[("state", "closed")])).is_err());
        assert!(QuarantineEntry::from_item(&item(&[("counted_limits", "2")])).is_err());
        assert_eq!(QuarantineEntry::from_item(&item(&[("PK", "SYSTEM#")])), Ok(None));
    }
}
