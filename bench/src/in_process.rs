//! Tollgate's memory store compared with other libraries, and a bare map as the lower bound of all of them.
//!
//! All peers of a case alternate round by round, and the median of the rounds is reported: other load on the machine
//! affects all of them, and ratios within one run are comparable where nanoseconds are not. Every decision is checked, so
//! that a case cannot silently measure something other than its name.

mod growth;
mod keys;
mod peers;
mod report;
mod resident;

use self::keys::{Keys, RUN};
use self::peers::{ALL, ALLOWED, DENIED, Numbers, Peer, RATELIMIT};
use crate::measurement::median;
use std::process::ExitCode;
use std::sync::Barrier;
use std::time::{Duration, Instant};

#[derive(clap::Args)]
#[command(after_help = "Examples:
  cargo run --profile dist -p tollgate-bench -- in-process
  cargo run --profile dist -p tollgate-bench -- in-process --only uniform_1m --seconds-per-case 30
  cargo run --profile dist -p tollgate-bench -- in-process --json > in-process.json

Cases: hot_1t, hot_2t, uniform_1m, zipf_1m_2t, batch16_uniform_1m, hot_1t_denied, uniform_1m_denied;
and for --only also: bytes_per_key, by_keys.")]
pub(crate) struct Args {
    /// Prints JSON instead of tables.
    #[arg(long)]
    json: bool,
    /// Measures this case only.
    #[arg(long, value_name = "CASE", value_parser = clap::builder::PossibleValuesParser::new(names()))]
    only: Option<String>,
    /// Seconds per case, shared by all its peers.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds_per_case: u64,
    /// A short run: 2 seconds per case, and 10^6 keys instead of 10^7.
    #[arg(long, conflicts_with = "seconds_per_case")]
    quick: bool,
    /// Fills a peer with 1 M keys and prints the bytes per key. Run as its own process.
    #[arg(long, value_name = "NAME", hide = true)]
    memory: Option<String>,
}

const BYTES_PER_KEY: &str = "bytes_per_key";
const BY_KEYS: &str = "by_keys";
/// Approximate time of one peer in one round: short, so that few rounds are interrupted.
const ROUND: Duration = Duration::from_millis(20);
/// The minimum number of rounds.
const ROUNDS_MIN: usize = 5;

/// The keys and limits of a case.
struct Case {
    name: &'static str,
    keys: Keys,
    threads: usize,
    /// 16 keys at a time, where a library supports batches.
    batched: bool,
    numbers: Numbers,
}

const CASES: [Case; 7] = [
    case("hot_1t", Keys::One, 1, ALLOWED),
    case("hot_2t", Keys::One, 2, ALLOWED),
    case("uniform_1m", Keys::Uniform, 1, ALLOWED),
    case("zipf_1m_2t", Keys::Zipf, 2, ALLOWED),
    Case {
        batched: true,
        ..case("batch16_uniform_1m", Keys::Uniform, 1, ALLOWED)
    },
    case("hot_1t_denied", Keys::One, 1, DENIED),
    case("uniform_1m_denied", Keys::Uniform, 1, DENIED),
];

const fn case(name: &'static str, keys: Keys, threads: usize, numbers: Numbers) -> Case {
    Case {
        name,
        keys,
        threads,
        batched: false,
        numbers,
    }
}

fn names() -> Vec<&'static str> {
    CASES
        .iter()
        .map(|case| case.name)
        .chain([BYTES_PER_KEY, BY_KEYS])
        .collect()
}

/// Nanoseconds per decision of a case, for each peer.
struct CaseResult {
    name: &'static str,
    ns: Vec<(&'static str, f64)>,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    if let Some(name) = &args.memory {
        return resident::run_child(name);
    }
    let wanted = |name: &str| args.only.as_deref().is_none_or(|only| only == name);
    let time = Duration::from_secs(if args.quick { 2 } else { args.seconds_per_case });
    let cases = CASES.iter().filter(|case| wanted(case.name));
    let cases: Vec<CaseResult> = cases.map(|case| case.measure(time)).collect();
    let bytes_per_key = if wanted(BYTES_PER_KEY) {
        resident::measure()
    } else {
        Vec::new()
    };
    let by_keys = if wanted(BY_KEYS) {
        growth::measure(args.quick)
    } else {
        Vec::new()
    };
    if args.json {
        report::print_json(&cases, &bytes_per_key, &by_keys);
    } else {
        report::print_tables(&cases, &bytes_per_key, &by_keys);
    }
    ExitCode::SUCCESS
}

impl Case {
    fn measure(&self, time: Duration) -> CaseResult {
        progress(&format!("{}: filling", self.name));
        let sequences = self.keys.sequences(self.threads);
        let mut players: Vec<Participant> = ALL
            .iter()
            .filter(|&&(name, _)| name != RATELIMIT || self.keys == Keys::One)
            .map(|&(name, make)| Participant::new(self, name, make(self.numbers, self.keys.live())))
            .collect();
        for player in &mut players {
            player.calibrate(self, &sequences);
        }
        let rounds = (time.as_nanos() / (ROUND.as_nanos() * players.len() as u128)) as usize;
        let rounds = rounds.max(ROUNDS_MIN);
        progress(&format!("{}: {rounds} rounds of {} peers", self.name, players.len()));
        for _ in 0..rounds {
            for player in &mut players {
                let ns = player.round(self, &sequences);
                player.rounds.push(ns);
            }
        }
        CaseResult {
            name: self.name,
            ns: players
                .into_iter()
                .map(|player| (player.name, median(player.rounds)))
                .collect(),
        }
    }
}

/// A peer in a case.
struct Participant {
    name: &'static str,
    peer: Box<dyn Peer>,
    /// Runs of keys that each thread checks in a round.
    runs: usize,
    /// The position in its keys at which each thread continues.
    at: usize,
    rounds: Vec<f64>,
}

impl Participant {
    /// With every key in its table.
    fn new(case: &Case, name: &'static str, peer: Box<dyn Peer>) -> Self {
        let mut key = String::new();
        for number in 0..case.keys.live() {
            keys::write_key(&mut key, number);
            let taken = peer.take(&key, case.numbers.used);
            assert!(taken, "{name} had no room for a new key");
        }
        Self {
            name,
            peer,
            runs: 16,
            at: 0,
            rounds: Vec::new(),
        }
    }

    /// Finds the amount of work that fills a round.
    fn calibrate(&mut self, case: &Case, sequences: &[Vec<String>]) {
        loop {
            let decisions = (self.runs * RUN * case.threads) as f64;
            let took = self.round(case, sequences) * decisions;
            let short = ROUND.as_nanos() as f64 / took;
            self.runs = (self.runs as f64 * short.clamp(1.0, 8.0)).ceil() as usize;
            if short < 2.0 {
                return;
            }
        }
    }

    /// Nanoseconds per decision: from the first thread's start to the last one's end, over the decisions of all.
    fn round(&mut self, case: &Case, sequences: &[Vec<String>]) -> f64 {
        let (contestant, from, runs) = (&*self.peer, self.at, self.runs);
        self.at += runs;
        let ask = |keys: &[String]| {
            let mut allowed = 0;
            for keys in keys
                .chunks_exact(RUN)
                .cycle()
                .skip(from % (keys.len() / RUN))
                .take(runs)
            {
                allowed += if case.batched {
                    contestant.check_batch(keys)
                } else {
                    contestant.check(keys)
                };
            }
            let expected = if case.numbers.used < case.numbers.burst {
                runs * RUN
            } else {
                0
            };
            assert_eq!(allowed, expected, "{}: answers of {}", case.name, self.name);
        };
        let took = match sequences {
            [keys] => {
                let started = Instant::now();
                ask(keys);
                started.elapsed()
            }
            _ => wall_time(sequences, ask),
        };
        took.as_nanos() as f64 / (runs * RUN * case.threads) as f64
    }
}

/// Wall time of all threads, each with its own keys.
fn wall_time(sequences: &[Vec<String>], ask: impl Fn(&[String]) + Sync) -> Duration {
    let barrier = Barrier::new(sequences.len());
    let timed = |keys| {
        barrier.wait();
        let started = Instant::now();
        ask(keys);
        (started, Instant::now())
    };
    let timed = &timed;
    std::thread::scope(|scope| {
        let threads: Vec<_> = sequences.iter().map(|keys| scope.spawn(move || timed(keys))).collect();
        let times: Vec<(Instant, Instant)> = threads
            .into_iter()
            .map(|thread| thread.join().expect("a thread that is timed does not panic"))
            .collect();
        let began = times.iter().map(|&(began, _)| began).min();
        let ended = times.iter().map(|&(_, ended)| ended).max();
        ended.zip(began).map_or(Duration::ZERO, |(ended, began)| ended - began)
    })
}

#[expect(clippy::print_stderr, reason = "progress; the result is on stdout")]
fn progress(what: &str) {
    eprintln!("{what}");
}
