//! `tollgate rules pull` and `tollgate rules history`: versions as they were written.

use super::files;
use crate::cli::admin::table::{cell, number, printable, render};
use crate::cli::admin::{AdminArgs, AdminCall, CommandResult, Failure, date, report, warn};
use crate::rule_source::path_problem;
use clap::Args;
use hyper::Method;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Arguments of `tollgate rules pull`.
#[derive(Args)]
pub(super) struct Pull {
    /// The folder to write to
    #[arg(long, default_value = ".", value_name = "DIR")]
    to: PathBuf,
    /// The version; by default the live one
    #[arg(long, value_name = "N")]
    version: Option<u64>,
    #[command(flatten)]
    admin: AdminArgs,
}

/// Arguments of `tollgate rules history`.
#[derive(Args)]
pub(super) struct History {
    /// Only changes of this rule
    #[arg(long, value_name = "ID")]
    rule: Option<String>,
    /// The domain of the rule
    #[arg(long, default_value = "default", value_name = "D")]
    domain: String,
    /// The most entries to list
    #[arg(long, default_value_t = 50, value_name = "N")]
    max: usize,
    #[command(flatten)]
    admin: AdminArgs,
}

impl Pull {
    pub(super) fn run(&self) -> CommandResult {
        let number_text = self
            .version
            .map_or_else(|| "live".to_owned(), |version| version.to_string());
        let call = AdminCall::new(Method::GET, "/version").query("number", &number_text);
        let version = self.admin.json_with("files", call)?;
        let files = version
            .get("files")
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default();
        let mut found: Vec<(&str, &str)> = Vec::new();
        for file in &files {
            let member = |name: &str| file.get(name).and_then(Value::as_str);
            let (Some(path), Some(text)) = (member("path"), member("text")) else {
                return Err(Failure::unexpected("has a file without a path or a text"));
            };
            check_path(path)?;
            found.push((path, text));
        }
        // Only a version whose paths are all sound is written.
        for (path, text) in &found {
            write_file(&self.to, path, text)?;
        }
        let written: Vec<&str> = found.iter().map(|(path, _)| *path).collect();
        let others = files::others(&self.to, &written);
        if !others.is_empty() {
            let shown: Vec<&str> = others.iter().take(OTHERS_MAX).map(String::as_str).collect();
            let more = match others.len() - shown.len() {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            warn(&format!(
                "{} has rule files that are not of this version: {}{more}; a push of the folder would publish them",
                self.to.display(),
                shown.join(", ")
            ));
        }
        let number = number(&version, "number");
        let count = match written.len() {
            1 => "1 file".to_owned(),
            count => format!("{count} files"),
        };
        let text = format!("version {number}: {count} in {}", self.to.display());
        let body = json!({"version": number, "digest": cell(&version, "digest"), "files": written});
        Ok(report(&self.admin, &body, &text))
    }
}

/// Rejects a path that no version may have, whatever the server says.
fn check_path(name: &str) -> Result<(), Failure> {
    match path_problem(name) {
        None => Ok(()),
        Some(problem) => Err(Failure::error(format!(
            "the version has a file `{}`, but a path {problem}; nothing was written",
            printable(name)
        ))),
    }
}

/// Writes a file below a folder, in one step: a reader sees the old one or the new one.
fn write_file(folder: &Path, name: &str, text: &str) -> Result<(), Failure> {
    let relative = Path::new(name);
    let path = folder.join(relative);
    let unusable = |error: std::io::Error| Failure::error(format!("{}: {error}", path.display()));
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(unusable)?;
    }
    // Hidden, as no file of a version is.
    let mut new_name = std::ffi::OsString::from(".");
    new_name.push(path.file_name().unwrap_or_default());
    new_name.push(".tmp");
    let new_path = path.with_file_name(new_name);
    std::fs::write(&new_path, text).map_err(unusable)?;
    std::fs::rename(&new_path, &path).map_err(unusable)
}

impl History {
    pub(super) fn run(&self) -> CommandResult {
        match &self.rule {
            Some(rule) => self.rule_history(rule),
            None => self.versions(),
        }
    }

    fn versions(&self) -> CommandResult {
        let items = self.admin.items("/versions", &[], self.max)?;
        let rows: Vec<[String; 6]> = items
            .iter()
            .map(|item| {
                let is_live = item.get("live").and_then(Value::as_bool).unwrap_or(false);
                [
                    cell(item, "number"),
                    if is_live {
                        "live".to_owned()
                    } else {
                        cell(item, "state")
                    },
                    date::time_text(number(item, "created_at")),
                    cell(item, "actor"),
                    cell(item, "source"),
                    cell(item, "reason"),
                ]
            })
            .collect();
        let header = ["version", "state", "at", "by", "source", "reason"];
        let text = render(header, &rows, "no versions");
        Ok(report(&self.admin, &json!({ "items": items }), &text))
    }

    fn rule_history(&self, rule: &str) -> CommandResult {
        let filter = [("domain", self.domain.clone()), ("id", rule.to_owned())];
        let items = self.admin.items("/rule/history", &filter, self.max)?;
        let rows: Vec<[String; 6]> = items
            .iter()
            .map(|item| {
                [
                    cell(item, "revision"),
                    cell(item, "kind"),
                    date::time_text(number(item, "at")),
                    cell(item, "actor"),
                    format!("{}:{}", cell(item, "path"), cell(item, "line")),
                    cell(item, "reason"),
                ]
            })
            .collect();
        let header = ["revision", "change", "at", "by", "file", "reason"];
        let text = render(header, &rows, "no changes of this rule");
        Ok(report(&self.admin, &json!({ "items": items }), &text))
    }
}

/// The most other files that a warning names.
const OTHERS_MAX: usize = 5;
