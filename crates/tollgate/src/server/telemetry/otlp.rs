//! OpenTelemetry: sends the metrics and the spans of this server to a collector over OTLP: metrics at an interval and cumulative,
//! spans in batches.
//!
//! No SDK: it has no histogram that is read when it is sent, and the metrics are counted already. The endpoint without a path is called
//! over gRPC, one with a path by HTTP with the same protobuf messages.

mod client;
mod convert;
mod messages;
mod span_messages;
mod spans;

pub use self::client::OtlpEndpoint;
pub use self::spans::SpanExporter;

use self::client::{OtlpClient, Signal};
use self::convert::{PointTimes, convert};
use self::messages::{ExportRequest, KeyValue, Resource, ResourceMetrics, Scope, ScopeMetrics};
use super::traces::TraceSampling;
use crate::server::gate::Gate;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;
use tollgate_limiter::clock::Clock;

/// The settings of the exporters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtlpSettings {
    /// The collector.
    pub endpoint: OtlpEndpoint,
    /// The time between two exports of metrics. None: metrics are not sent.
    pub metrics_interval: Option<Duration>,
    /// The choice of requests that get a span. None: traces are off.
    pub traces: Option<TraceSampling>,
}

/// Sends metrics without end.
#[derive(Debug)]
pub struct MetricsExporter {
    gate: Arc<Gate>,
    client: OtlpClient,
    interval: Duration,
    /// Identifies this process to the collector.
    instance: String,
    start: u64,
}

impl MetricsExporter {
    /// An exporter of the metrics of a server. None: the settings send no metrics.
    pub fn new(gate: Arc<Gate>, settings: &OtlpSettings, instance: &str) -> Option<Self> {
        Some(Self {
            gate,
            client: OtlpClient::new(&settings.endpoint, Signal::Metrics),
            interval: settings.metrics_interval?,
            instance: instance.to_owned(),
            start: now_nanos(),
        })
    }

    /// Sends metrics without end. An export that fails is not repeated: the next one has all its counts again.
    pub async fn run(&self) {
        loop {
            sleep(self.interval).await;
            let _ = self.client.send(&self.message()).await;
        }
    }

    fn message(&self) -> ExportRequest {
        let times = PointTimes {
            start: self.start,
            now: now_nanos(),
        };
        let (metrics, unread) = convert(&self.gate.metrics_text(), times);
        if unread > 0 {
            tracing::warn!(
                lines = unread,
                "metrics were left out of an export; report this as a bug"
            );
        }
        ExportRequest {
            resource_metrics: vec![ResourceMetrics {
                resource: Some(resource(&self.instance)),
                scope_metrics: vec![ScopeMetrics {
                    scope: Some(scope()),
                    metrics,
                }],
            }],
        }
    }
}

/// This process.
fn resource(instance: &str) -> Resource {
    let attributes = vec![
        KeyValue::text("service.name", "tollgate"),
        KeyValue::text("service.version", env!("CARGO_PKG_VERSION")),
        KeyValue::text("service.instance.id", instance),
    ];
    Resource { attributes }
}

/// The part of the program that counts and times.
fn scope() -> Scope {
    Scope {
        name: "tollgate".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

/// The time, in nanoseconds since the epoch.
pub(in crate::server) fn now_nanos() -> u64 {
    Clock::wall().now().as_micros().saturating_mul(1_000)
}
