use proptest::prelude::*;

use super::*;
use crate::calendar::tests::calendar;

fn at(text: &str) -> EpochMillis {
    EpochMillis::new(DateTime::parse_from_rfc3339(text).unwrap().timestamp_millis()).unwrap()
}

fn kind(text: &str) -> WindowKind {
    text.parse().unwrap()
}

/// Any kind; half of them are those in UTC.
pub(crate) fn window_kind() -> impl Strategy<Value = WindowKind> {
    let in_utc = ["minute", "hour", "day", "week@sun", "month", "year"].map(kind);
    prop_oneof![prop::sample::select(in_utc.to_vec()), calendar().prop_map(WindowKind::Calendar)]
}

#[test]
fn kinds_are_listed_once_each_and_shortest_first() {
    let list = |text: &str| text.parse::<WindowKinds>().map(|kinds| kinds.to_string());
    assert_eq!(list("month, minute,month"), Ok("minute,month".to_owned()));
    assert_eq!(WindowKinds::default().to_string(), "hour,day");
    assert_eq!(
        list("year,month@15/europe/berlin,day/Asia/Tokyo,week@sun,hour,day,week@mon,month@01"),
        Ok("hour,day,day/Asia/Tokyo,week,week@sun,month,month@15/Europe/Berlin,year".to_owned())
    );
    for text in ["", "hours", "hour,", "hour;day", ","] {
        assert!(list(text).is_err(), "{text:?}");
    }
    let days: Vec<String> = (1..=21).map(|day| format!("month@{day}")).collect();
    assert_eq!(list(&days[..20].join(",")), Ok(days[..20].join(",").replace("month@1,", "month,")));
    assert_eq!(list(&days.join(",")), Err(InvalidWindowKind::TooMany(21)));
}

#[test]
fn texts_that_are_no_kinds_say_what_to_write() {
    for (text, problem) in [
        ("hours", "\"hours\" is not a usage window: write minute, hour, day, week, month or year"),
        ("hour/Asia/Tokyo", "\"hour/Asia/Tokyo\" is not a usage window: write minute, hour, "),
        (
            "week@monday",
            "\"week@monday\" is not the first day of a calendar period: write week@mon",
        ),
        ("month@15/Berlin", "\"Berlin\" is not a time zone"),
    ] {
        let error = text.parse::<WindowKind>().unwrap_err().to_string();
        assert!(error.starts_with(problem), "{text}: {error}");
    }
}

#[test]
fn windows_change_at_midnight_and_at_the_month_end() {
    let starts = |t| {
        let kinds = ["minute", "hour", "day", "week", "month", "year"].map(kind);
        kinds.map(|kind| kind.containing(at(t)).start_text())
    };
    assert_eq!(
        starts("2028-02-29T23:59:59.999Z"),
        [
            "2028-02-29T23:59:00Z",
            "2028-02-29T23:00:00Z",
            "2028-02-29T00:00:00Z",
            "2028-02-28T00:00:00Z",
            "2028-02-01T00:00:00Z",
            "2028-01-01T00:00:00Z",
        ]
    );
    let midnight = "2028-03-01T00:00:00Z";
    assert_eq!(
        starts(midnight),
        [midnight, midnight, midnight, "2028-02-28T00:00:00Z", midnight, "2028-01-01T00:00:00Z"]
    );
}

#[test]
fn calendar_windows_begin_at_local_midnight() {
    let local = |window: Window| DateTime::from_timestamp(window.local_start_s(), 0).unwrap();
    for (text, unit, zone, start, hours, local_start) in [
        (
            "month@15/Europe/Berlin",
            "month",
            "Europe/Berlin",
            "2026-03-14T23:00:00Z",
            743,
            "15 00:00",
        ),
        ("day/Europe/Berlin", "day", "Europe/Berlin", "2026-03-28T23:00:00Z", 23, "29 00:00"),
        ("week@sun", "week", "UTC", "2026-03-29T00:00:00Z", 168, "29 00:00"),
        ("hour", "hour", "UTC", "2026-03-29T12:00:00Z", 1, "29 12:00"),
    ] {
        let kind = kind(text);
        let window = kind.containing(at("2026-03-29T12:00:00Z"));
        assert_eq!((kind.unit(), kind.zone().name()), (unit, zone), "{text}");
        assert_eq!(window.start_text(), start, "{text}");
        assert_eq!(window.end_s() - window.start_s(), hours * 3_600, "{text}");
        assert_eq!(local(window).format("%d %H:%M").to_string(), local_start, "{text}");
    }
}

#[test]
fn the_last_month_has_an_end() {
    let window = WindowKind::MONTH.containing(EpochMillis::MAX);
    assert_eq!(window.start_text(), "9999-12-01T00:00:00Z");
    assert_eq!(window.end_s() * 1_000, EpochMillis::MAX.get() + 1);
}

#[test]
fn starts_that_are_none_do_not_parse() {
    assert!(Window::parse(WindowKind::Hour, "2026-01-28T14:00:00Z").is_some());
    for start in ["2026-01-28T14:00:01Z", "2026-01-28T14:00:00+00:00", "2026-01-28", ""] {
        assert!(Window::parse(WindowKind::Hour, start).is_none(), "{start}");
    }
    let berlin = kind("month@15/Europe/Berlin");
    assert!(Window::parse(berlin, "2026-01-14T23:00:00Z").is_some());
    for start in ["2026-01-15T00:00:00Z", "2026-01-15T00:00:00+01:00", "2026-01-14T22:00:00Z"] {
        assert!(Window::parse(berlin, start).is_none(), "{start}");
    }
}

proptest! {
    #[test]
    fn every_instant_lies_in_its_window_and_the_start_parses_back(
        kind in window_kind(),
        millis in 0..=EpochMillis::MAX.get(),
    ) {
        let window = kind.containing(EpochMillis::new(millis).unwrap());
        let (start_ms, end_ms) = (window.start_s() * 1_000, window.end_s() * 1_000);
        prop_assert!(start_ms <= millis && millis < end_ms);
        for inside in [start_ms, end_ms - 1] {
            prop_assert_eq!(kind.containing(EpochMillis::new(inside).unwrap()), window);
        }
        prop_assert_eq!(Window::parse(kind, &window.start_text()), Some(window));
        prop_assert_eq!(kind.to_string().parse(), Ok(kind));
        prop_assert_eq!(WindowKind::from_key(&kind.to_string()), Some(kind));
    }
}
