//! Override rows of a running fleet: what an edit and an import take through the admin API, and what they cost instances.
//!
//! ```text
//! cargo run --profile dist -p tollgate-bench -- control-rows
//! ```
//!
//! A control service over SQLite, then one over PostgreSQL, each with a shared store and one instance that follows it. All processes
//! share the cores of this machine, so other work on it lengthens every time.

mod client;
mod fleet;
mod relay;

use self::client::Client;
use self::fleet::Fleet;
use crate::measurement::median;
use crate::servers::process::build_product;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tollgate_core::testing::random::Random;
use tollgate_limiter::testing::servers::{Server, ServerKind};
use tollgate_test_kit::postgres::{Durability, Postgres};

/// Measures override rows through the admin API of a running fleet.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  cargo run --profile dist -p tollgate-bench -- control-rows --only sqlite")]
pub(crate) struct ServedArgs {
    /// The number of rows.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1_000..=1_000_000))]
    rows: u32,
    /// Edits whose times are measured, one after the other.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(100..=100_000))]
    puts: u32,
    /// Edits between two measurements of the resident memory.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    edits: u32,
    /// Edits per second beside checks.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    edits_per_second: u32,
    /// One database only.
    #[arg(long, value_enum)]
    only: Option<DatabaseKind>,
    /// Prints JSON instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum DatabaseKind {
    Sqlite,
    Postgres,
}

/// The bounds at 100,000 rows.
const IMPORT_S_MAX: f64 = 5.0;
const PUT_P50_MS_MAX: f64 = 15.0;
const PUT_P99_MS_MAX: f64 = 50.0;
const BYTES_MAX: f64 = 1_024.0;
const RESIDENT_RATIO_MAX: f64 = 1.02;
const CHECK_RATIO_MAX: f64 = 1.5;
/// The most rows of one request.
const IMPORT: u32 = 10_000;
/// Edits whose bytes are counted, and their interval: slower than an instance merges them.
const COUNTED_EDITS: u32 = 100;
const COUNTED_INTERVAL: Duration = Duration::from_millis(150);
/// Rounds of checks, each without edits and then with them.
const CHECK_ROUNDS: usize = 7;
const CHECK_TIME: Duration = Duration::from_secs(2);
const CHECK_INTERVAL: Duration = Duration::from_millis(2);
/// Connections of the edits between two measurements of memory.
const EDITORS: u32 = 4;

/// The figures of one database.
struct Figures {
    kind: DatabaseKind,
    import_s: f64,
    put_p50_ms: f64,
    put_p99_ms: f64,
    bytes_per_edit: f64,
    check_p99_us: f64,
    check_ratio: f64,
    /// Of the control service, and of the instance that follows.
    resident_ratios: [f64; 2],
}

pub(crate) fn run(args: &ServedArgs) -> ExitCode {
    crate::exit_code(measure_all(args))
}

fn measure_all(args: &ServedArgs) -> Result<bool, String> {
    let program = build_product()?;
    let mut all = Vec::new();
    for kind in [DatabaseKind::Sqlite, DatabaseKind::Postgres] {
        if args.only.is_none_or(|only| only == kind) {
            let postgres = (kind == DatabaseKind::Postgres).then(|| Postgres::start_with(Durability::Disk));
            let database = postgres
                .as_ref()
                .map_or("data_dir".to_owned(), Postgres::create_database);
            let store = Server::start(ServerKind::Redis70);
            let fleet = Fleet::start(&program, &database, &store)?;
            all.push(measure(args, kind, &fleet)?);
        }
    }
    if args.json {
        let figures: Vec<Value> = all.iter().map(Figures::as_json).collect();
        println!("{:#}", json!({ "rows": args.rows, "databases": figures }));
    } else {
        print!("{} rows of one rule.\n\n{}", args.rows, table(&all));
    }
    Ok(all.iter().all(Figures::is_within_bounds))
}

fn measure(args: &ServedArgs, kind: DatabaseKind, fleet: &Fleet) -> Result<Figures, String> {
    let mut client = Client::connect(fleet.admin)?;
    // The first change creates the database.
    put(&mut client, "first", 1)?;
    let import_s = import(&mut client, args.rows)?;
    fleet.settle()?;
    let mut random = Random::new(7);
    let mut merchant = || format!("m_{}", random.below(args.rows.into()));
    let mut times = Vec::new();
    for number in 0..args.puts {
        let merchant = merchant();
        let started = Instant::now();
        put(&mut client, &merchant, number)?;
        times.push(started.elapsed().as_secs_f64() * 1e3);
    }
    fleet.settle()?;
    let bytes_per_edit = bytes_per_edit(&mut client, fleet, &mut merchant)?;
    let (check_p99_us, check_ratio) = checks(args, fleet, &mut merchant)?;
    fleet.settle()?;
    let before = fleet.resident()?;
    edit_many(args, fleet.admin)?;
    fleet.settle()?;
    let after = fleet.resident()?;
    let [service, follower] = [0_usize, 1].map(|index| {
        let at = |resident: [u64; 2]| resident.get(index).copied().unwrap_or_default() as f64;
        at(after) / at(before)
    });
    Ok(Figures {
        kind,
        import_s,
        put_p50_ms: percentile(&mut times, 50),
        put_p99_ms: percentile(&mut times, 99),
        bytes_per_edit,
        check_p99_us,
        check_ratio,
        resident_ratios: [service, follower],
    })
}

/// Imports rows, as many per request as it takes. Returns the seconds of all requests.
fn import(client: &mut Client, rows: u32) -> Result<f64, String> {
    let mut seconds = 0.0;
    for first in (0..rows).step_by(IMPORT as usize) {
        let mut body = String::new();
        for number in first..rows.min(first + IMPORT) {
            let row = json!({ "subject": { "merchant": format!("m_{number}") }, "terms": format!("{}/min", 1_000 + number % 100) });
            let _ = writeln!(body, "{row}");
        }
        let started = Instant::now();
        let path = "/v1/overrides/import?rule=plan&reason=bench";
        let written = client.expect("POST", path, "content-type: application/x-ndjson\r\n", body.as_bytes())?;
        seconds += started.elapsed().as_secs_f64();
        let expected = rows.min(first + IMPORT) - first;
        if written.get("changed").and_then(Value::as_u64) != Some(expected.into()) {
            return Err(format!("an import of {expected} rows answered {written}"));
        }
    }
    Ok(seconds)
}

fn put(client: &mut Client, merchant: &str, number: u32) -> Result<(), String> {
    let body = json!({ "terms": format!("{}/min", 2_000 + number % 1_000), "note": format!("edit {number}"), "reason": "bench" });
    let path = format!("/v1/override?rule=plan&merchant={merchant}");
    let headers = "content-type: application/json\r\nif-match: *\r\n";
    // One that does not exist has no tag to match.
    let headers = match merchant {
        "first" => "content-type: application/json\r\nif-none-match: *\r\n",
        _ => headers,
    };
    client
        .expect("PUT", &path, headers, body.to_string().as_bytes())
        .map(drop)
}

/// The bytes that the instance receives for an edit, beyond those that it receives without any.
fn bytes_per_edit(client: &mut Client, fleet: &Fleet, merchant: &mut impl FnMut() -> String) -> Result<f64, String> {
    let span = COUNTED_INTERVAL * COUNTED_EDITS;
    let idle_before = fleet.relay.received();
    thread::sleep(span);
    let idle = fleet.relay.received() - idle_before;
    let before = fleet.relay.received();
    let started = Instant::now();
    for number in 0..COUNTED_EDITS {
        put(client, &merchant(), number)?;
        thread::sleep((COUNTED_INTERVAL * (number + 1)).saturating_sub(started.elapsed()));
    }
    fleet.settle()?;
    let received = (fleet.relay.received() - before) as f64;
    let idle = idle as f64 * started.elapsed().as_secs_f64() / span.as_secs_f64();
    Ok((received - idle) / f64::from(COUNTED_EDITS))
}

/// The 99th percentile of checks at the control service without edits, and its ratio with them.
fn checks(args: &ServedArgs, fleet: &Fleet, merchant: &mut impl FnMut() -> String) -> Result<(f64, f64), String> {
    let interval = Duration::from_secs(1) / args.edits_per_second;
    let (mut without, mut ratios) = (Vec::new(), Vec::new());
    let mut checker = Client::connect(fleet.http)?;
    for _ in 0..CHECK_ROUNDS {
        let without_edits = check_p99_us(&mut checker, merchant)?;
        let merchants: Vec<String> = (0..1_000).map(|_| merchant()).collect();
        let is_over = AtomicBool::new(false);
        let while_editing = thread::scope(|scope| {
            let editor = scope.spawn(|| {
                let mut client = Client::connect(fleet.admin)?;
                for (merchant, number) in merchants.iter().cycle().zip(0..) {
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                    put(&mut client, merchant, number)?;
                    thread::sleep(interval);
                }
                Ok::<(), String>(())
            });
            let measured = check_p99_us(&mut checker, merchant);
            is_over.store(true, Ordering::Relaxed);
            editor.join().map_err(|_| "the edits panicked".to_owned())??;
            measured
        })?;
        without.push(without_edits);
        ratios.push(while_editing / without_edits);
    }
    Ok((median(without), median(ratios)))
}

fn check_p99_us(client: &mut Client, merchant: &mut impl FnMut() -> String) -> Result<f64, String> {
    let started = Instant::now();
    let mut times = Vec::new();
    while started.elapsed() < CHECK_TIME {
        let body = json!({ "attributes": { "merchant": merchant() } }).to_string();
        let at = Instant::now();
        client.expect(
            "POST",
            "/v1/check",
            "content-type: application/json\r\n",
            body.as_bytes(),
        )?;
        times.push(at.elapsed().as_secs_f64() * 1e6);
        thread::sleep(CHECK_INTERVAL);
    }
    Ok(percentile(&mut times, 99))
}

/// Edits rows over several connections.
fn edit_many(args: &ServedArgs, admin: SocketAddr) -> Result<(), String> {
    thread::scope(|scope| {
        let editors: Vec<_> = (0..EDITORS)
            .map(|editor| {
                scope.spawn(move || {
                    let mut client = Client::connect(admin)?;
                    let mut random = Random::new(editor.into());
                    for number in 0..args.edits / EDITORS {
                        let merchant = format!("m_{}", random.below(args.rows.into()));
                        put(&mut client, &merchant, number)?;
                    }
                    Ok::<(), String>(())
                })
            })
            .collect();
        let mut ended = editors.into_iter().map(|editor| editor.join());
        ended.try_for_each(|ended| ended.map_err(|_| "the edits panicked".to_owned())?)
    })
}

fn percentile(times: &mut [f64], percent: usize) -> f64 {
    times.sort_by(f64::total_cmp);
    let index = (times.len() * percent / 100).min(times.len().saturating_sub(1));
    times.get(index).copied().unwrap_or(f64::NAN)
}

impl DatabaseKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "SQLite",
            Self::Postgres => "PostgreSQL",
        }
    }
}

impl Figures {
    /// Each with its bound.
    fn rows(&self) -> [(&'static str, f64, &'static str, f64); 7] {
        let [service, follower] = self.resident_ratios;
        [
            (
                "import of all rows, 10,000 per request",
                self.import_s,
                "s",
                IMPORT_S_MAX,
            ),
            ("one PUT, median", self.put_p50_ms, "ms", PUT_P50_MS_MAX),
            ("one PUT, p99", self.put_p99_ms, "ms", PUT_P99_MS_MAX),
            ("bytes to an instance per edit", self.bytes_per_edit, "B", BYTES_MAX),
            (
                "check p99 while editing, to that without",
                self.check_ratio,
                "x",
                CHECK_RATIO_MAX,
            ),
            (
                "RSS of the control service after the edits",
                service,
                "x",
                RESIDENT_RATIO_MAX,
            ),
            ("RSS of an instance after the edits", follower, "x", RESIDENT_RATIO_MAX),
        ]
    }

    fn is_within_bounds(&self) -> bool {
        self.rows().iter().all(|(_, measured, _, bound)| measured <= bound)
    }

    fn as_json(&self) -> Value {
        let [service, follower] = self.resident_ratios;
        json!({
            "database": self.kind.name(),
            "import_s": self.import_s, "import_s_max": IMPORT_S_MAX,
            "put_p50_ms": self.put_p50_ms, "put_p50_ms_max": PUT_P50_MS_MAX,
            "put_p99_ms": self.put_p99_ms, "put_p99_ms_max": PUT_P99_MS_MAX,
            "bytes_per_edit": self.bytes_per_edit, "bytes_per_edit_max": BYTES_MAX,
            "check_p99_us": self.check_p99_us, "check_ratio": self.check_ratio, "check_ratio_max": CHECK_RATIO_MAX,
            "resident_ratios": [service, follower], "resident_ratio_max": RESIDENT_RATIO_MAX,
        })
    }
}

fn table(all: &[Figures]) -> String {
    let mut text = String::from("| database | cost | measured | bound |\n|---|---|---:|---:|\n");
    for figures in all {
        for (name, measured, unit, bound) in figures.rows() {
            let digits = if unit == "x" { 3 } else { 1 };
            let missed = if measured <= bound { "" } else { ", missed" };
            let _ = writeln!(
                text,
                "| {} | {name} | {measured:.digits$} {unit} | {bound} {unit}{missed} |",
                figures.kind.name()
            );
        }
    }
    text
}
