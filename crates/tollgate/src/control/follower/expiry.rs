//! Background work on the database: rows are deleted when they expire, what is not kept for ever is removed, and the journal is
//! synced.

use crate::control::database::now_ms;
use crate::control::database::{CommitRequest, Database, ItemCondition, ItemKey, Retention, RowKey};
use crate::control::layers::ControlParts;
use crate::control::model::{Author, ChangeBody, OverrideRow, Precondition};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// Deletes rows when they expire, without end. Of several control services the one with the lease does it.
pub(in crate::control) async fn expire_rows(parts: &Arc<ControlParts>) {
    loop {
        let now = now_ms();
        let wait = parts
            .tables
            .next_expiry()
            .map(|at| Duration::from_millis(at.saturating_sub(now)));
        sleep(wait.unwrap_or(INTERVAL).clamp(INTERVAL_MIN, INTERVAL)).await;
        let is_due = parts.tables.next_expiry().is_some_and(|at| at <= now_ms());
        let Some(database) = parts.database.as_ref().filter(|_| is_due) else {
            continue;
        };
        if !parts.may_read() || !parts.is_database_current() || !has_lease(parts, database, "expiry").await {
            continue;
        }
        if let Err(error) = delete_expired(parts, database).await {
            tracing::warn!(%error, "expired override rows cannot be deleted; trying again");
            sleep(RETRY).await;
        }
    }
}

async fn delete_expired(parts: &ControlParts, database: &Database) -> crate::control::database::DatabaseResult<()> {
    let rows = database.expired_rows(now_ms(), EXPIRED_MAX).await?;
    if rows.is_empty() {
        // The follower has yet to apply what another instance deleted.
        sleep(RETRY).await;
        return Ok(());
    }
    let epoch = parts.live.load().epoch();
    let conditions = rows.iter().map(|row| ItemCondition {
        item: ItemKey::Row(key(row)),
        precondition: Precondition::Unchanged {
            epoch,
            revision: row.revision,
        },
    });
    let changes = rows.iter().map(|row| ChangeBody::Row {
        domain: row.domain.clone(),
        rule: row.rule.clone(),
        subject: row.subject.clone(),
        terms: None,
        note: String::new(),
        expires_at: 0,
    });
    let request = CommitRequest {
        author: system("expired"),
        conditions: conditions.collect(),
        changes: changes.collect(),
        rules: Vec::new(),
        action: Some("row.expire".to_owned()),
    };
    let committed = database.commit(request).await?;
    tracing::info!(rows = rows.len(), "expired override rows deleted");
    parts.wake.notify_one();
    parts.wait_applied(committed.revision, RETRY).await;
    Ok(())
}

/// Anchors the audit chain and removes what is not kept, every hour, without end.
pub(in crate::control) async fn prune(parts: &Arc<ControlParts>) {
    let retention = Retention {
        audit_ms: u64::try_from(parts.options.audit_keep.as_millis()).unwrap_or(u64::MAX),
        versions: parts.options.keep_versions,
    };
    loop {
        sleep(HOUR).await;
        let Some(database) = parts.database.as_ref() else {
            continue;
        };
        let is_written = parts.live.load().head.is_some() && parts.is_database_current();
        if !is_written || !parts.may_read() || !has_lease(parts, database, "retention").await {
            continue;
        }
        if let Err(error) = database.anchor_audit(&system("hourly anchor")).await {
            tracing::warn!(%error, "the audit chain cannot be anchored; trying again in an hour");
        }
        match database.verify_audit(None).await {
            Ok(report) => parts
                .gate
                .metrics()
                .control
                .audit_broken
                .set((!report.is_intact()).into()),
            Err(error) => tracing::warn!(%error, "the audit log cannot be verified; trying again in an hour"),
        }
        if let Err(error) = database.prune(retention).await {
            tracing::warn!(%error, "old changes cannot be removed; trying again in an hour");
        }
        parts.wake.notify_one();
    }
}

/// Syncs the journal once a second, without end.
pub(in crate::control) async fn keep_synced(parts: &Arc<ControlParts>) {
    loop {
        sleep(SYNC_INTERVAL).await;
        let parts = Arc::clone(parts);
        let synced = tokio::task::spawn_blocking(move || match parts.disk().unsynced_journal() {
            Some(journal) => journal.sync_data(),
            None => Ok(()),
        });
        if let Ok(Err(error)) = synced.await {
            tracing::warn!(%error, "the journal of rules cannot be synced; trying again");
        }
    }
}

async fn has_lease(parts: &ControlParts, database: &Database, name: &str) -> bool {
    let lease = database.acquire_lease(name, &parts.instance, now_ms().saturating_add(LEASE_MS));
    lease.await.unwrap_or(false)
}

fn key(row: &OverrideRow) -> RowKey {
    RowKey {
        domain: row.domain.clone(),
        rule: row.rule.clone(),
        subject: row.subject.clone(),
    }
}

/// The author of background work.
pub(in crate::control) fn system(reason: &str) -> Author {
    Author {
        actor: "system".to_owned(),
        via: "system".to_owned(),
        reason: reason.to_owned(),
        ..Author::default()
    }
}

const INTERVAL: Duration = Duration::from_secs(1);
const INTERVAL_MIN: Duration = Duration::from_millis(10);
const RETRY: Duration = Duration::from_secs(2);
const SYNC_INTERVAL: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);
const LEASE_MS: u64 = 10_000;
const EXPIRED_MAX: usize = 500;
