//! An explanation as JSON.

use super::response::{self, CheckResponse};
use crate::server::http::json::{boolean, integer, string};
use tollgate_limiter::core::rules::{Explanation, LimitOrigin, MatchedRule, RuleMatch, RuleTrace, SkipReason, Terms};
use tollgate_limiter::core::{Cost, Timestamp};

/// `{"verdict":{…},"rules":[…]}`: what a check would answer, and then every rule.
pub(in crate::server::http) fn encode(explanation: &Explanation<'_>) -> Vec<u8> {
    let mut out = Vec::with_capacity(BYTES);
    out.extend_from_slice(b"{\"verdict\":");
    let response = CheckResponse {
        verdict: &explanation.verdict,
        lease: None,
        cost: Cost::ZERO,
        now: Timestamp::EPOCH,
    };
    response::write_body(&mut out, &response);
    out.extend_from_slice(b",\"rules\":");
    array(&mut out, &explanation.traces, rule_trace);
    out.push(b'}');
    out
}

fn rule_trace(out: &mut Vec<u8>, trace: &RuleTrace<'_>) {
    out.extend_from_slice(b"{\"rule\":");
    string(out, trace.rule.id().as_bytes());
    out.extend_from_slice(b",\"domain\":");
    string(out, trace.rule.domain().as_bytes());
    out.extend_from_slice(b",\"mode\":");
    string(out, trace.rule.mode().name().as_bytes());
    out.extend_from_slice(b",\"met\":");
    boolean(out, trace.rule_match.is_matched());
    match &trace.rule_match {
        RuleMatch::Matched(met) => matched_rule(out, trace, met),
        RuleMatch::Skipped(misses) => {
            out.extend_from_slice(b",\"missed\":");
            array(out, misses, skip_reason);
        }
    }
    out.extend_from_slice(b",\"advice\":");
    array(out, &trace.suggestions(), |out, advice| string(out, advice.as_bytes()));
    out.push(b'}');
}

fn matched_rule(out: &mut Vec<u8>, trace: &RuleTrace<'_>, matched: &MatchedRule<'_>) {
    out.extend_from_slice(b",\"per\":");
    // A list of pairs: an attribute of several values stands there several times.
    array(out, &matched.subject, |out, (name, value)| {
        out.extend_from_slice(b"{\"attribute\":");
        string(out, name.as_bytes());
        out.extend_from_slice(b",\"value\":");
        string(out, value.as_bytes());
        out.push(b'}');
    });
    out.extend_from_slice(b",\"variant\":");
    match trace.rule.experiment() {
        Some(_) => string(out, matched.variant.name().as_bytes()),
        None => out.extend_from_slice(b"null"),
    }
    out.extend_from_slice(b",\"terms\":");
    let terms = match matched.terms {
        Terms::Limited(_) => "limited",
        Terms::Banned => "banned",
        Terms::Unlimited => "unlimited",
    };
    string(out, terms.as_bytes());
    out.extend_from_slice(b",\"from\":");
    limit_origin(out, &matched.origin);
    out.extend_from_slice(b",\"cost\":");
    integer(out, matched.cost.get());
    out.extend_from_slice(b",\"limits\":");
    array(out, &matched.limits, |out, limit| {
        out.push(b'{');
        response::write_ruling(out, &limit.ruling);
        out.extend_from_slice(b",\"algorithm\":");
        string_or_null(out, limit.ruling.window.map(|window| window.limit().algorithm()));
        out.extend_from_slice(b",\"key\":");
        string_or_null(out, limit.key.as_deref());
        out.push(b'}');
    });
}

/// Where the limit comes from.
fn limit_origin(out: &mut Vec<u8>, origin: &LimitOrigin<'_>) {
    match origin {
        LimitOrigin::Limit => out.extend_from_slice(b"{\"kind\":\"limit\"}"),
        LimitOrigin::By { attribute, value } => {
            out.extend_from_slice(b"{\"kind\":\"by\",\"attribute\":");
            string(out, attribute.as_bytes());
            out.extend_from_slice(b",\"value\":");
            string(out, value);
            out.push(b'}');
        }
        LimitOrigin::Override(index) => {
            out.extend_from_slice(b"{\"kind\":\"override\",\"place\":");
            integer(out, u64::from(*index));
            out.push(b'}');
        }
    }
}

fn skip_reason(out: &mut Vec<u8>, reason: &SkipReason<'_>) {
    match reason {
        SkipReason::Disabled => out.extend_from_slice(b"{\"reason\":\"disabled\""),
        SkipReason::Domain { actual: was } => {
            out.extend_from_slice(b"{\"reason\":\"domain\",\"was\":");
            string(out, was.as_bytes());
        }
        SkipReason::Condition {
            attribute,
            expected: wanted,
            actual: was,
        } => {
            out.extend_from_slice(b"{\"reason\":\"condition\",\"attribute\":");
            string(out, attribute.as_bytes());
            out.extend_from_slice(b",\"wanted\":");
            string(out, wanted.as_bytes());
            out.extend_from_slice(b",\"was\":");
            array(out, was, |out, value| string(out, value.as_bytes()));
        }
        SkipReason::MissingAttribute { attribute } => {
            out.extend_from_slice(b"{\"reason\":\"lacks\",\"attribute\":");
            string(out, attribute.as_bytes());
        }
        SkipReason::Descriptor { matched_rule: leads_to } => {
            out.extend_from_slice(b"{\"reason\":\"way\"");
            if let Some(rule) = leads_to {
                out.extend_from_slice(b",\"leads_to\":");
                string(out, rule.as_bytes());
            }
        }
    }
    out.push(b'}');
}

fn array<T>(out: &mut Vec<u8>, items: &[T], write: impl Fn(&mut Vec<u8>, &T)) {
    out.push(b'[');
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write(out, item);
    }
    out.push(b']');
}

fn string_or_null(out: &mut Vec<u8>, text: Option<&str>) {
    match text {
        Some(text) => string(out, text.as_bytes()),
        None => out.extend_from_slice(b"null"),
    }
}

const BYTES: usize = 4096;
