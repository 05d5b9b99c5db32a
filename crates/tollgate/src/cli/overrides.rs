//! `tollgate overrides`: limits of single subjects, each a row of its own.

use super::admin::bulk::{ExportArgs, ImportArgs};
use super::admin::table::{cell, number, render, subject_text};
use super::admin::{AdminArgs, AdminCall, CommandResult, Failure, date, finish, report, warn_of_write};
use super::args::attribute;
use clap::Subcommand;
use hyper::Method;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::process::ExitCode;

/// Arguments of `tollgate overrides`.
#[derive(clap::Args)]
pub(crate) struct Overrides {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Lists override rows
    #[command(after_help = "Example:\n  tollgate overrides list --rule merchant-plan --query m_4")]
    List {
        #[command(flatten)]
        scope: Scope,
        /// Only rows with this text in a value of the subject or in the note
        #[arg(long, value_name = "TEXT")]
        query: Option<String>,
        /// Only rows that expire
        #[arg(long)]
        expiring: bool,
        /// The most rows to list
        #[arg(long, default_value_t = 100, value_name = "N")]
        max: usize,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Sets the limit of one subject, at once and on all instances
    #[command(
        after_help = "Example:\n  tollgate overrides set merchant-plan merchant=m_42 --limit 20000/min --until 2026-12-01 --reason 'sale'"
    )]
    Set {
        #[command(flatten)]
        row: RowArgs,
        /// The limit, as rules write it: `20000/min burst 500`, `unlimited`; `0/min` bans and needs a reason
        #[arg(long, value_name = "LIMIT")]
        limit: String,
        /// Deletes the row at this time: 2026-12-01, 2026-12-01T10:00:00Z, or 7day from now
        #[arg(long, value_parser = date::parse_future, value_name = "TIME")]
        until: Option<u64>,
        /// A note for people
        #[arg(long, default_value = "", value_name = "TEXT")]
        note: String,
        /// Accepts a rule that does not exist yet
        #[arg(long)]
        allow_orphan: bool,
        #[command(flatten)]
        write: WriteArgs,
    },
    /// Deletes the row of one subject
    #[command(after_help = "Example:\n  tollgate overrides delete merchant-plan merchant=m_42 --reason 'sale is over'")]
    Delete {
        #[command(flatten)]
        row: RowArgs,
        #[command(flatten)]
        write: WriteArgs,
    },
    /// Imports rows from NDJSON or CSV; 10,000 at a time are one transaction
    #[command(after_help = "Example:\n  tollgate overrides import rows.csv --reason 'migration'")]
    Import {
        #[command(flatten)]
        scope: Scope,
        #[command(flatten)]
        import: ImportArgs,
    },
    /// Exports rows as NDJSON or CSV, in the form that `import` takes
    #[command(after_help = "Example:\n  tollgate overrides export --format csv --out rows.csv")]
    Export {
        #[command(flatten)]
        scope: Scope,
        #[command(flatten)]
        export: ExportArgs,
    },
}

/// The rules whose rows are meant.
#[derive(clap::Args)]
struct Scope {
    /// Only rows of this domain
    #[arg(long, value_name = "D")]
    domain: Option<String>,
    /// Only rows of this rule
    #[arg(long, value_name = "ID")]
    rule: Option<String>,
}

/// The row that is meant.
#[derive(clap::Args)]
struct RowArgs {
    /// The rule
    #[arg(value_name = "RULE")]
    rule: String,
    /// The subject, as name=value
    #[arg(required = true, value_name = "K=V", value_parser = attribute)]
    subject: Vec<(String, String)>,
    /// The domain of the rule
    #[arg(long, default_value = "default", value_name = "D")]
    domain: String,
}

/// Arguments of every write.
#[derive(clap::Args)]
pub(super) struct WriteArgs {
    /// Reason, for the audit log
    #[arg(long, value_name = "TEXT")]
    pub(super) reason: Option<String>,
    /// Checks everything and changes nothing
    #[arg(long)]
    pub(super) dry_run: bool,
    #[command(flatten)]
    pub(super) admin: AdminArgs,
}

impl WriteArgs {
    /// Puts an item under the condition that it still has this tag; the text of the result begins with what `describe` makes of it.
    pub(super) fn put(
        &self,
        call: AdminCall,
        tag: Option<&str>,
        body: &Value,
        describe: impl FnOnce(&Value) -> String,
    ) -> CommandResult {
        let call = call
            .query_if("dry_run", self.dry_run.then_some("true"))
            .if_unchanged(tag)
            .json(body);
        let done = self.admin.json_with("revision", call).map_err(Failure::without_lines)?;
        let mut text = describe(&done);
        match self.dry_run {
            true => text.push_str(" is valid; nothing was changed"),
            false => text.push_str(&format!(", revision {}", number(&done, "revision"))),
        }
        warn_of_write(&done, 0);
        Ok(report(&self.admin, &done, &text))
    }

    /// Deletes an item under the condition that it still has this tag.
    pub(super) fn delete(&self, call: AdminCall, tag: &str, item: &str) -> CommandResult {
        let call = call
            .query_if("reason", self.reason.as_deref())
            .query_if("dry_run", self.dry_run.then_some("true"))
            .if_unchanged(Some(tag));
        self.admin.call(call)?;
        let verb = if self.dry_run { "would be deleted" } else { "deleted" };
        let body = json!({"deleted": !self.dry_run, "dry_run": self.dry_run});
        Ok(report(&self.admin, &body, &format!("{item} {verb}")))
    }
}

impl Overrides {
    pub(crate) fn run(self) -> ExitCode {
        finish(match self.command {
            Command::List {
                scope,
                query,
                expiring,
                max,
                admin,
            } => list(&scope, query, expiring, max, &admin),
            Command::Set {
                row,
                limit,
                until,
                note,
                allow_orphan,
                write,
            } => {
                let mut body = json!({"terms": limit, "note": note, "expires_at": until.unwrap_or(0)});
                if let Some(members) = body.as_object_mut() {
                    members.extend(write.reason.clone().map(|reason| ("reason".to_owned(), json!(reason))));
                    members.extend(allow_orphan.then(|| ("allow_orphan".to_owned(), json!(true))));
                }
                set(&row, &body, &write)
            }
            Command::Delete { row, write } => delete(&row, &write),
            Command::Import { scope, import } => import.run("/overrides/import", &scope.query(), "rows"),
            Command::Export { scope, export } => export.run("/overrides/export", &scope.query()),
        })
    }
}

impl Scope {
    fn query(&self) -> [(&'static str, Option<&str>); 2] {
        [("domain", self.domain.as_deref()), ("rule", self.rule.as_deref())]
    }
}

impl RowArgs {
    /// A request about this row.
    fn call(&self, method: Method) -> Result<AdminCall, Failure> {
        let mut subject: BTreeMap<&str, &str> = BTreeMap::new();
        for (name, value) in &self.subject {
            if subject.insert(name, value).is_some() {
                return Err(Failure::error(format!("duplicate attribute `{name}`; give it once")));
            }
        }
        Ok(AdminCall::new(method, "/override")
            .query("domain", &self.domain)
            .query("rule", &self.rule)
            .query("subject", &json!(subject).to_string()))
    }

    fn text(&self) -> String {
        let pairs = self.subject.iter().map(|(name, value)| format!("{name}={value}"));
        format!("{}/{} {}", self.domain, self.rule, pairs.collect::<Vec<_>>().join(","))
    }
}

fn list(scope: &Scope, query: Option<String>, expiring: bool, max: usize, admin: &AdminArgs) -> CommandResult {
    let mut filter: Vec<(&str, String)> = Vec::new();
    for (name, value) in scope.query() {
        filter.extend(value.map(|value| (name, value.to_owned())));
    }
    filter.extend(query.map(|query| ("q", query)));
    filter.extend(expiring.then(|| ("expiring", "true".to_owned())));
    let items = admin.items("/overrides", &filter, max)?;
    let rows: Vec<[String; 6]> = items
        .iter()
        .map(|item| {
            let state = match (item.get("orphan").and_then(Value::as_bool), cell(item, "rejected")) {
                (_, rejected) if !rejected.is_empty() => format!("rejected: {rejected}"),
                (Some(true), _) => "no such rule".to_owned(),
                _ => cell(item, "note"),
            };
            [
                format!("{}/{}", cell(item, "domain"), cell(item, "rule")),
                item.get("subject").map(subject_text).unwrap_or_default(),
                cell(item, "terms"),
                date::time_text(number(item, "expires_at")),
                cell(item, "actor"),
                state,
            ]
        })
        .collect();
    let header = ["rule", "subject", "limit", "until", "by", "note"];
    let text = render(header, &rows, "no override rows");
    Ok(report(admin, &json!({ "items": items }), &text))
}

/// Sets a row under the condition that it is as it was when the command looked.
fn set(row: &RowArgs, body: &Value, write: &WriteArgs) -> CommandResult {
    let tag = write.admin.entity_tag(row.call(Method::GET)?)?;
    write.put(row.call(Method::PUT)?, tag.as_deref(), body, |done| {
        let until = match number(done, "expires_at") {
            0 => String::new(),
            until => format!(" until {}", date::time_text(until)),
        };
        format!("{}: {}{until}", row.text(), cell(done, "terms"))
    })
}

fn delete(row: &RowArgs, write: &WriteArgs) -> CommandResult {
    let Some(tag) = write.admin.entity_tag(row.call(Method::GET)?)? else {
        return Err(Failure::error(format!(
            "{} has no override row; see `tollgate overrides list`",
            row.text()
        )));
    };
    write.delete(row.call(Method::DELETE)?, &tag, &format!("{}:", row.text()))
}
