//! The buckets of a request, what is said of each to a script, and what it answers.

use std::sync::Arc;

use sluicegate_core::{
    Amounts, Bucket, BucketId, CompositeBucket, Configuration, EntityId, LimitName, Millitokens,
};

use super::reply::{Reply, rule, rule_text};
use super::script::Call;
use super::{RedisStore, Time};
use crate::clock::Clock;
use crate::error::InvalidRequest;
use crate::store::{Cascade, Part, Request};
use crate::table::Trouble;

/// One bucket of a request.
pub(super) struct Side {
    pub(super) bucket: BucketId,
    pub(super) configuration: Arc<Configuration>,
}

impl RedisStore {
    /// The buckets of a request: the entity's own, and its parent's if it cascades.
    pub(super) fn sides(&self, request: &Request) -> Result<Vec<Side>, InvalidRequest> {
        let side = |entity: &EntityId, rules| {
            let bucket = BucketId { entity: entity.clone(), resource: request.resource.clone() };
            let configuration = Arc::new(self.configured.of(&bucket, rules)?);
            Ok::<_, InvalidRequest>(Side { bucket, configuration })
        };
        let parent = match &request.cascade {
            Cascade::No => None,
            Cascade::To(parent) => Some(parent.clone()),
            Cascade::Stored => self.keys.parent(&request.entity),
        };
        let mut sides = vec![side(&request.entity, &request.limits)?];
        if let Some(parent) = parent {
            if self.connection.is_cluster() && !self.keys.are_together(&request.entity, &parent) {
                return Err(InvalidRequest::Apart { entity: request.entity.clone(), parent });
            }
            sides.push(side(&parent, request.parent_limits.as_ref().unwrap_or(&request.limits))?);
        }
        Ok(sides)
    }

    /// A call on these buckets, with the time first.
    pub(super) fn call(&self, sides: &[Side], clock: &dyn Clock) -> Call {
        let keys = sides.iter().map(|side| self.keys.key(&side.bucket)).collect();
        let mut call = Call { keys, args: Vec::with_capacity(16) };
        match self.time {
            Time::Caller => call.number(clock.now().get()),
            Time::Server => call.text(""),
        }
        call
    }
}

impl Side {
    /// The limits that a call names: those that have a rule, and others that are asked for.
    pub(super) fn named<'a>(
        &'a self,
        asked: &'a Amounts,
    ) -> impl Iterator<Item = &'a LimitName> + Clone {
        let rules = &self.configuration.explicit;
        rules.keys().chain(asked.keys().filter(|limit| !rules.contains_key(*limit)))
    }

    /// Names the limits of the bucket, and of each these amounts.
    pub(super) fn name<const WIDTH: usize>(
        &self,
        call: &mut Call,
        asked: &Amounts,
        amounts: impl Fn(&LimitName) -> [Option<i64>; WIDTH],
    ) {
        let limits = self.named(asked);
        call.number(i64::try_from(limits.clone().count()).unwrap_or(i64::MAX));
        for limit in limits {
            call.text(limit.as_str());
            call.text(self.configuration.rule(limit).map_or_else(String::new, rule_text));
            for amount in amounts(limit) {
                match amount {
                    Some(milli) => call.number(milli),
                    None => call.text(""),
                }
            }
        }
    }

    /// Whether every limit that is asked has a rule here.
    pub(super) fn knows(&self, asked: &Amounts) -> bool {
        asked.keys().all(|limit| self.configuration.rule(limit).is_some())
    }

    /// What is asked of it, before anything was read.
    pub(super) fn unread(self, amounts: &Amounts) -> Part {
        let (bucket, configuration) = (self.bucket, self.configuration);
        Part { bucket, amounts: amounts.clone(), image: None, configuration }
    }

    /// The bucket as the script left it, as far as it was named; and whether it is new.
    pub(super) fn read(
        &self,
        reply: &mut Reply,
        asked: &Amounts,
    ) -> Result<(CompositeBucket, bool), Trouble> {
        let is_new = reply.int()? == 1;
        let mut image = CompositeBucket {
            entity: self.bucket.entity.clone(),
            resource: self.bucket.resource.clone(),
            refilled_at: reply.instant()?,
            limits: Default::default(),
            expires_at_s: None,
            config_stamp: sluicegate_core::ConfigStamp::None,
            rules_hash: None,
            request_ids: Vec::new(),
        };
        for limit in self.named(asked) {
            let (tokens, consumed, own) = (reply.milli()?, reply.sum()?, reply.text()?);
            let rule = match own {
                Some(text) => Some(rule(&text)?),
                None => self.configuration.rule(limit),
            };
            if let (Some(tokens), Some(consumed), Some(rule)) = (tokens, consumed, rule) {
                image.limits.insert(limit.clone(), Bucket { rule, tokens, consumed });
            }
        }
        Ok((image, is_new))
    }

    /// What was taken of it.
    pub(super) fn part(self, amounts: &Amounts, image: CompositeBucket) -> Part {
        let mut amounts = amounts.clone();
        amounts.retain(|limit, _| image.limits.contains_key(limit));
        let (bucket, configuration) = (self.bucket, self.configuration);
        Part { bucket, amounts, image: Some(Arc::new(image)), configuration }
    }
}

/// The amount of a limit, zero where it is not named.
pub(super) fn amount(amounts: &Amounts, limit: &LimitName) -> i64 {
    amounts.get(limit).copied().map_or(0, Millitokens::get)
}
