//! `/v1/explain`: the form a client prefers, and an explanation as JSON.

use super::response::{self, CheckResponse};
use crate::server::http::json::ObjectWriter;
use hyper::HeaderMap;
use hyper::header::ACCEPT;
use std::borrow::Cow;
use tollgate_limiter::core::rules::{
    CostOrigin, DerivedValue, Explanation, LimitOrigin, LimitTrace, MatchedRule, ReserveTrace, RuleMatch, RuleTrace,
    SkipReason, Terms,
};
use tollgate_limiter::core::{Cost, Micros, Timestamp};

/// The form of an explanation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExplainFormat {
    Json,
    Text,
}

impl ExplainFormat {
    /// Plain text if it is named, and JSON is not.
    pub(super) fn preferred_by(headers: &HeaderMap) -> Self {
        let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok());
        match accept.unwrap_or_default() {
            accept if accept.contains("text/plain") && !accept.contains("json") => Self::Text,
            _ => Self::Json,
        }
    }
}

/// `{"verdict":{…},"rules":[…]}`: the verdict of a check, derived attributes if there are any, and then every rule.
pub(in crate::server) fn encode(explanation: &Explanation<'_>) -> Vec<u8> {
    let response = CheckResponse {
        verdict: &explanation.verdict,
        lease: None,
        cost: Cost::ZERO,
        now: Timestamp::EPOCH,
        unknown_domain: explanation.unknown_domain.as_ref(),
        extra: Micros::ZERO,
    };
    let mut out = Vec::with_capacity(CAPACITY);
    ObjectWriter::write(&mut out, |object| {
        object.raw("verdict", |out| response::write_body(out, &response));
        if !explanation.derived.is_empty() {
            object.objects("derived", &explanation.derived, derived_value);
        }
        object.objects("rules", &explanation.traces, rule_trace);
    });
    out
}

/// One derived attribute and the origin of its values.
fn derived_value(object: &mut ObjectWriter<'_>, derived: &DerivedValue<'_>) {
    object.value("attribute", &*derived.attribute.name);
    object.value("from", &*derived.attribute.from);
    object.value("values", &derived.values);
    object.value("origin", derived.origin.name());
}

fn rule_trace(object: &mut ObjectWriter<'_>, trace: &RuleTrace<'_>) {
    object.value("rule", trace.rule.id());
    object.value("domain", trace.rule.domain());
    object.value("mode", trace.rule.mode().name());
    object.value("matched", &trace.rule_match.is_matched());
    match &trace.rule_match {
        RuleMatch::Matched(matched) => matched_rule(object, trace, matched),
        RuleMatch::Skipped(reasons) => object.objects("skipped", reasons, skip_reason),
    }
    object.value("advice", &trace.suggestions());
}

fn matched_rule(object: &mut ObjectWriter<'_>, trace: &RuleTrace<'_>, matched: &MatchedRule<'_>) {
    // A list of pairs: an attribute of several values has several.
    object.objects("per", &matched.subject, |object, (name, value)| {
        object.value("attribute", name);
        object.value("value", value);
    });
    object.value("variant", &trace.rule.experiment().map(|_| matched.variant.name()));
    object.value(
        "terms",
        match matched.terms {
            Terms::Limited(_) => "limited",
            Terms::Banned(_) => "banned",
            Terms::Unlimited => "unlimited",
        },
    );
    object.value("limit", &matched.terms.to_string());
    object.object("from", |object| limit_origin(object, &matched.origin));
    object.value("cost", &matched.cost.get());
    object.object("cost_from", |object| cost_origin(object, matched.cost_origin));
    object.objects("limits", &matched.limits, limit_trace);
    if let Some(reserve) = &matched.reserve {
        object.object("reserve", |object| reserve_trace(object, reserve));
    }
}

fn limit_trace(object: &mut ObjectWriter<'_>, limit: &LimitTrace<'_>) {
    object.members(|out| response::write_ruling(out, &limit.ruling));
    object.value(
        "algorithm",
        &limit.ruling.window.map(|window| window.limit().algorithm()),
    );
    object.value("key", &limit.key.as_deref());
}

/// A reserve, and both counters of each limit.
fn reserve_trace(object: &mut ObjectWriter<'_>, trace: &ReserveTrace<'_>) {
    object.value("share", &trace.reserve.share().to_string());
    object.value("lend", &trace.reserve.lends());
    object.value("usable", &trace.is_for_attempt);
    object.objects("counters", &trace.counters, |object, (part, counter)| {
        object.value("counts", part.name());
        limit_trace(object, counter);
    });
}

/// The part of a rule that the limit comes from.
fn limit_origin(object: &mut ObjectWriter<'_>, origin: &LimitOrigin<'_>) {
    match origin {
        LimitOrigin::Limit => object.value("kind", "limit"),
        LimitOrigin::By { attribute, value } => {
            object.value("kind", "by");
            object.value("attribute", attribute);
            object.value("value", &*lossy(value));
        }
        LimitOrigin::Override(index) => {
            object.value("kind", "override");
            object.value("index", index);
        }
        LimitOrigin::Row(subject) => {
            object.value("kind", "row");
            let pairs: Vec<_> = subject.pairs().collect();
            object.objects("subject", &pairs, |object, (name, value)| {
                object.value("attribute", name);
                object.value("value", &*lossy(value));
            });
        }
    }
}

/// The entry of a rule's `cost` that applies.
fn cost_origin(object: &mut ObjectWriter<'_>, origin: CostOrigin) {
    match origin {
        CostOrigin::Cost => object.value("kind", "cost"),
        CostOrigin::Case(index) => {
            object.value("kind", "entry");
            object.value("index", &index);
        }
        CostOrigin::Default => object.value("kind", "default"),
    }
}

fn skip_reason(object: &mut ObjectWriter<'_>, reason: &SkipReason<'_>) {
    match reason {
        SkipReason::Disabled => object.value("reason", "disabled"),
        SkipReason::Domain { actual } => {
            object.value("reason", "domain");
            object.value("actual", actual);
        }
        SkipReason::Condition {
            attribute,
            expected,
            actual,
        } => {
            object.value("reason", "condition");
            object.value("attribute", attribute);
            object.value("expected", expected);
            object.value("actual", actual);
        }
        SkipReason::MissingAttribute { attribute } => {
            object.value("reason", "missing_attribute");
            object.value("attribute", attribute);
        }
        SkipReason::Descriptor { matched_rule } => {
            object.value("reason", "descriptor");
            if let Some(rule) = matched_rule {
                object.value("matched_rule", rule);
            }
        }
    }
}

/// A caller's bytes as text.
fn lossy(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

const CAPACITY: usize = 4096;
