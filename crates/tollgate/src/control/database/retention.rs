//! The removal of what is not kept for ever. Each call removes a bounded number of rows, so that no transaction gets long.

use super::Database;
use super::connection::parameters;
use super::error::DatabaseResult;
use super::requests::Retention;
use super::writer::WriteRequest;
use super::writer::ledger::Ledger;

/// The age of changes in the log.
const CHANGES_MS: u64 = 7 * DAY_MS;
/// Changes that are kept whatever their age.
const CHANGES_KEPT: u64 = 100_000;
/// The age of stored responses.
const RESPONSES_MS: u64 = DAY_MS;
/// The age of reports of instances.
const INSTANCES_MS: u64 = DAY_MS;
/// Rows that one call removes from one table.
const ROWS_PER_CALL: u64 = 10_000;
/// Versions that one call removes.
const VERSIONS_PER_CALL: u64 = 100;
const DAY_MS: u64 = 86_400_000;

impl Database {
    /// Removes what has exceeded its retention: changes, audit entries, versions, responses, sessions, reports of instances.
    /// Before the first write it does nothing.
    ///
    /// # Errors
    /// An unavailable or full database.
    pub async fn prune(&self, retention: Retention) -> DatabaseResult<()> {
        if self.is_empty().await? {
            return Ok(());
        }
        self.write(WriteRequest::Prune(retention)).await?.done()
    }
}

pub(super) async fn prune(ledger: &mut Ledger, retention: Retention) -> DatabaseResult<()> {
    let now = ledger.now;
    let head = ledger.head().await?.clone();
    prune_changes(ledger, head.revision).await?;
    prune_audit(ledger, now.saturating_sub(retention.audit_ms)).await?;
    prune_versions(ledger, head.live_version, retention.versions).await?;
    let connection = &mut ledger.connection;
    connection
        .execute(
            "DELETE FROM idempotency WHERE at < $1",
            parameters![now.saturating_sub(RESPONSES_MS)],
        )
        .await?;
    connection
        .execute("DELETE FROM session WHERE expires_at <= $1", parameters![now])
        .await?;
    connection
        .execute(
            "DELETE FROM instance WHERE seen_at < $1",
            parameters![now.saturating_sub(INSTANCES_MS)],
        )
        .await?;
    Ok(())
}

/// Removes a beginning of the log: it never has a gap.
async fn prune_changes(ledger: &mut Ledger, revision: u64) -> DatabaseResult<()> {
    let oldest = ledger.now.saturating_sub(CHANGES_MS);
    let sql = "DELETE FROM change WHERE revision <= $1
               AND revision < (SELECT coalesce(min(revision), 0) + $2 FROM change)
               AND revision < (SELECT coalesce(min(revision), $1 + 1) FROM change WHERE at >= $3)";
    ledger
        .connection
        .execute(
            sql,
            parameters![revision.saturating_sub(CHANGES_KEPT), ROWS_PER_CALL, oldest],
        )
        .await?;
    Ok(())
}

/// Removes a beginning of the audit log, and keeps the last removed hash as the base of its chain.
async fn prune_audit(ledger: &mut Ledger, oldest: u64) -> DatabaseResult<()> {
    let (end, _) = ledger.audit_end().await?;
    let connection = &mut ledger.connection;
    // The last entry stays, so the chain has an end.
    let sql = "SELECT seq, hash FROM audit WHERE seq < $1 AND seq <= (SELECT seq + $2 FROM audit_base)
               AND seq < (SELECT coalesce(min(seq), $1) FROM audit WHERE at >= $3) ORDER BY seq DESC LIMIT 1";
    let Some(last) = connection
        .fetch_one(sql, parameters![end, ROWS_PER_CALL, oldest])
        .await?
    else {
        return Ok(());
    };
    let (seq, hash) = (last.number(0)?, last.text(1)?);
    connection
        .execute(
            "UPDATE audit_base SET seq = $1, hash = $2 WHERE one = 1",
            parameters![seq, hash],
        )
        .await?;
    connection
        .execute("DELETE FROM audit WHERE seq <= $1", parameters![seq])
        .await?;
    Ok(())
}

/// Removes old versions, except the live one and its parent, and the texts that no version has.
async fn prune_versions(ledger: &mut Ledger, live: u64, kept: u64) -> DatabaseResult<()> {
    let connection = &mut ledger.connection;
    let sql = "SELECT number FROM version WHERE number <= (SELECT coalesce(max(number), 0) FROM version) - $1
               AND number <> $2 AND number NOT IN (SELECT parent FROM version WHERE number = $2) ORDER BY number LIMIT $3";
    let old = connection
        .fetch(sql, parameters![kept, live, VERSIONS_PER_CALL])
        .await?;
    if old.is_empty() {
        return Ok(());
    }
    for row in &old {
        let number = row.number(0)?;
        connection
            .execute("DELETE FROM version_file WHERE version = $1", parameters![number])
            .await?;
        connection
            .execute("DELETE FROM version WHERE number = $1", parameters![number])
            .await?;
    }
    let sql = "DELETE FROM blob WHERE NOT EXISTS (SELECT 1 FROM version_file WHERE version_file.blob = blob.digest)";
    connection.execute(sql, &[]).await?;
    Ok(())
}
