//! Metrics of the store, encoded from its status when they are read.

use crate::server::store::AnyStore;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;
use std::fmt;
use std::time::Duration;
use tollgate_limiter::core::Micros;
use tollgate_limiter::store::{CALL_BOUNDS_US, CallMetrics, FallbackStatus};

/// The metrics of a store.
#[derive(Debug)]
pub(super) struct StoreMetrics(pub(super) AnyStore);

impl Collector for StoreMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let status = self.0.status();
        let encoder = &mut encoder;
        let help = "0 closed, 1 half-open, 2 open; with several servers the most restrictive state.";
        gauge(encoder, "tollgate_breaker_state", help, status.breaker.state as u64)?;
        if let Some(keys) = status.keys {
            gauge(encoder, "tollgate_keys", "Keys in the store.", keys)?;
        }
        if let Some(fallback) = &status.fallback {
            encode_fallback(encoder, fallback)?;
        }
        if let Some(calls) = &status.calls {
            let help = "1 while the shared store is reachable.";
            gauge(encoder, "tollgate_store_connected", help, status.is_connected().into())?;
            let help = "Circuit breaker state changes.";
            counter(
                encoder,
                "tollgate_breaker_transitions",
                help,
                status.breaker.transitions,
            )?;
            encode_calls(encoder, calls)?;
            encode_durations(encoder, calls)?;
        }
        if let Some(round_trip) = &status.round_trip {
            let help = "Round trip to the shared store: the median of recent ones, with several servers the longest.";
            seconds(encoder, "tollgate_store_round_trip", help, round_trip.median)?;
            let help = "Deadline of a call to the shared store; it should be three round trips or more.";
            seconds(encoder, "tollgate_store_deadline", help, round_trip.deadline)?;
        }
        let help = "Requests that the store could not answer, by error code.";
        let mut errors = encoder.encode_descriptor("tollgate_store_errors", help, None, MetricType::Counter)?;
        for (code, number) in status.errors {
            ConstCounter::new(number).encode(errors.encode_family(&[("code", code)])?)?;
        }
        Ok(())
    }
}

fn encode_fallback(encoder: &mut DescriptorEncoder<'_>, fallback: &FallbackStatus) -> fmt::Result {
    let help = "Instances that share the limits.";
    gauge(encoder, "tollgate_instances", help, fallback.instances.count().into())?;
    for (name, help, number) in [
        (
            "tollgate_fallback_charges",
            "Charges decided by this instance while the store was unavailable.",
            fallback.decided_charges,
        ),
        (
            "tollgate_fallback_seeded_counters",
            "Fallback counters seeded from the last shared state.",
            fallback.seeded_counters,
        ),
        (
            "tollgate_fallback_repaid_units",
            "Units allowed while the store was unavailable and charged to it afterwards.",
            fallback.repaid_units,
        ),
    ] {
        counter(encoder, name, help, number)?;
    }
    Ok(())
}

fn encode_calls(encoder: &mut DescriptorEncoder<'_>, calls: &CallMetrics) -> fmt::Result {
    for (name, help, number) in [
        ("calls", "Calls of the settlement script.", calls.calls),
        (
            "charges",
            "Charges settled by script calls; divided by calls, the batch size.",
            calls.charges,
        ),
        (
            "script_loads",
            "Script reloads after NOSCRIPT or a missing function.",
            calls.script_loads,
        ),
        (
            "connect_attempts",
            "Attempts to connect to the store.",
            calls.connect_attempts,
        ),
        ("redirects", "MOVED and ASK redirections of a cluster.", calls.redirects),
        (
            "compensated_charges",
            "Charges reversed because another part of their request was denied or failed.",
            calls.compensated_charges,
        ),
        (
            "uncompensated_charges",
            "Charges whose compensation failed or is unknown.",
            calls.uncompensated_charges,
        ),
        (
            "unreleased_leases",
            "Leases left to expire because too many were being released.",
            calls.unreleased_leases,
        ),
        ("replica_reads", "Peeks answered by a replica.", calls.replica_reads),
        (
            "replica_misses",
            "Peeks that a replica did not answer and its primary did.",
            calls.replica_misses,
        ),
        (
            "task_restarts",
            "Restarts of background store tasks.",
            calls.task_restarts,
        ),
    ] {
        counter(encoder, &format!("tollgate_store_{name}"), help, number)?;
    }
    Ok(())
}

fn encode_durations(encoder: &mut DescriptorEncoder<'_>, calls: &CallMetrics) -> fmt::Result {
    let seconds = |us: u64| Duration::from_micros(us).as_secs_f64();
    let bounds = CALL_BOUNDS_US.into_iter().map(seconds).chain([f64::INFINITY]);
    let buckets: Vec<(f64, u64)> = bounds.zip(calls.durations).collect();
    let count = calls.durations.iter().sum();
    let help = "Time of script calls, from sending to the reply or to the deadline, in seconds.";
    let mut histogram =
        encoder.encode_descriptor("tollgate_store", help, Some(&Unit::Seconds), MetricType::Histogram)?;
    histogram.encode_histogram::<NoLabelSet>(seconds(calls.duration_us), count, &buckets, None)
}

fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, number: u64) -> fmt::Result {
    let gauge = ConstGauge::new(i64::try_from(number).unwrap_or(i64::MAX));
    gauge.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
}

fn seconds(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, duration: Micros) -> fmt::Result {
    let gauge = ConstGauge::new(Duration::from_micros(duration.get()).as_secs_f64());
    gauge.encode(encoder.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Gauge)?)
}

fn counter(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, number: u64) -> fmt::Result {
    ConstCounter::new(number).encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)
}
