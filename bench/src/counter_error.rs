//! The error of the sliding counter compared with an exact count of the rolling window, on three seeded workloads.
//!
//! Sources do not share a counter, so each is simulated on its own from its own seed; sources are added until there are
//! enough of them and of requests. Arrivals and percentages use floats; every decision is made in integers.
#![expect(
    clippy::print_stderr,
    reason = "progress of a long run goes beside its result, not into it"
)]

use std::collections::VecDeque;
use std::f64::consts::TAU;
use std::fmt::Write as _;
use std::process::ExitCode;
use tollgate_core::testing::random::Random;
use tollgate_core::{Algorithm, Cost, LeaseId, LimitError, Micros, Now, Rate, SlidingCounter, SlidingLog, Timestamp};

#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  cargo run --profile dist -p tollgate-bench -- counter-error --requests 10000000 --seed 1"
)]
pub(crate) struct Args {
    /// The minimum number of requests of each workload.
    #[arg(long, default_value_t = 10_000_000)]
    requests: u64,
    /// The minimum number of sources of each workload.
    #[arg(long, default_value_t = 20_000)]
    sources: u64,
    /// The seed of all arrivals.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Prints JSON instead of a table.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let judge = Simulation::new().expect("the limits of the simulation are in range");
    let tallies: Vec<Tally> = WORKLOADS
        .iter()
        .map(|workload| simulate(workload, &judge, args))
        .collect();
    if args.json {
        print_json(&tallies, args.seed);
    } else {
        print_table(&tallies, args.seed);
    }
    let flawed = tallies
        .iter()
        .any(|tally| tally.log_differs > 0 || tally.most_admitted >= 2 * LIMIT);
    if flawed {
        eprintln!("the log differs from a plain count, or the counter admitted twice the limit: this is a bug");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Requests per window.
const LIMIT: u64 = 100;
const WINDOW: Micros = Micros::from_secs(60);
const WINDOW_US: f64 = 60e6;
const DAY_US: f64 = 86_400e6;
/// The start of a day, and so of a window.
const START_US: u64 = 1_699_920_000_000_000;
/// The cost of a request where estimates are read, so that they are in thousandths and not rounded to requests.
const SCALE: u64 = 1_000;
/// Cloudflare's published figures, in percent:
/// <https://blog.cloudflare.com/counting-things-a-lot-of-different-things/>.
const CLOUDFLARE_WRONG: f64 = 0.003;
const CLOUDFLARE_DIFFERENCE: f64 = 6.0;

/// A workload: the arrivals of one source, in microseconds since [`START_US`], in any order.
struct Workload {
    name: &'static str,
    about: &'static str,
    arrivals: fn(&mut Draw, &mut Vec<f64>),
}

const WORKLOADS: [Workload; 3] = [
    Workload {
        name: "realistic",
        about: "one day each; Pareto rates (1.16; 0.01 to 100 x limit), diurnal sessions of about 5 min, \
                pages of about 5 requests",
        arrivals: realistic,
    },
    Workload {
        name: "uniform",
        about: "five minutes each at 0.5 to 2 x limit, half of the sources evenly spaced, half Poisson",
        arrivals: uniform,
    },
    Workload {
        name: "adversarial",
        about: "bursts of 0.5 to 2 x limit packed at a window's end or start, then a burst or a flood after the seam",
        arrivals: adversarial,
    },
];

/// A day in the life of a source.
///
/// Its rate while active is `limit * x` with x drawn from a Pareto distribution of shape 1.16, from 0.01, cut at 100: a
/// fifth of the sources send about three quarters of the requests, one in 200 is above the limit, some far. Sessions
/// last 5 minutes on average, pauses about an hour, both exponential; pauses are shorter by day than by night. In a
/// session pages come at exponential gaps; a page is one request and a geometric number of others (5 in all on
/// average) at exponential gaps of 50 ms.
fn realistic(draw: &mut Draw, arrivals: &mut Vec<f64>) {
    const SHAPE: f64 = 1.16;
    const INTERVAL_MIN_US: f64 = 0.01;
    const MOST: f64 = 100.0;
    const SESSION_US: f64 = 300e6;
    const PAUSE_US: f64 = 3_600e6;
    const PAGE: u64 = 5;
    const WITHIN_PAGE_US: f64 = 50e3;

    let share_cut = (MOST / INTERVAL_MIN_US).powf(-SHAPE);
    let x = INTERVAL_MIN_US * (share_cut + draw.unit() * (1.0 - share_cut)).powf(-1.0 / SHAPE);
    let page_gap_us = WINDOW_US * PAGE as f64 / (x * LIMIT as f64);
    let night = draw.unit();
    let pause =
        |draw: &mut Draw, at: f64| draw.exponential(PAUSE_US) / (1.0 + 0.8 * (TAU * (at / DAY_US + night)).sin());

    let mut at = draw.unit() * PAUSE_US;
    while at < DAY_US {
        let end = at + draw.exponential(SESSION_US);
        let mut page = at;
        while page < end {
            let mut request = page;
            arrivals.push(request);
            while !draw.random.one_in(PAGE) {
                request += draw.exponential(WITHIN_PAGE_US);
                arrivals.push(request);
            }
            page += draw.exponential(page_gap_us);
        }
        at = end + pause(draw, end);
    }
}

/// Five minutes at a steady rate between half and twice the limit: for every other source evenly spaced, otherwise
/// Poisson.
fn uniform(draw: &mut Draw, arrivals: &mut Vec<f64>) {
    let gap_us = WINDOW_US / (LIMIT as f64 * draw.between(0.5, 2.0));
    let poisson = draw.random.one_in(2);
    let begin = draw.unit() * WINDOW_US;
    let mut at = begin;
    while at < begin + 5.0 * WINDOW_US {
        arrivals.push(at);
        at += if poisson { draw.exponential(gap_us) } else { gap_us };
    }
}

/// Four attacks, each with a free window before it.
///
/// A first burst of 0.5 to 2 times the limit is packed into a part of a window, from a thousandth to a fifth of it, at
/// its end (two in three) or at its start. Right after the window boundary follows a second: a burst like the first in the same
/// part of the next window, or a flood of twice the limit spread over the whole next window.
fn adversarial(draw: &mut Draw, arrivals: &mut Vec<f64>) {
    for attack in 0..4 {
        let seam = WINDOW_US * f64::from(2 + 3 * attack);
        let part = WINDOW_US * 0.001 * 200_f64.powf(draw.unit());
        let first_from = if draw.random.one_in(3) {
            seam - WINDOW_US
        } else {
            seam - part
        };
        let spread = |draw: &mut Draw, arrivals: &mut Vec<f64>, from: f64, over: f64, times: f64| {
            for _ in 0..(LIMIT as f64 * times) as u64 {
                arrivals.push(from + over * draw.unit());
            }
        };
        let (first, second) = (draw.between(0.5, 2.0), draw.between(0.5, 2.0));
        spread(draw, arrivals, first_from, part, first);
        if draw.random.one_in(2) {
            spread(draw, arrivals, seam, part, second);
        } else {
            spread(draw, arrivals, seam, WINDOW_US, 2.0);
        }
    }
}

/// Random numbers in the shapes that arrivals have.
struct Draw {
    random: Random,
}

impl Draw {
    /// Above 0, at most 1.
    fn unit(&mut self) -> f64 {
        ((self.random.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -self.unit().ln() * mean
    }
}

/// The limits that are compared.
struct Simulation {
    /// Never denies: it counts every request, and its estimate is derived from the remaining units.
    meter: SlidingCounter,
    counter: SlidingCounter,
    log: SlidingLog,
}

/// The results of one workload.
#[derive(Default)]
struct Tally {
    name: &'static str,
    about: &'static str,
    sources: u64,
    requests: u64,
    every: WrongDecisions,
    /// Requests whose exact count is within a fifth of the limit: where an estimate can be wrong at all, if it is good.
    near: u64,
    /// The sums of the relative differences of estimate and exact count: over all requests, and over those near the
    /// limit.
    difference: f64,
    difference_near: f64,
    /// The highest exact count that was wrongly allowed, and the lowest that was wrongly denied.
    highest_allowed: Option<u64>,
    lowest_refused: Option<u64>,
    admitted: WrongDecisions,
    admitted_by_counter: u64,
    admitted_by_log: u64,
    most_admitted: u64,
    /// Decisions of the log that differ from a plain count of what it admitted.
    log_differs: u64,
}

/// Decisions that differ from those of the exact count.
#[derive(Default)]
struct WrongDecisions {
    allowed: u64,
    refused: u64,
}

/// The times of one source's requests within the last window, as a plain list.
#[derive(Default)]
struct ExactWindow(VecDeque<u64>);

impl ExactWindow {
    /// The number of requests in `(now - window, now]`.
    fn count(&mut self, now_us: u64) -> u64 {
        while self.0.front().is_some_and(|&past_us| past_us + WINDOW.get() <= now_us) {
            self.0.pop_front();
        }
        self.0.len() as u64
    }

    fn add(&mut self, now_us: u64) {
        self.0.push_back(now_us);
    }
}

impl WrongDecisions {
    fn record(&mut self, allows: bool, exact_allows: bool) {
        self.allowed += u64::from(allows && !exact_allows);
        self.refused += u64::from(!allows && exact_allows);
    }
}

fn simulate(workload: &Workload, judge: &Simulation, args: &Args) -> Tally {
    let mut tally = Tally {
        name: workload.name,
        about: workload.about,
        ..Tally::default()
    };
    let mut seeds = Random::new(args.seed);
    let mut arrivals = Vec::new();
    while tally.requests < args.requests || tally.sources < args.sources {
        let random = Random::new(seeds.next());
        arrivals.clear();
        (workload.arrivals)(&mut Draw { random }, &mut arrivals);
        let mut arrivals_us: Vec<u64> = arrivals.iter().map(|&after_us| START_US + after_us as u64).collect();
        arrivals_us.sort_unstable();
        judge.every_request_counts(&arrivals_us, &mut tally);
        judge.only_admitted_count(&arrivals_us, &mut tally);
        tally.requests += arrivals_us.len() as u64;
        tally.sources += 1;
        if tally.sources.is_multiple_of(5_000) {
            eprintln!("{}: {} sources, {} requests", tally.name, tally.sources, tally.requests);
        }
    }
    tally
}

impl Simulation {
    fn new() -> Result<Self, LimitError> {
        let rate = Rate::new(LIMIT, WINDOW)?;
        Ok(Self {
            meter: SlidingCounter::new(Rate::new(Rate::UNITS_MAX, WINDOW)?),
            counter: SlidingCounter::new(rate),
            log: SlidingLog::new(rate)?,
        })
    }

    /// The estimate of all requests of a source against their exact number, this one included; each compared with the
    /// limit.
    fn every_request_counts(&self, arrivals_us: &[u64], tally: &mut Tally) {
        let cost = Cost::new(SCALE).expect("the scale is a small cost");
        let mut state = None;
        let mut exact = ExactWindow::default();
        for &now_us in arrivals_us {
            let remaining = decide(&self.meter, &mut state, cost, now_us).1;
            let estimate = Rate::UNITS_MAX - remaining;
            let count = exact.count(now_us) + 1;
            exact.add(now_us);

            let (allows, exact_allows) = (estimate <= LIMIT * SCALE, count <= LIMIT);
            tally.every.record(allows, exact_allows);
            if allows && !exact_allows {
                tally.highest_allowed = tally.highest_allowed.max(Some(count));
            }
            if !allows && exact_allows {
                tally.lowest_refused = Some(tally.lowest_refused.map_or(count, |lowest| lowest.min(count)));
            }
            let difference = estimate.abs_diff(count * SCALE) as f64 / (count * SCALE) as f64;
            tally.difference += difference;
            if count.abs_diff(LIMIT) * 5 <= LIMIT {
                tally.near += 1;
                tally.difference_near += difference;
            }
        }
    }

    /// The counter's decisions against the exact number of those it admitted itself; and how many a log admits.
    fn only_admitted_count(&self, arrivals_us: &[u64], tally: &mut Tally) {
        let (mut state, mut log_state) = (None, None);
        let (mut by_counter, mut by_log) = (ExactWindow::default(), ExactWindow::default());
        for &now_us in arrivals_us {
            let (allows, _) = decide(&self.counter, &mut state, Cost::ONE, now_us);
            tally.admitted.record(allows, by_counter.count(now_us) < LIMIT);
            if allows {
                by_counter.add(now_us);
                tally.admitted_by_counter += 1;
                tally.most_admitted = tally.most_admitted.max(by_counter.count(now_us));
            }

            let (log_allows, _) = decide(&self.log, &mut log_state, Cost::ONE, now_us);
            tally.log_differs += u64::from(log_allows != (by_log.count(now_us) < LIMIT));
            if log_allows {
                by_log.add(now_us);
                tally.admitted_by_log += 1;
            }
        }
    }
}

/// One decision, kept if allowed. Returns whether it was, and the remaining units.
fn decide<A: Algorithm>(limit: &A, state: &mut Option<A::State>, cost: Cost, now_us: u64) -> (bool, u64) {
    let step = limit.decide(state.as_ref(), cost, Now::new(Timestamp::from_micros(now_us)));
    let allowed = step.decision.is_allow();
    if allowed && let Some(next) = step.next {
        limit.keep(state, next, LeaseId::default());
    }
    (allowed, step.decision.standing().remaining)
}

/// One line of the result: what it is, how a tally shows it, and what Cloudflare published.
struct Measure {
    name: &'static str,
    key: &'static str,
    unit: Unit,
    value: fn(&Tally) -> Option<f64>,
    cloudflare: Option<f64>,
}

impl Measure {
    const fn new(name: &'static str, key: &'static str, unit: Unit, value: fn(&Tally) -> Option<f64>) -> Self {
        Self {
            name,
            key,
            unit,
            value,
            cloudflare: None,
        }
    }

    const fn percent(name: &'static str, key: &'static str, value: fn(&Tally) -> Option<f64>) -> Self {
        Self::new(name, key, Unit::Percent, value)
    }

    const fn published(mut self, by_cloudflare: f64) -> Self {
        self.cloudflare = Some(by_cloudflare);
        self
    }
}

#[derive(Clone, Copy)]
enum Unit {
    Count,
    Percent,
    Times,
}

const EVERY_REQUEST_MEASURES: &[Measure] = &[
    Measure::percent("wrong decisions", "every_wrong_percent", |tally| {
        tally.percent(tally.every.allowed + tally.every.refused)
    })
    .published(CLOUDFLARE_WRONG),
    Measure::percent("of these wrongly allowed", "every_wrongly_allowed_percent", |tally| {
        tally.percent(tally.every.allowed)
    }),
    Measure::percent("of these wrongly denied", "every_wrongly_refused_percent", |tally| {
        tally.percent(tally.every.refused)
    }),
    Measure::percent(
        "mean difference of estimate and exact count",
        "every_mean_difference_percent",
        |tally| ratio(100.0 * tally.difference, tally.requests),
    )
    .published(CLOUDFLARE_DIFFERENCE),
    Measure::percent(
        "the same, exact count within 20 % of the limit",
        "every_mean_difference_near_limit_percent",
        |tally| ratio(100.0 * tally.difference_near, tally.near),
    ),
    Measure::percent(
        "requests with an exact count within 20 % of the limit",
        "every_near_limit_percent",
        |tally| tally.percent(tally.near),
    ),
    Measure::new(
        "highest exact count wrongly allowed, x limit",
        "every_highest_wrongly_allowed",
        Unit::Times,
        |tally| tally.highest_allowed.map(|count| count as f64 / LIMIT as f64),
    ),
    Measure::new(
        "lowest exact count wrongly denied, x limit",
        "every_lowest_wrongly_refused",
        Unit::Times,
        |tally| tally.lowest_refused.map(|count| count as f64 / LIMIT as f64),
    ),
];

const ADMITTED_MEASURES: &[Measure] = &[
    Measure::percent("wrong decisions", "admitted_wrong_percent", |tally| {
        tally.percent(tally.admitted.allowed + tally.admitted.refused)
    }),
    Measure::percent(
        "of these wrongly allowed",
        "admitted_wrongly_allowed_percent",
        |tally| tally.percent(tally.admitted.allowed),
    ),
    Measure::percent("of these wrongly denied", "admitted_wrongly_refused_percent", |tally| {
        tally.percent(tally.admitted.refused)
    }),
    Measure::new(
        "most admitted in any rolling window, x limit (always below 2)",
        "admitted_most_in_a_window",
        Unit::Times,
        |tally| Some(tally.most_admitted as f64 / LIMIT as f64),
    ),
    Measure::new("admitted by the counter", "admitted_by_counter", Unit::Count, |tally| {
        Some(tally.admitted_by_counter as f64)
    }),
    Measure::new("admitted by the exact log", "admitted_by_log", Unit::Count, |tally| {
        Some(tally.admitted_by_log as f64)
    }),
    Measure::new(
        "decisions of the log that differ from a plain count (must be 0)",
        "log_differs",
        Unit::Count,
        |tally| Some(tally.log_differs as f64),
    ),
];

impl Tally {
    fn percent(&self, part: u64) -> Option<f64> {
        ratio(100.0 * part as f64, self.requests)
    }
}

fn ratio(part: f64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part / whole as f64)
}

impl Unit {
    fn show(self, value: Option<f64>) -> String {
        match (self, value) {
            (_, None) => "-".to_owned(),
            (Self::Count, Some(value)) => grouped(value as u64),
            (Self::Percent, Some(value)) => format!("{value:.3} %"),
            (Self::Times, Some(value)) => format!("{value:.2}"),
        }
    }
}

/// With a comma between thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn print_table(tallies: &[Tally], seed: u64) {
    println!("The sliding counter against an exact count of the rolling window: {LIMIT} per {WINDOW}, seed {seed}.");
    println!();
    for tally in tallies {
        println!(
            "- {}: {} requests of {} sources; {}",
            tally.name,
            grouped(tally.requests),
            grouped(tally.sources),
            tally.about
        );
    }
    println!();
    println!("Every request counts, as Cloudflare measured: the counter's estimate of all requests of a source in the");
    println!("last window against their exact number, each compared with the limit; shares are of all requests.");
    println!();
    print_measures(tallies, EVERY_REQUEST_MEASURES);
    println!();
    println!("Only admitted requests count, as Tollgate decides: the counter's decision against the exact number of");
    println!("requests that it admitted itself in the last window; shares are of all requests.");
    println!();
    print_measures(tallies, ADMITTED_MEASURES);
}

fn print_measures(tallies: &[Tally], measures: &[Measure]) {
    let published = measures.iter().any(|measure| measure.cloudflare.is_some());
    let mut head = "| measure |".to_owned();
    let mut rule = "|---|".to_owned();
    for name in tallies
        .iter()
        .map(|tally| tally.name)
        .chain(published.then_some("Cloudflare"))
    {
        let _ = write!(head, " {name} |");
        rule.push_str("---:|");
    }
    println!("{head}\n{rule}");
    for measure in measures {
        let mut row = format!("| {} |", measure.name);
        for tally in tallies {
            let _ = write!(row, " {} |", measure.unit.show((measure.value)(tally)));
        }
        if published {
            let _ = write!(row, " {} |", measure.unit.show(measure.cloudflare));
        }
        println!("{row}");
    }
}

/// Written by hand: all names are plain ASCII words of this file, so nothing needs escaping.
fn print_json(tallies: &[Tally], seed: u64) {
    let workloads: Vec<String> = tallies
        .iter()
        .map(|tally| {
            let mut text = format!(
                "  {{\"workload\": \"{}\", \"requests\": {}, \"sources\": {}",
                tally.name, tally.requests, tally.sources
            );
            for measure in EVERY_REQUEST_MEASURES.iter().chain(ADMITTED_MEASURES) {
                let value = (measure.value)(tally).map_or("null".to_owned(), |value| value.to_string());
                let _ = write!(text, ", \"{}\": {value}", measure.key);
            }
            text + "}"
        })
        .collect();
    println!(
        "{{\"seed\": {seed}, \"limit\": {LIMIT}, \"window_us\": {}, \"cloudflare_wrong_percent\": {CLOUDFLARE_WRONG}, \
         \"cloudflare_mean_difference_percent\": {CLOUDFLARE_DIFFERENCE}, \"workloads\": [\n{}\n]}}",
        WINDOW.get(),
        workloads.join(",\n")
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short_run(workload: &Workload, seed: u64) -> Tally {
        let judge = Simulation::new().expect("in range");
        let args = Args {
            requests: 50_000,
            sources: 50,
            seed,
            json: false,
        };
        simulate(workload, &judge, &args)
    }

    #[test]
    fn the_log_is_exact_and_the_counter_stays_below_twice_the_limit() {
        for workload in &WORKLOADS {
            let tally = short_run(workload, 3);
            assert!(tally.requests >= 50_000 && tally.sources >= 50, "{}", workload.name);
            assert_eq!(tally.log_differs, 0, "{}", workload.name);
            assert!(tally.most_admitted < 2 * LIMIT, "{}", workload.name);
        }
    }

    #[test]
    fn a_seed_gives_the_same_result_again() {
        for workload in &WORKLOADS {
            let results = [4, 4].map(|seed| {
                let tally = short_run(workload, seed);
                let measures = EVERY_REQUEST_MEASURES.iter().chain(ADMITTED_MEASURES);
                measures.map(|measure| (measure.value)(&tally)).collect::<Vec<_>>()
            });
            assert_eq!(results[0], results[1], "{}", workload.name);
        }
    }

    #[test]
    fn thousands_are_set_apart() {
        for (number, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (12_345_678, "12,345,678")] {
            assert_eq!(grouped(number), text);
        }
    }
}
