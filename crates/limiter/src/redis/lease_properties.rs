//! The script against `core`: the same leases, settlements and corrections lead to the same bucket.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use sluicegate_core::{
    Action, Answer, BucketDemand, ClaimInterval, KnownImage, LimitStatus, Outcome, Purpose,
    QueueSettings, QueuedRequest, WriteQueue,
};

use super::*;

const CASES: u32 = 96;

/// A number from 0 to `most`; small, large and medium ones are about equally likely.
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

/// Thousandths of a burst.
#[derive(Debug, Clone)]
struct Shares {
    least: i64,
    most: i64,
    returned: i64,
}

#[derive(Debug, Clone)]
enum LeaseStep {
    /// For every named limit, and if the used tokens are counted.
    Lease(Vec<Option<Shares>>, bool),
    Correct(usize, i64),
    Advance(i64),
}

fn shares() -> impl Strategy<Value = Shares> {
    let least = prop_oneof![2 => Just(0_i64), 1 => 0..=700_i64];
    (least, 0..=1_000_i64, prop_oneof![Just(0_i64), 0..=500_i64])
        .prop_map(|(least, most, returned)| Shares { least, most, returned })
}

fn step() -> impl Strategy<Value = LeaseStep> {
    prop_oneof![
        5 => (vec(proptest::option::of(shares()), 3), any::<bool>())
            .prop_map(|(shares, counts)| LeaseStep::Lease(shares, counts)),
        2 => (0..3_usize, -400..=900_i64).prop_map(|(n, share)| LeaseStep::Correct(n, share)),
        3 => up_to(10_000_000_000).prop_map(LeaseStep::Advance),
    ]
}

/// A bucket on the server, and the bucket that `core` makes of the same requests.
struct ComparedLease<'a> {
    server: &'a RedisServer,
    leasing: Leasing,
    image: Option<CompositeBucket>,
}

impl ComparedLease<'_> {
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
            said.wanted.insert(limit.clone(), LeaseRange { least, most });
            said.returned.insert(limit.clone(), self.share(limit, shares.returned));
            let used = self.share(limit, shares.most - 300);
            said.used.iter_mut().for_each(|all| _ = all.insert(limit.clone(), used));
        }
        said
    }

    /// Carries a request out as the write queue of `core` does, to its outcome.
    fn decide(&mut self, purpose: Purpose, amounts: Amounts) -> Outcome {
        let Leasing { bucket, configuration, .. } = &self.leasing;
        let (now, id) = (self.now(), new_id());
        let policy = QueueSettings {
            interval: ClaimInterval(0),
            refusal_age_max_ms: 0,
            is_transactional: false,
        };
        let mut queue = WriteQueue::new([bucket.clone()], policy);
        let image = self.image.clone().map(Arc::new);
        queue.learn_unless_older(0, &KnownImage { image, as_of: now, is_authoritative: true });
        let configuration = Arc::new(configuration.clone());
        let demands = vec![BucketDemand { amounts, configuration }];
        queue.enter(
            QueuedRequest {
                id,
                purpose,
                demands,
                started_at: now,
                may_send_back_for_limits: false,
            },
            (),
            now,
        );
        loop {
            let action = queue.next(now, &mut new_id);
            if let Some(((), outcome)) = queue.drain_resolved().pop() {
                return outcome;
            }
            let answer = match action {
                Action::Read(_) => Answer::Read(vec![self.image.clone().map(Arc::new)]),
                Action::Write(write) => {
                    let after = write.plans[0].1.apply(self.image.as_ref());
                    self.image = Some(after.expect("no other process writes"));
                    Answer::Written(vec![self.image.clone().map(Arc::new)])
                }
                other => panic!("{other:?}"),
            };
            queue.answered(answer, now);
        }
    }

    /// The lease by `core`, or the status of the requested limits.
    fn decide_lease(&mut self, said: &Said) -> Result<Amounts, Vec<LimitStatus>> {
        let terms = said.terms();
        let least = terms.least();
        match self.decide(Purpose::Lease(terms), least) {
            Outcome::Done(done) => Ok(done.leased),
            Outcome::Refused(mut limits) => Err(limits.swap_remove(0)),
            other => panic!("{other:?}"),
        }
    }

    async fn step(&mut self, step: LeaseStep) -> Result<(), TestCaseError> {
        match step {
            LeaseStep::Advance(millis) => {
                self.leasing.clock.advance(Duration::from_millis(millis.unsigned_abs()));
            }
            LeaseStep::Correct(n, share) => self.correct(n, share).await,
            LeaseStep::Lease(shares, counts) => {
                let said = self.said(&shares, counts);
                let decided = self.decide_lease(&said);
                match (self.leasing.lease(&said).await, decided) {
                    (Ok(done), Ok(leased)) => {
                        prop_assert_eq!(&done.leased, &leased);
                        self.compare(done.image.as_deref())?;
                        if done.cost.path.is_some() {
                            let again = self.leasing.resolve(&said, in_doubt(&done.id, &[])).await;
                            prop_assert_eq!(&again.unwrap().leased, &leased);
                        }
                    }
                    (Err(LeaseError { error, in_doubt: None, .. }), Err(standings)) => {
                        let told = error
                            .into_refused()
                            .map_err(|error| TestCaseError::fail(format!("{error:?}")))?;
                        for status in told {
                            let mut same = standings.iter().filter(|s| s.limit == status.limit);
                            prop_assert_eq!(Some(status.wait), same.next().map(|s| s.wait));
                        }
                    }
                    other => return Err(TestCaseError::fail(format!("{said:?}: {other:?}"))),
                }
            }
        }
        // The server's clock runs while the test's stands still.
        let key = format!("sluicegate:{{{}}}#r", self.leasing.bucket.entity);
        self.server.send::<i64>(redis::cmd("PERSIST").arg(key)).await;
        let stored = self.leasing.store.bucket(&self.leasing.bucket, DEADLINE).await.unwrap();
        self.compare(stored.as_ref())
    }

    async fn correct(&mut self, n: usize, share: i64) {
        let limits = &self.leasing.configuration.explicit;
        let limit = limits.keys().nth(n % limits.len()).unwrap().clone();
        let amounts = Amounts::from([(limit.clone(), self.share(&limit, share))]);
        let outcome = self.decide(Purpose::Correct, amounts.clone());
        assert!(matches!(outcome, Outcome::Done(_)), "{outcome:?}");
        let Leasing { bucket, configuration, .. } = &self.leasing;
        let id = &new_id();
        let deadline = DEADLINE;
        let correction = Correction {
            id,
            bucket,
            amounts: &amounts,
            configuration,
            mark: None,
            is_repeated: false,
            deadline,
        };
        let corrected = self.leasing.store.correct(&correction, &self.leasing.clock).await.unwrap();
        let Some(image) = corrected.image else {
            assert_eq!(amounts[&limit], Millitokens::ZERO, "there is no bucket for nothing");
            return;
        };
        assert_eq!(self.stands(&image, &limit), self.stands(self.image.as_ref().unwrap(), &limit));
    }

    /// The balance and the consumption of a limit.
    fn stands(&self, image: &CompositeBucket, limit: &LimitName) -> (i64, i64) {
        let bucket = image.limits[limit];
        let tokens = bucket.rule.effective(bucket.tokens, image.refilled_at, self.now());
        (tokens.get(), i64::try_from(bucket.consumed.get()).unwrap())
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
#[ignore = "needs Redis: cargo xtask test"]
fn the_script_leases_and_settles_as_core_does() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(RedisServer::start());
    let case = std::cell::Cell::new(0);
    let mut runner =
        TestRunner::new(Config { cases: CASES, failure_persistence: None, ..Config::default() });
    let run = |(rules, steps): (Vec<Rule>, Vec<LeaseStep>)| {
        case.set(case.get() + 1);
        runtime.block_on(async {
            let leasing = Leasing::on(&server, &format!("u{}", case.get()), &rules);
            let mut compared = ComparedLease { server: &server, leasing, image: None };
            for step in steps {
                compared.step(step).await?;
            }
            Ok(())
        })
    };
    runner.run(&(vec(rule(), 1..=3), vec(step(), 1..24)), run).unwrap();
}
