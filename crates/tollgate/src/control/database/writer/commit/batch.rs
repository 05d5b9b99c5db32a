//! Rows and attributes of one change: those that change nothing are left out, the others get one revision.

use crate::control::database::error::DatabaseResult;
use crate::control::database::query::record;
use crate::control::database::requests::CommitRequest;
use crate::control::database::rows::RowRecord;
use crate::control::database::writer::ledger::{Ledger, SizedTable};
use crate::control::database::{attributes, rows};
use crate::control::model::{ChangeBody, Digest, LoggedChange, OverrideRow, SubjectAttribute, SubjectValues};
use serde::Serialize;
use std::borrow::Cow;
use std::collections::HashMap;

/// A row or an attribute, the change of it, and what is stored of it.
struct Item<'c> {
    kind: ItemKind,
    /// The columns of its key.
    key: [Cow<'c, str>; 3],
    change: &'c ChangeBody,
    stored: Option<StoredItem>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ItemKind {
    Row,
    Attribute,
}

/// An item as it is stored.
enum StoredItem {
    Row(OverrideRow),
    Attribute(SubjectAttribute),
}

/// The key of an item, to find it by.
type ItemName<'i> = (ItemKind, [&'i str; 3]);

/// A row as the audit log has it: members by name.
#[derive(Serialize)]
struct RowJson<'r> {
    domain: &'r str,
    expires_at: u64,
    note: &'r str,
    rule: &'r str,
    subject: &'r SubjectValues,
    terms: &'r str,
}

/// An attribute as the audit log has it: members by name.
#[derive(Serialize)]
struct AttributeJson<'a> {
    name: &'a str,
    source: &'a str,
    subject: &'a str,
    value: &'a str,
}

/// Applies rows and attributes. Returns the change, if there is one, and the latest revision of the items as they were.
pub(super) async fn apply(
    ledger: &mut Ledger,
    request: &CommitRequest,
    group: &[ChangeBody],
) -> DatabaseResult<(Option<LoggedChange>, u64)> {
    let mut items = last_of_each_key(group);
    // The lock first: what is read below must not change until the commit.
    let revision = ledger.head().await?.revision + 1;
    find_stored(ledger, &mut items).await?;
    let unchanged = items.iter().map(Item::revision).max().unwrap_or(0);
    items.retain(|item| !item.is_unchanged());
    resize(ledger, &items).await?;
    let (action, target, body) = match items.as_slice() {
        [] => return Ok((None, unchanged)),
        [only] => (only.action(), only.target(), only.change.clone()),
        several => {
            let changes = several.iter().map(|item| item.change.clone()).collect();
            (
                "import",
                format!("{} items", several.len()),
                ChangeBody::Batch { changes },
            )
        }
    };
    let before = joined(items.len(), items.iter().filter_map(Item::json_before));
    let after = joined(items.len(), items.iter().filter_map(Item::json_after));
    let change = ledger.append(&target, body).await?;
    execute(ledger, &items, revision, &request.author.actor).await?;
    super::audit(ledger, request, action, (&target, change.revision), (&before, &after)).await?;
    Ok((Some(change), unchanged))
}

/// The JSON text of a row, as the audit log has it.
pub(super) fn row_json(row: &OverrideRow) -> String {
    json(&RowJson {
        domain: &row.domain,
        expires_at: row.expires_at,
        note: &row.note,
        rule: &row.rule,
        subject: &row.subject,
        terms: &row.terms,
    })
}

/// The JSON text of an attribute, as the audit log has it.
pub(super) fn attribute_json(attribute: &SubjectAttribute) -> String {
    json(&AttributeJson {
        name: &attribute.name,
        source: &attribute.source,
        subject: &attribute.subject,
        value: &attribute.value,
    })
}

/// The JSON text of a published version, as the audit log has it.
pub(super) fn version_json(number: u64, digest: &Digest) -> String {
    serde_json::json!({ "version": number, "digest": digest }).to_string()
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("it has only texts, numbers and maps with text keys")
}

/// The items of changes, without those that a later one replaces: a statement cannot write one key twice.
fn last_of_each_key(group: &[ChangeBody]) -> Vec<Item<'_>> {
    let mut items: Vec<Item<'_>> = group.iter().filter_map(Item::new).collect();
    let mut last: HashMap<ItemName<'_>, usize> = HashMap::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        last.insert(item.name(), index);
    }
    if last.len() < items.len() {
        let mut kept: Vec<usize> = last.into_values().collect();
        kept.sort_unstable();
        let mut index = 0;
        items.retain(|_| {
            index += 1;
            kept.binary_search(&(index - 1)).is_ok()
        });
    }
    items
}

/// Reads what is stored of these items.
async fn find_stored(ledger: &mut Ledger, items: &mut [Item<'_>]) -> DatabaseResult<()> {
    let keys = |kind| -> Vec<[&str; 3]> {
        let of_kind = items.iter().filter(|item| item.kind == kind);
        of_kind.map(|item| item.name().1).collect()
    };
    let connection = &mut ledger.connection;
    let rows: Vec<OverrideRow> = record::find(connection, &keys(ItemKind::Row)).await?;
    let attributes: Vec<SubjectAttribute> = record::find(connection, &keys(ItemKind::Attribute)).await?;
    let mut stored: HashMap<(ItemKind, [String; 3]), StoredItem> =
        HashMap::with_capacity(rows.len() + attributes.len());
    for row in rows {
        let key = [row.domain.clone(), row.rule.clone(), rows::subject_text(&row.subject)];
        stored.insert((ItemKind::Row, key), StoredItem::Row(row));
    }
    for attribute in attributes {
        let key = [&attribute.source, &attribute.subject, &attribute.name].map(Clone::clone);
        stored.insert((ItemKind::Attribute, key), StoredItem::Attribute(attribute));
    }
    if stored.is_empty() {
        return Ok(());
    }
    for item in items {
        let key = item.name().1.map(str::to_owned);
        item.stored = stored.remove(&(item.kind, key));
    }
    Ok(())
}

/// Counts the items that are new, and those that are deleted.
async fn resize(ledger: &mut Ledger, items: &[Item<'_>]) -> DatabaseResult<()> {
    for (kind, table) in [
        (ItemKind::Row, SizedTable::Rows),
        (ItemKind::Attribute, SizedTable::Attributes),
    ] {
        let of_kind = || items.iter().filter(|item| item.kind == kind);
        let added = of_kind().filter(|item| item.stored.is_none()).count();
        let removed = of_kind().filter(|item| item.is_deletion()).count();
        ledger.resize(table, added as u64, removed as u64).await?;
    }
    Ok(())
}

/// Writes the items.
async fn execute(ledger: &mut Ledger, items: &[Item<'_>], revision: u64, actor: &str) -> DatabaseResult<()> {
    let (mut row_records, mut attribute_records) = (Vec::new(), Vec::new());
    let mut deleted = [Vec::new(), Vec::new()];
    for item in items {
        let key = item.name().1;
        match (item.change, &mut deleted) {
            (
                ChangeBody::Row {
                    terms: Some(terms),
                    note,
                    expires_at,
                    ..
                },
                _,
            ) => row_records.push(RowRecord {
                key,
                terms,
                note,
                expires_at: *expires_at,
            }),
            (ChangeBody::Attribute { value: Some(value), .. }, _) => attribute_records.push((key, value.as_str())),
            (ChangeBody::Row { .. }, [rows, _]) => rows.push(key),
            (_, [_, attributes]) => attributes.push(key),
        }
    }
    let [deleted_rows, deleted_attributes] = deleted;
    let connection = &mut ledger.connection;
    rows::upsert_rows(connection, &row_records, revision, actor).await?;
    record::delete::<OverrideRow>(connection, &deleted_rows).await?;
    attributes::upsert_attributes(connection, &attribute_records, revision, actor).await?;
    record::delete::<SubjectAttribute>(connection, &deleted_attributes).await
}

impl<'c> Item<'c> {
    /// The item of a change; none: it is of another kind.
    fn new(change: &'c ChangeBody) -> Option<Self> {
        let (kind, key) = match change {
            ChangeBody::Row {
                domain, rule, subject, ..
            } => {
                let key = [domain.into(), rule.into(), rows::subject_text(subject).into()];
                (ItemKind::Row, key)
            }
            ChangeBody::Attribute {
                source, subject, name, ..
            } => (ItemKind::Attribute, [source.into(), subject.into(), name.into()]),
            _ => return None,
        };
        Some(Self {
            kind,
            key,
            change,
            stored: None,
        })
    }

    fn name(&self) -> ItemName<'_> {
        (self.kind, self.key.each_ref().map(|text| &**text))
    }

    /// Its revision; 0: it does not exist.
    fn revision(&self) -> u64 {
        match &self.stored {
            Some(StoredItem::Row(row)) => row.revision,
            Some(StoredItem::Attribute(attribute)) => attribute.revision,
            None => 0,
        }
    }

    /// True if the change deletes it.
    const fn is_deletion(&self) -> bool {
        matches!(
            self.change,
            ChangeBody::Row { terms: None, .. } | ChangeBody::Attribute { value: None, .. }
        )
    }

    /// True if the change would change nothing.
    fn is_unchanged(&self) -> bool {
        match (self.change, &self.stored) {
            (
                ChangeBody::Row {
                    terms: Some(terms),
                    note,
                    expires_at,
                    ..
                },
                Some(StoredItem::Row(row)),
            ) => row.terms == *terms && row.note == *note && row.expires_at == *expires_at,
            (ChangeBody::Attribute { value: Some(value), .. }, Some(StoredItem::Attribute(attribute))) => {
                attribute.value == *value
            }
            (_, stored) => stored.is_none() && self.is_deletion(),
        }
    }

    /// The action in the audit log.
    const fn action(&self) -> &'static str {
        match (self.kind, self.is_deletion()) {
            (ItemKind::Row, false) => "row.set",
            (ItemKind::Row, true) => "row.delete",
            (ItemKind::Attribute, false) => "attribute.set",
            (ItemKind::Attribute, true) => "attribute.delete",
        }
    }

    /// The text that names it: the target in the audit log and the key in the log of changes.
    fn target(&self) -> String {
        match self.name() {
            (ItemKind::Row, [domain, rule, subject]) => format!("{domain}/{rule} {subject}"),
            (ItemKind::Attribute, [source, subject, name]) => format!("{source}={subject} {name}"),
        }
    }

    fn json_before(&self) -> Option<String> {
        self.stored.as_ref().map(|stored| match stored {
            StoredItem::Row(row) => row_json(row),
            StoredItem::Attribute(attribute) => attribute_json(attribute),
        })
    }

    /// None: it is deleted.
    fn json_after(&self) -> Option<String> {
        match self.change {
            ChangeBody::Row {
                domain,
                rule,
                subject,
                terms,
                note,
                expires_at,
            } => Some(json(&RowJson {
                domain,
                expires_at: *expires_at,
                note,
                rule,
                subject,
                terms: terms.as_ref()?,
            })),
            ChangeBody::Attribute {
                source,
                subject,
                name,
                value,
            } => Some(json(&AttributeJson {
                name,
                source,
                subject,
                value: value.as_ref()?,
            })),
            _ => None,
        }
    }
}

/// The text of several items is a list, and that of one the item.
fn joined(changes: usize, items: impl Iterator<Item = String>) -> String {
    let items: Vec<String> = items.collect();
    if changes > 1 {
        format!("[{}]", items.join(","))
    } else {
        items.concat()
    }
}
