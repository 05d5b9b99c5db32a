//! Metrics over OTLP, as a collector receives them over gRPC and HTTP.

mod collector;
mod traces;

use self::collector::{Collector, Wire};
use crate::test_server::TestServer;
use prost::{Message, Oneof};
use std::collections::BTreeSet;
use tollgate_test_kit::TestFolder;

#[derive(Clone, PartialEq, Message)]
struct Export {
    #[prost(message, repeated, tag = "1")]
    resources: Vec<ResourceMetrics>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceMetrics {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scopes: Vec<ScopeMetrics>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Resource {
    #[prost(message, repeated, tag = "1")]
    pub(super) attributes: Vec<Attribute>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeMetrics {
    #[prost(message, repeated, tag = "2")]
    metrics: Vec<Metric>,
}

#[derive(Clone, PartialEq, Message)]
struct Metric {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "5")]
    gauge: Option<Numbers>,
    #[prost(message, optional, tag = "7")]
    sum: Option<Numbers>,
    #[prost(message, optional, tag = "9")]
    histogram: Option<Histogram>,
}

#[derive(Clone, PartialEq, Message)]
struct Numbers {
    #[prost(message, repeated, tag = "1")]
    points: Vec<Number>,
    #[prost(int32, tag = "2")]
    temporality: i32,
    #[prost(bool, tag = "3")]
    is_monotonic: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Number {
    #[prost(message, repeated, tag = "7")]
    attributes: Vec<Attribute>,
    #[prost(oneof = "NumberValue", tags = "4, 6")]
    value: Option<NumberValue>,
}

#[derive(Clone, Copy, PartialEq, Oneof)]
enum NumberValue {
    #[prost(double, tag = "4")]
    Double(f64),
    #[prost(sfixed64, tag = "6")]
    Int(i64),
}

#[derive(Clone, PartialEq, Message)]
struct Histogram {
    #[prost(message, repeated, tag = "1")]
    points: Vec<HistogramPoint>,
    #[prost(int32, tag = "2")]
    temporality: i32,
}

#[derive(Clone, PartialEq, Message)]
struct HistogramPoint {
    #[prost(fixed64, tag = "4")]
    count: u64,
    #[prost(fixed64, repeated, tag = "6")]
    buckets: Vec<u64>,
    #[prost(double, repeated, tag = "7")]
    bounds: Vec<f64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Attribute {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(message, optional, tag = "2")]
    pub(super) value: Option<AttributeValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AttributeValue {
    #[prost(string, tag = "1")]
    pub(super) text: String,
    #[prost(int64, tag = "3")]
    pub(super) number: i64,
}

/// The value of a cumulative temporality.
const CUMULATIVE: i32 = 2;

/// The samples of an export, as the lines of `/metrics` have them.
fn samples(export: &Export) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    let metrics = export
        .resources
        .iter()
        .flat_map(|one| &one.scopes)
        .flat_map(|scope| &scope.metrics);
    for metric in metrics {
        let name = &metric.name;
        if let Some(sum) = &metric.sum {
            assert_eq!((sum.temporality, sum.is_monotonic), (CUMULATIVE, true), "{name}");
            lines.extend(sum.points.iter().map(|point| line(&format!("{name}_total"), point)));
        }
        if let Some(gauge) = &metric.gauge {
            lines.extend(gauge.points.iter().map(|point| line(name, point)));
        }
        if let Some(histogram) = &metric.histogram {
            assert_eq!(histogram.temporality, CUMULATIVE, "{name}");
            for point in &histogram.points {
                let mut below = 0;
                let bounds = point.bounds.iter().map(bound).chain(["+Inf".to_owned()]);
                for (bound, count) in bounds.zip(&point.buckets) {
                    below += count;
                    lines.insert(format!("{name}_bucket{{le=\"{bound}\"}} {below}"));
                }
                lines.insert(format!("{name}_count {}", point.count));
            }
        }
    }
    lines
}

/// A bound as the text has it: whole numbers with a fraction.
fn bound(bound: &f64) -> String {
    match bound.fract() == 0.0 {
        true => format!("{bound:.1}"),
        false => bound.to_string(),
    }
}

fn line(name: &str, point: &Number) -> String {
    let value = match point.value.expect("a point has a value") {
        NumberValue::Double(value) => value.to_string(),
        NumberValue::Int(value) => value.to_string(),
    };
    let labels: Vec<String> = point
        .attributes
        .iter()
        .map(|one| format!("{}=\"{}\"", one.key, one.value.clone().unwrap_or_default().text))
        .collect();
    match labels.is_empty() {
        true => format!("{name} {value}"),
        false => format!("{name}{{{}}} {value}", labels.join(",")),
    }
}

/// Samples of `/metrics` that reading them does not change.
fn is_stable(line: &str) -> bool {
    let changes = ["connections", "_sum", "memory_bytes", "worker_busy"];
    !line.starts_with('#') && !changes.iter().any(|name| line.contains(name))
}

/// Receives exports until one has these decisions.
fn receive(wire: Wire, endpoint_path: &str) -> (Export, BTreeSet<String>) {
    let collector = Collector::start(wire);
    let address = collector.address;
    let (_folder, server) = TestServer::with_settings(&format!(
        "rules: [{{ id: plan, per: user, limit: 5/h }}]\n\
         telemetry: {{ otlp: {{ endpoint: 'http://{address}{endpoint_path}', interval: 1s }} }}\n"
    ));
    for _ in 0..7 {
        server.check("{\"user\":\"u\"}");
    }
    loop {
        let received = collector.next();
        assert_eq!(
            received.path,
            match wire {
                Wire::Grpc => "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
                Wire::Http => "/v1/metrics",
            }
        );
        let export = Export::decode(received.message).expect("it is an export");
        let denied = "tollgate_decisions_total{rule=\"plan\",result=\"deny\",source=\"memory\",protocol=\"http\"} 2";
        if samples(&export).contains(denied) {
            let metrics = server.get("/metrics").body;
            let lines = metrics.lines().filter(|line| is_stable(line));
            return (export, lines.map(str::to_owned).collect());
        }
    }
}

#[test]
fn exports_have_the_samples_of_the_metrics_page() {
    for (wire, path) in [(Wire::Grpc, ""), (Wire::Http, "/v1/metrics")] {
        let (export, metrics) = receive(wire, path);
        let exported: BTreeSet<String> = samples(&export).into_iter().filter(|line| is_stable(line)).collect();
        // Families without a sample are left out of an export.
        let missing: Vec<&String> = metrics.difference(&exported).collect();
        let other: Vec<&String> = exported.difference(&metrics).collect();
        assert!(
            missing.is_empty() && other.is_empty(),
            "{wire:?}: {missing:?} {other:?}"
        );
        assert!(exported.len() > 30, "{exported:?}");
        let resource = export
            .resources
            .first()
            .and_then(|one| one.resource.clone())
            .expect("it has a resource");
        let names: Vec<&str> = resource.attributes.iter().map(|one| one.key.as_str()).collect();
        assert_eq!(names, ["service.name", "service.version", "service.instance.id"]);
    }
}

#[test]
fn subjects_add_no_series() {
    let folder = TestFolder::with(
        "tollgate.yaml",
        "rules: [{ id: plan, per: user, limit: 1/h }, { id: all, limit: 1000000000/h }]\n",
    );
    let server = TestServer::start(&folder, &[]);
    #[expect(
        clippy::disallowed_methods,
        reason = "the number of a long run; without it the test is short"
    )]
    let subjects: u64 =
        std::env::var("TOLLGATE_SERIES_SUBJECTS").map_or(20_000, |text| text.parse().expect("a number"));
    let series = || {
        let metrics = server.get("/metrics").body;
        metrics
            .lines()
            .filter(|line| line.starts_with("tollgate_") && line.contains("rule="))
            .count()
    };
    let batch = |from: u64| {
        let elements: Vec<String> = (from..from + 1_000)
            .map(|user| format!("{{\"attributes\":{{\"user\":\"u{user}\"}}}}"))
            .collect();
        let response = server.post("/v1/check/batch", &format!("[{}]", elements.join(",")));
        assert_eq!(response.status, 200, "{}", response.body);
    };
    // The second time each is denied.
    batch(0);
    batch(0);
    let few = series();
    for from in (0..subjects).step_by(1_000) {
        batch(from);
    }
    let many = series();
    println!("{many} series of 2 rules after {subjects} subjects, {few} after 1,000");
    assert_eq!(many, few);
    assert!(many <= 2 * 16, "{many}");
}
