//! Compares usual acquires and corrections with the whole scripts. Two buckets get the same calls,
//! one of them only through the whole scripts, and stay equal to the byte. `arithmetic.rs` of the
//! tests compares both with the arithmetic of `core`.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use redis::{Value, cmd};
use sluicegate_core::fixtures::by_calendar;
use sluicegate_core::{
    Amounts, BucketId, Configuration, EntityId, EpochMillis, LeaseRange, LeaseTerms, LimitName,
    Millitokens, Refill, RequestId, Resource, Rule, Rules,
};
use sluicegate_testkit::RedisServer;

use super::RedisStore;
use super::boundaries::Boundaries;
use super::reply::Reply;
use super::script::{ACQUIRE, ADJUST, Script, WHOLE_ACQUIRE, WHOLE_ADJUST};
use super::script_bucket::SentAt;
use crate::clock::{Clock as _, TestClock};
use crate::leasing_store::{LeaseCalls as _, LeaseInDoubt, LeaseRequest};
use crate::store::{Cascade, Request};

const CASES: u32 = 160;
const DEADLINE: Duration = Duration::from_secs(20);
const MILLI_MAX: i64 = super::range::MILLI_MAX;

fn milli(amount: i64) -> Millitokens {
    Millitokens::new(amount).unwrap()
}

fn name(n: usize) -> LimitName {
    LimitName::new(format!("l{n}")).unwrap()
}

/// A number from 0 to `most`; small, large and medium ones are about equally likely.
fn up_to(most: i64) -> impl Strategy<Value = i64> {
    (0..=64 - most.leading_zeros(), any::<u64>()).prop_map(move |(bits, random)| {
        i64::try_from(u128::from(random) % (1_u128 << bits)).unwrap_or(most).min(most)
    })
}

fn rule() -> impl Strategy<Value = Rule> {
    let evenly = (up_to(MILLI_MAX - 1), up_to(86_400_000), up_to(100_000_000)).prop_map(
        |(burst, period, amount)| {
            let refill = Refill::new(milli(amount), period + 1).unwrap();
            Rule::new(milli(burst + 1), refill).unwrap()
        },
    );
    let calendars = ["day/Pacific/Guam", "week,debt=forgiven", "month@31/Europe/Berlin"];
    let by_calendar = (up_to(MILLI_MAX - 1), prop::sample::select(calendars.to_vec()))
        .prop_map(|(amount, calendar)| by_calendar(amount + 1, calendar));
    prop_oneof![3 => evenly, 1 => by_calendar]
}

/// Shares are thousandths of a burst; with `again`, an id is one of the last few.
#[derive(Debug, Clone)]
enum Step {
    Acquire {
        shares: Vec<i64>,
        again: Option<usize>,
        in_doubt: u32,
        cascades: bool,
    },
    Correct {
        n: usize,
        share: i64,
        again: Option<usize>,
        in_doubt: u32,
    },
    Lease {
        n: usize,
        share: i64,
        again: Option<usize>,
    },
    Move(i64),
    Change(usize, Rule),
    /// The number of limits that the next requests name.
    Name(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let again = || proptest::option::weighted(0.15, 0..6_usize);
    let in_doubt = || prop_oneof![9 => Just(0_u32), 1 => Just(1)];
    let by = prop_oneof![3 => -60..=60_i64, 1 => -1_500..=1_500_i64];
    let share = prop_oneof![2 => 0..=40_i64, 1 => 0..=1_001_i64];
    prop_oneof![
        12 => (vec(share, 3), again(), in_doubt(), proptest::bool::weighted(0.2)).prop_map(
            |(shares, again, in_doubt, cascades)| Step::Acquire { shares, again, in_doubt, cascades }
        ),
        6 => (0..3_usize, by, again(), in_doubt())
            .prop_map(|(n, share, again, in_doubt)| Step::Correct { n, share, again, in_doubt }),
        1 => (0..3_usize, 0..=400_i64, again())
            .prop_map(|(n, share, again)| Step::Lease { n, share, again }),
        4 => up_to(10_000_000_000).prop_map(Step::Move),
        1 => (-150_000..=0_i64).prop_map(Step::Move),
        1 => (0..3_usize, rule()).prop_map(|(n, rule)| Step::Change(n, rule)),
        1 => (1..=3_usize).prop_map(Step::Name),
    ]
}

/// A store for the usual path and one for the whole script, with a bucket each.
struct Compared<'a> {
    server: &'a RedisServer,
    stores: [(RedisStore, [&'static Script; 2]); 2],
    clock: TestClock,
    bucket: BucketId,
    rules: Vec<Rule>,
    named: usize,
    ids: Vec<RequestId>,
    /// Acquires and corrections that were usual.
    usual: &'a Cell<[u32; 2]>,
}

impl<'a> Compared<'a> {
    fn new(
        server: &'a RedisServer,
        entity: &str,
        rules: Vec<Rule>,
        usual: &'a Cell<[u32; 2]>,
    ) -> Self {
        let store = |prefix: &str| RedisStore::new(server.url()).unwrap().prefix(prefix);
        Self {
            server,
            stores: [
                (store("usual:"), [&ACQUIRE, &ADJUST]),
                (store("whole:"), [&WHOLE_ACQUIRE, &WHOLE_ADJUST]),
            ],
            clock: TestClock::at(EpochMillis::new(1_769_608_800_000).unwrap()),
            bucket: BucketId {
                entity: EntityId::new(entity).unwrap(),
                resource: Resource::new("r").unwrap(),
            },
            named: rules.len(),
            rules,
            ids: Vec::new(),
            usual,
        }
    }

    fn rules(&self) -> Rules {
        (0..self.named).map(|n| (name(n), self.rules[n])).collect()
    }

    fn share(&self, n: usize, share: i64) -> Millitokens {
        let amount = i128::from(self.rules[n].burst().get()) * i128::from(share) / 1_000;
        milli(i64::try_from(amount).unwrap().clamp(-MILLI_MAX, MILLI_MAX))
    }

    /// A new id, or an earlier one.
    fn id(&mut self, again: Option<usize>) -> RequestId {
        if let Some(id) = again.and_then(|n| self.ids.iter().rev().nth(n)) {
            return id.clone();
        }
        self.ids.push(crate::call::new_id());
        self.ids[self.ids.len() - 1].clone()
    }

    async fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Acquire { shares, again, in_doubt, cascades } => {
                let named = shares.iter().enumerate().take(self.named);
                let amounts = named.map(|(n, share)| (name(n), self.share(n, *share)));
                let amounts: Amounts = amounts.filter(|(_, amount)| amount.get() > 0).collect();
                let id = self.id(again);
                self.send(0, amounts, &id, (in_doubt, cascades)).await?;
            }
            Step::Correct { n, share, again, in_doubt } => {
                let (n, id) = (n % self.named, self.id(again));
                let amounts = Amounts::from([(name(n), self.share(n, share))]);
                self.send(1, amounts, &id, (in_doubt, false)).await?;
            }
            Step::Lease { n, share, again } => self.lease(n % self.named, share, again).await,
            Step::Move(millis) => {
                let now = EpochMillis::new(self.clock.now().get() + millis).unwrap();
                self.clock.set(now);
            }
            Step::Change(n, rule) => self.rules[n % self.named] = rule,
            Step::Name(count) => self.named = count.min(self.rules.len()),
        }
        self.compare().await
    }

    /// Sends an acquire (0) or a correction (1) to both buckets.
    async fn send(
        &self,
        which: usize,
        amounts: Amounts,
        id: &RequestId,
        (attempts_in_doubt, cascades): (u32, bool),
    ) -> Result<(), TestCaseError> {
        let parent = || Cascade::To(EntityId::new(format!("{}-top", self.bucket.entity)).unwrap());
        let request = Request {
            entity: self.bucket.entity.clone(),
            resource: self.bucket.resource.clone(),
            amounts,
            limits: self.rules().into(),
            parent_limits: None,
            cascade: if cascades { parent() } else { Cascade::No },
            deadline: DEADLINE,
        };
        let mut replies = Vec::new();
        for (store, scripts) in &self.stores {
            let sent = SentAt { now_ms: self.clock.now().get(), attempts_in_doubt };
            let targets = store.targets(&request).unwrap();
            let mut boundaries = Boundaries::around(self.clock.now(), &targets);
            replies.push(loop {
                let mut call = store.take_or_correct_call(&targets, &request.amounts, id, sent);
                boundaries.append_to(&mut call);
                let reply = scripts[which].run(&store.connection, &call).await.unwrap();
                let asked = Boundaries::asked_by(&mut Reply::new(reply.clone()), targets.len());
                let Some(asked) = asked.unwrap() else { break reply };
                boundaries = asked;
            });
        }
        let (usual, whole) = (&replies[0], &replies[1]);
        if let Value::BulkString(_) = usual[0] {
            let mut counts = self.usual.get();
            counts[which] += 1;
            self.usual.set(counts);
            prop_assert_eq!(&whole[0], &Value::Int(0));
            prop_assert_eq!(usual, &whole[4..]);
        } else {
            prop_assert_eq!(usual, whole);
        }
        Ok(())
    }

    async fn lease(&mut self, n: usize, share: i64, again: Option<usize>) {
        let want = LeaseRange { least: milli(0), most: self.share(n, share) };
        let terms = LeaseTerms { wanted: [(name(n), want)].into(), ..LeaseTerms::default() };
        let terms = Arc::new(terms);
        let id = self.id(again);
        for (store, _) in &self.stores {
            let order = LeaseRequest {
                bucket: &self.bucket,
                configuration: &Configuration::explicit(self.rules()),
                terms: &terms,
                last: None,
                deadline: DEADLINE,
            };
            // The id of a lease in doubt is the caller's. Both buckets get the same call.
            let (leased, remembered, is_ambiguous) = (Amounts::new(), Vec::new(), false);
            let in_doubt =
                LeaseInDoubt { id: id.clone(), leased, remembered, is_ambiguous, lane: None };
            let _ = store.lease(&order, Some(in_doubt), &self.clock).await;
        }
    }

    async fn compare(&self) -> Result<(), TestCaseError> {
        for entity in [self.bucket.entity.to_string(), format!("{}-top", self.bucket.entity)] {
            let mut stored = Vec::new();
            for prefix in ["usual:", "whole:"] {
                let key = format!("{prefix}{{{entity}}}#r");
                let value: Option<Vec<u8>> = self.server.send(cmd("GET").arg(&key)).await;
                let seconds: i64 = self.server.send(cmd("TTL").arg(&key)).await;
                // The server's clock runs while the test's stands still.
                self.server.send::<i64>(cmd("PERSIST").arg(key)).await;
                stored.push((value, seconds));
            }
            prop_assert_eq!(&stored[0].0, &stored[1].0);
            let apart = stored[0].1.abs_diff(stored[1].1);
            // A second may have passed, and a time in fractions may differ in the last digit of a
            // double.
            prop_assert!(apart <= 2, "{:?}", (stored[0].1, stored[1].1));
        }
        Ok(())
    }
}

#[test]
#[ignore = "needs Redis: cargo xtask test"]
fn usual_calls_leave_the_bytes_that_the_whole_scripts_leave() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(RedisServer::start());
    let (case, usual) = (Cell::new(0), Cell::new([0, 0]));
    let mut runner =
        TestRunner::new(Config { cases: CASES, failure_persistence: None, ..Config::default() });
    let run = |(rules, steps): (Vec<Rule>, Vec<Step>)| {
        case.set(case.get() + 1);
        let mut compared = Compared::new(&server, &format!("u{}", case.get()), rules, &usual);
        runtime.block_on(async {
            for step in steps {
                compared.step(step).await?;
            }
            Ok(())
        })
    };
    runner.run(&(vec(rule(), 1..=3), vec(step(), 1..24)), run).unwrap();
    assert!(usual.get().iter().all(|count| *count > CASES / 2), "{:?} were usual", usual.get());
}
