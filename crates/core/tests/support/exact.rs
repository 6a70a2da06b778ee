//! The bucket that the protocol imitates: refilled continuously, by one clock, seeing every write
//! in the order in which it lands.

use sluicegate_core::{Debt, EpochMillis, LimitBalance, Rule};

/// A violation, named after the invariant that it breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Violation {
    /// An acquire took a balance below zero.
    Negative,
    /// More was admitted, or is there to be admitted, than an exact bucket would.
    OverAdmitted,
    /// Less is there than an exact bucket would hold.
    LostRefill,
    /// The counter is not what was consumed less what was returned.
    LostConsumption,
    /// One request took effect twice although the item still remembered it.
    DoubleApplied,
    /// A request was granted that never took effect.
    Phantom,
    /// A request was refused that the exact bucket covers.
    FalseRefusal,
    /// A write held that adds to an item or a limit that is not there.
    Stump,
    /// The item expired before it was full.
    Forgiven,
    /// Tokens were taken for a request that nobody holds, and not given back.
    Unreturned,
    /// The refill timestamp went back although it was not ahead of every clock.
    WentBack,
}

/// The greatest difference of two clocks, in milliseconds: a timestamp farther ahead is
/// pulled back.
pub(crate) const AHEAD_MS: i64 = 60_000;

/// The differences between a run and one with a single clock and writes without delay, in
/// milliseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timing {
    /// The greatest difference of any two clocks.
    pub(crate) spread_ms: i64,
    /// Longest time from a decision to its landing.
    pub(crate) flight_ms: i64,
    /// The time for which a claim serves later writers.
    pub(crate) interval_ms: u32,
}

/// One exact bucket.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Exact {
    pub(crate) rule: Rule,
    tokens: i128,
    at: EpochMillis,
    /// Everything consumed less everything returned.
    net: i128,
    /// The error of the balance because clocks differ and writes take their time: once, and
    /// once more for every change of the rule, which takes effect by the clock of its writer.
    slack: i128,
    /// The amount that may be withheld near a full bucket.
    withheld: i128,
    /// The amount of forced debits, which may be forgiven.
    excused: i128,
    /// The largest of `taken in [a, t] - A(a)` over every `a`, under this rule.
    peak: Option<i128>,
    /// The time within which writers may disagree about a boundary of a calendar, in milliseconds.
    unsure_ms: i64,
    /// The amounts taken or given back so close to a boundary that their writer may have counted
    /// them on the other side.
    unsure: i128,
}

/// An upper bound of what accrues within a duration, wherever it starts.
fn accrues(rule: Rule, millis: i64) -> i128 {
    if rule.refill().calendar().is_some() {
        return 0;
    }
    let scaled = i128::from(rule.refill().amount().get()) * i128::from(millis);
    scaled / i128::from(rule.refill().period_ms()) + 1
}

impl Timing {
    fn slack(self, rule: Rule) -> i128 {
        accrues(rule, 2 * self.spread_ms + self.flight_ms) + 1
    }

    fn withheld(self, rule: Rule) -> i128 {
        accrues(rule, self.interval_ms.into())
    }
}

impl Exact {
    pub(crate) fn full(rule: Rule, now: EpochMillis, timing: Timing) -> Self {
        Self {
            rule,
            tokens: rule.burst().get().into(),
            at: now,
            net: 0,
            slack: timing.slack(rule),
            withheld: timing.withheld(rule),
            excused: 0,
            peak: None,
            unsure_ms: 2 * timing.spread_ms + timing.flight_ms,
            unsure: 0,
        }
    }

    /// A bucket as the item has it at the start.
    pub(crate) fn holding(bucket: &LimitBalance, refilled_at: EpochMillis, timing: Timing) -> Self {
        let tokens = bucket.tokens.get().into();
        let net = bucket.consumed.get();
        Self { tokens, net, ..Self::full(bucket.rule, refilled_at, timing) }
    }

    /// The refill timestamp was ahead and went back: what was claimed for that time is claimed
    /// again.
    pub(crate) fn pull_back(&mut self, timing: Timing) {
        self.slack += timing.slack(self.rule);
        self.peak = None;
    }

    pub(crate) fn advance(&mut self, now: EpochMillis) {
        let refill = self.rule.refill();
        let gap = refill.accrued_between(self.at, now);
        let forgives = refill.calendar().is_some_and(|at| at.debt == Debt::Forgiven);
        if gap > 0 && forgives && self.tokens < 0 {
            // The debt was admitted, and nobody pays for it.
            self.peak = self.peak.map(|peak| peak + self.tokens);
            self.tokens = 0;
        }
        self.tokens = (self.tokens + gap).min(self.rule.burst().get().into());
        self.at = now;
    }

    /// The refill of a calendar limit that has come for some writers and not yet for others.
    fn disputed(&self) -> i128 {
        if self.rule.refill().calendar().is_none() {
            return 0;
        }
        let around = |ms| EpochMillis::new(self.at.get() + ms).unwrap();
        let gap =
            self.rule.refill().accrued_between(around(-self.unsure_ms), around(self.unsure_ms));
        // A debt as deep as that may be forgiven on one side.
        if gap > 0 { gap - self.tokens.min(0) } else { 0 }
    }

    fn note_unsure(&mut self, amount: i64) {
        if self.disputed() > 0 {
            self.unsure += i128::from(amount.abs());
        }
    }

    /// Follows a change of the rule.
    pub(crate) fn follow(&mut self, rule: Rule, timing: Timing) {
        if rule == self.rule {
            return;
        }
        self.slack += timing.slack(rule).max(timing.slack(self.rule));
        self.withheld = self.withheld.max(timing.withheld(rule));
        let is_by_calendar = |rule: Rule| rule.refill().calendar().is_some();
        let (old, tokens) = (self.rule, self.kept_under(rule));
        if is_by_calendar(rule) && is_by_calendar(old) {
            self.note_unsure(rule.burst().get() - old.burst().get());
        }
        // Near a boundary, writers may disagree if it comes before the change or after it.
        let disputed_before = self.disputed();
        (self.rule, self.tokens) = (rule, tokens);
        if is_by_calendar(rule) != is_by_calendar(old) {
            self.unsure += disputed_before.max(self.disputed());
        }
        self.peak = None;
    }

    /// The tokens that it has once it follows a rule.
    fn kept_under(&self, rule: Rule) -> i128 {
        let burst = |rule: Rule| i128::from(rule.burst().get());
        let is_rate = |rule: Rule| rule.refill().even_amount().get() > 0;
        let kept = match (is_rate(self.rule), is_rate(rule)) {
            (false, false) => self.tokens + burst(rule) - burst(self.rule),
            (true, false) => burst(rule) + self.tokens.min(0),
            (_, true) => self.tokens,
        };
        kept.min(burst(rule))
    }

    /// Takes an amount, or gives back a negative one.
    pub(crate) fn take(&mut self, amount: i64, timing: Timing) {
        self.note_unsure(amount);
        self.tokens -= i128::from(amount);
        self.net += i128::from(amount);
        let started = self.accrued(-timing.spread_ms - timing.flight_ms);
        let peak = self.peak.map_or(started, |peak| peak.max(started));
        self.peak = Some(peak + i128::from(amount));
    }

    /// Takes an amount without any condition: what the bucket holds beyond its burst may cover it.
    pub(crate) fn force(&mut self, amount: i64) {
        self.note_unsure(amount);
        self.tokens -= i128::from(amount);
        self.net += i128::from(amount);
        self.excused += i128::from(amount);
    }

    fn accrued(&self, later_ms: i64) -> i128 {
        let at = EpochMillis::new(self.at.get() + later_ms).unwrap();
        self.rule.refill().accrued(at)
    }

    /// No interval that ends now admitted more than the burst and what accrued in it.
    pub(crate) fn check_admitted(&self, timing: Timing) -> Result<(), Violation> {
        let burst = i128::from(self.rule.burst().get());
        let calendar = self.rule.refill().calendar();
        let is_forgiving = calendar.is_some_and(|at| at.debt == Debt::Forgiven);
        let forgiven = if is_forgiving { self.unsure } else { 0 };
        let most = burst + self.accrued(timing.spread_ms) + self.excused + forgiven + 2;
        if self.peak.is_some_and(|peak| peak > most) {
            return Err(Violation::OverAdmitted);
        }
        Ok(())
    }

    /// The stored bucket is worth what this one holds.
    pub(crate) fn check(
        &self,
        bucket: &LimitBalance,
        refilled_at: EpochMillis,
    ) -> Result<(), Violation> {
        if bucket.consumed.get() != self.net {
            return Err(Violation::LostConsumption);
        }
        let worth = i128::from(bucket.rule.effective(bucket.tokens, refilled_at, self.at).get());
        let tokens = self.tokens.min(self.rule.burst().get().into());
        let slack = self.slack + self.unsure + self.disputed();
        if worth > tokens + slack + self.excused {
            return Err(Violation::OverAdmitted);
        }
        if worth < tokens - slack - self.withheld {
            return Err(Violation::LostRefill);
        }
        Ok(())
    }

    /// True if it certainly covers an amount once it follows a rule. Tokens that accrued since a
    /// claim of a moment ago do not count for a request that lost to it.
    pub(crate) fn covers(&self, amount: i64, rule: Rule) -> bool {
        let unsure = self.slack + self.unsure + self.disputed();
        self.kept_under(rule) >= i128::from(amount) + unsure + 2 * self.withheld
    }

    /// True if it may pass for full.
    pub(crate) fn is_full(&self) -> bool {
        let slack = self.slack + self.unsure + self.disputed();
        let most = self.tokens + slack + self.withheld + self.excused;
        most >= i128::from(self.rule.burst().get())
    }
}
