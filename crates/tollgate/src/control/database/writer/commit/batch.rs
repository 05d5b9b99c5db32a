//! Rows and attributes of one change: those that change nothing are left out, the others get one revision.

use crate::control::database::error::DatabaseResult;
use crate::control::database::requests::{AttributeKey, CommitRequest, RowKey};
use crate::control::database::writer::ledger::{AuditDraft, Ledger, SizedTable};
use crate::control::database::{attributes, rows};
use crate::control::model::{ChangeBody, Digest, LoggedChange, OverrideRow, SubjectAttribute};
use std::collections::HashMap;

/// The stored items that a change names, by key.
#[derive(Default)]
struct StoredItems {
    rows: HashMap<ItemParts, OverrideRow>,
    attributes: HashMap<ItemParts, SubjectAttribute>,
}

/// The columns of the key of a row or an attribute.
type ItemParts = [String; 3];

/// The statements of a change.
#[derive(Default)]
struct BatchWrites {
    rows: Vec<OverrideRow>,
    deleted_rows: Vec<RowKey>,
    attributes: Vec<SubjectAttribute>,
    deleted_attributes: Vec<AttributeKey>,
}

/// Applies rows and attributes. Returns the change, if there is one, and the latest revision of the items as they were.
pub(super) async fn apply(
    ledger: &mut Ledger,
    request: &CommitRequest,
    group: &[ChangeBody],
) -> DatabaseResult<(Option<LoggedChange>, u64)> {
    let group = last_of_each_key(group);
    // The lock first: what is read below must not change until the commit.
    let revision = ledger.head().await?.revision + 1;
    let stored = StoredItems::find(ledger, &group).await?;
    let unchanged = group.iter().map(|change| stored.revision(change)).max().unwrap_or(0);
    let mut effective: Vec<ChangeBody> = group.into_iter().filter(|change| !stored.equals(change)).collect();
    let (before, after) = (stored.json_before(&effective), json_after(&effective));
    let mut writes = BatchWrites::default();
    for change in &effective {
        writes.add(change, revision, &request.author.actor);
    }
    stored.resize(ledger, &writes).await?;
    let (action, target, body) = match (effective.pop(), effective.is_empty()) {
        (None, _) => return Ok((None, unchanged)),
        (Some(only), true) => (action_of(&only), target_of(&only), only),
        (Some(last), false) => {
            effective.push(last);
            let target = format!("{} items", effective.len());
            ("import", target, ChangeBody::Batch { changes: effective })
        }
    };
    let change = ledger.append(&target, body).await?;
    writes.execute(ledger).await?;
    ledger
        .audit(AuditDraft {
            author: &request.author,
            action: request.action.as_deref().unwrap_or(action),
            target: &target,
            before: &before,
            after: &after,
            revision: change.revision,
        })
        .await?;
    Ok((Some(change), unchanged))
}

/// The JSON text of a row, as the audit log has it.
pub(super) fn row_json(row: &OverrideRow) -> String {
    serde_json::json!({
        "domain": row.domain, "rule": row.rule, "subject": row.subject, "terms": row.terms, "note": row.note,
        "expires_at": row.expires_at,
    })
    .to_string()
}

/// The JSON text of an attribute, as the audit log has it.
pub(super) fn attribute_json(attribute: &SubjectAttribute) -> String {
    serde_json::json!({
        "source": attribute.source, "subject": attribute.subject, "name": attribute.name, "value": attribute.value,
    })
    .to_string()
}

/// The JSON text of a published version, as the audit log has it.
pub(super) fn version_json(number: u64, digest: &Digest) -> String {
    serde_json::json!({ "version": number, "digest": digest }).to_string()
}

impl StoredItems {
    async fn find(ledger: &mut Ledger, group: &[ChangeBody]) -> DatabaseResult<Self> {
        let row_keys: Vec<RowKey> = group.iter().filter_map(row_key).collect();
        let attribute_keys: Vec<AttributeKey> = group.iter().filter_map(attribute_key).collect();
        let mut stored = Self::default();
        for row in rows::find_rows(&mut ledger.connection, &row_keys).await? {
            let key = [row.domain.clone(), row.rule.clone(), rows::subject_text(&row.subject)];
            stored.rows.insert(key, row);
        }
        for attribute in attributes::find_attributes(&mut ledger.connection, &attribute_keys).await? {
            let key = [&attribute.source, &attribute.subject, &attribute.name].map(Clone::clone);
            stored.attributes.insert(key, attribute);
        }
        Ok(stored)
    }

    /// Counts the items that are new, and those that are deleted.
    async fn resize(&self, ledger: &mut Ledger, writes: &BatchWrites) -> DatabaseResult<()> {
        let is_new_row = |row: &&OverrideRow| {
            let key = [row.domain.clone(), row.rule.clone(), rows::subject_text(&row.subject)];
            !self.rows.contains_key(&key)
        };
        let is_new_attribute = |attribute: &&SubjectAttribute| {
            let key = [&attribute.source, &attribute.subject, &attribute.name].map(Clone::clone);
            !self.attributes.contains_key(&key)
        };
        let added = writes.rows.iter().filter(is_new_row).count();
        let removed = writes.deleted_rows.len();
        ledger.resize(SizedTable::Rows, added as u64, removed as u64).await?;
        let added = writes.attributes.iter().filter(is_new_attribute).count();
        let removed = writes.deleted_attributes.len();
        ledger
            .resize(SizedTable::Attributes, added as u64, removed as u64)
            .await
    }

    fn row(&self, change: &ChangeBody) -> Option<&OverrideRow> {
        let ("row", parts) = parts_of(change)? else { return None };
        self.rows.get(&parts)
    }

    fn attribute(&self, change: &ChangeBody) -> Option<&SubjectAttribute> {
        let ("attribute", parts) = parts_of(change)? else {
            return None;
        };
        self.attributes.get(&parts)
    }

    /// The revision of the item that a change names; 0: it does not exist.
    fn revision(&self, change: &ChangeBody) -> u64 {
        match change {
            ChangeBody::Row { .. } => self.row(change).map_or(0, |row| row.revision),
            _ => self.attribute(change).map_or(0, |attribute| attribute.revision),
        }
    }

    /// True if the change would change nothing.
    fn equals(&self, change: &ChangeBody) -> bool {
        match change {
            ChangeBody::Row {
                terms,
                note,
                expires_at,
                ..
            } => match (self.row(change), terms) {
                (Some(row), Some(terms)) => row.terms == *terms && row.note == *note && row.expires_at == *expires_at,
                (stored, terms) => stored.is_none() && terms.is_none(),
            },
            ChangeBody::Attribute { value, .. } => match (self.attribute(change), value) {
                (Some(attribute), Some(value)) => attribute.value == *value,
                (stored, value) => stored.is_none() && value.is_none(),
            },
            _ => true,
        }
    }

    /// The items before these changes: one as an object, several as a list.
    fn json_before(&self, changes: &[ChangeBody]) -> String {
        joined(
            changes.len(),
            changes.iter().filter_map(|change| {
                self.row(change)
                    .map(row_json)
                    .or_else(|| self.attribute(change).map(attribute_json))
            }),
        )
    }
}

impl BatchWrites {
    fn add(&mut self, change: &ChangeBody, revision: u64, actor: &str) {
        match change {
            ChangeBody::Row {
                domain,
                rule,
                subject,
                terms: Some(terms),
                note,
                expires_at,
            } => self.rows.push(OverrideRow {
                domain: domain.clone(),
                rule: rule.clone(),
                subject: subject.clone(),
                terms: terms.clone(),
                note: note.clone(),
                expires_at: *expires_at,
                revision,
                actor: actor.to_owned(),
            }),
            ChangeBody::Attribute {
                source,
                subject,
                name,
                value: Some(value),
            } => self.attributes.push(SubjectAttribute {
                source: source.clone(),
                subject: subject.clone(),
                name: name.clone(),
                value: value.clone(),
                revision,
                actor: actor.to_owned(),
            }),
            _ => {
                self.deleted_rows.extend(row_key(change));
                self.deleted_attributes.extend(attribute_key(change));
            }
        }
    }

    async fn execute(&self, ledger: &mut Ledger) -> DatabaseResult<()> {
        let connection = &mut ledger.connection;
        rows::upsert_rows(connection, &self.rows).await?;
        rows::delete_rows(connection, &self.deleted_rows).await?;
        attributes::upsert_attributes(connection, &self.attributes).await?;
        attributes::delete_attributes(connection, &self.deleted_attributes).await
    }
}

/// The changes without those that a later one replaces: a statement cannot write one key twice.
fn last_of_each_key(group: &[ChangeBody]) -> Vec<ChangeBody> {
    let mut last = HashMap::new();
    for (index, change) in group.iter().enumerate() {
        last.insert(parts_of(change), index);
    }
    let mut kept: Vec<usize> = last.into_values().collect();
    kept.sort_unstable();
    kept.iter().filter_map(|&index| group.get(index).cloned()).collect()
}

/// The kind and the key of the item of a change.
fn parts_of(change: &ChangeBody) -> Option<(&'static str, ItemParts)> {
    match change {
        ChangeBody::Row {
            domain, rule, subject, ..
        } => Some(("row", [domain.clone(), rule.clone(), rows::subject_text(subject)])),
        ChangeBody::Attribute {
            source, subject, name, ..
        } => Some(("attribute", [source, subject, name].map(Clone::clone))),
        _ => None,
    }
}

fn row_key(change: &ChangeBody) -> Option<RowKey> {
    let ChangeBody::Row {
        domain, rule, subject, ..
    } = change
    else {
        return None;
    };
    Some(RowKey {
        domain: domain.clone(),
        rule: rule.clone(),
        subject: subject.clone(),
    })
}

fn attribute_key(change: &ChangeBody) -> Option<AttributeKey> {
    let ChangeBody::Attribute {
        source, subject, name, ..
    } = change
    else {
        return None;
    };
    Some(AttributeKey {
        source: source.clone(),
        subject: subject.clone(),
        name: name.clone(),
    })
}

/// The text that names the item of a change: the target in the audit log and the key in the log of changes.
fn target_of(change: &ChangeBody) -> String {
    match parts_of(change) {
        Some(("row", [domain, rule, subject])) => format!("{domain}/{rule} {subject}"),
        Some((_, [source, subject, name])) => format!("{source}={subject} {name}"),
        None => String::new(),
    }
}

const fn action_of(change: &ChangeBody) -> &'static str {
    match change {
        ChangeBody::Row { terms: Some(_), .. } => "row.set",
        ChangeBody::Row { .. } => "row.delete",
        ChangeBody::Attribute { value: Some(_), .. } => "attribute.set",
        _ => "attribute.delete",
    }
}

/// The items after these changes, without those that are deleted.
fn json_after(changes: &[ChangeBody]) -> String {
    let items = changes.iter().filter_map(|change| {
        let mut writes = BatchWrites::default();
        writes.add(change, 0, "");
        let row = writes.rows.first().map(row_json);
        row.or_else(|| writes.attributes.first().map(attribute_json))
    });
    joined(changes.len(), items)
}

fn joined(changes: usize, items: impl Iterator<Item = String>) -> String {
    let items: Vec<String> = items.collect();
    if changes > 1 {
        format!("[{}]", items.join(","))
    } else {
        items.concat()
    }
}
