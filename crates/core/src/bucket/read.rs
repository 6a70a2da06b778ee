//! Reading a bucket from the attributes of its item, in one pass.

use std::collections::BTreeMap;

use serde_dynamo::Item;

use super::{CompositeBucket, LimitBalance};
use crate::item::{
    self, ItemError, NamedValue, Scalar, named, number, ranged, required, text, wrong_type,
};
use crate::keys::{self, BucketField, ItemKey};
use crate::{
    ConfigStamp, EpochMillis, LevelVersions, LimitName, MillitokenSum, Millitokens, RequestId,
    RulesHash,
};

impl CompositeBucket {
    /// Reads an item; `None` when its keys are not those of a composite bucket.
    ///
    /// The item has a limit if it has the limit's capacity (`cp`). If the burst (`bx`) is absent,
    /// it is the capacity.
    ///
    /// # Errors
    /// [`ItemError`] when an attribute is missing, of the wrong type or out of range.
    pub fn from_item(item: &Item) -> Result<Option<Self>, ItemError> {
        Self::from_attributes(item.inner().iter().map(named))
    }

    /// As [`from_item`](Self::from_item), from the attributes one by one, in any order. An SDK has
    /// them in types of its own, and an item is read after every write: this saves a conversion.
    ///
    /// # Errors
    /// [`ItemError`] when an attribute is missing, of the wrong type or out of range.
    pub fn from_attributes<'a>(
        attributes: impl IntoIterator<Item = (&'a str, Scalar<'a>)>,
    ) -> Result<Option<Self>, ItemError> {
        let mut found = Found::default();
        for (name, value) in attributes {
            found.take(name, value);
        }
        found.bucket()
    }
}

/// The attributes of one limit.
#[derive(Default)]
struct Fields<'a> {
    numbers: [NamedValue<'a>; BucketField::ALL.len()],
    calendar: NamedValue<'a>,
}

/// The attributes of a bucket.
#[derive(Default)]
struct Found<'a> {
    pk: NamedValue<'a>,
    sk: NamedValue<'a>,
    refilled_at: NamedValue<'a>,
    expires_at_s: NamedValue<'a>,
    config_epoch: NamedValue<'a>,
    config_versions: NamedValue<'a>,
    rules_hash: NamedValue<'a>,
    request_ids: [NamedValue<'a>; RequestId::REMEMBERED],
    /// By limit, in the order in which they were met.
    limits: Vec<(&'a str, Fields<'a>)>,
}

impl<'a> Found<'a> {
    fn take(&mut self, name: &'a str, value: Scalar<'a>) {
        let place = match name {
            keys::PK => &mut self.pk,
            keys::SK => &mut self.sk,
            keys::REFILLED_AT => &mut self.refilled_at,
            keys::TTL => &mut self.expires_at_s,
            keys::CONFIG_EPOCH => &mut self.config_epoch,
            keys::CONFIG_VERSIONS => &mut self.config_versions,
            keys::RULES_HASH => &mut self.rules_hash,
            _ => {
                if let Some((limit, field)) = keys::parse_bucket_attribute(name) {
                    self.fields(limit).numbers[field as usize] = Some((name, value));
                } else if let Some(limit) = keys::parse_calendar_attribute(name) {
                    self.fields(limit).calendar = Some((name, value));
                } else if let Some(n) = keys::REQUEST_IDS.iter().position(|id| *id == name) {
                    self.request_ids[n] = Some((name, value));
                }
                return;
            }
        };
        *place = Some((name, value));
    }

    /// The attributes of a limit, added if it is new. A bucket has few limits, so a linear search
    /// is quicker than a tree.
    fn fields(&mut self, limit: &'a str) -> &mut Fields<'a> {
        let known = self.limits.iter().position(|(name, _)| *name == limit);
        let index = known.unwrap_or_else(|| {
            self.limits.push((limit, Fields::default()));
            self.limits.len() - 1
        });
        &mut self.limits[index].1
    }

    fn bucket(self) -> Result<Option<CompositeBucket>, ItemError> {
        let (pk, sk) = (required(keys::PK, text(self.pk)?)?, required(keys::SK, text(self.sk)?)?);
        let Some(ItemKey::Bucket(entity, resource)) = ItemKey::parse(pk, sk)? else {
            return Ok(None);
        };
        let refilled_at = ranged(self.refilled_at, EpochMillis::new)?;
        let mut limits = BTreeMap::new();
        for (limit, fields) in self.limits {
            if fields.numbers[BucketField::Capacity as usize].is_some() {
                let limit = LimitName::new(limit)?;
                let balance = balance(&limit, &fields)?;
                limits.insert(limit, balance);
            }
        }
        let mut request_ids = Vec::with_capacity(RequestId::REMEMBERED);
        for id in self.request_ids {
            let id = text(id)?.filter(|id| *id != keys::NO_REQUEST_ID);
            request_ids.extend(id.map(RequestId::stored));
        }
        Ok(Some(CompositeBucket {
            entity,
            resource,
            refilled_at: required(keys::REFILLED_AT, refilled_at)?,
            limits,
            expires_at_s: number(self.expires_at_s)?,
            config_stamp: stamp(self.config_versions, self.config_epoch)?,
            rules_hash: text(self.rules_hash)?.map(RulesHash::stored),
            request_ids,
        }))
    }
}

fn balance(limit: &LimitName, fields: &Fields<'_>) -> Result<LimitBalance, ItemError> {
    let value = |field| fields.numbers[field as usize];
    let name = |field| keys::bucket_attribute(limit, field);
    let missing = |field| ItemError::Missing { attribute: name(field) };
    let rule = item::rule(BucketField::RULE, value, name, fields.calendar)?;
    let tokens = ranged(value(BucketField::Tokens), Millitokens::new)?
        .ok_or_else(|| missing(BucketField::Tokens))?;
    let consumed = ranged(value(BucketField::Consumed), MillitokenSum::new)?
        .ok_or_else(|| missing(BucketField::Consumed))?;
    Ok(LimitBalance { rule, tokens, consumed })
}

/// If the item has both, the versions count and the time does not: a process that knows only times
/// leaves the versions in the item.
fn stamp(versions: NamedValue<'_>, epoch: NamedValue<'_>) -> Result<ConfigStamp, ItemError> {
    if let Some(versions) = text(versions)? {
        let versions = LevelVersions::parse(versions);
        let wrong = || wrong_type(keys::CONFIG_VERSIONS, "the versions of four levels");
        return versions.map(ConfigStamp::Versions).ok_or_else(wrong);
    }
    Ok(ranged(epoch, EpochMillis::new)?.map_or(ConfigStamp::None, ConfigStamp::Epoch))
}
