//! Override rows: lists, look-ups, and the statements of a commit.

use super::Database;
use super::connection::{Connection, Parameter, ResultRow, parameters};
use super::error::{DatabaseError, DatabaseResult};
use super::query::{LISTED_PARAMETERS, PARAMETERS, Select, contains, one_of_keys, value_rows};
use super::requests::{RowFilter, RowKey};
use super::writer::ledger::ITEMS_MAX;
use crate::control::model::{OverrideRow, SubjectValues};
use sqlx::AssertSqlSafe;

impl Database {
    /// Returns rows in the order of their keys, after a key.
    ///
    /// # Errors
    /// An unavailable or damaged database.
    pub async fn rows(
        &self,
        filter: &RowFilter,
        after: Option<&RowKey>,
        limit: usize,
    ) -> DatabaseResult<Vec<OverrideRow>> {
        let mut select = Select::from(COLUMNS);
        select.and_one_of("domain", &filter.domains);
        if let Some(rule) = &filter.rule {
            select.and("rule = ", rule);
        }
        if let Some(text) = &filter.text {
            select.and_text_in(&["subject", "note"], &contains(text));
        }
        if let Some(before) = filter.expires_before {
            select.and("expires_at > 0 AND expires_at < ", before);
        }
        if let Some(key) = after {
            select.and_after(
                "domain, rule, subject",
                &[
                    (&key.domain).into(),
                    (&key.rule).into(),
                    subject_text(&key.subject).into(),
                ],
            );
        }
        let (sql, parameters) = select.order_by("domain, rule, subject", limit);
        self.list(AssertSqlSafe(sql), &parameters, row_of).await
    }

    /// Returns one row.
    ///
    /// # Errors
    /// An unavailable or damaged database.
    pub async fn row(&self, key: &RowKey) -> DatabaseResult<Option<OverrideRow>> {
        let mut select = Select::from(COLUMNS);
        select.and("domain = ", &key.domain);
        select.and("rule = ", &key.rule);
        select.and("subject = ", subject_text(&key.subject));
        let (sql, parameters) = select.order_by("subject", 1);
        Ok(self.list(AssertSqlSafe(sql), &parameters, row_of).await?.pop())
    }

    /// Returns rows that have expired at this time, the longest expired first.
    ///
    /// # Errors
    /// An unavailable or damaged database.
    pub async fn expired_rows(&self, now_ms: u64, limit: usize) -> DatabaseResult<Vec<OverrideRow>> {
        let mut select = Select::from(COLUMNS);
        select.and("expires_at > 0 AND expires_at <= ", now_ms);
        let (sql, parameters) = select.order_by("expires_at", limit);
        self.list(AssertSqlSafe(sql), &parameters, row_of).await
    }

    /// Returns the time at which the next row expires.
    ///
    /// # Errors
    /// An unavailable or damaged database.
    pub async fn next_expiry(&self) -> DatabaseResult<Option<u64>> {
        let sql = "SELECT coalesce(min(expires_at), 0) FROM override_row WHERE expires_at > 0";
        let times = self.list(sql, &[], |row| row.number(0)).await?;
        Ok(times.first().copied().filter(|&at| at > 0))
    }
}

/// All rows, by key.
pub(super) async fn all_rows(connection: &mut Connection) -> DatabaseResult<Vec<OverrideRow>> {
    let sql = "SELECT domain, rule, subject, terms, note, expires_at, revision, actor FROM override_row
               ORDER BY domain, rule, subject LIMIT $1";
    let found = connection.fetch(sql, parameters![ITEMS_MAX + 1]).await?;
    if found.len() as u64 > ITEMS_MAX {
        return Err(DatabaseError::TooLarge(format!(
            "there are more than {ITEMS_MAX} override rows"
        )));
    }
    found.iter().map(row_of).collect()
}

/// The key of a row as the table has it: domain, rule, and the text of the subject.
pub(super) type RowKeyText<'k> = [&'k str; 3];

/// A row to be written.
pub(super) struct RowRecord<'r> {
    pub(super) key: RowKeyText<'r>,
    pub(super) terms: &'r str,
    pub(super) note: &'r str,
    pub(super) expires_at: u64,
}

/// The rows with these keys.
pub(super) async fn find_rows(
    connection: &mut Connection,
    keys: &[RowKeyText<'_>],
) -> DatabaseResult<Vec<OverrideRow>> {
    let mut rows = Vec::new();
    for keys in keys.chunks(LISTED_PARAMETERS / 3) {
        // A join: SQLite reads the whole table for `IN (VALUES …)`.
        let sql = format!(
            "WITH wanted (wanted_domain, wanted_rule, wanted_subject) AS (VALUES {}) {COLUMNS}
             JOIN wanted ON domain = wanted_domain AND rule = wanted_rule AND subject = wanted_subject",
            value_rows(connection.placeholder(), keys.len(), 3)
        );
        for row in connection.fetch(AssertSqlSafe(sql), &key_parameters(keys)).await? {
            rows.push(row_of(&row)?);
        }
    }
    Ok(rows)
}

/// Writes these rows over those with the same keys. Each key appears once.
pub(super) async fn upsert_rows(
    connection: &mut Connection,
    rows: &[RowRecord<'_>],
    revision: u64,
    actor: &str,
) -> DatabaseResult<()> {
    for rows in rows.chunks(LISTED_PARAMETERS / 8) {
        let sql = format!(
            "INSERT INTO override_row (domain, rule, subject, terms, note, expires_at, revision, actor) VALUES {}
             ON CONFLICT (domain, rule, subject) DO UPDATE SET terms = excluded.terms, note = excluded.note,
             expires_at = excluded.expires_at, revision = excluded.revision, actor = excluded.actor",
            value_rows(connection.placeholder(), rows.len(), 8)
        );
        let parameters: Vec<Parameter<'_>> = rows
            .iter()
            .flat_map(|row| {
                let [domain, rule, subject] = row.key;
                let texts = [domain, rule, subject, row.terms, row.note].map(Parameter::from);
                let numbers = [row.expires_at, revision].map(Parameter::from);
                texts.into_iter().chain(numbers).chain([actor.into()])
            })
            .collect();
        connection.execute(AssertSqlSafe(sql), &parameters).await?;
    }
    Ok(())
}

/// Deletes the rows with these keys.
pub(super) async fn delete_rows(connection: &mut Connection, keys: &[RowKeyText<'_>]) -> DatabaseResult<()> {
    for keys in keys.chunks(PARAMETERS / 3) {
        let sql = format!(
            "DELETE FROM override_row WHERE {}",
            one_of_keys(["domain", "rule", "subject"], keys.len())
        );
        connection.execute(AssertSqlSafe(sql), &key_parameters(keys)).await?;
    }
    Ok(())
}

/// The canonical text of a subject: JSON with sorted keys.
pub(in crate::control) fn subject_text(subject: &SubjectValues) -> String {
    serde_json::to_string(subject).expect("a map of texts")
}

const COLUMNS: &str = "SELECT domain, rule, subject, terms, note, expires_at, revision, actor FROM override_row";

/// The parameters of keys of three columns.
pub(super) fn key_parameters<'k>(keys: &[[&'k str; 3]]) -> Vec<Parameter<'k>> {
    keys.iter().flatten().map(|text| Parameter::from(*text)).collect()
}

fn row_of(row: &ResultRow) -> DatabaseResult<OverrideRow> {
    Ok(OverrideRow {
        domain: row.text(0)?,
        rule: row.text(1)?,
        subject: row.parsed(2, |text| serde_json::from_str(text).ok())?,
        terms: row.text(3)?,
        note: row.text(4)?,
        expires_at: row.number(5)?,
        revision: row.number(6)?,
        actor: row.text(7)?,
    })
}
