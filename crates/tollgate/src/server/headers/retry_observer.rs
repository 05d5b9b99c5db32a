//! The gate's verdicts, for the queues of denied callers, and the metric of those queues.

use super::{RetryQueues, RuleQueues};
use crate::server::observers::{ObservedVerdict, VerdictEvent, VerdictObserver};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt;
use tollgate_limiter::Direction;
use tollgate_limiter::core::rules::RuleSet;

impl VerdictObserver for RetryQueues {
    type RuleState = RuleQueues;

    fn rule_state(&self, rules: &RuleSet) -> RuleQueues {
        self.rule_queues(rules)
    }

    #[inline]
    fn record(&self, state: &RuleQueues, event: &VerdictEvent<'_>) {
        if let (Direction::Consume, ObservedVerdict::Rules(verdict)) = (event.direction, event.verdict)
            && event.request_allowed
        {
            self.count_admitted(state, event.rules, event.attempt, verdict);
        }
    }
}

/// Writes the lengths of the queues.
pub(in crate::server) fn encode_queues(queues: &RetryQueues, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let mut gauge = encoder.encode_descriptor(
        "tollgate_retry_queue_seconds",
        "Time until the last denied caller of a shared limit was asked to return, by rule.",
        None,
        MetricType::Gauge,
    )?;
    let mut lengths = Vec::new();
    queues.lengths(|rule, domain, length| lengths.push((rule.to_owned(), domain.map(str::to_owned), length)));
    for (rule, domain, length) in &lengths {
        let mut labels = vec![("rule", rule.as_str())];
        labels.extend(domain.as_deref().map(|domain| ("domain", domain)));
        let seconds = i64::try_from(length.get().div_ceil(1_000_000)).unwrap_or(i64::MAX);
        ConstGauge::new(seconds).encode(gauge.encode_family(&labels)?)?;
    }
    Ok(())
}
