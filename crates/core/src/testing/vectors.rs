//! Worked examples: tables an operator can read, one line per case, that both twins of an algorithm must obey.
//!
//! [`parse`] reads them into plain data; [`check`] runs them against [`Limit`].
//!
//! ```text
//! # The first comment above a limit is the name of the scenario.
//! limit gcra 10/s burst 3
//! #  time      cost      answer  remaining  retry   reset
//!    0s        1         allow   2          -       100ms   as a
//!    0s        3         deny    2          100ms   100ms
//!    50ms      undo a    done
//!    +1ms      1 x3      allow   *          -       *
//!    1s        edit gcra 20/s burst 3
//! ```
//!
//! - `limit` follows a blank line and starts a scenario with a fresh key. `edit` changes the limit under the
//!   live key, which has to stay the same counter.
//! - Times count from [`START`], in any order, also before it (`-5s`); `+1ms` is relative to the line above. A time
//!   may have a decimal point as long as it is whole in microseconds: `99.999ms`.
//! - `x3` repeats a line, `+1ms` moving on each time. `*` accepts anything.
//! - `retry` is `-` on allow, and on deny a time, `unknown` or `never`. A sixth column is the delay of a shaped request,
//!   `0s` if left out. The limit in the answer is always expected to be the one written above.
//! - `as a` names a charge, for `undo a`, `release a` and `renew a`. These and `refund 2` are followed by `done`, or by
//!   `nothing` if there was nothing to do; a peek (cost 0) in the next line shows the effect.
//! - A `cell` limit is written as in `CL.THROTTLE` (max_burst, count, period in seconds), and a line may give the five
//!   integers of the reply instead of the answer.

mod run;

pub use run::check;

use crate::{
    Calendar, CalendarUnit, Cell, Concurrency, Cost, FixedWindow, Gcra, LeakyBucket, Limit, Micros, Rate, Retry,
    SlidingCounter, SlidingLog, Timestamp, TokenBucket,
};

/// The time that all times count from: 20,496 days after the epoch, a whole number of every period that divides 366 days
/// or a week, so that aligned windows begin here.
pub const START: Timestamp = Timestamp::from_micros(20_496 * 86_400_000_000);

/// A scenario: one key under one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// The line of its limit.
    pub line: usize,
    /// The first comment above it.
    pub title: String,
    /// The limit at the start.
    pub limit: Limit,
    /// The steps, in order.
    pub steps: Vec<ScenarioStep>,
}

/// One line of a scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScenarioStep {
    /// Its line in the file.
    pub line: usize,
    /// The time.
    pub at: Timestamp,
    /// The number of repetitions.
    pub repeat: u64,
    /// The time between repetitions.
    pub interval: Micros,
    /// The action.
    pub action: Action,
}

/// An action on a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Decide a request, and keep it if it passes.
    Decide {
        /// The cost.
        cost: Cost,
        /// The name of this charge in later lines.
        name: Option<String>,
        /// The expected result.
        expected: Expected,
    },
    /// Refund units.
    Refund {
        /// The number of units.
        cost: Cost,
        /// True if something is refunded.
        done: bool,
    },
    /// Undo a named charge, or release or renew its lease.
    Charge {
        /// The operation.
        op: ChargeOp,
        /// The charge.
        name: String,
        /// True if it has an effect.
        done: bool,
    },
    /// Change the numbers of the limit.
    Edit(Limit),
}

/// An operation on an earlier charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChargeOp {
    /// Undo it.
    Undo,
    /// Release its lease.
    Release,
    /// Renew its lease.
    Renew,
}

/// The expected result of a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// The decision, field by field.
    Decision(ExpectedDecision),
    /// The integers of a `CL.THROTTLE` reply: limited, limit, remaining, retry, reset.
    Reply([i64; 5]),
}

/// A decision as written. A `*` in the file is `None` here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpectedDecision {
    /// Allow or deny, with the delay or the retry.
    pub verdict: ExpectedVerdict,
    /// The capacity.
    pub limit: u64,
    /// The largest cost that would pass now.
    pub remaining: Option<u64>,
    /// The time until the key is fresh.
    pub reset: Option<Micros>,
}

/// Allow or deny as written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedVerdict {
    /// Passes.
    Allow {
        /// After this delay.
        delay: Option<Micros>,
    },
    /// Does not pass.
    Deny {
        /// The wait until it would pass.
        retry: Option<Retry>,
    },
}

/// Reads a file of worked examples.
///
/// # Errors
/// The first line that cannot be parsed, and the reason.
pub fn parse(text: &str) -> Result<Vec<Scenario>, String> {
    let mut file = ScenarioParser::default();
    for (number, line) in (1..).zip(text.lines()) {
        file.read(number, line)
            .map_err(|error| format!("line {number}: {error}"))?;
    }
    Ok(file.scenarios)
}

/// Reads line by line.
#[derive(Default)]
struct ScenarioParser {
    scenarios: Vec<Scenario>,
    /// The first comment since the last blank line.
    title: Option<String>,
    /// True after a limit, until the next blank line.
    in_scenario: bool,
    /// The capacity of the current limit, as written.
    size: u64,
    now: Timestamp,
    names: Vec<String>,
}

impl ScenarioParser {
    fn read(&mut self, number: usize, line: &str) -> Result<(), String> {
        let (content, comment) = line.split_once('#').unwrap_or((line, ""));
        let tokens: Vec<&str> = content.split_whitespace().collect();
        match tokens.as_slice() {
            [] if line.trim().is_empty() => {
                self.title = None;
                self.in_scenario = false;
            }
            [] => {
                self.title.get_or_insert_with(|| comment.trim().to_owned());
            }
            ["limit", ..] if self.in_scenario => {
                return Err("a limit begins a scenario: leave a blank line before it, or write `edit`".to_owned());
            }
            ["limit", tokens @ ..] => {
                let (limit, size) = read_limit(tokens)?;
                self.size = size;
                self.now = START;
                self.names.clear();
                self.in_scenario = true;
                self.scenarios.push(Scenario {
                    line: number,
                    title: self.title.take().unwrap_or_default(),
                    limit,
                    steps: Vec::new(),
                });
            }
            [time, tokens @ ..] => {
                let step = self.read_step(number, time, tokens)?;
                let scenario = self.scenarios.last_mut().ok_or("a `limit` has to come first")?;
                scenario.steps.push(step);
            }
        }
        Ok(())
    }

    fn read_step(&mut self, line: usize, time: &str, tokens: &[&str]) -> Result<ScenarioStep, String> {
        let (at, interval) = match time.strip_prefix('+') {
            Some(span) => {
                let interval = read_span(span)?;
                (self.now + interval, interval)
            }
            None => match time.strip_prefix('-') {
                Some(span) => (START - read_span(span)?, Micros::ZERO),
                None => (START + read_span(time)?, Micros::ZERO),
            },
        };
        let (repeat, tokens) = match *tokens {
            [what, count, ref rest @ ..] if count.starts_with('x') => {
                let repeat = read_number(count.trim_start_matches('x'))?;
                (repeat, [&[what], rest].concat())
            }
            _ => (1, tokens.to_vec()),
        };
        if repeat == 0 {
            return Err("`x0` would check nothing".to_owned());
        }
        self.now = at + Micros::new(interval.get().saturating_mul(repeat - 1));
        let action = self.read_action(&tokens)?;
        if repeat > 1 && matches!(&action, Action::Decide { name: Some(_), .. }) {
            return Err("a line that repeats cannot be named".to_owned());
        }
        Ok(ScenarioStep {
            line,
            at,
            repeat,
            interval,
            action,
        })
    }

    fn read_action(&mut self, tokens: &[&str]) -> Result<Action, String> {
        match *tokens {
            ["edit", ref tokens @ ..] => {
                let (limit, size) = read_limit(tokens)?;
                let same_counter = |old: Limit| old.algorithm() == limit.algorithm() && old.window() == limit.window();
                if !self.limit().is_some_and(same_counter) {
                    return Err("another algorithm, or another period of a window, is another counter".to_owned());
                }
                self.size = size;
                Ok(Action::Edit(limit))
            }
            ["refund", cost, outcome] => Ok(Action::Refund {
                cost: read_cost(cost)?,
                done: read_outcome(outcome)?,
            }),
            ["undo", name, outcome] => self.read_charge_op(ChargeOp::Undo, name, outcome),
            ["release", name, outcome] => self.read_charge_op(ChargeOp::Release, name, outcome),
            ["renew", name, outcome] => self.read_charge_op(ChargeOp::Renew, name, outcome),
            ["refund" | "undo" | "release" | "renew", ..] => {
                Err("say what is done and whether it is: `refund 2 done`, `undo a nothing`".to_owned())
            }
            [cost, ref expected_tokens @ .., "as", name] => {
                let expected = self.read_expected(expected_tokens)?;
                if !expected.is_allow() {
                    return Err("only a charge that passes can be named".to_owned());
                }
                self.names.push(name.to_owned());
                Ok(Action::Decide {
                    cost: read_cost(cost)?,
                    name: Some(name.to_owned()),
                    expected,
                })
            }
            [cost, ref expected_tokens @ ..] => Ok(Action::Decide {
                cost: read_cost(cost)?,
                name: None,
                expected: self.read_expected(expected_tokens)?,
            }),
            [] => Err("nothing happens in this line".to_owned()),
        }
    }

    fn read_charge_op(&self, op: ChargeOp, name: &str, outcome: &str) -> Result<Action, String> {
        if !self.names.iter().any(|known| known == name) {
            return Err(format!("no charge above is named `{name}`"));
        }
        if op != ChargeOp::Undo && !matches!(self.limit(), Some(Limit::Concurrency(_))) {
            return Err("only a concurrency limit has leases".to_owned());
        }
        Ok(Action::Charge {
            op,
            name: name.to_owned(),
            done: read_outcome(outcome)?,
        })
    }

    fn read_expected(&self, tokens: &[&str]) -> Result<Expected, String> {
        let decision = |verdict, remaining, reset| -> Result<Expected, String> {
            Ok(Expected::Decision(ExpectedDecision {
                verdict,
                limit: self.size,
                remaining: read_unless_wildcard(remaining, read_number)?,
                reset: read_unless_wildcard(reset, read_span)?,
            }))
        };
        match *tokens {
            ["allow", remaining, "-", reset] => {
                let delay = Some(Micros::ZERO);
                decision(ExpectedVerdict::Allow { delay }, remaining, reset)
            }
            ["allow", remaining, "-", reset, delay] => {
                let delay = read_unless_wildcard(delay, read_span)?;
                decision(ExpectedVerdict::Allow { delay }, remaining, reset)
            }
            ["deny", remaining, retry, reset] => {
                let retry = read_unless_wildcard(retry, read_retry)?;
                decision(ExpectedVerdict::Deny { retry }, remaining, reset)
            }
            [limited, limit, remaining, retry, reset] if matches!(self.limit(), Some(Limit::Cell(_))) => {
                let integer = |word: &str| word.parse().map_err(|_| format!("`{word}` is not an integer"));
                Ok(Expected::Reply([
                    integer(limited)?,
                    integer(limit)?,
                    integer(remaining)?,
                    integer(retry)?,
                    integer(reset)?,
                ]))
            }
            _ => {
                Err("expected `allow <remaining> - <reset> [<delay>]` or `deny <remaining> <retry> <reset>`".to_owned())
            }
        }
    }

    /// The first limit of the scenario; later ones have the same counter.
    fn limit(&self) -> Option<Limit> {
        self.scenarios.last().map(|scenario| scenario.limit)
    }
}

impl Expected {
    const fn is_allow(&self) -> bool {
        match self {
            Self::Decision(decision) => matches!(decision.verdict, ExpectedVerdict::Allow { .. }),
            Self::Reply([limited, ..]) => *limited == 0,
        }
    }
}

/// Parses a limit and its capacity.
fn read_limit(tokens: &[&str]) -> Result<(Limit, u64), String> {
    let to_text = |error: crate::LimitError| error.to_string();
    let [algorithm, numbers @ ..] = tokens else {
        return Err("which algorithm?".to_owned());
    };
    if let ("concurrency", [slots, "lease_ttl", ttl]) = (*algorithm, numbers) {
        let slots = read_number(slots)?;
        let limit = Concurrency::new(slots, read_span(ttl)?).map_err(to_text)?;
        return Ok((limit.into(), slots));
    }
    if let ("cell", [max_burst, count, period_s]) = (*algorithm, numbers) {
        let max_burst = read_number(max_burst)?;
        let limit = Cell::new(max_burst, read_number(count)?, read_number(period_s)?).map_err(to_text)?;
        return Ok((limit.into(), max_burst + 1));
    }
    let [rate, options @ ..] = numbers else {
        return Err(format!("which numbers has this `{algorithm}`?"));
    };
    let (units, period) = rate.split_once('/').ok_or("a rate is written `10/s` or `3/366day`")?;
    let units = read_number(units)?;
    if let ("fixed_window", [zone]) = (*algorithm, options) {
        let unit = match period {
            "day" => CalendarUnit::Day,
            "week" => CalendarUnit::Week,
            "month" => CalendarUnit::Month,
            "year" => CalendarUnit::Year,
            _ => return Err(format!("`{period}` is no unit of a calendar")),
        };
        let calendar = Calendar::new(zone, unit).map_err(|_| format!("`{zone}` is no time zone"))?;
        let limit = FixedWindow::of_calendar(units, calendar).map_err(to_text)?;
        return Ok((limit.into(), units));
    }
    let period = if period.starts_with(|c: char| c.is_ascii_digit()) {
        read_span(period)?
    } else {
        read_span(&format!("1{period}"))?
    };
    let rate = Rate::new(units, period).map_err(to_text)?;
    let limit = match (*algorithm, options) {
        ("token_bucket", []) => TokenBucket::new(rate).into(),
        ("token_bucket", ["burst", burst]) => {
            let burst = read_number(burst)?;
            return Ok((TokenBucket::new(rate).with_burst(burst).map_err(to_text)?.into(), burst));
        }
        ("gcra", []) => Gcra::new(rate).into(),
        ("gcra", ["burst", burst]) => {
            let burst = read_number(burst)?;
            return Ok((Gcra::new(rate).with_burst(burst).map_err(to_text)?.into(), burst));
        }
        ("leaky_bucket", ["depth", depth, shaping @ ..]) if matches!(shaping, [] | ["shaping"]) => {
            let depth = read_number(depth)?;
            let meter = LeakyBucket::new(rate).with_depth(depth).map_err(to_text)?;
            let limit = if shaping.is_empty() { meter } else { meter.shaping() };
            return Ok((limit.into(), depth));
        }
        ("leaky_bucket", []) => LeakyBucket::new(rate).into(),
        ("leaky_bucket", ["shaping"]) => LeakyBucket::new(rate).shaping().into(),
        ("fixed_window", []) => FixedWindow::new(rate).into(),
        ("sliding_counter", []) => SlidingCounter::new(rate).into(),
        ("sliding_log", []) => SlidingLog::new(rate).map_err(to_text)?.into(),
        ("sliding_log", ["min_interval", interval]) => {
            let log = SlidingLog::new(rate).map_err(to_text)?;
            log.with_min_interval(read_span(interval)?).map_err(to_text)?.into()
        }
        _ => return Err(format!("`{}` is no limit", tokens.join(" "))),
    };
    Ok((limit, units))
}

fn read_number(token: &str) -> Result<u64, String> {
    token.parse().map_err(|_| format!("`{token}` is not a number"))
}

fn read_cost(token: &str) -> Result<Cost, String> {
    Cost::new(read_number(token)?).map_err(|error| error.to_string())
}

fn read_outcome(token: &str) -> Result<bool, String> {
    match token {
        "done" => Ok(true),
        "nothing" => Ok(false),
        _ => Err(format!("`{token}` is neither `done` nor `nothing`")),
    }
}

fn read_retry(token: &str) -> Result<Retry, String> {
    match token {
        "unknown" => Ok(Retry::Unknown),
        "never" => Ok(Retry::Never),
        _ => read_span(token).map(Retry::After),
    }
}

fn read_unless_wildcard<T>(token: &str, read: impl Fn(&str) -> Result<T, String>) -> Result<Option<T>, String> {
    if token == "*" { Ok(None) } else { read(token).map(Some) }
}

/// Parses a time such as `99.999ms`: a number and a unit, not finer than a microsecond.
fn read_span(token: &str) -> Result<Micros, String> {
    let wrong = || format!("`{token}` is not a time such as 5s, 99.999ms or 2min");
    let unit_at = token.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(wrong)?;
    let (number, unit) = token.split_at_checked(unit_at).ok_or_else(wrong)?;
    let unit_us: u64 = match unit {
        "us" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        "min" => 60_000_000,
        "h" => 3_600_000_000,
        "day" => 86_400_000_000,
        _ => return Err(wrong()),
    };
    let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
    let whole: u64 = whole.parse().map_err(|_| wrong())?;
    let part: u64 = decimals.parse().map_err(|_| wrong())?;
    let scale = u32::try_from(decimals.len())
        .ok()
        .and_then(|digits| 10_u64.checked_pow(digits))
        .ok_or_else(wrong)?;
    let part_us = part.checked_mul(unit_us).ok_or_else(wrong)?;
    if !part_us.is_multiple_of(scale) {
        return Err(format!("`{token}` is not a whole number of microseconds"));
    }
    let us = whole
        .checked_mul(unit_us)
        .and_then(|us| us.checked_add(part_us / scale));
    us.filter(|us| *us <= Micros::MAX.get())
        .map(Micros::new)
        .ok_or_else(wrong)
}
