//! The cost of a decision while the shared store is unavailable, compared with the memory store, and the overhead of the
//! fallback while the store is available.
//!
//! All alternate round by round, and the medians of the rounds are reported: ratios within one run are comparable,
//! nanoseconds are not. The slowest hundredth is of single decisions, timed one by one.

use crate::redis::ServerChoice;
use crate::redis::server::WatchedServer;
use std::future::Future;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tollgate_limiter::RuleLimiter;
use tollgate_limiter::core::problem::Origin;
use tollgate_limiter::core::rules::{Attempt, Attribute, ParserOptions, RuleSet, RulesParser};
use tollgate_limiter::core::yaml;
use tollgate_limiter::core::{
    Charge, Cost, Counter, LeaseId, Limit, Micros, OnStoreFailure, Policy, Rate, TokenBucket,
};
use tollgate_limiter::store::fallback::{Fallback, FallbackOptions};
use tollgate_limiter::store::memory::Memory;
use tollgate_limiter::store::redis::Redis;
use tollgate_limiter::store::{BreakerState, CounterStore, Source, Store};

/// Measures decisions while the shared store is unavailable, compared with the memory store.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  cargo run --profile dist -p tollgate-bench -- local")]
pub(crate) struct Args {
    /// Subjects, checked in turn.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    keys: u64,
    /// Rounds of 20 ms for each.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(3..=10_000))]
    rounds: u64,
}

const ROUND: Duration = Duration::from_millis(20);

/// The measurements of one contestant.
struct FallbackTiming {
    name: &'static str,
    /// Nanoseconds per decision, of each round.
    rounds: Vec<u64>,
    /// Of single decisions.
    singles: Vec<u64>,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("tollgate-bench: cannot start: {error}");
            return ExitCode::from(2);
        }
    };
    match runtime.block_on(measure(args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("tollgate-bench: {reason}");
            ExitCode::from(2)
        }
    }
}

async fn measure(args: &Args) -> Result<(), String> {
    let memory = Arc::new(Memory::default());
    let fallback_options = FallbackOptions {
        instances: Some(2),
        ..FallbackOptions::default()
    };
    let connected = Arc::new(Fallback::new(Arc::new(Memory::default()), fallback_options));
    let unavailable = Arc::new(without_a_store(fallback_options).await?);
    let mut stores = [
        FallbackTiming::new("memory"),
        FallbackTiming::new("fallback, store available"),
        FallbackTiming::new("fallback, store unavailable"),
    ];
    let (ours, theirs, lone) = (
        charges(&*memory, args.keys),
        charges(&*connected, args.keys),
        charges(&*unavailable, args.keys),
    );
    let books = (
        RuleLimiter::new(rules()?, memory.clone()),
        RuleLimiter::new(rules()?, unavailable.clone()),
    );
    let names: Vec<String> = (0..args.keys).map(|key| format!("user-{key}")).collect();
    let mut whole = [
        FallbackTiming::new("memory"),
        FallbackTiming::new("fallback, store unavailable"),
    ];
    for _ in 0..args.rounds {
        stores[0]
            .round(|turn| settle(&*memory, at(&ours, turn), Source::Memory))
            .await;
        stores[1]
            .round(|turn| settle(&*connected, at(&theirs, turn), Source::Memory))
            .await;
        stores[2]
            .round(|turn| settle(&*unavailable, at(&lone, turn), Source::Local))
            .await;
        whole[0]
            .round(|turn| check(&books.0, at::<String>(&names, turn), Source::Memory))
            .await;
        whole[1]
            .round(|turn| check(&books.1, at::<String>(&names, turn), Source::Local))
            .await;
    }
    println!("{} keys, {} rounds of {ROUND:?} each\n", args.keys, args.rounds);
    report("settling one charge", &mut stores);
    report("a check by rules, key and plan included", &mut whole);
    Ok(())
}

/// A store that was available and whose breaker is open.
async fn without_a_store(fallback_options: FallbackOptions) -> Result<Fallback<Redis>, String> {
    let server = WatchedServer::start(ServerChoice::Redis.kind())?;
    let options = Redis::options(&server.url()).map_err(|error| error.to_string())?;
    let store = Fallback::new(Arc::new(options.open()), fallback_options);
    drop(server);
    let charge = charges(&store, 1);
    let from = Instant::now();
    while store.inner().status().breaker.state != BreakerState::Open {
        if from.elapsed() > Duration::from_secs(10) {
            return Err("the breaker does not open".into());
        }
        store.settle(&charge, LeaseId(1)).await;
    }
    Ok(store)
}

/// A charge of one unit for each subject, under a limit that is never reached.
fn charges<S: Store>(store: &S, keys: u64) -> Vec<Charge<S::Key>> {
    let rate = Rate::new(1_000_000_000, Micros::from_secs(1)).expect("in range");
    let limit: Limit = TokenBucket::new(rate).into();
    let counter = Counter {
        domain: "bench",
        rule: "local",
        variant: "",
        limit: &limit,
        per: &[],
    };
    let subjects = store.template(&counter);
    let charge = |key: u64| Charge {
        key: store.key(&subjects, &[&key.to_le_bytes()]),
        limit,
        cost: Cost::ONE,
        policy: Policy::Enforce,
        on_failure: OnStoreFailure::Local,
    };
    (0..keys).map(charge).collect()
}

fn rules() -> Result<RuleSet, String> {
    let origin = Origin::new("bench", "rules: [{ id: r, per: user, limit: 1000000000/s }]");
    let mut reader = RulesParser::new(ParserOptions::default());
    reader.add_file(&yaml::parse(&origin).map_err(|_| "the rules are YAML")?);
    let read = reader.finish();
    read.map(|read| read.rules)
        .map_err(|_| "the rules are valid".to_owned())
}

fn at<T>(all: &[T], turn: u64) -> &T {
    all.get(turn as usize % all.len()).expect("there is at least one")
}

async fn settle<S: Store>(store: &S, charge: &Charge<S::Key>, source: Source) {
    let settled = store.settle(std::slice::from_ref(charge), LeaseId(1)).await;
    let outcome = settled
        .outcomes
        .first()
        .copied()
        .expect("one charge was sent")
        .expect("decided");
    assert!(settled.allowed && outcome.source == source);
}

async fn check<S: CounterStore>(book: &RuleLimiter<S>, user: &str, source: Source) {
    let attributes = [Attribute {
        name: "user",
        value: user.as_bytes(),
    }];
    let attempt = Attempt {
        domain: "default",
        attributes: &attributes,
        cost: Cost::ONE,
    };
    let checked = book.check(&attempt).await;
    assert!(checked.verdict.allowed && checked.verdict.source == source);
}

impl FallbackTiming {
    fn new(name: &'static str) -> Self {
        Self {
            name,
            rounds: Vec::new(),
            singles: Vec::new(),
        }
    }

    /// One round of decisions, followed by some that are timed one by one.
    async fn round<F: Future<Output = ()>>(&mut self, decide: impl Fn(u64) -> F) {
        let (from, mut turns) = (Instant::now(), 0);
        while from.elapsed() < ROUND {
            for turn in 0..100 {
                decide(turns + turn).await;
            }
            turns += 100;
        }
        self.rounds.push(from.elapsed().as_nanos() as u64 / turns);
        for turn in 0..2_000 {
            let from = Instant::now();
            decide(turn * 7).await;
            self.singles.push(from.elapsed().as_nanos() as u64);
        }
    }

    fn median(&mut self) -> u64 {
        quantile(&mut self.rounds, 50)
    }

    fn slowest_hundredth(&mut self) -> u64 {
        quantile(&mut self.singles, 99)
    }
}

fn quantile(all: &mut [u64], percent: usize) -> u64 {
    all.sort_unstable();
    all.get(all.len().saturating_sub(1) * percent / 100)
        .copied()
        .unwrap_or_default()
}

fn report(what: &str, all: &mut [FallbackTiming]) {
    println!(
        "| {what} | ns, median of rounds | x the first | p99 of single ones, ns | x the first |\n|---|---:|---:|---:|---:|"
    );
    let first = all.first_mut().map(|first| (first.median(), first.slowest_hundredth()));
    let (median, slow) = first.unwrap_or((1, 1));
    for measured in all {
        let (median_ns, p99_ns) = (measured.median(), measured.slowest_hundredth());
        println!(
            "| {} | {median_ns} | {:.2} | {p99_ns} | {:.2} |",
            measured.name,
            median_ns as f64 / median as f64,
            p99_ns as f64 / slow as f64
        );
    }
    println!();
}
