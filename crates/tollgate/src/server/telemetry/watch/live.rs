//! Sampled decisions, for people who watch. While none does, a decision pays one relaxed read.

use crate::server::observers::{ObservedVerdict, VerdictEvent};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tollgate_limiter::Direction;
use tollgate_limiter::core::Retry;

/// Decisions of the current interval, a few of each result.
#[derive(Debug, Default)]
pub(crate) struct LiveDecisions {
    readers: AtomicU32,
    /// Denied and allowed decisions that are still wanted in this interval.
    wanted: [AtomicU32; 2],
    kept: Mutex<Vec<SampledDecision>>,
}

/// One decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SampledDecision {
    /// The protocol it arrived over.
    pub(crate) protocol: &'static str,
    /// Its domain.
    pub(crate) domain: String,
    /// Its attributes, in order. Long values are cut.
    pub(crate) attributes: Vec<(String, String)>,
    /// Its cost.
    pub(crate) cost: u64,
    /// True if it was allowed.
    pub(crate) allowed: bool,
    /// The rule that the response reports.
    pub(crate) rule: Option<String>,
    /// The part of the system that decided.
    pub(crate) source: &'static str,
    /// The units that remain.
    pub(crate) remaining: Option<u64>,
    /// The wait until it would pass.
    pub(crate) retry_after_ms: Option<u64>,
}

/// Keeps the sampling on until it is dropped.
#[derive(Debug)]
pub(crate) struct OpenSampling<'l>(&'l LiveDecisions);

impl LiveDecisions {
    /// True while decisions are sampled.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.readers.load(Ordering::Relaxed) > 0
    }

    /// Samples decisions until the returned guard is dropped.
    pub(crate) fn open(&self) -> OpenSampling<'_> {
        if self.readers.fetch_add(1, Ordering::Relaxed) == 0 {
            self.want(INTERVAL_DECISIONS as u32);
        }
        OpenSampling(self)
    }

    /// Keeps a decision, if one of its result is wanted.
    pub(crate) fn record(&self, event: &VerdictEvent<'_>) {
        if event.direction != Direction::Consume {
            return;
        }
        let allowed = match event.verdict {
            ObservedVerdict::Rules(verdict) => verdict.allowed,
            ObservedVerdict::Inline { allowed, .. } => allowed,
        };
        let [denials, others] = &self.wanted;
        let wanted = if allowed { others } else { denials };
        if wanted.load(Ordering::Relaxed) == 0 {
            return;
        }
        let taken = wanted.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |wanted| wanted.checked_sub(1));
        if taken.is_ok() {
            let sampled = SampledDecision::new(event, allowed);
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            if kept.len() < 2 * INTERVAL_DECISIONS {
                kept.push(sampled);
            }
        }
    }

    /// Ends an interval: returns its decisions, denials first, and asks for others.
    pub(crate) fn take(&self) -> Vec<SampledDecision> {
        let mut taken = std::mem::take(&mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner));
        // Denials first, and in the order of their arrival.
        taken.sort_by_key(|decision| decision.allowed);
        taken.truncate(INTERVAL_DECISIONS);
        self.want(if self.is_open() { INTERVAL_DECISIONS as u32 } else { 0 });
        taken
    }

    fn want(&self, decisions: u32) {
        for wanted in &self.wanted {
            wanted.store(decisions, Ordering::Relaxed);
        }
    }
}

impl Drop for OpenSampling<'_> {
    fn drop(&mut self) {
        self.0.readers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl SampledDecision {
    #[cold]
    fn new(event: &VerdictEvent<'_>, allowed: bool) -> Self {
        let attributes = event.attempt.attributes.iter().take(ATTRIBUTES_MAX);
        let (nearest, decision, source) = match event.verdict {
            ObservedVerdict::Rules(verdict) => {
                let nearest = verdict.nearest();
                (nearest, nearest.and_then(|ruling| ruling.decision), verdict.source)
            }
            ObservedVerdict::Inline { decision, source, .. } => (None, decision.copied(), source),
        };
        Self {
            protocol: event.protocol.name(),
            domain: cut(event.attempt.domain.as_bytes()),
            attributes: attributes
                .map(|one| (cut(one.name.as_bytes()), cut(one.value)))
                .collect(),
            cost: event.attempt.cost.get(),
            allowed,
            rule: nearest.map(|ruling| ruling.rule.id().to_owned()),
            source: source.name(),
            remaining: decision.map(|decision| decision.standing().remaining),
            retry_after_ms: decision.and_then(|decision| match decision.retry()? {
                Retry::After(wait) => Some(wait.as_millis_ceil()),
                Retry::Unknown | Retry::Never => None,
            }),
        }
    }
}

/// The beginning of a value as text.
pub(crate) fn cut(value: &[u8]) -> String {
    match value.get(..VALUE_BYTES_MAX) {
        Some(start) if value.len() > VALUE_BYTES_MAX => format!("{}…", String::from_utf8_lossy(start)),
        _ => String::from_utf8_lossy(value).into_owned(),
    }
}

/// The time between two calls of [`LiveDecisions::take`].
pub(crate) const INTERVAL: Duration = Duration::from_millis(250);
/// Decisions of one interval: twenty a second.
const INTERVAL_DECISIONS: usize = 5;
const ATTRIBUTES_MAX: usize = 32;
const VALUE_BYTES_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::telemetry::Protocol;
    use tollgate_limiter::core::rules::{Attempt, Attribute, RuleSet, Verdict};
    use tollgate_limiter::core::testing::rules::rule_set;
    use tollgate_limiter::core::{Cost, Micros, Source};

    fn some_rules() -> RuleSet {
        rule_set("rules: [{ id: plan, limit: 1/s }]")
    }

    fn record(live: &LiveDecisions, allowed: bool, value: &str) {
        let attributes = [Attribute {
            name: "merchant",
            value: value.as_bytes(),
        }];
        let verdict = Verdict {
            allowed,
            nearest: None,
            delay: Micros::ZERO,
            source: Source::Memory,
            rulings: Vec::new(),
        };
        live.record(&VerdictEvent {
            rules: &some_rules(),
            attempt: &Attempt {
                domain: "default",
                attributes: &attributes,
                cost: Cost::ONE,
            },
            direction: Direction::Consume,
            verdict: ObservedVerdict::Rules(&verdict),
            request_allowed: allowed,
            lacks_key: false,
            protocol: Protocol::Http,
        });
    }

    #[test]
    fn a_few_decisions_of_an_interval_are_kept_denials_first() {
        let live = LiveDecisions::default();
        assert!(!live.is_open());
        record(&live, false, "before");
        assert!(live.take().is_empty());
        let open = live.open();
        assert!(live.is_open());
        live.take();
        for number in 0..100 {
            record(&live, true, &format!("a{number}"));
        }
        record(&live, false, "d0");
        record(&live, false, "d1");
        let taken = live.take();
        let values: Vec<&str> = taken.iter().map(|decision| &*decision.attributes[0].1).collect();
        assert_eq!(values, ["d0", "d1", "a0", "a1", "a2"]);
        assert_eq!(
            (taken[0].protocol, taken[0].source, taken[0].cost),
            ("http", "memory", 1)
        );
        for number in 0..100 {
            record(&live, false, &format!("d{number}"));
        }
        record(&live, true, &"x".repeat(1_000));
        let taken = live.take();
        assert!(taken.len() == 5 && taken.iter().all(|decision| !decision.allowed));
        record(&live, true, &"x".repeat(1_000));
        assert_eq!(live.take()[0].attributes[0].1, format!("{}…", "x".repeat(256)));
        drop(open);
        live.take();
        record(&live, false, "after");
        assert!(!live.is_open() && live.take().is_empty());
    }
}
