use super::*;
use crate::testing::limits::ZONES;
use jiff::civil::{Date, Weekday};
use jiff::tz::TimeZone;
use jiff::{Span, ToSpan};

const UNITS: [CalendarUnit; 4] = [
    CalendarUnit::Day,
    CalendarUnit::Week,
    CalendarUnit::Month,
    CalendarUnit::Year,
];

fn calendar(zone: &str, unit: CalendarUnit) -> &'static Calendar {
    Calendar::new(zone, unit).expect("a zone")
}

fn at(text: &str) -> Timestamp {
    let moment: jiff::Timestamp = text.parse().expect("a time");
    Timestamp::from_micros(u64::try_from(moment.as_microsecond()).expect("after the epoch"))
}

/// The start of every window of a zone, as the database's own date arithmetic has it.
fn starts(zone: &TimeZone, unit: CalendarUnit, from_year: i16, until_year: i16) -> Vec<Timestamp> {
    let january = Date::new(from_year, 1, 1).expect("a date");
    let (first, step): (Date, Span) = match unit {
        CalendarUnit::Day => (january, 1.day()),
        CalendarUnit::Week => {
            let monday = january.nth_weekday(1, Weekday::Monday).expect("a date");
            (monday, 1.week())
        }
        CalendarUnit::Month => (january, 1.month()),
        CalendarUnit::Year => (january, 1.year()),
    };
    let dates = first.series(step).take_while(|date| date.year() < until_year);
    let mut starts: Vec<Timestamp> = dates
        .map(|date| {
            let noon = date.at(12, 0, 0, 0).to_zoned(zone.clone()).expect("a time");
            let start = noon.start_of_day().expect("a time");
            let us = start.timestamp().as_microsecond();
            Timestamp::from_micros(u64::try_from(us).expect("after the epoch"))
        })
        .collect();
    starts.dedup();
    starts
}

#[test]
fn boundaries_are_those_of_the_database() {
    let database = TimeZoneDatabase::bundled();
    for &name in ZONES {
        let zone = database.get(name).expect("a zone");
        for unit in UNITS {
            let calendar = calendar(name, unit);
            let starts = starts(&zone, unit, 1_971, 2_060);
            for pair in starts.windows(2) {
                let &[start, end] = pair else { unreachable!() };
                let case = || format!("{name} {} from {start:?}", unit.name());
                assert_eq!(calendar.boundary_from(start), start, "{}", case());
                assert_eq!(calendar.boundary_from(start + Micros::ONE), end, "{}", case());
                assert_eq!(calendar.boundary_until(start), start, "{}", case());
                assert_eq!(calendar.boundary_until(end - Micros::ONE), start, "{}", case());
                assert_eq!(calendar.end(end), end, "{}", case());
            }
        }
    }
}

#[test]
fn windows_are_as_long_as_the_calendar_says() {
    let hours = |zone, unit, moment| {
        let (calendar, moment) = (calendar(zone, unit), at(moment));
        let end = calendar.boundary_from(moment + Micros::ONE);
        end.since(calendar.boundary_until(moment)).get() / 1_800_000_000
    };
    use CalendarUnit::{Day, Month, Week, Year};
    // In half hours.
    for (zone, unit, moment, expected) in [
        ("Europe/Berlin", Day, "2026-03-29T12:00:00Z", 46),
        ("Europe/Berlin", Day, "2026-10-25T12:00:00Z", 50),
        ("Europe/Berlin", Week, "2026-10-25T12:00:00Z", 338),
        ("Europe/Berlin", Month, "2026-03-29T12:00:00Z", 31 * 48 - 2),
        ("Europe/Berlin", Year, "2026-10-25T12:00:00Z", 365 * 48),
        ("Australia/Lord_Howe", Day, "2026-04-04T18:00:00Z", 49),
        ("Australia/Lord_Howe", Day, "2026-10-03T18:00:00Z", 47),
        // Friday the 30th did not take place.
        ("Pacific/Apia", Day, "2011-12-30T01:00:00Z", 48),
        ("Pacific/Apia", Week, "2011-12-30T01:00:00Z", 6 * 48),
        ("Pacific/Apia", Month, "2011-12-30T01:00:00Z", 30 * 48),
        ("UTC", Month, "2026-02-10T00:00:00Z", 28 * 48),
        ("UTC", Month, "2028-02-10T00:00:00Z", 29 * 48),
        ("UTC", Month, "2026-04-10T00:00:00Z", 30 * 48),
        ("UTC", Month, "2100-02-10T00:00:00Z", 28 * 48),
        ("UTC", Year, "2028-02-10T00:00:00Z", 366 * 48),
    ] {
        assert_eq!(hours(zone, unit, moment), expected, "{zone} {} {moment}", unit.name());
    }
}

#[test]
fn boundaries_enclose_a_clock_that_is_behind_or_ahead() {
    for unit in UNITS {
        let calendar = calendar("Europe/Berlin", unit);
        for hour in 0..24 * 400 {
            let around = at("2027-01-01T00:00:00Z") + Micros::from_secs(hour * 3_600 - hour % 7);
            let boundaries = calendar.boundaries_around(around);
            assert!(boundaries.is_sorted_by(|one, next| one < next));
            assert!(boundaries[0] <= around - Micros::from_secs(3_600));
            assert!(
                boundaries[2] > around + Micros::from_secs(20 * 3_600),
                "{unit:?} {around:?}"
            );
            assert_eq!(boundaries[3], calendar.boundary_from(boundaries[2] + Micros::ONE));
        }
    }
}

#[test]
fn a_window_of_another_zone_ends_with_the_same_day_of_the_calendar() {
    let ends = [
        ("America/New_York", "Europe/Berlin"),
        ("Europe/Berlin", "Pacific/Kiritimati"),
    ];
    for (west, east) in ends {
        for unit in [CalendarUnit::Week, CalendarUnit::Month, CalendarUnit::Year] {
            let (west, east) = (calendar(west, unit), calendar(east, unit));
            let moment = at("2026-05-13T12:00:00Z");
            let (west_end, east_end) = (west.boundary_from(moment), east.boundary_from(moment));
            assert!(east_end < west_end);
            assert_eq!((west.end(east_end), east.end(west_end)), (west_end, east_end));
        }
    }
}

#[test]
fn a_misspelt_zone_has_a_suggestion() {
    for (name, suggestion) in [
        ("Europe/Berlni", Some("Europe/Berlin")),
        ("europe/berlin", Some("Europe/Berlin")),
        ("America/New_Yrok", Some("America/New_York")),
        ("utc", Some("UTC")),
        ("Mars/Olympus_Mons", None),
    ] {
        let error = Calendar::new(name, CalendarUnit::Day).expect_err("not a zone");
        assert_eq!(error.suggestion.as_deref(), suggestion, "{name}");
    }
}
