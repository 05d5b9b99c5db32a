//! Background work on the database: rows are deleted when they expire, what is not kept for ever is removed, and the journal is
//! synced.

use crate::control::Control;
use crate::control::database::{
    CommitRequest, Committed, Database, DatabaseError, DatabaseResult, ItemCondition, ItemKey, Retention, RowKey,
    now_ms,
};
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
        if parts.tables.next_expiry().is_none_or(|at| at > now_ms()) {
            continue;
        }
        // A row that is due and is not ours to delete stays due: asked for again after a while, and not without a pause.
        let Some(database) = parts.database.as_ref() else {
            sleep(RETRY).await;
            continue;
        };
        if !may_maintain(parts, database).await || !has_lease(parts, database, "expiry", LEASE_MS).await {
            sleep(RETRY).await;
            continue;
        }
        match delete_expired(database, now_ms()).await {
            Ok(Some(committed)) => {
                parts.wake.notify_one();
                parts.wait_applied(committed.revision, RETRY).await;
            }
            // The follower has yet to apply what another instance deleted.
            Ok(None) => sleep(RETRY).await,
            Err(error) => {
                tracing::warn!(%error, "expired override rows cannot be deleted; trying again");
                sleep(RETRY).await;
            }
        }
    }
}

/// Deletes rows that have expired, as they are now; none: there are none, or one was changed meanwhile.
async fn delete_expired(database: &Database, now: u64) -> DatabaseResult<Option<Committed>> {
    let Some(head) = database.head().await? else {
        return Ok(None);
    };
    let rows = database.expired_rows(now, EXPIRED_MAX).await?;
    if rows.is_empty() {
        return Ok(None);
    }
    let conditions = rows.iter().map(|row| ItemCondition {
        item: ItemKey::Row(key(row)),
        precondition: Precondition::Unchanged {
            epoch: head.epoch,
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
        row_check: None,
        action: Some("row.expire".to_owned()),
    };
    match database.commit(request).await {
        Ok(committed) => {
            tracing::info!(rows = rows.len(), "expired override rows deleted");
            Ok(Some(committed))
        }
        Err(DatabaseError::Stale(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Anchors the audit chain, verifies it, and removes what is not kept: every hour, without end. Of several control services the one
/// with the lease does it.
pub(in crate::control) async fn prune(parts: &Arc<ControlParts>) {
    let retention = Retention {
        audit_ms: u64::try_from(parts.options.audit_keep.as_millis()).unwrap_or(u64::MAX),
        versions: parts.options.keep_versions,
    };
    let mut pause = FIRST_PRUNE;
    loop {
        sleep(std::mem::replace(&mut pause, HOUR)).await;
        let Some(database) = parts.database.as_ref() else {
            continue;
        };
        if !may_maintain(parts, database).await || !has_lease(parts, database, "retention", HOURLY_LEASE_MS).await {
            continue;
        }
        if let Err(error) = database.anchor_audit(&system("hourly anchor")).await {
            tracing::warn!(%error, "the audit chain cannot be anchored; trying again in an hour");
        }
        let control = Control {
            parts: Arc::clone(parts),
        };
        match control.verify_audit(None).await {
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "the audit log cannot be verified; trying again in an hour"),
        }
        if let Err(error) = prune_all(database, retention).await {
            tracing::warn!(%error, "old changes cannot be removed; trying again in an hour");
        }
        parts.wake.notify_one();
    }
}

/// Removes what is not kept, a bounded part at a time: writes go on in between.
async fn prune_all(database: &Database, retention: Retention) -> DatabaseResult<()> {
    while database.prune(retention).await? {
        sleep(PRUNE_PAUSE).await;
    }
    Ok(())
}

/// Syncs the journal once a second, and writes the state that could not be written before, without end.
pub(in crate::control) async fn keep_synced(parts: &Arc<ControlParts>) {
    loop {
        sleep(SYNC_INTERVAL).await;
        if parts.health().disk_failed {
            // The lock keeps rows and position together.
            let loader = Arc::clone(&parts.loader).lock_owned().await;
            let parts = Arc::clone(parts);
            let saved = tokio::task::spawn_blocking(move || {
                parts.save(&parts.live.load());
                drop(loader);
            });
            // A panic is logged by its hook; the next second tries again.
            let _ = saved.await;
            continue;
        }
        let blocking = Arc::clone(parts);
        let synced = tokio::task::spawn_blocking(move || {
            let journal = blocking.disk().unsynced_journal();
            let synced = journal.and_then(|journal| journal.map_or(Ok(()), |journal| journal.sync_data()));
            synced.inspect_err(|_| blocking.disk().note_gap())
        });
        if let Ok(Err(error)) = synced.await {
            tracing::warn!(%error, "the journal of rules cannot be synced; the next change writes the whole state");
        }
    }
}

/// True while the changes that are applied are those of the database. An instance that follows another one leaves its own as it is: a
/// lease would create it.
async fn may_maintain(parts: &ControlParts, database: &Database) -> bool {
    if !parts.may_read() || !parts.is_database_current() {
        return false;
    }
    let Some(applied) = parts.live.load().head.as_ref().map(|head| head.database_id.clone()) else {
        return false;
    };
    let found = database.head().await;
    found.is_ok_and(|head| head.is_some_and(|head| head.database_id == applied))
}

async fn has_lease(parts: &ControlParts, database: &Database, name: &str, for_ms: u64) -> bool {
    let lease = database.acquire_lease(name, &parts.instance, now_ms().saturating_add(for_ms));
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
/// The first work of an hour, after a start.
const FIRST_PRUNE: Duration = Duration::from_secs(60);
const PRUNE_PAUSE: Duration = Duration::from_millis(50);
const LEASE_MS: u64 = 10_000;
/// Shorter than the interval, so that the holder meets its own lease ended or renews it, and another takes over after a crash.
const HOURLY_LEASE_MS: u64 = 3_500_000;
const EXPIRED_MAX: usize = 500;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::database::AuditFilter;

    fn until(merchant: &str, expires_at: u64) -> ChangeBody {
        ChangeBody::Row {
            domain: "default".to_owned(),
            rule: "plan".to_owned(),
            subject: [("merchant".to_owned(), merchant.to_owned())].into(),
            terms: Some("10/s".to_owned()),
            note: String::new(),
            expires_at,
        }
    }

    #[tokio::test]
    async fn expired_rows_are_deleted_by_the_system() {
        let folder = std::env::temp_dir().join(format!("tollgate-expiry-{}", std::process::id()));
        let database = Database::sqlite(folder.join("control.db"));
        assert_eq!(delete_expired(&database, 100).await, Ok(None));
        assert!(!folder.exists(), "nothing is written for it");
        let request = CommitRequest {
            author: system("test"),
            conditions: Vec::new(),
            changes: vec![until("m_1", 50), until("m_2", 51), until("m_3", 0), until("m_4", 40)],
            rules: Vec::new(),
            row_check: None,
            action: None,
        };
        database.commit(request).await.unwrap();
        assert_eq!(delete_expired(&database, 39).await, Ok(None));
        let deleted = delete_expired(&database, 50).await.unwrap().unwrap();
        assert_eq!(deleted.revision, 2);
        assert_eq!(database.next_expiry().await, Ok(Some(51)));
        let entry = database
            .audit(&AuditFilter::default(), None, 1)
            .await
            .unwrap()
            .remove(0);
        assert_eq!((entry.actor.as_str(), entry.action.as_str()), ("system", "row.expire"));
        assert!(
            entry.before.contains("m_1") && entry.before.contains("m_4"),
            "{}",
            entry.before
        );
        assert_eq!(delete_expired(&database, 50).await, Ok(None));
        drop(database);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
