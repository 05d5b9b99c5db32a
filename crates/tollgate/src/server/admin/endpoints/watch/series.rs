//! Time series of totals and of one rule, with the changes of rules as marks, and a table of all rules.

use super::super::EndpointResult;
use super::super::audit::is_visible;
use crate::control::database::AuditFilter;
use crate::control::model::AuditEntry;
use crate::server::admin::problem::AdminProblem;
use crate::server::admin::reply::Reply;
use crate::server::admin::request::Call;
use crate::server::telemetry::Protocol;
use crate::server::telemetry::watch::report::{FiguresReport, sum};
use crate::server::telemetry::watch::series::{
    BANDS, BandCounts, Resolution, RuleName, StepCounts, StepTotals, StepWindow,
};
use serde_json::{Map, Value, json};
use std::cmp::Reverse;
use std::time::Duration;
use tokio::time::timeout;
use tollgate_limiter::core::Source;
use tollgate_limiter::core::rules::Attempt;

pub(in crate::server::admin) async fn series(call: Call) -> EndpointResult {
    // Parameters of the other form are read too: one that is not valid is an error anywhere.
    let is_table = call.query.one_of("scope", &["rules"])?.is_some();
    let order = match call.query.one_of("sort", &["checks", "denied"])? {
        Some("denied") => TableOrder::Denied,
        _ => TableOrder::Checks,
    };
    let limit = call.limit(1_000)?;
    let resolution = match call.query.one_of("range", &["5m", "1h", "24h"])? {
        Some("24h") => Resolution::Minute,
        Some("1h") => Resolution::TenSeconds,
        _ => Resolution::Second,
    };
    let by_source = call.query.one_of("by", &["result", "source"])? == Some("source");
    if is_table {
        let reports = call.control().fleet_figures(None).await.unwrap_or_default();
        return table(&call, &reports, order, limit);
    }
    let domains = call.domains()?;
    let rule = match call.query.get("rule") {
        Some(rule) => Some(known_rule(&call, rule)?),
        None => None,
    };
    let is_total = rule.is_none() && domains.is_empty();
    if by_source && !is_total {
        let detail = "sources are known for the totals of all domains only; leave out `domain` and `rule`";
        return Err(AdminProblem::field("by", detail));
    }
    let reports = match by_source {
        false => call.control().fleet_figures(rule.as_ref()).await,
        // Instances do not report them.
        true => None,
    };
    let series = call.service.gate.watch().series();
    let (mut body, instances) = match (&rule, is_total) {
        (Some(rule), _) => {
            let own = series.rule(rule, resolution);
            let window = |report: &FiguresReport| report.rule(rule, resolution);
            let fleet = fleet_sum(&own, reports.as_deref().map(Vec::as_slice), window);
            (results(fleet.as_ref().unwrap_or(&own)), fleet.is_some())
        }
        (None, true) => {
            let own = series.totals(resolution);
            let counts = own.counts();
            let window = |report: &FiguresReport| report.totals(resolution);
            let fleet = fleet_sum(&counts, reports.as_deref().map(Vec::as_slice), window);
            (of_totals(&own, fleet.as_ref(), by_source), fleet.is_some())
        }
        (None, false) => {
            let covers = |name: &RuleName| domains.iter().any(|domain| **domain == *name.domain);
            (results(&series.rules_of(resolution, covers)), false)
        }
    };
    let instances = match instances {
        true => Some(1 + reports.as_ref().map_or(0, |reports| reports.len())),
        false => None,
    };
    let start = body.get("start").and_then(Value::as_u64).unwrap_or_default();
    body.insert(
        "scope".into(),
        if instances.is_some() { "fleet" } else { "instance" }.into(),
    );
    body.insert("instances".into(), instances.unwrap_or(1).into());
    if let Some(variants) = rule.as_ref().and_then(|rule| variants(&call, rule)) {
        body.insert("variants".into(), variants);
    }
    body.insert("marks".into(), marks(&call, rule.as_ref(), start).await.into());
    Ok(Reply::ok(&Value::Object(body)))
}

/// The order of the table of rules, the most first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TableOrder {
    Checks,
    Denied,
}

/// A rule that is active, or has a series.
fn known_rule(call: &Call, rule: &str) -> Result<RuleName, AdminProblem> {
    let domain = call.query.get("domain").unwrap_or(Attempt::DOMAIN);
    call.check_domain(domain)?;
    let name = RuleName::new(domain, rule);
    let snapshot = call.service.gate.snapshot(Protocol::Admin);
    let mut rules = snapshot.limiter().rules().rules().iter();
    let is_active = rules.any(|rule| *rule.domain() == *name.domain && *rule.id() == *name.rule);
    match is_active || call.service.gate.watch().series().tracked().contains(&name) {
        true => Ok(name),
        false => Err(AdminProblem::not_found("there is no such rule")),
    }
}

/// The variants of a rule with an experiment, as this instance has counted them.
fn variants(call: &Call, rule: &RuleName) -> Option<Value> {
    let found = call.service.gate.variants(&rule.domain, &rule.rule)?;
    let [control, experiment] = found.map(|(limit, figures)| {
        let [allowed, denied] = figures.results();
        json!({ "limit": limit, "allowed": allowed, "denied": denied })
    });
    Some(json!({ "control": control, "experiment": experiment }))
}

/// The sum over this instance and the others; none if there is no way to them, or if one does not report it yet.
fn fleet_sum(
    own: &StepWindow<StepCounts>,
    reports: Option<&[FiguresReport]>,
    window: impl Fn(&FiguresReport) -> Option<StepWindow<StepCounts>>,
) -> Option<StepWindow<StepCounts>> {
    let mut windows = vec![own.clone()];
    for report in reports? {
        windows.push(window(report)?);
    }
    Some(sum(&windows))
}

/// Decisions by result.
fn results(window: &StepWindow<StepCounts>) -> Map<String, Value> {
    body(window, &result_lines(&window.values, |counts| *counts))
}

fn result_lines<T>(values: &[Option<T>], counts: impl Fn(&T) -> StepCounts) -> Vec<Value> {
    vec![
        line("allowed", values, |value| u64::from(counts(value).allowed)),
        line("denied", values, |value| u64::from(counts(value).denied)),
        line("shadow_denied", values, |value| u64::from(counts(value).shadow_denied)),
    ]
}

/// The totals of this instance; with the sum over the fleet in place of its own decisions, if there is one.
fn of_totals(
    own: &StepWindow<StepTotals>,
    fleet: Option<&StepWindow<StepCounts>>,
    by_source: bool,
) -> Map<String, Value> {
    let start_ms = fleet.map_or(own.start_ms, |fleet| fleet.start_ms);
    // The sum ends a few steps earlier, with what all have reported.
    let earlier = usize::try_from(own.start_ms.saturating_sub(start_ms) / own.step_ms).unwrap_or_default();
    let before = vec![None; earlier.min(own.values.len())];
    let kept = own.values.len() - before.len();
    let values: Vec<Option<StepTotals>> = before
        .into_iter()
        .chain(own.values.iter().take(kept).copied())
        .collect();
    let window = StepWindow {
        start_ms,
        step_ms: own.step_ms,
        values,
    };
    let values = &window.values;
    let lines = match by_source {
        false => match fleet {
            Some(fleet) => result_lines(&fleet.values, |counts| *counts),
            None => result_lines(values, |totals| totals.counts),
        },
        true => {
            let of = |source: Source| {
                line(source.name(), values, move |totals| {
                    totals.sources.get(source as usize).copied().unwrap_or_default().into()
                })
            };
            Source::ALL.map(of).into()
        }
    };
    let mut body = body(&window, &lines);
    let percentile = |read: &dyn Fn(&StepTotals) -> Option<u64>| -> Value {
        let value = |totals: &Option<StepTotals>| json!(totals.as_ref().and_then(read));
        values.iter().map(value).collect::<Vec<Value>>().into()
    };
    body.insert(
        "latency".into(),
        json!({
            "decision_p50_us": percentile(&|totals| totals.decision.percentile_us(500)),
            "decision_p99_us": percentile(&|totals| totals.decision.percentile_us(990)),
            "store_p50_us": percentile(&|totals| totals.store.percentile_us(500)),
            "store_p99_us": percentile(&|totals| totals.store.percentile_us(990)),
        }),
    );
    body
}

fn body<T>(window: &StepWindow<T>, lines: &[Value]) -> Map<String, Value> {
    let mut body = Map::new();
    body.insert("step_ms".into(), window.step_ms.into());
    body.insert("start".into(), window.start_ms.into());
    body.insert("series".into(), lines.into());
    body
}

fn line<T>(name: &str, values: &[Option<T>], read: impl Fn(&T) -> u64) -> Value {
    let values: Vec<Option<u64>> = values.iter().map(|value| value.as_ref().map(&read)).collect();
    json!({ "name": name, "values": values })
}

/// The changes of managed rules since a time, the oldest first. None without a database that answers.
async fn marks(call: &Call, rule: Option<&RuleName>, since_ms: u64) -> Vec<Value> {
    let Some(database) = call.control().database() else {
        return Vec::new();
    };
    let filter = AuditFilter {
        since: Some(since_ms),
        ..AuditFilter::default()
    };
    let mut marks = Vec::new();
    let mut before = None;
    for _ in 0..MARK_READS_MAX {
        let Ok(Ok(entries)) = timeout(MARKS_WAIT, database.audit(&filter, before, MARKS_MAX)).await else {
            break;
        };
        marks.extend(entries.iter().filter_map(|entry| mark(call, rule, entry)));
        before = entries.last().map(|entry| entry.seq);
        if entries.len() < MARKS_MAX || marks.len() >= MARKS_MAX {
            break;
        }
    }
    marks.truncate(MARKS_MAX);
    marks.reverse();
    marks
}

fn mark(call: &Call, rule: Option<&RuleName>, entry: &AuditEntry) -> Option<Value> {
    let caller = call.caller.as_ref()?;
    let kind = mark_kind(entry)?;
    if !is_visible(caller, entry) || (kind == "row" && rule.is_some_and(|rule| !is_about(entry, rule))) {
        return None;
    }
    // The reason of a row may name its subject.
    let text = match kind != "publish" && kind != "rollback" && call.masks_subjects() {
        true => "",
        false => &entry.reason,
    };
    Some(json!({
        "at": entry.at,
        "revision": entry.revision,
        "kind": kind,
        "actor": entry.actor,
        "text": text,
    }))
}

/// The kind of a change of managed rules; none for other entries.
pub(super) fn mark_kind(entry: &AuditEntry) -> Option<&'static str> {
    let kinds = ["publish", "rollback", "row", "attribute"];
    let kind = entry.action.split('.').next().unwrap_or_default();
    let found = kinds.into_iter().find(|known| *known == kind);
    found.filter(|_| entry.revision > 0)
}

/// True if a row before or after the change belongs to the rule.
fn is_about(entry: &AuditEntry, rule: &RuleName) -> bool {
    let is_its = |text: &str| {
        let row: Value = serde_json::from_str(text).unwrap_or_default();
        let is = |name: &str, value: &str| row.get(name).and_then(Value::as_str) == Some(value);
        is("domain", &rule.domain) && is("rule", &rule.rule)
    };
    is_its(&entry.before) || is_its(&entry.after)
}

/// The rules with their figures of the last minute, the busiest first.
fn table(call: &Call, reports: &[FiguresReport], order: TableOrder, limit: usize) -> EndpointResult {
    let domains = call.domains()?;
    let after: Option<(u64, String, String)> = call.after()?;
    let text = call.query.get("q").map(str::to_lowercase);
    let mut figures = call.service.gate.watch().series().last_minute();
    for report in reports {
        report.add_last_minute(&mut figures);
    }
    let snapshot = call.service.gate.snapshot(Protocol::Admin);
    let mut found = Vec::new();
    for rule in snapshot.limiter().rules().rules() {
        let is_wanted = (domains.is_empty() || domains.iter().any(|domain| domain == rule.domain()))
            && text.as_ref().is_none_or(|text| rule.id().to_lowercase().contains(text));
        if !is_wanted {
            continue;
        }
        let name = RuleName::new(rule.domain(), rule.id());
        let (counts, bands) = figures.get(&name).copied().unwrap_or_default();
        let sorted_by = match order {
            TableOrder::Checks => counts.checks(),
            TableOrder::Denied => counts.denied.into(),
        };
        let key = (Reverse(sorted_by), name);
        let is_later = after.as_ref().is_none_or(|(number, domain, id)| {
            let position = (Reverse(*number), domain.as_str(), id.as_str());
            (key.0, &*key.1.domain, &*key.1.rule) > position
        });
        if is_later {
            found.push((key, counts, bands));
        }
    }
    found.sort_by(|(one, ..), (other, ..)| one.cmp(other));
    let next = match (found.len() > limit, found.get(limit - 1)) {
        (true, Some(((Reverse(number), name), ..))) => call.cursor(&(number, &*name.domain, &*name.rule)),
        _ => None,
    };
    let items: Vec<Value> = found
        .iter()
        .take(limit)
        .map(|((_, name), counts, bands)| table_item(name, counts, bands))
        .collect();
    Ok(Reply::ok(
        &json!({ "window_ms": 60_000, "items": items, "after": next }),
    ))
}

fn table_item(name: &RuleName, counts: &StepCounts, bands: &BandCounts) -> Value {
    let utilization: Map<String, Value> = BANDS
        .iter()
        .zip(bands.0)
        .map(|(band, count)| ((*band).to_owned(), count.into()))
        .collect();
    json!({
        "domain": *name.domain,
        "rule": *name.rule,
        "checks": counts.checks(),
        "denied": counts.denied,
        "shadow_denied": counts.shadow_denied,
        "utilization": utilization,
    })
}

const MARKS_MAX: usize = 200;
const MARK_READS_MAX: usize = 4;
/// The figures do not wait longer for their marks.
const MARKS_WAIT: Duration = Duration::from_millis(500);
