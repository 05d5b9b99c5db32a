//! The two shapes of rate limit headers: lists of named policies, and a header for each number of one limit.

use super::REPORTS_MAX;
use http::HeaderMap;
use sfv::{BareItem, Dictionary, Item, List, ListEntry, Parameters, Parser};
use tollgate_limiter::core::protect::PolicyReport;
use tollgate_limiter::core::{Micros, Timestamp};

/// `RateLimit-Policy` and `RateLimit`: `"api";q=100;w=60` and `"api";r=42;t=17`. The next draft writes `a` and `w` for `r`
/// and `t`; draft 07 writes `100;w=60` and `limit=100, remaining=42, reset=17`.
pub(super) fn named(headers: &HeaderMap) -> Vec<PolicyReport> {
    let limits = text(headers, "ratelimit");
    // Without it, the numbers belong to a dialect with a header for each.
    if limits.is_none() && headers.contains_key("ratelimit-limit") {
        return Vec::new();
    }
    let policies = text(headers, "ratelimit-policy")
        .and_then(|text| items(&text))
        .unwrap_or_default();
    let mut reports = Vec::new();
    let mut foreign_units = Vec::new();
    for item in &policies {
        if reports.len() >= REPORTS_MAX {
            break;
        }
        let Some(id) = policy_id(item) else { continue };
        let unit = item.params.get("qu").and_then(|unit| Some(unit.as_string()?.as_str()));
        if unit.is_some_and(|unit| unit != "requests") {
            foreign_units.push(id);
            continue;
        }
        let quota = number(&item.params, "q").or_else(|| positive(&item.bare_item));
        let window = number(&item.params, "w").map(Micros::from_secs);
        reports.push(PolicyReport {
            id,
            quota,
            window,
            ..PolicyReport::default()
        });
    }
    let Some(limits) = limits else { return reports };
    if let Some(items) = items(&limits) {
        for item in &items {
            let Some(id) = policy_id(item).filter(|id| !foreign_units.contains(id)) else {
                continue;
            };
            let remaining = number(&item.params, "r").or_else(|| number(&item.params, "a"));
            let reset = number(&item.params, "t").or_else(|| number(&item.params, "w"));
            record(&mut reports, id, remaining, reset.map(Micros::from_secs));
        }
    } else if let Ok(numbers) = Parser::new(&limits).parse::<Dictionary>() {
        let number = |name: &str| match numbers.get(name) {
            Some(ListEntry::Item(item)) => positive(&item.bare_item),
            _ => None,
        };
        let quota = number("limit");
        let id = binding(&mut reports, quota);
        record(
            &mut reports,
            id,
            number("remaining"),
            number("reset").map(Micros::from_secs),
        );
    }
    reports
}

/// `PREFIX-Limit: 100, 100;w=60`, `PREFIX-Remaining: 42`, `PREFIX-Reset: 17`. A reset above 10^8 is Unix time.
pub(super) fn numbered(headers: &HeaderMap, prefix: &str, now: Timestamp) -> Vec<PolicyReport> {
    let field = |name: &str| text(headers, &format!("{prefix}-{name}"));
    let mut listed = field("limit").and_then(|text| items(&text)).unwrap_or_default();
    let quota = listed.first().and_then(|item| positive(&item.bare_item));
    let policies = text(headers, "ratelimit-policy").filter(|_| prefix == "ratelimit");
    listed.extend(policies.and_then(|text| items(&text)).unwrap_or_default());
    let mut reports = Vec::new();
    for item in &listed {
        let window = number(&item.params, "w").map(Micros::from_secs);
        if let (Some(id), Some(window)) = (policy_id(item), window)
            && reports.len() < REPORTS_MAX
        {
            reports.push(PolicyReport {
                id,
                quota: positive(&item.bare_item),
                window: Some(window),
                ..PolicyReport::default()
            });
        }
    }
    let integer = |name: &str| field(name).and_then(|text| text.trim().parse::<u64>().ok());
    let remaining = integer("remaining");
    if quota.is_none() && remaining.is_none() {
        return reports;
    }
    let reset = integer("reset").map(|reset| {
        if reset > UNIX_TIME_MIN {
            Micros::from_secs(reset.saturating_sub(now.as_micros() / 1_000_000))
        } else {
            Micros::from_secs(reset)
        }
    });
    let id = binding(&mut reports, quota);
    record(&mut reports, id, remaining, reset);
    reports
}

/// The policy that a quota without a name belongs to: the first with that quota, or a new one.
fn binding(reports: &mut Vec<PolicyReport>, quota: Option<u64>) -> u64 {
    if let Some(known) = reports.iter().find(|report| report.quota == quota) {
        return known.id;
    }
    if reports.len() < REPORTS_MAX {
        reports.push(PolicyReport {
            id: UNNAMED,
            quota,
            ..PolicyReport::default()
        });
    }
    UNNAMED
}

fn record(reports: &mut Vec<PolicyReport>, id: u64, remaining: Option<u64>, reset: Option<Micros>) {
    if reports.len() < REPORTS_MAX && !reports.iter().any(|report| report.id == id) {
        reports.push(PolicyReport {
            id,
            ..PolicyReport::default()
        });
    }
    for report in reports.iter_mut().filter(|report| report.id == id) {
        report.remaining = remaining;
        report.reset = reset;
    }
}

/// The lines of a field as one. None if it is absent, too long, or not text.
fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    let mut joined = String::new();
    for value in headers.get_all(name) {
        if !joined.is_empty() {
            joined.push_str(", ");
        }
        joined.push_str(value.to_str().ok()?);
        if joined.len() > FIELD_MAX {
            return None;
        }
    }
    (!joined.is_empty()).then_some(joined)
}

/// The first items of a list: each is compared with each.
fn items(text: &str) -> Option<Vec<Item>> {
    let list = Parser::new(text).parse::<List>().ok()?;
    let item = |entry| match entry {
        ListEntry::Item(item) => Some(item),
        ListEntry::InnerList(_) => None,
    };
    Some(list.into_iter().take(ITEMS_MAX).filter_map(item).collect())
}

/// The name of a policy as a hash that is the same in every process. One without a name is known by its numbers.
fn policy_id(item: &Item) -> Option<u64> {
    Some(match &item.bare_item {
        BareItem::String(name) => hash(name.as_str().as_bytes()),
        BareItem::Token(name) => hash(name.as_str().as_bytes()),
        BareItem::Integer(quota) => {
            let window = number(&item.params, "w").unwrap_or_default();
            hash(format!("{quota};{window}").as_bytes())
        }
        _ => return None,
    })
}

fn number(params: &Parameters, name: &str) -> Option<u64> {
    positive(params.get(name)?)
}

fn positive(item: &BareItem) -> Option<u64> {
    let number = i64::from(item.as_integer()?);
    u64::try_from(number).ok()
}

/// FNV-1a. A collision merges two policies of one server, which that server could do by name as well.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The policy of a server that names none.
const UNNAMED: u64 = 0;
/// The items of a list that are read.
const ITEMS_MAX: usize = 32;
/// The longest field that is read.
const FIELD_MAX: usize = 8_192;
/// A reset above this many seconds is a time, not a wait: three years.
const UNIX_TIME_MIN: u64 = 100_000_000;
