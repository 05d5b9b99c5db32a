//! The tables, and the migrations that create them.
//!
//! One SQL text for both databases: every column is a `BIGINT` or a `TEXT` and never null; times are Unix milliseconds, digests
//! hexadecimal. A migration only adds, so that the program before it still reads what this one writes.

use super::connection::{Connection, parameters};
use super::error::{DatabaseError, DatabaseResult};
use crate::control::model::Digest;
use sqlx::AssertSqlSafe;

/// The migrations in order. The number of one is its position, from 1; they never change once released.
const MIGRATIONS: &[&[&str]] = &[TABLES, SIZES, SILENCES];

const TABLES: &[&str] = &[
    "CREATE TABLE head (
        one BIGINT NOT NULL PRIMARY KEY CHECK (one = 1), database_id TEXT NOT NULL, epoch BIGINT NOT NULL,
        revision BIGINT NOT NULL, live_version BIGINT NOT NULL, chain TEXT NOT NULL)",
    "CREATE TABLE blob (digest TEXT NOT NULL PRIMARY KEY, text TEXT NOT NULL)",
    // `revision`: of its last publish; 0: never.
    "CREATE TABLE version (
        number BIGINT NOT NULL PRIMARY KEY, parent BIGINT NOT NULL, digest TEXT NOT NULL, format BIGINT NOT NULL,
        state TEXT NOT NULL, actor TEXT NOT NULL, source TEXT NOT NULL, reason TEXT NOT NULL, created_at BIGINT NOT NULL,
        revision BIGINT NOT NULL)",
    "CREATE TABLE version_file (
        version BIGINT NOT NULL, path TEXT NOT NULL, grammar TEXT NOT NULL, blob TEXT NOT NULL, PRIMARY KEY (version, path))",
    "CREATE INDEX version_file_blob ON version_file (blob)",
    "CREATE TABLE rule_change (
        domain TEXT NOT NULL, rule TEXT NOT NULL, revision BIGINT NOT NULL, kind TEXT NOT NULL, path TEXT NOT NULL,
        line BIGINT NOT NULL, PRIMARY KEY (domain, rule, revision))",
    "CREATE TABLE override_row (
        domain TEXT NOT NULL, rule TEXT NOT NULL, subject TEXT NOT NULL, terms TEXT NOT NULL, note TEXT NOT NULL,
        expires_at BIGINT NOT NULL, revision BIGINT NOT NULL, actor TEXT NOT NULL, PRIMARY KEY (domain, rule, subject))",
    "CREATE INDEX override_row_expiry ON override_row (expires_at) WHERE expires_at > 0",
    "CREATE TABLE subject_attribute (
        source TEXT NOT NULL, subject TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, revision BIGINT NOT NULL,
        actor TEXT NOT NULL, PRIMARY KEY (source, subject, name))",
    "CREATE TABLE change (
        revision BIGINT NOT NULL PRIMARY KEY, kind TEXT NOT NULL, key TEXT NOT NULL, body TEXT NOT NULL, chain TEXT NOT NULL,
        at BIGINT NOT NULL)",
    "CREATE TABLE audit (
        seq BIGINT NOT NULL PRIMARY KEY, at BIGINT NOT NULL, actor TEXT NOT NULL, via TEXT NOT NULL, address TEXT NOT NULL,
        request TEXT NOT NULL, action TEXT NOT NULL, target TEXT NOT NULL, reason TEXT NOT NULL, before TEXT NOT NULL,
        after TEXT NOT NULL, revision BIGINT NOT NULL, prev TEXT NOT NULL, hash TEXT NOT NULL)",
    "CREATE INDEX audit_revision ON audit (revision) WHERE revision > 0",
    // The last entry that was removed: the chain begins after it.
    "CREATE TABLE audit_base (one BIGINT NOT NULL PRIMARY KEY CHECK (one = 1), seq BIGINT NOT NULL, hash TEXT NOT NULL)",
    "CREATE TABLE principal (
        id TEXT NOT NULL PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL UNIQUE, role TEXT NOT NULL, domains TEXT NOT NULL,
        secret TEXT NOT NULL, created_at BIGINT NOT NULL, created_by TEXT NOT NULL, expires_at BIGINT NOT NULL,
        seen_at BIGINT NOT NULL, disabled_at BIGINT NOT NULL)",
    "CREATE TABLE session (
        id_hash TEXT NOT NULL PRIMARY KEY, principal TEXT NOT NULL, created_at BIGINT NOT NULL, seen_at BIGINT NOT NULL,
        expires_at BIGINT NOT NULL, address TEXT NOT NULL)",
    "CREATE TABLE idempotency (
        principal TEXT NOT NULL, key_hash TEXT NOT NULL, request_digest TEXT NOT NULL, status BIGINT NOT NULL,
        body TEXT NOT NULL, at BIGINT NOT NULL, PRIMARY KEY (principal, key_hash))",
    "CREATE TABLE lease (name TEXT NOT NULL PRIMARY KEY, holder TEXT NOT NULL, until BIGINT NOT NULL)",
    "CREATE TABLE instance (
        id TEXT NOT NULL PRIMARY KEY, status TEXT NOT NULL, figures TEXT NOT NULL, vote TEXT NOT NULL,
        seen_at BIGINT NOT NULL)",
];

/// The numbers of rows and attributes, which are bounded: counting them at every write would take longer than the write.
const SIZES: &[&str] = &[
    "CREATE TABLE table_size (name TEXT NOT NULL PRIMARY KEY, items BIGINT NOT NULL)",
    "INSERT INTO table_size (name, items) SELECT 'override_row', count(*) FROM override_row",
    "INSERT INTO table_size (name, items) SELECT 'subject_attribute', count(*) FROM subject_attribute",
    "CREATE INDEX idempotency_at ON idempotency (at)",
];

/// Silences of alerts.
const SILENCES: &[&str] =
    &["CREATE TABLE silence (id TEXT NOT NULL PRIMARY KEY, body TEXT NOT NULL, until BIGINT NOT NULL)"];

/// The key of PostgreSQL's lock around migrations: `tollgate` in ASCII.
const MIGRATION_LOCK: u64 = 0x746f_6c6c_6761_7465;

/// True if the tables exist.
pub(super) async fn exists(connection: &mut Connection) -> DatabaseResult<bool> {
    let sql = if connection.is_postgres() {
        "SELECT c.relname::text FROM pg_catalog.pg_class c
         WHERE c.oid = to_regclass('migration') AND c.relkind = 'r'"
    } else {
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name = 'migration'"
    };
    Ok(connection.fetch_one(sql, &[]).await?.is_some())
}

/// Creates the tables that are missing, in a transaction of its own. A new database gets this id.
///
/// # Errors
/// [`DatabaseError::Newer`] for a database that a newer program has migrated.
pub(super) async fn migrate(mut connection: Connection, now: u64, id: &str) -> DatabaseResult<()> {
    if connection.is_postgres() {
        // Two programs that create the same database: one waits here, then finds it complete.
        connection
            .fetch("SELECT pg_advisory_xact_lock($1)::text", parameters![MIGRATION_LOCK])
            .await?;
    }
    if !exists(&mut connection).await? {
        connection
            .execute(
                "CREATE TABLE migration (number BIGINT NOT NULL PRIMARY KEY, at BIGINT NOT NULL)",
                &[],
            )
            .await?;
    }
    let done = connection
        .fetch_one("SELECT coalesce(max(number), 0) FROM migration", &[])
        .await?
        .map_or(Ok(0), |row| row.number(0))?;
    check_migration(done)?;
    if done == MIGRATIONS.len() as u64 {
        return Ok(());
    }
    for (number, statements) in (1_u64..).zip(MIGRATIONS) {
        if number <= done {
            continue;
        }
        for statement in *statements {
            connection
                .execute(AssertSqlSafe(dialect(&connection, statement)), &[])
                .await?;
        }
        connection
            .execute(
                "INSERT INTO migration (number, at) VALUES ($1, $2)",
                parameters![number, now],
            )
            .await?;
    }
    if done == 0 {
        connection
            .execute(
                "INSERT INTO head (one, database_id, epoch, revision, live_version, chain) VALUES (1, $1, 1, 0, 0, $2)",
                parameters![id, &Digest::default()],
            )
            .await?;
        connection
            .execute(
                "INSERT INTO audit_base (one, seq, hash) VALUES (1, 0, $1)",
                parameters![&Digest::default()],
            )
            .await?;
    }
    connection.commit().await
}

/// Refuses to write a database that a newer program has migrated to this number.
pub(super) fn check_migration(done: u64) -> DatabaseResult<()> {
    let known = MIGRATIONS.len() as u64;
    if done > known {
        return Err(DatabaseError::Newer(format!(
            "it is at migration {done}, and this version knows {known}; it is read-only here"
        )));
    }
    Ok(())
}

/// A statement with the order of bytes for texts, which is what SQLite has.
fn dialect(connection: &Connection, statement: &str) -> String {
    if connection.is_postgres() {
        statement.replace("TEXT NOT NULL", "TEXT COLLATE \"C\" NOT NULL")
    } else {
        statement.to_owned()
    }
}

/// A random id of 128 bits.
pub(super) fn random_id() -> DatabaseResult<String> {
    let mut bytes = [0; 16];
    rustls::crypto::ring::default_provider()
        .secure_random
        .fill(&mut bytes)
        .map_err(|_| DatabaseError::Unavailable("the system has no random numbers".to_owned()))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
