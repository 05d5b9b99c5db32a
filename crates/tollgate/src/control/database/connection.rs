//! The two kinds of database behind one interface: a transaction that executes and fetches.
//!
//! Nothing is opened before the first call, and nothing is created before the first write. Parameters are `$1`, `$2`, …, which both
//! databases read; only lists of rows have another form for SQLite. Columns are `BIGINT` or `TEXT` and never null, so a row needs no other types.

use super::error::{DatabaseError, DatabaseResult};
use super::query::Placeholder;
use sqlx::pool::PoolOptions;
use sqlx::postgres::{PgConnectOptions, PgListener, PgRow};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteRow, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection as _, Pool, Postgres, Row as _, SqlSafeStr, Sqlite, Transaction};
use std::borrow::Cow;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::OnceCell;

/// The deadline of one call: its caller has two seconds.
pub(super) const DEADLINE: Duration = Duration::from_millis(1_800);
/// The time that a statement waits for a lock, so that its error arrives before the deadline.
const LOCK_WAIT: Duration = Duration::from_millis(1_300);
/// Connections to PostgreSQL, and connections that read SQLite.
const POOL_SIZE: u32 = 4;
/// The channel of notifications about changes.
pub(super) const CHANNEL: &str = "tollgate_control";

/// A database that is opened when it is needed.
pub(super) enum Backend {
    /// A file.
    Sqlite {
        path: PathBuf,
        writer: Mutex<Option<Pool<Sqlite>>>,
        readers: Mutex<Option<Pool<Sqlite>>>,
    },
    /// A server.
    Postgres {
        options: Box<PgConnectOptions>,
        pool: OnceCell<Pool<Postgres>>,
    },
}

/// A transaction. It is rolled back when it is dropped.
pub(super) enum Connection {
    Sqlite(Transaction<'static, Sqlite>),
    Postgres(Transaction<'static, Postgres>),
}

/// A row of a result.
pub(super) enum ResultRow {
    Sqlite(SqliteRow),
    Postgres(PgRow),
}

/// A parameter of a statement.
#[derive(Clone, Debug)]
pub(super) enum Parameter<'p> {
    Number(u64),
    Text(Cow<'p, str>),
}

impl Backend {
    pub(super) fn sqlite(path: PathBuf) -> Self {
        Self::Sqlite {
            path,
            writer: Mutex::default(),
            readers: Mutex::default(),
        }
    }

    pub(super) fn postgres(url: &str) -> DatabaseResult<Self> {
        // The error of the parser may quote the URL, and with it a password.
        let options = PgConnectOptions::from_str(url).map_err(|_| {
            DatabaseError::Invalid("invalid URL of a database; use postgres://user:password@host/database".to_owned())
        })?;
        let options = options
            .application_name("tollgate")
            .options([
                ("statement_timeout", DEADLINE.as_millis().to_string()),
                ("lock_timeout", LOCK_WAIT.as_millis().to_string()),
                (
                    "idle_in_transaction_session_timeout",
                    (2 * DEADLINE.as_millis()).to_string(),
                ),
                // Look-ups by key: reading the whole table for some hundred of them is slower, whatever its statistics say.
                ("random_page_cost", "1.1".to_owned()),
            ])
            .disable_statement_logging();
        Ok(Self::Postgres {
            options: Box::new(options),
            pool: OnceCell::new(),
        })
    }

    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Sqlite { .. } => "sqlite",
            Self::Postgres { .. } => "postgres",
        }
    }

    /// Starts a transaction that reads one consistent state. None: there is no file yet.
    pub(super) async fn read(&self) -> DatabaseResult<Option<Connection>> {
        match self {
            Self::Sqlite { path, readers, .. } => {
                // One system call; asynchronous file calls would each take a blocking thread.
                if !path.exists() {
                    return Ok(None);
                }
                let pool = opened(readers, || sqlite_pool(path, POOL_SIZE, false));
                Ok(Some(Connection::Sqlite(pool.begin().await?)))
            }
            Self::Postgres { .. } => {
                let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
                let pool = self.postgres_pool().await?;
                Ok(Some(Connection::Postgres(pool.begin_with(begin).await?)))
            }
        }
    }

    /// Starts a transaction that writes. SQLite admits one at a time; PostgreSQL's writers lock the head.
    pub(super) async fn write(&self) -> DatabaseResult<Connection> {
        match self {
            Self::Sqlite { path, writer, .. } => {
                if !path.exists() {
                    create_file(path)?;
                }
                let pool = opened(writer, || sqlite_pool(path, 1, true));
                // Deferred transactions that turn into writers fail at once if another one has written meanwhile.
                Ok(Connection::Sqlite(pool.begin_with("BEGIN IMMEDIATE").await?))
            }
            Self::Postgres { .. } => Ok(Connection::Postgres(self.postgres_pool().await?.begin().await?)),
        }
    }

    /// True if the file does not exist.
    pub(super) fn is_missing(&self) -> bool {
        matches!(self, Self::Sqlite { path, .. } if !path.exists())
    }

    /// Forgets a file that was removed: what is open still is the removed one.
    pub(super) fn forget_file(&self) {
        if let Self::Sqlite { writer, readers, .. } = self {
            for pool in [writer, readers] {
                // Its connections are closed when the last transaction ends.
                drop(pool.lock().unwrap_or_else(PoisonError::into_inner).take());
            }
        }
    }

    /// Closes all connections to a file, and waits for it: a transaction in progress ends first.
    #[cfg(test)]
    pub(super) async fn close_file(&self) {
        if let Self::Sqlite { writer, readers, .. } = self {
            for pool in [writer, readers] {
                let pool = pool.lock().unwrap_or_else(PoisonError::into_inner).take();
                if let Some(pool) = pool {
                    pool.close().await;
                }
            }
        }
    }

    /// Notifies the other instances, where there are any. In a statement of its own: inside the transaction it would take a lock
    /// that serialises all commits of the server.
    pub(super) async fn notify(&self, revision: u64) -> DatabaseResult<()> {
        if let Self::Postgres { .. } = self {
            let pool = self.postgres_pool().await?;
            sqlx::query("SELECT pg_notify($1, $2)")
                .bind(CHANNEL)
                .bind(revision.to_string())
                .execute(pool)
                .await?;
        }
        Ok(())
    }

    /// A connection that receives notifications; none for a database without them.
    pub(super) async fn listener(&self) -> DatabaseResult<Option<PgListener>> {
        let Self::Postgres { options, .. } = self else {
            return Ok(None);
        };
        // A pool of its own: a listener keeps its connection.
        let pool = PoolOptions::<Postgres>::new()
            .max_connections(1)
            .acquire_timeout(DEADLINE)
            .idle_timeout(None)
            .max_lifetime(None)
            .connect_lazy_with(options.as_ref().clone());
        let mut listener = PgListener::connect_with(&pool).await?;
        listener.listen(CHANNEL).await?;
        Ok(Some(listener))
    }

    async fn postgres_pool(&self) -> DatabaseResult<&Pool<Postgres>> {
        let Self::Postgres { options, pool } = self else {
            return Err(DatabaseError::Invalid("this database is a file".to_owned()));
        };
        Ok(pool
            .get_or_init(async || {
                PoolOptions::<Postgres>::new()
                    .max_connections(POOL_SIZE)
                    .acquire_timeout(DEADLINE)
                    // A server that vanished without a word must not keep the connections of the pool.
                    .after_release(|connection, _| {
                        Box::pin(async move {
                            let answer = tokio::time::timeout(DEADLINE, connection.ping()).await;
                            answer.unwrap_or(Err(sqlx::Error::PoolTimedOut)).map(|()| true)
                        })
                    })
                    .connect_lazy_with(options.as_ref().clone())
            })
            .await)
    }
}

/// The pool, opened if it is not.
fn opened(pool: &Mutex<Option<Pool<Sqlite>>>, open: impl FnOnce() -> Pool<Sqlite>) -> Pool<Sqlite> {
    let mut pool = pool.lock().unwrap_or_else(PoisonError::into_inner);
    pool.get_or_insert_with(open).clone()
}

/// Creates a file that only its owner reads: it has the hashes of secrets. Its log and index get the same mode.
fn create_file(path: &Path) -> DatabaseResult<()> {
    let created = path
        .parent()
        .map_or(Ok(()), std::fs::create_dir_all)
        .and_then(|()| OpenOptions::new().write(true).create_new(true).mode(0o600).open(path));
    match created {
        Ok(_) => Ok(()),
        // By another process, meanwhile.
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::StorageFull => Err(DatabaseError::Full),
        Err(error) => Err(DatabaseError::Unavailable(format!("{}: {error}", path.display()))),
    }
}

fn sqlite_pool(path: &Path, connections: u32, writes: bool) -> Pool<Sqlite> {
    let options = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(writes)
        .busy_timeout(LOCK_WAIT)
        .synchronous(SqliteSynchronous::Full)
        .disable_statement_logging();
    let options = if writes {
        options.journal_mode(SqliteJournalMode::Wal)
    } else {
        // PostgreSQL's `LIKE` distinguishes case.
        options.pragma("query_only", "ON").pragma("case_sensitive_like", "ON")
    };
    PoolOptions::<Sqlite>::new()
        .max_connections(connections)
        .acquire_timeout(DEADLINE)
        .idle_timeout(None)
        .max_lifetime(None)
        // A connection is a thread of this process: it does not get lost.
        .test_before_acquire(false)
        .after_release(|connection, _| {
            Box::pin(async move {
                // The rollback before it is done then.
                connection.ping().await?;
                // A full disk ends the transaction itself: the rollback fails, and the connection would never begin another one.
                Ok(!connection.is_in_transaction())
            })
        })
        .connect_lazy_with(options)
}

impl Connection {
    pub(super) const fn is_postgres(&self) -> bool {
        matches!(self, Self::Postgres(_))
    }

    /// The form of parameters in lists of rows.
    pub(super) const fn placeholder(&self) -> Placeholder {
        match self {
            Self::Sqlite(_) => Placeholder::InOrder,
            Self::Postgres(_) => Placeholder::Numbered,
        }
    }

    /// Lets the statements of this transaction take up to the long deadline.
    pub(super) async fn allow_long(&mut self) -> DatabaseResult<()> {
        if self.is_postgres() {
            self.execute("SET LOCAL statement_timeout = '30s'", &[]).await?;
        }
        Ok(())
    }

    /// Executes a statement and returns the number of rows it changed.
    pub(super) async fn execute(&mut self, sql: impl SqlSafeStr, parameters: &[Parameter<'_>]) -> DatabaseResult<u64> {
        Ok(match self {
            Self::Sqlite(transaction) => bind(sqlx::query(sql), parameters)?
                .execute(&mut **transaction)
                .await?
                .rows_affected(),
            Self::Postgres(transaction) => bind(sqlx::query(sql), parameters)?
                .execute(&mut **transaction)
                .await?
                .rows_affected(),
        })
    }

    /// Returns all rows of a query. Its text has a `LIMIT`, or it is a snapshot.
    pub(super) async fn fetch(
        &mut self,
        sql: impl SqlSafeStr,
        parameters: &[Parameter<'_>],
    ) -> DatabaseResult<Vec<ResultRow>> {
        Ok(match self {
            Self::Sqlite(transaction) => bind(sqlx::query(sql), parameters)?
                .fetch_all(&mut **transaction)
                .await?
                .into_iter()
                .map(ResultRow::Sqlite)
                .collect(),
            Self::Postgres(transaction) => bind(sqlx::query(sql), parameters)?
                .fetch_all(&mut **transaction)
                .await?
                .into_iter()
                .map(ResultRow::Postgres)
                .collect(),
        })
    }

    /// The first row of a query.
    pub(super) async fn fetch_one(
        &mut self,
        sql: impl SqlSafeStr,
        parameters: &[Parameter<'_>],
    ) -> DatabaseResult<Option<ResultRow>> {
        Ok(self.fetch(sql, parameters).await?.into_iter().next())
    }

    pub(super) async fn commit(self) -> DatabaseResult<()> {
        match self {
            Self::Sqlite(transaction) => transaction.commit().await?,
            Self::Postgres(transaction) => transaction.commit().await?,
        }
        Ok(())
    }
}

impl ResultRow {
    /// The text in a column.
    pub(super) fn text(&self, column: usize) -> DatabaseResult<String> {
        match self {
            Self::Sqlite(row) => row.try_get(column),
            Self::Postgres(row) => row.try_get(column),
        }
        .map_err(|error| DatabaseError::Corrupt(error.to_string()))
    }

    /// The number in a column.
    pub(super) fn number(&self, column: usize) -> DatabaseResult<u64> {
        let number: i64 = match self {
            Self::Sqlite(row) => row.try_get(column),
            Self::Postgres(row) => row.try_get(column),
        }
        .map_err(|error| DatabaseError::Corrupt(error.to_string()))?;
        u64::try_from(number).map_err(|_| DatabaseError::Corrupt(format!("{number} is negative")))
    }

    /// The value of a text column that `parse` reads.
    pub(super) fn parsed<T>(&self, column: usize, parse: impl FnOnce(&str) -> Option<T>) -> DatabaseResult<T> {
        let text = self.text(column)?;
        parse(&text).ok_or_else(|| DatabaseError::Corrupt(format!("unexpected value `{}`", text.escape_debug())))
    }
}

impl From<u64> for Parameter<'_> {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl<'p> From<&'p str> for Parameter<'p> {
    fn from(text: &'p str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Parameter<'_> {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl<'p> From<&'p String> for Parameter<'p> {
    fn from(text: &'p String) -> Self {
        Self::Text(text.into())
    }
}

impl From<&crate::control::model::Digest> for Parameter<'_> {
    fn from(digest: &crate::control::model::Digest) -> Self {
        Self::Text(digest.to_string().into())
    }
}

/// A query with its parameters.
fn bind<'q, DB>(
    query: sqlx::query::Query<'q, DB, DB::Arguments>,
    parameters: &[Parameter<'_>],
) -> DatabaseResult<sqlx::query::Query<'q, DB, DB::Arguments>>
where
    DB: sqlx::Database,
    i64: for<'e> sqlx::Encode<'e, DB> + sqlx::Type<DB>,
    for<'t> &'t str: sqlx::Encode<'t, DB> + sqlx::Type<DB>,
{
    parameters.iter().try_fold(query, |query, parameter| {
        Ok(match parameter {
            Parameter::Number(number) => query.bind(
                i64::try_from(*number)
                    .map_err(|_| DatabaseError::Invalid(format!("{number} is too large; use less than 2^63")))?,
            ),
            // PostgreSQL has no such character in texts, and both must store the same.
            Parameter::Text(text) if text.contains('\0') => {
                return Err(DatabaseError::Invalid(
                    "a text contains the character U+0000; remove it".to_owned(),
                ));
            }
            Parameter::Text(text) => query.bind(&**text),
        })
    })
}

/// The parameters of a statement.
macro_rules! parameters {
    ($($value:expr),* $(,)?) => {
        &[$($crate::control::database::connection::Parameter::from($value)),*]
    };
}
pub(super) use parameters;
