//! Limits as text, for command lines and settings: `NAME=AMOUNT/PERIOD[,burst=N]`, or
//! `NAME=AMOUNT/month[@DAY][,tz=ZONE][,debt=forgiven]` and the like by the calendar.
//!
//! A written limit parses back to the same limit, and every parsed limit is valid: a text with an
//! impossible value is refused at once.

use std::borrow::Cow;
use std::fmt::{self, Display, Formatter};
use std::str::FromStr;
use std::time::Duration;

use sluicegate_core::{
    Calendar, CalendarRefill, Currency, Debt, InvalidCalendar, UnknownZone, Zone, parse_amount,
};

use super::{Amount, InvalidLimit, Limit, Refills};

/// The period of a limit that never refills.
const NEVER: &str = "never";
/// Words for periods and their milliseconds, longest first.
const UNITS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000), ("ms", 1)];

/// Writes `rpm=100/min,burst=200`. Amounts have up to three decimals, money up to nine;
/// `,capacity=N` is written only for a rule whose nominal capacity differs from the amount that it
/// earns in a period.
impl Display for Limit {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let amount = match self.refill {
            Refills::Every { amount, .. } => amount,
            Refills::ByCalendar(_) | Refills::Never => self.capacity,
        };
        write!(f, "{}={}/{}", self.name, amount.of(&self.name), self.refill)?;
        if self.capacity != amount {
            write!(f, ",capacity={}", self.capacity.of(&self.name))?;
        }
        if self.burst != self.capacity {
            write!(f, ",burst={}", self.burst.of(&self.name))?;
        }
        if let Refills::ByCalendar(CalendarRefill { calendar, debt }) = self.refill {
            if calendar.zone() != Zone::utc() {
                write!(f, ",tz={}", calendar.zone())?;
            }
            if debt == Debt::Forgiven {
                f.write_str(",debt=forgiven")?;
            }
        }
        Ok(())
    }
}

/// Reads `NAME=AMOUNT/PERIOD[,burst=N][,capacity=N]`. The period is `s`, `min`, `h`, `d` or `ms`,
/// with a number before it for several (`30s`), or `never` for a quota. Amounts are tokens with up
/// to three decimals, or money with up to nine.
///
/// By the calendar the period is `day`, `week`, `month` or `year`, with its first day as
/// [`Calendar`](sluicegate_core::Calendar) has it (`month@15`), a time zone behind `tz=`, and
/// `debt=forgiven` or `debt=carried`.
impl FromStr for Limit {
    type Err = InvalidLimit;

    fn from_str(spec: &str) -> Result<Self, InvalidLimit> {
        let limit = parse(spec).map_err(|problem| InvalidLimit::Spec {
            spec: spec.chars().take(80).collect(),
            problem,
        })?;
        limit.check()?;
        Ok(limit)
    }
}

fn parse(spec: &str) -> Result<Limit, Problem> {
    let (name, rule) = spec.split_once('=').ok_or("it has no '='")?;
    let mut parts = rule.split(',');
    let rate = parts.next().unwrap_or_default();
    let is_amount = |part: &str| part.contains('/') && !part.contains('=');
    let has_comma = || rule.split(',').skip(1).any(is_amount);
    let (amount, period) = rate.split_once('/').ok_or_else(|| match has_comma() {
        true => "its amount has a comma: write 1000 or 5.50",
        false => "it has no period: write AMOUNT/min or AMOUNT/month",
    })?;
    if let Some(lower) = Currency::misspelled(name) {
        // It would count tokens, and an amount of money would be taken for a number of tokens.
        return Err(format!("a limit of money begins in lower case: write {lower}").into());
    }
    let amount = Amount::parse(name, amount)?;
    let refill = Refills::parse(amount, period)?;
    let mut said = Words::default();
    for part in parts {
        let (word, value) = part.split_once('=').ok_or("each ',' needs a WORD=VALUE behind it")?;
        said.take(name, word, value)?;
    }
    let Words { capacity, burst, zone, debt } = said;
    let refill = match refill {
        Refills::ByCalendar(_) if capacity.is_some() || burst.is_some() => {
            return Err("a calendar limit is full with its amount, without a burst".into());
        }
        Refills::ByCalendar(CalendarRefill { calendar, .. })
            if zone
                .is_some_and(|zone| calendar.zone() != Zone::utc() && calendar.zone() != zone) =>
        {
            return Err("its period and its tz= name two time zones".into());
        }
        Refills::ByCalendar(CalendarRefill { calendar, .. }) => {
            let calendar = calendar.in_zone(zone.unwrap_or(calendar.zone()));
            Refills::ByCalendar(CalendarRefill { calendar, debt: debt.unwrap_or_default() })
        }
        _ if zone.is_some() || debt.is_some() => {
            return Err("only a calendar limit has a time zone, or a debt to forgive".into());
        }
        Refills::Never if capacity.is_some() => {
            return Err("the capacity of a quota is its amount".into());
        }
        refill => refill,
    };
    let capacity = capacity.unwrap_or(amount);
    Ok(Limit { name: name.into(), capacity, burst: burst.unwrap_or(capacity), refill })
}

/// The reason why a text is no limit.
type Problem = Cow<'static, str>;

/// The words behind an amount and its period.
#[derive(Default)]
struct Words {
    capacity: Option<Amount>,
    burst: Option<Amount>,
    zone: Option<Zone>,
    debt: Option<Debt>,
}

impl Words {
    fn take(&mut self, limit: &str, word: &str, value: &str) -> Result<(), Problem> {
        let is_new = match word {
            "burst" => self.burst.replace(Amount::parse(limit, value)?).is_none(),
            "capacity" => self.capacity.replace(Amount::parse(limit, value)?).is_none(),
            "tz" => {
                let zone = value.parse().map_err(|error: UnknownZone| error.to_string())?;
                self.zone.replace(zone).is_none()
            }
            "debt" => {
                let debt = match value {
                    "carried" => Debt::Carried,
                    "forgiven" => Debt::Forgiven,
                    _ => return Err("write debt=forgiven or debt=carried".into()),
                };
                self.debt.replace(debt).is_none()
            }
            _ => return Err("it has a word that is none of burst, capacity, tz and debt".into()),
        };
        if is_new { Ok(()) } else { Err("it says one thing twice".into()) }
    }
}

impl Refills {
    fn parse(amount: Amount, period: &str) -> Result<Self, Problem> {
        if period == NEVER {
            return Ok(Self::Never);
        }
        if Calendar::UNITS.contains(&period.split(['@', '/']).next().unwrap_or_default()) {
            let calendar = period.parse().map_err(|error: InvalidCalendar| error.to_string())?;
            return Ok(Self::ByCalendar(CalendarRefill { calendar, debt: Debt::Carried }));
        }
        let split = period.find(|c: char| !c.is_ascii_digit()).unwrap_or(period.len());
        let (count, unit) = period.split_at(split);
        let (_, unit_ms) = UNITS.into_iter().find(|(word, _)| *word == unit).ok_or(
            "its period is none of ms, s, min, h, d, or several like 30s, or day, week, month, \
                 year by the calendar, or never",
        )?;
        let count = if count.is_empty() { Ok(1) } else { count.parse::<u64>() };
        let period_ms = count.ok().and_then(|count| count.checked_mul(unit_ms));
        let period_ms = period_ms.ok_or("its period is too long")?;
        Ok(Self::Every { amount, period: Duration::from_millis(period_ms) })
    }
}

impl Display for Refills {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let period = match self {
            Self::Every { period, .. } => period,
            Self::ByCalendar(at) => return write!(f, "{}", at.calendar.in_zone(Zone::utc())),
            Self::Never => return f.write_str(NEVER),
        };
        let whole_ms = u64::try_from(period.as_millis())
            .ok()
            .filter(|ms| *ms > 0 && Duration::from_millis(*ms) == *period);
        // A period that no limit can have is still shown, for messages about it.
        let Some(period_ms) = whole_ms else { return write!(f, "{period:?}") };
        let divides = |(_, unit_ms): &(&str, u64)| period_ms.is_multiple_of(*unit_ms);
        let (unit, unit_ms) = UNITS.into_iter().find(divides).unwrap_or(("ms", 1));
        match period_ms / unit_ms {
            1 => f.write_str(unit),
            count => write!(f, "{count}{unit}"),
        }
    }
}

impl Amount {
    fn parse(limit: &str, text: &str) -> Result<Self, &'static str> {
        let amount = parse_amount(limit, text).filter(|_| !text.starts_with(['+', '-']));
        match amount.and_then(|milli| u128::try_from(milli).ok()) {
            Some(milli) => Ok(Self { milli }),
            None if Currency::of(limit).is_some() => {
                Err("an amount is not a number with at most nine decimals")
            }
            None => Err("an amount is not a number of tokens with at most three decimals"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use sluicegate_core::{LimitName, Millitokens, Refill, Rule};

    #[test]
    fn texts_say_what_constructors_say() {
        for (spec, limit) in [
            ("rpm=100/min", Limit::per_minute("rpm", 100)),
            ("rpm=100/min,burst=200", Limit::per_minute("rpm", 100).burst(200)),
            ("rps=5/s", Limit::per_second("rps", 5)),
            ("a.b=5/h", Limit::per_hour("a.b", 5)),
            ("a_b=5/d", Limit::per_day("a_b", 5)),
            ("x=5/30s", Limit::every("x", 5, Duration::from_secs(30))),
            ("x=5/5min", Limit::every("x", 5, Duration::from_secs(300))),
            ("x=5/250ms", Limit::every("x", 5, Duration::from_millis(250))),
            ("total=1000/never", Limit::quota("total", 1_000)),
            ("tpm=5000000/week", Limit::per_week("tpm", 5_000_000)),
            ("usd=200/month", Limit::per_month("usd", 200_000_000)),
            ("usd.day=0.000001/d", Limit::per_day("usd.day", 1)),
            ("files=200/year,debt=forgiven", Limit::per_year("files", 200).forgive_debt()),
            (
                "x=5/day,tz=Asia/Tokyo",
                Limit::by_calendar("x", 5, "day/Asia/Tokyo".parse().unwrap()),
            ),
        ] {
            assert_eq!(spec.parse(), Ok(limit.clone()), "{spec}");
            assert_eq!(limit.to_string(), spec);
        }
        assert_eq!("x=5.0/60s".parse(), Ok(Limit::per_minute("x", 5)));
        assert_eq!("x=5/month@1,tz=utc,debt=carried".parse(), Ok(Limit::per_month("x", 5)));
        assert_eq!("x=5/day/Asia/Tokyo".parse(), "x=5/day,tz=asia/tokyo".parse::<Limit>());
        let half: Limit = "x=0.5/min".parse().unwrap();
        assert_eq!(half.check().unwrap().1.burst().get(), 500);
    }

    #[test]
    fn texts_that_are_no_limits_say_why() {
        for (spec, problem) in [
            ("rpm", "it has no '='"),
            ("rpm=100", "it has no period: write AMOUNT/min or AMOUNT/month"),
            ("usd=5,00/month", "its amount has a comma: write 1000 or 5.50"),
            ("rpm=1,000,000/min,burst=2", "its amount has a comma: write 1000 or 5.50"),
            ("usd=5,tz=Europe/Berlin", "it has no period: write AMOUNT/min or AMOUNT/month"),
            ("rpm=100/fortnight", "its period is none of"),
            ("rpm=100/", "its period is none of"),
            ("rpm=100/99999999999999999999d", "its period is too long"),
            ("rpm=-5/min", "an amount is not a number"),
            ("rpm=+5/min", "an amount is not a number"),
            ("rpm=1.2345/min", "an amount is not a number"),
            ("rpm=5./min", "an amount is not a number"),
            ("rpm=99999999999999999999/min", "amount 99999999999999999999 is out of range"),
            ("usd=1.0000000001/month", "an amount is not a number with at most nine"),
            ("usd=2000000000/month", "give from 0.000000001 to 1000000000"),
            ("usd=-5/month", "an amount is not a number"),
            ("USD=5/month", "lower case: write usd"),
            ("Usd.Team=5/month", "lower case: write usd"),
            ("rpm=5/min,", "each ',' needs a WORD=VALUE"),
            ("rpm=5/min,bursts=7", "none of burst, capacity, tz and debt"),
            ("usd=5/month,burst=7", "without a burst"),
            ("usd=5/month,capacity=7", "without a burst"),
            ("usd=5/month@32", "\"month@32\" is not the first day"),
            ("usd=5/month/Berlin", "\"Berlin\" is not a time zone"),
            ("usd=5/month,tz=Berlin", "\"Berlin\" is not a time zone"),
            ("usd=5/month,tz=UTC,tz=UTC", "it says one thing twice"),
            ("usd=5/month,debt=paid", "write debt=forgiven or debt=carried"),
            ("rpm=5/min,tz=UTC", "only a calendar limit"),
            ("rpm=5/min,burst=7,burst=8", "it says one thing twice"),
            ("q=5/never,capacity=7", "the capacity of a quota"),
            ("r m=5/min", "limit name"),
            ("=5/min", "limit name is empty"),
            ("rpm=0/min", "limit rpm: amount 0"),
            ("rpm=5/0s", "limit rpm: period 0ns"),
            ("rpm=5/min,burst=0", "limit rpm: burst 0"),
        ] {
            let error = spec.parse::<Limit>().unwrap_err().to_string();
            assert!(error.contains(problem), "{spec}: {error}");
            assert!(!error.contains('\n'), "{spec}: {error}");
        }
    }

    /// No name in which a currency has an upper-case letter.
    fn name() -> impl Strategy<Value = String> {
        "[A-Za-z0-9_.-]{1,64}".prop_filter("an upper-case currency", |name| {
            Currency::of(name) == Currency::of(&name.to_ascii_lowercase())
        })
    }

    fn limit() -> impl Strategy<Value = Limit> {
        let amount = || 1..=Millitokens::MAX.get();
        let period = prop_oneof![
            1..=Refill::MAX_PERIOD_MS,
            (0..4_usize, 1..1_000_i64)
                .prop_map(|(unit, count)| { count * [1_000, 60_000, 3_600_000, 86_400_000][unit] }),
        ];
        let refill = prop_oneof![3 => amount(), 1 => Just(0)];
        let equal = any::<(bool, bool)>();
        (name(), refill, amount(), amount(), period, equal).prop_map(
            |(name, refill, capacity, burst, period_ms, (same_capacity, same_burst))| {
                let milli = |n| Millitokens::new(n).unwrap();
                let capacity = if same_capacity && refill > 0 { refill } else { capacity };
                let burst = if same_burst { capacity } else { burst };
                let refill = Refill::new(milli(refill), period_ms).unwrap();
                let rule = Rule::with_burst(milli(capacity), milli(burst), refill).unwrap();
                Limit::from_rule(&LimitName::new(name).unwrap(), rule)
            },
        )
    }

    fn by_calendar() -> impl Strategy<Value = Limit> {
        let periods = ["day", "week@sun", "month@31", "year@02-29"];
        let zones: Vec<Zone> = Zone::all().collect();
        let calendar = (prop::sample::select(periods.to_vec()), prop::sample::select(zones))
            .prop_map(|(period, zone)| period.parse::<Calendar>().unwrap().in_zone(zone));
        let amount = 1..=1_000_000_000_000_000_u64;
        (name(), amount, calendar, any::<bool>()).prop_map(|(name, amount, calendar, forgives)| {
            let limit = Limit::by_calendar(name, amount, calendar);
            if forgives { limit.forgive_debt() } else { limit }
        })
    }

    proptest! {
        #[test]
        fn a_limit_parses_back(limit in prop_oneof![3 => limit(), 1 => by_calendar()]) {
            let (name, rule) = limit.check().unwrap();
            prop_assert_eq!(Limit::from_rule(&name, rule), limit.clone());
            prop_assert_eq!(limit.to_string().parse(), Ok(limit));
        }

        #[test]
        fn no_text_panics(spec in "[a-z0-9=/.,]{0,30}|\\PC{0,100}") {
            let _ = spec.parse::<Limit>();
        }
    }
}
