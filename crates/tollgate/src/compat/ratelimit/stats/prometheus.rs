//! The same figures under the names and labels that envoyproxy/ratelimit has for Prometheus, for dashboards that were made
//! for it.
//!
//! Two levels of a path are labels; what lies deeper counts for the second. So there are never more series than paths.

use super::{RatelimitStats, STATS};
use crate::server::telemetry::Metrics;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

/// Tells figures so.
#[derive(Debug)]
pub(crate) struct RatelimitCollector(pub(crate) Arc<Metrics>);

impl Collector for RatelimitCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let metrics = &*self.0;
        metrics.ratelimit.encode_ratelimit_names(&mut encoder)?;
        let calls = &metrics.ratelimit.calls;
        let mut encode_calls = |name, help, counts: &[(&str, &str, u64)]| -> fmt::Result {
            let mut family = encoder.encode_descriptor(name, help, None, UNTYPED)?;
            for (label, value, count) in counts {
                gauge(*count).encode(family.encode_family(&[(*label, *value)])?)?;
            }
            Ok(())
        };
        encode_calls(
            "ratelimit_service_should_rate_limit_error",
            "Calls without a verdict.",
            &[
                ("err_type", "redis_error", calls.store_failed.get()),
                ("err_type", "service_error", calls.invalid.get()),
            ],
        )?;
        encode_calls(
            "ratelimit_service_total_requests",
            "Calls.",
            &[("grpc_method", "ShouldRateLimit", calls.all.get())],
        )?;
        for (name, help, count) in [
            (
                "ratelimit_service_config_load_success",
                "Times files were taken.",
                &metrics.rules_installed,
            ),
            (
                "ratelimit_service_config_load_error",
                "Times files could not be used.",
                &metrics.reload_errors,
            ),
        ] {
            gauge(count.get()).encode(encoder.encode_descriptor(name, help, None, UNTYPED)?)?;
        }
        Ok(())
    }
}

impl RatelimitStats {
    fn encode_ratelimit_names(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut sums: BTreeMap<PathLabels<'_>, [u64; STATS.len()]> = BTreeMap::new();
        let stats = self.stats.read().unwrap_or_else(PoisonError::into_inner);
        for (name, entry) in &stats.by_name {
            let sums = sums.entry(PathLabels::new(name, entry.domain)).or_default();
            for (sum, cell) in sums.iter_mut().zip(&entry.cells.0) {
                *sum += cell.load(Ordering::Relaxed);
            }
        }
        for (stat, (name, help)) in STATS
            .iter()
            .enumerate()
            .filter(|(_, (name, _))| EXPORTED.contains(name))
        {
            let name = format!("ratelimit_service_rate_limit_{name}");
            let mut family = encoder.encode_descriptor(&name, help, None, UNTYPED)?;
            for (labels, sums) in &sums {
                let count = gauge(sums.get(stat).copied().unwrap_or_default());
                count.encode(family.encode_family(&labels.pairs())?)?;
            }
        }
        Ok(())
    }
}

/// A domain, and the first two levels of a path in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PathLabels<'p> {
    domain: &'p str,
    key1: &'p str,
    key2: Option<&'p str>,
}

impl<'p> PathLabels<'p> {
    /// Of a name that begins with so many bytes of a domain.
    fn new(name: &'p str, domain: usize) -> Self {
        let (domain, path) = name.split_at_checked(domain).unwrap_or((name, ""));
        let mut levels = path.strip_prefix('.').unwrap_or(path).split('.');
        Self {
            domain,
            key1: levels.next().unwrap_or_default(),
            key2: levels.next(),
        }
    }

    fn pairs(&self) -> Vec<(&'static str, &'p str)> {
        let key2 = self.key2.map(|key2| ("key2", key2));
        [("domain", self.domain), ("key1", self.key1)]
            .into_iter()
            .chain(key2)
            .collect()
    }
}

/// A counter has another name in this format: its own and `_total`.
const UNTYPED: MetricType = MetricType::Unknown;

/// The figures that have a name of their own there.
const EXPORTED: [&str; 5] = ["total_hits", "over_limit", "near_limit", "within_limit", "shadow_mode"];

fn gauge(count: u64) -> ConstGauge<i64> {
    ConstGauge::new(i64::try_from(count).unwrap_or(i64::MAX))
}
