//! Metrics of alerts and their messages.

use super::AlignedCount;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt;

/// The values that alerts set.
#[derive(Debug, Default)]
pub struct AlertMetrics {
    /// Alerts that fire now.
    pub firing: AlignedCount,
    /// Messages that a webhook accepted.
    pub delivered: AlignedCount,
    /// Attempts to deliver one that failed.
    pub failed: AlignedCount,
    /// Messages that were given up.
    pub dropped: AlignedCount,
}

impl AlertMetrics {
    pub(super) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let firing = ConstGauge::new(i64::try_from(self.firing.get()).unwrap_or(i64::MAX));
        let help = "Alerts that fire.";
        firing.encode(encoder.encode_descriptor("tollgate_alerts_firing", help, None, MetricType::Gauge)?)?;
        let help =
            "Deliveries of alert messages to webhooks, by result; dropped: given up after an hour, or too many waited.";
        let name = "tollgate_webhook_deliveries";
        let mut deliveries = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (result, count) in [
            ("delivered", &self.delivered),
            ("failed", &self.failed),
            ("dropped", &self.dropped),
        ] {
            let labels = [("result", result)];
            ConstCounter::new(count.get()).encode(deliveries.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
