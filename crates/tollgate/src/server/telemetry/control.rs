//! Metrics of the control plane, and the summary of the managed state that `/readyz` shows.

use super::AlignedCount;
use arc_swap::ArcSwapOption;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt;
use std::sync::Arc;
use tokio::time::Instant;

/// The values that the control plane sets.
#[derive(Debug, Default)]
pub struct ControlMetrics {
    live: ArcSwapOption<LiveSummary>,
    fleet_warnings: ArcSwapOption<Vec<String>>,
    /// 1 while rules come over a shared store without a secret.
    pub unsigned: AlignedCount,
    /// Age in seconds of the newest head that is not applied yet; 0: none.
    pub lag_seconds: AlignedCount,
    /// 1 while live instances report different digests.
    pub differ: AlignedCount,
    /// Published sets that could not be used.
    pub rejected_sets: AlignedCount,
    /// Rows that could not be used.
    pub rejected_row_count: AlignedCount,
    /// Subject attributes that could not be used.
    pub rejected_attributes: AlignedCount,
    /// Writes that were committed.
    pub writes_done: AlignedCount,
    /// Writes that were refused.
    pub writes_refused: AlignedCount,
    /// Writes that failed, because the database did not answer or its disk is full.
    pub writes_failed: AlignedCount,
    /// 1 while the database answers; 0 also without one.
    pub database_up: AlignedCount,
    /// 1 if the last verification of the audit log found it broken.
    pub audit_broken: AlignedCount,
}

/// The managed state that is applied.
#[derive(Clone, Debug)]
pub struct LiveSummary {
    /// The version in use; none: there is no managed state.
    pub version: Option<u64>,
    /// The revision; none: there is no managed state.
    pub revision: Option<u64>,
    /// The digest of all layers.
    pub digest: String,
    /// The origin: `file`, `cache`, `database` or `disk`.
    pub source: &'static str,
    /// The time at which it was applied.
    pub since: Instant,
    /// The number of override rows.
    pub rows: usize,
    /// Rows that the active rules cannot use.
    pub rejected_rows: usize,
}

impl ControlMetrics {
    /// The managed state; none: the server has no control plane.
    pub fn live(&self) -> Option<Arc<LiveSummary>> {
        self.live.load_full()
    }

    /// Warnings about the fleet, for `/readyz`.
    pub fn fleet_warnings(&self) -> Option<Arc<Vec<String>>> {
        let warnings = self.fleet_warnings.load_full();
        if self.unsigned.get() == 0 {
            return warnings;
        }
        let mut warnings = warnings.as_deref().cloned().unwrap_or_default();
        warnings.push("write access to the shared store is write access to rules; set control.secret".to_owned());
        Some(Arc::new(warnings))
    }

    /// Sets the warnings about the fleet.
    pub fn set_fleet_warnings(&self, warnings: Vec<String>) {
        self.fleet_warnings.store(Some(Arc::new(warnings)));
    }

    /// Sets the managed state.
    pub fn set_live(&self, live: LiveSummary) {
        self.live.store(Some(Arc::new(live)));
    }

    /// Encodes the metrics; none for a server without a control plane.
    pub(super) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Some(live) = self.live() else { return Ok(()) };
        let mut gauge = |name, help, number: u64| {
            let gauge = ConstGauge::new(i64::try_from(number).unwrap_or(i64::MAX));
            gauge.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
        };
        let version = live.version.unwrap_or(0);
        gauge(
            "tollgate_rules_version",
            "Version of the managed rules in use; 0: none.",
            version,
        )?;
        let revision = live.revision.unwrap_or(0);
        gauge(
            "tollgate_rules_revision",
            "Revision of the control plane that is applied; 0: none.",
            revision,
        )?;
        gauge(
            "tollgate_rules_lag_seconds",
            "Age of the newest state of the control plane that is not applied yet.",
            self.lag_seconds.get(),
        )?;
        gauge(
            "tollgate_rules_differ",
            "1 while live instances report different rules.",
            self.differ.get(),
        )?;
        gauge("tollgate_override_rows", "Override rows.", live.rows as u64)?;
        gauge(
            "tollgate_control_database_up",
            "1 while the database of the control plane answers.",
            self.database_up.get(),
        )?;
        gauge(
            "tollgate_audit_chain_ok",
            "0 if the last verification found the audit log broken.",
            1_u64.saturating_sub(self.audit_broken.get()),
        )?;
        let mut source = encoder.encode_descriptor(
            "tollgate_rules_source",
            "1 for the origin of the active rules.",
            None,
            MetricType::Gauge,
        )?;
        for name in ["file", "cache", "database", "disk"] {
            let labels = [("source", name)];
            ConstGauge::new(i64::from(live.source == name)).encode(source.encode_family(&labels)?)?;
        }
        let kinds = [
            ("set", &self.rejected_sets),
            ("row", &self.rejected_row_count),
            ("attribute", &self.rejected_attributes),
        ];
        let help = "Managed rule sets, rows and attributes that could not be used.";
        encode_family(encoder, "tollgate_rules_rejected", help, "kind", &kinds)?;
        let results = [
            ("done", &self.writes_done),
            ("refused", &self.writes_refused),
            ("failed", &self.writes_failed),
        ];
        encode_family(
            encoder,
            "tollgate_control_writes",
            "Writes to the control plane.",
            "result",
            &results,
        )
    }
}

fn encode_family(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    label: &'static str,
    counts: &[(&'static str, &AlignedCount)],
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (value, count) in counts {
        let labels = [(label, *value)];
        ConstCounter::new(count.get()).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}
