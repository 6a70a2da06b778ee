//! Corrects a bucket without a permit: for a caller that did not acquire, or no longer holds the
//! permit.

use std::future::IntoFuture;
use std::time::Duration;

use futures_util::future::BoxFuture;
use sluicegate_core::{
    Amounts, BucketId, Configuration, CorrectionKey, EntityId, EpochMillis, LimitName, Millitokens,
    NameError, Resource, Rules,
};
use smol_str::SmolStr;

use super::peek::PeekRequest;
use crate::call::new_id;
use crate::check::checked_amounts;
use crate::error::{AdjustError, InvalidRequest, LimitStatus};
use crate::limit::Limit;
use crate::limiter::Limiter;
use crate::store::{Adjusted, Correction, Mark};

/// A correction of a bucket. Awaiting it adds every amount to the consumption. It is never refused,
/// and a balance may go below zero.
///
/// If the entity cascades to a parent, the parent's bucket is corrected by the same amounts, in a
/// write of its own; a limit that the parent does not have is left out there. After
/// [`AdjustError::Partial`], correct the bucket of its `failed` entity by itself ([`no_cascade`]).
///
/// [`no_cascade`]: AdjustRequest::no_cascade
///
/// ```
/// use sluicegate::{Limit, Limiter, MemoryStore};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(MemoryStore::new());
/// let limits = [Limit::per_minute("tpm", 1_000)];
/// limiter.adjust("user-123", "gpt-4").by("tpm", 120).limits(limits).await?;
/// let status = limiter.peek("user-123", "gpt-4").await?;
/// assert!(status[0].available.get() < 1_000_000);
/// # Ok(())
/// # }
/// ```
#[must_use = "a correction does nothing until it is awaited"]
#[derive(Debug)]
pub struct AdjustRequest<'a> {
    limiter: &'a Limiter,
    /// Finds the buckets and their limits, by reading them.
    peek: PeekRequest<'a>,
    entity: SmolStr,
    resource: SmolStr,
    amounts: Vec<(SmolStr, i128)>,
    once: Option<(SmolStr, EpochMillis)>,
    deadline: Duration,
}

impl Limiter {
    /// A correction of a bucket without a permit: name the amounts, then await it.
    pub fn adjust(&self, entity: impl AsRef<str>, resource: impl AsRef<str>) -> AdjustRequest<'_> {
        AdjustRequest {
            limiter: self,
            peek: self.peek(&entity, &resource),
            entity: SmolStr::new(entity),
            resource: SmolStr::new(resource),
            amounts: Vec::new(),
            once: None,
            deadline: self.guard().correction_time_max(None),
        }
    }
}

impl AdjustRequest<'_> {
    /// Adds `tokens` to the consumption of a limit; negative tokens are given back.
    pub fn by(self, limit: impl AsRef<str>, tokens: i64) -> Self {
        self.add_milli(limit, i128::from(tokens) * 1_000)
    }

    /// As [`by`](Self::by), in thousandths of a token.
    pub fn by_milli(self, limit: impl AsRef<str>, milli: i64) -> Self {
        self.add_milli(limit, milli.into())
    }

    /// Adds the amounts of several limits; negative ones are given back.
    pub fn by_all(self, amounts: &Amounts) -> Self {
        amounts.iter().fold(self, |request, (limit, amount)| {
            request.add_milli(limit.as_str(), (*amount).into())
        })
    }

    fn add_milli(mut self, limit: impl AsRef<str>, milli: i128) -> Self {
        self.amounts.push((SmolStr::new(limit), milli));
        self
    }

    /// Limits of the bucket, if neither it nor the table knows them.
    pub fn limits(self, limits: impl IntoIterator<Item = Limit>) -> Self {
        Self { peek: self.peek.limits(limits), ..self }
    }

    /// Limits of the parent's bucket, if they differ from the entity's own.
    pub fn parent_limits(self, limits: impl IntoIterator<Item = Limit>) -> Self {
        Self { peek: self.peek.parent_limits(limits), ..self }
    }

    /// Corrects this parent's bucket too.
    pub fn cascade_to(self, parent: impl AsRef<str>) -> Self {
        Self { peek: self.peek.cascade_to(parent), ..self }
    }

    /// Corrects no parent's bucket, whatever the table says.
    pub fn no_cascade(self) -> Self {
        Self { peek: self.peek.no_cascade(), ..self }
    }

    /// Makes the correction once for all requests with this key on the bucket, in any process. A
    /// later request changes nothing, and its result says so ([`Adjusted::already_made`]). After
    /// any error the same request may be sent again. The store remembers the key until `until`.
    /// From then on, DynamoDB may forget the key, and Redis does.
    ///
    /// The key has 1 to 128 bytes of UTF-8, without `#` and control characters. On DynamoDB the
    /// correction is a transaction of two items, for four write units. Tokens that this process has
    /// leased are not used.
    pub fn once(self, key: impl AsRef<str>, until: EpochMillis) -> Self {
        Self { once: Some((SmolStr::new(key), until)), ..self }
    }

    async fn send(self) -> Result<Adjusted, AdjustError> {
        let entity = EntityId::try_from(self.entity).map_err(InvalidRequest::from)?;
        let resource = Resource::try_from(self.resource).map_err(InvalidRequest::from)?;
        let amounts = checked_amounts(&self.amounts, |amount| amount != Millitokens::ZERO)?;
        if amounts.is_empty() {
            return Err(InvalidRequest::Empty.into());
        }
        let once = self.once.map(|(key, until)| Ok((CorrectionKey::try_from(key)?, until)));
        let once = once.transpose().map_err(|error: NameError| InvalidRequest::from(error))?;
        let buckets = rules_by_entity(entity, self.peek.await.map_err(AdjustError::of_call)?);
        let is_unknown = |limit: &&LimitName| !buckets[0].1.contains_key(*limit);
        if let Some(limit) = amounts.keys().find(is_unknown) {
            return Err(InvalidRequest::UnknownLimit(limit.clone()).into());
        }
        let mut total = Adjusted { already_made: true, ..Adjusted::default() };
        let mut corrected = None;
        for (entity, rules) in buckets {
            let mut amounts = amounts.clone();
            amounts.retain(|limit, _| rules.contains_key(limit));
            if amounts.is_empty() {
                continue;
            }
            let bucket = BucketId { entity: entity.clone(), resource: resource.clone() };
            let mark = once.clone().map(|(key, until)| Mark { bucket: bucket.clone(), key, until });
            let correction = Correction {
                id: &new_id(),
                bucket: &bucket,
                mark: mark.as_ref(),
                amounts: &amounts,
                configuration: &Configuration::explicit(rules),
                is_repeated: false,
                deadline: self.deadline,
            };
            let adjusted = self.limiter.guard().correct(&correction).await;
            match (adjusted, &corrected) {
                (Ok(mut adjusted), _) => {
                    let dropped = adjusted.dropped.iter();
                    adjusted.dropped_of =
                        dropped.map(|limit| (entity.clone(), limit.clone())).collect();
                    total.already_made &= adjusted.already_made;
                    total.add(adjusted);
                }
                (Err(error), None) => return Err(error),
                (Err(error), Some(child)) => {
                    let (corrected, source) = (EntityId::clone(child), Box::new(error));
                    return Err(AdjustError::Partial { corrected, failed: entity, source });
                }
            }
            corrected = Some(entity);
        }
        Ok(total)
    }
}

impl<'a> IntoFuture for AdjustRequest<'a> {
    type Output = Result<Adjusted, AdjustError>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

/// The limits of every bucket that was read. The bucket of `entity` comes first.
fn rules_by_entity(entity: EntityId, limits: Vec<LimitStatus>) -> Vec<(EntityId, Rules)> {
    let mut buckets = vec![(entity, Rules::new())];
    for LimitStatus { entity, limit, rule, .. } in limits {
        match buckets.iter_mut().find(|(known, _)| *known == entity) {
            Some((_, rules)) => _ = rules.insert(limit, rule),
            None => buckets.push((entity, [(limit, rule)].into())),
        }
    }
    buckets
}
