use std::collections::BTreeMap;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use sluicegate_core::{
    Acquire, Adjust, Adjustment, BucketId, ClaimInterval, Configuration, Decision, EntityId,
    EpochMillis, Force, Presume, Refill, Resource, Rule, Settle, Settlement, Standing, adjust,
    lease, lease_size, settle,
};
use sluicegate_testkit::{RedisServer, is_redis_under_test};

use super::*;
use crate::clock::TestClock;
use crate::error::InvalidRequest;
use crate::store::new_id;

const T0: i64 = 1_769_608_800_000;
const CASES: u32 = 96;
const DEADLINE: Duration = Duration::from_secs(20);

fn milli(amount: i64) -> Millitokens {
    Millitokens::new(amount).unwrap()
}

fn name(n: usize) -> LimitName {
    LimitName::new(format!("l{n}")).unwrap()
}

async fn server() -> Option<RedisServer> {
    if is_redis_under_test() { Some(RedisServer::start().await) } else { None }
}

/// Leases of one bucket.
struct Leasing {
    store: RedisStore,
    clock: TestClock,
    bucket: BucketId,
    configuration: Configuration,
}

/// What an order says.
#[derive(Debug, Clone, Default)]
struct Said {
    wanted: BTreeMap<LimitName, Wanted>,
    returned: Amounts,
    used: Option<Amounts>,
}

impl Said {
    fn wants(least: i64, most: i64) -> Self {
        let wanted = Wanted { least: milli(least), most: milli(most) };
        Self { wanted: [(name(0), wanted)].into(), ..Self::default() }
    }

    fn returns(self, amount: i64) -> Self {
        Self { returned: [(name(0), milli(amount))].into(), ..self }
    }

    fn counting(&self) -> Counting<'_> {
        self.used.as_ref().map_or(Counting::Leased, Counting::Used)
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
            configuration: Configuration::explicit(named.collect()),
        }
    }

    /// One limit of 100 tokens a second.
    fn a_hundred(server: &RedisServer) -> Self {
        let refill = Refill::new(milli(100_000), 1_000).unwrap();
        Self::on(server, "u", &[Rule::new(milli(100_000), refill).unwrap()])
    }

    fn order<'a>(&'a self, said: &'a Said) -> Order<'a> {
        Order {
            bucket: &self.bucket,
            configuration: &self.configuration,
            wanted: &said.wanted,
            returned: &said.returned,
            counting: said.counting(),
            last: None,
            deadline: DEADLINE,
        }
    }

    async fn lease(&self, said: &Said) -> Result<Done, Failed> {
        self.store.lease(&self.order(said), &self.clock).await
    }

    async fn resolve(&self, said: &Said, doubt: Doubt) -> Result<Done, Failed> {
        self.store.resolve(&self.order(said), doubt, &self.clock).await
    }
}

/// What was leased, what is left and what counts as consumed.
fn stand(done: &Done) -> (i64, i64, i64) {
    let limit = done.image.as_ref().unwrap().limits[&name(0)];
    let leased = done.leased.get(&name(0)).copied().unwrap_or(Millitokens::ZERO);
    (leased.get(), limit.tokens.get(), limit.consumed.get())
}

fn doubt(id: &RequestId, remembered: &[&Done]) -> Doubt {
    let remembered = remembered.iter().map(|done| done.id.clone()).collect();
    Doubt { id: id.clone(), leased: Amounts::new(), remembered, is_lost: false }
}

#[tokio::test]
async fn one_call_settles_and_leases_a_share_of_what_is_there() {
    let Some(server) = server().await else { return };
    let leasing = Leasing::a_hundred(&server);
    // A quarter of 100, within the bounds.
    let first = leasing.lease(&Said::wants(1_000, 80_000)).await.unwrap();
    assert_eq!((stand(&first), first.path), ((25_000, 75_000, 25_000), Some(WritePath::Create)));
    let small = leasing.lease(&Said::wants(1_000, 5_000).returns(20_000)).await.unwrap();
    assert_eq!((stand(&small), small.path), ((5_000, 90_000, 10_000), Some(WritePath::Normal)));
    let large = leasing.lease(&Said::wants(60_000, 60_000)).await.unwrap();
    assert_eq!(stand(&large), (60_000, 30_000, 70_000));

    // Refused as a whole: what would have come back has not, and counts for the wait.
    let refused = leasing.lease(&Said::wants(90_000, 90_000).returns(50_000)).await.unwrap_err();
    let AcquireError::LimitExceeded(exceeded) = &refused.error else { panic!("{refused:?}") };
    assert_eq!(exceeded.retry_after, Some(Duration::from_millis(100)));
    assert!(refused.doubt.is_none());

    // Settled alone, by what was used; what no longer fits is lost.
    let used = Some(Amounts::from([(name(0), milli(-3_000))]));
    let settled = leasing.lease(&Said { used, ..Said::default() }.returns(99_000)).await.unwrap();
    assert_eq!(stand(&settled), (0, 100_000, 67_000));
    let nothing = leasing.lease(&Said::default().returns(0)).await.unwrap();
    assert_eq!((stand(&nothing), nothing.path), ((0, 100_000, 67_000), None));

    let unknown =
        Leasing { configuration: Configuration::default(), ..Leasing::on(&server, "v", &[]) };
    let failed = unknown.lease(&Said::wants(1, 1)).await.unwrap_err();
    let is_unknown =
        matches!(failed.error, AcquireError::InvalidRequest(InvalidRequest::UnknownLimit(_)));
    assert!(is_unknown, "{failed:?}");
    drop(server);
    let said = Said::wants(1, 1);
    let order = Order { deadline: Duration::from_secs(1), ..unknown.order(&said) };
    let away = unknown.store.lease(&order, &unknown.clock).await.unwrap_err();
    assert!(matches!(away.error, AcquireError::Unavailable(_)), "{away:?}");
}

#[tokio::test]
async fn a_lease_that_was_not_answered_is_done_once() {
    let Some(server) = server().await else { return };
    let leasing = Leasing::a_hundred(&server);
    let said = Said::wants(1_000, 80_000);
    let first = leasing.lease(&said).await.unwrap();
    // It was done: the answer says what it took.
    let again = leasing.resolve(&said, doubt(&first.id, &[])).await.unwrap();
    assert_eq!((stand(&again), again.path), ((25_000, 75_000, 25_000), None));
    let settling = Said { wanted: BTreeMap::new(), ..said.clone() }.returns(0);
    let again = leasing.resolve(&settling, doubt(&first.id, &[])).await.unwrap();
    assert_eq!(stand(&again), (25_000, 75_000, 25_000));

    // It was not: it is now.
    let id = new_id();
    let done = leasing.resolve(&Said::wants(0, 9_000), doubt(&id, &[])).await.unwrap();
    assert_eq!((stand(&done), &done.id), ((9_000, 66_000, 34_000), &id));

    // Its tokens are not there any more: the rest of it is done, and it cannot land any more.
    let id = new_id();
    let said = Said::wants(90_000, 90_000).returns(4_000);
    let settled = leasing.resolve(&said, doubt(&id, &[&done])).await.unwrap();
    assert_eq!(stand(&settled), (0, 70_000, 30_000));
    leasing.clock.advance(Duration::from_secs(1));
    let late = leasing.resolve(&said, doubt(&id, &[])).await.unwrap();
    assert_eq!((late.leased.len(), late.path), (0, None));

    // Four others came since it may have been done.
    for _ in 0..4 {
        leasing.lease(&Said::wants(1, 1)).await.unwrap();
    }
    let lost = leasing.resolve(&said, doubt(&id, &[&settled])).await.unwrap_err();
    assert!(lost.doubt.is_some_and(|doubt| doubt.is_lost));
    assert_eq!(leasing.store.counters.ambiguous.get(), 1);
    // Three others, and the bucket remembers the one before it.
    let known = leasing.lease(&Said::wants(1, 1)).await.unwrap();
    for _ in 0..3 {
        leasing.lease(&Said::wants(1, 1)).await.unwrap();
    }
    leasing.resolve(&Said::wants(1, 1), doubt(&new_id(), &[&known])).await.unwrap();
}

#[tokio::test]
async fn what_three_other_leases_took_is_remembered_to_the_millitoken() {
    let Some(server) = server().await else { return };
    let most = 999_999_999_999_999;
    let rule = Rule::new(milli(most), Refill::new(milli(0), 1).unwrap()).unwrap();
    let leasing = Leasing::on(&server, "u", &[rule, rule]);
    let want = |milli| Wanted { least: milli, most: milli };
    let both = [(name(0), want(milli(most - 3))), (name(1), want(milli(7)))];
    let said = Said { wanted: both.into(), ..Said::default() };
    let first = leasing.lease(&said).await.unwrap();
    for _ in 0..3 {
        leasing.lease(&Said::wants(1, 1)).await.unwrap();
    }
    let again = leasing.resolve(&said, doubt(&first.id, &[])).await.unwrap();
    assert_eq!(again.leased, Amounts::from([(name(0), milli(most - 3)), (name(1), milli(7))]));
}

/// A number from 0 to `most`; small ones, large ones and those between are about as likely.
fn up_to(most: i64) -> impl Strategy<Value = i64> {
    (0..=64 - most.leading_zeros(), any::<u64>()).prop_map(move |(bits, random)| {
        i64::try_from(u128::from(random) % (1_u128 << bits)).unwrap_or(most).min(most)
    })
}

fn rule() -> impl Strategy<Value = Rule> {
    (up_to(1_000_000_000_000), up_to(86_400_000), up_to(100_000_000)).prop_map(
        |(burst, period, amount)| {
            let refill = Refill::new(milli(amount), period + 1).unwrap();
            Rule::new(milli(burst + 1), refill).unwrap()
        },
    )
}

/// Parts of a thousand of a burst.
#[derive(Debug, Clone)]
struct Shares {
    least: i64,
    most: i64,
    returned: i64,
}

#[derive(Debug, Clone)]
enum Step {
    /// Of every limit that is named, and whether what was used is counted.
    Lease(Vec<Option<Shares>>, bool),
    Correct(usize, i64),
    Advance(i64),
}

fn shares() -> impl Strategy<Value = Shares> {
    let least = prop_oneof![2 => Just(0_i64), 1 => 0..=700_i64];
    (least, 0..=1_000_i64, prop_oneof![Just(0_i64), 0..=500_i64])
        .prop_map(|(least, most, returned)| Shares { least, most, returned })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (vec(proptest::option::of(shares()), 3), any::<bool>())
            .prop_map(|(shares, counts)| Step::Lease(shares, counts)),
        2 => (0..3_usize, -400..=900_i64).prop_map(|(n, share)| Step::Correct(n, share)),
        3 => up_to(10_000_000_000).prop_map(Step::Advance),
    ]
}

/// A bucket in the server, and what `core` makes of the same orders.
struct Compared<'a> {
    server: &'a RedisServer,
    leasing: Leasing,
    image: Option<CompositeBucket>,
}

impl Compared<'_> {
    fn burst(&self, limit: &LimitName) -> i128 {
        self.leasing.configuration.rule(limit).unwrap().burst().get().into()
    }

    fn share(&self, limit: &LimitName, share: i64) -> Millitokens {
        Millitokens::saturating(self.burst(limit) * i128::from(share) / 1_000)
    }

    fn now(&self) -> EpochMillis {
        self.leasing.clock.now()
    }

    fn said(&self, shares: &[Option<Shares>], counts: bool) -> Said {
        let mut said = Said { used: counts.then(Amounts::new), ..Said::default() };
        let limits = self.leasing.configuration.explicit.keys();
        for (limit, shares) in limits.zip(shares) {
            let Some(shares) = shares else { continue };
            let (least, most) = (self.share(limit, shares.least), self.share(limit, shares.most));
            said.wanted.insert(limit.clone(), Wanted { least, most });
            said.returned.insert(limit.clone(), self.share(limit, shares.returned));
            let used = self.share(limit, shares.most - 300);
            said.used.iter_mut().for_each(|all| _ = all.insert(limit.clone(), used));
        }
        said
    }

    /// What `core` leases, or how what is asked stands.
    fn decide(&mut self, said: &Said) -> Result<Amounts, Vec<Standing>> {
        let Leasing { bucket, configuration, .. } = &self.leasing;
        let (image, now, id) = (self.image.as_ref(), self.now(), &new_id());
        let leased = lease_size(image, &said.wanted, &said.returned, configuration, now);
        let counted = said.used.clone().unwrap_or_else(|| {
            let net = |limit: &LimitName| {
                let of = |amounts: &Amounts| amounts.get(limit).map_or(0, |milli| milli.get());
                milli(of(&leased) - of(&said.returned))
            };
            let limits = said.wanted.keys().chain(said.returned.keys());
            limits.map(|limit| (limit.clone(), net(limit))).collect()
        });
        let settlement = Settlement { returned: said.returned.clone(), counted };
        let plan = if leased.is_empty() {
            let settling = Settle { bucket, settlement: &settlement, configuration, id };
            match settle(image, settling, now) {
                Adjustment::Write { plan, .. } => Some(plan),
                _ => None,
            }
        } else {
            let acquire = Acquire {
                bucket,
                amounts: &leased,
                configuration,
                id,
                interval: ClaimInterval(0),
                presume: Presume::Unchanged,
            };
            match lease(image, acquire, &settlement, now) {
                Decision::Write(plan) => Some(plan),
                Decision::Short(standings) => return Err(standings),
                other => panic!("{other:?}"),
            }
        };
        if let Some(plan) = plan {
            self.image = plan.changed(image);
        }
        Ok(leased)
    }

    async fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Advance(millis) => {
                self.leasing.clock.advance(Duration::from_millis(millis.unsigned_abs()));
            }
            Step::Correct(n, share) => self.correct(n, share).await,
            Step::Lease(shares, counts) => {
                let said = self.said(&shares, counts);
                let decided = self.decide(&said);
                match (self.leasing.lease(&said).await, decided) {
                    (Ok(done), Ok(leased)) => {
                        prop_assert_eq!(&done.leased, &leased);
                        self.compare(done.image.as_deref())?;
                        if done.path.is_some() {
                            let again = self.leasing.resolve(&said, doubt(&done.id, &[])).await;
                            prop_assert_eq!(&again.unwrap().leased, &leased);
                        }
                    }
                    (Err(Failed { error, doubt: None, .. }), Err(standings)) => {
                        let told = match error {
                            AcquireError::LimitExceeded(exceeded) => exceeded.limits,
                            AcquireError::NeverAdmissible(never) => never.limits,
                            other => return Err(TestCaseError::fail(format!("{other:?}"))),
                        };
                        for status in told {
                            let mut same = standings.iter().filter(|s| s.limit == status.limit);
                            prop_assert_eq!(Some(status.wait), same.next().map(|s| s.wait));
                        }
                    }
                    other => return Err(TestCaseError::fail(format!("{said:?}: {other:?}"))),
                }
            }
        }
        // The server's clock goes on while the test's stands still.
        let key = format!("sluicegate:{{{}}}#r", self.leasing.bucket.entity);
        self.server.send::<i64>(redis::cmd("PERSIST").arg(key)).await;
        let stored = self.leasing.store.bucket(&self.leasing.bucket, DEADLINE).await.unwrap();
        self.compare(stored.as_ref())
    }

    async fn correct(&mut self, n: usize, share: i64) {
        let limits = &self.leasing.configuration.explicit;
        let limit = limits.keys().nth(n % limits.len()).unwrap().clone();
        let amounts = Amounts::from([(limit.clone(), self.share(&limit, share))]);
        let Leasing { bucket, configuration, .. } = &self.leasing;
        let id = &new_id();
        let asked = Adjust {
            bucket,
            amounts: &amounts,
            configuration,
            id,
            interval: ClaimInterval(0),
            presume: Presume::Unchanged,
            force: Force::No,
        };
        if let Adjustment::Write { plan, .. } = adjust(self.image.as_ref(), asked, self.now()) {
            self.image = plan.changed(self.image.as_ref());
        }
        let deadline = DEADLINE;
        let correction = Correction { id, bucket, amounts: &amounts, configuration, deadline };
        let corrected = self.leasing.store.correct(&correction, &self.leasing.clock).await.unwrap();
        let image = corrected.image.unwrap();
        assert_eq!(self.stands(&image, &limit), self.stands(self.image.as_ref().unwrap(), &limit));
    }

    /// What there is of a limit now, and what was consumed.
    fn stands(&self, image: &CompositeBucket, limit: &LimitName) -> (i64, i64) {
        let bucket = image.limits[limit];
        let tokens = bucket.rule.effective(bucket.tokens, image.refilled_at, self.now());
        (tokens.get(), bucket.consumed.get())
    }

    fn compare(&self, stored: Option<&CompositeBucket>) -> Result<(), TestCaseError> {
        let (Some(stored), Some(image)) = (stored, &self.image) else { return Ok(()) };
        for limit in image.limits.keys() {
            prop_assert_eq!(self.stands(stored, limit), self.stands(image, limit), "{}", limit);
        }
        Ok(())
    }
}

#[test]
fn the_script_leases_and_settles_as_core_does() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let Some(server) = runtime.block_on(server()) else { return };
    let case = std::cell::Cell::new(0);
    let mut runner =
        TestRunner::new(Config { cases: CASES, failure_persistence: None, ..Config::default() });
    let run = |(rules, steps): (Vec<Rule>, Vec<Step>)| {
        case.set(case.get() + 1);
        runtime.block_on(async {
            let leasing = Leasing::on(&server, &format!("u{}", case.get()), &rules);
            let mut compared = Compared { server: &server, leasing, image: None };
            for step in steps {
                compared.step(step).await?;
            }
            Ok(())
        })
    };
    runner.run(&(vec(rule(), 1..=3), vec(step(), 1..24)), run).unwrap();
}
