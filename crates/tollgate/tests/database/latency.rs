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
    #[expect(
        clippy::disallowed_methods,
        reason = "the size of a measurement; tests have no settings"
    )]
    let rows: usize = std::env::var("TOLLGATE_COMMIT_ROWS").map_or(1_000, |rows| rows.parse().unwrap());
    run(async {
        let merchants: Vec<String> = (0..rows).map(|number| format!("m_{number}")).collect();
        database.commit(commit(vec![row("first", "10/s")])).await.unwrap();
        let started = Instant::now();
        for merchants in merchants.chunks(IMPORT) {
            let changes = merchants.iter().map(|merchant| row(merchant, "10/s")).collect();
            database.commit(commit(changes)).await.unwrap();
        }
        let import = started.elapsed();
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
             import of {rows} {import:?} (at most {IMPORT_MAX:?} for 100000)",
            database.kind(),
            at(50),
            at(99),
        );
        assert_whole(database, storage).await;
    });
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
        action: None,
    }
}
