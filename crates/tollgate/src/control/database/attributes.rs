//! Subject attributes: lists, look-ups, and the statements of a commit.

use super::Database;
use super::connection::{Connection, Parameter, ResultRow, parameters};
use super::error::{DatabaseError, DatabaseResult};
use super::query::{LISTED_PARAMETERS, PARAMETERS, Select, contains, one_of_keys, value_rows};
use super::requests::{AttributeFilter, AttributeKey};
use super::rows::key_parameters;
use super::writer::ledger::ITEMS_MAX;
use crate::control::model::SubjectAttribute;
use sqlx::AssertSqlSafe;

impl Database {
    /// Returns attributes in the order of their keys, after a key.
    ///
    /// # Errors
    /// An unavailable or damaged database.
    pub async fn attributes(
        &self,
        filter: &AttributeFilter,
        after: Option<&AttributeKey>,
        limit: usize,
    ) -> DatabaseResult<Vec<SubjectAttribute>> {
        let mut select = Select::from(COLUMNS);
        if let Some(source) = &filter.source {
            select.and("source = ", source);
        }
        if let Some(subject) = &filter.subject {
            select.and("subject = ", subject);
        }
        if let Some(text) = &filter.text {
            select.and_text_in(&["subject", "value"], &contains(text));
        }
        if let Some(key) = after {
            select.and_after(
                "source, subject, name",
                &[(&key.source).into(), (&key.subject).into(), (&key.name).into()],
            );
        }
        let (sql, parameters) = select.order_by("source, subject, name", limit);
        self.list(AssertSqlSafe(sql), &parameters, attribute_of).await
    }

    /// Returns one attribute.
    ///
    /// # Errors
    /// An unavailable or damaged database.
    pub async fn attribute(&self, key: &AttributeKey) -> DatabaseResult<Option<SubjectAttribute>> {
        let mut select = Select::from(COLUMNS);
        select.and("source = ", &key.source);
        select.and("subject = ", &key.subject);
        select.and("name = ", &key.name);
        let (sql, parameters) = select.order_by("name", 1);
        Ok(self.list(AssertSqlSafe(sql), &parameters, attribute_of).await?.pop())
    }
}

/// All attributes, by key.
pub(super) async fn all_attributes(connection: &mut Connection) -> DatabaseResult<Vec<SubjectAttribute>> {
    let sql =
        "SELECT source, subject, name, value, revision, actor FROM subject_attribute ORDER BY source, subject, name
               LIMIT $1";
    let found = connection.fetch(sql, parameters![ITEMS_MAX + 1]).await?;
    if found.len() as u64 > ITEMS_MAX {
        return Err(DatabaseError::TooLarge(format!(
            "there are more than {ITEMS_MAX} subject attributes"
        )));
    }
    found.iter().map(attribute_of).collect()
}

/// The key of an attribute as the table has it: source, subject and name.
pub(super) type AttributeKeyText<'k> = [&'k str; 3];

/// The attributes with these keys.
pub(super) async fn find_attributes(
    connection: &mut Connection,
    keys: &[AttributeKeyText<'_>],
) -> DatabaseResult<Vec<SubjectAttribute>> {
    let mut attributes = Vec::new();
    for keys in keys.chunks(LISTED_PARAMETERS / 3) {
        let sql = format!(
            "WITH wanted (wanted_source, wanted_subject, wanted_name) AS (VALUES {}) {COLUMNS}
             JOIN wanted ON source = wanted_source AND subject = wanted_subject AND name = wanted_name",
            value_rows(connection.placeholder(), keys.len(), 3)
        );
        for row in connection.fetch(AssertSqlSafe(sql), &key_parameters(keys)).await? {
            attributes.push(attribute_of(&row)?);
        }
    }
    Ok(attributes)
}

/// Writes these attributes, with their values, over those with the same keys. Each key appears once.
pub(super) async fn upsert_attributes(
    connection: &mut Connection,
    attributes: &[(AttributeKeyText<'_>, &str)],
    revision: u64,
    actor: &str,
) -> DatabaseResult<()> {
    for attributes in attributes.chunks(LISTED_PARAMETERS / 6) {
        let sql = format!(
            "INSERT INTO subject_attribute (source, subject, name, value, revision, actor) VALUES {}
             ON CONFLICT (source, subject, name) DO UPDATE SET value = excluded.value, revision = excluded.revision,
             actor = excluded.actor",
            value_rows(connection.placeholder(), attributes.len(), 6)
        );
        let parameters: Vec<Parameter<'_>> = attributes
            .iter()
            .flat_map(|([source, subject, name], value)| {
                let texts = [*source, *subject, *name, *value].map(Parameter::from);
                texts.into_iter().chain([revision.into(), actor.into()])
            })
            .collect();
        connection.execute(AssertSqlSafe(sql), &parameters).await?;
    }
    Ok(())
}

/// Deletes the attributes with these keys.
pub(super) async fn delete_attributes(
    connection: &mut Connection,
    keys: &[AttributeKeyText<'_>],
) -> DatabaseResult<()> {
    for keys in keys.chunks(PARAMETERS / 3) {
        let sql = format!(
            "DELETE FROM subject_attribute WHERE {}",
            one_of_keys(["source", "subject", "name"], keys.len())
        );
        connection.execute(AssertSqlSafe(sql), &key_parameters(keys)).await?;
    }
    Ok(())
}

const COLUMNS: &str = "SELECT source, subject, name, value, revision, actor FROM subject_attribute";

fn attribute_of(row: &ResultRow) -> DatabaseResult<SubjectAttribute> {
    Ok(SubjectAttribute {
        source: row.text(0)?,
        subject: row.text(1)?,
        name: row.text(2)?,
        value: row.text(3)?,
        revision: row.number(4)?,
        actor: row.text(5)?,
    })
}
