//! One bucket in a script call: its argument, and its part of the reply.

use std::sync::Arc;

use sluicegate_core::{
    Amounts, BucketId, CompositeBucket, Configuration, EpochMillis, LimitName, LimitStatus,
    evaluate,
};

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

/// The first numbers of a packed request.
#[derive(Debug, Clone, Copy)]
pub(super) struct SentAt {
    /// The caller's time; negative: the script asks its server for the time.
    pub(super) now_ms: i64,
    /// The earlier attempts that were not answered and may have been done.
    pub(super) attempts_in_doubt: u32,
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

    /// The packed argument for the bucket: the time, the number of attempts in doubt, the number of
    /// limits, these amounts of each, and the rules.
    pub(super) fn packed_request<const WIDTH: usize>(
        &self,
        sent: SentAt,
        asked: &Amounts,
        amounts: impl Fn(&LimitName) -> [i64; WIDTH],
    ) -> Vec<u8> {
        let limits = self.named(asked);
        let count = i64::try_from(limits.clone().count()).unwrap_or(i64::MAX);
        let mut packed = Vec::with_capacity(256);
        let amounts = limits.clone().flat_map(amounts);
        let SentAt { now_ms, attempts_in_doubt } = sent;
        for number in [now_ms, attempts_in_doubt.into(), count].into_iter().chain(amounts) {
            push(&mut packed, number);
        }
        push_rules(&mut packed, limits.map(|limit| (limit, self.configuration.rule(limit))));
        packed
    }

    /// The status of its limits in this image, at this time.
    pub(super) fn evaluate(
        &self,
        image: Option<&CompositeBucket>,
        amounts: &Amounts,
        now: EpochMillis,
    ) -> Vec<LimitStatus> {
        evaluate(&self.bucket, image, amounts, &self.configuration, now)
    }

    /// The grant of the amounts taken from it, without limits that it does not have.
    pub(super) fn part(&self, amounts: &Amounts, image: &Image) -> BucketGrant {
        let mut amounts = amounts.clone();
        amounts.retain(|limit, _| {
            image.as_ref().is_some_and(|image| image.limits.contains_key(limit))
        });
        let (bucket, configuration) = (self.bucket.clone(), self.configuration.clone());
        BucketGrant::new(bucket, amounts, image.clone(), configuration)
    }
}
