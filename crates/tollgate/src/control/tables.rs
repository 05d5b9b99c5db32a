//! Override rows and subject attributes in memory: what the active rules were amended with, and what reads fall back to while the
//! database is away.

use super::database::{AttributeFilter, AttributeKey, RowFilter, RowKey, subject_text};
use super::model::{ChangeBody, LoggedChange, OverrideRow, SubjectAttribute, SubjectValues};
use super::state::RejectedRow;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use tollgate_limiter::core::rules::{AttributeEdit, RowEdit, RowProblem, RuleSet};

/// All rows and attributes. Reads take a lock that no decision ever takes.
#[derive(Debug, Default)]
pub(super) struct RowTables {
    tables: RwLock<Tables>,
}

#[derive(Debug, Default)]
struct Tables {
    /// Shared with what is made of all of them: a copy of a hundred thousand rows would be as much memory again.
    rows: BTreeMap<RowId, Arc<OverrideRow>>,
    attributes: BTreeMap<AttributeId, Arc<SubjectAttribute>>,
    /// Rows that the active rules cannot use, and why.
    rejected: BTreeMap<RowId, String>,
    /// The number of rows that expire at a time.
    expiries: BTreeMap<u64, usize>,
}

/// Domain, rule and the text of the subject: in the order of the database.
type RowId = (String, String, String);
/// Source, subject and name.
type AttributeId = (String, String, String);

/// The edits that bring a rule set to changed tables.
#[derive(Clone, Debug, Default)]
pub(super) struct TableEdits {
    pub(super) rows: Vec<RowEdit>,
    pub(super) attributes: Vec<AttributeEdit>,
}

impl RowTables {
    /// The rows after a key that pass a filter.
    pub(super) fn rows(&self, filter: &RowFilter, after: Option<&RowKey>, limit: usize) -> Vec<OverrideRow> {
        let start = match after {
            Some(key) => Bound::Excluded(id_of(&key.domain, &key.rule, &key.subject)),
            None => Bound::Unbounded,
        };
        let tables = self.read();
        let rows = tables.rows.range((start, Bound::Unbounded)).map(|(_, row)| row);
        let wanted = rows.filter(|row| passes(row, filter)).take(limit);
        wanted.map(|row| OverrideRow::clone(row)).collect()
    }

    /// One row.
    pub(super) fn row(&self, key: &RowKey) -> Option<OverrideRow> {
        let id = id_of(&key.domain, &key.rule, &key.subject);
        self.read().rows.get(&id).map(|row| OverrideRow::clone(row))
    }

    /// The reason why the active rules do not use a row.
    pub(super) fn row_error(&self, domain: &str, rule: &str, subject: &SubjectValues) -> Option<String> {
        let id = id_of(domain, rule, subject);
        self.read().rejected.get(&id).cloned()
    }

    /// The attributes after a key that pass a filter.
    pub(super) fn attributes(
        &self,
        filter: &AttributeFilter,
        after: Option<&AttributeKey>,
        limit: usize,
    ) -> Vec<SubjectAttribute> {
        let start = match after {
            Some(key) => Bound::Excluded((key.source.clone(), key.subject.clone(), key.name.clone())),
            None => Bound::Unbounded,
        };
        let tables = self.read();
        let all = tables.attributes.range((start, Bound::Unbounded));
        let is_wanted = |attribute: &&Arc<SubjectAttribute>| {
            filter.source.as_ref().is_none_or(|source| *source == attribute.source)
                && filter
                    .subject
                    .as_ref()
                    .is_none_or(|subject| *subject == attribute.subject)
                && filter
                    .text
                    .as_ref()
                    .is_none_or(|text| contains(&attribute.subject, text) || contains(&attribute.value, text))
        };
        all.map(|(_, attribute)| attribute)
            .filter(is_wanted)
            .take(limit)
            .map(|attribute| SubjectAttribute::clone(attribute))
            .collect()
    }

    /// One attribute.
    pub(super) fn attribute(&self, key: &AttributeKey) -> Option<SubjectAttribute> {
        let id = (key.source.clone(), key.subject.clone(), key.name.clone());
        let found = self.read().attributes.get(&id).map(Arc::clone)?;
        Some(SubjectAttribute::clone(&found))
    }

    /// The numbers of rows, attributes and rejected rows.
    pub(super) fn counts(&self) -> (usize, usize, usize) {
        let tables = self.read();
        (tables.rows.len(), tables.attributes.len(), tables.rejected.len())
    }

    /// The rows that the active rules cannot use, at most `limit`.
    pub(super) fn rejected(&self, limit: usize) -> Vec<RejectedRow> {
        let tables = self.read();
        let rows = tables.rejected.iter().take(limit);
        rows.map(|(id, text)| rejected_row(tables.rows.get(id).map(Arc::as_ref), id, text))
            .collect()
    }

    /// The earliest expiry of a row; none: no row expires.
    pub(super) fn next_expiry(&self) -> Option<u64> {
        self.read().expiries.keys().next().copied()
    }

    /// All rows and all attributes, by key.
    pub(super) fn all(&self) -> (Vec<Arc<OverrideRow>>, Vec<Arc<SubjectAttribute>>) {
        let tables = self.read();
        let rows = tables.rows.values().cloned().collect();
        (rows, tables.attributes.values().cloned().collect())
    }

    /// Replaces everything.
    pub(super) fn replace(&self, rows: Vec<Arc<OverrideRow>>, attributes: Vec<Arc<SubjectAttribute>>) {
        let mut expiries = BTreeMap::new();
        for row in rows.iter().filter(|row| row.expires_at > 0) {
            *expiries.entry(row.expires_at).or_default() += 1;
        }
        let next = Tables {
            rows: rows
                .into_iter()
                .map(|row| (id_of(&row.domain, &row.rule, &row.subject), row))
                .collect(),
            attributes: attributes
                .into_iter()
                .map(|attribute| (attribute_id(&attribute), attribute))
                .collect(),
            rejected: BTreeMap::new(),
            expiries,
        };
        // Readers wait for the swap only.
        *self.write() = next;
    }

    /// Applies changes in order and returns the edits for the rule set.
    pub(super) fn apply(&self, changes: &[LoggedChange]) -> TableEdits {
        let mut edits = TableEdits::default();
        let mut tables = self.write();
        for change in changes {
            tables.apply(&change.body, change.revision, &mut edits);
        }
        edits
    }

    /// Records the rows that a rule set did not take. All other rows of the edits are in use.
    pub(super) fn record_problems(&self, edits: &[RowEdit], problems: &[RowProblem]) {
        let mut tables = self.write();
        if !tables.rejected.is_empty() {
            for edit in edits {
                tables.rejected.remove(&edit_id(edit));
            }
        }
        for problem in problems {
            if let Some(edit) = edits.get(problem.index)
                && edit.terms.is_some()
            {
                tables.rejected.insert(edit_id(edit), problem.text.clone());
            }
        }
    }

    /// A rule set with all rows and attributes, and the rows it cannot use.
    pub(super) fn amended(&self, rules: &RuleSet) -> (RuleSet, Vec<RowEdit>, Vec<RowProblem>) {
        let (rows, attributes): (Vec<RowEdit>, Vec<AttributeEdit>) = {
            let tables = self.read();
            let rows = tables.rows.values().map(|row| row.edit());
            let attributes = tables.attributes.values().map(|attribute| attribute_edit(attribute));
            (rows.collect(), attributes.collect())
        };
        if rows.is_empty() && attributes.is_empty() {
            return (rules.clone(), rows, Vec::new());
        }
        let (amended, problems) = rules.amend(&rows);
        (amended.amend_attributes(&attributes).0, rows, problems)
    }

    /// The rows of edits with problems, as they are listed.
    pub(super) fn rejected_by(edits: &[RowEdit], problems: &[RowProblem]) -> Vec<RejectedRow> {
        let row = |problem: &RowProblem| {
            let edit = edits.get(problem.index)?;
            Some(RejectedRow {
                domain: edit.domain.to_string(),
                rule: edit.rule.to_string(),
                subject: subject_of(edit),
                terms: edit.terms.as_deref().unwrap_or_default().to_owned(),
                text: problem.text.clone(),
            })
        };
        problems.iter().filter_map(row).collect()
    }

    fn read(&self) -> RwLockReadGuard<'_, Tables> {
        self.tables.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Tables> {
        self.tables.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tables {
    fn note_expiry(&mut self, at: u64) {
        if at > 0 {
            *self.expiries.entry(at).or_default() += 1;
        }
    }

    fn forget_expiry(&mut self, at: u64) {
        if let Some(count) = self.expiries.get_mut(&at) {
            *count -= 1;
            if *count == 0 {
                self.expiries.remove(&at);
            }
        }
    }

    fn apply(&mut self, body: &ChangeBody, revision: u64, edits: &mut TableEdits) {
        match body {
            ChangeBody::Publish { .. } | ChangeBody::Anchor { .. } => {}
            ChangeBody::Batch { changes } => {
                for change in changes {
                    self.apply(change, revision, edits);
                }
            }
            ChangeBody::Row {
                domain,
                rule,
                subject,
                terms,
                note,
                expires_at,
            } => {
                let id = id_of(domain, rule, subject);
                let before = match terms {
                    None => {
                        self.rejected.remove(&id);
                        self.rows.remove(&id)
                    }
                    Some(terms) => {
                        let row = OverrideRow {
                            domain: domain.clone(),
                            rule: rule.clone(),
                            subject: subject.clone(),
                            terms: terms.clone(),
                            note: note.clone(),
                            expires_at: *expires_at,
                            revision,
                            actor: String::new(),
                        };
                        self.note_expiry(*expires_at);
                        self.rows.insert(id, Arc::new(row))
                    }
                };
                if let Some(row) = before {
                    self.forget_expiry(row.expires_at);
                }
                edits.rows.push(row_edit(domain, rule, subject, terms.as_deref()));
            }
            ChangeBody::Attribute {
                source,
                subject,
                name,
                value,
            } => {
                let id = (source.clone(), subject.clone(), name.clone());
                match value {
                    None => {
                        self.attributes.remove(&id);
                    }
                    Some(value) => {
                        let attribute = SubjectAttribute {
                            source: source.clone(),
                            subject: subject.clone(),
                            name: name.clone(),
                            value: value.clone(),
                            revision,
                            actor: String::new(),
                        };
                        self.attributes.insert(id, Arc::new(attribute));
                    }
                }
                edits.attributes.push(AttributeEdit {
                    source: source.as_str().into(),
                    subject: subject.as_str().into(),
                    name: name.as_str().into(),
                    value: value.as_deref().map(Into::into),
                });
            }
        }
    }
}

impl OverrideRow {
    /// The edit that sets it.
    pub(crate) fn edit(&self) -> RowEdit {
        row_edit(&self.domain, &self.rule, &self.subject, Some(&self.terms))
    }
}

/// The edit that sets a row, or deletes it where there are no terms.
pub(super) fn row_edit(domain: &str, rule: &str, subject: &SubjectValues, terms: Option<&str>) -> RowEdit {
    let subject = subject.iter().map(|(name, value)| (&**name, &**value));
    RowEdit::new(domain, rule, subject, terms)
}

fn attribute_edit(attribute: &SubjectAttribute) -> AttributeEdit {
    AttributeEdit {
        source: attribute.source.as_str().into(),
        subject: attribute.subject.as_str().into(),
        name: attribute.name.as_str().into(),
        value: Some(attribute.value.as_str().into()),
    }
}

fn id_of(domain: &str, rule: &str, subject: &SubjectValues) -> RowId {
    (domain.to_owned(), rule.to_owned(), subject_text(subject))
}

fn attribute_id(attribute: &SubjectAttribute) -> AttributeId {
    let SubjectAttribute {
        source, subject, name, ..
    } = attribute;
    (source.clone(), subject.clone(), name.clone())
}

fn edit_id(edit: &RowEdit) -> RowId {
    id_of(&edit.domain, &edit.rule, &subject_of(edit))
}

fn subject_of(edit: &RowEdit) -> SubjectValues {
    let subject = edit.subject.iter();
    subject
        .map(|(name, value)| (name.to_string(), value.to_string()))
        .collect()
}

fn rejected_row(row: Option<&OverrideRow>, (domain, rule, _): &RowId, text: &str) -> RejectedRow {
    RejectedRow {
        domain: domain.clone(),
        rule: rule.clone(),
        subject: row.map(|row| row.subject.clone()).unwrap_or_default(),
        terms: row.map(|row| row.terms.clone()).unwrap_or_default(),
        text: text.to_owned(),
    }
}

fn passes(row: &OverrideRow, filter: &RowFilter) -> bool {
    let has_text = |text: &String| contains(&row.note, text) || contains(&subject_text(&row.subject), text);
    (filter.domains.is_empty() || filter.domains.contains(&row.domain))
        && filter.rule.as_ref().is_none_or(|rule| *rule == row.rule)
        && filter.text.as_ref().is_none_or(has_text)
        && filter
            .expires_before
            .is_none_or(|before| row.expires_at > 0 && row.expires_at < before)
}

/// True if a text contains another, without regard to the case of ASCII letters, as in the database.
fn contains(text: &str, part: &str) -> bool {
    text.to_ascii_lowercase().contains(&part.to_ascii_lowercase())
}

#[cfg(test)]
mod tests;
