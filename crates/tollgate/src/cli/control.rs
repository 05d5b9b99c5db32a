//! `tollgate control`: the state of a control plane and of the instances that follow it.

use super::admin::table::{cell, number, printable, render};
use super::admin::{AdminArgs, AdminCall, CommandResult, EXIT_REFUSED, Failure, date, finish, report};
use clap::Subcommand;
use hyper::Method;
use serde_json::{Value, json};
use std::fmt::Write;
use std::process::ExitCode;

/// Arguments of `tollgate control`.
#[derive(clap::Args)]
pub(crate) struct Control {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Shows the version, the revisions of database and instances, and problems; exit code 0 well, 1 problems
    #[command(after_help = "Example:\n  tollgate control status")]
    Status {
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Starts a new epoch after a database was restored from a backup
    #[command(after_help = "Example:\n  tollgate control adopt --reason 'restored the backup of 03:00'")]
    Adopt {
        /// Reason, for the audit log
        #[arg(long, value_name = "TEXT")]
        reason: String,
        #[command(flatten)]
        admin: AdminArgs,
    },
}

impl Control {
    pub(crate) fn run(self) -> ExitCode {
        finish(match self.command {
            Command::Status { admin } => status(&admin),
            Command::Adopt { reason, admin } => adopt(&reason, &admin),
        })
    }
}

fn status(admin: &AdminArgs) -> CommandResult {
    let status = admin.json_with("database", AdminCall::new(Method::GET, "/status"))?;
    let mut instances = admin.json_with("items", AdminCall::new(Method::GET, "/instances"))?;
    let instances = instances.get_mut("items").map(Value::take);
    let Some(Value::Array(instances)) = instances else {
        return Err(Failure::unexpected("has no list of instances"));
    };
    let problems = problems(&status);
    let mut text = version_text(&status);
    let database = status.get("database").unwrap_or(&Value::Null);
    let is_up = database.get("up").and_then(Value::as_bool).unwrap_or(false);
    let state = match is_up {
        true => "up",
        false if is_empty(&status) => "empty until the first change",
        false => "unavailable",
    };
    let _ = write!(text, "\ndatabase: {}, {state}", cell(database, "kind"));
    if let Some(cache) = status.get("cache").filter(|cache| cache.is_object()) {
        let is_on = |name: &str| cache.get(name).and_then(Value::as_bool) == Some(true);
        let state = if is_on("up") { "up" } else { "unavailable" };
        let signed = if is_on("signed") {
            "signed"
        } else {
            "not signed: set control.secret"
        };
        let (epoch, revision) = (number(cache, "epoch"), number(cache, "revision"));
        let _ = write!(text, "\ncache: {state}, epoch/revision {epoch}/{revision}, {signed}");
    }
    let rules = status.get("rules").unwrap_or(&Value::Null);
    let _ = write!(
        text,
        "\nrules: {} managed, {} from files; {} override rows, {} subject attributes",
        number(rules, "managed"),
        number(rules, "file"),
        number(&status, "override_rows"),
        number(&status, "attributes")
    );
    for problem in &problems {
        let _ = write!(text, "\nproblem: {problem}");
    }
    let rows: Vec<[String; 7]> = instances
        .iter()
        .map(|item| {
            [
                cell(item, "id"),
                cell(item, "program"),
                cell(item, "version"),
                format!("{}/{}", number(item, "epoch"), number(item, "revision")),
                cell(item, "digest").chars().take(12).collect(),
                cell(item, "breaker"),
                date::time_text(number(item, "seen_at")),
            ]
        })
        .collect();
    let header = [
        "instance",
        "program",
        "version",
        "epoch/revision",
        "digest",
        "breaker",
        "seen",
    ];
    let _ = write!(text, "\n{}", render(header, &rows, "no instances"));
    let code = report(
        admin,
        &json!({"status": status, "instances": instances, "problems": problems}),
        &text,
    );
    Ok(if problems.is_empty() {
        code
    } else {
        ExitCode::from(EXIT_REFUSED)
    })
}

/// The live version, with its author: `version 41, revision 812 (2026-11-17 14:02 UTC, ci: raise search)`.
pub(super) fn version_text(status: &Value) -> String {
    let (version, revision) = (number(status, "version"), number(status, "revision"));
    match status.get("live").filter(|live| !live.is_null()) {
        Some(live) => {
            let at = date::time_text(number(live, "created_at"));
            let author = author_text(&cell(live, "actor"), &cell(live, "reason"));
            format!("version {version}, revision {revision} ({at}, {author})")
        }
        None => format!("no version is published, revision {revision}"),
    }
}

/// The author of a version, with the reason if there is one.
pub(super) fn author_text(actor: &str, reason: &str) -> String {
    match reason.is_empty() {
        true => actor.to_owned(),
        false => format!("{actor}: {reason}"),
    }
}

/// True if the embedded database was not needed so far.
fn is_empty(status: &Value) -> bool {
    let database = status.get("database").unwrap_or(&Value::Null);
    let has = |item: &Value, name: &str| item.get(name).is_some_and(|value| !value.is_null());
    cell(database, "kind") == "sqlite" && !has(database, "id") && !has(status, "error")
}

fn problems(status: &Value) -> Vec<String> {
    let flag = |item: &Value, name: &str| item.get(name).and_then(Value::as_bool);
    let mut found = Vec::new();
    if let Some(error) = status.get("error").and_then(Value::as_str) {
        found.push(printable(error));
    }
    if flag(status, "forked") == Some(true) {
        found.push("the database has another history than this instance; restore it, or adopt it".to_owned());
    }
    if let Some(reason) = status.get("regressed").and_then(Value::as_str) {
        let next_step = "restore the newer one, or run `tollgate control adopt`";
        found.push(format!("the database is behind: {}; {next_step}", printable(reason)));
    }
    let fleet = status.get("fleet").unwrap_or(&Value::Null);
    if let Some(error) = fleet.get("error").and_then(Value::as_str) {
        found.push(format!("other instances cannot be seen: {}", printable(error)));
    }
    let warnings = fleet.get("warnings").and_then(Value::as_array);
    found.extend(warnings.into_iter().flatten().filter_map(Value::as_str).map(printable));
    if flag(fleet, "differ") == Some(true) {
        found.push("instances have different rules; compare their digests below".to_owned());
    }
    if status.get("cache").and_then(|cache| flag(cache, "up")) == Some(false) {
        found.push(
            "the cache in the shared store is unavailable; instances without a database get no changes".to_owned(),
        );
    }
    let database = status.get("database").unwrap_or(&Value::Null);
    if cell(database, "kind") != "none" && flag(database, "up") == Some(false) && !is_empty(status) {
        found.push("the database is unavailable; decisions continue, writes are refused".to_owned());
    }
    let rejected = status.get("rejected_rows").and_then(Value::as_array);
    for row in rejected.into_iter().flatten() {
        let subject = row
            .get("subject")
            .map(super::admin::table::subject_text)
            .unwrap_or_default();
        let (domain, rule, text) = (cell(row, "domain"), cell(row, "rule"), cell(row, "text"));
        found.push(format!("row {domain}/{rule} {subject} is rejected: {text}"));
    }
    found
}

fn adopt(reason: &str, admin: &AdminArgs) -> CommandResult {
    let call = AdminCall::new(Method::POST, "/adopt").json(&json!({ "reason": reason }));
    let done = admin.json_with("epoch", call)?;
    let text = format!(
        "epoch {}, revision {}",
        number(&done, "epoch"),
        number(&done, "revision")
    );
    Ok(report(admin, &done, &text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_are_named_and_a_sound_state_has_none() {
        let sound =
            json!({"error": null, "forked": false, "database": {"kind": "sqlite", "up": true}, "rejected_rows": []});
        assert!(problems(&sound).is_empty());
        let bad = json!({"error": "bad set", "forked": true, "database": {"kind": "postgres", "up": false},
                         "rejected_rows": [{"domain": "d", "rule": "r", "subject": {"m": "x"}, "text": "no burst"}]});
        let found = problems(&bad);
        assert_eq!(found.len(), 4);
        let fleet = json!({"database": {"kind": "postgres", "up": true}, "regressed": "revision 7 of 9", "cache": {"up": false},
                           "fleet": {"error": "timeout", "differ": true, "warnings": ["a\u{1b} differs"]}});
        assert_eq!(
            problems(&fleet),
            [
                "the database is behind: revision 7 of 9; restore the newer one, or run `tollgate control adopt`",
                "other instances cannot be seen: timeout",
                "a\\u{1b} differs",
                "instances have different rules; compare their digests below",
                "the cache in the shared store is unavailable; instances without a database get no changes",
            ]
        );
        assert_eq!(
            found.last().map(String::as_str),
            Some("row d/r m=x is rejected: no burst")
        );
    }

    #[test]
    fn the_live_version_names_its_author_and_reason() {
        let status = json!({"version": 41, "revision": 812,
                            "live": {"created_at": 1_794_924_120_000_u64, "actor": "ci", "reason": "raise search"}});
        assert_eq!(
            version_text(&status),
            "version 41, revision 812 (2026-11-17 14:02 UTC, ci: raise search)"
        );
        assert_eq!(
            version_text(&json!({"live": null})),
            "no version is published, revision 0"
        );
    }
}
