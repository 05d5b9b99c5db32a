//! Subject attributes: lists, look-ups, and the statements of a commit.

use super::Database;
use super::connection::{Connection, Parameter};
use super::error::DatabaseResult;
use super::query::record::{KeyText, KeyedRecord, record};
use super::query::{LISTED_PARAMETERS, Select, contains, value_rows};
use super::requests::{AttributeFilter, AttributeKey};
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
        let mut select = Select::records::<SubjectAttribute>();
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
        self.records(select.order_by("source, subject, name", limit)).await
    }

    /// Returns one attribute.
    ///
    /// # Errors
    /// An unavailable or damaged database.
    pub async fn attribute(&self, key: &AttributeKey) -> DatabaseResult<Option<SubjectAttribute>> {
        let mut select = Select::records::<SubjectAttribute>();
        select.and("source = ", &key.source);
        select.and("subject = ", &key.subject);
        select.and("name = ", &key.name);
        Ok(self.records(select.order_by("name", 1)).await?.pop())
    }
}

/// Writes these attributes, with their values, over those with the same keys. Each key appears once.
pub(super) async fn upsert_attributes(
    connection: &mut Connection,
    attributes: &[(KeyText<'_>, &str)],
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

record!(SubjectAttribute, "subject_attribute": source, subject, name, value, revision, actor);

impl KeyedRecord for SubjectAttribute {
    const KEY: [&'static str; 3] = ["source", "subject", "name"];
    const PLURAL: &'static str = "subject attributes";
}
