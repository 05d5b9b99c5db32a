//! A database of each kind for one test.

use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _};
use std::path::{Path, PathBuf};
use std::str::FromStr as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tollgate::control::database::{
    AdoptRequest, CommitRequest, Committed, Database, DatabaseError, NewVersion, RowKey, SeenNumbers,
};
use tollgate::control::model::{
    Author, ChangeBody, Digest, Grammar, LoggedChange, SetFile, SubjectValues, VersionMeta, VersionState,
};
use tollgate_test_kit::postgres::Postgres;

/// 15 Nov 2026, in milliseconds.
pub(crate) const START_MS: u64 = 1_794_782_045_000;

/// The storage of one test, removed when it is dropped.
pub(crate) struct Storage {
    kind: StorageKind,
    /// The clock of all databases opened on it.
    pub(crate) clock: Arc<AtomicU64>,
}

enum StorageKind {
    Sqlite(PathBuf),
    Postgres {
        url: String,
        _server: Option<Arc<Postgres>>,
    },
}

impl Storage {
    pub(crate) fn sqlite() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("tollgate-database-{}-{number}", std::process::id()));
        Self::of(StorageKind::Sqlite(folder))
    }

    pub(crate) fn postgres() -> Self {
        let server = Postgres::shared();
        let url = server.create_database();
        let _server = Some(server);
        Self::of(StorageKind::Postgres { url, _server })
    }

    /// A database of a server that is the caller's.
    pub(crate) fn postgres_at(url: String) -> Self {
        Self::of(StorageKind::Postgres { url, _server: None })
    }

    /// A file in this folder, which is the caller's.
    pub(crate) fn sqlite_in(folder: &Path) -> Self {
        Self::of(StorageKind::Sqlite(folder.join("data")))
    }

    /// One of each kind.
    pub(crate) fn both() -> [Self; 2] {
        [Self::sqlite(), Self::postgres()]
    }

    fn of(kind: StorageKind) -> Self {
        let clock = Arc::new(AtomicU64::new(START_MS));
        Self { kind, clock }
    }

    /// Opens it, as another process would.
    pub(crate) fn open(&self) -> Database {
        let clock = Arc::clone(&self.clock);
        let database = match &self.kind {
            StorageKind::Sqlite(folder) => Database::sqlite(folder.join("control.db")),
            StorageKind::Postgres { url, .. } => Database::postgres(url).unwrap(),
        };
        database.with_clock(move || clock.load(Ordering::Relaxed))
    }

    /// The file, if it is one.
    pub(crate) fn file(&self) -> Option<PathBuf> {
        match &self.kind {
            StorageKind::Sqlite(folder) => Some(folder.join("control.db")),
            StorageKind::Postgres { .. } => None,
        }
    }

    /// A connection past the database's own code.
    pub(crate) async fn raw(&self) -> RawConnection {
        match &self.kind {
            StorageKind::Sqlite(folder) => {
                let options = SqliteConnectOptions::new().filename(folder.join("control.db"));
                let options = options.synchronous(sqlx::sqlite::SqliteSynchronous::Off);
                RawConnection::Sqlite(options.connect().await.unwrap())
            }
            StorageKind::Postgres { url, .. } => {
                let options = PgConnectOptions::from_str(url).unwrap();
                RawConnection::Postgres(options.connect().await.unwrap())
            }
        }
    }

    /// Executes a statement past the database's own code.
    pub(crate) async fn execute(&self, sql: &str) {
        self.raw().await.execute(sql).await;
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        if let StorageKind::Sqlite(folder) = &self.kind {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

/// A connection past the database's own code.
pub(crate) enum RawConnection {
    Sqlite(sqlx::SqliteConnection),
    Postgres(sqlx::PgConnection),
}

impl RawConnection {
    pub(crate) async fn execute(&mut self, sql: &str) {
        let sql = AssertSqlSafe(sql.to_owned());
        match self {
            Self::Sqlite(connection) => drop(sqlx::query(sql).execute(connection).await.unwrap()),
            Self::Postgres(connection) => drop(sqlx::query(sql).execute(connection).await.unwrap()),
        }
    }
}

impl RawConnection {
    /// The number that a query returns.
    pub(crate) async fn number(&mut self, sql: &str) -> i64 {
        let sql = AssertSqlSafe(sql.to_owned());
        match self {
            Self::Sqlite(connection) => sqlx::query_scalar(sql).fetch_one(connection).await.unwrap(),
            Self::Postgres(connection) => sqlx::query_scalar(sql).fetch_one(connection).await.unwrap(),
        }
    }

    /// The text that a query returns.
    pub(crate) async fn text(&mut self, sql: &str) -> String {
        let sql = AssertSqlSafe(sql.to_owned());
        match self {
            Self::Sqlite(connection) => sqlx::query_scalar(sql).fetch_one(connection).await.unwrap(),
            Self::Postgres(connection) => sqlx::query_scalar(sql).fetch_one(connection).await.unwrap(),
        }
    }
}

/// Runs a test on both kinds of database.
pub(crate) fn on_both(test: impl AsyncFn(&Storage, Database)) {
    for storage in Storage::both() {
        run(async { test(&storage, storage.open()).await });
    }
}

/// Runs a test on a database with one row: `10/s` for `m_1`.
pub(crate) fn with_row(storage: &Storage, test: impl AsyncFnOnce(Database)) {
    run(async {
        let database = storage.open();
        write(&database, vec![row("m_1", "10/s")]).await;
        test(database).await;
    });
}

/// Runs a future on a runtime of its own.
pub(crate) fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(test)
}

pub(crate) fn author(actor: &str) -> Author {
    Author {
        actor: actor.to_owned(),
        via: "api".to_owned(),
        address: "127.0.0.1".to_owned(),
        request: "r-1".to_owned(),
        reason: format!("because {actor} says so"),
    }
}

pub(crate) fn subject(merchant: &str) -> SubjectValues {
    [("merchant".to_owned(), merchant.to_owned())].into()
}

pub(crate) fn key(merchant: &str) -> RowKey {
    RowKey {
        domain: "default".to_owned(),
        rule: "plan".to_owned(),
        subject: subject(merchant),
    }
}

/// A row of `default/plan`; without terms, its deletion.
pub(crate) fn row(merchant: &str, terms: impl Into<Option<&'static str>>) -> ChangeBody {
    ChangeBody::Row {
        domain: "default".to_owned(),
        rule: "plan".to_owned(),
        subject: subject(merchant),
        terms: terms.into().map(str::to_owned),
        note: String::new(),
        expires_at: 0,
    }
}

pub(crate) fn attribute(subject: &str, value: impl Into<Option<&'static str>>) -> ChangeBody {
    ChangeBody::Attribute {
        source: "merchant".to_owned(),
        subject: subject.to_owned(),
        name: "tier".to_owned(),
        value: value.into().map(str::to_owned),
    }
}

pub(crate) fn commit(changes: Vec<ChangeBody>) -> CommitRequest {
    CommitRequest {
        author: author("ada"),
        conditions: Vec::new(),
        changes,
        rules: Vec::new(),
        row_check: None,
        action: None,
    }
}

/// Commits changes that nothing is wrong with.
pub(crate) async fn write(database: &Database, changes: Vec<ChangeBody>) -> Committed {
    database.commit(commit(changes)).await.unwrap()
}

pub(crate) fn file(path: &str, text: &str) -> SetFile {
    SetFile {
        path: path.to_owned(),
        grammar: Grammar::Own,
        text: text.to_owned(),
    }
}

pub(crate) fn version(parent: u64, source: &str, files: Vec<SetFile>) -> NewVersion {
    NewVersion {
        parent,
        format: 3,
        state: VersionState::Prepared,
        source: source.to_owned(),
        files,
    }
}

/// Saves a version that nothing is wrong with.
pub(crate) async fn save(database: &Database, version: NewVersion) -> VersionMeta {
    database.save_version(version, &author("eve")).await.unwrap()
}

/// The numbers of the newest versions, newest first.
pub(crate) async fn version_numbers(database: &Database) -> Vec<u64> {
    let versions = database.versions(None, 10).await.unwrap();
    versions.iter().map(|meta| meta.number).collect()
}

pub(crate) fn adopt_request(seen: SeenNumbers) -> AdoptRequest {
    AdoptRequest {
        author: author("ada"),
        database_id: Database::new_id().unwrap(),
        replaces: None,
        seen,
    }
}

pub(crate) fn publish(meta: &VersionMeta) -> CommitRequest {
    commit(vec![ChangeBody::Publish {
        version: meta.number,
        digest: meta.digest,
    }])
}

/// The log and the audit log are whole, and the head is at their end.
pub(crate) async fn assert_whole(database: &Database, storage: &Storage) {
    let head = database.head().await.unwrap().unwrap();
    let mut changes = Vec::new();
    loop {
        let after = changes.last().map_or(0, |change: &LoggedChange| change.revision);
        let page = database.changes_since(after, 10_000).await.unwrap();
        if page.is_empty() {
            break;
        }
        changes.extend(page);
    }
    let end = changes
        .last()
        .map_or((0, Digest::default()), |change| (change.revision, change.chain));
    assert_eq!(end, (head.revision, head.chain));
    let report = database.verify_audit(None).await.unwrap();
    assert!(report.is_intact(), "{report:?}");
    let mut raw = storage.raw().await;
    let rows = raw.number("SELECT count(*) FROM override_row").await;
    let sql = "SELECT items FROM table_size WHERE name = 'override_row'";
    assert_eq!(raw.number(sql).await, rows);
    if storage.file().is_some() {
        assert_eq!(raw.text("PRAGMA integrity_check").await, "ok");
    }
}

/// The first success within some seconds.
pub(crate) async fn eventually<T, F: Future<Output = Result<T, DatabaseError>>>(call: impl Fn() -> F) -> T {
    let started = Instant::now();
    loop {
        match call().await {
            Ok(value) => return value,
            Err(error) => assert!(started.elapsed() < Duration::from_secs(30), "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
