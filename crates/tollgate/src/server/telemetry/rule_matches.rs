//! Attempts that rules were expected to match and did not: rules that never match, attempts without a rule, and attempts
//! that lack a `per` attribute.

use super::decisions::{PROTOCOLS, Protocol, rule_index};
use crate::server::observers::{ObservedVerdict, VerdictEvent, VerdictObserver};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tollgate_limiter::Direction;
use tollgate_limiter::clock::{StartTime, Stopwatch};
use tollgate_limiter::core::rules::{Attempt, Mode, Rule, RuleSet, UnknownDomain};

/// The matches of the active rules, and the attempts without any.
#[derive(Debug)]
pub(crate) struct RuleMatches {
    /// Of the rule set that was installed last.
    active: Mutex<Arc<ActiveMatches>>,
    /// By reason and protocol.
    unmatched: [[AtomicU64; PROTOCOLS.len()]; REASONS.len()],
    /// By protocol.
    log: [LogThrottle; PROTOCOLS.len()],
    stopwatch: Stopwatch,
    started: StartTime,
}

/// The matches of one rule set.
#[derive(Debug, Default)]
pub(crate) struct ActiveMatches {
    /// Adjacent, and written once per rule: threads share these cache lines without invalidating them.
    matched: Box<[AtomicBool]>,
    rules: Box<[RuleEntry]>,
}

/// One rule in the metrics.
#[derive(Debug)]
struct RuleEntry {
    name: RuleName,
    is_disabled: bool,
    /// Attempts that met its conditions and lack one of its `per` attributes. Continues when rules are reloaded.
    missing_keys: Arc<AtomicU64>,
}

/// The id of a rule, and its domain unless that is `default`.
type RuleName = (Box<str>, Option<Box<str>>);

/// The reason no rule matched an attempt.
#[derive(Clone, Copy)]
enum UnmatchedReason {
    UnknownDomain,
    NoRule,
}

const REASONS: [(UnmatchedReason, &str); 2] = [
    (UnmatchedReason::UnknownDomain, "unknown_domain"),
    (UnmatchedReason::NoRule, "no_rule"),
];

/// Allows one log line a minute.
#[derive(Debug, Default)]
struct LogThrottle {
    /// The time of the next line, in nanoseconds since the start.
    next_ns: AtomicU64,
    /// Events since the last line.
    held_back: AtomicU64,
}

impl Default for RuleMatches {
    fn default() -> Self {
        let stopwatch = Stopwatch::new();
        Self {
            active: Mutex::default(),
            unmatched: std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0))),
            log: std::array::from_fn(|_| LogThrottle::default()),
            started: stopwatch.start(),
            stopwatch,
        }
    }
}

impl VerdictObserver for RuleMatches {
    type RuleState = Arc<ActiveMatches>;

    /// Every rule starts without a match, as its conditions may have changed.
    fn rule_state(&self, rules: &RuleSet) -> Arc<ActiveMatches> {
        let mut active = self.active.lock().unwrap_or_else(PoisonError::into_inner);
        let known: HashMap<&RuleName, &Arc<AtomicU64>> = active
            .rules
            .iter()
            .map(|entry| (&entry.name, &entry.missing_keys))
            .collect();
        let entry = |rule: &Rule| {
            let domain = (rule.domain() != Attempt::DOMAIN).then(|| rule.domain().into());
            let name = (rule.id().into(), domain);
            RuleEntry {
                missing_keys: known.get(&name).copied().cloned().unwrap_or_default(),
                is_disabled: rule.mode() == Mode::Disabled,
                name,
            }
        };
        let next = Arc::new(ActiveMatches {
            matched: rules.rules().iter().map(|_| AtomicBool::new(false)).collect(),
            rules: rules.rules().iter().map(entry).collect(),
        });
        *active = Arc::clone(&next);
        next
    }

    #[inline]
    fn record(&self, matches: &Arc<ActiveMatches>, event: &VerdictEvent<'_>) {
        let (Direction::Consume, ObservedVerdict::Rules(verdict)) = (event.direction, event.verdict) else {
            return;
        };
        for ruling in &verdict.rulings {
            matches.mark(rule_index(event.rules, ruling.rule));
        }
        if verdict.rulings.is_empty() {
            self.add_unmatched(event);
        }
        if event.lacks_key {
            matches.add_missing_keys(event);
        }
    }
}

impl RuleMatches {
    /// Counts an attempt without a rule. A domain without rules is logged.
    #[cold]
    fn add_unmatched(&self, event: &VerdictEvent<'_>) {
        let domain = event.attempt.domain;
        if event.rules.is_known_domain(domain) {
            self.count(UnmatchedReason::NoRule, event.protocol);
        } else {
            let next_step = "nothing limits these attempts; correct the domain that the caller sends, or add rules";
            self.add_unknown_domain(event.protocol, next_step, || event.rules.unknown_domain(domain));
        }
    }

    /// Counts an attempt in a domain without rules, and logs it at most once a minute.
    #[cold]
    pub(crate) fn add_unknown_domain(
        &self,
        protocol: Protocol,
        next_step: &str,
        unknown: impl FnOnce() -> Option<UnknownDomain>,
    ) {
        self.count(UnmatchedReason::UnknownDomain, protocol);
        let elapsed_ns = self.stopwatch.elapsed_ns(self.started);
        let throttle = self.log.get(protocol as usize);
        if let Some(attempts) = throttle.and_then(|throttle| throttle.add(elapsed_ns)) {
            let protocol = PROTOCOLS.get(protocol as usize).map_or("", |(_, name)| name);
            if let Some(unknown) = unknown() {
                tracing::warn!(protocol, attempts, error = %unknown, "attempts in a domain without rules; {next_step}");
            }
        }
    }

    fn count(&self, reason: UnmatchedReason, protocol: Protocol) {
        let counts = self.unmatched.get(reason as usize);
        if let Some(count) = counts.and_then(|counts| counts.get(protocol as usize)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The number of active rules that have matched no attempt since they were loaded.
    pub(crate) fn never_matched(&self) -> u64 {
        self.active().entries().filter(|(_, matched)| !matched).count() as u64
    }

    fn active(&self) -> Arc<ActiveMatches> {
        Arc::clone(&self.active.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut unmatched = encoder.encode_descriptor(
            "tollgate_unmatched",
            "Attempts that no rule matched, by protocol and reason: a domain without rules, or none of its rules.",
            None,
            MetricType::Counter,
        )?;
        for ((_, reason), counts) in REASONS.iter().zip(&self.unmatched) {
            for ((_, protocol), count) in PROTOCOLS.iter().zip(counts) {
                let count = count.load(Ordering::Relaxed);
                if count > 0 {
                    let series = [("protocol", *protocol), ("reason", *reason)];
                    ConstCounter::new(count).encode(unmatched.encode_family(&series)?)?;
                }
            }
        }
        let active = self.active();
        let mut missing = encoder.encode_descriptor(
            "tollgate_missing_keys",
            "Attempts that met the conditions of a rule and lack one of its `per` attributes, by rule.",
            None,
            MetricType::Counter,
        )?;
        for entry in &active.rules {
            let count = entry.missing_keys.load(Ordering::Relaxed);
            if count > 0 {
                ConstCounter::new(count).encode(missing.encode_family(&entry.labels())?)?;
            }
        }
        let mut never = encoder.encode_descriptor(
            "tollgate_rules_never_matched",
            "1 while a rule has matched no attempt since it was loaded, else 0.",
            None,
            MetricType::Gauge,
        )?;
        let unmatched = active.entries().filter(|(_, matched)| !matched);
        let matched = active.entries().filter(|(_, matched)| *matched);
        for (entry, has_matched) in unmatched.chain(matched).take(SERIES_MAX) {
            ConstGauge::new(i64::from(!has_matched)).encode(never.encode_family(&entry.labels())?)?;
        }
        Ok(())
    }
}

impl ActiveMatches {
    /// Marks a rule as matched. Written only the first time, so that the cache line stays shared.
    #[inline]
    fn mark(&self, rule: usize) {
        if let Some(matched) = self.matched.get(rule)
            && !matched.load(Ordering::Relaxed)
        {
            matched.store(true, Ordering::Relaxed);
        }
    }

    #[cold]
    fn add_missing_keys(&self, event: &VerdictEvent<'_>) {
        for rule in event.rules.missing_keys(event.attempt) {
            if let Some(entry) = self.rules.get(rule) {
                entry.missing_keys.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// The rules that may match, and whether they have.
    fn entries(&self) -> impl Iterator<Item = (&RuleEntry, bool)> {
        let each = self.rules.iter().zip(&self.matched);
        let enabled = each.filter(|(entry, _)| !entry.is_disabled);
        enabled.map(|(entry, matched)| (entry, matched.load(Ordering::Relaxed)))
    }
}

impl RuleEntry {
    fn labels(&self) -> Vec<(&'static str, &str)> {
        let (rule, domain) = &self.name;
        let mut labels = vec![("rule", &**rule)];
        labels.extend(domain.as_deref().map(|domain| ("domain", domain)));
        labels
    }
}

impl LogThrottle {
    /// Adds an event. Returns the number of events since the last line if another line is due.
    fn add(&self, elapsed_ns: u64) -> Option<u64> {
        self.held_back.fetch_add(1, Ordering::Relaxed);
        let next_ns = self.next_ns.load(Ordering::Relaxed);
        if elapsed_ns < next_ns {
            return None;
        }
        let later = elapsed_ns.saturating_add(INTERVAL_NS);
        let taken = self
            .next_ns
            .compare_exchange(next_ns, later, Ordering::Relaxed, Ordering::Relaxed);
        taken.is_ok().then(|| self.held_back.swap(0, Ordering::Relaxed))
    }
}

/// The most series of `tollgate_rules_never_matched`; rules without a match come first.
const SERIES_MAX: usize = 1_000;
/// The time between two log lines.
const INTERVAL_NS: u64 = 60_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_line_is_due_once_a_minute_and_counts_the_events_since_the_last() {
        let throttle = LogThrottle::default();
        assert_eq!(throttle.add(5), Some(1));
        for at in 6..106 {
            assert_eq!(throttle.add(at), None);
        }
        assert_eq!(throttle.add(INTERVAL_NS + 4), None);
        assert_eq!(throttle.add(INTERVAL_NS + 5), Some(102));
    }

    #[test]
    fn every_reason_stands_at_the_place_of_its_value() {
        for (index, (reason, _)) in REASONS.into_iter().enumerate() {
            assert_eq!(reason as usize, index);
        }
    }
}
