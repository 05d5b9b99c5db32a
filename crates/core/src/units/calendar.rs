//! Days, weeks, months and years of a time zone, as boundaries between windows.
//!
//! A zone is compiled once into the times at which its offset changes. From then on boundaries are integer arithmetic:
//! nothing here reads a clock, and deciding needs no time zone database.

use crate::problem::closest_match;
use crate::units::time::{Micros, Timestamp};
use jiff::tz::TimeZoneDatabase;
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Mutex, PoisonError};

/// The windows of one unit in one time zone. Each window starts at the first moment of its first day.
pub struct Calendar {
    zone: Box<str>,
    unit: CalendarUnit,
    /// By time. The first is at or before the epoch.
    offsets: Box<[OffsetChange]>,
}

/// A unit of the calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CalendarUnit {
    /// A day, which has 23 or 25 hours where clocks change.
    Day,
    /// A week, from Monday.
    Week,
    /// A month.
    Month,
    /// A year.
    Year,
}

/// A name that is not a time zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownZone {
    /// The closest known name.
    pub suggestion: Option<Box<str>>,
}

/// The offset of a zone from UTC, from a time on.
struct OffsetChange {
    from_s: i64,
    offset_s: i64,
}

/// The calendars in use. They are never dropped, so that a limit is a plain value: at most four for each zone of the
/// database, a few kilobytes each.
static CALENDARS: Mutex<BTreeMap<(Box<str>, CalendarUnit), &'static Calendar>> = Mutex::new(BTreeMap::new());

/// The end of the compiled offsets: after the last `now`, in 2112. From then on the last offset stays.
const COMPILED_UNTIL_S: i64 = 4_543_000_000;
/// More than any zone has had or will have until then.
const CHANGES_MAX: usize = 4_096;
const DAY_S: i64 = 86_400;
/// Larger than the offset of any zone from UTC.
const OFFSET_MAX_S: i64 = 26 * 3_600;
/// Days from the first day of the year one to the epoch.
const EPOCH_DAY: i64 = 719_162;

impl Calendar {
    /// Boundaries in the arguments of a script.
    pub const BOUNDARIES: usize = 5;
    /// The largest difference by which the server's clock may be behind the time its boundaries are chosen for.
    const BEHIND_MAX: Micros = Micros::from_secs(3_600);
    /// The largest difference between the boundaries of two zones.
    const ZONE_SPREAD: Micros = Micros::from_secs(26 * 3_600);

    /// The calendar of a zone of the tz database, such as `Europe/Berlin`.
    ///
    /// # Errors
    /// A name that the database does not have.
    pub fn new(zone: &str, unit: CalendarUnit) -> Result<&'static Self, UnknownZone> {
        let mut known = CALENDARS.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (Box::from(zone), unit);
        if let Some(calendar) = known.get(&key) {
            return Ok(calendar);
        }
        let offsets = compile_offsets(zone)?;
        let calendar: &'static Self = Box::leak(Box::new(Self {
            zone: zone.into(),
            unit,
            offsets,
        }));
        known.insert(key, calendar);
        Ok(calendar)
    }

    /// The name of its zone.
    pub fn zone(&self) -> &str {
        &self.zone
    }

    /// Its unit.
    pub const fn unit(&self) -> CalendarUnit {
        self.unit
    }

    /// The first boundary at or after `moment`.
    pub fn boundary_from(&self, moment: Timestamp) -> Timestamp {
        let mut window = self.window_at(moment) - 1;
        while self.start(window) < moment {
            window += 1;
        }
        self.start(window)
    }

    /// The last boundary at or before `moment`, or the epoch.
    pub fn boundary_until(&self, moment: Timestamp) -> Timestamp {
        let mut window = self.window_at(moment) + 1;
        while self.start(window) > moment {
            window -= 1;
        }
        self.start(window)
    }

    /// Consecutive boundaries that enclose the server's clock, if that shows about `around`: the first is in the past
    /// even if it is an hour behind, and three are in the future even if it is most of a day ahead.
    pub fn boundaries_around(&self, around: Timestamp) -> [Timestamp; Self::BOUNDARIES] {
        let behind = Timestamp::from_micros(around.as_micros().saturating_sub(Self::BEHIND_MAX.get()));
        let mut boundary = self.boundary_until(behind);
        std::array::from_fn(|_| {
            let this = boundary;
            boundary = self.boundary_from(this + Micros::ONE);
            this
        })
    }

    /// The end of a window that was due to end at `due`: the first boundary from then on.
    ///
    /// For windows longer than a day, a `due` shortly after a boundary is taken for it: it was written by the calendar of
    /// another zone, whose week, month or year ends a few hours later. Otherwise it would last one more.
    pub(crate) fn end(&self, due: Timestamp) -> Timestamp {
        match self.unit {
            CalendarUnit::Day => self.boundary_from(due),
            CalendarUnit::Week | CalendarUnit::Month | CalendarUnit::Year => {
                self.boundary_from(due - Self::ZONE_SPREAD)
            }
        }
    }

    /// The number of a window near `moment`: the one before or after may be the one it lies in.
    fn window_at(&self, moment: Timestamp) -> i64 {
        let second = i64::try_from(moment.as_micros() / 1_000_000).unwrap_or(i64::MAX / 2);
        let day = (second + self.offset(second)).div_euclid(DAY_S);
        match self.unit {
            CalendarUnit::Day => day,
            // The epoch was a Thursday.
            CalendarUnit::Week => (day + 3).div_euclid(7),
            CalendarUnit::Month => {
                let year = year_of(day);
                let in_year = day - first_day(year);
                let months = (1..12).take_while(|month| days_before_month(year, *month) <= in_year);
                year * 12 + i64::try_from(months.count()).unwrap_or(0)
            }
            CalendarUnit::Year => year_of(day),
        }
    }

    /// The start of a window: the first moment of its first day. The epoch if it is earlier.
    fn start(&self, window: i64) -> Timestamp {
        let day = match self.unit {
            CalendarUnit::Day => window,
            CalendarUnit::Week => window * 7 - 3,
            CalendarUnit::Month => {
                let (year, month) = (window.div_euclid(12), window.rem_euclid(12));
                first_day(year) + days_before_month(year, month)
            }
            CalendarUnit::Year => first_day(window),
        };
        let second = self.day_start(day);
        Timestamp::from_micros(u64::try_from(second).unwrap_or(0).saturating_mul(1_000_000))
    }

    /// The first second at which the local date is `day` or later. A clock that skips midnight, or the whole day, starts
    /// it when it skips.
    fn day_start(&self, day: i64) -> i64 {
        let midnight = day * DAY_S;
        let first = self.change_before(midnight - OFFSET_MAX_S);
        let changes = self.offsets.get(first..).unwrap_or_default();
        let mut start = midnight;
        for (index, change) in changes.iter().enumerate() {
            start = (midnight - change.offset_s).max(change.from_s);
            if changes.get(index + 1).is_none_or(|next| start < next.from_s) {
                break;
            }
        }
        start
    }

    fn offset(&self, second: i64) -> i64 {
        let change = self.offsets.get(self.change_before(second));
        change.map_or(0, |change| change.offset_s)
    }

    /// The index of the last change at or before a second.
    fn change_before(&self, second: i64) -> usize {
        self.offsets
            .partition_point(|change| change.from_s <= second)
            .saturating_sub(1)
    }
}

/// The offsets of a zone, from the epoch on.
fn compile_offsets(zone: &str) -> Result<Box<[OffsetChange]>, UnknownZone> {
    let database = TimeZoneDatabase::bundled();
    // The database takes names in any case; one spelling is accepted, because it is part of texts and comparisons.
    let found = database.get(zone).ok().filter(|found| found.iana_name() == Some(zone));
    let Some(found) = found else {
        // Compared in lower case, as the closest match is found.
        let names: Vec<(String, Box<str>)> = database
            .available()
            .map(|name| (name.as_str().to_lowercase(), Box::from(name.as_str())))
            .collect();
        let closest = closest_match(zone, names.iter().map(|(lower, _)| lower.as_str()));
        let named = names.iter().find(|(lower, _)| Some(lower.as_str()) == closest);
        return Err(UnknownZone {
            suggestion: named.map(|(_, name)| name.clone()),
        });
    };
    let epoch = jiff::Timestamp::UNIX_EPOCH;
    let mut offsets = vec![OffsetChange {
        from_s: i64::MIN / 2,
        offset_s: found.to_offset(epoch).seconds().into(),
    }];
    let changes = found.following(epoch).map(|change| OffsetChange {
        from_s: change.timestamp().as_second(),
        offset_s: change.offset().seconds().into(),
    });
    let changes = changes.take_while(|change| change.from_s < COMPILED_UNTIL_S);
    offsets.extend(changes.take(CHANGES_MAX));
    Ok(offsets.into())
}

/// The first day of a year, as a number of days since the epoch.
const fn first_day(year: i64) -> i64 {
    let before = year - 1;
    before * 365 + before.div_euclid(4) - before.div_euclid(100) + before.div_euclid(400) - EPOCH_DAY
}

/// The year of a day.
fn year_of(day: i64) -> i64 {
    let mut year = 1_970 + day.div_euclid(366);
    while first_day(year + 1) <= day {
        year += 1;
    }
    year
}

/// The days of a year before a month, which counts from zero.
fn days_before_month(year: i64, month: i64) -> i64 {
    const DAYS: [i64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    let days = usize::try_from(month).ok().and_then(|month| DAYS.get(month));
    let is_leap = first_day(year + 1) - first_day(year) == 366;
    days.copied().unwrap_or(0) + i64::from(is_leap && month > 1)
}

impl CalendarUnit {
    /// Its name in rules.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }

    /// Its nominal length, where one number must stand for all its windows: a month is 30 days, a year 365.
    pub const fn nominal(self) -> Micros {
        let days = match self {
            Self::Day => 1,
            Self::Week => 7,
            Self::Month => 30,
            Self::Year => 365,
        };
        Micros::from_secs(days * 86_400)
    }
}

impl PartialEq for Calendar {
    fn eq(&self, other: &Self) -> bool {
        (&self.zone, self.unit) == (&other.zone, other.unit)
    }
}

impl Eq for Calendar {}

impl Hash for Calendar {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.zone, self.unit).hash(state);
    }
}

impl fmt::Debug for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.unit.name(), self.zone)
    }
}

#[cfg(test)]
mod tests;
