//! A database of each kind for one test.

use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _};
use std::path::PathBuf;
use std::str::FromStr as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use tollgate::control::database::{CommitRequest, Database, NewVersion, RowKey};
use tollgate::control::model::{Author, ChangeBody, Grammar, RowSubject, SetFile, VersionMeta, VersionState};
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
    Postgres { url: String, _server: Arc<Postgres> },
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
        Self::of(StorageKind::Postgres { url, _server: server })
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

/// Runs a test on both kinds of database.
pub(crate) fn on_both(test: impl AsyncFn(&Storage, Database)) {
    for storage in Storage::both() {
        run(async { test(&storage, storage.open()).await });
    }
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

pub(crate) fn subject(merchant: &str) -> RowSubject {
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
        action: None,
    }
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

pub(crate) fn publish(meta: &VersionMeta) -> CommitRequest {
    commit(vec![ChangeBody::Publish {
        version: meta.number,
        digest: meta.digest,
    }])
}
