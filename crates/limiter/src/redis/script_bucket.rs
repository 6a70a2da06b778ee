//! One bucket of a request: what is said of it to a script, and what it answers.

use std::sync::Arc;

use sluicegate_core::{Amounts, BucketId, CompositeBucket, Configuration, LimitName};

use super::value::{push, push_rules};
use crate::store::BucketGrant;

/// A bucket after a call; `None`: there is none.
pub(super) type Image = Option<Arc<CompositeBucket>>;

/// One bucket of a request.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct ScriptBucket {
    pub(super) bucket: BucketId,
    pub(super) configuration: Arc<Configuration>,
}

impl ScriptBucket {
    /// The limits that a call names: those that have a rule, and other requested ones.
    pub(super) fn named<'a>(
        &'a self,
        asked: &'a Amounts,
    ) -> impl Iterator<Item = &'a LimitName> + Clone {
        let rules = &self.configuration.explicit;
        rules.keys().chain(asked.keys().filter(|limit| !rules.contains_key(*limit)))
    }

    /// The packed argument for the bucket: the time, the number of lost answers, the number of
    /// limits, these amounts of each, and the rules.
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

    /// True if every requested limit has a rule here.
    #[cfg(feature = "leasing")]
    pub(super) fn knows(&self, asked: &Amounts) -> bool {
        asked.keys().all(|limit| self.configuration.rule(limit).is_some())
    }

    /// The grant of these amounts, before anything was read.
    #[cfg(feature = "leasing")]
    pub(super) fn unread(self, amounts: &Amounts) -> BucketGrant {
        let (bucket, configuration) = (self.bucket, self.configuration);
        BucketGrant { bucket, amounts: amounts.clone(), image: None, configuration }
    }

    /// The grant of the amounts taken from it, without limits that it does not have.
    pub(super) fn part(&self, amounts: &Amounts, image: &Image) -> BucketGrant {
        let mut amounts = amounts.clone();
        amounts.retain(|limit, _| {
            image.as_ref().is_some_and(|image| image.limits.contains_key(limit))
        });
        let (bucket, configuration) = (self.bucket.clone(), self.configuration.clone());
        BucketGrant { bucket, amounts, image: image.clone(), configuration }
    }
}
