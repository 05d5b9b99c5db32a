//! Spans over OTLP: the requests that have one, and its fields, as a collector receives them over gRPC and HTTP.

use super::collector::{Collector, Wire};
use super::{Attribute, Resource};
use crate::test_server::TestServer;
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{SystemTime, UNIX_EPOCH};
use tollgate_test_kit::{TestFolder, eventually, grpc, one_thread_runtime};

#[derive(Clone, PartialEq, Message)]
struct Export {
    #[prost(message, repeated, tag = "1")]
    resources: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scopes: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeSpans {
    #[prost(message, repeated, tag = "2")]
    spans: Vec<Span>,
}

#[derive(Clone, PartialEq, Message)]
struct Span {
    #[prost(bytes = "vec", tag = "1")]
    trace: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    id: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    parent: Vec<u8>,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(int32, tag = "6")]
    kind: i32,
    #[prost(fixed64, tag = "7")]
    start: u64,
    #[prost(fixed64, tag = "8")]
    end: u64,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<Attribute>,
    #[prost(fixed32, tag = "16")]
    flags: u32,
}

/// A span without what differs in every run.
type Summary = (String, String, BTreeMap<String, String>);

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn summary(span: &Span) -> Summary {
    let attribute = |one: &Attribute| {
        let value = one.value.clone().unwrap_or_default();
        let text = if value.text.is_empty() {
            value.number.to_string()
        } else {
            value.text
        };
        (one.key.replace("tollgate.", ""), text)
    };
    (
        hexadecimal(&span.trace),
        hexadecimal(&span.parent),
        span.attributes.iter().map(attribute).collect(),
    )
}

fn expected(trace: &str, parent: &str, attributes: &[(&str, &str)]) -> Summary {
    let attributes = attributes
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    (trace.to_owned(), parent.to_owned(), attributes.collect())
}

/// The next spans, until there are so many.
fn spans(collector: &Collector, wire: Wire, number: usize) -> Vec<Span> {
    let mut all = Vec::new();
    while all.len() < number {
        let received = collector.next();
        let path = match wire {
            Wire::Grpc => "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
            Wire::Http => "/otlp/v1/traces?key=1",
        };
        assert_eq!(received.path, path);
        let export = Export::decode(received.message).expect("it is an export");
        for resource in export.resources {
            let names = resource.resource.expect("it has a resource").attributes;
            let names: Vec<String> = names.into_iter().map(|one| one.key).collect();
            assert_eq!(names, ["service.name", "service.version", "service.instance.id"]);
            all.extend(resource.scopes.into_iter().flat_map(|scope| scope.spans));
        }
    }
    assert_eq!(all.len(), number, "{all:?}");
    all
}

/// A server that sends only spans, with the gRPC front end.
fn start(collector: &Collector, wire: Wire, traces: &str) -> (TestFolder, TestServer) {
    let path = match wire {
        Wire::Grpc => "",
        Wire::Http => "/otlp/v1/metrics?key=1",
    };
    let folder = TestFolder::with(
        "tollgate.yaml",
        &format!(
            "rules: [{{ id: plan, per: user, limit: 2/h }}]\n\
             forward_auth: {{ gateway: caddy }}\n\
             attributes: {{ user: 'header:x-user' }}\n\
             telemetry: {{ otlp: {{ endpoint: 'http://{}{path}', metrics: false, traces: {traces} }} }}\n",
            collector.address
        ),
    );
    let server = TestServer::start(&folder, &["--set", "server.grpc=127.0.0.1:0"]);
    (folder, server)
}

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

fn traceparent(flags: &str) -> String {
    format!("00-{TRACE}-{PARENT}-{flags}")
}

fn now_nanos() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "compared with the times of spans")]
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after the epoch");
    u64::try_from(since.as_nanos()).expect("a time of this century")
}

#[test]
fn a_request_that_its_caller_sampled_has_one_span_over_every_protocol() {
    for wire in [Wire::Grpc, Wire::Http] {
        let collector = Collector::start(wire);
        let (_folder, server) = start(&collector, wire, "parents");
        let began = now_nanos();
        let header = format!("traceparent: {}\r\n", traceparent("01"));
        let user = "{\"attributes\":{\"user\":\"a-person\"}}";
        // None of these has a span.
        let unsampled = format!("traceparent: {}\r\n", traceparent("00"));
        for more in ["", "traceparent: no context\r\n", &unsampled] {
            server.post_with("/v1/check", "{\"attributes\":{\"user\":\"b\"}}", more);
            server.post_with("/v1/explain", user, &header);
        }
        for _ in 0..3 {
            server.post_with("/v1/check", user, &header);
        }
        server.post_with(
            "/v1/check/batch",
            &format!("[{{\"attributes\":{{}}}},{user},{user}]"),
            &header,
        );
        server.post_with("/v1/check", "{\"domain\":\"nowhere\",\"attributes\":{}}", &header);
        let forward = format!("{header}x-user: a-person\r\n");
        server.post_with("/v1/forward/default", "", &forward);
        let runtime = one_thread_runtime();
        let address = server.banner.lines().find_map(|line| line.strip_prefix("grpc: "));
        let address = address.expect("it serves gRPC").trim_start_matches("http://").parse();
        let mut client = grpc::Client::connect(&runtime, address.expect("an address"));
        let both = grpc::request_for(["a-person", "c"].map(|user| grpc::descriptor(&[("user", user)])));
        let called = client.try_call(
            grpc::SHOULD_RATE_LIMIT,
            &both.encode_to_vec(),
            &[("traceparent", &traceparent("03"))],
        );
        assert_eq!(called.expect("it answers").status, Some(0));
        let spans = spans(&collector, wire, 7);
        let ended = now_nanos();
        let plan = |result, protocol| {
            [
                ("domain", "default"),
                ("result", result),
                ("source", "memory"),
                ("protocol", protocol),
                ("rule", "plan"),
            ]
        };
        let of = |attributes: &[(&str, &str)]| expected(TRACE, PARENT, attributes);
        let with_attempts = |number, protocol| of(&[&plan("deny", protocol)[..], &[("attempts", number)]].concat());
        assert_eq!(
            spans.iter().map(summary).collect::<Vec<_>>(),
            [
                of(&plan("allow", "http")),
                of(&plan("allow", "http")),
                of(&plan("deny", "http")),
                with_attempts("3", "http"),
                of(&[
                    ("domain", "nowhere"),
                    ("result", "allow"),
                    ("source", "memory"),
                    ("protocol", "http")
                ]),
                of(&plan("deny", "forward")),
                with_attempts("2", "grpc"),
            ],
            "{wire:?}"
        );
        let ids: BTreeSet<&[u8]> = spans.iter().map(|span| &*span.id).collect();
        assert_eq!((ids.len(), ids.iter().all(|id| id.len() == 8)), (7, true));
        for span in &spans {
            assert_eq!((span.name.as_str(), span.kind), ("check", 2));
            assert!(
                began / 1_000_000 <= span.start / 1_000_000 && span.start <= span.end && span.end <= ended,
                "{span:?}"
            );
            // Sampled, and the parent is in another program.
            assert_eq!(span.flags & !2, 0x301);
            assert!(!format!("{span:?}").contains("person"));
        }
    }
}

#[test]
fn a_share_of_requests_without_a_context_begins_a_trace() {
    let collector = Collector::start(Wire::Grpc);
    let (_folder, server) = start(&collector, Wire::Grpc, "100%");
    let unsampled = format!("traceparent: {}\r\n", traceparent("00"));
    server.post_with("/v1/check", "{\"attributes\":{}}", &unsampled);
    for _ in 0..2 {
        server.check("{\"user\":\"u\"}");
    }
    let spans = spans(&collector, Wire::Grpc, 2);
    let traces: BTreeSet<&[u8]> = spans.iter().map(|span| &*span.trace).collect();
    assert_eq!(traces.len(), 2);
    for span in &spans {
        assert_eq!((span.trace.len(), span.parent.len(), span.flags), (16, 0, 0x103));
    }
}

#[test]
fn spans_of_a_failed_export_are_counted_and_later_ones_arrive() {
    let collector = Collector::start(Wire::Http);
    collector.refuse(true);
    let (_folder, server) = start(&collector, Wire::Http, "100%");
    let has = |line: &str| server.get("/metrics").body.contains(line);
    server.check("{\"user\":\"u\"}");
    eventually("the export is counted", || {
        has("tollgate_spans_total{result=\"failed\"} 1")
    });
    server.wait_for("exports do not reach the OpenTelemetry collector", 1);
    collector.refuse(false);
    server.check("{\"user\":\"v\"}");
    spans(&collector, Wire::Http, 1);
    eventually("the export is counted", || {
        has("tollgate_spans_total{result=\"exported\"} 1")
    });
    server.wait_for("exports reach the OpenTelemetry collector again", 1);
}
