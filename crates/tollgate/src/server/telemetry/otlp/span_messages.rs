//! The messages of OTLP that carry spans, with the fields that are used. Their numbers are those of opentelemetry-proto 1.x.

use super::messages::{KeyValue, Resource, Scope};
use prost::Message;

/// A request of `opentelemetry.proto.collector.trace.v1.TraceService/Export`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SpanExportRequest {
    #[prost(message, repeated, tag = "1")]
    pub(super) resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    pub(super) resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub(super) scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    pub(super) scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    pub(super) spans: Vec<Span>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Span {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) span_id: Vec<u8>,
    /// Empty for the first span of a trace.
    #[prost(bytes = "vec", tag = "4")]
    pub(super) parent_span_id: Vec<u8>,
    /// The flags of W3C, with [`HAS_ORIGIN`] and [`IS_REMOTE`].
    #[prost(fixed32, tag = "16")]
    pub(super) flags: u32,
    #[prost(string, tag = "5")]
    pub(super) name: String,
    /// [`SERVER`].
    #[prost(int32, tag = "6")]
    pub(super) kind: i32,
    #[prost(fixed64, tag = "7")]
    pub(super) start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    pub(super) end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    pub(super) attributes: Vec<KeyValue>,
}

/// The span handles a request of another program.
pub(super) const SERVER: i32 = 2;
/// The flags say whether the parent is in another program.
pub(super) const HAS_ORIGIN: u32 = 0x100;
/// The parent is in another program.
pub(super) const IS_REMOTE: u32 = 0x200;
