//! Three primaries of a cluster compared with a single server, with the same callers.
//!
//! All servers share one core, and the load has the other. So the comparable result is the CPU time per decision; three
//! primaries with a core each decide three times as much per second, if there is enough load.

use super::load::{Library, Measurement};
use super::server::{cpu_seconds, error_text};
use super::{Args, median};
use crate::servers::process::{pin, pin_self};
use redis::Connection;
use serde_json::{Value, json};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tollgate_limiter::store::redis::Redis;
use tollgate_limiter::testing::cluster::Cluster;
use tollgate_limiter::testing::servers::Server;

/// The measured servers and their results.
struct Contestant {
    name: String,
    /// A connection to each of the servers.
    watching: Vec<Connection>,
    library: Arc<Library>,
    rounds: Vec<Measurement>,
    /// Before the first round.
    charges_and_calls: [u64; 2],
}

const CALLERS: usize = 512;
const SINGLE_SERVER: &str = "one server";
/// Tags that the keys are spread over: the default, and the number recommended from six primaries on.
const TAGS: [u16; 2] = [64, 1_024];

pub(super) fn run(args: &Args) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let measured = runtime
        .map_err(|error| error.to_string())
        .and_then(|runtime| runtime.block_on(measure(args)));
    match measured {
        Ok(contestants) => {
            print(args, &contestants);
            ExitCode::SUCCESS
        }
        Err(reason) => {
            eprintln!("tollgate-bench: {reason}");
            ExitCode::from(2)
        }
    }
}

async fn measure(args: &Args) -> Result<Vec<Contestant>, String> {
    let single = Server::start(args.server.kind());
    let cluster = Cluster::start_without_replicas(args.server.kind());
    pin_self(1)?;
    for server in cluster.servers.iter().chain([&single]) {
        pin(server.process_id(), 0)?;
    }
    let mut contestants = vec![contestant(SINGLE_SERVER.to_owned(), &single.url(), &[&single], TAGS[0]).await?];
    let primaries: Vec<&Server> = cluster.servers.iter().collect();
    for tags in TAGS {
        let name = format!("{} primaries, {tags} tags", primaries.len());
        contestants.push(contestant(name, &cluster.url(), &primaries, tags).await?);
    }
    for contestant in &mut contestants {
        eprintln!("{}: creating {} keys", contestant.name, args.keys);
        contestant.library.fill(args.keys).await?;
        contestant.charges_and_calls = contestant.library.charges_and_calls();
    }
    for round in 1..=args.rounds {
        eprintln!("round {round} of {}", args.rounds);
        for contestant in &mut contestants {
            contestant.turn(args, round).await?;
        }
    }
    Ok(contestants)
}

async fn contestant(name: String, url: &str, servers: &[&Server], tags: u16) -> Result<Contestant, String> {
    let options = Redis::options(url).map_err(|error| error.to_string())?;
    let watch = |server: &&Server| {
        let client = redis::Client::open(server.url()).map_err(error_text)?;
        client.get_connection().map_err(error_text)
    };
    Ok(Contestant {
        name,
        watching: servers.iter().map(watch).collect::<Result<_, _>>()?,
        library: Library::open_with(options.tags(tags)).await?,
        rounds: Vec::new(),
        charges_and_calls: [0; 2],
    })
}

impl Contestant {
    async fn turn(&mut self, args: &Args, round: u64) -> Result<(), String> {
        let watching = &mut self.watching;
        let cpu = || watching.iter_mut().map(cpu_seconds).sum();
        let length = Duration::from_millis(args.turn_ms);
        let measured = self.library.measure(CALLERS, (args.keys, round), length, cpu).await?;
        self.rounds.push(measured);
        Ok(())
    }

    fn median(&self, figure: impl Fn(&Measurement) -> f64) -> f64 {
        median(self.rounds.iter().map(figure).collect())
    }

    fn charges_per_call(&self) -> f64 {
        let [charges, calls] = self.library.charges_and_calls();
        let [charges_before, calls_before] = self.charges_and_calls;
        (charges - charges_before) as f64 / (calls - calls_before) as f64
    }

    /// The median over all rounds of the ratio of its decisions per CPU-second to those of the first in the same round.
    fn ratio_to(&self, first: &Self) -> f64 {
        let pairs = self.rounds.iter().zip(&first.rounds);
        median(
            pairs
                .map(|(round, first)| round.per_cpu_second() / first.per_cpu_second())
                .collect(),
        )
    }
}

fn print(args: &Args, contestants: &[Contestant]) {
    let Some(first) = contestants.first() else { return };
    if args.json {
        let rows: Vec<Value> = contestants
            .iter()
            .map(|contestant| {
                json!({
                    "who": contestant.name,
                    "decisions_per_cpu_second": contestant.median(Measurement::per_cpu_second),
                    "x_one_server": contestant.ratio_to(first),
                    "decisions_per_second": contestant.median(Measurement::per_second),
                    "charges_per_call": contestant.charges_per_call(),
                    "p50_us": contestant.median(|measured| measured.p50_us),
                    "p99_us": contestant.median(|measured| measured.p99_us),
                })
            })
            .collect();
        println!("{:#}", json!({ "callers": CALLERS, "cluster": rows }));
        return;
    }
    println!(
        "{CALLERS} callers, {} random keys, no denials; medians of {} rounds of {} ms. All servers on one core.\n",
        args.keys, args.rounds, args.turn_ms
    );
    println!(
        "| servers | decisions per CPU-second | x one server | decisions/s | charges per call | p50 µs | p99 µs |\n|---|---:|---:|---:|---:|---:|---:|"
    );
    for contestant in contestants {
        println!(
            "| {} | {:.0} | {:.2} | {:.0} | {:.1} | {:.0} | {:.0} |",
            contestant.name,
            contestant.median(Measurement::per_cpu_second),
            contestant.ratio_to(first),
            contestant.median(Measurement::per_second),
            contestant.charges_per_call(),
            contestant.median(|measured| measured.p50_us),
            contestant.median(|measured| measured.p99_us),
        );
    }
}
