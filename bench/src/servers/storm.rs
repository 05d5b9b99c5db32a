//! A storm against a running server: many callers of one limit arrive at once, and those that are denied return when `Retry-After`
//! says so. Beside it, an address that sends a hundred times what the limit allows, and the time of one denial.

use super::{FrontEnd, process, serve};
use clap::Args;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{Instant, interval, sleep, sleep_until, timeout};
use tollgate_core::Micros;
use tollgate_core::protect::{RetryDenial, RetrySpread};
use tollgate_core::testing::random::Random;

/// Measures a storm of denied callers against a running server, with and without spread return times.
#[derive(Args)]
#[command(after_help = "Example:\n  cargo run --profile dist -p tollgate-bench -- storm")]
pub(crate) struct StormArgs {
    /// The callers that arrive within 50 ms, against 1000/s.
    #[arg(long, default_value_t = 10_000)]
    callers: u32,
    /// The seed of the clients' own random second.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Callers, and the limit that they share.
#[derive(Clone, Copy)]
struct Population {
    per_second: u32,
    callers: u32,
    within: Duration,
    /// The requests per second of one more caller, which never waits.
    attack: Option<u32>,
}

/// A run: whether the server spreads return times, and whether clients add a random second.
#[derive(Clone, Copy)]
struct Variant {
    name: &'static str,
    is_spread: bool,
    has_client_jitter: bool,
}

/// The requests of all callers but the attacker.
#[derive(Default)]
struct Record {
    requests: Cell<u64>,
    served_at_first: Cell<u64>,
    /// By tenths of a second since the start.
    by_tenth: RefCell<Vec<u64>>,
    /// Times until callers were served.
    served: RefCell<Vec<Duration>>,
}

/// The result of a run.
struct Outcome {
    requests: u64,
    ideal: u64,
    /// The most requests in 100 ms, after the first half second.
    peak: u64,
    p50: Duration,
    p99: Duration,
}

/// Kept connections, each with one request in flight.
struct Pool {
    /// The one that was used first is the next: none is idle for long.
    free: RefCell<VecDeque<BufReader<TcpStream>>>,
    permits: Semaphore,
}

const JITTER_ONLY: Variant = Variant {
    name: "jitter only",
    is_spread: false,
    has_client_jitter: false,
};
const SPREAD: Variant = Variant {
    name: "spread",
    is_spread: true,
    ..JITTER_ONLY
};
const SPREAD_AND_CLIENT: Variant = Variant {
    name: "spread, clients add up to a second",
    has_client_jitter: true,
    ..SPREAD
};

/// The requests of a storm, to those if each caller were denied once at most.
const REQUESTS_GOAL: f64 = 1.05;
/// The peak of a storm, to that with jitter only.
const PEAK_GOAL: f64 = 1.0 / 50.0;
/// The p99 of honest callers beside one that attacks, to that without spreading.
const ATTACK_GOAL: f64 = 1.10;
const DENIAL_GOAL_NS: f64 = 150.0;

const CONNECTIONS: usize = 64;
const ATTACK_CONNECTIONS: u32 = 16;
const STARTED_WITHIN: Duration = Duration::from_secs(10);
/// A storm that is not over by then is an error.
const OVER_WITHIN: Duration = Duration::from_secs(180);

pub(crate) fn run(args: &StormArgs) -> ExitCode {
    crate::exit_code(measure(args))
}

fn measure(args: &StormArgs) -> Result<bool, String> {
    let tollgate = process::build_product()?;
    process::pin_self(1)?;
    let storm = Population {
        per_second: 1_000,
        callers: args.callers,
        within: Duration::from_millis(50),
        attack: None,
    };
    let attacked = Population {
        per_second: 100,
        callers: 1_000,
        within: Duration::from_secs(10),
        attack: Some(10_000),
    };
    println!("| callers | `Retry-After` | requests | of the ideal | peak in 100 ms | p50 | p99 |");
    println!("|---|---|---:|---:|---:|---:|---:|");
    let run = |name: &str, population: &Population, variant: &Variant| {
        let outcome = measure_one(&tollgate, population, variant, args.seed)?;
        outcome.print(name, variant.name);
        Ok::<_, String>(outcome)
    };
    let name = format!("{} at once, 1000/s", args.callers);
    let jitter_only = run(&name, &storm, &JITTER_ONLY)?;
    let spread = run(&name, &storm, &SPREAD)?;
    let with_client = run(&name, &storm, &SPREAD_AND_CLIENT)?;
    let name = "1000 in 10 s, 100/s, one more at 100 times the rate";
    let attacked_without = run(name, &attacked, &JITTER_ONLY)?;
    let attacked_with = run(name, &attacked, &SPREAD)?;
    let denial_ns = denial_ns();

    let goals = [
        ("requests of a storm, of the ideal", spread.of_ideal(), REQUESTS_GOAL),
        (
            "peak with clients that add a second, of that with jitter only",
            with_client.peak as f64 / jitter_only.peak.max(1) as f64,
            PEAK_GOAL,
        ),
        (
            "p99 of honest callers beside the one, of that with jitter only",
            attacked_with.p99.as_secs_f64() / attacked_without.p99.as_secs_f64().max(1e-9),
            ATTACK_GOAL,
        ),
        ("ns of one denial", denial_ns, DENIAL_GOAL_NS),
    ];
    println!("\n| goal | figure | at most | |\n|---|---:|---:|---|");
    let mut is_met = true;
    for (name, figure, goal) in goals {
        let is_goal_met = figure <= goal;
        is_met &= is_goal_met;
        let result = if is_goal_met { "met" } else { "**missed**" };
        println!("| {name} | {figure:.3} | {goal:.3} | {result} |");
    }
    Ok(is_met)
}

fn measure_one(tollgate: &Path, population: &Population, variant: &Variant, seed: u64) -> Result<Outcome, String> {
    let config = Config::write(population, variant)?;
    let address = process::free_address()?;
    let mut command = serve(tollgate, &config.0, FrontEnd::Http, address);
    command.args(["--set", "server.admin=disabled"]);
    let _server = process::Server::start(&mut command, 0)?;
    crate::block_on(async {
        let run = simulate_callers(address, *population, *variant, seed);
        let over = timeout(OVER_WITHIN, run).await;
        over.map_err(|_| format!("not all callers were served within {} s", OVER_WITHIN.as_secs()))?
    })
}

/// The settings of a run, in a file that is removed at its end.
struct Config(PathBuf);

impl Config {
    fn write(population: &Population, variant: &Variant) -> Result<Self, String> {
        let path = std::env::temp_dir().join(format!("tollgate-bench-storm-{}.yaml", std::process::id()));
        let settings = format!(
            "retry_after: {{ spread: {} }}\nrules:\n  - {{ id: all, limit: {}/s }}\n",
            variant.is_spread, population.per_second
        );
        std::fs::write(&path, settings).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Config {
    fn drop(&mut self) {
        // A leftover file does no harm.
        let _ = std::fs::remove_file(&self.0);
    }
}

async fn simulate_callers(
    address: SocketAddr,
    population: Population,
    variant: Variant,
    seed: u64,
) -> Result<Outcome, String> {
    let pool = Rc::new(Pool::open(address, CONNECTIONS).await?);
    let record = Rc::new(Record::default());
    let start = Instant::now();
    let mut random = Random::new(seed);
    let callers: Vec<_> = (0..population.callers)
        .map(|caller| {
            let due = start + population.within * caller / population.callers;
            let client = Client {
                pool: Rc::clone(&pool),
                record: Rc::clone(&record),
                start,
                has_jitter: variant.has_client_jitter,
                random: Random::new(random.next()),
            };
            tokio::task::spawn_local(client.call(caller, due))
        })
        .collect();
    // An attack lasts twice as long as honest callers arrive.
    let attack_end = start + population.within * 2;
    let attackers: Vec<_> = (0..population.attack.map_or(0, |_| ATTACK_CONNECTIONS))
        .map(|_| tokio::task::spawn_local(attack(address, population.attack.unwrap_or(1), attack_end)))
        .collect();
    for task in callers.into_iter().chain(attackers) {
        task.await.map_err(|error| format!("a caller failed: {error}"))??;
    }
    Ok(record.outcome(population.callers))
}

/// Sends its part of the attack's requests.
async fn attack(address: SocketAddr, per_second: u32, end: Instant) -> Result<(), String> {
    let mut stream = Pool::connect(address).await?;
    let mut ticks = interval(Duration::from_secs(1) * ATTACK_CONNECTIONS / per_second);
    while ticks.tick().await < end {
        check(&mut stream, "attacker").await?;
    }
    Ok(())
}

/// A caller that returns when the header says so.
struct Client {
    pool: Rc<Pool>,
    record: Rc<Record>,
    start: Instant,
    has_jitter: bool,
    random: Random,
}

impl Client {
    async fn call(mut self, caller: u32, due: Instant) -> Result<(), String> {
        sleep_until(due).await;
        let name = format!("c{caller}");
        for attempt in 0_u64.. {
            self.record.count(self.start.elapsed());
            let Some(retry_after) = self.pool.check(&name).await? else {
                self.record.serve(due.elapsed(), attempt == 0);
                break;
            };
            // The rule of docs/clients.md: the header, and a random time of a second or a tenth of it.
            let most_us = retry_after.saturating_mul(100_000).max(1_000_000);
            let jitter_us = if self.has_jitter { self.random.below(most_us) } else { 0 };
            sleep(Duration::from_secs(retry_after) + Duration::from_micros(jitter_us)).await;
        }
        Ok(())
    }
}

impl Record {
    fn count(&self, at: Duration) {
        self.requests.set(self.requests.get() + 1);
        let tenth = (at.as_millis() / 100) as usize;
        let mut by_tenth = self.by_tenth.borrow_mut();
        if by_tenth.len() <= tenth {
            by_tenth.resize(tenth + 1, 0);
        }
        if let Some(count) = by_tenth.get_mut(tenth) {
            *count += 1;
        }
    }

    fn serve(&self, after: Duration, is_first: bool) {
        self.served.borrow_mut().push(after);
        self.served_at_first
            .set(self.served_at_first.get() + u64::from(is_first));
    }

    fn outcome(&self, callers: u32) -> Outcome {
        let mut served = self.served.take();
        served.sort_unstable();
        let quantile = |percent: usize| {
            served
                .get((served.len() * percent / 100).min(served.len() - 1))
                .copied()
        };
        Outcome {
            requests: self.requests.get(),
            ideal: 2 * u64::from(callers) - self.served_at_first.get(),
            peak: self.by_tenth.borrow().iter().skip(5).max().copied().unwrap_or(0),
            p50: quantile(50).unwrap_or_default(),
            p99: quantile(99).unwrap_or_default(),
        }
    }
}

impl Outcome {
    fn of_ideal(&self) -> f64 {
        self.requests as f64 / self.ideal.max(1) as f64
    }

    fn print(&self, callers: &str, variant: &str) {
        let Self { requests, peak, .. } = self;
        let [p50, p99] = [self.p50, self.p99].map(|time| time.as_secs_f64());
        let of_ideal = self.of_ideal();
        println!("| {callers} | {variant} | {requests} | {of_ideal:.3} | {peak} | {p50:.1} s | {p99:.1} s |");
    }
}

impl Pool {
    async fn open(address: SocketAddr, connections: usize) -> Result<Self, String> {
        let mut free = VecDeque::with_capacity(connections);
        for _ in 0..connections {
            free.push_back(Self::connect(address).await?);
        }
        Ok(Self {
            free: RefCell::new(free),
            permits: Semaphore::new(connections),
        })
    }

    /// Connects, to a server that may still be starting.
    async fn connect(address: SocketAddr) -> Result<BufReader<TcpStream>, String> {
        let started = Instant::now();
        loop {
            match TcpStream::connect(address).await {
                Ok(stream) => {
                    stream.set_nodelay(true).map_err(|error| error.to_string())?;
                    return Ok(BufReader::new(stream));
                }
                Err(error) if started.elapsed() > STARTED_WITHIN => {
                    return Err(format!("no connection to {address}: {error}"));
                }
                Err(_) => sleep(Duration::from_millis(20)).await,
            }
        }
    }

    async fn check(&self, caller: &str) -> Result<Option<u64>, String> {
        let _permit = self.permits.acquire().await.map_err(|error| error.to_string())?;
        let stream = self.free.borrow_mut().pop_front();
        let mut stream = stream.ok_or("a permit without a connection")?;
        let answer = check(&mut stream, caller).await;
        self.free.borrow_mut().push_back(stream);
        answer
    }
}

/// The seconds of `Retry-After`, or none if the caller was served.
async fn check(stream: &mut BufReader<TcpStream>, caller: &str) -> Result<Option<u64>, String> {
    let body = format!(r#"{{"attributes":{{"user":"{caller}"}}}}"#);
    let request = format!(
        "POST /v1/check HTTP/1.1\r\nhost: storm\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let answer = async {
        stream.write_all(request.as_bytes()).await?;
        let mut head = Head::default();
        let mut line = String::new();
        loop {
            line.clear();
            if stream.read_line(&mut line).await? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            match line.trim_end() {
                "" => break,
                line => head.read(line),
            }
        }
        let mut body = vec![0; head.length];
        stream.read_exact(&mut body).await?;
        Ok(head)
    };
    let head = answer
        .await
        .map_err(|error: std::io::Error| format!("a check failed: {error}"))?;
    match (head.status, head.retry_after) {
        (200, _) => Ok(None),
        (429, Some(seconds)) => Ok(Some(seconds)),
        (status, _) => Err(format!("a check was answered by {status}")),
    }
}

/// The head of a response.
#[derive(Default)]
struct Head {
    status: u16,
    length: usize,
    retry_after: Option<u64>,
}

impl Head {
    fn read(&mut self, line: &str) {
        if let Some(status) = line.strip_prefix("HTTP/1.1 ") {
            self.status = status.get(..3).and_then(|code| code.parse().ok()).unwrap_or(0);
        } else if let Some((name, value)) = line.split_once(": ") {
            match name {
                "content-length" => self.length = value.parse().unwrap_or(0),
                "retry-after" => self.retry_after = value.parse().ok(),
                _ => {}
            }
        }
    }
}

/// Nanoseconds of spreading one denial, of 16 times as many callers as are remembered, at 64 counters: the median of the rounds.
fn denial_ns() -> f64 {
    const ROUNDS: u64 = 21;
    const DENIALS: u64 = 200_000;
    let mut spread = RetrySpread::default();
    let mut random = Random::new(1);
    let mut now_us = 1_000_000;
    let rounds = (0..ROUNDS).map(|_| {
        let start = std::time::Instant::now();
        for _ in 0..DENIALS {
            now_us += 10;
            let caller = random.below(262_144).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let denial = RetryDenial {
                counter: (caller >> 58).wrapping_mul(0xd6e8_feb8_6659_fd93),
                caller,
                wait: Micros::new(1_000),
                interval: Micros::new(1_000),
                extra_max: Micros::from_secs(60),
                draw: 1 << 31,
            };
            std::hint::black_box(spread.extra(Micros::new(now_us), &denial));
        }
        start.elapsed().as_secs_f64() * 1e9 / DENIALS as f64
    });
    crate::measurement::median(rounds)
}
