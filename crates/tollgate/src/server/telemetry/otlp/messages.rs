//! The messages of OTLP that carry metrics, and their common parts, with the fields that are used. Their numbers are those of opentelemetry-proto 1.x.

use prost::{Message, Oneof};

/// A request of `opentelemetry.proto.collector.metrics.v1.MetricsService/Export`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportRequest {
    #[prost(message, repeated, tag = "1")]
    pub(super) resource_metrics: Vec<ResourceMetrics>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ResourceMetrics {
    #[prost(message, optional, tag = "1")]
    pub(super) resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub(super) scope_metrics: Vec<ScopeMetrics>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Resource {
    #[prost(message, repeated, tag = "1")]
    pub(super) attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ScopeMetrics {
    #[prost(message, optional, tag = "1")]
    pub(super) scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    pub(super) metrics: Vec<Metric>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Scope {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) version: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Metric {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) description: String,
    #[prost(string, tag = "3")]
    pub(super) unit: String,
    #[prost(oneof = "MetricData", tags = "5, 7, 9")]
    pub(super) data: Option<MetricData>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum MetricData {
    #[prost(message, tag = "5")]
    Gauge(Gauge),
    #[prost(message, tag = "7")]
    Sum(Sum),
    #[prost(message, tag = "9")]
    Histogram(HistogramPoints),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Gauge {
    #[prost(message, repeated, tag = "1")]
    pub(super) data_points: Vec<NumberPoint>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Sum {
    #[prost(message, repeated, tag = "1")]
    pub(super) data_points: Vec<NumberPoint>,
    /// [`CUMULATIVE`].
    #[prost(int32, tag = "2")]
    pub(super) aggregation_temporality: i32,
    #[prost(bool, tag = "3")]
    pub(super) is_monotonic: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct HistogramPoints {
    #[prost(message, repeated, tag = "1")]
    pub(super) data_points: Vec<HistogramPoint>,
    /// [`CUMULATIVE`].
    #[prost(int32, tag = "2")]
    pub(super) aggregation_temporality: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct NumberPoint {
    #[prost(message, repeated, tag = "7")]
    pub(super) attributes: Vec<KeyValue>,
    #[prost(fixed64, tag = "2")]
    pub(super) start_time_unix_nano: u64,
    #[prost(fixed64, tag = "3")]
    pub(super) time_unix_nano: u64,
    #[prost(oneof = "Number", tags = "4, 6")]
    pub(super) value: Option<Number>,
}

#[derive(Clone, Copy, PartialEq, Oneof)]
pub(super) enum Number {
    #[prost(double, tag = "4")]
    Double(f64),
    #[prost(sfixed64, tag = "6")]
    Int(i64),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct HistogramPoint {
    #[prost(message, repeated, tag = "9")]
    pub(super) attributes: Vec<KeyValue>,
    #[prost(fixed64, tag = "2")]
    pub(super) start_time_unix_nano: u64,
    #[prost(fixed64, tag = "3")]
    pub(super) time_unix_nano: u64,
    #[prost(fixed64, tag = "4")]
    pub(super) count: u64,
    #[prost(double, optional, tag = "5")]
    pub(super) sum: Option<f64>,
    /// One more than bounds, and not cumulative.
    #[prost(fixed64, repeated, tag = "6")]
    pub(super) bucket_counts: Vec<u64>,
    #[prost(double, repeated, tag = "7")]
    pub(super) explicit_bounds: Vec<f64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct KeyValue {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(message, optional, tag = "2")]
    pub(super) value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AnyValue {
    #[prost(string, optional, tag = "1")]
    pub(super) string_value: Option<String>,
    /// Only one of both is there.
    #[prost(int64, optional, tag = "3")]
    pub(super) int_value: Option<i64>,
}

/// Points count since their start time.
pub(super) const CUMULATIVE: i32 = 2;

impl KeyValue {
    pub(super) fn text(key: &str, value: &str) -> Self {
        Self::new(
            key,
            AnyValue {
                string_value: Some(value.to_owned()),
                int_value: None,
            },
        )
    }

    pub(super) fn number(key: &str, value: usize) -> Self {
        Self::new(
            key,
            AnyValue {
                string_value: None,
                int_value: Some(i64::try_from(value).unwrap_or(i64::MAX)),
            },
        )
    }

    fn new(key: &str, value: AnyValue) -> Self {
        Self {
            key: key.to_owned(),
            value: Some(value),
        }
    }
}
