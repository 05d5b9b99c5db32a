//! `tollgate rules diff` and `tollgate rules apply`: the plan of a set, and its publication after a confirmation.

use super::files;
use super::publish::{Preparation, PublishArgs, ServerPlan, publish_call};
use crate::cli::EXIT_OK;
use crate::cli::admin::table::{cell, number};
use crate::cli::admin::{AdminArgs, CommandResult, EXIT_REFUSED, Failure, date, note};
use crate::cli::args::print;
use crate::cli::control::author_text;
use clap::Args;
use serde_json::{Map, Value, json};
use std::io::{Read, Write};
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
    /// Publishes although `control.edits` is `git`; the next push is refused. For admins, with --reason
    #[arg(long, requires = "reason")]
    break_glass: bool,
    /// Publishes although instances cannot be reached; they compile the set when they return. For admins, with --reason
    #[arg(long, requires = "reason")]
    skip_prepare: bool,
    #[command(flatten)]
    options: PublishArgs,
}

/// A set to publish, and the live set that it was planned for.
struct Proposal {
    files: Value,
    /// The entity tag of the live set; none if nothing was published.
    tag: Option<String>,
    digest: String,
}

impl Diff {
    /// Exit code 0 if the meanings are equal, 1 if they differ.
    pub(super) fn run(&self) -> CommandResult {
        // A set that does not compile is an error here: 1 means that it differs.
        let found = ServerPlan::request(&self.admin, &files::read(&self.files)?).map_err(Failure::into_error)?;
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
        let proposal = match self.files.as_slice() {
            [file] if is_plan(file) => {
                if self.plan_out.is_some() {
                    return Err(Failure::error("the file is a plan already; leave out --plan-out"));
                }
                Proposal::read(file)?
            }
            paths => match self.propose(paths)? {
                Some(proposal) => proposal,
                None => return Ok(ExitCode::from(EXIT_OK)),
            },
        };
        let mut body = Map::from_iter([
            ("files".to_owned(), proposal.files),
            ("expect_digest".to_owned(), json!(proposal.digest)),
        ]);
        if let Some(reason) = &self.reason {
            body.insert("reason".to_owned(), json!(reason));
        }
        if self.break_glass {
            body.insert("break_glass".to_owned(), json!(true));
        }
        let preparation = Preparation::of_flag(self.skip_prepare);
        let call = publish_call("/publish", proposal.tag.as_deref(), preparation);
        self.options.publish(call, body, preparation)
    }

    /// Plans, and asks. Nothing is left to do if the sets are equal, or the plan went to a file.
    fn propose(&self, paths: &[PathBuf]) -> Result<Option<Proposal>, Failure> {
        let admin = &self.options.admin;
        let asks = !self.yes && !self.options.dry_run && self.plan_out.is_none();
        if admin.json && asks {
            return Err(Failure::error(
                "--json leaves no place for a question; add --yes, --dry-run or --plan-out",
            ));
        }
        let files = files::read(paths)?;
        let found = ServerPlan::request(admin, &files)?;
        let is_done = found.plan.is_empty() || self.plan_out.is_some();
        // The result of a publish is the JSON of this command.
        if !admin.json || is_done {
            show(&found, self.rows, admin);
        }
        let proposal = Proposal {
            files: files.json(),
            tag: found.tag.clone(),
            digest: found.digest.clone(),
        };
        match &self.plan_out {
            Some(file) => proposal.write(file, &found)?,
            None if asks && !is_done => confirm(admin)?,
            None => {}
        }
        Ok((!is_done).then_some(proposal))
    }
}

/// Asks before anything changes. Any input but a yes is a no, also its end.
fn confirm(admin: &AdminArgs) -> Result<(), Failure> {
    // The number that the version will have is a courtesy: another may be saved meanwhile.
    let newest = admin.items("/versions", &[], 1).ok();
    let question = match newest {
        Some(versions) => {
            let newest = versions.first().map_or(0, |version| number(version, "number"));
            format!("publish as version {}? [y/N] ", newest + 1)
        }
        None => "publish? [y/N] ".to_owned(),
    };
    let mut out = std::io::stdout().lock();
    let asked = out.write_all(question.as_bytes()).and_then(|()| out.flush());
    let mut reply = String::new();
    let mut input = std::io::stdin().lock().take(REPLY_BYTES_MAX);
    let read = asked.and_then(|()| std::io::BufRead::read_line(&mut input, &mut reply));
    match read {
        Ok(_) if matches!(reply.trim(), "y" | "Y" | "yes") => Ok(()),
        Ok(0) => {
            // No one has ended the line of the question.
            print("");
            Err(Failure::refused(
                "not confirmed; nothing was published; add --yes to publish without a question",
            ))
        }
        _ => Err(Failure::refused("not confirmed; nothing was published")),
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

/// True if a file is a plan of `--plan-out`, of this version or another.
fn is_plan(file: &Path) -> bool {
    let Ok(found) = std::fs::File::open(file) else {
        return false;
    };
    // Rules are read as YAML, which JSON is too: only a plan starts with this member.
    let mut start = String::new();
    let read = found.take(PLAN_START.len() as u64).read_to_string(&mut start);
    read.is_ok() && start == PLAN_START
}

impl Proposal {
    /// Writes everything that is needed to publish exactly this plan.
    fn write(&self, file: &Path, found: &ServerPlan) -> Result<(), Failure> {
        let content = json!({"etag": self.tag, "digest": self.digest, "files": self.files, "plan": found.plan});
        let members = format!("{content:#}");
        let members = members.strip_prefix('{').unwrap_or_default();
        let written = std::fs::write(file, format!("{PLAN_START} {PLAN_FORMAT},{members}\n"));
        written.map_err(|error| Failure::error(format!("{}: {error}", file.display())))?;
        // Not a result of the command: with --json, stdout is the plan.
        note(&format!(
            "plan written; publish it with `tollgate rules apply {}`",
            file.display()
        ));
        Ok(())
    }

    fn read(file: &Path) -> Result<Self, Failure> {
        let unreadable = |error: std::io::Error| Failure::error(format!("{}: {error}", file.display()));
        let mut text = String::new();
        let mut found = std::fs::File::open(file).map_err(unreadable)?.take(PLAN_BYTES_MAX);
        found.read_to_string(&mut text).map_err(unreadable)?;
        let content: Value = serde_json::from_str(&text).unwrap_or_default();
        let invalid = || {
            Failure::error(format!(
                "{}: damaged, or a plan of another version of tollgate; plan again",
                file.display()
            ))
        };
        if number(&content, "tollgate_plan") != PLAN_FORMAT {
            return Err(invalid());
        }
        let files = content.get("files").filter(|files| files.is_array()).cloned();
        Ok(Self {
            files: files.ok_or_else(invalid)?,
            tag: content.get("etag").and_then(Value::as_str).map(str::to_owned),
            digest: cell(&content, "digest"),
        })
    }
}

/// The format of plan files.
const PLAN_FORMAT: u64 = 1;

/// The start of every plan file.
const PLAN_START: &str = "{\n  \"tollgate_plan\":";

/// The most bytes of a plan file: those of a version, escaped.
const PLAN_BYTES_MAX: u64 = 64 << 20;

/// The most bytes of a reply to the question.
const REPLY_BYTES_MAX: u64 = 1 << 10;

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
