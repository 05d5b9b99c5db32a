//! `tollgate audit`: who changed what, and the proof that nothing was removed.

use super::admin::table::{cell, number, render};
use super::admin::{AdminArgs, AdminCall, CommandResult, EXIT_REFUSED, date, finish, report};
use clap::Args;
use hyper::Method;
use serde_json::{Value, json};
use std::process::ExitCode;

/// Arguments of `tollgate audit`.
#[derive(Args)]
pub(crate) struct Audit {
    /// Only entries since this time: 2026-11-01, 2026-11-01T10:00:00Z, or 24h ago
    #[arg(long, value_parser = date::parse_past, value_name = "TIME")]
    since: Option<u64>,
    /// Only entries before this time
    #[arg(long, value_parser = date::parse_past, value_name = "TIME")]
    until: Option<u64>,
    /// Only entries of this principal
    #[arg(long, value_name = "NAME")]
    actor: Option<String>,
    /// Only entries of this action, such as `publish` or `row.set`
    #[arg(long, value_name = "ACTION")]
    action: Option<String>,
    /// Only entries about this object
    #[arg(long, value_name = "TARGET")]
    target: Option<String>,
    /// The most entries to list
    #[arg(long, default_value_t = 100, value_name = "N")]
    max: usize,
    /// Verifies the chain of hashes over all entries; exit code 0 intact, 1 broken
    #[arg(long)]
    verify: bool,
    /// A hash noted earlier, which the chain must contain: without one, entries cut off at the end cannot be found
    #[arg(long, requires = "verify", value_name = "HASH")]
    anchor: Option<String>,
    #[command(flatten)]
    admin: AdminArgs,
}

impl Audit {
    pub(crate) fn run(self) -> ExitCode {
        finish(if self.verify { self.verify() } else { self.list() })
    }

    fn list(&self) -> CommandResult {
        let filter = [
            ("since", self.since.map(|ms| ms.to_string())),
            ("until", self.until.map(|ms| ms.to_string())),
            ("actor", self.actor.clone()),
            ("action", self.action.clone()),
            ("target", self.target.clone()),
        ];
        let filter: Vec<(&str, String)> = filter
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)))
            .collect();
        let items = self.admin.items("/audit", &filter, self.max)?;
        let rows: Vec<[String; 7]> = items
            .iter()
            .map(|item| {
                let revision = match number(item, "revision") {
                    0 => String::new(),
                    revision => revision.to_string(),
                };
                [
                    date::time_text(number(item, "at")),
                    cell(item, "actor"),
                    cell(item, "via"),
                    cell(item, "action"),
                    cell(item, "target"),
                    revision,
                    cell(item, "reason"),
                ]
            })
            .collect();
        let header = ["at", "by", "via", "action", "target", "revision", "reason"];
        let text = render(header, &rows, "no audit entries");
        Ok(report(&self.admin, &json!({ "items": items }), &text))
    }

    fn verify(&self) -> CommandResult {
        let call = AdminCall::new(Method::GET, "/audit/verify").query_if("anchor", self.anchor.as_deref());
        let body = self.admin.json_with("ok", call)?;
        let is_intact = body.get("ok").and_then(Value::as_bool).unwrap_or(false);
        let text = match body.get("error") {
            Some(error) if !is_intact => format!("broken at entry {}: {}", number(error, "seq"), cell(error, "text")),
            _ => {
                let anchor = match body.get("anchored").and_then(Value::as_bool) {
                    Some(true) => ", the anchor is part of it",
                    _ => "",
                };
                let (entries, hash) = (number(&body, "entries"), cell(&body, "hash"));
                format!("intact: {entries} entries, the last hash is {hash}{anchor}")
            }
        };
        let code = report(&self.admin, &body, &text);
        Ok(if is_intact { code } else { ExitCode::from(EXIT_REFUSED) })
    }
}
