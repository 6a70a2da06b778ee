//! Every expression that a plan can become, from the decisions that make the plans.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;
use sluicegate_core::{
    Acquire, Action, Amounts, BucketDemand, BucketId, ClaimInterval, CompositeBucket,
    Configuration, Decision, EntityId, EpochMillis, KnownImage, LIMITS_MAX, LevelVersions,
    Millitokens, Purpose, QueueSettings, QueuedRequest, RefillHint, Resource, Rules, StoredRules,
    WriteQueue, decide, extend,
};

use crate::Limit;

const T0: i64 = 1_769_608_800_000;

fn at(millis: i64) -> EpochMillis {
    EpochMillis::new(millis).unwrap()
}

fn name(limit: &str) -> LimitName {
    LimitName::new(limit).unwrap()
}

fn amounts(amounts: &[(&str, i64)]) -> Amounts {
    let milli = |tokens| Millitokens::from_tokens(tokens).unwrap();
    amounts.iter().map(|(limit, tokens)| (name(limit), milli(*tokens))).collect()
}

fn rules(limits: &[Limit]) -> Rules {
    limits.iter().map(|limit| limit.check().unwrap()).collect()
}

fn shown(plan: &WritePlan) -> String {
    let mut lines = Vec::new();
    let (names, values) = match of(plan) {
        Expression::Put { item, condition } => {
            lines.push("PUT".to_owned());
            lines.push(format!("IF {condition}"));
            (HashMap::new(), item)
        }
        Expression::Update(update) => {
            lines.push(update.expression);
            lines.push(format!("IF {}", update.condition));
            (update.names.unwrap_or_default(), update.values)
        }
    };
    let numbered = |name: &str| (name.len(), name.to_owned());
    let names: BTreeMap<_, _> = names.iter().map(|(name, to)| (numbered(name), to)).collect();
    let values: BTreeMap<_, _> = values.iter().map(|(name, to)| (numbered(name), to)).collect();
    lines.extend(names.iter().map(|((_, name), to)| format!("{name} {to}")));
    lines.extend(values.iter().map(|((_, name), to)| format!("{name} {to:?}")));
    lines.join("\n")
}

/// A bucket, and the decisions on it.
struct BucketHistory {
    bucket: BucketId,
    configuration: Configuration,
    image: Option<CompositeBucket>,
}

impl BucketHistory {
    fn new() -> Self {
        let limits = [Limit::per_minute("rpm.v2", 100), Limit::per_hour("ttl", 5)];
        Self {
            bucket: BucketId {
                entity: EntityId::new("user-123").unwrap(),
                resource: Resource::new("gpt-4").unwrap(),
            },
            configuration: Configuration::explicit(rules(&limits)),
            image: None,
        }
    }

    fn decide(&self, amounts: &Amounts, now: EpochMillis) -> Decision {
        let acquire = Acquire {
            bucket: &self.bucket,
            amounts,
            configuration: &self.configuration,
            id: &RequestId::from_bits(7),
            interval: ClaimInterval::default(),
            hint: RefillHint::TrustImage,
        };
        decide(self.image.as_ref(), acquire, now)
    }

    fn acquire(&self, amounts: &Amounts, now: EpochMillis) -> WritePlan {
        match self.decide(amounts, now) {
            Decision::Write(plan) => plan,
            other => panic!("{other:?}"),
        }
    }

    /// A queue that knows the image, and a correction that waits in it.
    fn correction(&self, amounts: &Amounts, now: EpochMillis) -> WriteQueue<()> {
        let interval = ClaimInterval::default();
        let policy = QueueSettings { interval, refusal_age_max_ms: 0, is_transactional: false };
        let mut queue = WriteQueue::new([self.bucket.clone()], policy);
        let image = self.image.clone().map(Arc::new);
        queue.learn_unless_older(0, &KnownImage { image, as_of: now, is_authoritative: true });
        let configuration = Arc::new(self.configuration.clone());
        let demands = vec![BucketDemand { amounts: amounts.clone(), configuration }];
        let (id, purpose) = (RequestId::from_bits(8), Purpose::Correct);
        let request = QueuedRequest {
            id,
            purpose,
            demands,
            started_at: now,
            may_send_back_for_limits: false,
        };
        queue.enter(request, (), now);
        queue
    }

    fn adjust(&self, amounts: &Amounts, now: EpochMillis) -> WritePlan {
        next_plan(&mut self.correction(amounts, now), now)
    }

    /// The same without conditions on the balance.
    fn force(&self, amounts: &Amounts, now: EpochMillis) -> WritePlan {
        let mut queue = self.correction(amounts, now);
        queue.force(&RequestId::from_bits(8));
        next_plan(&mut queue, now)
    }

    fn created() -> Self {
        let mut story = Self::new();
        let create = story.acquire(&amounts(&[("rpm.v2", 60), ("ttl", 1)]), at(T0));
        story.image = create.apply(None);
        story.image.as_mut().unwrap().request_ids.clear();
        story
    }
}

fn next_plan(queue: &mut WriteQueue<()>, now: EpochMillis) -> WritePlan {
    match queue.next(now, &mut || panic!("the correction names its write")) {
        Action::Write(write) => write.plans[0].1.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_path_of_an_acquire() {
    let story = BucketHistory::new();
    let one = amounts(&[("rpm.v2", 1)]);
    insta::assert_snapshot!("create", shown(&story.acquire(&one, at(T0))));
    let story = BucketHistory::created();
    insta::assert_snapshot!("unclaimed", shown(&story.acquire(&one, at(T0 + 50))));
    insta::assert_snapshot!("normal_whole", shown(&story.acquire(&one, at(T0 + 1_000))));
    insta::assert_snapshot!("normal_cut", shown(&story.acquire(&one, at(T0 + 3_600_000))));
}

#[test]
fn buckets_of_another_producer() {
    let mut story = BucketHistory::created();
    let image = story.image.as_mut().unwrap();
    (image.rules_hash, image.expires_at_s) = (None, None);
    let one = amounts(&[("rpm.v2", 1)]);
    insta::assert_snapshot!("foreign_unclaimed", shown(&story.acquire(&one, at(T0 + 50))));
    insta::assert_snapshot!("foreign_normal", shown(&story.acquire(&one, at(T0 + 1_000))));
}

#[test]
fn a_change_of_the_configuration() {
    let mut story = BucketHistory::created();
    story.configuration = Configuration {
        explicit: rules(&[Limit::per_minute("rpm.v2", 30)]).into(),
        stored: Some(StoredRules {
            rules: rules(&[Limit::quota("usd", 9)]),
            deleted: BTreeMap::from([(name("ttl"), LevelVersions([0, 2, 0, 5]))]),
            versions: LevelVersions([0, 2, 0, 5]),
            never_expires: true,
            ..StoredRules::default()
        }),
    };
    let both = amounts(&[("rpm.v2", 1), ("usd", 2)]);
    insta::assert_snapshot!("reconfigured", shown(&story.acquire(&both, at(T0 + 1_000))));
}

#[test]
fn a_clock_that_was_ahead() {
    let mut story = BucketHistory::created();
    story.image.as_mut().unwrap().refilled_at = at(T0 + 3_600_000);
    let Decision::Repair(plan) = story.decide(&amounts(&[("rpm.v2", 50)]), at(T0)) else {
        panic!("short until the clock is corrected");
    };
    insta::assert_snapshot!("repair", shown(&plan));
}

#[test]
fn every_path_of_a_correction() {
    let mut story = BucketHistory::created();
    let (more, less) = (amounts(&[("ttl", 50)]), amounts(&[("rpm.v2", -2), ("ttl", -1)]));
    insta::assert_snapshot!("adjust_unclaimed", shown(&story.adjust(&more, at(T0 + 50))));
    let normal = story.adjust(&more, at(T0 + 1_000));
    insta::assert_snapshot!("adjust_normal", shown(&normal));
    let forced = story.force(&more, at(T0 + 1_000));
    insta::assert_snapshot!("adjust_forced", shown(&forced));
    insta::assert_snapshot!("refund", shown(&story.adjust(&less, at(T0 + 1_000))));
    story.image = forced.apply(story.image.as_ref());
    let extension = extend(story.image.as_ref().unwrap(), at(T0 + 1_000)).unwrap();
    insta::assert_snapshot!("extend", shown(&extension));
}

/// The length in bytes of the longer of a plan's expressions, and the most operators and functions
/// in one. Those of a SET are counted too, though DynamoDB may not count them.
fn size(plan: &WritePlan) -> (usize, usize) {
    let Expression::Update(update) = of(plan) else { return (0, 0) };
    let operators = |text: &str| {
        let is_operator = |word: &&str| matches!(*word, "=" | "<" | "<=" | ">=" | "AND" | "NOT");
        text.split_whitespace().filter(is_operator).count() + text.matches('(').count()
    };
    let both = [update.expression, update.condition];
    let most = |of: &dyn Fn(&String) -> usize| both.iter().map(of).max().unwrap();
    (most(&String::len), most(&|text| operators(text)))
}

#[test]
fn calendar_limit_is_seeded_changed_and_removed() {
    let mut story = BucketHistory::created();
    let month: Limit = "usd=0.0002/month@15,tz=Europe/Berlin".parse().unwrap();
    let configuration = |limits: &[Limit]| Configuration::explicit(rules(limits));
    let of_usd = amounts(&[("usd", 2)]);
    story.configuration = configuration(std::slice::from_ref(&month));
    let seed = story.acquire(&of_usd, at(T0 + 1_000));
    insta::assert_snapshot!("calendar_seeded", shown(&seed));
    story.image = seed.apply(story.image.as_ref());
    story.image.as_mut().unwrap().request_ids.clear();
    story.configuration = configuration(&[Limit::per_month("usd", 300)]);
    insta::assert_snapshot!("calendar_changed", shown(&story.acquire(&of_usd, at(T0 + 2_000))));
    story.configuration = configuration(&[Limit::per_day("usd", 300)]);
    insta::assert_snapshot!("calendar_removed", shown(&story.acquire(&of_usd, at(T0 + 2_000))));
}

#[test]
fn the_largest_writes_fit_into_an_expression() {
    largest_writes_fit(|name, burst| Limit::per_minute(name, 1_000_000).burst(burst));
    let calendar = "month@15/America/Argentina/ComodRivadavia".parse().unwrap();
    largest_writes_fit(|name, burst| {
        Limit::by_calendar(name, 2_000_000 - burst, calendar).forgive_debt()
    });
}

fn largest_writes_fit(limit: impl Fn(String, u64) -> Limit) {
    let names = |first: usize, count: usize| (first..first + count).map(|n| format!("{n:0>64}"));
    let limits = |first, count, burst| -> Rules {
        let limit = |name| limit(name, burst).check().unwrap();
        names(first, count).map(limit).collect()
    };
    let ask = |first, count, by: i64| -> Amounts {
        let amount = Millitokens::from_tokens(by).unwrap();
        names(first, count).map(|limit| (name(&limit), amount)).collect()
    };
    let stored = |first, count, dropped: usize| StoredRules {
        rules: limits(first, count, 9),
        deleted: names(0, dropped)
            .map(|limit| (name(&limit), LevelVersions([u64::MAX; 4])))
            .collect(),
        versions: LevelVersions([u64::MAX; 4]),
        ..StoredRules::default()
    };
    let of_item = |count| {
        let mut story = BucketHistory::new();
        story.configuration = Configuration::explicit(limits(0, count, 1_000_000));
        let create = story.acquire(&ask(0, count, 500_000), at(T0));
        story.image = create.apply(None);
        story.image.as_mut().unwrap().request_ids.clear();
        story
    };
    let check = |what: &str, plan: &WritePlan| {
        let (bytes, operators) = size(plan);
        assert!(bytes <= 4_096 && operators <= 300, "{what}: {bytes} bytes, {operators} operators");
    };
    let all = of_item(LIMITS_MAX);
    check("unclaimed", &all.acquire(&ask(0, LIMITS_MAX, 1), at(T0 + 50)));
    check("whole", &all.acquire(&ask(0, LIMITS_MAX, 1), at(T0 + 1_000)));
    check("cut", &all.acquire(&ask(0, LIMITS_MAX, 1), at(T0 + 900_000)));
    for (by, later) in [(1, 50), (1, 1_000), (1, 900_000), (-1, 1_000)] {
        let (amounts, later) = (ask(0, LIMITS_MAX, by), at(T0 + later));
        check(&format!("adjust by {by}, {later:?}"), &all.adjust(&amounts, later));
        check(&format!("force by {by}, {later:?}"), &all.force(&amounts, later));
    }
    for (kept, dropped) in [(0, LIMITS_MAX), (LIMITS_MAX, 0), (20, 20), (1, 39), (39, 1)] {
        let mut story = of_item(LIMITS_MAX);
        let rules = stored(LIMITS_MAX - kept, LIMITS_MAX, LIMITS_MAX - kept);
        story.configuration = Configuration { explicit: Arc::default(), stored: Some(rules) };
        let asked = ask(LIMITS_MAX - kept, LIMITS_MAX, 1);
        let later = at(T0 + 1_000);
        if dropped > 0 {
            let Decision::Repair(plan) = story.decide(&asked, later) else { panic!("no room") };
            check(&format!("{dropped} dropped, {kept} changed"), &plan);
            story.image = plan.apply(story.image.as_ref());
        }
        let plan = story.acquire(&asked, at(T0 + 2_000));
        check(&format!("{dropped} seeded, {kept} claimed"), &plan);
    }
    for count in [1, 20, LIMITS_MAX - 1] {
        // No limit has to go first: limits are changed and dropped in the write that seeds.
        let mut story = of_item(count);
        let room = LIMITS_MAX - count;
        story.configuration = Configuration {
            explicit: Arc::default(),
            stored: Some(stored(count / 2, LIMITS_MAX - count / 2, count / 2)),
        };
        let plan = story.acquire(&ask(count, room, 1), at(T0 + 1_000));
        check(&format!("{room} seeded, {count} changed or dropped"), &plan);
    }
}
