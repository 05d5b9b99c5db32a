//! OpenTelemetry: sends the metrics of this server to a collector over OTLP, at an interval and cumulative.
//!
//! No SDK: it has no histogram that is read when it is sent, and the metrics are counted already. The endpoint without a path is called
//! over gRPC, one with a path by HTTP with the same protobuf messages.

mod convert;
mod messages;

use self::convert::{PointTimes, convert};
use self::messages::{ExportRequest, KeyValue, Resource, ResourceMetrics, Scope, ScopeMetrics};
use crate::server::gate::Gate;
use crate::server::net::http_client::{HttpUrl, exchange, exchange_http2, read_native_roots, tls_connector};
use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HOST, HeaderMap, TE, USER_AGENT};
use hyper::{Method, Request};
use prost::Message;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tollgate_limiter::clock::Clock;

/// The settings of the exporter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtlpSettings {
    /// The collector.
    pub endpoint: OtlpEndpoint,
    /// The time between two exports.
    pub interval: Duration,
}

/// The URL of a collector. It may contain a secret, so it is in no log.
#[derive(Clone, PartialEq, Eq)]
pub struct OtlpEndpoint(HttpUrl);

/// Sends metrics without end.
#[derive(Debug)]
pub struct OtlpExporter {
    gate: Arc<Gate>,
    settings: OtlpSettings,
    /// Identifies this process to the collector.
    instance: String,
    start: u64,
}

/// The longest time of one export. The next one has all its counts again.
const TIMEOUT: Duration = Duration::from_secs(5);
const RESPONSE_BYTES_MAX: usize = 64 << 10;
/// The method of the collector.
const METHOD_PATH: &str = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export";

impl OtlpEndpoint {
    /// Parses a URL.
    ///
    /// # Errors
    /// The reason why it cannot be called.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        HttpUrl::parse(text).map(Self)
    }

    /// True if it is called over gRPC.
    fn is_grpc(&self) -> bool {
        self.0.target == "/"
    }
}

impl fmt::Debug for OtlpEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OtlpEndpoint(..)")
    }
}

impl OtlpExporter {
    /// An exporter of the metrics of a server.
    pub fn new(gate: Arc<Gate>, settings: OtlpSettings, instance: &str) -> Self {
        Self {
            gate,
            settings,
            instance: instance.to_owned(),
            start: now_nanos(),
        }
    }

    /// Sends metrics without end.
    pub async fn run(&self) {
        let mut is_failing = false;
        loop {
            sleep(self.settings.interval).await;
            let sent = timeout(TIMEOUT, self.export()).await;
            let sent = sent.unwrap_or_else(|_| Err(format!("no response within {} s", TIMEOUT.as_secs())));
            let was_failing = std::mem::replace(&mut is_failing, sent.is_err());
            match sent {
                Ok(()) if was_failing => tracing::info!("metrics reach the OpenTelemetry collector again"),
                Err(error) if !was_failing => {
                    tracing::warn!(
                        error,
                        "metrics do not reach the OpenTelemetry collector; trying again at each interval"
                    );
                }
                _ => {}
            }
        }
    }

    /// Sends the metrics once.
    async fn export(&self) -> Result<(), String> {
        let message = self.message();
        let url = &self.settings.endpoint.0;
        let stream = TcpStream::connect(url.endpoint()).await;
        let stream = stream.map_err(|error| format!("cannot connect: {error}"))?;
        let is_grpc = self.settings.endpoint.is_grpc();
        match &url.tls_name {
            None => send(url, is_grpc, stream, &message).await,
            Some(name) => {
                let protocols: &[&[u8]] = if is_grpc { &[b"h2"] } else { &[] };
                let connector =
                    tls_connector(read_native_roots().await, protocols).map_err(|error| error.to_string())?;
                let stream = connector.connect(name.clone(), stream).await;
                let stream = stream.map_err(|error| format!("TLS handshake failed: {error}"))?;
                send(url, is_grpc, stream, &message).await
            }
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
        let version = env!("CARGO_PKG_VERSION");
        let attributes = vec![
            KeyValue::new("service.name", "tollgate"),
            KeyValue::new("service.version", version),
            KeyValue::new("service.instance.id", &self.instance),
        ];
        ExportRequest {
            resource_metrics: vec![ResourceMetrics {
                resource: Some(Resource { attributes }),
                scope_metrics: vec![ScopeMetrics {
                    scope: Some(Scope {
                        name: "tollgate".to_owned(),
                        version: version.to_owned(),
                    }),
                    metrics,
                }],
            }],
        }
    }
}

async fn send<S>(url: &HttpUrl, is_grpc: bool, stream: S, message: &ExportRequest) -> Result<(), String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let invalid = |_| "its URL cannot be requested".to_owned();
    let interrupted = |error| format!("the connection was lost: {error}");
    let request = Request::builder().method(Method::POST).header(USER_AGENT, "tollgate");
    if !is_grpc {
        let request = request
            .uri(&url.target)
            .header(HOST, &url.authority)
            .header(CONTENT_TYPE, "application/x-protobuf")
            .body(Full::new(Bytes::from(message.encode_to_vec())))
            .map_err(invalid)?;
        let response = exchange(stream, request, RESPONSE_BYTES_MAX)
            .await
            .map_err(interrupted)?;
        return match response.status() {
            status if status.is_success() => Ok(()),
            status => Err(format!("status {status}")),
        };
    }
    let scheme = if url.tls_name.is_some() { "https" } else { "http" };
    let request = request
        .uri(format!("{scheme}://{}{METHOD_PATH}", url.authority))
        .header(CONTENT_TYPE, "application/grpc")
        .header(TE, "trailers")
        .body(Full::new(frame(message)))
        .map_err(invalid)?;
    let exchanged = exchange_http2(stream, request, RESPONSE_BYTES_MAX).await;
    let (response, trailers) = exchanged.map_err(interrupted)?;
    if !response.status().is_success() {
        return Err(format!("status {}", response.status()));
    }
    // A response without a message has its status among the headers.
    match grpc_status(&trailers).or_else(|| grpc_status(response.headers())) {
        Some("0") => Ok(()),
        Some(status) => Err(format!("gRPC status {status}")),
        None => Err("the response has no gRPC status".to_owned()),
    }
}

/// A message of gRPC: not compressed, with its length.
fn frame(message: &ExportRequest) -> Bytes {
    let length = message.encoded_len();
    let mut frame = BytesMut::with_capacity(length + 5);
    frame.put_u8(0);
    frame.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    frame.put_slice(&message.encode_to_vec());
    frame.freeze()
}

fn grpc_status(headers: &HeaderMap) -> Option<&str> {
    headers.get("grpc-status")?.to_str().ok()
}

fn now_nanos() -> u64 {
    Clock::wall().now().as_micros().saturating_mul(1_000)
}
