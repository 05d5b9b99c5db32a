//! Leases for background work, reports of instances, silences of alerts, and hints that something has changed.

mod silences;

pub use silences::StoredSilence;
pub(super) use silences::{add_silence, delete_silence};

use super::connection::{Connection, DEADLINE, ResultRow, parameters};
use super::error::{DatabaseError, DatabaseResult};
use super::requests::InstanceReport;
use super::writer::WriteRequest;
use super::writer::ledger::Ledger;
use super::{Database, Shared, within};
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

    /// Stores the status of an instance, as JSON text. Before the first write it does nothing.
    ///
    /// The time of the report is that of the database: an instance whose clock is behind must not be taken for one that is gone.
    ///
    /// # Errors
    /// An unavailable or full database.
    pub async fn report_instance(&self, id: &str, status: &str) -> DatabaseResult<()> {
        if self.is_empty().await? {
            return Ok(());
        }
        let request = WriteRequest::ReportInstance {
            id: id.to_owned(),
            status: status.to_owned(),
        };
        self.change(request).await
    }

    /// Returns the reports of instances that are at most this old by the clock of the database, by id.
    ///
    /// # Errors
    /// An unavailable or damaged database.
    pub async fn instances(&self, age_ms: u64) -> DatabaseResult<Vec<InstanceReport>> {
        within(DEADLINE, async {
            let Some(mut connection) = self.reader().await? else {
                return Ok(Vec::new());
            };
            let now = clock_of(&mut connection, (self.shared.clock)()).await?;
            let sql = "SELECT id, status, seen_at FROM instance WHERE seen_at >= $1 ORDER BY id LIMIT 10000";
            let found = connection.fetch(sql, parameters![now.saturating_sub(age_ms)]).await?;
            let report = |row: &ResultRow| {
                Ok(InstanceReport {
                    id: row.text(0)?,
                    status: row.text(1)?,
                    seen_at: row.number(2)?,
                })
            };
            found.iter().map(report).collect()
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

pub(super) async fn report_instance(ledger: &mut Ledger, id: &str, status: &str) -> DatabaseResult<()> {
    let now = clock_of(&mut ledger.connection, ledger.now).await?;
    ledger
        .connection
        .execute(
            "INSERT INTO instance (id, status, figures, vote, seen_at) VALUES ($1, $2, '', '', $3)
             ON CONFLICT (id) DO UPDATE SET status = excluded.status, seen_at = excluded.seen_at",
            parameters![id, status, now],
        )
        .await?;
    Ok(())
}

/// Unix time in milliseconds by the clock that all instances share: that of a server, and for a file that of this machine.
pub(super) async fn clock_of(connection: &mut Connection, local: u64) -> DatabaseResult<u64> {
    if !connection.is_postgres() {
        return Ok(local);
    }
    let sql = "SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)";
    let row = connection.fetch_one(sql, &[]).await?;
    row.ok_or_else(|| DatabaseError::Corrupt("the server has no clock".to_owned()))?
        .number(0)
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
