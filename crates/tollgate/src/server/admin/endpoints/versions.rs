//! Versions: drafts, publish, rollback, differences.

use super::EndpointResult;
use super::rules::{check_glass, paths, shown, shown_error};
use super::stale::{self, PresentItem};
use super::state::version;
use crate::control::model::{DatabaseHead, Digest, Precondition, SetFile};
use crate::control::{ControlError, PublishOptions, PublishSet, Published};
use crate::server::admin::access::rights::{Caller, Right};
use crate::server::admin::problem::AdminProblem;
use crate::server::admin::reply::Reply;
use crate::server::admin::request::{Call, etag, need_reason};
use hyper::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;
use tollgate_limiter::core::quantity::parse_duration;

pub(in crate::server::admin) async fn list(call: Call) -> EndpointResult {
    let limit = call.limit(1_000)?;
    let before: Option<u64> = call.after()?;
    let versions = call.database()?.versions(before, limit).await?;
    let live = call.control().status();
    let next = call.next(&versions, limit, |last| last.number);
    let items: Vec<Value> = versions.iter().map(|meta| version(&call, meta, live.version)).collect();
    let tag = etag::text(call.epoch(), live.set_revision);
    Ok(Reply::ok(&json!({ "items": items, "next": next, "etag": tag })))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DraftBody {
    files: Vec<SetFile>,
    source: Option<String>,
    #[serde(default)]
    reason: String,
}

pub(in crate::server::admin) async fn save(call: Call) -> EndpointResult {
    let body: DraftBody = call.json()?;
    let author = call.author(&body.reason)?;
    let options = PublishOptions {
        source: source(body.source)?,
        dry_run: call.query.flag("dry_run")?,
        ..PublishOptions::default()
    };
    let sent = paths(&body.files);
    check_change(&call, &body.files, &sent).await?;
    if options.dry_run {
        let checked = call.control().check_set(body.files).await?;
        let problems = shown(&call, checked.problems, &sent);
        return Ok(Reply::ok(&json!({ "dry_run": true, "problems": problems })));
    }
    let saved = call.control().save_version(body.files, &options, author).await;
    let (meta, is_new) = saved.map_err(|error| shown_error(&call, error, &sent))?;
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    Ok(Reply::json(
        status,
        &version(&call, &meta, call.control().status().version),
    ))
}

/// `api`, `push` or `push <commit>`.
fn source(source: Option<String>) -> Result<String, AdminProblem> {
    let source = source.unwrap_or_else(|| "api".to_owned());
    let commit = source.strip_prefix("push ");
    let is_commit =
        |commit: &str| (1..=64).contains(&commit.len()) && commit.bytes().all(|byte| byte.is_ascii_graphic());
    match source == "api" || source == "push" || commit.is_some_and(is_commit) {
        true => Ok(source),
        false => Err(AdminProblem::field(
            "source",
            "must be `api`, `push` or `push <commit>`",
        )),
    }
}

/// Rejects a set that changes rules outside the domains of the caller, who sent these paths.
async fn check_change(call: &Call, files: &[SetFile], sent: &[String]) -> Result<(), AdminProblem> {
    let caller = call.caller()?;
    if !caller.is_restricted() {
        return Ok(());
    }
    let planned = call.control().plan(files.to_vec()).await;
    let planned = planned.map_err(|error| shown_error(call, error, sent))?;
    match planned.plan.lines.iter().find(|line| !caller.covers(&line.domain)) {
        None => Ok(()),
        Some(_) => Err(AdminProblem::forbidden(
            "domain",
            "this changes rules of domains that are not yours",
        )),
    }
}

/// The version that a parameter names.
async fn number(call: &Call, name: &str) -> Result<u64, AdminProblem> {
    match call.query.require(name)? {
        "live" => Ok(call.control().status().version),
        _ => Ok(call.query.number(name)?.unwrap_or_default()),
    }
}

pub(in crate::server::admin) async fn get(call: Call) -> EndpointResult {
    // Its files hold rules of all domains.
    call.check_unrestricted()?;
    let number = number(&call, "number").await?;
    let database = call.database()?;
    let meta = database.version(number).await?;
    let meta = meta.ok_or_else(|| AdminProblem::not_found("there is no such version"))?;
    let files = database.version_files(number).await?;
    let live = call.control().status();
    let mut item = version(&call, &meta, live.version);
    if let Value::Object(members) = &mut item {
        members.insert("files".into(), json!(files));
        members.insert("etag".into(), etag::text(call.epoch(), live.set_revision).into());
    }
    Ok(Reply::ok(&item))
}

pub(in crate::server::admin) async fn diff(call: Call) -> EndpointResult {
    call.check_unrestricted()?;
    let (from, to) = (number(&call, "from").await?, number(&call, "to").await?);
    let database = call.database()?;
    let mut paths: BTreeMap<String, (Option<String>, Option<String>)> = BTreeMap::new();
    for (number, is_new) in [(from, false), (to, true)] {
        if number > 0 && database.version(number).await?.is_none() {
            return Err(AdminProblem::not_found(format!("there is no version {number}")));
        }
        for file in database.version_files(number).await? {
            let entry = paths.entry(file.path).or_default();
            let side = if is_new { &mut entry.1 } else { &mut entry.0 };
            *side = Some(file.text);
        }
    }
    // A worst case of two large files takes long, and has a deadline; this thread is the only one that serves requests.
    let files = tokio::task::spawn_blocking(move || paths.into_iter().map(file_diff).collect::<Vec<Value>>()).await;
    let files = files.map_err(|_| AdminProblem::busy("the differences could not be computed"))?;
    Ok(Reply::ok(&json!({ "from": from, "to": to, "files": files })))
}

fn file_diff((path, (old, new)): (String, (Option<String>, Option<String>))) -> Value {
    let change = match (&old, &new) {
        (None, _) => "added",
        (_, None) => "removed",
        (old, new) if old == new => "same",
        _ => "changed",
    };
    let (old, new) = (old.unwrap_or_default(), new.unwrap_or_default());
    let text = stale::diff(&old, &new, &path, &path);
    json!({ "path": path, "change": change, "diff": text })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishBody {
    version: Option<u64>,
    files: Option<Vec<SetFile>>,
    source: Option<String>,
    expect_digest: Option<Digest>,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    drop_rows: bool,
    #[serde(default)]
    break_glass: bool,
    #[serde(default)]
    force: bool,
}

pub(in crate::server::admin) async fn publish(call: Call) -> EndpointResult {
    let body: PublishBody = call.json()?;
    check_glass(&call, body.break_glass, &body.reason)?;
    let skip_prepare = match call.query.raw("prepare") {
        None => false,
        Some("skip") => {
            if !call.caller()?.has(Right::Admin) {
                return Err(AdminProblem::forbidden(
                    "forbidden",
                    "`prepare=skip` needs the role admin",
                ));
            }
            need_reason(&body.reason, "`prepare=skip`")?;
            true
        }
        Some(_) => return Err(AdminProblem::field("prepare", "must be `skip`")),
    };
    let options = PublishOptions {
        precondition: set_condition(&call, &body.reason)?,
        source: source(body.source)?,
        drop_rows: body.drop_rows,
        break_glass: body.break_glass,
        force: body.force,
        skip_prepare,
        expect_digest: body.expect_digest,
        dry_run: call.query.flag("dry_run")?,
        wait: wait(&call)?,
    };
    let author = call.author(&body.reason)?;
    let set = match (body.version, body.files) {
        (Some(number), None) => {
            if call.caller()?.is_restricted() {
                check_change(&call, &call.database()?.version_files(number).await?, &[]).await?;
            }
            PublishSet::Version(number)
        }
        (None, Some(files)) => {
            check_change(&call, &files, &paths(&files)).await?;
            PublishSet::Files(files)
        }
        _ => return Err(AdminProblem::malformed("send either `version` or `files`")),
    };
    let sent = match &set {
        PublishSet::Files(files) => Sent::Files(files.clone()),
        PublishSet::Version(number) => Sent::Version(*number),
    };
    let published = match call.control().publish(set, &options, author).await {
        Ok(published) => published,
        Err(error) => return Err(stale(&call, error, sent).await),
    };
    Ok(published_reply(&published, options.dry_run))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RollbackBody {
    version: Option<u64>,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    drop_rows: bool,
    #[serde(default)]
    break_glass: bool,
}

pub(in crate::server::admin) async fn rollback(call: Call) -> EndpointResult {
    let body: RollbackBody = call.json()?;
    need_reason(&body.reason, "a rollback")?;
    check_glass(&call, body.break_glass, &body.reason)?;
    let options = PublishOptions {
        precondition: set_condition(&call, &body.reason)?,
        drop_rows: body.drop_rows,
        break_glass: body.break_glass,
        dry_run: call.query.flag("dry_run")?,
        wait: wait(&call)?,
        ..PublishOptions::default()
    };
    if call.caller()?.is_restricted() {
        let detail = "name the version: this credential is limited to some domains";
        let number = body.version.ok_or_else(|| AdminProblem::field("version", detail))?;
        check_change(&call, &call.database()?.version_files(number).await?, &[]).await?;
    }
    let author = call.author(&body.reason)?;
    let published = match call.control().rollback(body.version, &options, author).await {
        Ok(published) => published,
        Err(error) => return Err(stale(&call, error, Sent::Version(body.version.unwrap_or_default())).await),
    };
    Ok(published_reply(&published, options.dry_run))
}

/// The set that a publish was to make live.
enum Sent {
    Files(Vec<SetFile>),
    /// By its number; 0: the one before.
    Version(u64),
}

/// The problem of a publish. The reason of the live version, and its files, may be about any domain.
async fn stale(call: &Call, error: ControlError, sent: Sent) -> AdminProblem {
    let is_restricted = call.caller.as_ref().is_none_or(Caller::is_restricted);
    let error = match error {
        ControlError::Drift { live: Some(live), .. } if is_restricted => ControlError::Drift {
            text: format!("version {} was not pushed", live.number),
            live: None,
        },
        error => error,
    };
    let own = match &sent {
        Sent::Files(files) => paths(files),
        Sent::Version(_) => Vec::new(),
    };
    let error = shown_error(call, error, &own);
    let problem = stale::problem(call, error, async || {
        let live = call.control().live();
        let Ok(database) = call.database() else {
            return PresentItem::default();
        };
        let meta = database.version(live.version).await.ok().flatten();
        let files = match sent {
            Sent::Files(files) => files,
            Sent::Version(number) => database.version_files(number).await.unwrap_or_default(),
        };
        let text = |files: &[SetFile]| -> String {
            let each = files.iter().map(|file| format!("# {}\n{}", file.path, file.text));
            each.collect()
        };
        PresentItem {
            item: meta.map_or(Value::Null, |meta| version(call, &meta, live.version)),
            present: if is_restricted {
                String::new()
            } else {
                text(&live.files)
            },
            sent: if is_restricted { String::new() } else { text(&files) },
            is_of_all_domains: true,
        }
    });
    problem.await
}

/// The condition on the set. A caller of some domains must name the state that its change was checked against.
fn set_condition(call: &Call, reason: &str) -> Result<Precondition, AdminProblem> {
    let condition = call.precondition(reason)?;
    match condition == Precondition::Any && call.caller()?.is_restricted() {
        false => Ok(condition),
        true => Err(AdminProblem::forbidden(
            "domain",
            "`If-Match: *` needs a credential for all domains",
        )),
    }
}

/// The wait for instances to apply a publish.
fn wait(call: &Call) -> Result<Duration, AdminProblem> {
    let Some(text) = call.query.get("wait") else {
        return Ok(WAIT_DEFAULT);
    };
    let wait = parse_duration(text).map(Duration::from);
    let wait = wait.ok().filter(|wait| *wait <= WAIT_MAX);
    wait.ok_or_else(|| AdminProblem::field("wait", "must be a duration of at most 30s"))
}

/// A publish as the API has it.
pub(in crate::server::admin) fn published_item(published: &Published, dry_run: bool) -> Value {
    let mut item = json!(published);
    if let (true, Value::Object(members)) = (dry_run, &mut item) {
        members.insert("dry_run".into(), true.into());
    }
    item
}

fn published_reply(published: &Published, dry_run: bool) -> Reply {
    let item = published_item(published, dry_run);
    Reply::item(StatusCode::OK, item, published.epoch, published.revision)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AdoptBody {
    #[serde(default)]
    reason: String,
}

pub(in crate::server::admin) async fn adopt(call: Call) -> EndpointResult {
    call.check_unrestricted()?;
    let body: AdoptBody = call.json()?;
    need_reason(&body.reason, "a new epoch")?;
    let author = call.author(&body.reason)?;
    if call.query.flag("dry_run")? {
        let live = call.control().live();
        let head = live
            .head
            .as_ref()
            .ok_or_else(|| AdminProblem::not_found("there is no database to adopt yet"))?;
        return Ok(Reply::ok(&head_item(head, true)));
    }
    let head = call.control().adopt(author).await?;
    Ok(Reply::ok(&head_item(&head, false)))
}

/// The position of a database as the API has it.
fn head_item(head: &DatabaseHead, dry_run: bool) -> Value {
    json!({
        "database_id": head.database_id,
        "epoch": head.epoch,
        "revision": head.revision,
        "version": head.live_version,
        "dry_run": dry_run,
    })
}

const WAIT_DEFAULT: Duration = Duration::from_secs(2);
const WAIT_MAX: Duration = Duration::from_secs(30);
