//! Writes of override rows and subject attributes.

use super::{AttributeWrite, RowWrite, WriteOptions, Written, commit};
use crate::control::database::{AttributeKey, CommitRequest, Committed, ItemCondition, ItemKey, RowKey};
use crate::control::layers::ControlParts;
use crate::control::model::{Author, ChangeBody, SubjectValues};
use crate::control::tables::row_edit;
use crate::control::{ControlError, ControlResult, SetProblem};
use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tollgate_limiter::core::rules::{AttributeEdit, RowEdit, RuleSet};
use tollgate_limiter::core::spelling::is_misspelling_of_known;

/// Sets and deletes rows, all or none.
pub(in crate::control) async fn write_rows(
    parts: &Arc<ControlParts>,
    mut rows: Vec<RowWrite>,
    options: &WriteOptions,
    author: Author,
) -> ControlResult<Written> {
    check_count(rows.len())?;
    count_subjects(parts, &mut rows);
    check_rows(parts, &rows, options)?;
    let items = rows.into_iter().map(|row| {
        let key = ItemKey::Row(row_key(&row));
        let body = ChangeBody::Row {
            domain: row.domain,
            rule: row.rule,
            subject: row.subject,
            terms: row.terms,
            note: row.note,
            expires_at: row.expires_at,
        };
        (key, body)
    });
    commit_items(parts, items.collect(), options, author).await
}

/// Sets and deletes subject attributes, all or none.
pub(in crate::control) async fn write_attributes(
    parts: &Arc<ControlParts>,
    attributes: Vec<AttributeWrite>,
    options: &WriteOptions,
    author: Author,
) -> ControlResult<Written> {
    check_count(attributes.len())?;
    let problems: Vec<SetProblem> = attributes
        .iter()
        .zip(1..)
        .filter_map(|(attribute, line)| attribute_problem(attribute).map(|problem| problem.at_line(line)))
        .collect();
    let problems = match problems.is_empty() {
        true => check_attributes(parts, &attributes),
        false => problems,
    };
    if !problems.is_empty() {
        return Err(ControlError::Invalid(problems));
    }
    let items = attributes.into_iter().map(|attribute| {
        let key = ItemKey::Attribute(attribute_key(&attribute));
        let body = ChangeBody::Attribute {
            source: attribute.source,
            subject: attribute.subject,
            name: attribute.name,
            value: attribute.value,
        };
        (key, body)
    });
    commit_items(parts, items.collect(), options, author).await
}

/// Commits changes of rows or attributes, all or none. A precondition is that of the only one.
async fn commit_items(
    parts: &Arc<ControlParts>,
    items: Vec<(ItemKey, ChangeBody)>,
    options: &WriteOptions,
    author: Author,
) -> ControlResult<Written> {
    let revision = |key: &ItemKey| match key {
        ItemKey::Row(key) => parts.tables.row(key).map(|row| row.revision),
        ItemKey::Attribute(key) => parts.tables.attribute(key).map(|attribute| attribute.revision),
        ItemKey::Set | ItemKey::Rule { .. } => None,
    };
    let created = items.iter().any(|(key, _)| revision(key).is_none());
    let conditions = match items.as_slice() {
        [(key, _)] => vec![ItemCondition {
            item: key.clone(),
            precondition: options.precondition.clone(),
        }],
        _ => Vec::new(),
    };
    if options.dry_run {
        let current = items.first().and_then(|(key, _)| revision(key));
        return check_conditions(parts, &conditions, current.unwrap_or(0), items.len());
    }
    let request = CommitRequest {
        author,
        conditions,
        changes: items.into_iter().map(|(_, body)| body).collect(),
        rules: Vec::new(),
        row_check: None,
        action: None,
    };
    let committed = commit(parts, request).await?;
    Ok(finish(parts, &committed, created).await)
}

/// The result of a commit. The follower has a moment to apply it, so that the next read shows it.
async fn finish(parts: &ControlParts, committed: &Committed, created: bool) -> Written {
    if !committed.changes.is_empty() {
        parts.wait_applied(committed.revision, APPLY_WAIT).await;
    }
    let count = |body: &ChangeBody| match body {
        ChangeBody::Batch { changes } => changes.len(),
        _ => 1,
    };
    Written {
        epoch: committed.head.epoch,
        revision: committed.revision,
        changed: committed.changes.iter().map(|change| count(&change.body)).sum(),
        revisions: committed.changes.len(),
        created: created && !committed.changes.is_empty(),
    }
}

/// The result of a dry run, after its conditions were checked against memory.
fn check_conditions(
    parts: &ControlParts,
    conditions: &[ItemCondition],
    revision: u64,
    count: usize,
) -> ControlResult<Written> {
    let epoch = parts.live.load().epoch();
    let holds = |condition: &ItemCondition| condition.precondition.holds(epoch, revision);
    if !conditions.iter().all(holds) {
        return Err(ControlError::stale(epoch, revision));
    }
    Ok(Written {
        epoch,
        revision,
        changed: count,
        revisions: 0,
        created: revision == 0,
    })
}

/// Writes the addresses of subjects as their rules count them, so that one network is one row.
fn count_subjects(parts: &ControlParts, rows: &mut [RowWrite]) {
    let rules = parts.gate.active_rules();
    for row in rows {
        for (name, value) in &mut row.subject {
            if let Cow::Owned(counted) = rules.counted_value(&row.domain, &row.rule, name, value) {
                *value = counted;
            }
        }
    }
}

/// Checks rows as the active rules would take them.
fn check_rows(parts: &ControlParts, rows: &[RowWrite], options: &WriteOptions) -> ControlResult<()> {
    let rules = parts.gate.active_rules();
    let mut problems = Vec::new();
    for (row, line) in rows.iter().zip(1..) {
        let is_orphan = rules.rule(&row.domain, &row.rule).is_none();
        if is_orphan && row.terms.is_some() && !options.allow_orphan {
            let name = format!("rule `{}` in the domain `{}`", row.rule, row.domain);
            if rows.len() == 1 {
                return Err(ControlError::NotFound(name));
            }
            problems.push(SetProblem::error(format!("there is no {name}")).at_line(line));
        }
        problems.extend(row_problem(row).map(|problem| problem.at_line(line)));
    }
    let edits: Vec<RowEdit> = rows
        .iter()
        .map(|row| row_edit(&row.domain, &row.rule, &row.subject, row.terms.as_deref()))
        .collect();
    let (_, found) = rules.amend(&edits);
    for problem in found {
        let line = u32::try_from(problem.index + 1).unwrap_or(u32::MAX);
        problems.push(SetProblem::error(problem.text).with_hint(problem.hint).at_line(line));
    }
    match problems.is_empty() {
        true => Ok(()),
        false => {
            problems.sort_by_key(|problem| problem.line);
            problems.truncate(PROBLEMS_MAX);
            Err(ControlError::Invalid(problems))
        }
    }
}

/// The problems of attributes that the active rules would not take, such as one too many.
fn check_attributes(parts: &ControlParts, attributes: &[AttributeWrite]) -> Vec<SetProblem> {
    let edits: Vec<AttributeEdit> = attributes
        .iter()
        .map(|attribute| AttributeEdit {
            source: attribute.source.as_str().into(),
            subject: attribute.subject.as_str().into(),
            name: attribute.name.as_str().into(),
            value: attribute.value.as_deref().map(Into::into),
        })
        .collect();
    let (_, found) = parts.gate.active_rules().amend_attributes(&edits);
    let problems = found.into_iter().take(PROBLEMS_MAX).map(|problem| {
        let line = u32::try_from(problem.index + 1).unwrap_or(u32::MAX);
        SetProblem::error(problem.text).with_hint(problem.hint).at_line(line)
    });
    problems.collect()
}

/// Warnings about attributes of subjects that are probably misspelt: such a row matches nothing. Any name is valid, so one is compared
/// with those that rules of its domain use.
pub(in crate::control) fn warnings<'r>(
    rules: &RuleSet,
    rows: impl IntoIterator<Item = (&'r str, &'r str, &'r SubjectValues)>,
) -> Vec<SetProblem> {
    let mut used: HashMap<&str, Vec<&str>> = HashMap::new();
    let mut seen = HashSet::new();
    let mut warnings = Vec::new();
    for ((domain, rule, subject), line) in rows.into_iter().zip(1..) {
        let used = used.entry(domain).or_insert_with(|| names_used(rules, domain));
        for name in subject.keys().filter(|name| !used.contains(&name.as_str())) {
            let meant = used.iter().find(|known| is_misspelling_of_known(name, known));
            if let Some(meant) = meant
                && seen.insert((domain, rule, name))
                && warnings.len() < WARNINGS_MAX
            {
                let text = format!("the attribute `{name}` may be misspelt: no rule of this domain uses it");
                let hint = format!("did you mean `{meant}`?");
                warnings.push(SetProblem::warning(text).with_hint(hint).at_line(line));
            }
        }
    }
    warnings
}

/// The attributes that rules of a domain use, and those that are derived.
fn names_used<'s>(rules: &'s RuleSet, domain: &str) -> Vec<&'s str> {
    let of_domain = rules.rules().iter().filter(|rule| rule.domain() == domain);
    let mut names: BTreeSet<&str> = of_domain
        .flat_map(|rule| {
            let per = rule.per().iter().map(|dimension| dimension.attribute());
            per.chain(rule.when().iter().map(|condition| condition.attribute()))
        })
        .collect();
    for derived in rules.derived_attributes() {
        names.extend([&*derived.name, &*derived.from]);
    }
    names.into_iter().collect()
}

/// The problem of a row that no rule set would take.
fn row_problem(row: &RowWrite) -> Option<SetProblem> {
    let is_bad = |text: &String, max: usize| text.is_empty() || text.len() > max || text.contains(char::is_control);
    if is_bad(&row.domain, NAME_MAX) || is_bad(&row.rule, NAME_MAX) {
        return Some(SetProblem::error(
            "a row names the domain and the id of its rule, 1 to 256 bytes each",
        ));
    }
    let is_bad_subject = row.subject.is_empty()
        || row.subject.len() > SUBJECT_MAX
        || row.subject.keys().any(|name| is_bad(name, NAME_MAX))
        || row.subject.values().any(|value| value.len() > VALUE_MAX);
    if is_bad_subject {
        let text = "a subject has 1 to 8 attributes, with names up to 256 bytes and values up to 1024";
        return Some(SetProblem::error(text).with_hint("write for example `merchant=m_42`"));
    }
    if row.note.len() > NOTE_MAX || row.terms.as_ref().is_some_and(|terms| terms.len() > VALUE_MAX) {
        return Some(SetProblem::error(
            "a note has at most 500 bytes, and terms at most 1024",
        ));
    }
    None
}

fn attribute_problem(attribute: &AttributeWrite) -> Option<SetProblem> {
    let is_bad = |text: &str, max: usize| text.is_empty() || text.len() > max || text.contains(char::is_control);
    let value = attribute.value.as_deref();
    let is_invalid = is_bad(&attribute.source, NAME_MAX)
        || is_bad(&attribute.name, NAME_MAX)
        || is_bad(&attribute.subject, VALUE_MAX)
        || value.is_some_and(|value| is_bad(value, VALUE_MAX));
    is_invalid.then(|| {
        SetProblem::error("an attribute has a source, a subject, a name and a value without control characters")
            .with_hint("names have at most 256 bytes, subjects and values 1024")
    })
}

fn check_count(count: usize) -> ControlResult<()> {
    match count {
        0 => Err(ControlError::Malformed("there is nothing to write".to_owned())),
        _ if count > IMPORT_MAX => Err(ControlError::TooLarge(format!(
            "one request writes at most {IMPORT_MAX} rows; send several"
        ))),
        _ => Ok(()),
    }
}

fn row_key(row: &RowWrite) -> RowKey {
    RowKey {
        domain: row.domain.clone(),
        rule: row.rule.clone(),
        subject: row.subject.clone(),
    }
}

fn attribute_key(attribute: &AttributeWrite) -> AttributeKey {
    AttributeKey {
        source: attribute.source.clone(),
        subject: attribute.subject.clone(),
        name: attribute.name.clone(),
    }
}

const IMPORT_MAX: usize = 10_000;
const PROBLEMS_MAX: usize = 1_000;
const WARNINGS_MAX: usize = 20;
const NAME_MAX: usize = 256;
const VALUE_MAX: usize = 1_024;
const NOTE_MAX: usize = 500;
/// As many as an override in a file may name.
const SUBJECT_MAX: usize = 8;
/// Short: the follower applies at most ten times a second, and a write must not wait for its turn.
const APPLY_WAIT: Duration = Duration::from_millis(5);
