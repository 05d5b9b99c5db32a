//! The event stream: server-sent events of what happens, as the caller may see it.

use super::super::EndpointResult;
use crate::server::admin::access::SessionUse;
use crate::server::admin::access::rights::{Caller, Right};
use crate::server::admin::problem::AdminProblem;
use crate::server::admin::reply::{EventStream, Reply};
use crate::server::admin::request::Call;
use crate::server::admin::service::AdminService;
use crate::server::admin::streams::StreamPermit;
use crate::server::telemetry::AlignedCount;
use crate::server::telemetry::watch::events::{EventReader, LoggedEvent, RevisionEvent, WatchEvent};
use crate::server::telemetry::watch::live::SampledDecision;
use crate::server::telemetry::watch::series::StepTotals;
use bytes::Bytes;
use hyper::HeaderMap;
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tollgate_limiter::core::Source;

/// The events that a client asks for.
struct WantedEvents {
    /// Rules, as `domain/id`.
    rules: Vec<String>,
    decisions: bool,
    /// A text that decisions contain, in lower case.
    filter: Option<String>,
}

pub(in crate::server::admin) async fn stream(call: Call) -> EndpointResult {
    let wanted = WantedEvents::new(&call)?;
    let place = call.service.streams.open(call.caller()?)?;
    // One that is no number is of no event that is known.
    let last_seen = call.headers.get("last-event-id");
    let last_seen = last_seen.map(|id| id.to_str().ok().and_then(|id| id.parse().ok()).unwrap_or(0));
    let reader = call.service.gate.watch().events().read_after(last_seen);
    let (sender, body) = EventStream::new();
    let hold = body.hold();
    tokio::spawn(async move {
        // The connection counts as busy until the stream has ended.
        let _hold = hold;
        send_events(call, &wanted, reader, sender, place).await;
    });
    Ok(Reply::stream(body))
}

impl WantedEvents {
    fn new(call: &Call) -> Result<Self, AdminProblem> {
        let rules = call.query.get("rules").unwrap_or_default();
        let rules: Vec<String> = rules
            .split(',')
            .filter(|rule| !rule.is_empty())
            .map(str::to_owned)
            .collect();
        if rules.len() > RULES_MAX {
            return Err(AdminProblem::field("rules", format!("at most {RULES_MAX} rules")));
        }
        Ok(Self {
            rules,
            decisions: match call.query.raw("decisions") {
                Some("1") => true,
                Some("0") => false,
                _ => call.query.flag("decisions")?,
            },
            filter: call.query.get("filter").map(str::to_lowercase),
        })
    }
}

/// The credential of a request.
struct Credential {
    service: Arc<AdminService>,
    headers: HeaderMap,
    peer: IpAddr,
}

impl Credential {
    fn new(call: &Call) -> Self {
        Self {
            service: Arc::clone(&call.service),
            headers: call.headers.clone(),
            peer: call.peer,
        }
    }

    /// The caller that has it now; none: it is no longer valid, or that is not known.
    async fn authenticate(&self) -> Option<Caller> {
        let service = &self.service;
        let cookie = service.browser.cookie_name();
        let access = &service.access;
        let caller = access.authenticate(&self.headers, &cookie, self.peer, &service.control, SessionUse::Check);
        caller.await.ok().flatten()
    }
}

/// One open stream in the metrics.
struct OpenStream<'c>(&'c AlignedCount);

impl<'c> OpenStream<'c> {
    fn count(clients: &'c AlignedCount) -> Self {
        clients.add(1);
        Self(clients)
    }
}

impl Drop for OpenStream<'_> {
    fn drop(&mut self) {
        self.0.subtract(1);
    }
}

/// Sends events until the client leaves, its session ends, or the server stops.
async fn send_events(
    mut call: Call,
    wanted: &WantedEvents,
    reader: EventReader,
    sender: mpsc::Sender<Bytes>,
    place: StreamPermit,
) {
    let service = Arc::clone(&call.service);
    let figures = service.gate.watch();
    let _counted = OpenStream::count(figures.stream_clients());
    let _sampling = wanted.decisions.then(|| figures.live().open());
    let mut stopping = service.stopping.subscribe();
    let mut stopped = pin!(async move {
        // The sender lives as long as the service.
        let _ = stopping.wait_for(|stopping| *stopping).await;
    });
    let (caller, mut current_caller) = watch::channel(call.caller.clone());
    let mut ended = pin!(check_caller(Credential::new(&call), place, caller));
    let mut check = interval(CHECK_INTERVAL);
    check.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let EventReader {
        missed,
        has_gap,
        mut coming,
        mut last,
    } = reader;
    let mut frames = format!("retry: {RETRY_MS}\n\n");
    if has_gap {
        frame(&mut frames, last, "resync", &json!({}));
    }
    for event in &missed {
        event_frame(&mut frames, &call, wanted, event);
        if frames.len() > REPLAY_BYTES_MAX {
            // Later than all of them: the client reads everything again.
            frames = format!("retry: {RETRY_MS}\n\n");
            frame(&mut frames, last, "resync", &json!({}));
            break;
        }
    }
    drop(missed);
    let mut unread_since = Instant::now();
    loop {
        tokio::select! {
            () = sender.closed() => return,
            () = &mut stopped => return,
            () = &mut ended => return,
            Ok(()) = current_caller.changed() => call.caller.clone_from(&current_caller.borrow_and_update()),
            _ = check.tick() => {
                if !frames.is_empty() && unread_since.elapsed() > UNREAD_MAX {
                    return;
                }
            }
            permit = sender.reserve(), if !frames.is_empty() => {
                let Ok(permit) = permit else { return };
                permit.send(Bytes::from(std::mem::take(&mut frames)));
            }
            event = coming.recv(), if frames.is_empty() => {
                unread_since = Instant::now();
                match event {
                    Ok(event) => {
                        last = event.id;
                        event_frame(&mut frames, &call, wanted, &event);
                        live_frames(&mut frames, &call, wanted, &event);
                    }
                    Err(RecvError::Lagged(_)) => frame(&mut frames, last, "resync", &json!({})),
                    Err(RecvError::Closed) => return,
                }
            }
        }
    }
}

/// Authenticates the caller again and again, who may have been logged out, disabled, or given another role, and ends when it may no
/// longer read. It runs beside the events: a slow database delays none. An open stream does not renew the session, which ends after its
/// idle time without a request.
async fn check_caller(credential: Credential, place: StreamPermit, caller: watch::Sender<Option<Caller>>) {
    loop {
        sleep(CHECK_INTERVAL).await;
        let found = place.check(Instant::now(), credential.authenticate()).await;
        if !found.as_ref().is_some_and(|found| found.has(Right::View)) {
            return;
        }
        caller.send_if_modified(|known| {
            let is_other = *known != found;
            *known = found;
            is_other
        });
    }
}

/// Writes an event as the caller may see it.
fn event_frame(out: &mut String, call: &Call, wanted: &WantedEvents, logged: &LoggedEvent) {
    let Some(caller) = &call.caller else { return };
    match &logged.event {
        WatchEvent::Totals { second, totals } if !caller.is_restricted() => {
            frame(out, logged.id, "totals", &totals_item(*second, totals));
        }
        // Of a caller of some domains they are made when they arrive.
        WatchEvent::Totals { .. } => {}
        WatchEvent::Decision(decision) => {
            if wanted.decisions && caller.covers(&decision.domain) && matches(call, wanted, decision) {
                frame(out, logged.id, "decision", &decision_item(call, logged.at, decision));
            }
        }
        WatchEvent::Revision(revision) => frame(out, logged.id, "revision", &revision_item(call, revision)),
        WatchEvent::Alert { domain, is_total, item } => {
            let is_visible = match domain {
                Some(domain) => caller.covers(domain),
                None => !(*is_total && caller.is_restricted()),
            };
            if is_visible {
                frame(out, logged.id, "alert", &masked_alert(call, item));
            }
        }
    }
}

/// Writes the events that are made for this client once a second.
fn live_frames(out: &mut String, call: &Call, wanted: &WantedEvents, logged: &LoggedEvent) {
    let (Some(caller), WatchEvent::Totals { second, .. }) = (&call.caller, &logged.event) else {
        return;
    };
    let series = call.service.gate.watch().series();
    let at = second * 1_000;
    if caller.is_restricted() {
        let counts = series.sum_until(*second, 1, |name| caller.covers(&name.domain));
        let totals = StepTotals {
            counts,
            ..StepTotals::default()
        };
        frame(out, logged.id, "totals", &totals_item(*second, &totals));
    }
    if second.is_multiple_of(RULES_INTERVAL_SECONDS) && !wanted.rules.is_empty() {
        let mut items = Vec::new();
        for name in series.tracked() {
            let is_wanted = || wanted.rules.contains(&format!("{}/{}", name.domain, name.rule));
            if caller.covers(&name.domain) && is_wanted() {
                let counts = series.sum_until(*second, RULES_INTERVAL_SECONDS, |other| *other == name);
                items.push(json!({
                    "domain": *name.domain,
                    "rule": *name.rule,
                    "checks": counts.checks(),
                    "denied": counts.denied,
                    "shadow_denied": counts.shadow_denied,
                }));
            }
        }
        frame(out, logged.id, "rules", &json!({ "at": at, "items": items }));
    }
}

fn totals_item(second: u64, totals: &StepTotals) -> Value {
    let sources: Map<String, Value> = Source::ALL
        .iter()
        .zip(totals.sources)
        .filter(|(_, count)| *count > 0)
        .map(|(source, count)| (source.name().to_owned(), count.into()))
        .collect();
    json!({
        "at": second * 1_000,
        "allowed": totals.counts.allowed,
        "denied": totals.counts.denied,
        "shadow_denied": totals.counts.shadow_denied,
        "sources": sources,
        "decision_p50_us": totals.decision.percentile_us(500),
        "decision_p99_us": totals.decision.percentile_us(990),
        "store_p50_us": totals.store.percentile_us(500),
        "store_p99_us": totals.store.percentile_us(990),
    })
}

/// True if a decision contains the text that the client looks for. Those whom subjects are masked for cannot look for one.
fn matches(call: &Call, wanted: &WantedEvents, decision: &SampledDecision) -> bool {
    let Some(filter) = &wanted.filter else { return true };
    let has = |text: &str| text.to_lowercase().contains(filter);
    let mut attributes = decision.attributes.iter();
    has(&decision.domain)
        || decision.rule.as_deref().is_some_and(has)
        || (!call.masks_subjects() && attributes.any(|(name, value)| has(name) || has(value)))
}

fn decision_item(call: &Call, at: u64, decision: &SampledDecision) -> Value {
    let attributes: Map<String, Value> = decision
        .attributes
        .iter()
        .map(|(name, value)| (name.clone(), call.show(value).into()))
        .collect();
    json!({
        "at": at,
        "protocol": decision.protocol,
        "domain": decision.domain,
        "attributes": attributes,
        "cost": decision.cost,
        "allowed": decision.allowed,
        "rule": decision.rule,
        "source": decision.source,
        "remaining": decision.remaining,
        "retry_after_ms": decision.retry_after_ms,
    })
}

fn revision_item(call: &Call, revision: &RevisionEvent) -> Value {
    let is_set = ["publish", "rollback"].contains(&&*revision.kind);
    // A reason may be about any domain, and that of a row may name its subject.
    let is_theirs = |domain: &String| call.caller.as_ref().is_some_and(|caller| caller.covers(domain));
    let is_restricted = call.caller.as_ref().is_none_or(|caller| caller.is_restricted());
    let is_hidden = is_restricted && !revision.domain.as_ref().is_some_and(is_theirs);
    let text = match is_hidden || (!is_set && call.masks_subjects()) {
        true => "",
        false => &revision.text,
    };
    json!({
        "at": revision.at,
        "epoch": revision.epoch,
        "revision": revision.revision,
        "version": revision.version,
        "kind": revision.kind,
        "actor": if is_hidden { "" } else { &revision.actor },
        "text": text,
    })
}

/// An alert as the caller may see it.
fn masked_alert(call: &Call, item: &Value) -> Value {
    let mut item = item.clone();
    if let (true, Some(members)) = (call.masks_subjects(), item.as_object_mut()) {
        let mut names_subject = false;
        if let Some(Value::Object(subject)) = members.get_mut("subject") {
            names_subject = true;
            for value in subject.values_mut() {
                *value = call.show(value.as_str().unwrap_or_default()).into();
            }
        }
        if names_subject && let Some(summary) = members.get("summary").and_then(Value::as_str) {
            let summary = call.show_message(summary.to_owned());
            members.insert("summary".into(), summary.into());
        }
    }
    item
}

fn frame(out: &mut String, id: u64, event: &str, data: &Value) {
    // JSON has no line breaks, and writing to a string does not fail.
    let _ = write!(out, "id: {id}\nevent: {event}\ndata: {data}\n\n");
}

/// The wait of a browser before it connects again.
const RETRY_MS: u64 = 2_000;
/// Missed events that are sent again. A client that has missed more reads everything again.
const REPLAY_BYTES_MAX: usize = 256 << 10;
/// A session that has ended is noticed within this time.
const CHECK_INTERVAL: Duration = Duration::from_millis(750);
/// The time that a client has to read.
const UNREAD_MAX: Duration = Duration::from_secs(30);
const RULES_INTERVAL_SECONDS: u64 = 2;
const RULES_MAX: usize = 100;
