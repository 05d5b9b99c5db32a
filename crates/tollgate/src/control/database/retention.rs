//! The removal of what is not kept for ever. Each call removes a bounded number of rows, so that no transaction gets long.

use super::connection::{Connection, parameters};
use super::error::DatabaseResult;
use super::requests::Retention;
use super::writer::WriteRequest;
use super::writer::ledger::Ledger;
use super::{Database, access, fleet};

/// The age of changes in the log.
const CHANGES_MS: u64 = 7 * DAY_MS;
/// Changes that are kept whatever their age.
const CHANGES_KEPT: u64 = 100_000;
/// The age of reports of instances.
const INSTANCES_MS: u64 = DAY_MS;
/// Rows that one call removes from one table.
const ROWS_PER_CALL: u64 = 5_000;
/// Versions that one call removes.
const VERSIONS_PER_CALL: u64 = 20;
/// The most versions that can be kept: the column of a limit holds no more.
const VERSIONS_MAX: u64 = 1 << 60;
const DAY_MS: u64 = 86_400_000;

impl Database {
    /// Removes what has exceeded its retention: changes, audit entries, versions, responses, sessions, reports of instances. Returns
    /// true if there is more to remove: call it again. Before the first write it does nothing.
    ///
    /// # Errors
    /// An unavailable or full database.
    pub async fn prune(&self, retention: Retention) -> DatabaseResult<bool> {
        if self.is_empty().await? {
            return Ok(false);
        }
        Ok(self.write(WriteRequest::Prune(retention)).await?.count()? > 0)
    }
}

pub(super) async fn prune(ledger: &mut Ledger, retention: Retention) -> DatabaseResult<bool> {
    let now = ledger.now;
    let reports_now = fleet::clock_of(&mut ledger.connection, now).await?;
    let head = ledger.head().await?.clone();
    let mut is_more = prune_changes(ledger, head.revision).await?;
    is_more |= prune_audit(ledger, now.saturating_sub(retention.audit_ms)).await?;
    is_more |= prune_versions(&mut ledger.connection, head.live_version, retention.versions).await?;
    for (sql, oldest) in [
        (OLD_RESPONSES, now.saturating_sub(access::KEPT_MS)),
        (OLD_SESSIONS, now),
        (OLD_INSTANCES, reports_now.saturating_sub(INSTANCES_MS)),
    ] {
        let removed = ledger
            .connection
            .execute(sql, parameters![oldest, ROWS_PER_CALL])
            .await?;
        is_more |= removed == ROWS_PER_CALL;
    }
    Ok(is_more)
}

const OLD_RESPONSES: &str = "DELETE FROM idempotency WHERE (principal, key_hash) IN
    (SELECT principal, key_hash FROM idempotency WHERE at < $1 LIMIT $2)";
const OLD_SESSIONS: &str =
    "DELETE FROM session WHERE id_hash IN (SELECT id_hash FROM session WHERE expires_at <= $1 LIMIT $2)";
const OLD_INSTANCES: &str = "DELETE FROM instance WHERE id IN (SELECT id FROM instance WHERE seen_at < $1 LIMIT $2)";

/// Removes a beginning of the log: it never has a gap.
async fn prune_changes(ledger: &mut Ledger, revision: u64) -> DatabaseResult<bool> {
    let oldest = ledger.now.saturating_sub(CHANGES_MS);
    let sql = "SELECT revision, at FROM change WHERE revision <= $1 ORDER BY revision LIMIT $2";
    let last_removable = revision.saturating_sub(CHANGES_KEPT);
    let connection = &mut ledger.connection;
    let found = connection
        .fetch(sql, parameters![last_removable, ROWS_PER_CALL])
        .await?;
    let mut last = None;
    for row in &found {
        if row.number(1)? >= oldest {
            break;
        }
        last = Some(row.number(0)?);
    }
    let Some(last) = last else { return Ok(false) };
    let removed = connection
        .execute("DELETE FROM change WHERE revision <= $1", parameters![last])
        .await?;
    Ok(removed == ROWS_PER_CALL)
}

/// Removes a beginning of the audit log, and keeps the last removed hash as the base of its chain.
async fn prune_audit(ledger: &mut Ledger, oldest: u64) -> DatabaseResult<bool> {
    let (end, _) = ledger.audit_end().await?;
    let connection = &mut ledger.connection;
    // The last entry stays, so the chain has an end.
    let sql = "SELECT seq, at, hash FROM audit WHERE seq < $1 ORDER BY seq LIMIT $2";
    let found = connection.fetch(sql, parameters![end, ROWS_PER_CALL]).await?;
    let mut last = None;
    for row in &found {
        if row.number(1)? >= oldest {
            break;
        }
        last = Some((row.number(0)?, row.text(2)?));
    }
    let Some((seq, hash)) = last else { return Ok(false) };
    connection
        .execute(
            "UPDATE audit_base SET seq = $1, hash = $2 WHERE one = 1",
            parameters![seq, hash],
        )
        .await?;
    let removed = connection
        .execute("DELETE FROM audit WHERE seq <= $1", parameters![seq])
        .await?;
    Ok(removed == ROWS_PER_CALL)
}

/// Removes old versions, except the live one and its parent, and the texts that no version has.
async fn prune_versions(connection: &mut Connection, live: u64, kept: u64) -> DatabaseResult<bool> {
    // The newest always stays: the next one has a number above it.
    let kept = kept.clamp(1, VERSIONS_MAX);
    let sql = "SELECT number FROM version
               WHERE number < (SELECT min(number) FROM (SELECT number FROM version ORDER BY number DESC LIMIT $1) AS newest)
               AND number <> $2 AND number NOT IN (SELECT parent FROM version WHERE number = $2) ORDER BY number LIMIT $3";
    let old = connection
        .fetch(sql, parameters![kept, live, VERSIONS_PER_CALL])
        .await?;
    for row in &old {
        let number = row.number(0)?;
        for sql in [UNUSED_TEXTS, FILES_OF_VERSION, VERSION] {
            connection.execute(sql, parameters![number]).await?;
        }
    }
    Ok(old.len() as u64 == VERSIONS_PER_CALL)
}

const UNUSED_TEXTS: &str = "DELETE FROM blob WHERE digest IN (SELECT blob FROM version_file WHERE version = $1)
    AND NOT EXISTS (SELECT 1 FROM version_file other WHERE other.blob = blob.digest AND other.version <> $1)";
const FILES_OF_VERSION: &str = "DELETE FROM version_file WHERE version = $1";
const VERSION: &str = "DELETE FROM version WHERE number = $1";
