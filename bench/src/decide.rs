//! Nanoseconds per decision of each algorithm on a state in memory: no store, no lock, no clock.
//!
//! Every case is a closure that makes one decision and returns whether it was allowed, so that a case cannot silently
//! measure something other than its name. The cases alternate round by round with two reference measurements: other load
//! on the machine affects all of them, and ratios within one run are comparable where nanoseconds are not.

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tollgate_core::protect::{RetryDenial, RetrySpread};
use tollgate_core::{
    Algorithm, Cell, Change, Concurrency, Cost, FixedWindow, Gcra, LeakyBucket, LeaseId, Limit, LimitError, Micros,
    Now, Rate, SlidingCounter, SlidingLog, State, Timestamp, TokenBucket,
};

#[derive(clap::Args)]
#[command(after_help = "Example:\n  cargo run --profile dist -p tollgate-bench -- decide --rounds 51")]
pub(crate) struct Args {
    /// Rounds per case; the median is reported.
    #[arg(long, default_value_t = 31, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// Times only the cases with this text in their name ("sliding log", "denied"), and the references.
    #[arg(long, default_value = "")]
    only: String,
    /// Prints JSON instead of a table.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let mut cases = cases().expect("every limit of the cases is in range");
    cases.retain(|case| case.subject == YARDSTICK || case.name().contains(&args.only));
    let timings = time(&mut cases, args.rounds);
    if args.json {
        print_json(&timings, args.rounds);
    } else {
        print_table(&timings, args.rounds);
    }
    ExitCode::SUCCESS
}

/// One thing to measure.
struct Case {
    subject: &'static str,
    what: String,
    /// Runs it a number of times.
    repeat: Box<dyn FnMut(u64)>,
}

impl Case {
    fn name(&self) -> String {
        format!("{}, {}", self.subject, self.what)
    }
}

/// Nanoseconds per repetition over all rounds.
struct Timing {
    subject: &'static str,
    what: String,
    median: f64,
    /// A quarter of the rounds was faster than this.
    low: f64,
    /// A quarter of the rounds was slower than this.
    high: f64,
}

/// The expected decision of every repetition of a case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Expected {
    Allow,
    Deny,
}

const YARDSTICK: &str = "yardstick";
const CLOCK: &str = "Instant::now()";
const CAS: &str = "compare and swap";
/// The upper end of "a few tens of nanoseconds".
const OVERHEAD_MAX_NS: f64 = 50.0;
/// The minimum time of one round of one case.
const ROUND: Duration = Duration::from_millis(2);
const MINUTE: Micros = Micros::from_secs(60);
/// The start of a minute, a second and a millisecond.
const START: Timestamp = Timestamp::from_micros(1_700_000_040_000_000);

fn case(
    subject: &'static str,
    what: impl Into<String>,
    answer: Expected,
    mut once: impl FnMut() -> bool + 'static,
) -> Case {
    let what = what.into();
    let name = format!("{subject}, {what}");
    let repeat = move |times| {
        let mut as_said = true;
        for _ in 0..times {
            as_said &= once() == (answer == Expected::Allow);
        }
        assert!(as_said, "{name}: not every answer was {answer:?}");
    };
    Case {
        subject,
        what,
        repeat: Box::new(repeat),
    }
}

fn cases() -> Result<Vec<Case>, LimitError> {
    let mut cases = yardsticks();
    for algorithm in [token_bucket, gcra, leaky_meter, leaky_queue, cell] {
        cases.extend(bucket_cases(algorithm)?);
    }
    for algorithm in [fixed_window, sliding_counter] {
        cases.extend(window_cases(algorithm)?);
    }
    cases.extend(direct_cases()?);
    for limit in [100, 10_000, 1_000_000] {
        cases.extend(log_cases(limit)?);
    }
    for held in [100, 10_000] {
        cases.extend(concurrency_cases(held)?);
    }
    for (callers, counters) in [(1, 1), (10_000, 1), (10_000, 1_000)] {
        cases.push(spreading_case(callers, counters));
    }
    Ok(cases)
}

/// The return time of a denied caller, one denial after the other.
fn spreading_case(callers: u64, counters: u64) -> Case {
    let mut spread = RetrySpread::default();
    let mut count = 0_u64;
    let hash = |number: u64| number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let what = format!("{callers} callers, {counters} counters");
    case("retry spreading", what, Expected::Deny, move || {
        count += 1;
        let denial = RetryDenial {
            counter: hash(count % counters),
            caller: hash(count % callers),
            wait: Micros::from_millis(1),
            interval: Micros::from_millis(1),
            extra_max: Micros::from_secs(60),
            draw: 1 << 31,
        };
        let extra = spread.extra(black_box(Micros::new(count)), black_box(&denial));
        black_box(extra) > Micros::MAX
    })
}

/// Reference measurements: operations with a familiar cost.
fn yardsticks() -> Vec<Case> {
    let word = AtomicU64::new(0);
    vec![
        case(YARDSTICK, CLOCK, Expected::Allow, || {
            black_box(Instant::now());
            true
        }),
        case(YARDSTICK, CAS, Expected::Allow, move || {
            let seen = word.load(Ordering::Relaxed);
            black_box(&word)
                .compare_exchange(seen, seen + 1, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        }),
    ]
}

/// A key under one limit, and a clock that advances by `step` with each decision.
struct Subject {
    limit: Limit,
    state: Option<State>,
    at: Timestamp,
    step: Micros,
    lease: u64,
}

impl Subject {
    fn new(limit: impl Into<Limit>, step: Micros) -> Self {
        Self {
            limit: limit.into(),
            state: None,
            at: START,
            step,
            lease: 0,
        }
    }

    /// One decision as a store makes it: decide, and keep if allowed.
    #[inline]
    fn decide(&mut self, cost: Cost) -> bool {
        self.at = self.at + self.step;
        self.lease += 1;
        let now = black_box(Now::new(self.at));
        let step = black_box(&self.limit).decide(black_box(self.state.as_ref()), black_box(cost), now);
        let allowed = black_box(&step.decision).is_allow();
        if allowed && let Some(next) = step.next {
            self.limit.keep(&mut self.state, next, LeaseId(self.lease));
        }
        allowed
    }

    /// Consumes a number of units first.
    fn charged(mut self, units: u64) -> Self {
        assert!(
            self.decide(cost(units)),
            "a fresh key has room for what a case starts with"
        );
        self
    }

    /// Consumes one unit, a number of times.
    fn charged_one_by_one(mut self, times: u64) -> Self {
        for _ in 0..times {
            assert!(
                self.decide(Cost::ONE),
                "a fresh key has room for what a case starts with"
            );
        }
        self
    }

    fn later(mut self, span: Micros) -> Self {
        self.at = self.at + span;
        self
    }

    fn stepping(mut self, step: Micros) -> Self {
        self.step = step;
        self
    }

    fn decisions(mut self, cost: Cost) -> impl FnMut() -> bool {
        move || self.decide(cost)
    }
}

fn cost(units: u64) -> Cost {
    Cost::new(units).expect("the costs of the cases are in range")
}

/// The measured rates: one that divides evenly, one that does not, one whose products need 128 bits.
fn even() -> Result<Rate, LimitError> {
    Rate::new(100, Micros::from_secs(1))
}

fn uneven() -> Result<Rate, LimitError> {
    Rate::new(7, Micros::from_secs(1))
}

fn wide() -> Result<Rate, LimitError> {
    Rate::new(999_999_937, Micros::from_secs(366 * 86_400))
}

/// The name of an algorithm and its limit at a rate, with a capacity where it is not a window.
type Make = fn(Rate, u64) -> Result<(&'static str, Limit), LimitError>;

fn token_bucket(rate: Rate, burst: u64) -> Result<(&'static str, Limit), LimitError> {
    Ok(("token bucket", TokenBucket::new(rate).with_burst(burst)?.into()))
}

fn gcra(rate: Rate, burst: u64) -> Result<(&'static str, Limit), LimitError> {
    Ok(("gcra", Gcra::new(rate).with_burst(burst)?.into()))
}

fn leaky_meter(rate: Rate, depth: u64) -> Result<(&'static str, Limit), LimitError> {
    Ok(("leaky bucket, meter", LeakyBucket::new(rate).with_depth(depth)?.into()))
}

fn leaky_queue(rate: Rate, depth: u64) -> Result<(&'static str, Limit), LimitError> {
    let queue = LeakyBucket::new(rate).with_depth(depth)?.shaping();
    Ok(("leaky bucket, queue", queue.into()))
}

fn cell(rate: Rate, limit: u64) -> Result<(&'static str, Limit), LimitError> {
    let cell = Cell::new(limit - 1, rate.units(), rate.period().get() / 1_000_000)?;
    Ok(("cell", cell.into()))
}

fn fixed_window(rate: Rate, _: u64) -> Result<(&'static str, Limit), LimitError> {
    Ok(("fixed window", FixedWindow::new(rate).into()))
}

fn sliding_counter(rate: Rate, _: u64) -> Result<(&'static str, Limit), LimitError> {
    Ok(("sliding counter", SlidingCounter::new(rate).into()))
}

/// The time of `units` at a rate, rounded up.
fn span(rate: Rate, units: u64) -> Micros {
    Micros::new((units * rate.period().get()).div_ceil(rate.units()))
}

/// The cases of a limit, and the subject of each.
fn all_cases(name: &'static str, subjects: [Subject; 7]) -> Vec<Case> {
    let cases = [
        ("allowed", Expected::Allow, Cost::ONE),
        ("allowed, cost 5", Expected::Allow, cost(5)),
        ("denied", Expected::Deny, Cost::ONE),
        ("peek", Expected::Allow, Cost::ZERO),
        ("allowed, 7/s", Expected::Allow, Cost::ONE),
        ("allowed, wide", Expected::Allow, Cost::ONE),
        ("denied, wide", Expected::Deny, Cost::ONE),
    ];
    let cases = cases.into_iter().zip(subjects);
    let case = |((what, expected, cost), subject): ((&str, _, _), Subject)| {
        case(name, what, expected, subject.decisions(cost))
    };
    cases.map(case).collect()
}

/// Limits that refill with time. Allowed: half full and used as fast as it refills, so it stays half full.
fn bucket_cases(make: Make) -> Result<Vec<Case>, LimitError> {
    const CAPACITY: u64 = 1_000_000;
    let at_half = |rate: Rate, capacity: u64| -> Result<_, LimitError> {
        let (name, limit) = make(rate, capacity)?;
        Ok((name, Subject::new(limit, span(rate, 1)).charged(capacity / 2)))
    };
    let full = |rate: Rate, capacity: u64| -> Result<_, LimitError> {
        let (_, limit) = make(rate, capacity)?;
        Ok(Subject::new(limit, Micros::ZERO).charged(capacity))
    };
    let (name, allowed) = at_half(even()?, CAPACITY)?;
    Ok(all_cases(
        name,
        [
            allowed,
            at_half(even()?, CAPACITY)?.1.stepping(span(even()?, 5)),
            full(even()?, 100)?,
            at_half(even()?, CAPACITY)?.1,
            at_half(uneven()?, CAPACITY)?.1,
            at_half(wide()?, wide()?.units())?.1,
            full(wide()?, wide()?.units())?,
        ],
    ))
}

/// Windows. Allowed: used at half the rate, so that the previous and the current window are both in use.
fn window_cases(make: Make) -> Result<Vec<Case>, LimitError> {
    let at_half = |rate: Rate| -> Result<_, LimitError> {
        let (name, limit) = make(rate, 0)?;
        Ok((
            name,
            Subject::new(limit, span(rate, 2)).charged_one_by_one(rate.units()),
        ))
    };
    // Half the limit in one window, then to the middle of the next.
    let mid_window = |rate: Rate| -> Result<_, LimitError> {
        let period = rate.period();
        let (_, limit) = make(rate, 0)?;
        let into = period.get() - START.as_micros() % period.get() + period.get() / 2;
        let before = Subject::new(limit, Micros::ZERO).charged(rate.units() / 2);
        Ok(before.later(Micros::new(into)))
    };
    let (name, allowed) = at_half(even()?)?;
    // A quarter counts from the previous window, so half of the limit still fits; then the rest, one by one.
    let full = |rate: Rate| -> Result<_, LimitError> {
        let mut subject = mid_window(rate)?.charged(rate.units() / 2);
        let left = remaining(&subject);
        if left > 0 {
            subject = subject.charged(left);
        }
        Ok(subject)
    };
    Ok(all_cases(
        name,
        [
            allowed,
            at_half(even()?)?.1.stepping(span(even()?, 10)),
            full(even()?)?,
            at_half(even()?)?.1,
            at_half(uneven()?)?.1,
            mid_window(wide()?)?.stepping(span(wide()?, 2)),
            full(wide()?)?,
        ],
    ))
}

fn remaining(subject: &Subject) -> u64 {
    let step = subject
        .limit
        .decide(subject.state.as_ref(), Cost::ZERO, Now::new(subject.at));
    step.decision.standing().remaining
}

/// A token bucket called by its own type: the difference is the cost of the match over all algorithms.
fn direct_cases() -> Result<Vec<Case>, LimitError> {
    fn decisions(bucket: TokenBucket, used: u64, cost: Cost, step: Micros) -> impl FnMut() -> bool {
        let first = bucket.decide(None, self::cost(used), Now::new(START));
        let mut state = first.next;
        let mut at = START;
        move || {
            at = at + step;
            let step = black_box(&bucket).decide(black_box(state.as_ref()), black_box(cost), black_box(Now::new(at)));
            let allowed = black_box(&step.decision).is_allow();
            if allowed && let Some(next) = step.next {
                bucket.keep(&mut state, next, LeaseId::default());
            }
            allowed
        }
    }
    const NAME: &str = "TokenBucket by type";
    let half = TokenBucket::new(even()?).with_burst(1_000_000)?;
    let half_uneven = TokenBucket::new(uneven()?).with_burst(1_000_000)?;
    let full = TokenBucket::new(even()?);
    Ok(vec![
        case(
            NAME,
            "allowed",
            Expected::Allow,
            decisions(half, 500_000, Cost::ONE, span(even()?, 1)),
        ),
        case(
            NAME,
            "denied",
            Expected::Deny,
            decisions(full, 100, Cost::ONE, Micros::ZERO),
        ),
        case(
            NAME,
            "peek",
            Expected::Allow,
            decisions(half, 500_000, Cost::ZERO, span(even()?, 1)),
        ),
        case(
            NAME,
            "allowed, 7/s",
            Expected::Allow,
            decisions(half_uneven, 500_000, Cost::ONE, span(uneven()?, 1)),
        ),
    ])
}

/// A log whose window is full of single units, evenly spread; allowed: with each request the oldest one leaves.
fn log_cases(limit: u64) -> Result<Vec<Case>, LimitError> {
    const NAME: &str = "sliding log";
    let log = SlidingLog::new(Rate::new(limit, MINUTE)?)?;
    let gap = span(log.rate(), 1);
    let full = || Subject::new(log, gap).charged_one_by_one(limit);
    let standing_still = || full().stepping(Micros::ZERO);
    let (large, half) = (limit / 100, limit / 2);
    let coarse = || {
        let mut subject = Subject::new(log, span(log.rate(), large));
        for _ in 0..100 {
            subject = subject.charged(large);
        }
        subject
    };
    let of = |what: &str| format!("{what}, limit {limit}");
    let mut cases = vec![
        case(
            NAME,
            of("allowed, one leaves"),
            Expected::Allow,
            full().decisions(Cost::ONE),
        ),
        case(
            NAME,
            of("denied"),
            Expected::Deny,
            standing_still().decisions(Cost::ONE),
        ),
        case(
            NAME,
            of(&format!("denied, cost {half}")),
            Expected::Deny,
            standing_still().decisions(cost(half)),
        ),
        case(
            NAME,
            of("peek"),
            Expected::Allow,
            full().stepping(Micros::ZERO).decisions(Cost::ZERO),
        ),
    ];
    if large > 1 {
        cases.push(case(
            NAME,
            of(&format!("allowed, cost {large}")),
            Expected::Allow,
            coarse().decisions(cost(large)),
        ));
    }
    Ok(cases)
}

/// A concurrency limit with all slots held, or all but one where the case takes one.
fn concurrency_cases(held: u64) -> Result<Vec<Case>, LimitError> {
    const NAME: &str = "concurrency";
    let concurrency = Concurrency::new(held, MINUTE)?;
    let spread = Micros::new(MINUTE.get() / held);
    let of = |what: &str| format!("{what}, {held} held");
    Ok(vec![
        case(
            NAME,
            of("acquire, oldest lease runs out"),
            Expected::Allow,
            Subject::new(concurrency, spread)
                .charged_one_by_one(held)
                .decisions(Cost::ONE),
        ),
        case(
            NAME,
            of("denied"),
            Expected::Deny,
            Subject::new(concurrency, Micros::ZERO)
                .charged_one_by_one(held)
                .decisions(Cost::ONE),
        ),
        case(
            NAME,
            of("acquire and release the newest"),
            Expected::Allow,
            acquire_and_release(concurrency, 0),
        ),
        case(
            NAME,
            of("acquire and release the middle one"),
            Expected::Allow,
            acquire_and_release(concurrency, held / 2),
        ),
        case(
            NAME,
            of("acquire and release the oldest"),
            Expected::Allow,
            acquire_and_release(concurrency, held - 1),
        ),
    ])
}

/// Acquires the last slot and releases the one that was acquired `age` slots before.
fn acquire_and_release(concurrency: Concurrency, age: u64) -> impl FnMut() -> bool {
    // The clock is stopped: leases of one instant keep their order, and none expires during the measurement.
    let mut subject = Subject::new(concurrency, Micros::ZERO).charged_one_by_one(concurrency.slots() - 1);
    move || {
        let allowed = subject.decide(Cost::ONE);
        let Some(State::Concurrency(ring)) = &subject.state else {
            return false;
        };
        let lease = black_box(LeaseId(subject.lease - age));
        let Some(edit) = concurrency.release(ring, lease, Now::new(subject.at)) else {
            return false;
        };
        subject.limit.keep(&mut subject.state, Change::Concurrency(edit), lease);
        allowed
    }
}

/// Times all cases, alternating round by round.
fn time(cases: &mut [Case], rounds: u32) -> Vec<Timing> {
    let times: Vec<u64> = cases.iter_mut().map(enough_times).collect();
    let mut taken: Vec<Vec<f64>> = cases.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        for ((case, &times), taken) in cases.iter_mut().zip(&times).zip(&mut taken) {
            taken.push(stopwatch(case, times).as_nanos() as f64 / times as f64);
        }
    }
    cases
        .iter()
        .zip(taken)
        .map(|(case, mut taken)| {
            taken.sort_unstable_by(f64::total_cmp);
            Timing {
                subject: case.subject,
                what: case.what.clone(),
                median: quantile(&taken, 1, 2),
                low: quantile(&taken, 1, 4),
                high: quantile(&taken, 3, 4),
            }
        })
        .collect()
}

/// The number of repetitions that fill a round; finding it warms the case up.
fn enough_times(case: &mut Case) -> u64 {
    let mut times = 1;
    while stopwatch(case, times) < ROUND {
        times *= 2;
    }
    times
}

fn stopwatch(case: &mut Case, times: u64) -> Duration {
    let start = Instant::now();
    (case.repeat)(times);
    start.elapsed()
}

/// The value below which `part` of `of` equal parts of the sorted values are.
fn quantile(sorted: &[f64], part: usize, of: usize) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get(last * part / of).copied().unwrap_or(f64::NAN)
}

fn yardstick(timings: &[Timing], what: &str) -> f64 {
    let found = timings.iter().find(|timing| timing.what == what);
    found.map_or(f64::NAN, |timing| timing.median)
}

fn above(timings: &[Timing]) -> impl Iterator<Item = &Timing> {
    timings
        .iter()
        .filter(|timing| timing.subject != YARDSTICK && timing.median > OVERHEAD_MAX_NS)
}

fn print_table(timings: &[Timing], rounds: u32) {
    let (clock, cas) = (yardstick(timings, CLOCK), yardstick(timings, CAS));
    println!("ns per decision: decide, and keep if allowed; {rounds} rounds, alternating cases.");
    println!("Rates: 100/s by default; wide = 999999937 per 366 days. Quartiles: half of the rounds lie between them.");
    println!("Compare ratios within one run; nanoseconds depend on the machine and its load.");
    println!();
    println!("| algorithm | case | median ns | quartiles | x {CAS} | x {CLOCK} |");
    println!("|---|---|---:|---:|---:|---:|");
    for Timing {
        subject,
        what,
        median,
        low,
        high,
    } in timings
    {
        println!(
            "| {subject} | {what} | {median:.1} | {low:.1} to {high:.1} | {:.1} | {:.1} |",
            median / cas,
            median / clock
        );
    }
    println!();
    if above(timings).next().is_none() {
        println!("No decision has a median above {OVERHEAD_MAX_NS} ns.");
    } else {
        println!("Above {OVERHEAD_MAX_NS} ns:");
        for timing in above(timings) {
            println!("- {}, {}: {:.1} ns", timing.subject, timing.what, timing.median);
        }
    }
}

/// Written by hand: all names are plain ASCII words of this file, so nothing needs escaping.
fn print_json(timings: &[Timing], rounds: u32) {
    println!("{{\"rounds\": {rounds}, \"above_ns\": {OVERHEAD_MAX_NS}, \"cases\": [");
    let rows: Vec<String> = timings
        .iter()
        .map(|timing| {
            let Timing {
                subject,
                what,
                median,
                low,
                high,
            } = timing;
            format!(
                "  {{\"algorithm\": \"{subject}\", \"case\": \"{what}\", \"median_ns\": {median:.2}, \
                 \"lower_quartile_ns\": {low:.2}, \"upper_quartile_ns\": {high:.2}}}"
            )
        })
        .collect();
    println!("{}\n]}}", rows.join(",\n"));
}
