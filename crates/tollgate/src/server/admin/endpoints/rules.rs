//! Active rules, edits of one rule, checks and plans.

use super::EndpointResult;
use super::stale::{self, PresentItem};
use super::state::OTHER_DOMAINS;
use super::versions::published_item;
use crate::control::database::{RuleHistoryEntry, StaleItem};
use crate::control::model::SetFile;
use crate::control::{ControlError, PublishOptions, RuleLayer, RuleText, SetProblem};
use crate::server::admin::access::rights::Caller;
use crate::server::admin::problem::AdminProblem;
use crate::server::admin::reply::Reply;
use crate::server::admin::request::{Call, etag, need_reason};
use crate::server::telemetry::Protocol;
use hyper::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use tollgate_limiter::core::rules::{Attempt, Rule, Terms};

/// A rule of a list.
fn item(rule: &Rule, layer: RuleLayer) -> Value {
    let terms = rule.limit_selector().limit();
    let algorithm = match terms {
        Terms::Limited(windows) => windows
            .as_slice()
            .first()
            .map(|window| window.limit().algorithm().to_string()),
        _ => None,
    };
    let per: Vec<&str> = rule.per().iter().map(|dimension| dimension.attribute()).collect();
    json!({
        "domain": rule.domain(),
        "id": rule.id(),
        "layer": layer,
        "mode": rule.mode().name(),
        "algorithm": algorithm,
        "limit": terms.to_string(),
        "per": per,
    })
}

pub(in crate::server::admin) async fn list(call: Call) -> EndpointResult {
    let (domains, limit) = (call.domains()?, call.limit(1_000)?);
    let after: Option<(String, String)> = call.after()?;
    let text = call.query.get("q").map(str::to_lowercase);
    let mode = call.query.one_of("mode", &["enforce", "shadow", "disabled"])?;
    let layer = call.query.one_of("layer", &["quickstart", "file", "managed"])?;
    let control = call.control();
    let snapshot = call.service.gate.snapshot(Protocol::Http);
    let mut found: Vec<&Rule> = snapshot.limiter().rules().rules().iter().collect();
    found.retain(|rule| {
        let is_later = after
            .as_ref()
            .is_none_or(|(domain, id)| (rule.domain(), rule.id()) > (domain, id));
        let layer_name = json!(control.layer_of(rule));
        (domains.is_empty() || domains.iter().any(|domain| domain == rule.domain()))
            && is_later
            && text.as_ref().is_none_or(|text| rule.id().to_lowercase().contains(text))
            && mode.is_none_or(|mode| rule.mode().name() == mode)
            && layer.is_none_or(|layer| layer_name == layer)
    });
    found.sort_by_key(|rule| (rule.domain(), rule.id()));
    let (page, next) = call.first_page(&found, limit, |last| (last.domain(), last.id()));
    let items: Vec<Value> = page.iter().map(|rule| item(rule, control.layer_of(rule))).collect();
    let tag = etag::text(call.epoch(), control.live().set_revision);
    Ok(Reply::ok(&json!({ "items": items, "next": next, "etag": tag })))
}

/// The domain and the id that the query names.
fn query_key(call: &Call) -> Result<(String, String), AdminProblem> {
    let domain = call.query.get("domain").unwrap_or(Attempt::DOMAIN);
    call.check_domain(domain)?;
    Ok((domain.to_owned(), call.query.require("id")?.to_owned()))
}

/// A rule with its text, and its revision.
async fn found(call: &Call, domain: &str, id: &str) -> Option<(Value, u64)> {
    let text = call.control().rule_text(domain, id).await?;
    let snapshot = call.service.gate.snapshot(Protocol::Http);
    let rules = snapshot.limiter().rules().rules();
    let rule = rules.iter().find(|rule| rule.domain() == domain && rule.id() == id)?;
    let mut item = item(rule, text.layer);
    if let Value::Object(members) = &mut item {
        members.insert("path".into(), text.path.into());
        members.insert("line".into(), text.line.into());
        members.insert("yaml".into(), json!(text.yaml));
    }
    Some((item, text.revision))
}

pub(in crate::server::admin) async fn get(call: Call) -> EndpointResult {
    let (domain, id) = query_key(&call)?;
    match found(&call, &domain, &id).await {
        Some((item, revision)) => Ok(Reply::item(StatusCode::OK, item, call.epoch(), revision)),
        None => Err(AdminProblem::not_found("there is no such rule")),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleBody {
    yaml: String,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    break_glass: bool,
    #[serde(default)]
    drop_rows: bool,
}

pub(in crate::server::admin) async fn put(call: Call) -> EndpointResult {
    let (domain, id) = query_key(&call)?;
    let body: RuleBody = call.json()?;
    check_glass(&call, body.break_glass, &body.reason)?;
    let options = PublishOptions {
        precondition: call.precondition(&body.reason)?,
        drop_rows: body.drop_rows,
        break_glass: body.break_glass,
        dry_run: call.query.flag("dry_run")?,
        ..PublishOptions::default()
    };
    let author = call.author(&body.reason)?;
    let present = call.control().rule_text(&domain, &id).await;
    let published = match check_rule(&call, present.as_ref(), &options) {
        Ok(()) => {
            call.control()
                .put_rule(&domain, &id, &body.yaml, &options, author)
                .await
        }
        Err(found) => Err(ControlError::Stale(found)),
    };
    let published = match published {
        Ok(published) => published,
        Err(error) => return Err(stale(&call, error, (&domain, &id), Some(body.yaml)).await),
    };
    let mut item = published_item(&published, options.dry_run);
    if options.dry_run {
        return Ok(Reply::item(StatusCode::OK, item, published.epoch, published.revision));
    }
    // The tag of the rule is of its own last change, which an equal meaning is not.
    let mut revision = published.revision;
    if let (Value::Object(members), Some((rule, of_rule))) = (&mut item, found(&call, &domain, &id).await) {
        members.insert("rule".into(), rule);
        revision = if published.changed { revision } else { of_rule };
    }
    let status = match present {
        None => StatusCode::CREATED,
        Some(_) => StatusCode::OK,
    };
    Ok(Reply::item(status, item, published.epoch, revision))
}

/// Checks the condition on a rule. Those of files have no revision, and are refused when they are written.
fn check_rule(call: &Call, present: Option<&RuleText>, options: &PublishOptions) -> Result<(), Box<StaleItem>> {
    match present {
        Some(text) if text.layer != RuleLayer::Managed => Ok(()),
        text => stale::check(
            &options.precondition,
            call.epoch(),
            text.map_or(0, |text| text.revision),
        ),
    }
}

/// The problem of a write of one rule.
async fn stale(call: &Call, error: ControlError, (domain, id): (&str, &str), sent: Option<String>) -> AdminProblem {
    // The caller has sent the text of one rule; its file may have rules of other domains.
    let error = shown_error(call, error, &[]);
    stale::problem(call, error, async || {
        let found = found(call, domain, id).await;
        let text = |yaml: &str| format!("{}\n", yaml.trim_end());
        let present = found
            .as_ref()
            .and_then(|(item, _)| item.get("yaml")?.as_str().map(text));
        PresentItem {
            item: found.map_or(Value::Null, |(item, _)| item),
            present: present.unwrap_or_default(),
            sent: sent.as_deref().map(text).unwrap_or_default(),
            // A publish of many rules has one reason.
            is_of_all_domains: true,
        }
    })
    .await
}

pub(in crate::server::admin) async fn delete(call: Call) -> EndpointResult {
    let (domain, id) = query_key(&call)?;
    let reason = call.query.get("reason").unwrap_or_default();
    let break_glass = call.query.flag("break_glass")?;
    check_glass(&call, break_glass, reason)?;
    let options = PublishOptions {
        precondition: call.precondition(reason)?,
        drop_rows: call.query.flag("drop_rows")?,
        break_glass,
        dry_run: call.query.flag("dry_run")?,
        ..PublishOptions::default()
    };
    let author = call.author(reason)?;
    let present = call.control().rule_text(&domain, &id).await;
    let present = present.ok_or_else(|| AdminProblem::not_found("there is no such rule"))?;
    let published = match check_rule(&call, Some(&present), &options) {
        Ok(()) => call.control().delete_rule(&domain, &id, &options, author).await,
        Err(found) => Err(ControlError::Stale(found)),
    };
    let published = match published {
        Ok(published) => published,
        Err(error) => return Err(stale(&call, error, (&domain, &id), None).await),
    };
    let item = published_item(&published, options.dry_run);
    Ok(Reply::item(StatusCode::OK, item, published.epoch, published.revision))
}

/// Breaking the glass is for admins, with a reason.
pub(in crate::server::admin) fn check_glass(call: &Call, break_glass: bool, reason: &str) -> Result<(), AdminProblem> {
    use crate::server::admin::access::rights::Right;
    if !break_glass {
        return Ok(());
    }
    if !call.caller()?.has(Right::Admin) {
        return Err(AdminProblem::forbidden(
            "forbidden",
            "`break_glass` needs the role admin",
        ));
    }
    need_reason(reason, "`break_glass`")
}

pub(in crate::server::admin) async fn history(call: Call) -> EndpointResult {
    let (domain, id) = query_key(&call)?;
    let entries = call.database()?.rule_history(&domain, &id, call.limit(1_000)?).await?;
    let item = |mut entry: RuleHistoryEntry| {
        entry.reason = call.show_reason(&entry.reason).to_owned();
        json!(entry)
    };
    Ok(Reply::page(entries.into_iter().map(item).collect(), None))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FilesBody {
    files: Vec<SetFile>,
}

pub(in crate::server::admin) async fn check(call: Call) -> EndpointResult {
    let body: FilesBody = call.json()?;
    let sent = paths(&body.files);
    let mut checked = call.control().check_set(body.files).await?;
    checked.problems = shown(&call, checked.problems, &sent);
    let ok = !checked.problems.iter().any(|problem| problem.is_error());
    Ok(Reply::ok(
        &json!({ "ok": ok, "problems": checked.problems, "rules": checked.rules }),
    ))
}

/// The paths of files.
pub(super) fn paths(files: &[SetFile]) -> Vec<String> {
    files.iter().map(|file| file.path.clone()).collect()
}

/// Problems as the caller may see them: a file that it did not send may name subjects, and rules of any domain.
pub(super) fn shown(call: &Call, mut problems: Vec<SetProblem>, sent: &[String]) -> Vec<SetProblem> {
    let is_own = |problem: &SetProblem| problem.file.as_ref().is_some_and(|file| sent.contains(file));
    let is_restricted = call.caller.as_ref().is_none_or(Caller::is_restricted);
    for problem in problems.iter_mut().filter(|problem| !is_own(problem)) {
        problem.text = match is_restricted {
            true => OTHER_DOMAINS.to_owned(),
            false => call.show_message(std::mem::take(&mut problem.text)),
        };
        problem.hint = problem.hint.take().filter(|_| !is_restricted && !call.masks_subjects());
    }
    problems
}

/// An error with the problems that the caller may see.
pub(super) fn shown_error(call: &Call, error: ControlError, sent: &[String]) -> ControlError {
    match error {
        ControlError::Invalid(problems) => ControlError::Invalid(shown(call, problems, sent)),
        ControlError::InvalidRule { own, others } => ControlError::InvalidRule {
            own,
            others: shown(call, others, &[]),
        },
        ControlError::PrepareRejected(problems) => ControlError::PrepareRejected(shown(call, problems, sent)),
        // An instance may have files of its own.
        ControlError::FleetRejected(mut instances) if call.caller.as_ref().is_none_or(Caller::is_restricted) => {
            for instance in &mut instances {
                instance.problems = vec![OTHER_DOMAINS.to_owned()];
            }
            ControlError::FleetRejected(instances)
        }
        error => error,
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlanBody {
    files: Option<Vec<SetFile>>,
    version: Option<u64>,
}

pub(in crate::server::admin) async fn plan(call: Call) -> EndpointResult {
    let body: PlanBody = call.json()?;
    // The files of a version were not sent: they hold rules of all domains.
    let sent = paths(body.files.as_deref().unwrap_or_default());
    let files = match (body.files, body.version) {
        (Some(files), None) => files,
        (None, Some(number)) => {
            let database = call.database()?;
            let meta = database.version(number).await?;
            meta.ok_or_else(|| AdminProblem::not_found("there is no such version"))?;
            database.version_files(number).await?
        }
        _ => return Err(AdminProblem::malformed("send either `files` or `version`")),
    };
    let planned = call.control().plan(files).await;
    let mut planned = planned.map_err(|error| shown_error(&call, error, &sent))?;
    let caller = call.caller()?;
    planned.plan.lines.retain(|line| caller.covers(&line.domain));
    planned.plan.rows.retain(|note| caller.covers(&note.domain));
    if call.masks_subjects() {
        planned.plan.rows.iter_mut().for_each(|note| note.sample.clear());
    }
    let status = call.control().status();
    let live = match call.control().database() {
        Some(database) if status.version > 0 => database.version(status.version).await.ok().flatten(),
        _ => None,
    };
    Ok(Reply::ok(&json!({
        "live": {
            "version": status.version,
            "revision": status.set_revision,
            "epoch": status.epoch,
            "etag": etag::text(status.epoch, status.set_revision),
            "at": live.as_ref().map_or(0, |live| live.created_at),
            "actor": live.as_ref().map(|live| &live.actor),
            "reason": live.as_ref().map(|live| call.show_reason(&live.reason)),
        },
        "digest": planned.digest,
        "plan": planned.plan,
    })))
}
