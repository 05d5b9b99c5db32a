//! An explanation as JSON.

use super::answer::{self, Told};
use super::json::{boolean, integer, string};
use tollgate_limiter::core::rules::{Explanation, RuleMatch, LimitOrigin, MatchedRule, SkipReason, RuleTrace, Terms};
use tollgate_limiter::core::{Cost, Timestamp};

/// `{"verdict":{…},"rules":[…]}`: what a check would answer, and then every rule.
pub(super) fn written(explanation: &Explanation<'_>) -> Vec<u8> {
    let mut out = Vec::with_capacity(BYTES);
    out.extend_from_slice(b"{\"verdict\":");
    let told = Told {
        verdict: &explanation.verdict,
        lease: None,
        cost: Cost::ZERO,
        now: Timestamp::EPOCH,
    };
    answer::write_body(&mut out, &told);
    out.extend_from_slice(b",\"rules\":");
    array(&mut out, &explanation.traces, story);
    out.push(b'}');
    out
}

fn story(out: &mut Vec<u8>, story: &RuleTrace<'_>) {
    out.extend_from_slice(b"{\"rule\":");
    string(out, story.rule.id().as_bytes());
    out.extend_from_slice(b",\"domain\":");
    string(out, story.rule.domain().as_bytes());
    out.extend_from_slice(b",\"mode\":");
    string(out, story.rule.mode().name().as_bytes());
    out.extend_from_slice(b",\"met\":");
    boolean(out, story.rule_match.is_matched());
    match &story.rule_match {
        RuleMatch::Matched(met) => applied(out, story, met),
        RuleMatch::Skipped(misses) => {
            out.extend_from_slice(b",\"missed\":");
            array(out, misses, miss);
        }
    }
    out.extend_from_slice(b",\"advice\":");
    array(out, &story.suggestions(), |out, advice| string(out, advice.as_bytes()));
    out.push(b'}');
}

fn applied(out: &mut Vec<u8>, story: &RuleTrace<'_>, met: &MatchedRule<'_>) {
    out.extend_from_slice(b",\"per\":");
    // A list of pairs: an attribute of several values stands there several times.
    array(out, &met.subject, |out, (name, value)| {
        out.extend_from_slice(b"{\"attribute\":");
        string(out, name.as_bytes());
        out.extend_from_slice(b",\"value\":");
        string(out, value.as_bytes());
        out.push(b'}');
    });
    out.extend_from_slice(b",\"variant\":");
    match story.rule.experiment() {
        Some(_) => string(out, met.variant.name().as_bytes()),
        None => out.extend_from_slice(b"null"),
    }
    out.extend_from_slice(b",\"terms\":");
    let terms = match met.terms {
        Terms::Limited(_) => "limited",
        Terms::Banned => "banned",
        Terms::Unlimited => "unlimited",
    };
    string(out, terms.as_bytes());
    out.extend_from_slice(b",\"from\":");
    grounds(out, &met.origin);
    out.extend_from_slice(b",\"cost\":");
    integer(out, met.cost.get());
    out.extend_from_slice(b",\"limits\":");
    array(out, &met.limits, |out, held| {
        out.push(b'{');
        answer::write_ruling(out, &held.ruling);
        out.extend_from_slice(b",\"algorithm\":");
        optional(out, held.ruling.window.map(|window| window.limit().algorithm()));
        out.extend_from_slice(b",\"key\":");
        optional(out, held.key.as_deref());
        out.push(b'}');
    });
}

/// Where the limit comes from.
fn grounds(out: &mut Vec<u8>, grounds: &LimitOrigin<'_>) {
    match grounds {
        LimitOrigin::Limit => out.extend_from_slice(b"{\"kind\":\"limit\"}"),
        LimitOrigin::By { attribute, value } => {
            out.extend_from_slice(b"{\"kind\":\"by\",\"attribute\":");
            string(out, attribute.as_bytes());
            out.extend_from_slice(b",\"value\":");
            string(out, value);
            out.push(b'}');
        }
        LimitOrigin::Override(place) => {
            out.extend_from_slice(b"{\"kind\":\"override\",\"place\":");
            integer(out, u64::from(*place));
            out.push(b'}');
        }
    }
}

fn miss(out: &mut Vec<u8>, miss: &SkipReason<'_>) {
    match miss {
        SkipReason::Disabled => out.extend_from_slice(b"{\"reason\":\"disabled\""),
        SkipReason::Domain { actual: was } => {
            out.extend_from_slice(b"{\"reason\":\"domain\",\"was\":");
            string(out, was.as_bytes());
        }
        SkipReason::Condition { attribute, expected: wanted, actual: was } => {
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
    for (place, item) in items.iter().enumerate() {
        if place > 0 {
            out.push(b',');
        }
        write(out, item);
    }
    out.push(b']');
}

fn optional(out: &mut Vec<u8>, text: Option<&str>) {
    match text {
        Some(text) => string(out, text.as_bytes()),
        None => out.extend_from_slice(b"null"),
    }
}

const BYTES: usize = 4096;
