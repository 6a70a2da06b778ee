//! The buckets of a request, what is said of each to a script, and what it answers.

use std::sync::Arc;

use sluicegate_core::{Amounts, BucketId, Configuration, EntityId, LimitName};

use super::acquire::Image;
use super::script::Call;
use super::value::{push, push_rules};
use super::{RedisStore, Time};
use crate::clock::Clock;
use crate::error::InvalidRequest;
use crate::store::{BucketGrant, Cascade, Request};

/// One bucket of a request.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct ScriptBucket {
    pub(super) bucket: BucketId,
    pub(super) configuration: Arc<Configuration>,
}

impl RedisStore {
    /// The buckets of a request: the entity's own, and its parent's if it cascades.
    pub(super) fn sides(&self, request: &Request) -> Result<Vec<ScriptBucket>, InvalidRequest> {
        let side = |entity: &EntityId, rules| {
            let bucket = BucketId { entity: entity.clone(), resource: request.resource.clone() };
            let configuration = Arc::new(self.configured.of(&bucket, rules)?);
            Ok::<_, InvalidRequest>(ScriptBucket { bucket, configuration })
        };
        let parent = match &request.cascade {
            Cascade::No => None,
            Cascade::To(parent) => Some(parent.clone()),
            Cascade::Stored => self.keys.parent(&request.entity),
        };
        let mut sides = vec![side(&request.entity, &request.limits)?];
        if let Some(parent) = parent {
            if self.connection.is_cluster() && !self.keys.are_together(&request.entity, &parent) {
                return Err(InvalidRequest::CrossSlot { entity: request.entity.clone(), parent });
            }
            sides.push(side(&parent, request.parent_limits.as_ref().unwrap_or(&request.limits))?);
        }
        Ok(sides)
    }

    /// A call on these buckets, without arguments.
    pub(super) fn call(&self, sides: &[ScriptBucket]) -> Call {
        let keys = sides.iter().map(|side| self.keys.key(&side.bucket)).collect();
        Call { keys, args: Vec::with_capacity(6) }
    }

    /// The time that a script is told: the clock's, or a negative one where it asks its server.
    pub(super) fn told(&self, clock: &dyn Clock) -> i64 {
        match self.time {
            Time::Caller => clock.now().get(),
            Time::Server => -1,
        }
    }
}

impl ScriptBucket {
    /// The limits that a call names: those that have a rule, and others that are asked for.
    pub(super) fn named<'a>(
        &'a self,
        asked: &'a Amounts,
    ) -> impl Iterator<Item = &'a LimitName> + Clone {
        let rules = &self.configuration.explicit;
        rules.keys().chain(asked.keys().filter(|limit| !rules.contains_key(*limit)))
    }

    /// The packed argument for the bucket: the time, the number of lost answers, the number of limits,
    /// these amounts of each, and the rules.
    pub(super) fn ask<const WIDTH: usize>(
        &self,
        (now, lost): (i64, u32),
        asked: &Amounts,
        amounts: impl Fn(&LimitName) -> [i64; WIDTH],
    ) -> Vec<u8> {
        let limits = self.named(asked);
        let count = i64::try_from(limits.clone().count()).unwrap_or(i64::MAX);
        let mut ask = Vec::with_capacity(256);
        let amounts = limits.clone().flat_map(amounts);
        for number in [now, lost.into(), count].into_iter().chain(amounts) {
            push(&mut ask, number);
        }
        push_rules(&mut ask, limits.map(|limit| (limit, self.configuration.rule(limit))));
        ask
    }

    /// Whether every limit that is asked has a rule here.
    pub(super) fn knows(&self, asked: &Amounts) -> bool {
        asked.keys().all(|limit| self.configuration.rule(limit).is_some())
    }

    /// What is asked of it, before anything was read.
    pub(super) fn unread(self, amounts: &Amounts) -> BucketGrant {
        let (bucket, configuration) = (self.bucket, self.configuration);
        BucketGrant { bucket, amounts: amounts.clone(), image: None, configuration }
    }

    /// What was taken of it; nothing of a limit that it does not have.
    pub(super) fn part(&self, amounts: &Amounts, image: &Image) -> BucketGrant {
        let mut amounts = amounts.clone();
        amounts.retain(|limit, _| {
            image.as_ref().is_some_and(|image| image.limits.contains_key(limit))
        });
        let (bucket, configuration) = (self.bucket.clone(), self.configuration.clone());
        BucketGrant { bucket, amounts, image: image.clone(), configuration }
    }
}
