//! Override rows.

use super::EndpointResult;
use super::stale::{self, PresentItem};
use crate::control::database::{AuditRecord, RowFilter, RowKey};
use crate::control::model::{OverrideRow, SubjectValues};
use crate::control::{ControlError, RowWrite, SetProblem, WriteOptions, Written};
use crate::server::admin::access::now_ms;
use crate::server::admin::problem::AdminProblem;
use crate::server::admin::reply::Reply;
use crate::server::admin::request::table::{self, TableFormat, csv_cell};
use crate::server::admin::request::{Call, NUMBER_MAX, need_reason, time};
use hyper::StatusCode;
use hyper::header::HeaderName;
use serde::Deserialize;
use serde_json::{Value, json};
use tollgate_limiter::core::quantity::{Quota, parse_quota};
use tollgate_limiter::core::rules::Attempt;

/// A row as the API has it, with its subject as the caller may see it.
pub(in crate::server::admin) fn row_item(call: &Call, row: &OverrideRow) -> Value {
    let control = call.control();
    let epoch = call.epoch();
    let subject: SubjectValues = row
        .subject
        .iter()
        .map(|(name, value)| (name.clone(), call.show(value)))
        .collect();
    json!({
        "domain": row.domain,
        "rule": row.rule,
        "subject": subject,
        "terms": row.terms,
        "note": if call.masks_subjects() { "" } else { &row.note },
        "expires_at": row.expires_at,
        "revision": row.revision,
        "epoch": epoch,
        "etag": crate::server::admin::request::etag::text(epoch, row.revision),
        "actor": row.actor,
        "orphan": !control.has_rule(&row.domain, &row.rule),
        "rejected": control.row_error(&row.domain, &row.rule, &row.subject).map(|text| call.show_message(text)),
    })
}

fn filter(call: &Call) -> Result<RowFilter, AdminProblem> {
    if call.query.get("q").is_some() {
        call.check_subjects()?;
    }
    let expires_before = match call.query.flag("expiring")? {
        true => Some(u64::MAX >> 1),
        false => None,
    };
    Ok(RowFilter {
        domains: call.domains()?,
        rule: call.query.get("rule").map(str::to_owned),
        text: call.query.get("q").map(str::to_owned),
        expires_before,
    })
}

fn key(row: &OverrideRow) -> RowKey {
    RowKey {
        domain: row.domain.clone(),
        rule: row.rule.clone(),
        subject: row.subject.clone(),
    }
}

pub(in crate::server::admin) async fn list(call: Call) -> EndpointResult {
    let (filter, limit) = (filter(&call)?, call.limit(1_000)?);
    let after: Option<RowKey> = call.after()?;
    if call.query.flag("orphans")? {
        return orphans(&call, &filter, after, limit).await;
    }
    let rows = call.control().rows(&filter, after.as_ref(), limit).await;
    let next = call.next(&rows, limit, key);
    Ok(Reply::page(rows.iter().map(|row| row_item(&call, row)).collect(), next))
}

/// The rows whose rule does not exist. One page reads at most a part of all rows, so it may have fewer than `limit`, and a next page.
async fn orphans(call: &Call, filter: &RowFilter, after: Option<RowKey>, limit: usize) -> EndpointResult {
    let mut after = after;
    let mut items = Vec::new();
    for _ in 0..ORPHAN_READS_MAX {
        let rows = call.control().rows(filter, after.as_ref(), ORPHANS_READ).await;
        for row in &rows {
            after = Some(key(row));
            if !call.control().has_rule(&row.domain, &row.rule) {
                items.push(row_item(call, row));
            }
            if items.len() == limit {
                return Ok(Reply::page(items, after.and_then(|key| call.cursor(&key))));
            }
        }
        if rows.len() < ORPHANS_READ {
            return Ok(Reply::page(items, None));
        }
    }
    Ok(Reply::page(items, after.and_then(|key| call.cursor(&key))))
}

/// The key that the query names: `subject` as JSON, or every other parameter as an attribute.
fn query_key(call: &Call) -> Result<RowKey, AdminProblem> {
    let domain = call.query.get("domain").unwrap_or(Attempt::DOMAIN).to_owned();
    call.check_domain(&domain)?;
    let rule = call.query.require("rule")?.to_owned();
    let subject: SubjectValues = match call.query.get("subject") {
        Some(text) if text.starts_with('{') => serde_json::from_str(text)
            .map_err(|error| AdminProblem::field("subject", format!("not an object of texts: {error}")))?,
        _ => {
            let reserved = ["domain", "rule", "dry_run", "reason"];
            let others = call.query.others(&reserved);
            others
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect()
        }
    };
    if subject.is_empty() {
        return Err(AdminProblem::field("subject", "name the subject: `merchant=m_42`"));
    }
    Ok(RowKey { domain, rule, subject })
}

fn item_reply(call: &Call, status: StatusCode, row: &OverrideRow) -> Reply {
    Reply::item(status, row_item(call, row), call.epoch(), row.revision)
}

pub(in crate::server::admin) async fn get(call: Call) -> EndpointResult {
    call.check_subjects()?;
    let key = query_key(&call)?;
    match call.control().row(&key).await {
        Some(row) => Ok(item_reply(&call, StatusCode::OK, &row)),
        None => Err(AdminProblem::not_found("there is no such override row")),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RowBody {
    terms: String,
    #[serde(default)]
    note: String,
    #[serde(default)]
    expires_at: u64,
    until: Option<String>,
    #[serde(default)]
    allow_orphan: bool,
    #[serde(default)]
    reason: String,
}

pub(in crate::server::admin) async fn put(call: Call) -> EndpointResult {
    let key = query_key(&call)?;
    let body: RowBody = call.json()?;
    let expires_at = expiry(body.expires_at, body.until.as_deref())?;
    if is_ban(&body.terms) {
        need_reason(&body.reason, "a ban")?;
    }
    let options = WriteOptions {
        allow_orphan: body.allow_orphan,
        ..call.write_options(&body.reason)?
    };
    let author = call.author(&body.reason)?;
    // Terms of an equal meaning are no change, however they are written.
    let present = call.control().row(&key).await;
    let is_new = present.is_none();
    let terms = match present {
        Some(row) if is_same_limit(&row.terms, &body.terms) => row.terms,
        _ => body.terms,
    };
    let mut row = OverrideRow {
        domain: key.domain.clone(),
        rule: key.rule.clone(),
        subject: key.subject.clone(),
        terms: terms.clone(),
        note: body.note.clone(),
        expires_at,
        revision: 0,
        actor: author.actor.clone(),
    };
    let write = RowWrite {
        domain: key.domain,
        rule: key.rule,
        subject: key.subject,
        terms: Some(terms),
        note: body.note,
        expires_at,
    };
    let written = match call.control().write_row(write, &options, author).await {
        Ok(written) => written,
        Err(error) => return Err(stale(&call, error, Some(&row)).await),
    };
    row.revision = written.revision;
    let subject = [(row.domain.as_str(), row.rule.as_str(), &row.subject)];
    let mut warnings = call.control().row_warnings(subject);
    warnings.iter_mut().for_each(|warning| warning.line = None);
    let item = row_item(&call, &row);
    Ok(put_reply(&call, is_new, (item, &warnings), &written, &options))
}

/// The result of a write of one item, with its warnings.
pub(in crate::server::admin) fn put_reply(
    call: &Call,
    is_new: bool,
    (mut item, warnings): (Value, &[SetProblem]),
    written: &Written,
    options: &WriteOptions,
) -> Reply {
    let status = match is_new && !options.dry_run {
        true => StatusCode::CREATED,
        false => StatusCode::OK,
    };
    if let (true, Value::Object(members)) = (options.dry_run, &mut item) {
        members.insert("dry_run".into(), true.into());
    }
    let item = with_notices(call, item, warnings);
    Reply::item(status, item, written.epoch, written.revision)
}

/// The result of a write with its warnings, and with the instances that are too old to read what was written: they go on without it.
pub(in crate::server::admin) fn with_notices(call: &Call, mut item: Value, warnings: &[SetProblem]) -> Value {
    let too_old = call.control().too_old();
    if let Value::Object(members) = &mut item {
        if !warnings.is_empty() {
            members.insert("warnings".into(), json!(warnings));
        }
        if !too_old.is_empty() {
            members.insert("too_old".into(), json!(too_old));
        }
    }
    item
}

/// The problem of a write of one row.
async fn stale(call: &Call, error: ControlError, sent: Option<&OverrideRow>) -> AdminProblem {
    let text = |row: &OverrideRow| {
        let members = [
            ("terms", row.terms.clone()),
            ("note", row.note.clone()),
            ("expires_at", row.expires_at.to_string()),
        ];
        stale::lines(members)
    };
    stale::problem(call, error, async || {
        let found = match query_key(call) {
            Ok(key) => call.control().row(&key).await,
            Err(_) => None,
        };
        PresentItem {
            item: found.as_ref().map_or(Value::Null, |row| row_item(call, row)),
            present: found.as_ref().map(text).unwrap_or_default(),
            sent: sent.map(text).unwrap_or_default(),
            is_of_all_domains: false,
        }
    })
    .await
}

/// True if two limits, or lists of them, are equal but for the way they are written.
fn is_same_limit(one: &str, other: &str) -> bool {
    let limits = |text: &str| {
        let text = text.trim();
        let list = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
        let items: Result<Vec<Quota>, _> = list
            .unwrap_or(text)
            .split(',')
            .map(|item| parse_quota(item.trim()))
            .collect();
        items.ok().map(|items| (list.is_some(), items))
    };
    limits(one).is_some_and(|one| Some(one) == limits(other))
}

/// The end of a row, from either form.
fn expiry(expires_at: u64, until: Option<&str>) -> Result<u64, AdminProblem> {
    let expires_at = match until {
        None => expires_at,
        Some(_) if expires_at != 0 => return Err(AdminProblem::field("until", "send `until` or `expires_at`")),
        Some(text) => time::parse(text)
            .ok_or_else(|| AdminProblem::field("until", "write `2026-12-01` or `2026-12-01T10:00:00Z`"))?,
    };
    match is_end(expires_at) {
        true => Ok(expires_at),
        false => Err(AdminProblem::field("expires_at", "is in the past, or no time")),
    }
}

/// True for an end that lies ahead, and for none.
pub(in crate::server::admin) fn is_end(expires_at: u64) -> bool {
    expires_at == 0 || (expires_at > now_ms() && expires_at <= NUMBER_MAX)
}

/// True for a limit of zero.
fn is_ban(terms: &str) -> bool {
    let digits: String = terms.trim_start().chars().take_while(char::is_ascii_digit).collect();
    !digits.is_empty() && digits.bytes().all(|digit| digit == b'0')
}

pub(in crate::server::admin) async fn delete(call: Call) -> EndpointResult {
    let key = query_key(&call)?;
    let reason = call.query.get("reason").unwrap_or_default();
    let options = WriteOptions {
        allow_orphan: true,
        ..call.write_options(reason)?
    };
    if call.control().row(&key).await.is_none() {
        return Err(AdminProblem::not_found("there is no such override row"));
    }
    let write = RowWrite {
        domain: key.domain,
        rule: key.rule,
        subject: key.subject,
        terms: None,
        note: String::new(),
        expires_at: 0,
    };
    match call.control().write_row(write, &options, call.author(reason)?).await {
        Ok(_) => Ok(Reply::empty()),
        Err(error) => Err(stale(&call, error, None).await),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ImportRow {
    domain: Option<String>,
    rule: Option<String>,
    subject: SubjectValues,
    terms: Option<String>,
    #[serde(default)]
    note: String,
    #[serde(default)]
    expires_at: u64,
}

pub(in crate::server::admin) async fn import(call: Call) -> EndpointResult {
    let format = TableFormat::of(call.query.raw("format"), &call.headers)?;
    let reason = call.query.get("reason").unwrap_or_default();
    let rows: Vec<(u32, ImportRow)> = table::read(&call.body, format, &COLUMNS, ROWS_MAX)?;
    let count = rows.len();
    let mut writes = Vec::with_capacity(count);
    let mut lines = Vec::with_capacity(count);
    let mut problems = Vec::new();
    for (line, row) in rows {
        let domain = row
            .domain
            .as_deref()
            .or(call.query.get("domain"))
            .unwrap_or(Attempt::DOMAIN);
        call.check_domain(domain)?;
        let rule = row.rule.as_deref().or(call.query.get("rule"));
        let rule = rule.ok_or_else(|| AdminProblem::malformed(format!("line {line} names no rule")))?;
        if !is_end(row.expires_at) && row.terms.is_some() {
            problems.push(SetProblem::error("`expires_at` is in the past, or no time").at_line(line));
        }
        if row.terms.as_deref().is_some_and(is_ban) {
            need_reason(reason, "a ban")?;
        }
        lines.push(line);
        writes.push(RowWrite {
            domain: domain.to_owned(),
            rule: rule.to_owned(),
            subject: row.subject,
            terms: row.terms,
            note: row.note,
            expires_at: row.expires_at,
        });
    }
    if !problems.is_empty() {
        return Err(table::invalid(&problems));
    }
    let options = WriteOptions {
        dry_run: call.query.flag("dry_run")?,
        ..WriteOptions::default()
    };
    let subjects = writes
        .iter()
        .map(|row| (row.domain.as_str(), row.rule.as_str(), &row.subject));
    let mut warnings = call.control().row_warnings(subjects);
    to_file_lines(&mut warnings, &lines);
    let written = call.control().import_rows(writes, &options, call.author(reason)?).await;
    let written = written.map_err(|error| with_lines(error, &lines))?;
    Ok(import_reply(&call, count, &warnings, &written, &options))
}

/// The result of an import of so many items.
pub(in crate::server::admin) fn import_reply(
    call: &Call,
    count: usize,
    warnings: &[SetProblem],
    written: &Written,
    options: &WriteOptions,
) -> Reply {
    let imported = json!({
        "rows": count,
        "changed": written.changed,
        "revisions": written.revisions,
        "revision": written.revision,
        "epoch": written.epoch,
        "dry_run": options.dry_run,
    });
    Reply::ok(&with_notices(call, imported, warnings))
}

/// The error of an import, with the lines of the file instead of the indices of rows.
pub(in crate::server::admin) fn with_lines(error: ControlError, lines: &[u32]) -> AdminProblem {
    match error {
        ControlError::Invalid(mut problems) => {
            to_file_lines(&mut problems, lines);
            ControlError::Invalid(problems).into()
        }
        error => error.into(),
    }
}

/// Replaces the indices of rows by the lines of the file.
fn to_file_lines(problems: &mut [SetProblem], lines: &[u32]) {
    for problem in problems {
        let index = problem.line.and_then(|line| usize::try_from(line).ok()?.checked_sub(1));
        problem.line = index.and_then(|index| lines.get(index).copied());
    }
}

pub(in crate::server::admin) async fn export(call: Call) -> EndpointResult {
    let format = TableFormat::of(call.query.raw("format"), &hyper::HeaderMap::new())?;
    let (filter, limit) = (filter(&call)?, call.limit(10_000)?);
    let after: Option<RowKey> = call.after()?;
    let rows = call.control().rows(&filter, after.as_ref(), limit).await;
    let mut text = format.header(&COLUMNS);
    for row in &rows {
        match format {
            TableFormat::Ndjson => {
                let line = json!({
                    "domain": row.domain, "rule": row.rule, "subject": row.subject, "terms": row.terms,
                    "note": row.note, "expires_at": row.expires_at,
                });
                text.push_str(&format!("{line}\n"));
            }
            TableFormat::Csv => {
                let expires_at = if row.expires_at == 0 {
                    String::new()
                } else {
                    row.expires_at.to_string()
                };
                let cells = [
                    &row.domain,
                    &row.rule,
                    &json!(row.subject).to_string(),
                    &row.terms,
                    &row.note,
                    &expires_at,
                ];
                text.push_str(&format!("{}\n", cells.map(|cell| csv_cell(cell)).join(",")));
            }
        }
    }
    audit_export(&call, "overrides", rows.len()).await?;
    Ok(export_reply(format, text, call.next(&rows, limit, key)))
}

/// Audits an export; without the database nothing is exported.
pub(in crate::server::admin) async fn audit_export(call: &Call, what: &str, count: usize) -> Result<(), AdminProblem> {
    if count == 0 {
        return Ok(());
    }
    let record = AuditRecord {
        author: call.author("")?,
        action: "export".to_owned(),
        target: what.to_owned(),
        before: String::new(),
        after: json!({ "count": count }).to_string(),
    };
    call.control().writable_database().await?.record(record).await?;
    Ok(())
}

/// The result of an export, with the position of the next part as a header.
pub(in crate::server::admin) fn export_reply(format: TableFormat, text: String, next: Option<String>) -> Reply {
    let reply = Reply::new(StatusCode::OK, format.content_type(), text);
    match next {
        Some(next) => reply.with_header(HeaderName::from_static("x-tollgate-next"), &next),
        None => reply,
    }
}

const COLUMNS: [&str; 6] = ["domain", "rule", "subject", "terms", "note", "expires_at"];
const ROWS_MAX: usize = 10_000;
/// Rows that a page of rows without a rule reads, and how often.
const ORPHANS_READ: usize = 1_000;
const ORPHAN_READS_MAX: usize = 50;
