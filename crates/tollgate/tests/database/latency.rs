//! The time of commits beside rows that exist, and of an import.
//!
//! A test run uses few rows and checks the results only. The measurement, whose bounds are printed beside it:
//!
//! ```sh
//! TOLLGATE_COMMIT_ROWS=100000 cargo test -p tollgate --test database latency -- --nocapture --test-threads=1
//! ```

use crate::fixture::{Storage, assert_whole, author, commit, row, run};
use std::time::{Duration, Instant};
use tollgate::control::database::{CommitRequest, Database, ItemCondition, ItemKey};
use tollgate::control::model::{ChangeBody, Precondition};
use tollgate_test_kit::postgres::{Durability, Postgres};

/// Rows of one request, as the admin API takes them.
const IMPORT: usize = 10_000;
const COMMITS: usize = 1_000;

/// The bounds of the control plane: at 100,000 rows, on an idle machine.
const P50_MAX: Duration = Duration::from_millis(15);
const P99_MAX: Duration = Duration::from_millis(50);
const IMPORT_MAX: Duration = Duration::from_secs(5);

#[test]
fn latency_of_commits_to_sqlite() {
    let storage = Storage::sqlite();
    measure(&storage, &storage.open());
}

#[test]
fn latency_of_commits_to_postgres() {
    let server = Postgres::start_with(Durability::Disk);
    let storage = Storage::postgres_at(server.create_database());
    measure(&storage, &storage.open());
}

fn measure(storage: &Storage, database: &Database) {
    let rows: usize = std::env::var("TOLLGATE_COMMIT_ROWS").map_or(1_000, |rows| rows.parse().unwrap());
    run(async {
        let merchants: Vec<String> = (0..rows).map(|number| format!("m_{number}")).collect();
        database.commit(commit(vec![row("first", "10/s")])).await.unwrap();
        let (started, cpu) = (Instant::now(), cpu_time());
        for merchants in merchants.chunks(IMPORT) {
            let changes = merchants.iter().map(|merchant| row(merchant, "10/s")).collect();
            database.commit(commit(changes)).await.unwrap();
        }
        let (import, import_cpu) = (started.elapsed(), cpu_time() - cpu);
        let commits = COMMITS.min(rows);
        let mut times = Vec::with_capacity(commits);
        let mut random = fastrand::Rng::with_seed(7);
        for number in 0..commits {
            let request = put(&merchants[random.usize(..merchants.len())], number);
            let started = Instant::now();
            database.commit(request).await.unwrap();
            times.push(started.elapsed());
        }
        times.sort_unstable();
        let at = |percent: usize| times[(times.len() * percent / 100).min(times.len() - 1)];
        println!(
            "{} with {rows} rows: one commit p50 {:?} (at most {P50_MAX:?}), p99 {:?} (at most {P99_MAX:?}), \
             import of {rows} {import:?} (at most {IMPORT_MAX:?} for 100000), of which this process used {import_cpu:?}",
            database.kind(),
            at(50),
            at(99),
        );
        assert_whole(database, storage).await;
    });
}

/// The CPU time of this process, which other work on the machine does not lengthen.
fn cpu_time() -> Duration {
    /// Of a Linux kernel for programs.
    const TICK: Duration = Duration::from_millis(10);
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u32 = [fields[11], fields[12]]
        .iter()
        .map(|field| field.parse::<u32>().unwrap())
        .sum();
    TICK * ticks
}

/// A change of one row that exists, as a request of the admin API has it.
fn put(merchant: &str, number: usize) -> CommitRequest {
    let mut change = row(merchant, "20/s");
    if let ChangeBody::Row { note, .. } = &mut change {
        *note = format!("change {number}");
    }
    let item = ItemKey::Row(crate::fixture::key(merchant));
    CommitRequest {
        author: author("ada"),
        conditions: vec![ItemCondition {
            item,
            precondition: Precondition::Any,
        }],
        changes: vec![change],
        rules: Vec::new(),
        row_check: None,
        action: None,
    }
}
