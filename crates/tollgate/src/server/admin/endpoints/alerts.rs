//! Alerts, their silences, and their webhooks.

use super::EndpointResult;
use crate::alerts::{AlertKey, AlertKind, AlertState, ListedAlert, Silence};
use crate::control::model::SubjectValues;
use crate::server::admin::access::now_ms;
use crate::server::admin::access::secrets::random_hex;
use crate::server::admin::problem::AdminProblem;
use crate::server::admin::reply::Reply;
use crate::server::admin::request::{Call, need_reason};
use hyper::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

pub(in crate::server::admin) async fn list(call: Call) -> EndpointResult {
    let is_wanted = match call.query.get("state") {
        None => |_: &ListedAlert| true,
        Some("firing") => |listed: &ListedAlert| listed.alert.state == AlertState::Firing,
        Some("pending") => |listed: &ListedAlert| listed.alert.state == AlertState::Pending,
        Some("resolved") => |listed: &ListedAlert| listed.alert.state == AlertState::Resolved,
        Some("silenced") => {
            |listed: &ListedAlert| listed.alert.state != AlertState::Resolved && listed.silenced_until.is_some()
        }
        Some(_) => {
            let detail = "must be firing, pending, resolved or silenced";
            return Err(AdminProblem::field("state", detail));
        }
    };
    let limit = call.limit(1_000)?;
    let after: Option<String> = call.after()?;
    let alerts = &call.service.options.alerts;
    let mut listed = alerts.list();
    if let Some(after) = after {
        // The last one of the page before may be gone: then the list begins anew.
        let position = listed.iter().position(|listed| listed.alert.id == after);
        listed.drain(..position.map_or(0, |position| position + 1));
    }
    listed.retain(|listed| is_wanted(listed) && sees(&call, &listed.alert.key));
    let next = match listed.len() > limit {
        true => listed.get(limit - 1).and_then(|last| call.cursor(&last.alert.id)),
        false => None,
    };
    let items = listed.iter().take(limit);
    let items: Vec<Value> = items.map(|listed| item(listed, |value| call.show(value))).collect();
    let silences = alerts.silences();
    let silences = silences.iter().filter(|silence| sees_silence(&call, silence));
    let is_admin = !call.caller()?.is_restricted();
    let webhooks = alerts.webhooks().into_iter().filter(|_| is_admin).map(|webhook| {
        json!({
            "name": webhook.name,
            "last_delivery": webhook.last_delivery,
            "last_error": webhook.last_error.map(|error| call.show_message(error)),
        })
    });
    Ok(Reply::ok(&json!({
        "items": items,
        "after": next,
        "silences": silences.map(|silence| silence_item(&call, silence)).collect::<Vec<Value>>(),
        "webhooks": webhooks.collect::<Vec<Value>>(),
    })))
}

/// An alert as the API has it.
pub(in crate::server::admin) fn item(listed: &ListedAlert, show: impl Fn(&str) -> String) -> Value {
    let alert = &listed.alert;
    let rule = alert.key.rule.as_ref();
    let subject = alert.key.subject.as_deref().map(|subject| shown(subject, &show));
    json!({
        "id": alert.id,
        "kind": alert.key.kind.name(),
        "severity": alert.key.kind.severity(),
        "domain": rule.map(|rule| &*rule.domain),
        "rule": rule.map(|rule| &*rule.rule),
        "subject": subject,
        "state": alert.state,
        "since": alert.since,
        "resolved_at": alert.resolved_at,
        "summary": alert.summary,
        "value": alert.value,
        "baseline": alert.baseline,
        "silenced_until": listed.silenced_until,
        "explained": listed.is_explained,
        "runbook": alert.key.kind.runbook(),
    })
}

fn shown(subject: &SubjectValues, show: impl Fn(&str) -> String) -> SubjectValues {
    let values = subject.iter();
    values.map(|(name, value)| (name.clone(), show(value))).collect()
}

/// True if a caller may see an alert: it is about a domain of its own, or about everything.
fn sees(call: &Call, key: &AlertKey) -> bool {
    let is_restricted = call.caller.as_ref().is_none_or(|caller| caller.is_restricted());
    match &key.rule {
        Some(rule) => call.caller.as_ref().is_some_and(|caller| caller.covers(&rule.domain)),
        // Counts of all rules are those of other domains too.
        None => !(is_restricted && key.kind.is_anomaly()),
    }
}

fn sees_silence(call: &Call, silence: &Silence) -> bool {
    let Some(caller) = &call.caller else { return false };
    match &silence.domain {
        Some(domain) => caller.covers(domain),
        None => !caller.is_restricted(),
    }
}

fn silence_item(call: &Call, silence: &Silence) -> Value {
    json!({
        "id": silence.id,
        "kind": silence.kind.map(AlertKind::name),
        "domain": silence.domain,
        "rule": silence.rule,
        "subject": silence.subject.as_ref().map(|subject| shown(subject, |value| call.show(value))),
        "until": silence.until,
        // It may name a subject, as that of a row.
        "reason": if call.masks_subjects() { "" } else { call.show_reason(&silence.reason) },
        "actor": silence.actor,
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SilenceBody {
    kind: Option<AlertKind>,
    domain: Option<String>,
    rule: Option<String>,
    subject: Option<SubjectValues>,
    until: u64,
    #[serde(default)]
    reason: String,
}

pub(in crate::server::admin) async fn silence(call: Call) -> EndpointResult {
    let body: SilenceBody = call.json()?;
    match &body.domain {
        Some(domain) => call.check_domain(domain)?,
        None => call.check_unrestricted()?,
    }
    need_reason(&body.reason, "a silence")?;
    let author = call.author(&body.reason)?;
    let now = now_ms();
    if body.until <= now || body.until > now.saturating_add(LENGTH_MS_MAX) {
        let detail = "must be in the future, and within 90 days";
        return Err(AdminProblem::field("until", detail));
    }
    let texts = [&body.domain, &body.rule];
    let is_long = |text: &&Option<String>| text.as_ref().is_some_and(|text| text.len() > TEXT_BYTES_MAX);
    let subject_bytes = body
        .subject
        .iter()
        .flatten()
        .map(|(name, value)| name.len() + value.len());
    if texts.iter().any(is_long) || subject_bytes.sum::<usize>() > SUBJECT_BYTES_MAX {
        return Err(AdminProblem::malformed("a name or a value is too long"));
    }
    let silence = Silence {
        id: random_hex(8),
        kind: body.kind,
        domain: body.domain,
        rule: body.rule,
        subject: body.subject,
        until: body.until,
        reason: body.reason,
        actor: author.actor.clone(),
    };
    let item = silence_item(&call, &silence);
    if call.query.flag("dry_run")? {
        return Ok(Reply::ok(&item));
    }
    call.service.options.alerts.add_silence(&silence, &author).await?;
    Ok(Reply::json(StatusCode::CREATED, &item))
}

pub(in crate::server::admin) async fn end_silence(call: Call) -> EndpointResult {
    let id = call.query.require("id")?;
    let author = call.author(call.query.get("reason").unwrap_or_default())?;
    let is_dry_run = call.query.flag("dry_run")?;
    let alerts = &call.service.options.alerts;
    let silences = alerts.silences();
    let found = silences.iter().find(|silence| silence.id == id);
    // One of another domain is not there for this caller.
    let is_seen = found.is_some_and(|silence| sees_silence(&call, silence));
    if !is_seen {
        return Err(AdminProblem::not_found("there is no such silence"));
    }
    if !is_dry_run {
        alerts.delete_silence(id, &author).await?;
    }
    Ok(Reply::empty())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WebhookTestBody {
    name: String,
}

pub(in crate::server::admin) async fn test_webhook(call: Call) -> EndpointResult {
    call.check_unrestricted()?;
    let body: WebhookTestBody = call.json()?;
    let delivery = call.service.options.alerts.test(&body.name).await;
    let delivery =
        delivery.ok_or_else(|| AdminProblem::not_found("there is no webhook of this name in the settings"))?;
    Ok(Reply::ok(&json!({
        "delivered": delivery.error.is_none(),
        "status": delivery.status,
        "elapsed_ms": u64::try_from(delivery.elapsed.as_millis()).unwrap_or(u64::MAX),
        "error": delivery.error,
    })))
}

/// The longest silence: 90 days.
const LENGTH_MS_MAX: u64 = 90 * 86_400_000;
const TEXT_BYTES_MAX: usize = 512;
const SUBJECT_BYTES_MAX: usize = 8 << 10;
