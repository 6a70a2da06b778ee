//! One schedule: what a seed makes of limits, writers, faults and time.

use std::sync::Arc;

use sluicegate_core::{
    Amounts, Answer, BucketId, CompositeBucket, Configuration, LimitBalance, Rule, Rules,
};

use super::rng::Rng;
use super::support::{
    Caller, Control, Process, Purpose, Reply, Request, Scenario, System, T0, Table, Tally, Timing,
    Violation, at, bucket_id, by_calendar, milli, name, request_id, rule, stored,
};

const SECOND_MS: i64 = 1_000;
const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 3_600_000;
const DAY_MS: i64 = 86_400_000;

/// Limits by name with burst and refill amount in millitokens and the period, [`BY_CALENDAR`] or
/// [`FORGIVING`]; the first is the one whose rule changes, the last the one that may be dropped.
type Limits = &'static [(&'static str, i64, i64, i64)];

const LIMITS: &[Limits] = &[
    &[("fast", 50_000, 100_000, SECOND_MS), ("day", 1_000, 1_000, DAY_MS)],
    &[("minute", 60_000, 60_000, MINUTE_MS), ("day", 1_000, 1_000, DAY_MS)],
    &[
        ("fast", 20_000, 10_000, SECOND_MS),
        ("minute", 60_000, 60_000, MINUTE_MS),
        ("hour", 7_000, 7_000, HOUR_MS),
    ],
    &[("tiny", 3_000, 1_000, 40), ("hour", 7_000, 7_000, HOUR_MS)],
    &[("odd", 10_007, 7_919, 997), ("quota", 40_000, 0, SECOND_MS)],
    &[("quota", 40_000, 0, SECOND_MS), ("fast", 50_000, 100_000, SECOND_MS)],
];

/// In place of a period: full again at each midnight in Guam, a day after the hour that
/// [`T0`] follows.
const BY_CALENDAR: i64 = -1;
const FORGIVING: i64 = -2;

const WITH_CALENDARS: &[Limits] = &[
    &[("fast", 50_000, 100_000, SECOND_MS), ("budget", 20_000, 0, BY_CALENDAR)],
    &[("budget", 20_000, 0, BY_CALENDAR), ("minute", 60_000, 60_000, MINUTE_MS)],
    &[("budget", 20_000, 0, FORGIVING), ("fast", 50_000, 100_000, SECOND_MS)],
    &[("budget", 9_000, 0, BY_CALENDAR), ("other", 7_000, 0, FORGIVING)],
    &[("budget", 3_000, 0, BY_CALENDAR)],
];

/// The one that configurations add.
const EXTRA: (&str, i64, i64, i64) = ("extra", 9_000, 30_000, SECOND_MS);

fn rule_of(burst: i64, amount: i64, period: i64) -> Rule {
    match period {
        BY_CALENDAR => by_calendar(burst, "day/Pacific/Guam"),
        FORGIVING => by_calendar(burst, "day/Pacific/Guam,debt=forgiven"),
        period_ms => rule(burst, amount, period_ms),
    }
}

/// The configurations that the table stores one after the other; the last one comes with requests
/// instead.
fn configurations(limits: Limits) -> Vec<Configuration> {
    let rules = |limits: &[(&'static str, i64, i64, i64)]| -> Vec<_> {
        limits.iter().map(|(limit, bx, ra, rp)| (*limit, rule_of(*bx, *ra, *rp))).collect()
    };
    let base = rules(limits);
    let with_first = |factor: i64, divisor: i64| {
        let (limit, bx, ra, rp) = limits[0];
        let mut changed = base.clone();
        changed[0] = (limit, rule_of(bx * factor / divisor, ra * factor / divisor, rp));
        changed
    };
    let mut by_day = base.clone();
    by_day[0].1 = rule_of(limits[0].1, 0, BY_CALENDAR);
    let (dropped, kept) = base.split_last().unwrap();
    let with_extra = [&base[..], &rules(&[EXTRA])].concat();
    let mut explicit = stored(1, &base, &[]);
    let (limit, bigger) = with_first(3, 2)[0];
    explicit.explicit = Rules::from([(name(limit), bigger)]).into();
    vec![
        stored(1, &base, &[]),
        stored(2, &with_first(5, 1), &[]),
        stored(3, &with_first(1, 4), &[]),
        stored(4, &with_extra, &[]),
        stored(5, kept, &[dropped.0, EXTRA.0]),
        stored(6, &by_day, &[]),
        stored(7, &base, &[]),
        explicit,
    ]
}

/// True if no limit has a calendar: other producers know none.
fn is_even(limits: Limits) -> bool {
    limits.iter().all(|limit| limit.3 > 0)
}

/// An item as another producer of the same schema leaves it, without our own attributes.
fn foreign_item(rng: &mut Rng, limits: Limits) -> CompositeBucket {
    let BucketId { entity, resource } = bucket_id();
    let refills = limits.iter().all(|limit| limit.2 > 0);
    let mut bucket = |&(limit, bx, ra, rp): &(&str, i64, i64, i64)| {
        let (tokens, consumed) = (milli(rng.within(0, bx)), milli(rng.within(0, bx)).into());
        (name(limit), LimitBalance { rule: rule(bx, ra, rp), tokens, consumed })
    };
    CompositeBucket {
        entity,
        resource,
        limits: limits.iter().map(&mut bucket).collect(),
        refilled_at: at(T0 - rng.within(0, 2 * SECOND_MS)),
        expires_at_s: refills.then_some((T0 + 2 * DAY_MS) / SECOND_MS),
        config_stamp: sluicegate_core::ConfigStamp::None,
        rules_hash: None,
        request_ids: Vec::new(),
    }
}

struct Schedule {
    rng: Rng,
    scenario: Scenario,
    system: System,
    limits: Limits,
    /// The number of configurations that are stored by now.
    published: usize,
    /// True if limits change.
    changes: bool,
    /// True if corrections resort to force.
    forces: bool,
    calls: u64,
}

/// The events of a schedule, and the requests that took effect twice beyond the item's memory.
pub(crate) type Run = Result<(Tally, u32), Violation>;

/// Runs the schedule of a seed.
pub(crate) fn run(seed: u64, without: Option<Control>) -> Run {
    Schedule::new(seed, LIMITS, without).run()
}

/// Runs the schedule of a seed with limits by the calendar, from a moment before a boundary.
pub(crate) fn run_by_calendar(seed: u64, without: Option<Control>) -> Run {
    let mut schedule = Schedule::new(seed, WITH_CALENDARS, without);
    let until_boundary = DAY_MS - T0.rem_euclid(SECOND_MS);
    let early = schedule.rng.within(0, 200);
    schedule.system.pass(&schedule.scenario, until_boundary - early)?;
    schedule.run()
}

impl Schedule {
    fn run(mut self) -> Run {
        for _ in 0..self.rng.within(40, 160) {
            self.step()?;
        }
        self.settle()?;
        Ok((self.system.tally, self.system.table.ambiguous))
    }

    fn new(seed: u64, sets: &[Limits], without: Option<Control>) -> Self {
        let mut rng = Rng::new(seed);
        let timing = Timing {
            spread_ms: rng.pick(&[0, 0, 0, 0, 4, 4, 40, 40, 200 * SECOND_MS]),
            flight_ms: rng.pick(&[5, 30, 120]),
            interval_ms: rng.pick(&[100, 100, 20]),
        };
        let limits = rng.pick(sets);
        let half = timing.spread_ms / 2;
        let mut processes = Vec::new();
        let mut callers = Vec::new();
        for process in 0..rng.within(2, 5) {
            processes.push(Process::new(rng.within(-half, half), None, timing));
            let caller = Caller { process: usize::try_from(process).unwrap(), request: None };
            callers.extend(vec![caller; rng.pick(&[1, 1, 2, 3])]);
        }
        let configurations = configurations(limits).into_iter().map(Arc::new).collect();
        let scenario = Scenario { timing, configurations, without, mistake: None };
        let (changes, forces) = (rng.once_in(2), rng.once_in(6));
        let item = (rng.once_in(3) && is_even(limits)).then(|| foreign_item(&mut rng, limits));
        let mut system = System::new(Table::holding(item, timing), processes);
        system.callers = callers;
        Self { rng, scenario, system, limits, published: 1, changes, forces, calls: 0 }
    }

    fn step(&mut self) -> Result<(), Violation> {
        match self.rng.below(14) {
            0..=2 => self.pass_time()?,
            3..=6 => {
                let caller = self.rng.below(self.system.callers.len());
                self.advance_caller(caller)?;
            }
            7..=10 if !self.system.flights.is_empty() => {
                let flight = self.rng.below(self.system.flights.len());
                self.resolve(flight)?;
            }
            11..=13 if self.changes => self.change_configuration(),
            _ => {}
        }
        Ok(())
    }

    fn pass_time(&mut self) -> Result<(), Violation> {
        if self.rng.once_in(60) {
            return self.expire();
        }
        let most_ms = match self.rng.below(100) {
            0..=69 => 4,
            70..=89 => 150,
            90..=96 => 5 * SECOND_MS,
            97..=98 => 2 * MINUTE_MS,
            _ => HOUR_MS,
        };
        let millis = self.rng.within(0, most_ms);
        self.system.pass(&self.scenario, millis)
    }

    fn advance_caller(&mut self, caller: usize) -> Result<(), Violation> {
        let process = self.system.callers[caller].process;
        if self.system.callers[caller].request.is_none() {
            let request = self.new_request(caller);
            self.system.enter(&self.scenario, caller, request)?;
        } else if self.rng.once_in(12) {
            self.system.leave(&self.scenario, caller);
        }
        let flights = &self.system.flights;
        if let Some(flight) = flights.iter().position(|f| f.waiting == Some(process)) {
            // Now and then more requests arrive first.
            return if self.rng.once_in(2) { Ok(()) } else { self.resolve(flight) };
        }
        let is_claimed = self.rng.once_in(2);
        self.system.lost_reads = u32::from(self.rng.once_in(8));
        self.system.act(&self.scenario, process, is_claimed)
    }

    fn new_request(&mut self, caller: usize) -> Request {
        self.calls += 1;
        let id = request_id(caller, self.calls);
        let corrects = self.rng.once_in(4);
        let mut amounts = Amounts::new();
        for _ in 0..self.rng.pick(&[1, 1, 2, 3]) {
            let (limit, burst) = match self.rng.once_in(8) && self.changes {
                true => (EXTRA.0, EXTRA.1),
                false => self.rng.pick(&self.limits.iter().map(|l| (l.0, l.1)).collect::<Vec<_>>()),
            };
            let size = self.rng.pick(&[burst / 12, burst / 4, burst / 2, burst]);
            let amount = self.rng.within(size / 2 + 1, size);
            let sign = if corrects && self.rng.once_in(2) { -1 } else { 1 };
            amounts.insert(name(limit), milli(sign * amount));
        }
        let purpose = match corrects {
            true if self.forces && self.rng.once_in(3) => Purpose::Forced,
            true => Purpose::Adjust,
            false => Purpose::Acquire,
        };
        Request { purpose, amounts, id }
    }

    fn resolve(&mut self, flight: usize) -> Result<(), Violation> {
        match self.rng.below(16) {
            0 => {
                let answer = if self.rng.once_in(2) { Answer::NotSent } else { Answer::Busy };
                self.system.reject(flight, answer);
            }
            1 => self.system.time_out(flight),
            2 => self.system.land(&self.scenario, flight, Reply::Lost)?,
            _ => self.system.land(&self.scenario, flight, Reply::Delivered)?,
        }
        Ok(())
    }

    /// Somebody stores other limits, or a process hears of them.
    fn change_configuration(&mut self) {
        let last = self.scenario.configurations.len() - 1;
        if self.rng.once_in(3) {
            self.published = (self.published + 1).min(last);
        }
        let process = self.rng.below(self.system.processes.len());
        let explicit = self.rng.once_in(6);
        self.system.processes[process].configuration =
            if explicit { last } else { self.rng.below(self.published) };
    }

    /// Everybody finishes, and every process writes once more if it has something to give back.
    fn settle(&mut self) -> Result<(), Violation> {
        for _ in 0..100 {
            for process in 0..self.system.processes.len() {
                if self.system.is_ready(process) {
                    self.system.act(&self.scenario, process, false)?;
                }
            }
            if self.system.flights.is_empty() {
                if self.system.has_nothing_open() {
                    return self.system.table.check_settled();
                }
                if !self.write_once_more()? {
                    break;
                }
                continue;
            }
            self.system.land(&self.scenario, 0, Reply::Delivered)?;
        }
        self.system.forget_calls(self.scenario.timing);
        Ok(())
    }

    /// A caller of every process that is not settled asks for the least there is.
    fn write_once_more(&mut self) -> Result<bool, Violation> {
        let Some(caller) = (0..self.system.callers.len()).find(|caller| {
            self.system.callers[*caller].request.is_none()
                && !self.system.has_nothing_open_for(*caller)
        }) else {
            return Ok(false);
        };
        self.calls += 1;
        let id = request_id(caller, self.calls);
        let amounts = Amounts::from([(name(self.limits[0].0), milli(1))]);
        let request = Request { purpose: Purpose::Adjust, amounts, id };
        self.system.enter(&self.scenario, caller, request)?;
        Ok(true)
    }

    /// Nobody comes until DynamoDB deletes the item.
    fn expire(&mut self) -> Result<(), Violation> {
        self.settle()?;
        let expires_at_s = self.system.table.item.as_ref().and_then(|item| item.expires_at_s);
        let Some(expires_at_s) = expires_at_s else { return Ok(()) };
        let idle_ms = expires_at_s * SECOND_MS + 1 - self.system.table.now_ms;
        self.system.pass(&self.scenario, idle_ms.max(0))?;
        // DynamoDB takes its time: until then the item is used like any other.
        if self.rng.once_in(4) || !self.system.table.is_expired() {
            Ok(())
        } else {
            self.system.table.delete()
        }
    }
}
