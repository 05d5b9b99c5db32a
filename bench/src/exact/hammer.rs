//! A process that sends requests for one key at full speed, and the code that starts several of them.

use crate::redis::now_us;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tollgate_core::{Cost, Limit, LimitError};
use tollgate_limiter::limits::{FixedWindow, Gcra, IntoLimit, SlidingLog, TokenBucket};
use tollgate_limiter::store::Source;
use tollgate_limiter::store::redis::Redis;
use tollgate_limiter::{LimitCheck, Limiter};

/// The arguments of one process.
#[derive(clap::Args)]
pub(crate) struct Args {
    url: String,
    algorithm: String,
    per_second: u64,
    callers: u64,
    from_us: u64,
    until_us: u64,
}

/// Algorithm, limit, callers and time span, the same for all processes.
pub(crate) struct Plan {
    pub(crate) algorithm: &'static str,
    pub(crate) per_second: u64,
    callers: u64,
    pub(crate) from_us: u64,
    until_us: u64,
}

/// The observations of all processes.
#[derive(Default)]
pub(crate) struct HammerResult {
    /// The admissions, by the clock of the store.
    pub(crate) admitted: Vec<u64>,
    /// The latest store time seen.
    pub(crate) last: u64,
    /// Requests, and those that the store answered.
    pub(crate) sent: u64,
    pub(crate) shared: u64,
}

pub(crate) const ALGORITHMS: [&str; 4] = ["token_bucket", "gcra", "fixed_window", "sliding_log"];

const TIMEOUT: Duration = Duration::from_secs(5);

impl Plan {
    /// Starts on a whole second, late enough for all processes to be ready.
    pub(crate) fn soon(algorithm: &'static str, per_second: u64, callers: u64, length_us: u64) -> Self {
        let from_us = (now_us() / 1_000_000 + 2) * 1_000_000;
        Self {
            algorithm,
            per_second,
            callers,
            from_us,
            until_us: from_us + length_us,
        }
    }

    pub(crate) fn start(&self, url: &str, processes: usize) -> Result<Vec<Child>, String> {
        let own = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
        let start = |_| {
            let mut command = Command::new(&own);
            command.args(["hammer", url, self.algorithm]);
            for number in [self.per_second, self.callers, self.from_us, self.until_us] {
                command.arg(number.to_string());
            }
            let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
            child.map_err(|error| format!("cannot start {command:?}: {error}"))
        };
        (0..processes).map(start).collect()
    }

    /// Waits for the processes and merges their observations.
    pub(crate) fn finish(&self, children: Vec<Child>) -> Result<HammerResult, String> {
        let mut all = HammerResult::default();
        for child in children {
            let output = child.wait_with_output().map_err(|error| error.to_string())?;
            if !output.status.success() {
                return Err(format!("a process ended with {}", output.status));
            }
            for line in String::from_utf8_lossy(&output.stdout).lines() {
                all.read(line).ok_or_else(|| format!("a process printed: {line}"))?;
            }
        }
        all.admitted.sort_unstable();
        Ok(all)
    }
}

impl HammerResult {
    fn read(&mut self, line: &str) -> Option<()> {
        let (word, rest) = line.split_once(' ')?;
        let number: u64 = rest.parse().ok()?;
        match word {
            "admitted" => self.admitted.push(number),
            "last" => self.last = self.last.max(number),
            "asked" => self.sent += number,
            "shared" => self.shared += number,
            _ => return None,
        }
        Some(())
    }

    fn print(&self) {
        for now in &self.admitted {
            println!("admitted {now}");
        }
        println!("last {}\nasked {}\nshared {}", self.last, self.sent, self.shared);
    }
}

pub(crate) fn run(args: &Args) -> ExitCode {
    crate::exit_code(crate::block_on(hammer(args)).map(|seen| {
        seen.print();
        true
    }))
}

async fn hammer(args: &Args) -> Result<HammerResult, String> {
    let options = Redis::options(&args.url).map_err(|error| error.to_string())?;
    let limiter = Limiter::new(options.deadline(TIMEOUT).open());
    limiter.store().diagnose().await?;
    let limit = limit(&args.algorithm, args.per_second).map_err(|error| error.to_string())?;
    // Every run has its own counter.
    let rule = limiter.limit(&format!("hot key {}", args.from_us), limit);
    let rule = Arc::new(rule.map_err(|error| error.to_string())?);
    tokio::time::sleep(Duration::from_micros(args.from_us.saturating_sub(now_us()))).await;
    let mut tasks = JoinSet::new();
    for _ in 0..args.callers {
        let (limiter, rule, until_us) = (Limiter::clone(&limiter), Arc::clone(&rule), args.until_us);
        tasks.spawn(async move {
            let mut seen = HammerResult::default();
            while now_us() < until_us {
                let ask = LimitCheck {
                    limit: &rule,
                    subject: b"hot",
                    cost: Cost::ONE,
                };
                let settled = limiter.settle(&[ask]).await;
                let outcome = settled.outcomes.into_iter().next();
                let outcome = outcome.ok_or("a request was not answered")?;
                let outcome = outcome.map_err(|error| format!("a request failed: {error}"))?;
                seen.sent += 1;
                if outcome.source == Source::Shared {
                    seen.shared += 1;
                    seen.last = seen.last.max(settled.now.as_micros());
                }
                if settled.allowed {
                    seen.admitted.push(settled.now.as_micros());
                }
                // A denial from the near cache never waits; yield to the other tasks.
                tokio::task::yield_now().await;
            }
            Ok::<_, String>(seen)
        });
    }
    let mut all = HammerResult::default();
    while let Some(seen) = tasks.join_next().await {
        let seen = seen.map_err(|error| error.to_string())??;
        all.admitted.extend(seen.admitted);
        all.last = all.last.max(seen.last);
        all.sent += seen.sent;
        all.shared += seen.shared;
    }
    Ok(all)
}

fn limit(algorithm: &str, per_second: u64) -> Result<Limit, LimitError> {
    match algorithm {
        "gcra" => Gcra::per_second(per_second).burst(per_second).into_limit(),
        "fixed_window" => FixedWindow::per_second(per_second).into_limit(),
        "sliding_log" => SlidingLog::per_second(per_second).into_limit(),
        _ => TokenBucket::per_second(per_second).burst(per_second).into_limit(),
    }
}
