//! Publishing from the command line: `rules push`, `rules rollback`, and what all of them print.

use super::files::{self, RuleFiles};
use crate::cli::admin::table::{cell, number};
use crate::cli::admin::{AdminArgs, AdminCall, CommandResult, Failure, report, warn};
use crate::cli::args::print;
use crate::cli::control::version_text;
use crate::control::plan::ChangePlan;
use clap::Args;
use hyper::Method;
use hyper::header::HeaderName;
use serde_json::{Map, Value, json};
use std::path::PathBuf;

/// Arguments of `tollgate rules push`.
#[derive(Args)]
pub(super) struct Push {
    /// Rule files, or folders of them: the whole set
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Reason, for the audit log
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// The commit that the files are of
    #[arg(long, value_name = "SHA")]
    commit: Option<String>,
    /// Replaces a live version that was not pushed
    #[arg(long)]
    force: bool,
    /// Publishes although instances cannot be reached; they compile the set when they return. For admins
    #[arg(long)]
    skip_prepare: bool,
    #[command(flatten)]
    options: PublishArgs,
}

/// Arguments of `tollgate rules rollback`.
#[derive(Args)]
pub(super) struct Rollback {
    /// The version to return to; by default the one that was live before this
    #[arg(value_name = "N")]
    version: Option<u64>,
    /// Reason, for the audit log
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// As an admin, rolls back although `control.edits` is `git`
    #[arg(long)]
    break_glass: bool,
    #[command(flatten)]
    options: PublishArgs,
}

/// Options of everything that publishes.
#[derive(Args)]
pub(super) struct PublishArgs {
    /// Deletes the override rows that the new rules make invalid
    #[arg(long)]
    drop_rows: bool,
    /// Checks everything and publishes nothing
    #[arg(long)]
    pub(super) dry_run: bool,
    #[command(flatten)]
    pub(super) admin: AdminArgs,
}

/// The instances that compile a set before it is published.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Preparation {
    All,
    Skipped,
}

impl Preparation {
    /// The one of the flag `--skip-prepare`.
    pub(super) fn of_flag(skip: bool) -> Self {
        if skip { Self::Skipped } else { Self::All }
    }
}

/// A plan of the server, and the live set it was made for.
pub(super) struct ServerPlan {
    pub(super) plan: ChangePlan,
    /// The whole response.
    pub(super) body: Value,
    /// The entity tag of the live set; none if nothing is published yet.
    pub(super) tag: Option<String>,
    /// The digest of the files.
    pub(super) digest: String,
}

impl Push {
    pub(super) fn run(&self) -> CommandResult {
        let files = files::read(&self.files)?;
        let admin = &self.options.admin;
        let plan = ServerPlan::request(admin, &files)?;
        if !admin.json && !plan.plan.is_empty() {
            print(&plan.plan.to_string());
        }
        let source = match &self.commit {
            Some(commit) => format!("push {commit}"),
            None => "push".to_owned(),
        };
        let mut body = Map::from_iter([
            ("files".to_owned(), files.json()),
            ("source".to_owned(), json!(source)),
            ("reason".to_owned(), json!(self.reason)),
            ("expect_digest".to_owned(), json!(plan.digest)),
        ]);
        if self.force {
            body.insert("force".to_owned(), json!(true));
        }
        let preparation = Preparation::of_flag(self.skip_prepare);
        let call = publish_call("/publish", plan.tag.as_deref(), preparation);
        let published = self.options.publish(call, body, preparation);
        published.map_err(|failure| failure.locate(|path| files.origin(path)))
    }
}

impl Rollback {
    pub(super) fn run(&self) -> CommandResult {
        let status = self
            .options
            .admin
            .json_with("etag", AdminCall::new(Method::GET, "/status"))?;
        let mut body = Map::from_iter([("reason".to_owned(), json!(self.reason))]);
        if let Some(version) = self.version {
            body.insert("version".to_owned(), json!(version));
        }
        if self.break_glass {
            body.insert("break_glass".to_owned(), json!(true));
        }
        let call = publish_call("/rollback", Some(&cell(&status, "etag")), Preparation::All);
        self.options.publish(call, body, Preparation::All)
    }
}

/// A request that publishes, under the condition that the live set still has this entity tag; none: that nothing is published.
pub(super) fn publish_call(path: &str, tag: Option<&str>, preparation: Preparation) -> AdminCall {
    AdminCall::new(Method::POST, path)
        .query("wait", "2s")
        .query_if("prepare", (preparation == Preparation::Skipped).then_some("skip"))
        .if_unchanged(tag)
        .header(HeaderName::from_static("idempotency-key"), &idempotency_key())
        .patient()
}

impl PublishArgs {
    /// Publishes, and prints what was done.
    pub(super) fn publish(
        &self,
        call: AdminCall,
        mut body: Map<String, Value>,
        preparation: Preparation,
    ) -> CommandResult {
        if self.drop_rows {
            body.insert("drop_rows".to_owned(), json!(true));
        }
        let call = call
            .query_if("dry_run", self.dry_run.then_some("true"))
            .json(&body.into());
        let done = self
            .admin
            .json_with("version", call)
            .map_err(|failure| match failure.problem_code.as_str() {
                "stale" => self.moved(failure),
                _ => failure,
            })?;
        let text = published_text(&done, self.dry_run, preparation);
        let code = report(&self.admin, &done, &text);
        if number(&done, "rejected") > 0 || number(&done, "silent") > 0 {
            warn("not all instances have applied it; see `tollgate control status`");
        }
        Ok(code)
    }

    /// The refusal because something else was published meanwhile, and by whom.
    fn moved(&self, failure: Failure) -> Failure {
        let live = match self.admin.json_with("database", AdminCall::new(Method::GET, "/status")) {
            Ok(status) => format!(": {}", version_text(&status)),
            Err(_) => String::new(),
        };
        failure.because(
            format!("the live rules have changed since the plan{live}"),
            "plan again",
        )
    }
}

/// The result of a publish, for people.
fn published_text(done: &Value, dry_run: bool, preparation: Preparation) -> String {
    let (version, revision) = (number(done, "version"), number(done, "revision"));
    if done.get("changed").and_then(Value::as_bool) == Some(false) {
        return format!("no changes: version {version}, revision {revision}");
    }
    if dry_run {
        return "valid; nothing was published".to_owned();
    }
    let time = |name: &str| match done.get(name).and_then(Value::as_u64) {
        Some(ms) => format!(" ({ms} ms)"),
        None => String::new(),
    };
    let plural = |count: u64| if count == 1 { "instance" } else { "instances" };
    let (prepared, applied) = (number(done, "prepared"), number(done, "applied"));
    let all = applied + number(done, "rejected") + number(done, "silent");
    let preparing = match preparation {
        Preparation::All => format!(
            "prepared on {prepared} of {prepared} {}{}",
            plural(prepared),
            time("prepared_ms")
        ),
        Preparation::Skipped => "not prepared (--skip-prepare)".to_owned(),
    };
    format!(
        "{preparing}\npublished version {version}, revision {revision}\napplied on {applied} of {all} {}{}",
        plural(all),
        time("applied_ms"),
    )
}

impl ServerPlan {
    /// Requests the plan of a set.
    pub(super) fn request(admin: &AdminArgs, files: &RuleFiles) -> Result<Self, Failure> {
        let set = json!({ "files": files.json() });
        let body = admin.json_with("plan", AdminCall::new(Method::POST, "/plan").json(&set).patient());
        let body = body.map_err(|failure| failure.locate(|path| files.origin(path)))?;
        let live = body.get("live").unwrap_or(&Value::Null);
        let unreadable = |error: serde_json::Error| {
            Failure::error(format!(
                "the plan cannot be read: {error}; has the server the version of this program?"
            ))
        };
        let plan = body.get("plan").cloned().unwrap_or_default();
        let tag = cell(live, "etag");
        if tag.is_empty() {
            return Err(Failure::unexpected("does not name the live rules"));
        }
        let tag = (number(live, "version") > 0).then_some(tag);
        Ok(Self {
            plan: serde_json::from_value(plan).map_err(unreadable)?,
            tag,
            digest: cell(&body, "digest"),
            body,
        })
    }
}

/// A key that no other request has: copies of this request, which a proxy may send, publish once. Another run of the command is another
/// request.
fn idempotency_key() -> String {
    format!("{:016x}{:016x}", fastrand::u64(..), fastrand::u64(..))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_publish_prints_what_instances_did() {
        let done = json!({"version": 42, "revision": 813, "changed": true, "prepared": 12, "applied": 12, "rejected": 0,
                          "silent": 0, "prepared_ms": 180, "applied_ms": 240});
        assert_eq!(
            published_text(&done, false, Preparation::All),
            "prepared on 12 of 12 instances (180 ms)\npublished version 42, revision 813\napplied on 12 of 12 instances (240 ms)"
        );
        let done = json!({"version": 42, "revision": 813, "changed": false});
        assert_eq!(
            published_text(&done, false, Preparation::All),
            "no changes: version 42, revision 813"
        );
        let done = json!({"version": 1, "revision": 1, "prepared": 1, "applied": 0, "silent": 1});
        assert!(published_text(&done, false, Preparation::All).ends_with("applied on 0 of 1 instance"));
        let done = json!({"version": 2, "revision": 3, "prepared": 1, "prepared_ms": 0, "applied": 1});
        assert_eq!(
            published_text(&done, false, Preparation::Skipped),
            "not prepared (--skip-prepare)\npublished version 2, revision 3\napplied on 1 of 1 instance"
        );
    }
}
