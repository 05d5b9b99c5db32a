//! Three primaries of a cluster compared with a single server, with the same callers.
//!
//! All servers share one core, and the load has the other. So the comparable result is the CPU time per decision; three
//! primaries with a core each decide three times as much per second, if there is enough load.

use super::Args;
use super::load::Library;
use super::server::{cpu_seconds, error_text};
use crate::measurement::{Measurement, Rounds};
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
    rounds: Rounds,
    /// Before the first round.
    charges_and_calls: [u64; 2],
}

const CALLERS: usize = 512;
const SINGLE_SERVER: &str = "one server";
/// Tags that the keys are spread over: the default, and the number recommended from six primaries on.
const TAGS: [u16; 2] = [64, 1_024];

pub(super) fn run(args: &Args) -> ExitCode {
    crate::exit_code(crate::block_on(measure(args)).map(|contestants| {
        print(args, &contestants);
        true
    }))
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
        rounds: Rounds::default(),
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

    fn charges_per_call(&self) -> f64 {
        let [charges, calls] = self.library.charges_and_calls();
        let [charges_before, calls_before] = self.charges_and_calls;
        (charges - charges_before) as f64 / (calls - calls_before) as f64
    }

    /// The median over all rounds of the ratio of its decisions per CPU-second to those of the first in the same round.
    fn ratio_to(&self, first: &Self) -> f64 {
        self.rounds.ratio(&first.rounds, Measurement::per_cpu_second)
    }
}

fn print(args: &Args, contestants: &[Contestant]) {
    let Some(first) = contestants.first() else { return };
    if args.json {
        let rows: Vec<Value> = contestants
            .iter()
            .map(|contestant| {
                contestant.rounds.as_json([
                    ("who", contestant.name.as_str().into()),
                    ("x_one_server", contestant.ratio_to(first).into()),
                    ("charges_per_call", contestant.charges_per_call().into()),
                ])
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
        "| servers | decisions per CPU-second | decisions/s | core busy | one server | charges per call | p50 µs | p99 µs |\n|---|---:|---:|---:|---:|---:|---:|---:|"
    );
    for contestant in contestants {
        println!(
            "| {} | {} | {:.2}x | {:.1} | {} |",
            contestant.name,
            contestant.rounds.rate_cells(),
            contestant.ratio_to(first),
            contestant.charges_per_call(),
            contestant.rounds.latency_cells(),
        );
    }
}
