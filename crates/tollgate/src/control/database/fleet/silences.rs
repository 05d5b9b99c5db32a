//! Silences of alerts, which all control services share. Their content belongs to the alerts.

use super::super::Database;
use super::super::connection::parameters;
use super::super::error::{DatabaseError, DatabaseResult};
use super::super::query::Select;
use super::super::query::record::record;
use super::super::writer::WriteRequest;
use super::super::writer::ledger::Ledger;
use crate::control::model::Author;

/// A silence as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredSilence {
    /// Its id.
    pub id: String,
    /// Its content, as JSON text.
    pub body: String,
    /// Unix time in milliseconds of its end.
    pub until: u64,
}

/// Silences at a time.
const SILENCES_MAX: usize = 1_000;

impl Database {
    /// Adds a silence. Those that have ended are removed. Audited as `silence.add`.
    ///
    /// # Errors
    /// [`DatabaseError::Invalid`] if there are too many; an unavailable or full database.
    pub async fn add_silence(&self, silence: StoredSilence, author: &Author) -> DatabaseResult<()> {
        let request = WriteRequest::AddSilence(Box::new(silence), author.clone());
        self.change(request).await
    }

    /// Ends a silence. Audited as `silence.delete`.
    ///
    /// # Errors
    /// [`DatabaseError::Missing`] if no silence has this id; an unavailable or full database.
    pub async fn delete_silence(&self, id: &str, author: &Author) -> DatabaseResult<()> {
        let request = WriteRequest::DeleteSilence(id.to_owned(), author.clone());
        self.change(request).await
    }

    /// Returns the silences that end after a time, by id.
    ///
    /// # Errors
    /// An unavailable or damaged database, or one that an older program made and that was not written since.
    pub async fn silences(&self, now: u64) -> DatabaseResult<Vec<StoredSilence>> {
        let mut select = Select::records::<StoredSilence>();
        select.and("until > ", now);
        self.records(select.order_by("id", SILENCES_MAX)).await
    }
}

pub(in crate::control::database) async fn add_silence(
    ledger: &mut Ledger,
    silence: &StoredSilence,
    author: &Author,
) -> DatabaseResult<()> {
    // Orders those who add at once, so that the bound holds.
    ledger.head().await?;
    let now = ledger.now;
    let sql = "DELETE FROM silence WHERE until <= $1";
    ledger.connection.execute(sql, parameters![now]).await?;
    let count = ledger
        .connection
        .fetch_one("SELECT count(*) FROM silence", &[])
        .await?
        .map_or(Ok(0), |row| row.number(0))?;
    if count >= SILENCES_MAX as u64 {
        let text = format!("there are {count} silences already; end some of them");
        return Err(DatabaseError::Invalid(text));
    }
    let sql = "INSERT INTO silence (id, body, until) VALUES ($1, $2, $3)";
    let parameters = parameters![&silence.id, &silence.body, silence.until];
    ledger.connection.execute(sql, parameters).await?;
    ledger
        .note(author, "silence.add", &silence.id, ("", &silence.body))
        .await
}

pub(in crate::control::database) async fn delete_silence(
    ledger: &mut Ledger,
    id: &str,
    author: &Author,
) -> DatabaseResult<()> {
    let sql = "SELECT body FROM silence WHERE id = $1";
    let found = ledger.connection.fetch_one(sql, parameters![id]).await?;
    let Some(found) = found else {
        return Err(DatabaseError::Missing("the silence".to_owned()));
    };
    let body = found.text(0)?;
    let sql = "DELETE FROM silence WHERE id = $1";
    ledger.connection.execute(sql, parameters![id]).await?;
    ledger.note(author, "silence.delete", id, (&body, "")).await
}

record!(StoredSilence, "silence": id, body, until);
