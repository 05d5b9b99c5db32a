//! Counters of verdicts and of decisions per rule.

use crate::server::observers::{ObservedVerdict, VerdictEvent, VerdictObserver};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use std::collections::BTreeMap;
use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tollgate_limiter::Direction;
use tollgate_limiter::core::Source;
use tollgate_limiter::core::rules::{Attempt, Mode, Rule, RuleSet, Ruling, Variant, Verdict};

/// All decisions since the start.
#[derive(Debug, Default)]
pub(crate) struct Decisions {
    checks: LabelCells,
    /// Decisions of `CL.THROTTLE`, whose limits belong to no rule.
    throttled: LabelCells,
    /// Sorted, so that the metrics text has a stable order.
    by_rule: Mutex<BTreeMap<Labels, Arc<LabelCells>>>,
}

/// The counters of one rule set, looked up once when it is installed.
#[derive(Debug)]
pub(crate) struct RuleCounts(Box<[RuleCells]>);

/// The protocol an attempt arrived over; the metric label `protocol`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// The check API over HTTP.
    Http,
    /// The rls service over gRPC.
    Grpc,
    /// The Redis protocol.
    Resp,
    /// Forward-auth requests of a gateway.
    Forward,
}

/// The counters of one rule, by variant.
#[derive(Debug)]
struct RuleCells {
    control: Arc<LabelCells>,
    experiment: Arc<LabelCells>,
}

/// Decisions of one batch of `CL.THROTTLE`, added to the counters at its end.
#[derive(Debug, Default)]
pub(crate) struct ThrottleTally([[u32; SOURCES.len()]; 2]);

/// A rule's id, its domain unless that is `default`, and its variant if it has an experiment.
type Labels = (Box<str>, Option<Box<str>>, Option<&'static str>);

#[derive(Clone, Copy)]
enum ResultLabel {
    Allow,
    Deny,
    ShadowAllow,
    ShadowDeny,
}

/// One counter for each result, source and protocol.
#[derive(Debug)]
struct LabelCells([[[AtomicU64; PROTOCOLS.len()]; SOURCES.len()]; RESULTS.len()]);

const RESULTS: [(ResultLabel, &str); 4] = [
    (ResultLabel::Allow, "allow"),
    (ResultLabel::Deny, "deny"),
    (ResultLabel::ShadowAllow, "shadow_allow"),
    (ResultLabel::ShadowDeny, "shadow_deny"),
];
/// The label `rule` of `CL.THROTTLE`. No rule id contains brackets.
const THROTTLED: &str = "(CL.THROTTLE)";
const SOURCES: [Source; Source::ALL.len()] = Source::ALL;
pub(super) const PROTOCOLS: [(Protocol, &str); 4] = [
    (Protocol::Http, "http"),
    (Protocol::Grpc, "grpc"),
    (Protocol::Resp, "resp"),
    (Protocol::Forward, "forward"),
];

impl VerdictObserver for Decisions {
    type RuleState = RuleCounts;

    /// A rule that already existed keeps its counters. Removed rules leave the metrics
    /// at once; checks in flight under them are no longer shown.
    fn rule_state(&self, rules: &RuleSet) -> RuleCounts {
        let mut by_rule = self.by_rule.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next: BTreeMap<Labels, Arc<LabelCells>> = BTreeMap::new();
        let mut cells = |rule: &Rule, variant: Option<Variant>| {
            let domain = (rule.domain() != Attempt::DOMAIN).then(|| rule.domain().into());
            let labels = (rule.id().into(), domain, variant.map(Variant::name));
            let existing = |labels: &Labels| by_rule.get(labels).cloned().unwrap_or_default();
            Arc::clone(next.entry(labels).or_insert_with_key(existing))
        };
        let rule_cells = |rule: &Rule| match rule.experiment() {
            Some(_) => RuleCells {
                control: cells(rule, Some(Variant::Control)),
                experiment: cells(rule, Some(Variant::Experiment)),
            },
            None => {
                let cells = cells(rule, None);
                RuleCells {
                    control: Arc::clone(&cells),
                    experiment: cells,
                }
            }
        };
        let counts = rules.rules().iter().map(rule_cells).collect();
        *by_rule = next;
        RuleCounts(counts)
    }

    #[inline]
    fn record(&self, counts: &RuleCounts, event: &VerdictEvent<'_>) {
        match (event.direction, event.verdict) {
            (Direction::Consume, ObservedVerdict::Rules(verdict)) => {
                self.add(counts, event.rules, verdict, event.protocol);
            }
            (Direction::Consume, ObservedVerdict::Inline { allowed, source, .. }) => {
                self.add_inline(allowed, source, event.protocol);
            }
            // A refund decides nothing.
            (Direction::Refund, _) => {}
        }
    }
}

impl Decisions {
    /// Counts a verdict: once for the check, and once for each rule that matched.
    fn add(&self, counts: &RuleCounts, rules: &RuleSet, verdict: &Verdict<'_>, protocol: Protocol) {
        let result = if verdict.allowed {
            ResultLabel::Allow
        } else {
            ResultLabel::Deny
        };
        self.checks.add(result, verdict.source, protocol);
        // The windows of a rule are adjacent; the rule denies if one of them does.
        for windows in verdict.rulings.chunk_by(|one, next| ptr::eq(one.rule, next.rule)) {
            let Some(first) = windows.first() else { continue };
            let allows = windows.iter().all(Ruling::is_allow);
            let source = windows.iter().map(|ruling| ruling.source).max().unwrap_or(first.source);
            let Some(rule_cells) = counts.0.get(rule_index(rules, first.rule)) else {
                continue;
            };
            let cells = match first.variant {
                Variant::Control => &rule_cells.control,
                Variant::Experiment => &rule_cells.experiment,
            };
            cells.add(ResultLabel::new(first.mode, allows), source, protocol);
        }
    }

    /// Counts the verdict of an inline limit, which belongs to no rule.
    fn add_inline(&self, allowed: bool, source: Source, protocol: Protocol) {
        let result = if allowed { ResultLabel::Allow } else { ResultLabel::Deny };
        self.checks.add(result, source, protocol);
    }

    /// Counts calls of `CL.THROTTLE` and returns their number.
    pub(crate) fn add_throttled(&self, tally: &ThrottleTally, protocol: Protocol) -> u64 {
        let mut total = 0;
        for (result, sources) in [ResultLabel::Deny, ResultLabel::Allow].into_iter().zip(&tally.0) {
            for (source, &count) in SOURCES.into_iter().zip(sources) {
                if count > 0 {
                    let count = u64::from(count);
                    self.checks.add_many(result, source, protocol, count);
                    self.throttled.add_many(result, source, protocol, count);
                    total += count;
                }
            }
        }
        total
    }

    pub(super) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let checks = encoder.encode_descriptor(
            "tollgate_checks",
            "Verdicts by result, source and protocol.",
            None,
            MetricType::Counter,
        )?;
        self.checks.encode(checks, &[])?;
        let mut decisions = encoder.encode_descriptor(
            "tollgate_decisions",
            "Decisions by rule, result, source and protocol; shadow rules have results of their own.",
            None,
            MetricType::Counter,
        )?;
        self.throttled.encode_into(&mut decisions, &[("rule", THROTTLED)])?;
        let by_rule = self.by_rule.lock().unwrap_or_else(PoisonError::into_inner);
        for ((rule, domain, variant), cells) in &*by_rule {
            let mut labels = vec![("rule", &**rule)];
            labels.extend(domain.as_deref().map(|domain| ("domain", domain)));
            labels.extend(variant.map(|variant| ("variant", variant)));
            // One metric family, many series.
            cells.encode_into(&mut decisions, &labels)?;
        }
        Ok(())
    }
}

impl ThrottleTally {
    /// Adds one decision.
    #[inline]
    pub(crate) fn add(&mut self, allows: bool, source: Source) {
        let by_source = self.0.get_mut(usize::from(allows));
        if let Some(count) = by_source.and_then(|sources| sources.get_mut(source as usize)) {
            *count += 1;
        }
    }
}

/// Returns the index of a rule in its rule set.
pub(crate) fn rule_index(rules: &RuleSet, rule: &Rule) -> usize {
    let from_start = ptr::from_ref(rule).addr().wrapping_sub(rules.rules().as_ptr().addr());
    from_start / size_of::<Rule>()
}

impl ResultLabel {
    const fn new(mode: Mode, allows: bool) -> Self {
        match (mode, allows) {
            (Mode::Enforce, true) => Self::Allow,
            (Mode::Enforce, false) => Self::Deny,
            (Mode::Shadow | Mode::Disabled, true) => Self::ShadowAllow,
            (Mode::Shadow | Mode::Disabled, false) => Self::ShadowDeny,
        }
    }
}

impl LabelCells {
    fn add(&self, result: ResultLabel, source: Source, protocol: Protocol) {
        self.add_many(result, source, protocol, 1);
    }

    fn add_many(&self, result: ResultLabel, source: Source, protocol: Protocol, number: u64) {
        let cell = self.0.get(result as usize);
        let cell = cell.and_then(|sources| sources.get(source as usize)?.get(protocol as usize));
        if let Some(cell) = cell {
            cell.fetch_add(number, Ordering::Relaxed);
        }
    }

    fn encode(&self, mut encoder: MetricEncoder<'_>, labels: &[(&str, &str)]) -> fmt::Result {
        self.encode_into(&mut encoder, labels)
    }

    /// Writes one series for each combination that has been counted.
    fn encode_into(&self, encoder: &mut MetricEncoder<'_>, labels: &[(&str, &str)]) -> fmt::Result {
        for ((_, result), sources) in RESULTS.iter().zip(&self.0) {
            for (source, protocols) in SOURCES.iter().zip(sources) {
                for ((_, protocol), cell) in PROTOCOLS.iter().zip(protocols) {
                    let count = cell.load(Ordering::Relaxed);
                    if count == 0 {
                        continue;
                    }
                    let series = [("result", *result), ("source", source.name()), ("protocol", *protocol)];
                    ConstCounter::new(count).encode(encoder.encode_family(&(labels, &series[..]))?)?;
                }
            }
        }
        Ok(())
    }
}

impl Default for LabelCells {
    fn default() -> Self {
        let protocols = || std::array::from_fn(|_| AtomicU64::new(0));
        Self(std::array::from_fn(|_| std::array::from_fn(|_| protocols())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_label_stands_at_the_place_of_its_value() {
        for (index, (result, _)) in RESULTS.into_iter().enumerate() {
            assert_eq!(result as usize, index);
        }
        for (index, source) in SOURCES.into_iter().enumerate() {
            assert_eq!(source as usize, index);
        }
        for (index, (protocol, _)) in PROTOCOLS.into_iter().enumerate() {
            assert_eq!(protocol as usize, index);
        }
    }
}
