//! Subject attributes. They apply in all domains, so only callers of all domains see and change them.

use super::EndpointResult;
use super::overrides::{audit_export, export_reply, import_reply, put_reply, with_lines};
use super::stale::{self, PresentItem};
use crate::control::database::{AttributeFilter, AttributeKey};
use crate::control::model::SubjectAttribute;
use crate::control::{AttributeWrite, ControlError, WriteOptions};
use crate::server::admin::problem::AdminProblem;
use crate::server::admin::reply::Reply;
use crate::server::admin::request::table::{self, TableFormat, csv_cell};
use crate::server::admin::request::{Call, etag};
use hyper::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

fn item(call: &Call, attribute: &SubjectAttribute) -> Value {
    let epoch = call.epoch();
    json!({
        "source": attribute.source,
        "subject": call.show(&attribute.subject),
        "name": attribute.name,
        "value": attribute.value,
        "revision": attribute.revision,
        "epoch": epoch,
        "etag": etag::text(epoch, attribute.revision),
        "actor": attribute.actor,
    })
}

fn key(attribute: &SubjectAttribute) -> AttributeKey {
    AttributeKey {
        source: attribute.source.clone(),
        subject: attribute.subject.clone(),
        name: attribute.name.clone(),
    }
}

fn filter(call: &Call) -> Result<AttributeFilter, AdminProblem> {
    let text = |name| call.query.get(name).map(str::to_owned);
    if call.query.get("q").is_some() || call.query.get("subject").is_some() {
        call.check_subjects()?;
    }
    Ok(AttributeFilter {
        source: text("source"),
        subject: text("subject"),
        text: text("q"),
    })
}

pub(in crate::server::admin) async fn list(call: Call) -> EndpointResult {
    call.check_unrestricted()?;
    let (filter, limit) = (filter(&call)?, call.limit(1_000)?);
    let after: Option<AttributeKey> = call.after()?;
    let found = call.control().attributes(&filter, after.as_ref(), limit).await;
    let next = call.next(&found, limit, key);
    Ok(Reply::page(
        found.iter().map(|attribute| item(&call, attribute)).collect(),
        next,
    ))
}

fn query_key(call: &Call) -> Result<AttributeKey, AdminProblem> {
    Ok(AttributeKey {
        source: call.query.require("source")?.to_owned(),
        subject: call.query.require("subject")?.to_owned(),
        name: call.query.require("name")?.to_owned(),
    })
}

pub(in crate::server::admin) async fn get(call: Call) -> EndpointResult {
    call.check_unrestricted()?;
    call.check_subjects()?;
    let key = query_key(&call)?;
    let found = call.control().attribute(&key).await;
    let found = found.ok_or_else(|| AdminProblem::not_found("there is no such subject attribute"))?;
    Ok(Reply::item(
        StatusCode::OK,
        item(&call, &found),
        call.epoch(),
        found.revision,
    ))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AttributeBody {
    value: String,
    #[serde(default)]
    reason: String,
}

pub(in crate::server::admin) async fn put(call: Call) -> EndpointResult {
    call.check_unrestricted()?;
    let key = query_key(&call)?;
    let body: AttributeBody = call.json()?;
    let options = call.write_options(&body.reason)?;
    let author = call.author(&body.reason)?;
    let is_new = call.control().attribute(&key).await.is_none();
    let mut attribute = SubjectAttribute {
        source: key.source.clone(),
        subject: key.subject.clone(),
        name: key.name.clone(),
        value: body.value.clone(),
        revision: 0,
        actor: author.actor.clone(),
    };
    let write = AttributeWrite {
        source: key.source,
        subject: key.subject,
        name: key.name,
        value: Some(body.value),
    };
    let written = match call.control().write_attribute(write, &options, author).await {
        Ok(written) => written,
        Err(error) => return Err(stale(&call, error, Some(&attribute.value)).await),
    };
    attribute.revision = written.revision;
    let item = item(&call, &attribute);
    Ok(put_reply(&call, is_new, (item, &[]), &written, &options))
}

/// The problem of a write of one attribute.
async fn stale(call: &Call, error: ControlError, sent: Option<&str>) -> AdminProblem {
    stale::problem(call, error, async || {
        let found = match query_key(call) {
            Ok(key) => call.control().attribute(&key).await,
            Err(_) => None,
        };
        let text = |value: &str| stale::lines([("value", value.to_owned())]);
        PresentItem {
            item: found.as_ref().map_or(Value::Null, |found| item(call, found)),
            present: found.map(|found| text(&found.value)).unwrap_or_default(),
            sent: sent.map(text).unwrap_or_default(),
            is_of_all_domains: false,
        }
    })
    .await
}

pub(in crate::server::admin) async fn delete(call: Call) -> EndpointResult {
    call.check_unrestricted()?;
    let key = query_key(&call)?;
    let reason = call.query.get("reason").unwrap_or_default();
    let options = call.write_options(reason)?;
    if call.control().attribute(&key).await.is_none() {
        return Err(AdminProblem::not_found("there is no such subject attribute"));
    }
    let write = AttributeWrite {
        source: key.source,
        subject: key.subject,
        name: key.name,
        value: None,
    };
    let author = call.author(reason)?;
    match call.control().write_attribute(write, &options, author).await {
        Ok(_) => Ok(Reply::empty()),
        Err(error) => Err(stale(&call, error, None).await),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ImportAttribute {
    source: String,
    subject: String,
    name: String,
    value: Option<String>,
}

pub(in crate::server::admin) async fn import(call: Call) -> EndpointResult {
    call.check_unrestricted()?;
    let format = TableFormat::of(call.query.raw("format"), &call.headers)?;
    let reason = call.query.get("reason").unwrap_or_default();
    let read: Vec<(u32, ImportAttribute)> = table::read(&call.body, format, &COLUMNS, ROWS_MAX)?;
    let lines: Vec<u32> = read.iter().map(|(line, _)| *line).collect();
    let writes = read.into_iter().map(|(_, row)| AttributeWrite {
        source: row.source,
        subject: row.subject,
        name: row.name,
        value: row.value,
    });
    let options = WriteOptions {
        dry_run: call.query.flag("dry_run")?,
        ..WriteOptions::default()
    };
    let written = call
        .control()
        .import_attributes(writes.collect(), &options, call.author(reason)?)
        .await;
    let written = written.map_err(|error| with_lines(error, &lines))?;
    Ok(import_reply(&call, lines.len(), &[], &written, &options))
}

pub(in crate::server::admin) async fn export(call: Call) -> EndpointResult {
    call.check_unrestricted()?;
    let format = TableFormat::of(call.query.raw("format"), &hyper::HeaderMap::new())?;
    let (filter, limit) = (filter(&call)?, call.limit(10_000)?);
    let after: Option<AttributeKey> = call.after()?;
    let found = call.control().attributes(&filter, after.as_ref(), limit).await;
    let mut text = format.header(&COLUMNS);
    for row in &found {
        let cells = [&row.source, &row.subject, &row.name, &row.value];
        let line = match format {
            TableFormat::Ndjson => {
                let [source, subject, name, value] = cells;
                json!({ "source": source, "subject": subject, "name": name, "value": value }).to_string()
            }
            TableFormat::Csv => cells.map(|cell| csv_cell(cell)).join(","),
        };
        text.push_str(&line);
        text.push('\n');
    }
    audit_export(&call, "attributes", found.len()).await?;
    Ok(export_reply(format, text, call.next(&found, limit, key)))
}

const COLUMNS: [&str; 4] = ["source", "subject", "name", "value"];
const ROWS_MAX: usize = 10_000;
