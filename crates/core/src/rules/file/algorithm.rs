//! The algorithm of a rule with its options, and the limits it accepts.

use crate::algorithm::{
    concurrency::Concurrency, fixed_window::FixedWindow, gcra::Gcra, leaky_bucket::LeakyBucket,
    sliding_counter::SlidingCounter, sliding_log::SlidingLog, token_bucket::TokenBucket,
};
use crate::limit::Limit;
use crate::problem::{Problems, ValueError};
use crate::quantity::{Period, Quota, parse_duration, period_name};
use crate::units::calendar::{Calendar, CalendarUnit, UnknownZone};
use crate::units::rate::{LimitError, Rate};
use crate::units::time::Micros;
use crate::yaml::{Fields, Node, excerpt};

/// The algorithm of a rule and its options.
#[derive(Clone, Copy, Debug)]
pub(in crate::rules) struct AlgorithmOptions {
    name: &'static str,
    kind: AlgorithmKind,
}

#[derive(Clone, Copy, Debug)]
enum AlgorithmKind {
    TokenBucket,
    Gcra,
    FixedWindow { zone: Option<&'static str> },
    SlidingLog { min_interval: Micros },
    SlidingCounter,
    LeakyBucket { shape: bool },
    Concurrency { lease_ttl: Micros },
}

/// The result of parsing one limit.
pub(in crate::rules) enum ParsedLimit {
    Limited(Limit, Option<Period>),
    /// With the period it was written with, if the algorithm has one.
    Banned(Option<Micros>),
    Unlimited,
}

/// The algorithm names of rules.
pub(in crate::rules) const ALGORITHMS: [&str; 7] = [
    "token_bucket",
    "gcra",
    "fixed_window",
    "sliding_log",
    "sliding_counter",
    "leaky_bucket",
    "concurrency",
];

/// The options and the algorithm each belongs to.
pub(in crate::rules) const OPTIONS: [(&str, &str); 4] = [
    ("calendar", "fixed_window"),
    ("min_interval", "sliding_log"),
    ("lease_ttl", "concurrency"),
    ("shape", "leaky_bucket"),
];

/// The default lifetime of a lease that is not released.
const LEASE_TTL: Micros = Micros::from_secs(60);

impl AlgorithmOptions {
    /// Parses the algorithm and its options, in a rule or in an experiment.
    pub(in crate::rules) fn parse(fields: &Fields<'_>, default: &'static str, problems: &mut Problems) -> Option<Self> {
        let known = ALGORITHMS.map(|name| (name, name));
        let name = match fields.find("algorithm") {
            Some(node) => node.keyword("an algorithm", &known, problems)?,
            None => default,
        };
        for (option, owner) in OPTIONS {
            if owner != name
                && let Some((key, _)) = fields.entry(option)
            {
                problems.error_with(
                    &key.location,
                    format!("`{option}` is an option of `{owner}`, and this is `{name}`"),
                    format!("remove it, or write `algorithm: {owner}`"),
                );
            }
        }
        let time = |option: &str, problems: &mut Problems| {
            let node = fields.find(option)?;
            node.read("a length of time like 50ms", parse_duration, problems)
        };
        let kind = match name {
            "token_bucket" => AlgorithmKind::TokenBucket,
            "gcra" => AlgorithmKind::Gcra,
            "fixed_window" => AlgorithmKind::FixedWindow {
                zone: fields.find("calendar").and_then(|node| parse_zone(node, problems)),
            },
            "sliding_log" => AlgorithmKind::SlidingLog {
                min_interval: time("min_interval", problems).unwrap_or(Micros::ZERO),
            },
            "sliding_counter" => AlgorithmKind::SlidingCounter,
            "leaky_bucket" => AlgorithmKind::LeakyBucket {
                shape: fields
                    .find("shape")
                    .and_then(|node| node.flag(problems))
                    .unwrap_or(false),
            },
            _ => AlgorithmKind::Concurrency {
                lease_ttl: time("lease_ttl", problems)
                    .filter(|lease_ttl| check_lease_ttl(*lease_ttl, fields, problems))
                    .unwrap_or(LEASE_TTL),
            },
        };
        Some(Self { name, kind })
    }

    /// The name of the algorithm.
    pub(super) const fn name(&self) -> &'static str {
        self.name
    }

    /// True if it delays what it allows.
    pub(super) const fn is_shaping(&self) -> bool {
        matches!(self.kind, AlgorithmKind::LeakyBucket { shape: true })
    }

    /// Returns the limit of this algorithm for a quota.
    pub(in crate::rules) fn limit(&self, quota: Quota) -> Result<ParsedLimit, ValueError> {
        match (quota, self.kind) {
            (Quota::Unlimited, _) => Ok(ParsedLimit::Unlimited),
            (Quota::Slots(0), AlgorithmKind::Concurrency { .. }) => Ok(ParsedLimit::Banned(None)),
            (Quota::Slots(slots), AlgorithmKind::Concurrency { lease_ttl }) => {
                let limit = Concurrency::new(slots, lease_ttl).map_err(value_error)?;
                Ok(ParsedLimit::Limited(limit.into(), None))
            }
            (Quota::Slots(units), _) => Err(ValueError::new(
                format!("`{units}` has no period"),
                format!("write `{units}/s` or `{units}/min`; only `concurrency` takes a number alone"),
            )),
            (
                Quota::Flow {
                    units: 0,
                    burst: None,
                    period,
                },
                _,
            ) => Ok(ParsedLimit::Banned(Some(match period {
                Period::Exact(period) => period,
                Period::Month => CalendarUnit::Month.nominal(),
                Period::Year => CalendarUnit::Year.nominal(),
            }))),
            (Quota::Flow { units: 0, .. }, _) => Err(ValueError::new(
                "a limit of zero is a ban, and a ban has no burst",
                "remove the burst, or raise the limit",
            )),
            (Quota::Flow { .. }, AlgorithmKind::Concurrency { .. }) => Err(ValueError::new(
                "`concurrency` counts what is in flight and has no period",
                "write a number alone: `limit: 20`",
            )),
            (Quota::Flow { units, period, burst }, _) => {
                let limit = match (self.calendar(period)?, period) {
                    (Some(_), _) if burst.is_some() => return Err(self.no_burst()),
                    (Some(calendar), _) => FixedWindow::of_calendar(units, calendar).map_err(value_error)?.into(),
                    (None, Period::Exact(period)) => {
                        let rate = Rate::new(units, period).map_err(value_error)?;
                        self.rate_limit(rate, burst)?
                    }
                    (None, Period::Month | Period::Year) => {
                        let (name, days) = if period == Period::Month {
                            ("month", 30)
                        } else {
                            ("year", 365)
                        };
                        return Err(ValueError::new(
                            format!("`{}` has no windows of a {name}, which has no fixed length", self.name),
                            format!("write `algorithm: fixed_window`, or `{units}/{days}day`"),
                        ));
                    }
                };
                Ok(ParsedLimit::Limited(limit, Some(period)))
            }
        }
    }

    /// The calendar of windows with this period. None if they are aligned to the epoch, or are no windows of a calendar.
    fn calendar(&self, period: Period) -> Result<Option<&'static Calendar>, ValueError> {
        let AlgorithmKind::FixedWindow { zone } = self.kind else {
            return Ok(None);
        };
        let unit = match period {
            Period::Month => CalendarUnit::Month,
            Period::Year => CalendarUnit::Year,
            Period::Exact(_) if zone.is_none() => return Ok(None),
            Period::Exact(exact) if exact == CalendarUnit::Day.nominal() => CalendarUnit::Day,
            Period::Exact(exact) if exact == CalendarUnit::Week.nominal() => CalendarUnit::Week,
            // Shorter windows are those of the epoch in every zone.
            Period::Exact(exact) if exact < CalendarUnit::Day.nominal() => return Ok(None),
            Period::Exact(exact) => {
                return Err(ValueError::new(
                    format!("a calendar has no windows of {}", period_name(exact)),
                    "write `/day`, `/week`, `/month` or `/year`, or remove `calendar`",
                ));
            }
        };
        let calendar = Calendar::new(zone.unwrap_or("UTC"), unit);
        calendar
            .map(Some)
            .map_err(|error| unknown_zone(zone.unwrap_or("UTC"), &error))
    }

    fn no_burst(&self) -> ValueError {
        ValueError::new(
            format!("`{}` takes no burst", self.name),
            "remove the burst; `token_bucket`, `gcra` and `leaky_bucket` take one",
        )
    }

    fn rate_limit(&self, rate: Rate, burst: Option<u64>) -> Result<Limit, ValueError> {
        let capacity = burst.unwrap_or(rate.units());
        let limit = match self.kind {
            AlgorithmKind::TokenBucket => TokenBucket::new(rate).with_burst(capacity).map(Limit::from),
            AlgorithmKind::Gcra => Gcra::new(rate).with_burst(capacity).map(Limit::from),
            AlgorithmKind::LeakyBucket { shape } => LeakyBucket::new(rate)
                .with_depth(capacity)
                .map(|limit| if shape { limit.shaping() } else { limit })
                .map(Limit::from),
            _ if burst.is_some() => {
                return Err(self.no_burst());
            }
            AlgorithmKind::FixedWindow { .. } => Ok(FixedWindow::new(rate).into()),
            AlgorithmKind::SlidingCounter => Ok(SlidingCounter::new(rate).into()),
            AlgorithmKind::SlidingLog { min_interval } => SlidingLog::new(rate)
                .and_then(|limit| limit.with_min_interval(min_interval))
                .map(Limit::from),
            AlgorithmKind::Concurrency { .. } => {
                return Err(ValueError::new(
                    "`concurrency` has no period",
                    "write a number alone: `limit: 20`",
                ));
            }
        };
        limit.map_err(value_error)
    }
}

/// Parses the name of a time zone.
fn parse_zone(node: &Node, problems: &mut Problems) -> Option<&'static str> {
    let parse = |text: &str| match Calendar::new(text, CalendarUnit::Day) {
        Ok(calendar) => Ok(calendar.zone()),
        Err(error) => Err(unknown_zone(text, &error)),
    };
    node.read("a time zone like Europe/Berlin", parse, problems)
}

fn unknown_zone(name: &str, error: &UnknownZone) -> ValueError {
    ValueError::new(
        format!("`{}` is not a time zone", excerpt(name)),
        match &error.suggestion {
            Some(suggestion) => format!("did you mean `{suggestion}`?"),
            None => "write a name of the tz database: `Europe/Berlin`, `America/New_York`, `UTC`".to_owned(),
        },
    )
}

/// True if a lease may last that long. Reported at its own location, not at that of the limit.
fn check_lease_ttl(lease_ttl: Micros, fields: &Fields<'_>, problems: &mut Problems) -> bool {
    let error = Concurrency::new(1, lease_ttl).err();
    if let (Some(limit_error), Some(node)) = (error, fields.find("lease_ttl")) {
        problems.push(value_error(limit_error).at(&node.location));
    }
    error.is_none()
}

/// Splits the error of a limit into its text and, after the colon, its hint.
fn value_error(error: LimitError) -> ValueError {
    let text = error.to_string();
    match text.split_once(": ") {
        Some((message, hint)) => ValueError::new(message, hint),
        None => ValueError::new(text, "change the numbers of the limit"),
    }
}
