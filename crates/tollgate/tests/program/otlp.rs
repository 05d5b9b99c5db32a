//! Metrics over OTLP, as a collector receives them over gRPC and HTTP.

use crate::test_server::TestServer;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::{Message, Oneof};
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::time::Duration;
use tollgate_test_kit::{TestFolder, one_thread_runtime};

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
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<Attribute>,
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
struct Attribute {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AttributeValue>,
}

#[derive(Clone, PartialEq, Message)]
struct AttributeValue {
    #[prost(string, tag = "1")]
    text: String,
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
    !line.starts_with('#') && !line.contains("connections") && !line.contains("_sum")
}

/// Receives exports until one has these decisions.
fn receive(protocol: &'static str, endpoint_path: &str) -> (Export, BTreeSet<String>) {
    let runtime = one_thread_runtime();
    let listener = runtime.block_on(async {
        tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port is free")
    });
    let address = listener.local_addr().expect("it is bound");
    let folder = TestFolder::with(
        "tollgate.yaml",
        &format!(
            "rules: [{{ id: plan, per: user, limit: 5/h }}]\n\
             telemetry: {{ otlp: {{ endpoint: 'http://{address}{endpoint_path}', interval: 1s }} }}\n"
        ),
    );
    let server = TestServer::start(&folder, &[]);
    for _ in 0..7 {
        server.check("{\"user\":\"u\"}");
    }
    runtime.block_on(async {
        let receive = async {
            loop {
                let (stream, _) = listener.accept().await.expect("it listens");
                let (sender, mut exports) = tokio::sync::mpsc::unbounded_channel();
                let service = service_fn(move |request: Request<Incoming>| {
                    let sender = sender.clone();
                    async move {
                        let _ = sender.send(read(protocol, request).await);
                        Ok::<_, Infallible>(response(protocol))
                    }
                });
                let io = TokioIo::new(stream);
                let served = match protocol {
                    "grpc" => {
                        hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                            .serve_connection(io, service)
                            .await
                    }
                    _ => {
                        hyper::server::conn::http1::Builder::new()
                            .serve_connection(io, service)
                            .await
                    }
                };
                served.expect("the exporter speaks the protocol");
                let export = exports.recv().await.expect("an export came");
                let denied =
                    "tollgate_decisions_total{rule=\"plan\",result=\"deny\",source=\"memory\",protocol=\"http\"} 2";
                if samples(&export).contains(denied) {
                    let metrics = server.get("/metrics").body;
                    return (
                        export,
                        metrics
                            .lines()
                            .filter(|line| is_stable(line))
                            .map(str::to_owned)
                            .collect(),
                    );
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(30), receive)
            .await
            .expect("exports come")
    })
}

async fn read(protocol: &str, request: Request<Incoming>) -> Export {
    let path = request.uri().path().to_owned();
    let content_type = request.headers().get(CONTENT_TYPE).cloned();
    let body = request.into_body().collect().await.expect("the body comes").to_bytes();
    let message = match protocol {
        "grpc" => {
            assert_eq!(path, "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export");
            assert_eq!(content_type.expect("it has a type"), "application/grpc");
            let length = body
                .get(1..5)
                .and_then(|bytes| bytes.try_into().ok())
                .map(u32::from_be_bytes);
            assert_eq!((body.first(), length), (Some(&0), u32::try_from(body.len() - 5).ok()));
            body.slice(5..)
        }
        _ => {
            assert_eq!(path, "/v1/metrics");
            assert_eq!(content_type.expect("it has a type"), "application/x-protobuf");
            body
        }
    };
    Export::decode(message).expect("it is an export")
}

type Body = http_body_util::combinators::BoxBody<Bytes, Infallible>;

fn response(protocol: &str) -> Response<Body> {
    if protocol != "grpc" {
        return Response::new(Full::new(Bytes::new()).boxed());
    }
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().expect("a header value"));
    let frames = [
        Ok(Frame::data(Bytes::from_static(&[0; 5]))),
        Ok(Frame::trailers(trailers)),
    ];
    let body = StreamBody::new(futures_util::stream::iter(frames));
    let mut response = Response::new(BodyExt::boxed(body));
    response
        .headers_mut()
        .insert(CONTENT_TYPE, "application/grpc".parse().expect("a header value"));
    response
}

#[test]
fn exports_have_the_samples_of_the_metrics_page() {
    for (protocol, path) in [("grpc", ""), ("http", "/v1/metrics")] {
        let (export, metrics) = receive(protocol, path);
        let exported: BTreeSet<String> = samples(&export).into_iter().filter(|line| is_stable(line)).collect();
        // Families without a sample are left out of an export.
        let missing: Vec<&String> = metrics.difference(&exported).collect();
        let other: Vec<&String> = exported.difference(&metrics).collect();
        assert!(
            missing.is_empty() && other.is_empty(),
            "{protocol}: {missing:?} {other:?}"
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
