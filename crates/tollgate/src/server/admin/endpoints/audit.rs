//! The audit log.

use super::EndpointResult;
use crate::control::database::AuditFilter;
use crate::control::model::{AuditEntry, Digest};
use crate::server::admin::access::rights::Caller;
use crate::server::admin::problem::AdminProblem;
use crate::server::admin::reply::Reply;
use crate::server::admin::request::Call;
use serde_json::{Value, json};

pub(in crate::server::admin) async fn list(call: Call) -> EndpointResult {
    let text = |name| call.query.get(name).map(str::to_owned);
    let filter = AuditFilter {
        actor: text("actor"),
        action: text("action"),
        target: text("target"),
        revision: None,
        since: call.query.number("since")?,
        until: call.query.number("until")?,
    };
    let limit = call.limit(1_000)?;
    let caller = call.caller()?;
    let database = call.database()?;
    let mut before: Option<u64> = call.after()?;
    let mut items = Vec::new();
    // A caller of some domains sees what lies within them; a page may need several reads, and has a bound of its own.
    for _ in 0..READS_MAX {
        let entries = database.audit(&filter, before, limit).await?;
        let is_last = entries.len() < limit;
        for entry in entries {
            before = Some(entry.seq);
            if is_visible(caller, &entry) {
                items.push(json!(entry));
            }
            if items.len() == limit {
                return Ok(Reply::page(items, call.cursor(&before)));
            }
        }
        if is_last {
            return Ok(Reply::page(items, None));
        }
    }
    Ok(Reply::page(items, call.cursor(&before)))
}

/// True if the caller may see an entry: one of some domains sees what lies within them.
pub(super) fn is_visible(caller: &Caller, entry: &AuditEntry) -> bool {
    if !caller.is_restricted() {
        return true;
    }
    // A row is in it as it was and as it is; a domain may contain the separators of the target.
    let covers = |text: &str| {
        let row: Value = serde_json::from_str(text).unwrap_or_default();
        row.get("domain")
            .and_then(Value::as_str)
            .is_some_and(|domain| caller.covers(domain))
    };
    entry.action.starts_with("row.") && (covers(&entry.before) || covers(&entry.after))
}

pub(in crate::server::admin) async fn verify(call: Call) -> EndpointResult {
    let anchor = match call.query.get("anchor") {
        None => None,
        Some(text) => {
            let digest = Digest::parse(text);
            Some(digest.ok_or_else(|| AdminProblem::field("anchor", "must be 64 hexadecimal digits"))?)
        }
    };
    call.check_unrestricted()?;
    let report = call.control().verify_audit(anchor).await?;
    Ok(Reply::ok(&json!({
        "ok": report.is_intact(),
        "entries": report.entries,
        "last": report.last,
        "hash": report.end,
        "anchored": anchor.map(|_| report.is_intact()),
        "error": report.problem,
    })))
}

const READS_MAX: usize = 8;
