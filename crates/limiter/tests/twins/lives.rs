//! Random lives of keys: uneven rates, huge numbers, clocks that go back, limits that change under a live key.

use crate::examples;
use redis::Connection;
use std::fmt::Write;
use tollgate_core::testing::random::Random;
use tollgate_core::testing::timeline::{EventResult, KeepOrDrop, Timeline, TimelineAction, TimelineEvent};
use tollgate_core::testing::vectors;
use tollgate_core::{Change, Decision, LeaseId, Limit, Retry, State, lua};
use tollgate_limiter::testing::servers::{Server, ServerKind};

/// Steps of each algorithm on each server. The documented long run sets it to a million.
const STEPS: u64 = match option_env!("TOLLGATE_TWIN_STEPS") {
    Some(steps) => number(steps),
    None => 100_000,
};

/// Steps of one life, and so of one call.
const LONGEST: usize = 1_500;

/// How many parts the answer to a step has, and every how many steps all that is held is one of them.
const PARTS: usize = 4;
const REPORT_INTERVAL: usize = 16;

/// The worked examples beside each algorithm.
const EXAMPLES: [(&str, &str); 8] = [
    (
        "token_bucket",
        include_str!("../../../core/src/algorithm/token_bucket.txt"),
    ),
    ("gcra", include_str!("../../../core/src/algorithm/gcra.txt")),
    (
        "fixed_window",
        include_str!("../../../core/src/algorithm/fixed_window.txt"),
    ),
    (
        "sliding_counter",
        include_str!("../../../core/src/algorithm/sliding_counter.txt"),
    ),
    (
        "sliding_log",
        include_str!("../../../core/src/algorithm/sliding_log.txt"),
    ),
    (
        "leaky_bucket",
        include_str!("../../../core/src/algorithm/leaky_bucket.txt"),
    ),
    (
        "concurrency",
        include_str!("../../../core/src/algorithm/concurrency.txt"),
    ),
    ("cell", include_str!("../../../core/src/algorithm/cell.txt")),
];

const fn number(text: &str) -> u64 {
    match u64::from_str_radix(text, 10) {
        Ok(number) => number,
        Err(_) => panic!("TOLLGATE_TWIN_STEPS is a number"),
    }
}

#[test]
fn twins_agree_with_the_core_on_redis() {
    agree(ServerKind::Redis70, STEPS);
}

#[test]
fn twins_agree_with_the_core_on_valkey() {
    agree(ServerKind::Valkey, STEPS);
}

#[test]
fn twins_agree_with_the_core_on_the_oldest_redis() {
    agree(ServerKind::Redis62, STEPS / 10);
}

#[test]
fn twins_agree_with_the_core_on_every_worked_example() {
    let server = Server::start(ServerKind::Redis70);
    let (mut connection, script) = (connect(&server), script());
    for (algorithm, text) in EXAMPLES {
        for scenario in vectors::parse(text).expect("examples that can be read") {
            let run = examples::run_scenario(&scenario);
            compare(&mut connection, &script, &run)
                .unwrap_or_else(|difference| panic!("{algorithm}.txt: line {}: {difference}", scenario.line));
        }
    }
}

#[test]
fn a_twin_that_is_a_little_off_is_found_out() {
    let server = Server::start(ServerKind::Redis70);
    let mut connection = connect(&server);
    for (algorithm, right, wrong) in MISTAKES {
        let right_script = script();
        assert_eq!(right_script.matches(right).count(), 1, "`{right}` stands there once");
        let wrong_script = right_script.replace(right, wrong);
        let mut seeds = Random::new(7);
        let mismatch =
            (0..100).any(|_| compare(&mut connection, &wrong_script, &live(algorithm, seeds.next())).is_err());
        assert!(mismatch, "{algorithm}: nobody notices `{wrong}` for `{right}`");
    }
}

/// Small mistakes of the kind that is made: a rounding, an edge, a forgotten case.
const MISTAKES: [(&str, &str, &str); 21] = [
    ("token_bucket", "wait = -left_us", "wait = -left_us - 1"),
    ("token_bucket", "if left_us >= 0 then", "if left_us > 0 then"),
    (
        "token_bucket",
        "  if after_frac >= parts then",
        "  if after_frac > parts then",
    ),
    ("token_bucket", "reset = reset + 1", "reset = reset + 0"),
    ("token_bucket", "        units = units + 1\n", ""),
    (
        "token_bucket",
        "forgotten = ends < LAST and ends or LAST",
        "forgotten = LAST",
    ),
    ("token_bucket", "flags = flags + HAS_MIXED_PACES", "flags = flags + 0"),
    ("token_bucket", "flags = flags + HAS_REFUND", "flags = flags + 0"),
    ("token_bucket", "mark_at, mark_frac = taken_at, 0", "mark_frac = 0"),
    (
        "token_bucket",
        "if back > slack then\n      us = us > back",
        "if back >= slack then\n      us = us > back",
    ),
    (
        "gcra",
        "work_frac = muldiv(work_frac, parts, limit.parts)",
        "work_frac = 0",
    ),
    ("gcra", "us, frac = ends < LAST and ends or LAST, 0", "us, frac = us, 0"),
    (
        "cell",
        "UNIT_DEBT, TIME_DEBT, NANO_DEBT = '<I7I7I4I4I6', '<I7I7I4I4', '<I7I7I4'",
        "UNIT_DEBT, TIME_DEBT, NANO_DEBT = '<I7I7I4I4I6', '<I7I7I4I4', '<I7I7I2'",
    ),
    (
        "leaky_bucket",
        "if limit.shaping and allowed and cost > 0 then",
        "if limit.shaping and allowed then",
    ),
    (
        "fixed_window",
        "if used > 0 and window_end(limit, due) > now then",
        "if used > 0 and due > now then",
    ),
    (
        "sliding_counter",
        "used = used + current + (rest > 0 and 1 or 0)",
        "used = used + current",
    ),
    (
        "sliding_log",
        "return stamp + period <= now",
        "return stamp + period < now",
    ),
    (
        "sliding_log",
        "return total < base + excess",
        "return total <= base + excess",
    ),
    ("sliding_log", "ring.ahead > REBASE_AT or", "false or"),
    (
        "concurrency",
        "while before and before.ends > ends do",
        "while before and before.ends >= ends do",
    ),
    ("concurrency", "== new then", "== new + 1 then"),
];

fn connect(server: &Server) -> Connection {
    let client = redis::Client::open(server.url()).expect("an address");
    client.get_connection().expect("a server that answers")
}

fn script() -> String {
    format!("{}{}", lua::TWINS, include_str!("play.lua"))
}

fn agree(kind: ServerKind, steps: u64) {
    let server = Server::start_with(kind, &["--lua-time-limit", "60000"]);
    let (mut connection, script) = (connect(&server), script());
    for algorithm in Limit::ALGORITHMS {
        let mut seeds = Random::new(7);
        let mut done = 0;
        while done < steps {
            let seed = seeds.next();
            let run = live(algorithm, seed);
            compare(&mut connection, &script, &run)
                .unwrap_or_else(|difference| panic!("{algorithm}: seed {seed}: {difference}"));
            done += run.len() as u64;
        }
        println!("{kind:?}: {algorithm}: {done} steps");
    }
}

/// Something that happened to a key, and what the key then held.
pub(crate) type TimelineRun = (TimelineEvent, Option<State>);

/// What the core makes of one life.
fn live(algorithm: &str, seed: u64) -> Vec<TimelineRun> {
    let mut life = Timeline::new(algorithm, seed);
    let mut run = Vec::new();
    for _ in 0..LONGEST {
        let Some(happening) = life.step() else { break };
        let is_reported = run.len().is_multiple_of(REPORT_INTERVAL);
        let state = life.state();
        // Only what is compared is worth copying: a ring may be long.
        let state = if is_reported || !matches!(state, Some(State::SlidingLog(_) | State::Concurrency(_))) {
            state.cloned()
        } else {
            None
        };
        run.push((happening, state));
    }
    run
}

/// Plays the same in Lua, and says where the two differ first.
fn compare(connection: &mut Connection, script: &str, run: &[TimelineRun]) -> Result<(), String> {
    let Some((first, _)) = run.first() else { return Ok(()) };
    let mut input = String::new();
    for (happening, _) in run {
        write_step(&mut input, happening);
    }
    let answers: Vec<Vec<u8>> = redis::cmd("EVAL")
        .arg(script)
        .arg(0)
        .arg(first.limit.number())
        .arg(input)
        .query(connection)
        .map_err(|error| error.to_string())?;
    if answers.len() != run.len() * PARTS {
        return Err(format!("{} parts of answers to {} steps", answers.len(), run.len()));
    }
    for (step, (answer, (happening, state))) in answers.chunks_exact(PARTS).zip(run).enumerate() {
        let expected = describe(happening, state.as_ref(), step.is_multiple_of(REPORT_INTERVAL));
        if answer != expected {
            let show = |parts: &[Vec<u8>]| parts.iter().map(|part| text(part)).collect::<Vec<_>>().join("\n    ");
            let (answer, expected) = (show(answer), show(&expected));
            let before = &run[step.saturating_sub(6)..=step];
            return Err(format!(
                "step {step} of {before:#?}\n  lua\n    {answer}\n  core\n    {expected}"
            ));
        }
    }
    Ok(())
}

fn write_step(input: &mut String, happening: &TimelineEvent) {
    let TimelineEvent {
        limit,
        now,
        slack,
        action: act,
        ..
    } = happening;
    let halves = |lease: LeaseId| [lease.0 & 0xffff_ffff, lease.0 >> 32];
    let (act, [a, b, c, d], [low, high]) = match *act {
        TimelineAction::Decide { cost, keep, lease } => {
            let keep = match keep {
                KeepOrDrop::Never => 0,
                KeepOrDrop::IfAllowed => 1,
                KeepOrDrop::Always => 2,
            };
            (1, [cost.get(), keep, 0, 0], halves(lease))
        }
        TimelineAction::Refund(cost) => (2, [cost.get(), 0, 0, 0], [0, 0]),
        TimelineAction::Undo(receipt) => {
            let mark = receipt.mark;
            let (at, taken_at) = (mark.at.as_micros(), mark.taken_at.as_micros());
            (3, [receipt.cost.get(), at, mark.frac, taken_at], halves(receipt.lease))
        }
        TimelineAction::Release(lease) => (4, [0; 4], halves(lease)),
        TimelineAction::Renew(lease) => (5, [0; 4], halves(lease)),
    };
    for number in limit
        .numbers(*now)
        .into_iter()
        .chain([now.as_micros(), slack.get(), act, a, b, c, d, low, high])
    {
        write!(input, "{number} ").expect("a string takes it");
    }
}

/// What the script must say: a line, the change, the repair, and now and then when that is fresh and all that is held.
fn describe(happening: &TimelineEvent, state: Option<&State>, whole: bool) -> [Vec<u8>; 4] {
    let mut held = Vec::new();
    if let (Some(state), true) = (state, whole) {
        let fresh_at = happening.limit.fresh_at(state).expect("a state of this limit");
        held.extend(format!("{} ", fresh_at.as_micros()).bytes());
        let heading = held.len();
        state.write_packed(&mut held);
        let read = happening.limit.read_packed(&held[heading..]);
        assert_eq!(read.as_ref(), Some(state), "what is written can be read");
    }
    let (line, change, repair) = match &happening.result {
        EventResult::Step(step) => {
            let standing = step.decision.standing();
            let (word, wait) = match step.decision {
                Decision::Allow { delay, .. } => ("allow", delay.get().to_string()),
                Decision::Deny { retry, .. } => {
                    let wait = match retry {
                        Retry::After(wait) => wait.get().to_string(),
                        Retry::Unknown => "-1".to_owned(),
                        Retry::Never => "-2".to_owned(),
                    };
                    ("deny", wait)
                }
            };
            assert_eq!(standing.limit, happening.limit.capacity());
            // Of a call with large numbers the twin gives only the decision and the state.
            let is_computed = matches!(happening.limit, Limit::Cell(_)) && step.mark.frac >> 63 == 1;
            let (remaining, mark) = if is_computed {
                (COMPUTED, (0, 0))
            } else {
                (standing.remaining, (step.mark.at.as_micros(), step.mark.frac))
            };
            let line = format!(
                "{word} {} {} {wait} {} {} {} {}",
                remaining,
                standing.reset_after.get(),
                step.fresh_at.as_micros(),
                mark.0,
                mark.1,
                step.mark.taken_at.as_micros()
            );
            (line, step.next.as_ref(), step.repair.as_ref())
        }
        EventResult::Change(change) => ("gives".to_owned(), change.as_ref(), None),
    };
    [line.into_bytes(), reply(change), reply(repair), held]
}

/// What remains, where the twin leaves that to its caller.
const COMPUTED: u64 = 1 << 53;

fn reply(change: Option<&Change>) -> Vec<u8> {
    let mut bytes = Vec::new();
    match change {
        None => bytes.push(b'-'),
        Some(Change::SlidingLog(edit)) => {
            bytes.extend(edit.numbers().map(|number| number.to_string()).join(" ").bytes());
        }
        Some(Change::Concurrency(edit)) => {
            bytes.extend(edit.numbers().map(|number| number.to_string()).join(" ").bytes());
        }
        Some(Change::TokenBucket(it)) => State::TokenBucket(*it).write_packed(&mut bytes),
        Some(Change::LeakyBucket(it)) => State::LeakyBucket(*it).write_packed(&mut bytes),
        Some(Change::Gcra(it)) => State::Gcra(*it).write_packed(&mut bytes),
        Some(Change::Cell(it)) => State::Cell(it.clone()).write_packed(&mut bytes),
        Some(Change::FixedWindow(it)) => State::FixedWindow(*it).write_packed(&mut bytes),
        Some(Change::SlidingCounter(it)) => State::SlidingCounter(*it).write_packed(&mut bytes),
    }
    bytes
}

/// Readable where it is text, hexadecimal where it is not.
fn text(bytes: &[u8]) -> String {
    if bytes.iter().all(|byte| (b' '..=b'~').contains(byte)) {
        String::from_utf8_lossy(bytes).into_owned()
    } else {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}
