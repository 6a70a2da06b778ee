use proptest::prelude::*;

use super::*;
use crate::fixtures::at;

fn instant(text: &str) -> EpochMillis {
    at(text.parse::<Timestamp>().unwrap().as_millisecond())
}

fn text_of(at: EpochMillis) -> String {
    Timestamp::from_millisecond(at.get()).unwrap().to_string()
}

/// The start and the end of the period of an instant.
fn around(calendar: &str, at: &str) -> (String, String) {
    let period = calendar.parse::<Calendar>().unwrap().period(instant(at));
    (text_of(period.start), period.end.map(text_of).unwrap_or_default())
}

#[test]
fn periods_begin_on_their_first_day() {
    for (calendar, at, start, end) in [
        ("day", "2026-11-23T12:00:00Z", "2026-11-23T00:00:00Z", "2026-11-24T00:00:00Z"),
        ("week", "2026-11-23T00:00:00Z", "2026-11-23T00:00:00Z", "2026-11-30T00:00:00Z"),
        ("week@sun", "2026-11-23T00:00:00Z", "2026-11-22T00:00:00Z", "2026-11-29T00:00:00Z"),
        ("month", "2028-02-29T23:59:59.999Z", "2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z"),
        ("month@15", "2026-01-14T23:59:59Z", "2025-12-15T00:00:00Z", "2026-01-15T00:00:00Z"),
        // February lacks the day; so does April.
        ("month@31", "2026-02-28T00:00:00Z", "2026-02-28T00:00:00Z", "2026-03-31T00:00:00Z"),
        ("month@31", "2028-02-28T00:00:00Z", "2028-01-31T00:00:00Z", "2028-02-29T00:00:00Z"),
        ("month@30", "2026-04-30T00:00:00Z", "2026-04-30T00:00:00Z", "2026-05-30T00:00:00Z"),
        ("year", "2026-11-23T00:00:00Z", "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"),
        ("year@02-29", "2026-11-23T00:00:00Z", "2026-02-28T00:00:00Z", "2027-02-28T00:00:00Z"),
        ("year@02-29", "2028-02-28T00:00:00Z", "2027-02-28T00:00:00Z", "2028-02-29T00:00:00Z"),
        (
            "day/Asia/Kathmandu",
            "2026-06-01T00:00:00Z",
            "2026-05-31T18:15:00Z",
            "2026-06-01T18:15:00Z",
        ),
    ] {
        assert_eq!(around(calendar, at), (start.to_owned(), end.to_owned()), "{calendar} {at}");
    }
}

#[test]
fn changes_of_the_clocks_move_the_boundary() {
    // From winter to summer time and back, today and by the rules of the far future.
    for (calendar, at, start, end) in [
        (
            "day/Europe/Berlin",
            "2026-03-29T12:00:00Z",
            "2026-03-28T23:00:00Z",
            "2026-03-29T22:00:00Z",
        ),
        (
            "day/Europe/Berlin",
            "2026-10-25T12:00:00Z",
            "2026-10-24T22:00:00Z",
            "2026-10-25T23:00:00Z",
        ),
        (
            "day/Europe/Berlin",
            "2999-07-01T12:00:00Z",
            "2999-06-30T22:00:00Z",
            "2999-07-01T22:00:00Z",
        ),
        // Midnight is left out: the day begins at 01:00.
        (
            "day/America/Sao_Paulo",
            "2018-11-04T12:00:00Z",
            "2018-11-04T03:00:00Z",
            "2018-11-05T02:00:00Z",
        ),
        // At 00:01 the clocks went back to 23:01 of the day before: the new day had begun.
        (
            "day/America/St_Johns",
            "2006-10-29T02:40:00Z",
            "2006-10-29T02:30:00Z",
            "2006-10-30T03:30:00Z",
        ),
        // A whole day is left out.
        (
            "day/Pacific/Apia",
            "2011-12-30T12:00:00Z",
            "2011-12-30T10:00:00Z",
            "2011-12-31T10:00:00Z",
        ),
    ] {
        assert_eq!(around(calendar, at), (start.to_owned(), end.to_owned()), "{calendar} {at}");
    }
}

#[test]
fn texts_that_are_no_calendars_say_why() {
    for (text, problem) in [
        ("", "\"\" is not a calendar period"),
        ("days", "\"days\" is not a calendar period"),
        ("minute", "\"minute\" is not a calendar period"),
        ("day@1", "\"day@1\" is not the first day"),
        ("day@Europe/Berlin", "\"day@Europe\" is not the first day"),
        ("week@monday", "\"week@monday\" is not the first day"),
        ("month@0", "\"month@0\" is not the first day"),
        ("month@32", "\"month@32\" is not the first day"),
        ("month@+1", "\"month@+1\" is not the first day"),
        ("year@13-01", "\"year@13-01\" is not the first day"),
        ("year@02-30", "\"year@02-30\" is not the first day"),
        ("month@15/Berlin", "\"Berlin\" is not a time zone"),
        ("month/", "\"\" is not a time zone"),
    ] {
        let error = text.parse::<Calendar>().unwrap_err().to_string();
        assert!(error.starts_with(problem), "{text}: {error}");
    }
}

#[test]
fn first_and_last_period_have_bounds() {
    for unit in ["day", "week", "month", "year@12-31/Pacific/Kiritimati"] {
        let calendar: Calendar = unit.parse().unwrap();
        assert_eq!(calendar.period(EpochMillis::MIN).start, EpochMillis::MIN, "{unit}");
        assert_eq!(calendar.period(EpochMillis::MAX).end, None, "{unit}");
        assert_eq!(calendar.start_of(i64::MAX), None);
        assert_eq!(calendar.start_of(i64::MIN), None);
    }
}

fn cycle() -> impl Strategy<Value = Cycle> {
    prop_oneof![
        Just(Cycle::Day),
        (0..7_u8).prop_map(Cycle::Week),
        (1..=31_i8).prop_map(Cycle::Month),
        (1..=12_i8, 1..=31_i8).prop_filter_map("a day", |(month, day)| {
            Date::new(1972, month, day).ok().map(|_| Cycle::Year(month, day))
        }),
    ]
}

/// Any first day in any zone.
pub(crate) fn calendar() -> impl Strategy<Value = Calendar> {
    let zone = prop::sample::select(Zone::all().collect::<Vec<_>>());
    (cycle(), zone).prop_map(|(cycle, zone)| Calendar { cycle, zone })
}

/// Any instant, or one near a change of the clocks of some year.
fn any_instant() -> impl Strategy<Value = EpochMillis> {
    (0..=EpochMillis::MAX.get()).prop_map(at)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn calendar_parses_back(calendar in calendar()) {
        prop_assert_eq!(calendar.to_string().parse(), Ok(calendar));
    }

    #[test]
    fn calendar_parser_never_panics(text in "(day|week|month|year)?@?[a-z0-9-]{0,5}/?[A-Za-z/]{0,12}|\\PC{0,40}") {
        let _ = text.parse::<Calendar>();
    }

    #[test]
    fn every_instant_lies_in_one_period(calendar in calendar(), now in any_instant()) {
        let period = calendar.period(now);
        prop_assert!(period.start <= now);
        let Some(end) = period.end else { return Ok(()) };
        prop_assert!(now < end);
        prop_assert_eq!(calendar.start_of(period.index + 1), Some(end));
        prop_assert_eq!(calendar.period(end).start, end);
        prop_assert_eq!(calendar.find_period(at(end.get() - 1)).index, period.index);
        prop_assert!(calendar.period(end).index > period.index);
        prop_assert_eq!(calendar.boundaries(period.start, at(end.get() - 1)), 0);
        prop_assert!(end.get() - period.start.get() <= calendar.longest_ms() + 2 * DAY_MS);
    }

    /// The judge is the local date at each instant, as the zone's offset has it.
    #[test]
    fn period_begins_with_the_first_instant_of_its_day(calendar in calendar(), now in any_instant()) {
        let Some(start) = calendar.period(now).end else { return Ok(()) };
        let local = |ms: i64| {
            let instant = Timestamp::from_millisecond(ms).unwrap();
            calendar.zone.rules().to_offset(instant).to_datetime(instant).date()
        };
        let first = calendar.cycle.date(calendar.period(start).index).unwrap();
        prop_assert!(local(start.get()) >= first);
        prop_assert!(local(start.get() - 1) < first);
    }

    #[test]
    fn boundaries_of_any_partition_sum_to_the_whole(
        calendar in calendar(),
        mut instants in prop::collection::vec(any_instant(), 2..10),
    ) {
        instants.sort_unstable();
        let parts: i64 = instants.windows(2).map(|w| calendar.boundaries(w[0], w[1])).sum();
        prop_assert_eq!(parts, calendar.boundaries(instants[0], instants[instants.len() - 1]));
    }
}

/// Every boundary of a day from 1970 to 2038 in every zone: the judge is the local date.
#[test]
fn days_of_every_zone_begin_with_their_first_instant() {
    for zone in Zone::all() {
        let calendar = Calendar::day().in_zone(zone);
        let rules = zone.rules();
        let mut last = i64::MIN;
        // The changes of the clocks, and the days around them.
        let from = Timestamp::UNIX_EPOCH;
        for change in
            rules.following(from).take_while(|t| t.timestamp().as_second() < 2_145_916_800)
        {
            let at_change = change.timestamp().as_millisecond();
            for day in -2..=2 {
                let Ok(now) = EpochMillis::new(at_change + day * DAY_MS) else { continue };
                let Some(start) = calendar.period(now).end else { continue };
                if start.get() <= last {
                    continue;
                }
                last = start.get();
                let local = |ms| rules.to_datetime(Timestamp::from_millisecond(ms).unwrap()).date();
                let first = Cycle::Day.date(calendar.period(start).index).unwrap();
                assert!(local(start.get()) >= first, "{zone} {first}");
                assert!(local(start.get() - 1) < first, "{zone} {first}");
            }
        }
    }
}
