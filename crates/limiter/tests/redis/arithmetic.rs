//! Compares the scripts with the arithmetic of `core`, over the whole range that the store accepts.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use redis::cmd;
use sluicegate::error::InvalidRequest;
use sluicegate::types::{BucketId, EpochMillis, LimitName, Millitokens, Refill, Rule, Wait};
use sluicegate::{AcquireError, AdjustError, EntityId, Limit, Limiter, Resource, TestClock};
use sluicegate_testkit::RedisServer;

use super::{at, limiter, milli, name, shown};

const MILLI_MAX: i64 = 1_000_000_000_000_000;
const PRODUCT_MAX: i64 = (1 << 53) - 1;
/// A refill time this far ahead is pulled back.
const AHEAD_MS: i64 = 60_000;
const CASES: u32 = 128;

/// A number from 0 to `most`; small, large and medium ones are about equally likely.
fn up_to(most: i64) -> impl Strategy<Value = i64> {
    let bits = 64 - most.leading_zeros();
    (0..=bits, any::<u64>()).prop_map(move |(bits, random)| {
        let below = 1_u128 << bits;
        i64::try_from(u128::from(random) % below).unwrap_or(most).min(most)
    })
}

fn rule() -> impl Strategy<Value = Rule> {
    let calendars = ["day/Pacific/Guam", "week", "month@31/Europe/Berlin", "year@02-29"];
    let debts = prop_oneof![Just(""), Just(",debt=forgiven")];
    let by_calendar = (up_to(MILLI_MAX - 1), prop::sample::select(calendars.to_vec()), debts)
        .prop_map(|(amount, calendar, debt)| {
            let boundaries = format!("{calendar}{debt}").parse().unwrap();
            Rule::by_calendar(milli(amount + 1), boundaries).unwrap()
        });
    prop_oneof![3 => evenly(), 1 => by_calendar]
}

fn evenly() -> impl Strategy<Value = Rule> {
    (up_to(MILLI_MAX - 1), up_to(Refill::MAX_PERIOD_MS - 1))
        .prop_flat_map(|(burst, period)| {
            let period = period + 1;
            let amount = up_to((PRODUCT_MAX / period).min(Millitokens::MAX.get()));
            (Just(burst + 1), amount, Just(period))
        })
        .prop_flat_map(|(burst, amount, period)| {
            // The same rate in higher terms.
            let most = (Millitokens::MAX.get() / amount.max(1)).min(Refill::MAX_PERIOD_MS / period);
            (
                Just((burst, amount, period)),
                prop_oneof![Just(1), up_to(most - 1).prop_map(|n| n + 1)],
            )
        })
        .prop_map(|((burst, amount, period), factor)| {
            let (amount, period) = (amount * factor, period * factor);
            Rule::new(milli(burst), Refill::new(milli(amount), period).unwrap()).unwrap()
        })
}

#[derive(Debug, Clone)]
enum Step {
    /// A share of each limit's burst, in thousandths.
    Acquire(Vec<i64>),
    /// The same of one limit, more or less.
    Adjust(usize, i64),
    Advance(i64),
    GoBack(i64),
    /// Moves to the first millisecond at which a limit has earned one more millitoken, or the one
    /// before.
    Edge(usize, i64),
    Change(usize, Rule),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => vec(0..=1_001_i64, 3).prop_map(Step::Acquire),
        2 => (0..3_usize, -1_500..=1_500_i64).prop_map(|(n, share)| Step::Adjust(n, share)),
        3 => up_to(10_000_000_000_000).prop_map(Step::Advance),
        1 => (0..=60_000_i64).prop_map(Step::GoBack),
        3 => (0..3_usize, 0..=1_i64).prop_map(|(n, before)| Step::Edge(n, before)),
        1 => (0..3_usize, rule()).prop_map(|(n, rule)| Step::Change(n, rule)),
    ]
}

/// The expected state of a bucket.
#[derive(Debug, Default)]
struct Model {
    refilled_at: Option<EpochMillis>,
    limits: BTreeMap<LimitName, (Rule, Millitokens, i64)>,
}

impl Model {
    /// Counts the refill up to now; limits that are named get these rules.
    fn claim(&mut self, now: EpochMillis, rules: &BTreeMap<LimitName, Rule>) {
        let last = self.refilled_at.unwrap_or(now);
        let is_ahead = last.get() > now.get() + AHEAD_MS;
        let until = if is_ahead { now } else { last.max(now) };
        for (rule, tokens, _) in self.limits.values_mut() {
            *tokens = rule.effective(*tokens, last, until);
        }
        self.refilled_at = Some(until);
        for (limit, rule) in rules {
            let (old, tokens, consumed) =
                self.limits.get(limit).copied().unwrap_or((*rule, rule.burst(), 0));
            let (tokens, burst) = (tokens.get(), rule.burst().get());
            let is_rate = |rule: Rule| rule.refill().even_amount().get() > 0;
            let kept = match (is_rate(old), is_rate(*rule)) {
                (false, false) => tokens + burst - old.burst().get(),
                (true, false) => burst + tokens.min(0),
                (_, true) => tokens,
            };
            let tokens = kept.min(burst).max(-MILLI_MAX);
            self.limits.insert(limit.clone(), (*rule, milli(tokens), consumed));
        }
    }

    fn take(&mut self, limit: &LimitName, amount: i64) {
        let (rule, tokens, consumed) = self.limits.get_mut(limit).unwrap();
        *tokens = milli((tokens.get() - amount).min(rule.burst().get()).max(-MILLI_MAX));
        *consumed += amount;
    }
}

/// A bucket on the server and its expected state.
struct Compared<'a> {
    server: &'a RedisServer,
    limiter: Limiter,
    clock: TestClock,
    entity: String,
    rules: BTreeMap<LimitName, Rule>,
    model: Model,
}

impl Compared<'_> {
    fn limits(&self) -> Vec<Limit> {
        self.rules.iter().map(|(limit, rule)| Limit::from_rule(limit, *rule)).collect()
    }

    async fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Acquire(shares) => self.acquire(&shares).await?,
            Step::Adjust(n, share) => self.adjust(n, share).await?,
            Step::Advance(millis) => {
                let left = EpochMillis::MAX.get() - self.clock.now_millis();
                self.clock.advance(Duration::from_millis(millis.min(left).unsigned_abs()));
            }
            Step::Edge(n, before) => {
                let rule = self.rules.values().nth(n % self.rules.len()).unwrap();
                let (amount, period) = (rule.refill().amount().get(), rule.refill().period_ms());
                let more = rule.refill().accrued(self.clock.now_epoch()) + 1;
                let (scaled, amount) = (more * i128::from(period), i128::from(amount.max(1)));
                let edge = scaled / amount + i128::from(scaled % amount != 0);
                let edge = i64::try_from(edge).unwrap_or(i64::MAX).min(EpochMillis::MAX.get());
                let edge = match rule.refill().calendar() {
                    None => edge,
                    Some(boundaries) => {
                        let period = boundaries.calendar.period(self.clock.now_epoch());
                        period.end.unwrap_or(EpochMillis::MAX).get()
                    }
                };
                let millis = edge - before;
                self.clock.set(at(millis.max(self.clock.now_millis())));
            }
            Step::GoBack(millis) => self.clock.set(at((self.clock.now_millis() - millis).max(0))),
            Step::Change(n, rule) => {
                let limit = self.rules.keys().nth(n % self.rules.len()).unwrap().clone();
                // The period of a limit that does not refill is not kept.
                let rule = Limit::from_rule(&limit, rule).check().unwrap().1;
                self.rules.insert(limit, rule);
            }
        }
        self.compare().await
    }

    async fn acquire(&mut self, shares: &[i64]) -> Result<(), TestCaseError> {
        let share = |(rule, share): (&Rule, &i64)| {
            i64::try_from(i128::from(rule.burst().get()) * i128::from(*share) / 1_000).unwrap()
        };
        let asked: Vec<_> = self.rules.values().zip(shares).map(share).collect();
        let mut request = self.limiter.acquire(&self.entity, "r").limits(self.limits());
        for (limit, milli) in self.rules.keys().zip(&asked).filter(|(_, milli)| **milli > 0) {
            request = request.consume_milli(limit.as_str(), *milli);
        }
        let now = self.clock.now_epoch();
        let mut after = Model { limits: self.model.limits.clone(), ..self.model };
        after.claim(now, &self.rules);
        let waits = |(limit, asked): (&LimitName, &i64)| {
            let (rule, tokens, _) = after.limits[limit];
            let wait = rule.wait_for(milli(*asked), tokens, after.refilled_at.unwrap(), now);
            (*asked > 0).then_some((limit.clone(), wait))
        };
        let waits: Vec<_> = self.rules.keys().zip(&asked).filter_map(waits).collect();
        let is_short = waits.iter().any(|(_, wait)| *wait != Wait::None);
        let told = match request.await {
            Ok(_) if !waits.is_empty() && !is_short => {
                for (limit, asked) in self.rules.keys().zip(&asked) {
                    after.take(limit, *asked);
                }
                self.model = after;
                return Ok(());
            }
            Err(AcquireError::InvalidRequest(InvalidRequest::Empty)) if waits.is_empty() => {
                return Ok(());
            }
            Err(AcquireError::InvalidRequest(InvalidRequest::BeyondStore { .. })) => {
                prop_assert!(asked.iter().any(|asked| *asked > MILLI_MAX));
                return Ok(());
            }
            Err(AcquireError::LimitExceeded(exceeded)) if is_short => exceeded.limits,
            Err(AcquireError::NeverAdmissible(never)) if is_short => never.limits,
            other => return Err(TestCaseError::fail(format!("{other:?} where {waits:?}"))),
        };
        let is_changed = |(limit, rule): (&LimitName, &Rule)| {
            self.model.limits.get(limit).is_some_and(|(before, ..)| before != rule)
        };
        if self.rules.iter().any(is_changed) {
            self.model = after;
        } else if self.model.refilled_at.is_some_and(|last| last.get() > now.get() + AHEAD_MS) {
            self.model.claim(now, &BTreeMap::new());
        }
        let told: Vec<_> = told.into_iter().map(|status| (status.limit, status.wait)).collect();
        prop_assert_eq!(told, waits);
        Ok(())
    }

    async fn adjust(&mut self, n: usize, share: i64) -> Result<(), TestCaseError> {
        let (limit, rule) = self.rules.iter().nth(n % self.rules.len()).unwrap();
        let by = i128::from(rule.burst().get()) * i128::from(share) / 1_000;
        let by = i64::try_from(by).unwrap();
        let (limit, limits) = (limit.clone(), self.limits());
        let request = self.limiter.adjust(&self.entity, "r").by_milli(limit.as_str(), by);
        match request.limits(limits).await {
            Err(AdjustError::InvalidRequest(InvalidRequest::Amount { .. })) if by == 0 => {}
            Err(AdjustError::InvalidRequest(InvalidRequest::BeyondStore { .. })) => {
                prop_assert!(by.abs() > MILLI_MAX);
            }
            Ok(_) => {
                let is_new = self.model.refilled_at.is_none();
                let rules = if is_new { self.rules.clone() } else { BTreeMap::new() };
                self.model.claim(self.clock.now_epoch(), &rules);
                self.model.take(&limit, by);
            }
            Err(other) => return Err(TestCaseError::fail(format!("{other:?}"))),
        }
        Ok(())
    }

    async fn compare(&self) -> Result<(), TestCaseError> {
        let key = format!("sluicegate:{{{}}}#r", self.entity);
        // The server's clock runs while the test's stands still.
        self.server.send::<i64>(cmd("PERSIST").arg(&key)).await;
        let hash = shown(self.server, &key).await;
        let id = BucketId {
            entity: EntityId::new(&self.entity).unwrap(),
            resource: Resource::new("r").unwrap(),
        };
        let number = |field: &str| hash.get(field).map_or(0, |text| text.parse::<i64>().unwrap());
        if let Some(last) = self.model.refilled_at {
            prop_assert_eq!(number("lastRefill"), last.get(), "{}", id);
        }
        for (limit, (_, tokens, consumed)) in &self.model.limits {
            let stored = (number(&format!("tokens:{limit}")), number(&format!("tc:{limit}")));
            prop_assert_eq!(stored, (tokens.get(), *consumed), "{}: {:?}", limit, hash);
        }
        Ok(())
    }
}

/// The instant of a clock.
trait Now {
    fn now_epoch(&self) -> EpochMillis;
    fn now_millis(&self) -> i64 {
        self.now_epoch().get()
    }
}

impl Now for TestClock {
    fn now_epoch(&self) -> EpochMillis {
        sluicegate::Clock::now(self)
    }
}

#[test]
#[ignore = "needs Redis: cargo xtask test"]
fn the_scripts_count_as_core_does() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(RedisServer::start());
    let mut case = 0;
    let mut runner =
        TestRunner::new(Config { cases: CASES, failure_persistence: None, ..Config::default() });
    let shared = std::cell::RefCell::new(&mut case);
    let strategy = (vec(rule(), 1..=3), up_to(EpochMillis::MAX.get()), vec(step(), 1..24));
    let run = |(rules, start, steps): (Vec<Rule>, i64, Vec<Step>)| {
        **shared.borrow_mut() += 1;
        let entity = format!("u{}", shared.borrow());
        runtime.block_on(async {
            let clock = TestClock::at(at(start));
            let named = rules.into_iter().enumerate().map(|(n, rule)| {
                let limit = name(&format!("l{n}"));
                let rule = Limit::from_rule(&limit, rule).check().unwrap().1;
                (limit, rule)
            });
            let mut compared = Compared {
                server: &server,
                limiter: limiter(&server, &clock),
                clock,
                entity,
                rules: named.collect(),
                model: Model::default(),
            };
            for step in steps {
                compared.step(step).await?;
            }
            Ok(())
        })
    };
    runner.run(&strategy, run).unwrap();
}
