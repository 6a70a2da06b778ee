//! An alert, and its entry in the outbox.

use std::collections::HashMap;

use serde_dynamo::{AttributeValue, Item};
use sha2::{Digest as _, Sha256};

use super::threshold::Threshold;
use crate::item::{find, key_of, number, number_of, ranged, ranged_of, text, text_of, wrong_type};
use crate::keys::{self, AlertId, ItemKey, OutboxId};
use crate::{
    BucketId, EntityId, EpochMillis, ItemError, LimitName, Millitokens, Resource, Window,
    WindowKind,
};

/// A threshold that a usage window reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alert {
    /// The entity and the resource of the window.
    pub bucket: BucketId,
    /// The limit.
    pub limit: LimitName,
    /// The window.
    pub window: Window,
    /// The threshold.
    pub threshold: Threshold,
    /// The window's sum that was found at or over the threshold, in millitokens.
    pub sum_milli: i128,
    /// The amount of the calendar limit, where the window is one of its periods.
    pub amount: Option<Millitokens>,
}

impl Alert {
    /// The claim of this alert, as the window keeps it.
    #[must_use]
    pub fn claim(&self) -> String {
        keys::claim_text(&self.limit, &self.threshold.show(&self.limit).to_string())
    }

    /// Its identity: a hash of the window's key and the claim. The sum is no part of it.
    #[must_use]
    pub fn id(&self) -> AlertId {
        let BucketId { entity, resource } = &self.bucket;
        let window = ItemKey::Usage(entity.clone(), resource.clone(), self.window);
        // No part has the separator.
        let text = [window.pk(), window.sk(), self.claim()].join("\n");
        let bytes = Sha256::digest(text.as_bytes());
        AlertId(bytes.iter().take(16).fold(0, |id, byte| id << 8 | u128::from(*byte)))
    }
}

/// The state of an entry of the outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutboxState {
    /// It waits for its delivery.
    Open {
        /// Deliveries that failed.
        attempts: u32,
        /// The time from which it may be delivered again.
        next_at: EpochMillis,
    },
    /// It was delivered.
    Sent,
    /// Its delivery failed too often: a person must look at it.
    Failed,
}

/// An entry of the outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxEntry {
    /// The time of the claim.
    pub at: EpochMillis,
    /// The alert.
    pub alert: Alert,
    /// Its state.
    pub state: OutboxState,
    /// The reason why the last delivery failed, in one line.
    pub reason: Option<String>,
    /// The time from which DynamoDB may delete it, epoch seconds; `None` keeps it.
    pub expires_at_s: Option<i64>,
}

impl OutboxEntry {
    /// An entry that waits for its first delivery.
    #[must_use]
    pub const fn new(alert: Alert, at: EpochMillis) -> Self {
        let state = OutboxState::Open { attempts: 0, next_at: at };
        Self { at, alert, state, reason: None, expires_at_s: None }
    }

    /// The key of the item.
    #[must_use]
    pub fn key(&self) -> ItemKey {
        let id = OutboxId { at: self.at, alert: self.alert.id() };
        match self.state {
            OutboxState::Open { .. } => ItemKey::OpenAlert(id),
            OutboxState::Sent | OutboxState::Failed => ItemKey::ClosedAlert(id),
        }
    }

    /// Reads an item; `None` when its keys are not those of an entry.
    ///
    /// # Errors
    /// [`ItemError`] when an attribute is missing or of the wrong type.
    pub fn from_item(item: &Item) -> Result<Option<Self>, ItemError> {
        let at = match key_of(item)? {
            Some(ItemKey::OpenAlert(id) | ItemKey::ClosedAlert(id)) => id.at,
            _ => return Ok(None),
        };
        let state = match text_of(item, keys::STATE)? {
            keys::OPEN => OutboxState::Open {
                attempts: number_of(item, keys::ATTEMPTS)?,
                next_at: ranged_of(item, keys::NEXT_AT, EpochMillis::new)?,
            },
            keys::SENT => OutboxState::Sent,
            keys::FAILED => OutboxState::Failed,
            _ => return Err(wrong_type(keys::STATE, "open, sent or failed")),
        };
        let reason = text(find(item, keys::REASON))?.map(str::to_owned);
        let expires_at_s = number(find(item, keys::TTL))?;
        Ok(Some(Self { at, alert: alert_of(item)?, state, reason, expires_at_s }))
    }

    /// Writes the whole item.
    #[must_use]
    pub fn to_item(&self) -> Item {
        let (key, alert) = (self.key(), &self.alert);
        let text = AttributeValue::S;
        let number = |number: i128| AttributeValue::N(number.to_string());
        let mut attributes = vec![
            (keys::PK, text(key.pk())),
            (keys::SK, text(key.sk())),
            (keys::ENTITY_ID, text(alert.bucket.entity.to_string())),
            (keys::RESOURCE, text(alert.bucket.resource.to_string())),
            (keys::ALERT_LIMIT, text(alert.limit.to_string())),
            (keys::ALERT_WINDOW, text(alert.window.kind().to_string())),
            (keys::ALERT_START, text(alert.window.start_text())),
            (keys::ALERT_THRESHOLD, text(alert.threshold.show(&alert.limit).to_string())),
            (keys::ALERT_SUM, number(alert.sum_milli)),
        ];
        let state = match self.state {
            OutboxState::Open { attempts, next_at } => {
                attributes.push((keys::ATTEMPTS, number(attempts.into())));
                attributes.push((keys::NEXT_AT, number(next_at.get().into())));
                keys::OPEN
            }
            OutboxState::Sent => keys::SENT,
            OutboxState::Failed => keys::FAILED,
        };
        attributes.push((keys::STATE, text(state.to_owned())));
        attributes
            .extend(alert.amount.map(|milli| (keys::ALERT_AMOUNT, number(milli.get().into()))));
        attributes.extend(self.reason.clone().map(|reason| (keys::REASON, text(reason))));
        attributes.extend(self.expires_at_s.map(|at_s| (keys::TTL, number(at_s.into()))));
        let item: HashMap<_, _> =
            attributes.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Item::from(item)
    }
}

fn alert_of(item: &Item) -> Result<Alert, ItemError> {
    let limit = LimitName::new(text_of(item, keys::ALERT_LIMIT)?)?;
    let kind: WindowKind = text_of(item, keys::ALERT_WINDOW)?
        .parse()
        .map_err(|_| wrong_type(keys::ALERT_WINDOW, "a kind of window"))?;
    let window = Window::parse(kind, text_of(item, keys::ALERT_START)?)
        .ok_or_else(|| wrong_type(keys::ALERT_START, "the start of a window"))?;
    let threshold = Threshold::parse(&limit, text_of(item, keys::ALERT_THRESHOLD)?)
        .map_err(|_| wrong_type(keys::ALERT_THRESHOLD, "a threshold"))?;
    Ok(Alert {
        bucket: BucketId {
            entity: EntityId::new(text_of(item, keys::ENTITY_ID)?)?,
            resource: Resource::new(text_of(item, keys::RESOURCE)?)?,
        },
        limit,
        window,
        threshold,
        sum_milli: number_of(item, keys::ALERT_SUM)?,
        amount: ranged(find(item, keys::ALERT_AMOUNT), Millitokens::new)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{at, bucket, milli, name};

    fn alert(threshold: &str) -> Alert {
        Alert {
            bucket: bucket("team-a", "gpt-4"),
            limit: name("usd"),
            window: WindowKind::MONTH.containing(at(1_769_608_800_000)),
            threshold: Threshold::parse(&name("usd"), threshold).unwrap(),
            sum_milli: 160_000_000_000,
            amount: Some(milli(200_000_000_000)),
        }
    }

    #[test]
    fn entries_are_read_back() {
        let open = OutboxEntry::new(alert("80%"), at(1_769_608_800_123));
        let sent = OutboxEntry {
            alert: Alert { amount: None, ..alert("100/month") },
            state: OutboxState::Sent,
            expires_at_s: Some(7),
            ..open.clone()
        };
        let reason = Some("HTTP 500".to_owned());
        let failed = OutboxEntry { state: OutboxState::Failed, reason, ..open.clone() };
        for entry in [open, sent, failed] {
            assert_eq!(OutboxEntry::from_item(&entry.to_item()), Ok(Some(entry.clone())));
            let mut broken = entry.to_item().into_inner();
            broken.insert("threshold".to_owned(), AttributeValue::S("most".to_owned()));
            assert!(OutboxEntry::from_item(&broken.into()).is_err());
        }
    }

    /// Receivers keep these ids: they must not change with a version.
    #[test]
    fn an_id_is_stable_and_of_one_threshold_of_one_window() {
        let id = alert("80%").id();
        assert_eq!(id.to_string(), "12e175df7fea48cc7c6a6423e192b9b3");
        assert_eq!(Alert { sum_milli: 7, amount: None, ..alert("80%") }.id(), id);
        assert_ne!(alert("100%").id(), id);
        let next = WindowKind::MONTH.containing(at(1_772_300_000_000));
        assert_ne!(Alert { window: next, ..alert("80%") }.id(), id);
        assert_ne!(Alert { bucket: bucket("team-b", "gpt-4"), ..alert("80%") }.id(), id);
    }
}
