//! `tollgate rules diff` and `tollgate rules apply`: the plan of a set, and its publication after a confirmation.

use super::files;
use super::publish::{PublishArgs, ServerPlan};
use crate::cli::admin::table::{cell, number};
use crate::cli::admin::{AdminArgs, CommandResult, EXIT_REFUSED, Failure, date};
use crate::cli::args::print;
use crate::cli::control::author_text;
use crate::cli::{EXIT_ERROR, EXIT_OK};
use clap::Args;
use serde_json::{Map, Value, json};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `tollgate rules diff`.
#[derive(Args)]
pub(super) struct Diff {
    /// Rule files, or folders of them: the whole set
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Lists the override rows that the changes concern
    #[arg(long)]
    rows: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

/// Arguments of `tollgate rules apply`.
#[derive(Args)]
pub(super) struct Apply {
    /// Rule files, or folders of them: the whole set; or one plan of --plan-out
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Publishes without asking
    #[arg(long)]
    yes: bool,
    /// Writes the plan to this file and publishes nothing; `rules apply P` publishes exactly that plan
    #[arg(long, conflicts_with = "yes", value_name = "P")]
    plan_out: Option<PathBuf>,
    /// Reason, for the audit log
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Lists the override rows that the changes concern
    #[arg(long)]
    rows: bool,
    #[command(flatten)]
    options: PublishArgs,
}

/// A set to publish, and the live set that it was planned for.
struct Proposal {
    files: Value,
    /// The entity tag of the live set.
    tag: String,
    digest: String,
}

impl Diff {
    /// Exit code 0 if the meanings are equal, 1 if they differ.
    pub(super) fn run(&self) -> CommandResult {
        let files = json!(files::read(&self.files)?);
        let set = json!({ "files": files });
        // A set that does not compile is an error here: 1 means that it differs.
        let found = ServerPlan::request(&self.admin, &set).map_err(|failure| Failure {
            code: EXIT_ERROR,
            ..failure
        })?;
        show(&found, self.rows, &self.admin);
        Ok(ExitCode::from(if found.plan.is_empty() {
            EXIT_OK
        } else {
            EXIT_REFUSED
        }))
    }
}

impl Apply {
    pub(super) fn run(&self) -> CommandResult {
        let admin = &self.options.admin;
        let proposal = match self.files.as_slice() {
            [file] if is_plan(file) => Proposal::read(file)?,
            paths => {
                let files = json!(files::read(paths)?);
                let found = ServerPlan::request(admin, &json!({ "files": files }))?;
                if !admin.json || self.plan_out.is_some() {
                    show(&found, self.rows, admin);
                }
                if found.plan.is_empty() && self.plan_out.is_none() {
                    return Ok(ExitCode::from(EXIT_OK));
                }
                let proposal = Proposal {
                    files,
                    tag: found.tag.clone(),
                    digest: found.digest.clone(),
                };
                if let Some(file) = &self.plan_out {
                    return proposal.write(file, &found);
                }
                self.confirm(&found)?;
                proposal
            }
        };
        let mut body = Map::from_iter([
            ("files".to_owned(), proposal.files),
            ("expect_digest".to_owned(), json!(proposal.digest)),
        ]);
        if let Some(reason) = &self.reason {
            body.insert("reason".to_owned(), json!(reason));
        }
        self.options.publish("/publish", body, &proposal.tag)
    }

    /// Asks before anything changes. Without a terminal there is no one to ask.
    fn confirm(&self, found: &ServerPlan) -> Result<(), Failure> {
        if self.yes || self.options.dry_run {
            return Ok(());
        }
        if !std::io::stdin().is_terminal() {
            return Err(Failure::refused(
                "not confirmed: stdin is no terminal; add --yes to publish",
            ));
        }
        let next = found.body.get("next_version").and_then(Value::as_u64);
        let question = match next {
            Some(version) => format!("publish as version {version}? [y/N] "),
            None => "publish? [y/N] ".to_owned(),
        };
        let mut out = std::io::stdout().lock();
        let asked = out.write_all(question.as_bytes()).and_then(|()| out.flush());
        let mut reply = String::new();
        let read = asked.and_then(|()| std::io::stdin().read_line(&mut reply));
        match read {
            Ok(_) if matches!(reply.trim(), "y" | "Y" | "yes") => Ok(()),
            _ => Err(Failure::refused("not confirmed; nothing was published")),
        }
    }
}

/// Prints the live version and the plan.
fn show(found: &ServerPlan, rows: bool, admin: &AdminArgs) {
    if admin.json {
        print(&found.body.to_string());
        return;
    }
    if found.plan.is_empty() {
        print("no changes");
        return;
    }
    print(&live_text(found.body.get("live").unwrap_or(&Value::Null)));
    match rows {
        true => print(&found.plan.text_with_rows()),
        false => print(&found.plan.to_string()),
    }
}

/// The live version: `live: version 41, revision 812 (2026-11-17 14:02 UTC, ci: raise search)`.
fn live_text(live: &Value) -> String {
    match number(live, "version") {
        0 => "live: no version is published".to_owned(),
        version => {
            let at = date::time_text(number(live, "at"));
            let author = author_text(&cell(live, "actor"), &cell(live, "reason"));
            format!(
                "live: version {version}, revision {} ({at}, {author})",
                number(live, "revision")
            )
        }
    }
}

/// True if a file is a plan of `--plan-out`.
fn is_plan(file: &Path) -> bool {
    file.is_file() && Proposal::read(file).is_ok()
}

impl Proposal {
    /// Writes everything that is needed to publish exactly this plan.
    fn write(&self, file: &Path, found: &ServerPlan) -> CommandResult {
        let content = json!({
            "tollgate_plan": PLAN_FORMAT, "etag": self.tag, "digest": self.digest, "files": self.files, "plan": found.plan,
        });
        let written = std::fs::write(file, format!("{content:#}\n"));
        written.map_err(|error| Failure::error(format!("{}: {error}", file.display())))?;
        if !found.plan.is_empty() {
            print(&format!(
                "plan written; publish it with `tollgate rules apply {}`",
                file.display()
            ));
        }
        Ok(ExitCode::from(EXIT_OK))
    }

    fn read(file: &Path) -> Result<Self, Failure> {
        let text =
            std::fs::read_to_string(file).map_err(|error| Failure::error(format!("{}: {error}", file.display())))?;
        let content: Value = serde_json::from_str(&text).unwrap_or_default();
        let invalid = || Failure::error(format!("{}: not a plan of this version of tollgate", file.display()));
        if number(&content, "tollgate_plan") != PLAN_FORMAT {
            return Err(invalid());
        }
        let files = content.get("files").filter(|files| files.is_array()).cloned();
        Ok(Self {
            files: files.ok_or_else(invalid)?,
            tag: cell(&content, "etag"),
            digest: cell(&content, "digest"),
        })
    }
}

/// The format of plan files.
const PLAN_FORMAT: u64 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_live_version_is_named_with_time_author_and_reason() {
        let live = json!({"version": 41, "revision": 812, "at": 1_794_924_120_000_u64, "actor": "ci", "reason": "raise search"});
        assert_eq!(
            live_text(&live),
            "live: version 41, revision 812 (2026-11-17 14:02 UTC, ci: raise search)"
        );
        assert_eq!(live_text(&json!({"version": 0})), "live: no version is published");
    }
}
