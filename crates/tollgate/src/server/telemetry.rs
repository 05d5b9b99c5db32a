//! What is counted, and how it is told: metrics in the OpenMetrics text format.
//!
//! Counting is a few additions to atomics whose places are found when rules are loaded. Labels hold rule ids, variants,
//! doors, results and sources, all of which the operator or this program chose: no caller can add a series, except for the
//! names of descriptors that are told with their values, which are bounded.

mod decisions;
mod histogram;
mod store;

pub(super) use decisions::ThrottleTally;
pub(crate) use decisions::rule_index;
pub use decisions::{Protocol, RuleCounts};

use self::store::StoreMetrics;
use super::store::AnyStore;
use crate::compat::ratelimit::{RatelimitCollector, RatelimitStats};
use decisions::Decisions;
use histogram::Histogram;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The figures of one server.
pub struct Telemetry {
    metrics: Arc<Metrics>,
    registry: Registry,
    /// What is told besides to those who know it from envoyproxy/ratelimit.
    ratelimit_registry: Registry,
}

/// Under which names figures are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricNames {
    /// Ours.
    Native,
    /// Also those of envoyproxy/ratelimit, as far as they are its own figures.
    WithRatelimit,
}

/// The figures themselves.
#[derive(Debug, Default)]
pub struct Metrics {
    pub(super) decisions: Decisions,
    /// What envoyproxy/ratelimit counts.
    pub ratelimit: RatelimitStats,
    /// From the moment the gate was asked to the verdict.
    pub(super) seconds: Histogram,
    /// Cost attributes that were no whole number.
    pub(super) invalid_costs: AtomicCount,
    /// Rules in force.
    pub(super) rules_loaded: AtomicCount,
    /// Times other rules were taken.
    pub(super) reloads: AtomicCount,
    /// Times changed rules could not be used.
    pub(crate) reload_errors: AtomicCount,
    /// Whether the last rules that were seen could not be used: 1, else 0.
    pub(super) reload_failed: AtomicCount,
    /// Times rules were taken, from the first on.
    pub(crate) rules_installed: AtomicCount,
    /// Connections open now.
    pub connections: AtomicCount,
    /// Connections since the start.
    accepted: AtomicCount,
}

/// Counts one connection as open for as long as it is there.
#[derive(Debug)]
pub(super) struct ConnectionGauge<'f>(&'f Metrics);

/// A number that threads change together. In its own line of memory, so that two of them never wait for each other.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct AtomicCount(AtomicU64);

impl Telemetry {
    /// Everything at zero. What is known of the store is asked when it is told.
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

    /// The figures.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// All of it as text.
    pub fn text(&self, names: MetricNames) -> String {
        let mut text = String::new();
        self.encode(&mut text, names)
            .expect("a string takes whatever is written to it");
        text
    }

    fn encode(&self, text: &mut String, names: MetricNames) -> fmt::Result {
        text::encode_registry(text, &self.registry)?;
        if names == MetricNames::WithRatelimit {
            text::encode_registry(text, &self.ratelimit_registry)?;
        }
        text::encode_eof(text)
    }

    /// What [`Telemetry::text`] is.
    pub const CONTENT_TYPE: &'static str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
}

impl Metrics {
    /// A connection more.
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

impl AtomicCount {
    /// One more.
    pub fn add(&self, number: u64) {
        self.0.fetch_add(number, Ordering::Relaxed);
    }

    /// One fewer.
    pub fn subtract(&self, number: u64) {
        self.0.fetch_sub(number, Ordering::Relaxed);
    }

    /// This many.
    pub fn set(&self, number: u64) {
        self.0.store(number, Ordering::Relaxed);
    }

    /// How many.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.decisions.encode(&mut encoder)?;
        self.ratelimit.encode(&mut encoder)?;
        let seconds = encoder.encode_descriptor(
            "tollgate_decision",
            "How long verdicts took.",
            Some(&Unit::Seconds),
            MetricType::Histogram,
        )?;
        self.seconds.encode(seconds)?;
        let mut count = |name, help, number: &AtomicCount| {
            let counter = ConstCounter::new(number.get());
            counter.encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)
        };
        count(
            "tollgate_odd_costs",
            "Cost attributes that were no whole number.",
            &self.invalid_costs,
        )?;
        count("tollgate_rules_reloads", "Times other rules were taken.", &self.reloads)?;
        count(
            "tollgate_rules_reload_errors",
            "Times changed rules could not be used.",
            &self.reload_errors,
        )?;
        count(
            "tollgate_connections_accepted",
            "Connections since the start.",
            &self.accepted,
        )?;
        let mut gauge = |name, help, number: u64| {
            let gauge = ConstGauge::new(i64::try_from(number).unwrap_or(i64::MAX));
            gauge.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
        };
        gauge("tollgate_rules_loaded", "Rules in force.", self.rules_loaded.get())?;
        gauge(
            "tollgate_rules_load_failed",
            "1 while the last rules that were seen could not be used.",
            self.reload_failed.get(),
        )?;
        gauge("tollgate_connections", "Open connections.", self.connections.get())?;
        let mut build =
            encoder.encode_descriptor("tollgate_build_info", "The version that runs.", None, MetricType::Gauge)?;
        let labels = [("version", env!("CARGO_PKG_VERSION"))];
        ConstGauge::new(1_i64).encode(build.encode_family(&labels)?)
    }
}

impl fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Telemetry")
            .field("figures", &self.metrics)
            .finish_non_exhaustive()
    }
}
