//! Counters of verdicts and of decisions per rule.

use super::histogram::LATENCY_BUCKETS;
use crate::server::observers::{ObservedVerdict, VerdictEvent, VerdictObserver};
use crate::server::telemetry::watch::series::BANDS;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use std::collections::BTreeMap;
use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tollgate_limiter::Direction;
use tollgate_limiter::core::rules::{Attempt, Mode, Rule, RuleSet, Ruling, Variant, Verdict};
use tollgate_limiter::core::{Source, Standing};

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
    /// Checks of the admin API.
    Admin,
}

/// The counters of one rule at one time, over all sources and protocols.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RuleFigures {
    /// Allowed.
    pub(crate) allowed: u64,
    /// Denied.
    pub(crate) denied: u64,
    /// Allowed by the rule, which is not enforced.
    pub(crate) shadow_allowed: u64,
    /// Denied by the rule, which is not enforced.
    pub(crate) shadow_denied: u64,
    /// Allowed ones by utilization: up to 80 %, up to 95 %, above, and not known.
    pub(crate) bands: [u64; USED_BANDS],
}

/// The counters of all checks at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TotalFigures {
    /// Allowed.
    pub(crate) allowed: u64,
    /// Denied.
    pub(crate) denied: u64,
    /// By source, each at the index of its number.
    pub(crate) sources: [u64; SOURCES.len()],
    /// Times from planning to verdict, by bucket.
    pub(crate) decision: [u64; LATENCY_BUCKETS],
    /// Times of calls of the shared store, by bucket.
    pub(crate) store: [u64; LATENCY_BUCKETS],
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

/// The counters of one rule and variant, or of all checks.
#[derive(Debug)]
struct LabelCells {
    /// One for each result, source and protocol.
    counts: [[[AtomicU64; PROTOCOLS.len()]; SOURCES.len()]; RESULTS.len()],
    /// Allowed decisions that have used half of a limit or more, and those of which that is not known. The others are the rest, so that
    /// most decisions count nothing here.
    bands: [AtomicU64; USED_BANDS],
    /// The most that was shown as the rest. A decision between two of its counts is shown too late, never taken back.
    rest_shown: AtomicU64,
}

/// The part of its limit that an allowed decision has used, where it counts as such.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum UsedBand {
    /// Half of it or more, and less than 80 %.
    Half,
    /// 80 % or more.
    High,
    /// 95 % or more.
    Exhausted,
    /// There is no limit, or the store was not asked.
    Unknown,
}

pub(crate) const USED_BANDS: usize = 4;

const RESULTS: [(ResultLabel, &str); 4] = [
    (ResultLabel::Allow, "allow"),
    (ResultLabel::Deny, "deny"),
    (ResultLabel::ShadowAllow, "shadow_allow"),
    (ResultLabel::ShadowDeny, "shadow_deny"),
];
/// The label `rule` of `CL.THROTTLE`. No rule id contains brackets.
const THROTTLED: &str = "(CL.THROTTLE)";
const SOURCES: [Source; Source::ALL.len()] = Source::ALL;
pub(super) const PROTOCOLS: [(Protocol, &str); 5] = [
    (Protocol::Http, "http"),
    (Protocol::Grpc, "grpc"),
    (Protocol::Resp, "resp"),
    (Protocol::Forward, "forward"),
    (Protocol::Admin, "admin"),
];

impl Protocol {
    /// Its name in metrics and streams.
    pub(crate) fn name(self) -> &'static str {
        PROTOCOLS.get(self as usize).map_or("", |(_, name)| name)
    }
}

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
            if allows && let Some(band) = UsedBand::of(windows) {
                // Before the decision itself, so that the rest is never too many.
                cells.add_band(band);
            }
            cells.add(ResultLabel::new(first.mode, allows), source, protocol);
        }
    }

    /// The counters of all checks.
    pub(crate) fn totals(&self) -> TotalFigures {
        TotalFigures {
            allowed: self.checks.sum(ResultLabel::Allow),
            denied: self.checks.sum(ResultLabel::Deny),
            sources: self.checks.by_source(),
            ..TotalFigures::default()
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
        let mut utilization = encoder.encode_descriptor(
            "tollgate_limit_utilization",
            "Decisions by rule and by the part of its limit that is used, in percent: below 50, 80, 95, up to 100, or denied.",
            None,
            MetricType::Counter,
        )?;
        for ((rule, domain, variant), cells) in &*by_rule {
            let mut labels = vec![("rule", &**rule)];
            labels.extend(domain.as_deref().map(|domain| ("domain", domain)));
            labels.extend(variant.map(|variant| ("variant", variant)));
            for (band, count) in BANDS.into_iter().zip(cells.utilization()) {
                if count > 0 {
                    let series = [("band", band)];
                    ConstCounter::new(count).encode(utilization.encode_family(&(&labels[..], &series[..]))?)?;
                }
            }
        }
        Ok(())
    }
}

impl RuleCounts {
    /// The counters of a rule by its number, of its control and of its experiment. None without an experiment.
    pub(crate) fn variants(&self, rule: usize) -> Option<[RuleFigures; 2]> {
        let RuleCells { control, experiment } = self.0.get(rule)?;
        (!Arc::ptr_eq(control, experiment)).then(|| [control.figures(), experiment.figures()])
    }

    /// The counters of a rule by its number, of both variants.
    pub(crate) fn figures(&self, rule: usize) -> RuleFigures {
        let Some(RuleCells { control, experiment }) = self.0.get(rule) else {
            return RuleFigures::default();
        };
        let figures = control.figures();
        match Arc::ptr_eq(control, experiment) {
            true => figures,
            false => figures.plus(&experiment.figures()),
        }
    }
}

impl RuleFigures {
    /// The difference to an earlier reading. Counters that began anew since then count from zero.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let has_restarted = self.numbers().zip(before.numbers()).any(|(now, before)| now < before);
        match has_restarted {
            true => *self,
            false => self.combine(before, |now, before| now - before),
        }
    }

    /// Allowed and denied ones, enforced or not.
    pub(crate) const fn results(&self) -> [u64; 2] {
        [self.allowed + self.shadow_allowed, self.denied + self.shadow_denied]
    }

    fn plus(&self, other: &Self) -> Self {
        self.combine(other, |one, other| one + other)
    }

    fn numbers(&self) -> impl Iterator<Item = u64> {
        [self.allowed, self.denied, self.shadow_allowed, self.shadow_denied]
            .into_iter()
            .chain(self.bands)
    }

    fn combine(&self, other: &Self, with: impl Fn(u64, u64) -> u64) -> Self {
        let mut bands = self.bands;
        for (band, other) in bands.iter_mut().zip(other.bands) {
            *band = with(*band, other);
        }
        Self {
            allowed: with(self.allowed, other.allowed),
            denied: with(self.denied, other.denied),
            shadow_allowed: with(self.shadow_allowed, other.shadow_allowed),
            shadow_denied: with(self.shadow_denied, other.shadow_denied),
            bands,
        }
    }
}

impl UsedBand {
    /// The band of the limit that is used most; none: less than half.
    #[inline]
    fn of(windows: &[Ruling<'_>]) -> Option<Self> {
        let mut highest = None;
        let mut is_known = false;
        for decision in windows.iter().filter_map(|ruling| ruling.decision) {
            let standing = decision.standing();
            if standing.limit > 0 {
                is_known = true;
                highest = highest.max(Self::of_standing(standing));
            }
        }
        if is_known { highest } else { Some(Self::Unknown) }
    }

    fn of_standing(standing: &Standing) -> Option<Self> {
        let limit = standing.limit;
        let used = limit.saturating_sub(standing.remaining);
        if used < limit - limit / 2 {
            None
        } else if used.saturating_mul(5) < limit.saturating_mul(4) {
            Some(Self::Half)
        } else if used.saturating_mul(20) < limit.saturating_mul(19) {
            Some(Self::High)
        } else {
            Some(Self::Exhausted)
        }
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
#[inline]
pub(crate) fn rule_index(rules: &RuleSet, rule: &Rule) -> usize {
    rules.index_of(rule)
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
        let cell = self.counts.get(result as usize);
        let cell = cell.and_then(|sources| sources.get(source as usize)?.get(protocol as usize));
        if let Some(cell) = cell {
            cell.fetch_add(number, Ordering::Relaxed);
        }
    }

    fn add_band(&self, band: UsedBand) {
        if let Some(count) = self.bands.get(band as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// All decisions of one result.
    fn sum(&self, result: ResultLabel) -> u64 {
        let sources = self.counts.get(result as usize);
        let cells = sources.iter().flat_map(|sources| sources.iter().flatten());
        cells.map(|cell| cell.load(Ordering::Relaxed)).sum()
    }

    /// Decisions of any result by source.
    fn by_source(&self) -> [u64; SOURCES.len()] {
        let mut counts = [0; SOURCES.len()];
        for sources in &self.counts {
            for (count, cells) in counts.iter_mut().zip(sources) {
                *count += cells.iter().map(|cell| cell.load(Ordering::Relaxed)).sum::<u64>();
            }
        }
        counts
    }

    fn figures(&self) -> RuleFigures {
        let mut bands = [0; USED_BANDS];
        let [allowed, denied, shadow_allowed, shadow_denied] = RESULTS.map(|(result, _)| self.sum(result));
        // After the decisions, which are counted after them.
        for (band, count) in bands.iter_mut().zip(&self.bands) {
            *band = count.load(Ordering::Relaxed);
        }
        RuleFigures {
            allowed,
            denied,
            shadow_allowed,
            shadow_denied,
            bands,
        }
    }

    /// The counts of [`BANDS`]. None ever decreases.
    fn utilization(&self) -> [u64; BANDS.len()] {
        let figures = self.figures();
        let [half, high, exhausted, unknown] = figures.bands;
        let allowed = figures.allowed + figures.shadow_allowed;
        let rest = allowed.saturating_sub(half + high + exhausted + unknown);
        let rest = self.rest_shown.fetch_max(rest, Ordering::Relaxed).max(rest);
        [rest, half, high, exhausted, figures.denied + figures.shadow_denied]
    }

    fn encode(&self, mut encoder: MetricEncoder<'_>, labels: &[(&str, &str)]) -> fmt::Result {
        self.encode_into(&mut encoder, labels)
    }

    /// Writes one series for each combination that has been counted.
    fn encode_into(&self, encoder: &mut MetricEncoder<'_>, labels: &[(&str, &str)]) -> fmt::Result {
        for ((_, result), sources) in RESULTS.iter().zip(&self.counts) {
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
        Self {
            counts: std::array::from_fn(|_| std::array::from_fn(|_| protocols())),
            bands: std::array::from_fn(|_| AtomicU64::new(0)),
            rest_shown: AtomicU64::new(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_limiter::core::Micros;

    #[test]
    fn an_allowed_decision_counts_in_the_band_of_what_is_used_after_it() {
        let band = |limit, remaining| {
            UsedBand::of_standing(&Standing {
                limit,
                remaining,
                reset_after: Micros::ZERO,
            })
        };
        for (remaining, expected) in [
            (100, None),
            (51, None),
            (50, Some(UsedBand::Half)),
            (21, Some(UsedBand::Half)),
            (20, Some(UsedBand::High)),
            (6, Some(UsedBand::High)),
            (5, Some(UsedBand::Exhausted)),
            (0, Some(UsedBand::Exhausted)),
        ] {
            assert_eq!(band(100, remaining), expected, "{remaining} of 100");
        }
        assert_eq!(band(3, 2), None);
        assert_eq!(band(3, 1), Some(UsedBand::Half));
        assert_eq!(band(u64::MAX, 0), Some(UsedBand::Exhausted));
    }

    #[test]
    fn bands_add_up_to_the_decisions_and_the_rest_is_never_taken_back() {
        let cells = LabelCells::default();
        for _ in 0..10 {
            cells.add(ResultLabel::Allow, Source::Memory, Protocol::Http);
        }
        cells.add_band(UsedBand::High);
        cells.add(ResultLabel::Deny, Source::Near, Protocol::Admin);
        assert_eq!(cells.utilization(), [9, 0, 1, 0, 1]);
        // Another decision is between its two counts.
        cells.add_band(UsedBand::High);
        assert_eq!(cells.utilization(), [9, 0, 2, 0, 1]);
        cells.add(ResultLabel::ShadowAllow, Source::Memory, Protocol::Grpc);
        assert_eq!(cells.utilization(), [9, 0, 2, 0, 1]);
        let figures = cells.figures();
        assert_eq!(
            (figures.allowed, figures.denied, figures.shadow_allowed, figures.bands),
            (10, 1, 1, [0, 2, 0, 0])
        );
        assert_eq!(cells.by_source()[Source::Near as usize], 1);
        let later = RuleFigures { allowed: 12, ..figures };
        assert_eq!(
            later.since(&figures),
            RuleFigures {
                allowed: 2,
                ..RuleFigures::default()
            }
        );
        let restarted = RuleFigures {
            allowed: 3,
            ..RuleFigures::default()
        };
        assert_eq!(restarted.since(&figures), restarted);
    }

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
