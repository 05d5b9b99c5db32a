//! The truth of the control plane: versions, rows, attributes, changes, the audit log and access, in SQLite or PostgreSQL.
//!
//! One type for both. Everything is opened when it is needed and created at the first write; until then reads answer that there is
//! nothing. All writes of a process go through one bounded queue and are committed together (`writer`); every one that changes
//! rules gets a revision, and every one that a person can cause an audit entry, in the same transaction. Each call ends within its
//! deadline. This module knows no wire and no rules: it stores what it is given.

mod access;
mod attributes;
mod audit;
mod changes;
mod connection;
mod error;
mod fleet;
mod query;
mod requests;
mod retention;
mod rows;
mod schema;
mod versions;
mod writer;

pub use error::{DatabaseError, DatabaseResult, StaleItem};
pub use fleet::StoredSilence;
pub use requests::{
    AdoptRequest, AttributeFilter, AttributeKey, AuditFilter, AuditProblem, AuditRecord, AuditReport, CommitRequest,
    Committed, DatabaseSnapshot, IdempotencyKey, InstanceReport, ItemCondition, ItemKey, NewVersion, Retention,
    RowCheck, RowFilter, RowJudge, RowKey, RuleChange, RuleHistoryEntry, SeenNumbers, StoredResponse,
};
pub(super) use rows::subject_text;
pub use versions::MAX_SET_BYTES;

use self::connection::{Backend, Connection, DEADLINE, Parameter, ResultRow};
use self::query::Select;
use self::query::record::Record;
use sqlx::{AssertSqlSafe, SqlSafeStr};
use std::cell::Cell;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};
use tollgate_limiter::clock::Clock;

/// The database of the control plane. Cheap to clone.
///
/// It is used inside a tokio runtime. The runtime of the first write runs the writer, and that of the first call to PostgreSQL its
/// connections: use one that lasts.
#[derive(Clone)]
pub struct Database {
    shared: Arc<Shared>,
    /// The queue of the writer, which ends when the last clone is dropped. None: it was not needed yet.
    queue: Arc<Mutex<Option<mpsc::Sender<writer::Job>>>>,
}

/// The part of a database that its tasks use.
struct Shared {
    backend: Backend,
    /// Unix time in milliseconds.
    clock: Box<dyn Fn() -> u64 + Send + Sync>,
    /// True once the tables were seen; they are never removed.
    has_schema: AtomicBool,
    /// True once this process has migrated them.
    is_migrated: AtomicBool,
    hints: watch::Sender<u64>,
    is_listening: AtomicBool,
    /// The id of a database that is created; none: a random one.
    proposed_id: Mutex<Option<String>>,
}

/// The deadline of reads and writes of large amounts.
const LONG_DEADLINE: Duration = Duration::from_secs(30);

tokio::task_local! {
    /// The time that the calls of the request of this task may still wait.
    static TIME_LEFT: Cell<Duration>;
}

/// Runs a request whose calls to the database wait together no longer than one call may.
///
/// Only waits for the database count: a publish may take long to compile and to be prepared, and its commit then still has its time.
/// The time left accompanies the task, because every call below may be the one that finds the database away.
pub async fn with_shared_deadline<T>(request: impl Future<Output = T>) -> T {
    TIME_LEFT.scope(Cell::new(DEADLINE), request).await
}

/// The time that calls of this task may still wait.
fn time_left() -> Duration {
    TIME_LEFT.try_with(Cell::get).unwrap_or(DEADLINE)
}

/// A wait that is counted when it ends, even if it is abandoned.
struct CountedWait(Instant);

impl Drop for CountedWait {
    fn drop(&mut self) {
        // Tasks without a request have all their time for every call.
        let _ = TIME_LEFT.try_with(|left| left.set(left.get().saturating_sub(self.0.elapsed())));
    }
}

impl Database {
    /// A file, which need not exist.
    pub fn sqlite(path: impl Into<PathBuf>) -> Self {
        Self::of(Backend::sqlite(path.into()))
    }

    /// A server. Nothing is connected yet.
    ///
    /// # Errors
    /// [`DatabaseError::Invalid`] for a URL that cannot be read.
    pub fn postgres(url: &str) -> DatabaseResult<Self> {
        Ok(Self::of(Backend::postgres(url)?))
    }

    /// Replaces the clock, which returns Unix time in milliseconds. For tests.
    ///
    /// # Panics
    /// If the database was cloned or used.
    #[must_use]
    pub fn with_clock(mut self, clock: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        let shared = Arc::get_mut(&mut self.shared).expect("a database that was not cloned yet");
        shared.clock = Box::new(clock);
        self
    }

    /// The kind: `sqlite` or `postgres`.
    pub fn kind(&self) -> &'static str {
        self.shared.backend.name()
    }

    /// Sets the id that the database gets when it is created, from [`Database::new_id`]. One that exists keeps its own.
    pub fn propose_id(&self, id: String) {
        *self.shared.proposed_id() = Some(id);
    }

    /// Closes the connections to a file, after all other clones were dropped, and returns when it is open nowhere.
    #[cfg(test)]
    pub(super) async fn close(self) {
        let Self { shared, queue } = self;
        // The writer ends with its queue.
        drop(queue);
        while Arc::strong_count(&shared) > 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        shared.backend.close_file().await;
    }

    fn of(backend: Backend) -> Self {
        Self {
            shared: Arc::new(Shared {
                backend,
                clock: Box::new(now_ms),
                has_schema: AtomicBool::new(false),
                is_migrated: AtomicBool::new(false),
                hints: watch::Sender::new(0),
                is_listening: AtomicBool::new(false),
                proposed_id: Mutex::default(),
            }),
            queue: Arc::default(),
        }
    }

    /// A transaction that reads; none: nothing has been written yet.
    async fn reader(&self) -> DatabaseResult<Option<Connection>> {
        let Some(mut connection) = self.shared.backend.read().await? else {
            return Ok(None);
        };
        if !self.shared.has_schema.load(Ordering::Relaxed) {
            if !schema::exists(&mut connection).await? {
                return Ok(None);
            }
            self.shared.has_schema.store(true, Ordering::Relaxed);
        }
        Ok(Some(connection))
    }

    /// True if nothing has been written yet.
    async fn is_empty(&self) -> DatabaseResult<bool> {
        if self.shared.has_schema.load(Ordering::Relaxed) {
            return Ok(false);
        }
        Ok(within_deadline(self.reader()).await?.is_none())
    }

    /// The records that a query selects; none where nothing has been written yet.
    async fn records<R: Record>(&self, (sql, parameters): (String, Vec<Parameter<'_>>)) -> DatabaseResult<Vec<R>> {
        self.list(AssertSqlSafe(sql), &parameters, R::read).await
    }

    /// The first record under a condition that ends before its value, in this order.
    async fn record_where<'p, R: Record>(
        &self,
        condition: &'static str,
        value: impl Into<Parameter<'p>>,
        order: &'static str,
    ) -> DatabaseResult<Option<R>> {
        let mut select = Select::records::<R>();
        select.and(condition, value);
        Ok(self.records(select.order_by(order, 1)).await?.pop())
    }

    /// The rows of one query; none where nothing has been written yet.
    async fn list<T>(
        &self,
        sql: impl SqlSafeStr,
        parameters: &[Parameter<'_>],
        decode: impl Fn(&ResultRow) -> DatabaseResult<T>,
    ) -> DatabaseResult<Vec<T>> {
        let found = within_deadline(async {
            match self.reader().await? {
                Some(mut connection) => connection.fetch(sql, parameters).await,
                None => Ok(Vec::new()),
            }
        })
        .await?;
        found.iter().map(decode).collect()
    }
}

impl Shared {
    fn proposed_id(&self) -> MutexGuard<'_, Option<String>> {
        self.proposed_id.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes those who listen.
    fn hint(&self) {
        self.hints.send_modify(|count| *count = count.wrapping_add(1));
    }
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without its URL, which may have a password.
        f.debug_struct("Database")
            .field("kind", &self.kind())
            .finish_non_exhaustive()
    }
}

/// Unix time in milliseconds, by the wall clock: what is stored is compared with the clocks of other machines and with dates.
pub fn now_ms() -> u64 {
    Clock::wall().now().as_micros() / 1_000
}

/// The result of a call that has the time left of its request.
async fn within_deadline<T>(call: impl Future<Output = DatabaseResult<T>>) -> DatabaseResult<T> {
    let left = time_left();
    if left.is_zero() {
        return Err(no_answer());
    }
    let _wait = CountedWait(Instant::now());
    within(left, call).await
}

/// The result of a call, or its timeout.
async fn within<T>(limit: Duration, call: impl Future<Output = DatabaseResult<T>>) -> DatabaseResult<T> {
    timeout(limit, call).await.unwrap_or_else(|_| Err(no_answer()))
}

fn no_answer() -> DatabaseError {
    DatabaseError::Unavailable("no answer within the deadline".to_owned())
}
