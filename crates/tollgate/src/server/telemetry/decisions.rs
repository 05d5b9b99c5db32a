//! Decisions by rule, and checks as a whole.

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use std::collections::BTreeMap;
use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tollgate_limiter::core::Source;
use tollgate_limiter::core::rules::{Attempt, Mode, Rule, RuleSet, Ruling, Variant, Verdict};

/// Every decision since the start.
#[derive(Debug, Default)]
pub(crate) struct Decisions {
    checks: LabelCells,
    /// Of `CL.THROTTLE`, whose limits are no rule's.
    throttled: LabelCells,
    /// Sorted, so that the text is steady.
    by_rule: Mutex<BTreeMap<Labels, Arc<LabelCells>>>,
}

/// The counters of one set of rules, found once when it is loaded.
#[derive(Debug)]
pub struct RuleCounts(Box<[RuleCells]>);

/// Through which front end an attempt came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// The check API over HTTP.
    Http,
    /// Envoy's service over gRPC.
    Grpc,
    /// The Redis protocol.
    Resp,
    /// A gateway that asks about its clients' requests.
    Forward,
}

/// The counters of one rule, by the side of its experiment.
#[derive(Debug)]
struct RuleCells {
    control: Arc<LabelCells>,
    experiment: Arc<LabelCells>,
}

/// Decisions that came together, before they are counted.
#[derive(Debug, Default)]
pub(crate) struct ThrottleTally([[u32; SOURCES.len()]; 2]);

/// A rule's id, its domain unless that is the usual one, and the side of its experiment if it has one.
type Labels = (Box<str>, Option<Box<str>>, Option<&'static str>);

#[derive(Clone, Copy)]
enum ResultLabel {
    Allow,
    Deny,
    ShadowAllow,
    ShadowDeny,
}

/// One counter for each result, source and door.
#[derive(Debug)]
struct LabelCells([[[AtomicU64; PROTOCOLS.len()]; SOURCES.len()]; RESULTS.len()]);

const RESULTS: [(ResultLabel, &str); 4] = [
    (ResultLabel::Allow, "allow"),
    (ResultLabel::Deny, "deny"),
    (ResultLabel::ShadowAllow, "shadow_allow"),
    (ResultLabel::ShadowDeny, "shadow_deny"),
];
/// Stands for `CL.THROTTLE` where rules stand. No rule's id has brackets.
const THROTTLED: &str = "(CL.THROTTLE)";
const SOURCES: [Source; Source::ALL.len()] = Source::ALL;
const PROTOCOLS: [(Protocol, &str); 4] = [
    (Protocol::Http, "http"),
    (Protocol::Grpc, "grpc"),
    (Protocol::Resp, "resp"),
    (Protocol::Forward, "forward"),
];

impl Decisions {
    /// The counters of these rules: where a rule was there before, it goes on. Rules that are gone leave the figures at once;
    /// what checks under them still count is not shown.
    pub(crate) fn counts(&self, rules: &RuleSet) -> RuleCounts {
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

    /// Counts a verdict: once for the check, and once for each rule it met.
    pub(crate) fn add(&self, counts: &RuleCounts, rules: &RuleSet, verdict: &Verdict<'_>, protocol: Protocol) {
        let result = if verdict.allowed {
            ResultLabel::Allow
        } else {
            ResultLabel::Deny
        };
        self.checks.add(result, verdict.source, protocol);
        // The windows of a rule stand side by side; it denies if one of them does.
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

    /// Counts the verdict of a limit that a caller brought along: it is no rule's.
    pub(crate) fn add_inline(&self, allowed: bool, source: Source, protocol: Protocol) {
        let result = if allowed { ResultLabel::Allow } else { ResultLabel::Deny };
        self.checks.add(result, source, protocol);
    }

    /// Counts calls of `CL.THROTTLE`, and says how many they were.
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
            "Verdicts, by result, source and door.",
            None,
            MetricType::Counter,
        )?;
        self.checks.encode(checks, &[])?;
        let mut decisions = encoder.encode_descriptor(
            "tollgate_decisions",
            "Decisions of each rule, by result, source and door; a shadow rule's are its own kind of result.",
            None,
            MetricType::Counter,
        )?;
        self.throttled.encode_into(&mut decisions, &[("rule", THROTTLED)])?;
        let by_rule = self.by_rule.lock().unwrap_or_else(PoisonError::into_inner);
        for ((rule, domain, variant), cells) in &*by_rule {
            let mut labels = vec![("rule", &**rule)];
            labels.extend(domain.as_deref().map(|domain| ("domain", domain)));
            labels.extend(variant.map(|variant| ("variant", variant)));
            // One descriptor, many series.
            cells.encode_into(&mut decisions, &labels)?;
        }
        Ok(())
    }
}

impl ThrottleTally {
    /// One more.
    #[inline]
    pub(crate) fn add(&mut self, allows: bool, source: Source) {
        let by_source = self.0.get_mut(usize::from(allows));
        if let Some(count) = by_source.and_then(|sources| sources.get_mut(source as usize)) {
            *count += 1;
        }
    }
}

/// Where a rule stands in its set.
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

    /// One series for each combination that has been counted.
    fn encode_into(&self, encoder: &mut MetricEncoder<'_>, labels: &[(&str, &str)]) -> fmt::Result {
        for ((_, result), sources) in RESULTS.iter().zip(&self.0) {
            for (source, protocols) in SOURCES.iter().zip(sources) {
                for ((_, protocol), cell) in PROTOCOLS.iter().zip(protocols) {
                    let count = cell.load(Ordering::Relaxed);
                    if count == 0 {
                        continue;
                    }
                    let series = [("result", *result), ("source", source.name()), ("door", *protocol)];
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
