//! Audit entries of what was done while the database was away: kept in memory, and written when it is back.

use crate::control::database::AuditRecord;
use crate::control::{Control, ControlError};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::sleep;

/// Entries that wait for the database, in order.
#[derive(Debug, Default)]
pub(super) struct AuditQueue(Mutex<WaitingEntries>);

#[derive(Debug, Default)]
struct WaitingEntries {
    entries: VecDeque<AuditRecord>,
    /// Entries that callers are about to add.
    reserved: usize,
    /// True while a task writes them.
    has_writer: bool,
}

/// The task that writes entries. After a panic the next entry starts another one.
struct Writer<'q>(&'q AuditQueue);

/// A place for one entry; free again when it is dropped.
pub(super) struct AuditReservation(Arc<AuditQueue>);

impl AuditQueue {
    /// A place for the entry of something that is about to be done; none if too many wait.
    pub(super) fn reserve(self: &Arc<Self>) -> Option<AuditReservation> {
        let mut waiting = self.waiting();
        if waiting.entries.len() + waiting.reserved >= ENTRIES_MAX {
            return None;
        }
        waiting.reserved += 1;
        Some(AuditReservation(Arc::clone(self)))
    }

    fn waiting(&self) -> MutexGuard<'_, WaitingEntries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes entries until none waits.
    async fn write_all(self: Arc<Self>, control: Control) {
        let _writer = Writer(&self);
        loop {
            sleep(RETRY).await;
            loop {
                let next = {
                    let mut waiting = self.waiting();
                    waiting.has_writer = !waiting.entries.is_empty();
                    waiting.entries.front().cloned()
                };
                let Some(next) = next else { return };
                if write(&control, next).await.is_err() {
                    break;
                }
                self.waiting().entries.pop_front();
            }
        }
    }
}

impl AuditReservation {
    /// Writes an entry now, or later while the database is away. Without a database there is no audit log.
    pub(super) async fn record(self, control: &Control, record: AuditRecord) {
        let is_first = self.0.waiting().entries.is_empty();
        let error = match is_first {
            true => match write(control, record.clone()).await {
                Ok(()) | Err(ControlError::NoDatabase) => return,
                Err(error) => error.to_string(),
            },
            false => "entries before it wait".to_owned(),
        };
        tracing::warn!(
            error,
            request = record.author.request,
            "an audit entry waits for the database"
        );
        let mut waiting = self.0.waiting();
        waiting.entries.push_back(record);
        if !std::mem::replace(&mut waiting.has_writer, true) {
            tokio::spawn(Arc::clone(&self.0).write_all(control.clone()));
        }
    }
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.waiting().has_writer = false;
        }
    }
}

impl Drop for AuditReservation {
    fn drop(&mut self) {
        let mut waiting = self.0.waiting();
        waiting.reserved = waiting.reserved.saturating_sub(1);
    }
}

impl Drop for AuditQueue {
    fn drop(&mut self) {
        for record in &self.waiting().entries {
            let (actor, request) = (&record.author.actor, &record.author.request);
            tracing::error!(
                actor,
                request,
                action = record.action,
                "stopped before an audit entry could be written"
            );
        }
    }
}

async fn write(control: &Control, record: AuditRecord) -> Result<(), ControlError> {
    control.writable_database().await?.record(record).await?;
    Ok(())
}

const ENTRIES_MAX: usize = 1_000;
const RETRY: Duration = Duration::from_secs(1);
