//! Corrects a bucket without a permit: for a caller that did not acquire, or no longer holds the
//! permit.

use std::future::IntoFuture;

use futures_util::future::BoxFuture;
use sluicegate_core::{
    Amounts, BucketId, Configuration, CorrectionKey, EntityId, EpochMillis, LimitName, Millitokens,
    NameError, Resource, Rules,
};
use smol_str::SmolStr;

use super::acquire::AcquireRequest;
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
/// [`AdjustError::Partial`], correct the bucket of its `failed` entity by itself ([`no_cascade`]),
/// unless its correction [may have been made](AdjustError::may_have_been_made).
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
    /// The amounts, and what finds the buckets and their limits, by reading them.
    request: AcquireRequest<&'a Limiter>,
    once: Option<(SmolStr, EpochMillis)>,
    fingerprint: Option<SmolStr>,
}

impl Limiter {
    /// A correction of a bucket without a permit: name the amounts, then await it.
    pub fn adjust(&self, entity: impl AsRef<str>, resource: impl AsRef<str>) -> AdjustRequest<'_> {
        AdjustRequest { request: self.acquire(entity, resource), once: None, fingerprint: None }
    }
}

impl AdjustRequest<'_> {
    /// Adds `tokens` to the consumption of a limit; negative tokens are given back.
    pub fn by(self, limit: impl AsRef<str>, tokens: i64) -> Self {
        Self { request: self.request.consume(limit, tokens), ..self }
    }

    /// As [`by`](Self::by), in thousandths of a token.
    pub fn by_milli(self, limit: impl AsRef<str>, milli: i64) -> Self {
        Self { request: self.request.consume_milli(limit, milli), ..self }
    }

    /// Adds the amounts of several limits; negative ones are given back.
    pub fn by_all(self, amounts: &Amounts) -> Self {
        let by = |request: Self, (limit, amount): (&LimitName, &Millitokens)| {
            request.by_milli(limit.as_str(), amount.get())
        };
        amounts.iter().fold(self, by)
    }

    /// Limits of the bucket, if neither it nor the table knows them.
    pub fn limits(self, limits: impl IntoIterator<Item = Limit>) -> Self {
        Self { request: self.request.limits(limits), ..self }
    }

    /// Limits of the parent's bucket, if they differ from the entity's own.
    pub fn parent_limits(self, limits: impl IntoIterator<Item = Limit>) -> Self {
        Self { request: self.request.parent_limits(limits), ..self }
    }

    /// Corrects this parent's bucket too.
    pub fn cascade_to(self, parent: impl AsRef<str>) -> Self {
        Self { request: self.request.cascade_to(parent), ..self }
    }

    /// Corrects no parent's bucket, whatever the table says.
    pub fn no_cascade(self) -> Self {
        Self { request: self.request.no_cascade(), ..self }
    }

    /// Makes the correction once for all requests with this key on the bucket, in any process. A
    /// later request changes nothing, and its result says so ([`Adjusted::already_made`]; with
    /// other amounts also [`Adjusted::key_was_reused`]). After any error the same request may be
    /// sent again. The store remembers the key until `until`. From then on, DynamoDB may forget the
    /// key, and Redis does.
    ///
    /// The key has 1 to 128 bytes of UTF-8, without `#` and control characters. On DynamoDB the
    /// correction is a transaction of two items, for four write units. Tokens that this process has
    /// leased are not used.
    pub fn once(self, key: impl AsRef<str>, until: EpochMillis) -> Self {
        Self { once: Some((SmolStr::new(key), until)), ..self }
    }

    /// Tells this correction from others, for a key that is used again
    /// ([`Adjusted::key_was_reused`]). Without it, the amounts do. At most a few hundred bytes.
    pub fn fingerprint(self, text: impl AsRef<str>) -> Self {
        Self { fingerprint: Some(SmolStr::new(text)), ..self }
    }

    async fn send(mut self) -> Result<Adjusted, AdjustError> {
        let guard = self.request.limiter.guard();
        let deadline = guard.correction_deadline(None);
        let entity = EntityId::new(self.request.entity()).map_err(InvalidRequest::from)?;
        let resource = Resource::new(self.request.resource()).map_err(InvalidRequest::from)?;
        // The read below asks for no tokens.
        let amounts = std::mem::take(&mut self.request.amounts);
        let amounts = checked_amounts(&amounts, |amount| amount != Millitokens::ZERO)?;
        if amounts.is_empty() {
            return Err(InvalidRequest::Empty.into());
        }
        let once = self.once.map(|(key, until)| Ok((CorrectionKey::try_from(key)?, until)));
        let once = once.transpose().map_err(|error: NameError| InvalidRequest::from(error))?;
        let limits =
            self.request.peek().await.map_err(|error| match AdjustError::of_call(error) {
                AdjustError::Unavailable(source) => AdjustError::not_sent(source),
                error => error,
            })?;
        let buckets = rules_by_entity(entity, limits);
        let is_unknown = |limit: &&LimitName| !buckets[0].1.contains_key(*limit);
        if let Some(limit) = amounts.keys().find(is_unknown) {
            return Err(InvalidRequest::UnknownLimit(limit.clone()).into());
        }
        let fingerprint = self.fingerprint.unwrap_or_else(|| {
            let amount =
                |(limit, amount): (&LimitName, &Millitokens)| format!("{limit}={}", amount.get());
            amounts.iter().map(amount).collect::<Vec<_>>().join(",").into()
        });
        let mut total = Adjusted { already_made: true, ..Adjusted::default() };
        let (mut corrected, mut in_doubt) = (None, None);
        for (entity, rules) in buckets {
            let mut amounts = amounts.clone();
            amounts.retain(|limit, _| rules.contains_key(limit));
            if amounts.is_empty() {
                continue;
            }
            let bucket = BucketId { entity: entity.clone(), resource: resource.clone() };
            let mark = once.clone().map(|(key, until)| Mark {
                bucket: bucket.clone(),
                key,
                until,
                fingerprint: fingerprint.clone(),
            });
            let correction = Correction {
                id: &new_id(),
                bucket: &bucket,
                mark: mark.as_ref(),
                amounts: &amounts,
                configuration: &Configuration::explicit(rules),
                is_repeated: false,
                deadline,
            };
            let adjusted = guard.correct(&correction).await;
            match (adjusted, &corrected, &in_doubt) {
                (Ok(mut adjusted), ..) => {
                    let dropped = adjusted.dropped.iter();
                    adjusted.dropped_of =
                        dropped.map(|limit| (entity.clone(), limit.clone())).collect();
                    total.already_made &= adjusted.already_made;
                    if adjusted.key_was_reused {
                        // The parent must not be corrected by other amounts than the child.
                        return Ok(adjusted);
                    }
                    total.add(adjusted);
                }
                // Without a key the caller cannot repeat it, so the parent is corrected all the
                // same.
                (Err(error), None, None) if once.is_none() && error.may_have_been_made() => {
                    in_doubt = Some((entity, error));
                    continue;
                }
                (Err(error), None, None) => return Err(error),
                (Err(error), Some(child), _) => {
                    let (corrected, source) = (EntityId::clone(child), Box::new(error));
                    return Err(AdjustError::Partial { corrected, failed: entity, source });
                }
                (Err(error), None, Some(_)) => {
                    tracing::warn!(%entity, %error, "a parent was not corrected");
                    continue;
                }
            }
            corrected = Some(entity);
        }
        match (in_doubt, corrected) {
            (None, _) => Ok(total),
            (Some((_, error)), None) => Err(error),
            (Some((failed, error)), Some(corrected)) => {
                Err(AdjustError::Partial { corrected, failed, source: error.into() })
            }
        }
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
