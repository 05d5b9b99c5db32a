//! The spans of sampled requests: one for each, with the verdict of the whole request.

use super::RulesSnapshot;
use crate::server::telemetry::otlp::now_nanos;
use crate::server::telemetry::traces::{CheckFacts, SpanContext};
use crate::server::telemetry::watch::live::cut;
use tollgate_limiter::core::Source;
use tollgate_limiter::core::rules::{Attempt, Verdict};
use tollgate_limiter::{AttemptItem, CheckResult, CombinedVerdict, ItemVerdict};

/// The part of a verdict that a span has.
#[derive(Clone, Copy)]
struct SpanVerdict<'v> {
    allowed: bool,
    rule: Option<&'v str>,
    source: Source,
}

impl RulesSnapshot<'_> {
    /// Records the span of one attempt.
    #[cold]
    pub(super) fn record_check(
        &self,
        trace: &SpanContext,
        attempt: &Attempt<'_>,
        verdict: &Verdict<'_>,
        elapsed_ns: u64,
    ) {
        self.record_span(trace, Some(attempt), 1, SpanVerdict::of_rules(verdict), elapsed_ns);
    }

    /// Records the span of a batch: denied if one of its attempts is, with the rule of the first such one.
    #[cold]
    pub(super) fn record_batch(
        &self,
        trace: &SpanContext,
        attempts: &[Attempt<'_>],
        results: &[CheckResult<'_>],
        elapsed_ns: u64,
    ) {
        let verdicts = results.iter().map(|result| SpanVerdict::of_rules(&result.verdict));
        let verdict = SpanVerdict::joined(verdicts);
        self.record_span(trace, attempts.first(), attempts.len(), verdict, elapsed_ns);
    }

    /// Records the span of attempts that pass together or not at all.
    #[cold]
    pub(super) fn record_combined(
        &self,
        trace: &SpanContext,
        items: &[AttemptItem<'_>],
        combined: &CombinedVerdict<'_>,
        elapsed_ns: u64,
    ) {
        let verdicts = combined.items.iter().map(|item| match item {
            ItemVerdict::Rules(verdict) => SpanVerdict::of_rules(verdict),
            ItemVerdict::Inline(_, source, _) => SpanVerdict {
                allowed: item.is_allow(),
                rule: None,
                source: *source,
            },
        });
        let verdict = SpanVerdict {
            allowed: combined.allowed,
            ..SpanVerdict::joined(verdicts)
        };
        let first = items.first().map(|item| &item.attempt);
        self.record_span(trace, first, items.len(), verdict, elapsed_ns);
    }

    fn record_span(
        &self,
        trace: &SpanContext,
        first: Option<&Attempt<'_>>,
        attempts: usize,
        verdict: SpanVerdict<'_>,
        elapsed_ns: u64,
    ) {
        let facts = || CheckFacts {
            domain: cut(first.map_or(&[], |attempt| attempt.domain.as_bytes())),
            rule: verdict.rule.map(|rule| cut(rule.as_bytes())),
            allowed: verdict.allowed,
            source: verdict.source.name(),
            protocol: self.protocol.name(),
            attempts,
        };
        self.gate.traces().record(*trace, now_nanos(), elapsed_ns, facts);
    }
}

impl<'v> SpanVerdict<'v> {
    fn of_rules(verdict: &'v Verdict<'_>) -> Self {
        Self {
            allowed: verdict.allowed,
            rule: verdict.nearest().map(|ruling| ruling.rule.id()),
            source: verdict.source,
        }
    }

    /// The first verdict that denies, or else the first that has a rule; with the least exact source of all.
    fn joined(verdicts: impl Iterator<Item = Self> + Clone) -> Self {
        let source = verdicts.clone().map(|verdict| verdict.source).max();
        let denied = verdicts.clone().find(|verdict| !verdict.allowed);
        let chosen = denied.or_else(|| verdicts.clone().find(|verdict| verdict.rule.is_some()));
        Self {
            allowed: denied.is_none(),
            rule: chosen.and_then(|verdict| verdict.rule),
            source: source.unwrap_or(Source::Memory),
        }
    }
}
