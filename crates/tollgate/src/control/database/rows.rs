//! Override rows: lists, look-ups, and the statements of a commit.

use super::Database;
use super::connection::{Connection, Parameter};
use super::error::DatabaseResult;
use super::query::record::{KeyText, KeyedRecord, record};
use super::query::{LISTED_PARAMETERS, Select, contains, value_rows};
use super::requests::{RowFilter, RowKey};
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
        let mut select = Select::records::<OverrideRow>();
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
        self.records(select.order_by("domain, rule, subject", limit)).await
    }

    /// Returns one row.
    ///
    /// # Errors
    /// An unavailable or damaged database.
    pub async fn row(&self, key: &RowKey) -> DatabaseResult<Option<OverrideRow>> {
        let mut select = Select::records::<OverrideRow>();
        select.and("domain = ", &key.domain);
        select.and("rule = ", &key.rule);
        select.and("subject = ", subject_text(&key.subject));
        Ok(self.records(select.order_by("subject", 1)).await?.pop())
    }

    /// Returns rows that have expired at this time, the longest expired first.
    ///
    /// # Errors
    /// An unavailable or damaged database.
    pub async fn expired_rows(&self, now_ms: u64, limit: usize) -> DatabaseResult<Vec<OverrideRow>> {
        let mut select = Select::records::<OverrideRow>();
        select.and("expires_at > 0 AND expires_at <= ", now_ms);
        self.records(select.order_by("expires_at", limit)).await
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

/// A row to be written.
pub(super) struct RowRecord<'r> {
    pub(super) key: KeyText<'r>,
    pub(super) terms: &'r str,
    pub(super) note: &'r str,
    pub(super) expires_at: u64,
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

/// The canonical text of a subject: JSON with sorted keys.
pub(in crate::control) fn subject_text(subject: &SubjectValues) -> String {
    serde_json::to_string(subject).expect("a map of texts")
}

record!(OverrideRow, "override_row": domain, rule, subject, terms, note, expires_at, revision, actor);

impl KeyedRecord for OverrideRow {
    const KEY: [&'static str; 3] = ["domain", "rule", "subject"];
    const PLURAL: &'static str = "override rows";
}
