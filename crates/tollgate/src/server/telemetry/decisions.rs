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
    checks: Cells,
    /// Of `CL.THROTTLE`, whose limits are no rule's.
    throttled: Cells,
    /// Sorted, so that the text is steady.
    by_rule: Mutex<BTreeMap<Labels, Arc<Cells>>>,
}

/// The counters of one set of rules, found once when it is loaded.
#[derive(Debug)]
pub struct RuleCounts(Box<[OfRule]>);

/// Through which front end an attempt came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
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
struct OfRule {
    control: Arc<Cells>,
    experiment: Arc<Cells>,
}

/// Decisions that came together, before they are counted.
#[derive(Debug, Default)]
pub(crate) struct Tally([[u32; SOURCES.len()]; 2]);

/// A rule's id, its domain unless that is the usual one, and the side of its experiment if it has one.
type Labels = (Box<str>, Option<Box<str>>, Option<&'static str>);

#[derive(Clone, Copy)]
enum Result {
    Allow,
    Deny,
    ShadowAllow,
    ShadowDeny,
}

/// One counter for each result, source and door.
#[derive(Debug)]
struct Cells([[[AtomicU64; DOORS.len()]; SOURCES.len()]; RESULTS.len()]);

const RESULTS: [(Result, &str); 4] = [
    (Result::Allow, "allow"),
    (Result::Deny, "deny"),
    (Result::ShadowAllow, "shadow_allow"),
    (Result::ShadowDeny, "shadow_deny"),
];
/// Stands for `CL.THROTTLE` where rules stand. No rule's id has brackets.
const THROTTLED: &str = "(CL.THROTTLE)";
const SOURCES: [Source; Source::ALL.len()] = Source::ALL;
const DOORS: [(Door, &str); 4] = [
    (Door::Http, "http"),
    (Door::Grpc, "grpc"),
    (Door::Resp, "resp"),
    (Door::Forward, "forward"),
];

impl Decisions {
    /// The counters of these rules: where a rule was there before, it goes on. Rules that are gone leave the figures at once;
    /// what checks under them still count is not shown.
    pub(crate) fn counts(&self, rules: &RuleSet) -> RuleCounts {
        let mut by_rule = self.by_rule.lock().unwrap_or_else(PoisonError::into_inner);
        let mut kept: BTreeMap<Labels, Arc<Cells>> = BTreeMap::new();
        let mut cells = |rule: &Rule, variant: Option<Variant>| {
            let domain = (rule.domain() != Attempt::DOMAIN).then(|| rule.domain().into());
            let labels = (rule.id().into(), domain, variant.map(Variant::name));
            let known = |labels: &Labels| by_rule.get(labels).cloned().unwrap_or_default();
            Arc::clone(kept.entry(labels).or_insert_with_key(known))
        };
        let of_rule = |rule: &Rule| match rule.experiment() {
            Some(_) => OfRule {
                control: cells(rule, Some(Variant::Control)),
                experiment: cells(rule, Some(Variant::Experiment)),
            },
            None => {
                let cells = cells(rule, None);
                OfRule {
                    control: Arc::clone(&cells),
                    experiment: cells,
                }
            }
        };
        let counts = rules.rules().iter().map(of_rule).collect();
        *by_rule = kept;
        RuleCounts(counts)
    }

    /// Counts a verdict: once for the check, and once for each rule it met.
    pub(crate) fn add(&self, counts: &RuleCounts, rules: &RuleSet, verdict: &Verdict<'_>, door: Door) {
        let result = if verdict.allowed { Result::Allow } else { Result::Deny };
        self.checks.add(result, verdict.source, door);
        // The windows of a rule stand side by side; it denies if one of them does.
        for windows in verdict.rulings.chunk_by(|one, next| ptr::eq(one.rule, next.rule)) {
            let Some(first) = windows.first() else { continue };
            let allows = windows.iter().all(Ruling::is_allow);
            let source = windows.iter().map(|ruling| ruling.source).max().unwrap_or(first.source);
            let Some(of_rule) = counts.0.get(place(rules, first.rule)) else {
                continue;
            };
            let cells = match first.variant {
                Variant::Control => &of_rule.control,
                Variant::Experiment => &of_rule.experiment,
            };
            cells.add(Result::of(first.mode, allows), source, door);
        }
    }

    /// Counts the verdict of a limit that a caller brought along: it is no rule's.
    pub(crate) fn add_own(&self, allowed: bool, source: Source, door: Door) {
        let result = if allowed { Result::Allow } else { Result::Deny };
        self.checks.add(result, source, door);
    }

    /// Counts calls of `CL.THROTTLE`, and says how many they were.
    pub(crate) fn add_throttled(&self, tally: &Tally, door: Door) -> u64 {
        let mut all = 0;
        for (result, sources) in [Result::Deny, Result::Allow].into_iter().zip(&tally.0) {
            for (source, &count) in SOURCES.into_iter().zip(sources) {
                if count > 0 {
                    let count = u64::from(count);
                    self.checks.add_several(result, source, door, count);
                    self.throttled.add_several(result, source, door, count);
                    all += count;
                }
            }
        }
        all
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

impl Tally {
    /// One more.
    #[inline]
    pub(crate) fn add(&mut self, allows: bool, source: Source) {
        let of_result = self.0.get_mut(usize::from(allows));
        if let Some(count) = of_result.and_then(|sources| sources.get_mut(source as usize)) {
            *count += 1;
        }
    }
}

/// Where a rule stands in its set.
pub(super) fn place(rules: &RuleSet, rule: &Rule) -> usize {
    let from_start = ptr::from_ref(rule).addr().wrapping_sub(rules.rules().as_ptr().addr());
    from_start / size_of::<Rule>()
}

impl Result {
    const fn of(mode: Mode, allows: bool) -> Self {
        match (mode, allows) {
            (Mode::Enforce, true) => Self::Allow,
            (Mode::Enforce, false) => Self::Deny,
            (Mode::Shadow | Mode::Disabled, true) => Self::ShadowAllow,
            (Mode::Shadow | Mode::Disabled, false) => Self::ShadowDeny,
        }
    }
}

impl Cells {
    fn add(&self, result: Result, source: Source, door: Door) {
        self.add_several(result, source, door, 1);
    }

    fn add_several(&self, result: Result, source: Source, door: Door, several: u64) {
        let cell = self.0.get(result as usize);
        let cell = cell.and_then(|sources| sources.get(source as usize)?.get(door as usize));
        if let Some(cell) = cell {
            cell.fetch_add(several, Ordering::Relaxed);
        }
    }

    fn encode(&self, mut encoder: MetricEncoder<'_>, labels: &[(&str, &str)]) -> fmt::Result {
        self.encode_into(&mut encoder, labels)
    }

    /// One series for each combination that has been counted.
    fn encode_into(&self, encoder: &mut MetricEncoder<'_>, labels: &[(&str, &str)]) -> fmt::Result {
        for ((_, result), sources) in RESULTS.iter().zip(&self.0) {
            for (source, doors) in SOURCES.iter().zip(sources) {
                for ((_, door), cell) in DOORS.iter().zip(doors) {
                    let count = cell.load(Ordering::Relaxed);
                    if count == 0 {
                        continue;
                    }
                    let own = [("result", *result), ("source", source.name()), ("door", *door)];
                    ConstCounter::new(count).encode(encoder.encode_family(&(labels, &own[..]))?)?;
                }
            }
        }
        Ok(())
    }
}

impl Default for Cells {
    fn default() -> Self {
        let doors = || std::array::from_fn(|_| AtomicU64::new(0));
        Self(std::array::from_fn(|_| std::array::from_fn(|_| doors())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_label_stands_at_the_place_of_its_value() {
        for (place, (result, _)) in RESULTS.into_iter().enumerate() {
            assert_eq!(result as usize, place);
        }
        for (place, source) in SOURCES.into_iter().enumerate() {
            assert_eq!(source as usize, place);
        }
        for (place, (door, _)) in DOORS.into_iter().enumerate() {
            assert_eq!(door as usize, place);
        }
    }
}
