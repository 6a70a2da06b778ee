//! The ids of permits: all that is needed to correct a permit or to give it back, signed.
//!
//! A server keeps no state of a permit, so that any server with the same key can correct it. An id
//! is the base64url form of: one byte of version, four bytes of the key's id, 16 bytes of
//! HMAC-SHA256 over everything else, and the content as JSON.

use std::borrow::Cow;
use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};
use sluicegate::types::{Amounts, EpochMillis, LimitName, Millitokens};

const VERSION: u8 = 1;
const KEY_ID_BYTES: usize = 4;
const TAG_BYTES: usize = 16;
const HEAD_BYTES: usize = 1 + KEY_ID_BYTES + TAG_BYTES;
/// Most ids are no longer than this, before they become text: then they are allocated once.
const ID_BYTES: usize = 320;
/// An id remembers this many corrections: enough for a queue that delivers one again.
const CORRECTIONS_MAX: usize = 8;
/// The shortest key, in bytes.
pub(crate) const KEY_BYTES_MIN: usize = 32;

/// The tokens that a permit took, and the buckets that it took them from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Granted<'a> {
    /// Unique to the permit.
    #[serde(rename = "i")]
    pub(crate) name: String,
    #[serde(rename = "e")]
    pub(crate) entity: Cow<'a, str>,
    #[serde(rename = "r")]
    pub(crate) resource: Cow<'a, str>,
    /// The model whose prices count; `None`: the resource.
    #[serde(rename = "m", default, skip_serializing_if = "Option::is_none")]
    pub(crate) model: Option<Cow<'a, str>>,
    /// The parent whose bucket is corrected, too. The acquire took from that bucket, or the request
    /// named the parent.
    #[serde(rename = "p", default, skip_serializing_if = "Option::is_none")]
    pub(crate) parent: Option<String>,
    /// True if the acquire did not ask the store: a correction must look the parent up in the
    /// entity's record.
    #[serde(rename = "s", default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) must_look_up_parent: bool,
    /// Empty: nothing was taken.
    #[serde(rename = "a", serialize_with = "write_amounts", deserialize_with = "read_amounts")]
    pub(crate) taken: Amounts,
    /// Short hashes of the newest corrections with a key that `taken` contains: sent again, they
    /// change neither the store nor `taken`.
    #[serde(rename = "k", default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) corrections: Vec<String>,
    /// The limits that the request brought.
    #[serde(rename = "l", default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) limits: Vec<String>,
    /// The limits of the parent that the request brought.
    #[serde(rename = "q", default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) parent_limits: Vec<String>,
    /// The time whose prices count, also for corrections, in seconds since 1970.
    #[serde(rename = "g")]
    pub(crate) asked_s: i64,
    /// The permit cannot be corrected from this time on, in seconds since 1970.
    #[serde(rename = "x")]
    pub(crate) expires_s: i64,
}

impl Granted<'_> {
    /// Notes a correction that `taken` contains.
    pub(crate) fn note_correction(&mut self, short_hash: String) {
        if !self.corrections.contains(&short_hash) {
            if self.corrections.len() == CORRECTIONS_MAX {
                self.corrections.remove(0);
            }
            self.corrections.push(short_hash);
        }
    }
}

fn write_amounts<S: Serializer>(amounts: &Amounts, to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(amounts.iter().map(|(limit, amount)| (limit.as_str(), amount.get())))
}

fn read_amounts<'de, D: Deserializer<'de>>(from: D) -> Result<Amounts, D::Error> {
    let amounts = BTreeMap::<String, i64>::deserialize(from)?.into_iter();
    let read = |(limit, milli)| Some((LimitName::new(limit).ok()?, Millitokens::new(milli).ok()?));
    amounts.map(read).collect::<Option<_>>().ok_or_else(|| D::Error::custom("no amount"))
}

/// The reason why an id is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RefusedId {
    #[error("the id is not one that this server or another one with its key made")]
    Invalid,
    #[error("the permit is too old to be corrected or released: its tokens stay taken")]
    Expired,
}

/// Makes and checks ids.
pub(crate) struct PermitIds {
    /// The first one signs; all of them are good.
    keys: Vec<Key>,
    valid_for_s: i64,
}

struct Key {
    id: [u8; KEY_ID_BYTES],
    mac: Hmac<Sha256>,
}

impl Key {
    fn new(secret: &[u8]) -> Option<Self> {
        let mut id = [0; KEY_ID_BYTES];
        id.copy_from_slice(&Sha256::digest(secret)[..KEY_ID_BYTES]);
        let mac = Hmac::new_from_slice(secret).ok()?;
        (secret.len() >= KEY_BYTES_MIN).then_some(Self { id, mac })
    }

    /// The tag over the head and the content.
    fn mac(&self, content: &[u8]) -> Hmac<Sha256> {
        self.mac.clone().chain_update([VERSION]).chain_update(self.id).chain_update(content)
    }
}

impl PermitIds {
    /// Ids that the first of the `secrets` signs. `None`: a secret has less than 32 bytes, or there
    /// is none.
    pub(crate) fn new(secrets: &[Vec<u8>], valid_for_s: u32) -> Option<Self> {
        let keys = secrets.iter().map(|secret| Key::new(secret)).collect::<Option<Vec<_>>>()?;
        (!keys.is_empty()).then_some(Self { keys, valid_for_s: valid_for_s.into() })
    }

    /// The time until which a permit of `now` can be corrected, in seconds since 1970.
    pub(crate) fn expiry_s(&self, now: EpochMillis) -> i64 {
        now.get() / 1_000 + self.valid_for_s
    }

    /// The id of a permit.
    pub(crate) fn sign(&self, granted: &Granted<'_>) -> String {
        let key = &self.keys[0];
        let mut id = Vec::with_capacity(ID_BYTES);
        id.push(VERSION);
        id.extend(key.id);
        id.extend([0; TAG_BYTES]);
        // Names and numbers: no value of it can fail.
        let _ = serde_json::to_writer(&mut id, granted);
        let (head, content) = id.split_at_mut(HEAD_BYTES);
        let tag = key.mac(content).finalize().into_bytes();
        head[HEAD_BYTES - TAG_BYTES..].copy_from_slice(&tag[..TAG_BYTES]);
        URL_SAFE_NO_PAD.encode(id)
    }

    /// The permit of an id.
    ///
    /// # Errors
    /// [`RefusedId`]. The signature is compared in constant time.
    pub(crate) fn check(&self, id: &str, now: EpochMillis) -> Result<Granted<'static>, RefusedId> {
        let id = URL_SAFE_NO_PAD.decode(id).map_err(|_| RefusedId::Invalid)?;
        let (head, content) = id.split_at_checked(HEAD_BYTES).ok_or(RefusedId::Invalid)?;
        let (version, key_id, tag) = (head[0], &head[1..=KEY_ID_BYTES], &head[1 + KEY_ID_BYTES..]);
        let key = self.keys.iter().find(|key| version == VERSION && key.id == key_id);
        let mac = key.ok_or(RefusedId::Invalid)?.mac(content);
        mac.verify_truncated_left(tag).map_err(|_| RefusedId::Invalid)?;
        let granted: Granted<'_> =
            serde_json::from_slice(content).map_err(|_| RefusedId::Invalid)?;
        if granted.expires_s <= now.get() / 1_000 {
            return Err(RefusedId::Expired);
        }
        Ok(granted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granted() -> Granted<'static> {
        Granted {
            name: "n".to_owned(),
            entity: "user-123".into(),
            resource: "gpt-4".into(),
            model: None,
            parent: None,
            must_look_up_parent: false,
            taken: [("rpm", 1_000), ("usd", 12_500_000)]
                .map(|(limit, milli)| {
                    (LimitName::new(limit).unwrap(), Millitokens::new(milli).unwrap())
                })
                .into(),
            corrections: Vec::new(),
            limits: vec!["rpm=100/min".to_owned()],
            parent_limits: Vec::new(),
            asked_s: 940,
            expires_s: 1_000,
        }
    }

    fn at(seconds: i64) -> EpochMillis {
        EpochMillis::new(seconds * 1_000).unwrap()
    }

    #[test]
    fn an_id_gives_back_its_permit_until_it_expires() {
        let ids = PermitIds::new(&[vec![7; 32]], 60).unwrap();
        let id = ids.sign(&granted());
        assert_eq!(ids.check(&id, at(999)), Ok(granted()));
        assert_eq!(ids.check(&id, at(1_000)), Err(RefusedId::Expired));
        assert!(id.len() < 300, "{}", id.len());
    }

    #[test]
    fn an_id_with_one_character_changed_is_refused() {
        let ids = PermitIds::new(&[vec![7; 32]], 60).unwrap();
        let id = ids.sign(&granted());
        for at_byte in 0..id.len() {
            for other in ["A", "b", "_", "=", "!", ""] {
                let mut changed = id.clone();
                changed.replace_range(at_byte..=at_byte, other);
                if changed != id {
                    assert_eq!(ids.check(&changed, at(0)), Err(RefusedId::Invalid), "{changed}");
                }
            }
        }
        for junk in ["", "A", "AQ", &"A".repeat(40), "ä"] {
            assert_eq!(ids.check(junk, at(0)), Err(RefusedId::Invalid));
        }
    }

    #[test]
    fn a_key_can_be_replaced_without_refusing_ids_of_the_one_before() {
        let (old, new) = (vec![1; 32], vec![2; 40]);
        let before = PermitIds::new(std::slice::from_ref(&old), 60).unwrap();
        let during = PermitIds::new(&[new.clone(), old], 60).unwrap();
        let after = PermitIds::new(&[new], 60).unwrap();
        let (of_old, of_new) = (before.sign(&granted()), during.sign(&granted()));
        assert!(during.check(&of_old, at(0)).is_ok());
        assert!(during.check(&of_new, at(0)).is_ok());
        assert!(after.check(&of_new, at(0)).is_ok());
        assert_eq!(after.check(&of_old, at(0)), Err(RefusedId::Invalid));
        assert_eq!(before.check(&of_new, at(0)), Err(RefusedId::Invalid));
    }

    #[test]
    fn a_short_key_is_refused() {
        assert!(PermitIds::new(&[vec![7; 31]], 60).is_none());
        assert!(PermitIds::new(&[], 60).is_none());
    }
}
