//! The status of one limit of a bucket, as a request would find it now.

use std::collections::HashMap;

use serde::Serialize;
use sluicegate::Limit;
use sluicegate_core::keys::LimitsScope;
use sluicegate_core::{
    Amounts, BucketId, CompositeBucket, Configuration, EpochMillis, LimitStatus, StoredLimits,
    StoredRules, Wait, evaluate,
};

/// The source of a limit that goes with the next refill, because its level no longer names it.
pub(crate) const DELETED: &str = "deleted";

#[derive(Debug, Serialize)]
pub(crate) struct LimitRow {
    #[serde(skip)]
    pub(crate) bucket: BucketId,
    #[serde(skip)]
    pub(crate) found: LimitStatus,
    pub(crate) entity: String,
    pub(crate) resource: String,
    pub(crate) limit: String,
    pub(crate) available_milli: i64,
    pub(crate) burst_milli: i64,
    /// Zero: it is full; none: it does not refill.
    pub(crate) full_in_ms: Option<u64>,
    /// Everything consumed less everything returned since the bucket was created.
    pub(crate) consumed_milli: i128,
    /// The limit that decides the next request, in the form of `--limit`.
    pub(crate) rule: String,
    /// The limit that is in the bucket until then, if it differs.
    pub(crate) now: Option<String>,
    /// The source of the limit.
    pub(crate) from: &'static str,
}

impl LimitRow {
    /// Every limit of a bucket; for a bucket that was never used, the stored limits.
    pub(super) fn all(
        bucket: &BucketId,
        image: Option<&CompositeBucket>,
        levels: &HashMap<LimitsScope, StoredLimits>,
        now: EpochMillis,
    ) -> Vec<Self> {
        let scopes = LimitsScope::levels(bucket);
        let of_bucket: Vec<_> = scopes.iter().filter_map(|scope| levels.get(scope)).collect();
        let stored = Some(StoredRules::of_levels(of_bucket.iter().copied()));
        let configuration = Configuration { stored, ..Configuration::default() };
        let found = evaluate(bucket, image, Amounts::EMPTY, &configuration, now);
        // Limits that some level deleted and no level names: the next refill removes them, unless
        // the request names them.
        let explicit = Configuration::default();
        let mut deleted = evaluate(bucket, image, Amounts::EMPTY, &explicit, now);
        deleted.retain(|row| image.is_some() && found.iter().all(|found| found.limit != row.limit));
        let of_bucket = of_bucket.as_slice();
        let from = |found: &LimitStatus| {
            let level = of_bucket.iter().find(|level| level.rules.contains_key(&found.limit));
            let level = level.filter(|level| level.rules[&found.limit] == found.rule);
            level.map_or("request", |level| level_name(&level.scope))
        };
        let row = |found: LimitStatus, from| Self::of(bucket, image, found, from, now);
        let limit_rows = found.into_iter().map(|found| {
            let from = from(&found);
            row(found, from)
        });
        let mut limit_rows: Vec<_> =
            limit_rows.chain(deleted.into_iter().map(|found| row(found, DELETED))).collect();
        limit_rows.sort_by(|a, b| a.limit.cmp(&b.limit));
        limit_rows
    }

    fn of(
        bucket: &BucketId,
        image: Option<&CompositeBucket>,
        found: LimitStatus,
        from: &'static str,
        now: EpochMillis,
    ) -> Self {
        let known = image.and_then(|image| image.limits.get(&found.limit));
        let burst = found.rule.burst();
        let other = known.filter(|balance| balance.rule != found.rule);
        Self {
            bucket: bucket.clone(),
            entity: bucket.entity.to_string(),
            resource: bucket.resource.to_string(),
            limit: found.limit.to_string(),
            available_milli: found.available.get(),
            burst_milli: burst.get(),
            full_in_ms: match found.rule.wait_for(burst, found.available, now, now) {
                Wait::None => Some(0),
                Wait::Millis(millis) => Some(millis),
                Wait::NoRefill | Wait::ExceedsBurst => None,
            },
            consumed_milli: known.map_or(0, |bucket| bucket.consumed.get()),
            rule: Limit::from_rule(&found.limit, found.rule).to_string(),
            now: other.map(|bucket| Limit::from_rule(&found.limit, bucket.rule).to_string()),
            from,
            found,
        }
    }
}

/// The name of a level on the command line.
const fn level_name(scope: &LimitsScope) -> &'static str {
    match scope {
        LimitsScope::EntityResource(..) => "entity+resource",
        LimitsScope::Entity(_) => "entity",
        LimitsScope::Resource(_) => "resource",
        LimitsScope::System => "system",
    }
}
