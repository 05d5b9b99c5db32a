//! Leases for background work, reports of instances, and hints that something has changed.

use super::connection::{DEADLINE, parameters};
use super::error::{DatabaseError, DatabaseResult};
use super::requests::InstanceReport;
use super::writer::WriteRequest;
use super::writer::ledger::Ledger;
use super::{Database, Shared};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::watch;

/// The pause before a lost listener connects again.
const RECONNECT: Duration = Duration::from_secs(2);

impl Database {
    /// Acquires or renews the lease of some background work until a Unix time in milliseconds, and returns true if `holder` has it now.
    ///
    /// A lease that ends more than an hour from now is that of a wrong clock, and counts as ended. Before the first write every
    /// holder has it.
    ///
    /// # Errors
    /// [`DatabaseError::Invalid`] for a time more than an hour from now; an unavailable or full database.
    pub async fn acquire_lease(&self, name: &str, holder: &str, until: u64) -> DatabaseResult<bool> {
        if until > (self.shared.clock)().saturating_add(LEASE_MAX_MS) {
            return Err(DatabaseError::Invalid("a lease is at most an hour long".to_owned()));
        }
        if self.is_empty().await? {
            return Ok(true);
        }
        let request = WriteRequest::AcquireLease {
            name: name.to_owned(),
            holder: holder.to_owned(),
            until,
        };
        Ok(self.write(request).await?.count()? == 1)
    }

    /// Stores the report of an instance. Before the first write it does nothing.
    ///
    /// # Errors
    /// An unavailable or full database.
    pub async fn report_instance(&self, report: &InstanceReport) -> DatabaseResult<()> {
        if self.is_empty().await? {
            return Ok(());
        }
        self.write(WriteRequest::ReportInstance(Box::new(report.clone())))
            .await?
            .done()
    }

    /// Returns the reports of instances since a time, by id.
    ///
    /// # Errors
    /// An unavailable or damaged database.
    pub async fn instances(&self, seen_since_ms: u64) -> DatabaseResult<Vec<InstanceReport>> {
        let sql = "SELECT id, status, seen_at FROM instance WHERE seen_at >= $1 ORDER BY id LIMIT 10000";
        self.list(sql, parameters![seen_since_ms], |row| {
            Ok(InstanceReport {
                id: row.text(0)?,
                status: row.text(1)?,
                seen_at: row.number(2)?,
            })
        })
        .await
    }

    /// Returns a counter that moves when something may have changed: at own commits, and at notifications of PostgreSQL.
    ///
    /// Notifications can be lost; poll the head too. Call it inside a runtime: a task there receives the notifications, as long as
    /// the database is in use.
    pub fn listen(&self) -> watch::Receiver<u64> {
        let receiver = self.shared.hints.subscribe();
        if self.kind() == "postgres" && !self.shared.is_listening.swap(true, Ordering::Relaxed) {
            tokio::spawn(relay_notifications(Arc::downgrade(&self.shared)));
        }
        receiver
    }
}

pub(super) async fn acquire_lease(ledger: &mut Ledger, name: &str, holder: &str, until: u64) -> DatabaseResult<u64> {
    let now = ledger.now;
    // No row is changed while another holder has it.
    ledger
        .connection
        .execute(
            "INSERT INTO lease (name, holder, until) VALUES ($1, $2, $3)
             ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, until = excluded.until
             WHERE lease.holder = excluded.holder OR lease.until <= $4 OR lease.until > $5",
            parameters![name, holder, until, now, now.saturating_add(LEASE_MAX_MS)],
        )
        .await
}

pub(super) async fn report_instance(ledger: &mut Ledger, report: &InstanceReport) -> DatabaseResult<()> {
    ledger
        .connection
        .execute(
            "INSERT INTO instance (id, status, figures, vote, seen_at) VALUES ($1, $2, '', '', $3)
             ON CONFLICT (id) DO UPDATE SET status = excluded.status, seen_at = excluded.seen_at",
            parameters![&report.id, &report.status, report.seen_at],
        )
        .await?;
    Ok(())
}

/// Turns notifications into hints until the database is dropped.
async fn relay_notifications(shared: Weak<Shared>) {
    loop {
        let Some(database) = shared.upgrade() else { return };
        let listener = tokio::time::timeout(DEADLINE, database.backend.listener()).await;
        drop(database);
        if let Ok(Ok(Some(mut listener))) = listener {
            // Those sent before the connection are lost.
            loop {
                match shared.upgrade() {
                    Some(database) => database.hint(),
                    None => return,
                }
                // Woken now and then to notice that the database was dropped. None: reconnected, so some may be lost.
                match tokio::time::timeout(LISTEN_ROUND, listener.try_recv()).await {
                    Err(_) | Ok(Ok(_)) => {}
                    Ok(Err(error)) => {
                        tracing::debug!(%error, "lost the connection for database notifications; reconnecting");
                        break;
                    }
                }
            }
        }
        tokio::time::sleep(RECONNECT).await;
    }
}

/// The longest lease.
const LEASE_MAX_MS: u64 = 3_600_000;
/// The longest wait for a notification.
const LISTEN_ROUND: Duration = Duration::from_secs(30);
