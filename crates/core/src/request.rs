//! The names of a bucket and of a request.

use smol_str::SmolStr;

use crate::{EntityId, Resource};

/// Names one composite bucket.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BucketId {
    /// The entity that is limited.
    pub entity: EntityId,
    /// The resource that is limited.
    pub resource: Resource,
}

impl std::fmt::Display for BucketId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} on {}", self.entity, self.resource)
    }
}

/// Identifies a request from the time it enters a queue until its outcome, so that a write whose
/// answer was lost is recognised in the item that it changed. A write that serves several requests
/// carries the id of one of them, or a new id.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(SmolStr);

impl RequestId {
    /// The number of ids that an item remembers.
    pub const REMEMBERED: usize = 4;

    const ALPHABET: [u8; 64] = *b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    const DIGITS: usize = 10;

    /// The id of 60 random bits (the upper four are not used), spelled as ten characters.
    #[must_use]
    pub fn from_bits(bits: u64) -> Self {
        let digit = |place: usize| {
            let index = usize::try_from((bits >> (6 * place)) & 63).unwrap_or(0);
            char::from(Self::ALPHABET[index])
        };
        Self((0..Self::DIGITS).map(digit).collect())
    }

    /// The 60 bits that the id spells; `None`: it was not made by [`from_bits`](Self::from_bits).
    #[must_use]
    pub fn bits(&self) -> Option<u64> {
        let digit = |byte| Self::ALPHABET.iter().position(|known| *known == byte);
        let add = |bits: u64, byte| Some(bits << 6 | u64::try_from(digit(byte)?).ok()?);
        let is_made = self.0.len() == Self::DIGITS;
        self.0.bytes().rev().try_fold(0, add).filter(|_| is_made)
    }

    /// An id as an item holds it.
    #[must_use]
    pub fn stored(text: &str) -> Self {
        Self(SmolStr::new(text))
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_differ_where_their_bits_do() {
        assert_eq!(RequestId::from_bits(0).as_str(), "AAAAAAAAAA");
        let ids: std::collections::BTreeSet<_> =
            (0..60).map(|n| RequestId::from_bits(1 << n)).collect();
        assert_eq!(ids.len(), 60);
        assert!(ids.iter().all(|id| id.as_str().len() == 10));
    }

    #[test]
    fn bits_are_found_again_where_an_id_is_made_of_some() {
        for bits in [0, 1, 0x0FED_CBA9_8765_4321, (1 << 60) - 1] {
            assert_eq!(RequestId::from_bits(bits).bits(), Some(bits));
        }
        for text in ["", "AAAAAAAAA", "AAAAAAAAAAA", "AAAA AAAAA", "AAAAAAAAAä"] {
            assert_eq!(RequestId::stored(text).bits(), None);
        }
    }
}
