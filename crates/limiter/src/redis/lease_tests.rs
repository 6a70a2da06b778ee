//! The effects of a lease, a settlement and a lost answer in the script.

use std::collections::BTreeMap;
use std::time::Duration;

use sluicegate_core::{
    BucketId, Configuration, EntityId, EpochMillis, Refill, RequestId, Resource, Rule, Rules,
};
use sluicegate_testkit::RedisServer;

use super::super::script::ACQUIRE;
use super::*;
use crate::call::new_id;
use crate::clock::TestClock;
use crate::error::InvalidRequest;
use crate::store::{Cascade, Store};

const T0: i64 = 1_769_608_800_000;
const DEADLINE: Duration = Duration::from_secs(20);

fn milli(amount: i64) -> Millitokens {
    Millitokens::new(amount).unwrap()
}

fn name(n: usize) -> LimitName {
    LimitName::new(format!("l{n}")).unwrap()
}

/// Leases of one bucket.
struct Leasing {
    store: RedisStore,
    clock: TestClock,
    bucket: BucketId,
    configuration: Configuration,
}

/// The content of a request.
#[derive(Debug, Clone, Default)]
struct Said {
    wanted: BTreeMap<LimitName, LeaseRange>,
    returned: Amounts,
    used: Option<Amounts>,
}

impl Said {
    fn wants(least: i64, most: i64) -> Self {
        let wanted = LeaseRange { least: milli(least), most: milli(most) };
        Self { wanted: [(name(0), wanted)].into(), ..Self::default() }
    }

    fn returns(self, amount: i64) -> Self {
        Self { returned: [(name(0), milli(amount))].into(), ..self }
    }

    fn terms(&self) -> Arc<LeaseTerms> {
        let Self { wanted, returned, used } = self.clone();
        Arc::new(LeaseTerms { wanted, returned, counted: used })
    }
}

impl Leasing {
    fn on(server: &RedisServer, id: &str, rules: &[Rule]) -> Self {
        let named = rules.iter().enumerate().map(|(n, rule)| (name(n), *rule));
        let (entity, resource) = (EntityId::new(id).unwrap(), Resource::new("r").unwrap());
        Self {
            store: RedisStore::new(server.url()).unwrap(),
            clock: TestClock::at(EpochMillis::new(T0).unwrap()),
            bucket: BucketId { entity, resource },
            configuration: Configuration::explicit(named.collect::<Rules>()),
        }
    }

    /// One limit of 100 tokens a second.
    fn a_hundred(server: &RedisServer) -> Self {
        let refill = Refill::new(milli(100_000), 1_000).unwrap();
        Self::on(server, "u", &[Rule::new(milli(100_000), refill).unwrap()])
    }

    fn order<'a>(&'a self, terms: &'a Arc<LeaseTerms>) -> LeaseRequest<'a> {
        LeaseRequest {
            bucket: &self.bucket,
            configuration: &self.configuration,
            terms,
            last: None,
            deadline: DEADLINE,
        }
    }

    async fn lease(&self, said: &Said) -> Result<LeaseOutcome, LeaseError> {
        self.store.lease(&self.order(&said.terms()), None, &self.clock).await
    }

    async fn resolve(
        &self,
        said: &Said,
        in_doubt: LeaseInDoubt,
    ) -> Result<LeaseOutcome, LeaseError> {
        self.store.lease(&self.order(&said.terms()), Some(in_doubt), &self.clock).await
    }
}

/// The leased amount, the balance and the consumption.
fn figures(done: &LeaseOutcome) -> (i64, i64, i64) {
    let limit = done.image.as_ref().unwrap().limits[&name(0)];
    let leased = done.leased.of(&name(0));
    (leased.get(), limit.tokens.get(), i64::try_from(limit.consumed.get()).unwrap())
}

fn in_doubt(id: &RequestId, remembered: &[&LeaseOutcome]) -> LeaseInDoubt {
    let remembered = remembered.iter().map(|done| done.id.clone()).collect();
    LeaseInDoubt {
        id: id.clone(),
        leased: Amounts::new(),
        remembered,
        is_ambiguous: false,
        lane: None,
    }
}

/// Another request, which waits for the write of this one, named a limit that nobody knows.
#[tokio::test]
#[ignore = "needs Redis: cargo xtask test"]
async fn a_limit_of_which_a_lease_needs_nothing_does_not_fail_it() {
    let server = RedisServer::start().await;
    let leasing = Leasing::a_hundred(&server);
    let mut said = Said::wants(1_000, 5_000);
    let extra = LeaseRange { least: Millitokens::ZERO, most: milli(5_000) };
    said.wanted.insert(name(7), extra);
    let done = leasing.lease(&said).await.unwrap();
    assert_eq!(figures(&done), (5_000, 95_000, 5_000));
    said.wanted.insert(name(7), LeaseRange { least: milli(1), ..extra });
    let unknown = leasing.lease(&said).await.unwrap_err().error;
    let limit = InvalidRequest::UnknownLimit(name(7));
    assert!(matches!(&unknown, AcquireError::InvalidRequest(invalid) if *invalid == limit));
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test"]
async fn one_call_settles_and_leases_a_share_of_what_is_there() {
    let server = RedisServer::start().await;
    let leasing = Leasing::a_hundred(&server);
    // A quarter of 100, within the bounds.
    let first = leasing.lease(&Said::wants(1_000, 80_000)).await.unwrap();
    assert_eq!(
        (figures(&first), first.cost.path),
        ((25_000, 75_000, 25_000), Some(WritePath::Create))
    );
    let small = leasing.lease(&Said::wants(1_000, 5_000).returns(20_000)).await.unwrap();
    assert_eq!(
        (figures(&small), small.cost.path),
        ((5_000, 90_000, 10_000), Some(WritePath::Claim))
    );
    let large = leasing.lease(&Said::wants(60_000, 60_000)).await.unwrap();
    assert_eq!(figures(&large), (60_000, 30_000, 70_000));

    // Refused as a whole: the tokens were not given back, and the wait takes them into account.
    let refused = leasing.lease(&Said::wants(90_000, 90_000).returns(50_000)).await.unwrap_err();
    let AcquireError::LimitExceeded(exceeded) = &refused.error else { panic!("{refused:?}") };
    assert_eq!(exceeded.retry_after, Some(Duration::from_millis(100)));
    assert!(refused.in_doubt.is_none());

    // Settled alone, by the used amount; tokens that no longer fit are lost.
    let used = Some(Amounts::from([(name(0), milli(-3_000))]));
    let settled = leasing.lease(&Said { used, ..Said::default() }.returns(99_000)).await.unwrap();
    assert_eq!(figures(&settled), (0, 100_000, 67_000));
    let nothing = leasing.lease(&Said::default().returns(0)).await.unwrap();
    assert_eq!((figures(&nothing), nothing.cost.path), ((0, 100_000, 67_000), None));

    let unknown =
        Leasing { configuration: Configuration::default(), ..Leasing::on(&server, "v", &[]) };
    let failed = unknown.lease(&Said::wants(1, 1)).await.unwrap_err();
    let is_unknown =
        matches!(failed.error, AcquireError::InvalidRequest(InvalidRequest::UnknownLimit(_)));
    assert!(is_unknown, "{failed:?}");
    drop(server);
    let terms = Said::wants(1, 1).terms();
    let order = LeaseRequest { deadline: Duration::from_secs(1), ..unknown.order(&terms) };
    let away = unknown.store.lease(&order, None, &unknown.clock).await.unwrap_err();
    assert!(matches!(away.error, AcquireError::Unavailable(_)), "{away:?}");
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test"]
async fn a_lease_that_was_not_answered_is_done_once() {
    let server = RedisServer::start().await;
    let leasing = Leasing::a_hundred(&server);
    let said = Said::wants(1_000, 80_000);
    let first = leasing.lease(&said).await.unwrap();
    // It was done: the answer names the leased amount.
    let again = leasing.resolve(&said, in_doubt(&first.id, &[])).await.unwrap();
    assert_eq!((figures(&again), again.cost.path), ((25_000, 75_000, 25_000), None));
    let settling = Said { wanted: BTreeMap::new(), ..said.clone() }.returns(0);
    let again = leasing.resolve(&settling, in_doubt(&first.id, &[])).await.unwrap();
    assert_eq!(figures(&again), (25_000, 75_000, 25_000));

    // It was not done: it is done now.
    let id = new_id();
    let done = leasing.resolve(&Said::wants(0, 9_000), in_doubt(&id, &[])).await.unwrap();
    assert_eq!((figures(&done), &done.id), ((9_000, 66_000, 34_000), &id));

    // Its tokens are no longer there: the rest of it is done, and it can no longer take effect.
    let id = new_id();
    let said = Said::wants(90_000, 90_000).returns(4_000);
    let settled = leasing.resolve(&said, in_doubt(&id, &[&done])).await.unwrap();
    assert_eq!(figures(&settled), (0, 70_000, 30_000));
    leasing.clock.advance(Duration::from_secs(1));
    let late = leasing.resolve(&said, in_doubt(&id, &[])).await.unwrap();
    assert_eq!((late.leased.len(), late.cost.path), (0, None));

    // Four others wrote since it may have been done.
    for _ in 0..4 {
        leasing.lease(&Said::wants(1, 1)).await.unwrap();
    }
    let lost = leasing.resolve(&said, in_doubt(&id, &[&settled])).await.unwrap_err();
    assert!(lost.in_doubt.is_some_and(|in_doubt| in_doubt.is_ambiguous));
    // The other one is the settlement that was sent again: it may return its tokens twice.
    assert_eq!(leasing.store.counters.ambiguous.get(), 2);
    // Three others, and the bucket remembers the one before it.
    let known = leasing.lease(&Said::wants(1, 1)).await.unwrap();
    for _ in 0..3 {
        leasing.lease(&Said::wants(1, 1)).await.unwrap();
    }
    leasing.resolve(&Said::wants(1, 1), in_doubt(&new_id(), &[&known])).await.unwrap();
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test"]
async fn lease_after_three_others_is_remembered_to_the_millitoken() {
    let server = RedisServer::start().await;
    let most = 999_999_999_999_999;
    let rule = Rule::new(milli(most), Refill::new(milli(0), 1).unwrap()).unwrap();
    let leasing = Leasing::on(&server, "u", &[rule, rule]);
    let want = |milli| LeaseRange { least: milli, most: milli };
    let both = [(name(0), want(milli(most - 3))), (name(1), want(milli(7)))];
    let said = Said { wanted: both.into(), ..Said::default() };
    let first = leasing.lease(&said).await.unwrap();
    for _ in 0..3 {
        leasing.lease(&Said::wants(1, 1)).await.unwrap();
    }
    let again = leasing.resolve(&said, in_doubt(&first.id, &[])).await.unwrap();
    assert_eq!(again.leased, Amounts::from([(name(0), milli(most - 3)), (name(1), milli(7))]));
}

/// The bucket keeps the amounts of a lease as long as it remembers the id. Until then no acquire is
/// usual.
#[tokio::test]
#[ignore = "needs Redis: cargo xtask test"]
async fn a_lease_is_forgotten_with_its_id() {
    let server = RedisServer::start().await;
    let leasing = Leasing::a_hundred(&server);
    leasing.lease(&Said::wants(1, 10_000)).await.unwrap();
    let configuration = Arc::new(leasing.configuration.clone());
    let targets = [ScriptBucket { bucket: leasing.bucket.clone(), configuration }];
    let mut usual = Vec::new();
    for _ in 0..6 {
        let amounts = Amounts::from([(name(0), milli(1))]);
        let sent = SentAt { now_ms: T0, attempts_in_doubt: 0 };
        let call = leasing.store.take_or_correct_call(&targets, &amounts, &new_id(), sent);
        let values = ACQUIRE.run(&leasing.store.connection, &call).await.unwrap();
        usual.push(Reply::new(values).is_usual());
    }
    assert_eq!(usual, [false, false, false, false, true, true]);
}

#[path = "lease_properties.rs"]
mod properties;

/// Otherwise the next outage would begin with the balance from before the correction.
#[tokio::test]
#[ignore = "needs Redis: cargo xtask test"]
async fn a_correction_and_a_grant_are_seen_by_requests_that_are_decided_without_a_call() {
    let server = RedisServer::start().await;
    let leasing = Leasing::a_hundred(&server);
    let (store, id) = (&leasing.store, &new_id());
    let known = || store.images.get(&leasing.bucket).map(|image| image.limits[&name(0)].tokens);
    let amounts = Amounts::from([(name(0), milli(5_000))]);
    let correction = Correction {
        id,
        bucket: &leasing.bucket,
        amounts: &amounts,
        configuration: &leasing.configuration,
        mark: None,
        is_repeated: false,
        deadline: DEADLINE,
    };
    Store::adjust(store, &correction, &leasing.clock).await.unwrap();
    assert_eq!(known(), None, "a program that does not lease");
    leasing.lease(&Said::wants(10_000, 10_000)).await.unwrap();
    let request = Request {
        entity: leasing.bucket.entity.clone(),
        resource: leasing.bucket.resource.clone(),
        amounts: amounts.clone(),
        limits: leasing.configuration.explicit.clone(),
        parent_limits: None,
        cascade: Cascade::No,
        deadline: DEADLINE,
    };
    let before = known().unwrap().get();
    Store::acquire(store, &request, &leasing.clock).await.unwrap();
    assert_eq!(known().unwrap().get(), before - 5_000);
    let correction = Correction { id: &new_id(), ..correction };
    Store::adjust(store, &correction, &leasing.clock).await.unwrap();
    assert_eq!(known().unwrap().get(), before - 10_000);
}
