//! Metrics in the OpenMetrics text format.
//!
//! Counting is a few additions to atomics that are looked up when rules are installed. Labels hold rule ids, variants,
//! protocols, results and sources, all chosen by the operator or by this program: no caller can add a series, except for
//! descriptor names that contain request values, and their number is bounded.

mod alerts;
mod control;
mod decisions;
mod faults;
mod histogram;
pub mod otlp;
mod process;
mod rule_matches;
mod store;
pub(crate) mod traces;
pub(crate) mod watch;

pub use alerts::AlertMetrics;
pub use control::{ControlMetrics, LiveSummary};
pub use decisions::Protocol;
pub(super) use decisions::ThrottleTally;
pub(crate) use decisions::rule_index;
pub(crate) use decisions::{RuleFigures, TotalFigures};
pub(crate) use histogram::{LATENCY_BOUNDS_NS, LATENCY_BUCKETS};
pub use process::ProcessMetrics;

use self::faults::Faults;
use self::store::StoreMetrics;
use self::traces::Traces;
use self::watch::Watch;
use self::watch::top::TopRules;
use super::headers::{RetryQueues, RuleQueues, encode_queues};
use super::store::AnyStore;
use crate::compat::ratelimit::{RatelimitCollector, RatelimitCounts, RatelimitStats};
use decisions::{Decisions, RuleCounts};
use histogram::Histogram;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use rule_matches::{ActiveMatches, RuleMatches};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The metrics of one server and their encoders.
pub struct Telemetry {
    metrics: Arc<Metrics>,
    registry: Registry,
    /// The same statistics under the Prometheus names of `ratelimit`.
    ratelimit_registry: Registry,
}

/// The names that metrics are exported under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricNames {
    /// Tollgate's own.
    Native,
    /// Also those of `ratelimit`, for the statistics it has.
    WithRatelimit,
}

/// The values of all metrics that the server counts itself.
#[derive(Debug, Default)]
pub struct Metrics {
    pub(super) decisions: Decisions,
    /// Rules that never match, and attempts without a rule.
    pub(super) matches: RuleMatches,
    /// Return times of denied callers.
    pub(super) retry_queues: RetryQueues,
    /// Statistics of `ratelimit`.
    pub ratelimit: RatelimitStats,
    /// Calls that were rejected or panicked.
    pub faults: Faults,
    /// Time from planning to verdict.
    pub(super) seconds: Histogram,
    /// Time series, sampled decisions, refused subjects, and the events of streams.
    pub(super) watch: Watch,
    /// Spans of sampled requests.
    pub(super) traces: Traces,
    /// Cost attributes that were not whole numbers.
    pub(super) invalid_costs: AlignedCount,
    /// Number of active rules.
    pub(super) rules_loaded: AlignedCount,
    /// Successful reloads.
    pub(super) reloads: AlignedCount,
    /// Failed reloads.
    pub(crate) reload_errors: AlignedCount,
    /// 1 while the last reload has failed, else 0.
    pub(super) reload_failed: AlignedCount,
    /// Rule sets installed, the first included.
    pub(crate) rules_installed: AlignedCount,
    /// Memory and threads.
    pub process: ProcessMetrics,
    /// The control plane.
    pub control: ControlMetrics,
    /// Alerts.
    pub alerts: Arc<AlertMetrics>,
    /// Connections open now.
    pub connections: AlignedCount,
    /// Connections since the start.
    accepted: AlignedCount,
}

/// The counters that observers keep for one rule set.
pub(crate) type ObserverState = (RuleCounts, RatelimitCounts, Arc<ActiveMatches>, TopRules, RuleQueues);

/// Counts one connection as open until it is dropped.
#[derive(Debug)]
pub(super) struct ConnectionGauge<'f>(&'f Metrics);

/// A counter that threads share. It has a cache line of its own, to avoid false sharing.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct AlignedCount(AtomicU64);

impl Telemetry {
    /// Returns metrics at zero. Those of the store are read when they are encoded.
    pub fn new(store: &AnyStore) -> Self {
        let metrics = Arc::new(Metrics::default());
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Arc::clone(&metrics)));
        registry.register_collector(Box::new(StoreMetrics(store.clone())));
        let mut ratelimit_registry = Registry::default();
        ratelimit_registry.register_collector(Box::new(RatelimitCollector(Arc::clone(&metrics))));
        Self {
            metrics,
            registry,
            ratelimit_registry,
        }
    }

    /// The values.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Encodes all metrics, in the OpenMetrics text format.
    pub fn text(&self, names: MetricNames) -> String {
        let mut text = String::new();
        self.encode(&mut text, names)
            .expect("writing to a string does not fail");
        text
    }

    fn encode(&self, text: &mut String, names: MetricNames) -> fmt::Result {
        text::encode_registry(text, &self.registry)?;
        if names == MetricNames::WithRatelimit {
            text::encode_registry(text, &self.ratelimit_registry)?;
        }
        text::encode_eof(text)
    }
}

impl Metrics {
    /// The observers of every verdict. A new one is one more element.
    #[inline]
    pub(super) fn observers(&self) -> (&Decisions, &RatelimitStats, &RuleMatches, &Watch, &RetryQueues) {
        (
            &self.decisions,
            &self.ratelimit,
            &self.matches,
            &self.watch,
            &self.retry_queues,
        )
    }

    /// The counters of all checks, with the times of calls to the store.
    pub(super) fn totals(&self, store: [u64; LATENCY_BUCKETS]) -> TotalFigures {
        TotalFigures {
            decision: self.seconds.counts(),
            store,
            ..self.decisions.totals()
        }
    }

    /// Counts a connection until the returned guard is dropped.
    pub(super) fn open_connection(&self) -> ConnectionGauge<'_> {
        self.accepted.add(1);
        self.connections.add(1);
        ConnectionGauge(self)
    }
}

impl Drop for ConnectionGauge<'_> {
    fn drop(&mut self) {
        self.0.connections.subtract(1);
    }
}

impl AlignedCount {
    /// Adds to it.
    pub fn add(&self, number: u64) {
        self.0.fetch_add(number, Ordering::Relaxed);
    }

    /// Subtracts from it.
    pub fn subtract(&self, number: u64) {
        self.0.fetch_sub(number, Ordering::Relaxed);
    }

    /// Sets it.
    pub fn set(&self, number: u64) {
        self.0.store(number, Ordering::Relaxed);
    }

    /// Returns its value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.decisions.encode(&mut encoder)?;
        self.ratelimit.encode(&mut encoder)?;
        self.faults.encode(&mut encoder)?;
        self.matches.encode(&mut encoder)?;
        encode_queues(&self.retry_queues, &mut encoder)?;
        self.control.encode(&mut encoder)?;
        self.alerts.encode(&mut encoder)?;
        self.traces.encode(&mut encoder)?;
        self.process.encode(&mut encoder)?;
        let seconds = encoder.encode_descriptor(
            "tollgate_decision",
            "Time from planning to verdict, in seconds.",
            Some(&Unit::Seconds),
            MetricType::Histogram,
        )?;
        self.seconds.encode(seconds)?;
        let mut count = |name, help, number: &AlignedCount| {
            let counter = ConstCounter::new(number.get());
            counter.encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)
        };
        count(
            "tollgate_invalid_costs",
            "Cost attributes that were not whole numbers; the default was charged.",
            &self.invalid_costs,
        )?;
        count("tollgate_rules_reloads", "Successful rule reloads.", &self.reloads)?;
        count(
            "tollgate_rules_reload_errors",
            "Failed rule reloads.",
            &self.reload_errors,
        )?;
        count("tollgate_connections_accepted", "Connections accepted.", &self.accepted)?;
        let mut gauge = |name, help, number: u64| {
            let gauge = ConstGauge::new(i64::try_from(number).unwrap_or(i64::MAX));
            gauge.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
        };
        gauge("tollgate_rules_loaded", "Active rules.", self.rules_loaded.get())?;
        gauge(
            "tollgate_rules_load_failed",
            "1 while the last reload has failed and older rules are active.",
            self.reload_failed.get(),
        )?;
        gauge("tollgate_connections", "Open connections.", self.connections.get())?;
        let clients = self.watch.stream_clients().get();
        gauge(
            "tollgate_stream_clients",
            "Open event streams of the admin API.",
            clients,
        )?;
        let mut build = encoder.encode_descriptor(
            "tollgate_build_info",
            "Version of the running program.",
            None,
            MetricType::Gauge,
        )?;
        let labels = [("version", env!("CARGO_PKG_VERSION"))];
        ConstGauge::new(1_i64).encode(build.encode_family(&labels)?)
    }
}

impl fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Telemetry")
            .field("metrics", &self.metrics)
            .finish_non_exhaustive()
    }
}
