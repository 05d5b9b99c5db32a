//! Quantities as people write them: `500ms`, `100/min burst 200`, `10%`, `1GiB`. Each error has a hint.

use crate::text::problem::{ValueError, closest_match};
use crate::text::yaml::excerpt;
use crate::units::rate::Rate;
use crate::units::time::Micros;
use std::fmt;

/// A limit as written, before an algorithm is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quota {
    /// `unlimited`.
    Unlimited,
    /// `100/min`, `100/min burst 200`, `0/min`.
    Flow {
        /// Units per period; zero is a ban.
        units: u64,
        /// The period.
        period: Period,
        /// The capacity, if given.
        burst: Option<u64>,
    },
    /// `20`: concurrent slots.
    Slots(u64),
}

/// The period of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Period {
    /// A length of time.
    Exact(Micros),
    /// A month of a calendar.
    Month,
    /// A year of a calendar.
    Year,
}

impl Period {
    /// Its name in the names of windows: `1min`, `1month`.
    pub fn name(self) -> String {
        match self {
            Self::Exact(period) => period_name(period),
            Self::Month => "1month".into(),
            Self::Year => "1year".into(),
        }
    }

    /// Its length. None for a month and a year, which have several.
    pub const fn exact(self) -> Option<Micros> {
        match self {
            Self::Exact(period) => Some(period),
            Self::Month | Self::Year => None,
        }
    }
}

/// A share, exact to a millionth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share {
    millionths: u32,
}

impl Share {
    /// 0 %.
    pub const NONE: Self = Self { millionths: 0 };
    /// 100 %.
    pub const ALL: Self = Self { millionths: 1_000_000 };

    /// A share in whole percent; above 100 it is everything.
    pub const fn percent(percent: u32) -> Self {
        let percent = if percent > 100 { 100 } else { percent };
        Self {
            millionths: percent * 10_000,
        }
    }

    /// The share in millionths.
    pub const fn millionths(self) -> u32 {
        self.millionths
    }

    /// This share of `whole`, rounded down.
    pub const fn part_of(self, whole: u64) -> u64 {
        // The product of a u64 and a u32 fits, and the quotient is at most `whole`.
        (whole as u128 * self.millionths as u128 / 1_000_000) as u64
    }
}

/// As rules write it: `20%`, `0.5%`.
impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (percent, rest) = (self.millionths / 10_000, self.millionths % 10_000);
        if rest == 0 {
            return write!(f, "{percent}%");
        }
        let decimals = format!("{rest:04}");
        write!(f, "{percent}.{}%", decimals.trim_end_matches('0'))
    }
}

/// Parses an integer: digits, which underscores may separate: `10_000`.
pub fn parse_integer(text: &str) -> Option<u64> {
    let has_no_empty_group = |text: &str| text.split('_').all(|digits| !digits.is_empty());
    if !has_no_empty_group(text) || !text.bytes().all(|b| b.is_ascii_digit() || b == b'_') {
        return None;
    }
    text.bytes().filter(|b| *b != b'_').try_fold(0_u64, |number, b| {
        number.checked_mul(10)?.checked_add(u64::from(b - b'0'))
    })
}

/// Parses a duration: an integer and a unit, `30s`.
///
/// # Errors
/// Anything else, or one that is longer than 2^53 µs.
pub fn parse_duration(text: &str) -> Result<Micros, ValueError> {
    let (number, unit) = split(text);
    if number.is_empty() && unit_of(unit).is_some() {
        return Err(ValueError::new(
            format!("`{}` has no number", excerpt(text)),
            format!("write `1{unit}`"),
        ));
    }
    span(text, number, unit, "a length of time")
}

/// Parses the period of a rate: a duration or a bare unit, `min`.
///
/// # Errors
/// Anything else, or one that is longer than 2^53 µs.
pub fn parse_period(text: &str) -> Result<Micros, ValueError> {
    let (number, unit) = split(text);
    if number.is_empty()
        && let Some(us) = unit_of(unit)
    {
        return Ok(Micros::new(us));
    }
    span(text, number, unit, "a period")
}

/// A period in its largest unit: `1min` for sixty seconds.
pub fn period_name(period: Micros) -> String {
    let us = period.get();
    let (unit, size) = UNITS
        .iter()
        .rev()
        .find(|(_, size)| us >= *size && us.is_multiple_of(*size))
        .unwrap_or(&("us", 1));
    format!("{}{unit}", us / size)
}

/// Parses a rate without a burst: `1000/s`.
///
/// # Errors
/// Anything else, and a rate out of range.
pub fn parse_rate(text: &str) -> Result<Rate, ValueError> {
    let example = "write a rate like `1000/s`";
    match parse_quota(text)? {
        Quota::Flow {
            units,
            period: Period::Exact(period),
            burst: None,
        } => Rate::new(units, period).map_err(|error| ValueError::new(error.to_string(), example)),
        Quota::Flow { burst: None, .. } => Err(ValueError::new("a rate has a period of a fixed length", example)),
        Quota::Flow { .. } => Err(ValueError::new("a burst has no meaning here", example)),
        Quota::Unlimited | Quota::Slots(_) => {
            Err(ValueError::new(format!("`{}` is not a rate", excerpt(text)), example))
        }
    }
}

/// Parses a limit: `100/min`, `5000/min burst 500`, `unlimited`, `20`.
///
/// # Errors
/// Anything else. Whether an algorithm accepts it is checked later.
pub fn parse_quota(text: &str) -> Result<Quota, ValueError> {
    let text = text.trim();
    if text == "unlimited" {
        return Ok(Quota::Unlimited);
    }
    let Some((units, rest)) = text.split_once('/') else {
        return match parse_integer(text) {
            Some(slots) => Ok(Quota::Slots(slots)),
            None => Err(not_a_limit(text)),
        };
    };
    let units = parse_integer(units.trim()).ok_or_else(|| not_a_number(units.trim()))?;
    let mut tokens = rest.split_whitespace();
    let period = match tokens.next().unwrap_or_default() {
        "month" => Period::Month,
        "year" => Period::Year,
        text => Period::Exact(parse_period(text)?),
    };
    let burst = match (tokens.next(), tokens.next(), tokens.next()) {
        (None, ..) => None,
        (Some("burst"), Some(burst), None) => Some(parse_integer(burst).ok_or_else(|| not_a_number(burst))?),
        _ => {
            return Err(ValueError::new(
                format!("`{}` is not understood after the period", excerpt(rest.trim())),
                "only a burst can follow it: `100/min burst 200`",
            ));
        }
    };
    Ok(Quota::Flow { units, period, burst })
}

/// Parses a share: `10%`, `0.5%` or `0.1`.
///
/// # Errors
/// Anything else, more than 100 %, or more than four decimals of a percent.
pub fn parse_share(text: &str) -> Result<Share, ValueError> {
    let (number, decimals) = match text.strip_suffix('%') {
        Some(number) => (number.trim_end(), 4),
        None => (text, 6),
    };
    decimal(number, decimals)
        .and_then(|millionths| u32::try_from(millionths).ok())
        .map(|millionths| Share { millionths })
        .filter(|share| *share <= Share::ALL)
        .ok_or_else(|| {
            ValueError::new(
                format!("`{}` is not a share", excerpt(text)),
                "write a percentage from `0%` to `100%`, with at most four decimals",
            )
        })
}

/// Parses a number of bytes: `64KiB`, `1GiB`, `100MB`, `4096`.
///
/// # Errors
/// Anything else, or one of 2^64 bytes and more.
pub fn parse_size(text: &str) -> Result<u64, ValueError> {
    let (number, unit) = split(text);
    let error = || {
        ValueError::new(
            format!("`{}` is not a size", excerpt(text)),
            "write a whole number and a unit: `64KiB`, `512MiB`, `1GiB`",
        )
    };
    let known = SIZES.iter().find(|(name, _)| *name == unit);
    let Some((_, factor)) = known else {
        let similar = SIZES.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit));
        return Err(match similar {
            Some((unit, _)) if parse_integer(number).is_some() => {
                ValueError::new(error().text, format!("did you mean `{number}{unit}`?"))
            }
            _ => error(),
        });
    };
    parse_integer(number)
        .and_then(|number| number.checked_mul(*factor))
        .ok_or_else(error)
}

/// Units of time and their length in microseconds, from the shortest.
pub const UNITS: [(&str, u64); 7] = [
    ("us", 1),
    ("ms", 1_000),
    ("s", 1_000_000),
    ("min", 60_000_000),
    ("h", 3_600_000_000),
    ("day", 86_400_000_000),
    ("week", 604_800_000_000),
];

const SIZES: [(&str, u64); 10] = [
    ("", 1),
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];

/// Other names of units, for the hint only: one spelling per unit is accepted.
const UNIT_ALIASES: [(&str, &[&str]); 7] = [
    ("us", &["µs", "usec", "micros", "microsecond", "microseconds"]),
    ("ms", &["msec", "msecs", "millis", "millisecond", "milliseconds"]),
    ("s", &["sec", "secs", "second", "seconds"]),
    ("min", &["m", "mins", "minute", "minutes"]),
    ("h", &["hr", "hrs", "hour", "hours"]),
    ("day", &["d", "days"]),
    ("week", &["w", "weeks"]),
];

/// The leading digits and the rest.
fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '_')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (number, unit.trim_start())
}

fn unit_of(name: &str) -> Option<u64> {
    UNITS.iter().find(|(unit, _)| *unit == name).map(|(_, size)| *size)
}

fn span(text: &str, number: &str, unit: &str, what: &str) -> Result<Micros, ValueError> {
    let wrong = || format!("`{}` is not {what}", excerpt(text));
    let Some(size) = unit_of(unit) else {
        return Err(ValueError::new(wrong(), unit_hint(number, unit)));
    };
    let number =
        parse_integer(number).ok_or_else(|| ValueError::new(wrong(), "write a whole number and a unit, like `30s`"))?;
    number
        .checked_mul(size)
        .filter(|us| *us <= Micros::MAX.get())
        .map(Micros::new)
        .ok_or_else(|| ValueError::new(format!("`{}` is too long", excerpt(text)), "write less than 285 years"))
}

fn unit_hint(number: &str, unit: &str) -> String {
    let all = "units are `ms`, `s`, `min`, `h`, `day` and `week`, with a whole number before them: `30s`";
    let lower = unit.to_lowercase();
    let calendar = [
        ("month", ["months", "mon", "mo", "month"]),
        ("year", ["years", "yr", "y", "year"]),
    ];
    if let Some((name, _)) = calendar.iter().find(|(_, names)| names.contains(&&*lower)) {
        return format!("a limit can be per `{name}`, without a number: `10000/{name}`; otherwise write days: `30day`");
    }
    let alias = UNIT_ALIASES
        .iter()
        .find(|(name, others)| *name == lower || others.contains(&&*lower));
    let suggestion = match alias {
        Some((name, _)) => Some(*name),
        None if unit.is_empty() => None,
        // From the longest: of two that are as close, such as `min` and `ms` for `mn`, the longer is the likelier period.
        None => closest_match(
            &lower,
            UNITS.iter().rev().map(|(name, _)| *name).filter(|name| name.len() > 1),
        ),
    };
    // The number is repeated in the hint unless it is very long.
    match suggestion {
        Some(name) if number.len() <= 20 => format!("did you mean `{number}{name}`?"),
        Some(name) => format!("did you mean `{name}`?"),
        None => all.into(),
    }
}

fn not_a_limit(text: &str) -> ValueError {
    let hint = if closest_match(text, ["unlimited"]).is_some() {
        "did you mean `unlimited`?"
    } else {
        "write `100/min`, `100/min burst 200` or `unlimited`"
    };
    ValueError::new(format!("`{}` is not a limit", excerpt(text)), hint)
}

fn not_a_number(text: &str) -> ValueError {
    let hint = if text.contains('.') {
        "write a whole number and a longer period: one and a half per second is `3/2s`"
    } else {
        "write digits, which underscores may separate: `10_000`"
    };
    ValueError::new(format!("`{}` is not a whole number", excerpt(text)), hint)
}

/// Parses a number with at most `decimals` decimals, as an integer of the last of them.
fn decimal(text: &str, decimals: usize) -> Option<u64> {
    let (units, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if fraction.len() > decimals || units.len() > 9 || !digits(units) || !digits(fraction) {
        return None;
    }
    format!("{units}{fraction:0<decimals$}").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value of a text, or its error.
    fn describe<T: std::fmt::Debug>(result: Result<T, ValueError>) -> String {
        match result {
            Ok(value) => format!("{value:?}"),
            Err(error) => error.to_string(),
        }
    }

    fn check_described<T: std::fmt::Debug>(text: &str, result: Result<T, ValueError>, expected: &str) {
        let described = describe(result);
        assert!(described.contains(expected), "{text}: {described}");
    }

    #[test]
    fn durations_are_a_whole_number_and_a_unit() {
        for (text, us) in [
            ("500ms", 500_000),
            ("30s", 30_000_000),
            ("10min", 600_000_000),
            ("1h", 3_600_000_000),
            ("2day", 172_800_000_000),
            ("1week", 604_800_000_000),
            ("1_000 s", 1_000_000_000),
            ("0s", 0),
            ("250us", 250),
        ] {
            assert_eq!(parse_duration(text), Ok(Micros::new(us)), "{text}");
        }
    }

    #[test]
    fn a_duration_that_is_not_one_is_told_what_to_write() {
        for (text, expected) in [
            ("30", "units are `ms`"),
            ("", "units are `ms`"),
            ("s", "write `1s`"),
            ("30sec", "did you mean `30s`?"),
            ("5m", "did you mean `5min`?"),
            ("5mni", "did you mean `5min`?"),
            ("2Days", "did you mean `2day`?"),
            ("1.5s", "units are"),
            ("-3s", "units are"),
            ("_3s", "write a whole number"),
            ("99999999999999999999s", "write a whole number"),
            ("999999999999week", "is too long"),
        ] {
            check_described(text, parse_duration(text), expected);
        }
    }

    #[test]
    fn limits_are_a_rate_with_or_without_a_burst() {
        let flow = |units, period, burst| {
            let period = Period::Exact(period);
            Ok(Quota::Flow { units, period, burst })
        };
        let calendar = |units, period| {
            Ok(Quota::Flow {
                units,
                period,
                burst: None,
            })
        };
        for (text, expected) in [
            ("100/min", flow(100, Micros::from_secs(60), None)),
            ("10_000/s", flow(10_000, Micros::from_secs(1), None)),
            ("0/min", flow(0, Micros::from_secs(60), None)),
            ("5000/min burst 500", flow(5_000, Micros::from_secs(60), Some(500))),
            (" 3 / 2s  burst  7 ", flow(3, Micros::from_secs(2), Some(7))),
            ("10000/month", calendar(10_000, Period::Month)),
            ("1/year", calendar(1, Period::Year)),
            ("unlimited", Ok(Quota::Unlimited)),
            ("20", Ok(Quota::Slots(20))),
        ] {
            assert_eq!(parse_quota(text), expected, "{text}");
        }
    }

    #[test]
    fn a_limit_that_is_not_one_is_told_what_to_write() {
        for (text, expected) in [
            ("100/mni", "did you mean `min`?"),
            ("100/minute", "did you mean `min`?"),
            ("100/30sec", "did you mean `30s`?"),
            ("100/2month", "without a number: `10000/month`"),
            ("100/Years", "without a number: `10000/year`"),
            ("100 per minute", "write `100/min`"),
            ("unlimted", "did you mean `unlimited`?"),
            ("10k/s", "write digits"),
            ("1.5/s", "`3/2s`"),
            ("/s", "is not a whole number"),
            ("100/", "is not a period"),
            ("100/mn", "did you mean `min`?"),
            ("100/5mn", "did you mean `5min`?"),
            ("100/mss", "did you mean `ms`?"),
            ("100/s burst", "only a burst can follow"),
            ("100/s brst 5", "only a burst can follow"),
            ("100/s burst 5 6", "only a burst can follow"),
            ("100/s burst lots", "`lots` is not a whole number"),
            ("", "is not a limit"),
        ] {
            check_described(text, parse_quota(text), expected);
        }
    }

    #[test]
    fn shares_are_percentages_or_fractions_of_one() {
        for (text, millionths) in [
            ("10%", Some(100_000)),
            ("0.5%", Some(5_000)),
            ("100%", Some(1_000_000)),
            ("0.0001%", Some(1)),
            ("0.8", Some(800_000)),
            ("1", Some(1_000_000)),
            ("0", Some(0)),
            ("101%", None),
            ("10", None),
            ("0.00001%", None),
            ("%", None),
            (".5", None),
            ("-1%", None),
            ("1e-1", None),
        ] {
            assert_eq!(parse_share(text).ok().map(Share::millionths), millionths, "{text}");
        }
        assert_eq!(Share::ALL.part_of(u64::MAX), u64::MAX);
        for text in ["0%", "20%", "0.5%", "99.9999%", "0.0001%", "100%"] {
            assert_eq!(parse_share(text).map(|share| share.to_string()).as_deref(), Ok(text));
        }
    }

    #[test]
    fn sizes_are_a_whole_number_of_bytes() {
        for (text, bytes) in [
            ("1GiB", Some(1 << 30)),
            ("64KiB", Some(65_536)),
            ("100MB", Some(100_000_000)),
            ("4096", Some(4_096)),
            ("1_000B", Some(1_000)),
            ("1GIB", None),
            ("GiB", None),
            ("99999999999TiB", None),
        ] {
            assert_eq!(parse_size(text).ok(), bytes, "{text}");
        }
        assert!(describe(parse_size("1Gib")).contains("did you mean `1GiB`?"));
    }

    #[test]
    fn a_period_is_named_by_the_longest_unit_that_divides_it() {
        for (text, name) in [
            ("s", "1s"),
            ("60s", "1min"),
            ("90s", "90s"),
            ("500ms", "500ms"),
            ("1000ms", "1s"),
            ("24h", "1day"),
            ("14day", "2week"),
            ("1500us", "1500us"),
        ] {
            assert_eq!(parse_period(text).map(period_name), Ok(name.into()), "{text}");
        }
    }
}
