//! One export: a message to a collector, over gRPC or HTTP.

use crate::server::net::http_client::{HttpUrl, exchange, exchange_http2, read_native_roots, tls_connector};
use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HOST, HeaderMap, TE, USER_AGENT};
use hyper::{Method, Request};
use prost::Message;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The URL of a collector. It may contain a secret, so it is in no log.
#[derive(Clone, PartialEq, Eq)]
pub struct OtlpEndpoint(HttpUrl);

/// A kind of message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    Metrics,
    Traces,
}

/// Sends messages of one signal to a collector.
pub(super) struct OtlpClient {
    url: HttpUrl,
    is_grpc: bool,
    signal: Signal,
    /// True after an export that failed, so that the log says it once.
    is_failing: AtomicBool,
}

/// The longest time of one export.
const TIMEOUT: Duration = Duration::from_secs(5);
const RESPONSE_BYTES_MAX: usize = 64 << 10;

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

    /// True if the address for spans follows from it.
    pub fn takes_traces(&self) -> bool {
        self.is_grpc() || self.base().is_some()
    }

    /// The path before that of a signal, and the query.
    fn base(&self) -> Option<(&str, &str)> {
        let target = &self.0.target;
        let (path, query) = target.split_at(target.find('?').unwrap_or(target.len()));
        let signals = [Signal::Metrics, Signal::Traces];
        let base = signals.iter().find_map(|signal| path.strip_suffix(signal.path()))?;
        Some((base, query))
    }

    /// The path and query for a signal.
    fn target(&self, signal: Signal) -> String {
        match self.base() {
            Some((base, query)) => format!("{base}{}{query}", signal.path()),
            None => self.0.target.clone(),
        }
    }
}

impl fmt::Debug for OtlpEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OtlpEndpoint(..)")
    }
}

impl Signal {
    /// The end of the path over HTTP.
    const fn path(self) -> &'static str {
        match self {
            Self::Metrics => "/v1/metrics",
            Self::Traces => "/v1/traces",
        }
    }

    /// The method over gRPC.
    const fn method(self) -> &'static str {
        match self {
            Self::Metrics => "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
            Self::Traces => "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Metrics => "metrics",
            Self::Traces => "traces",
        }
    }
}

impl OtlpClient {
    pub(super) fn new(endpoint: &OtlpEndpoint, signal: Signal) -> Self {
        let url = HttpUrl {
            target: endpoint.target(signal),
            ..endpoint.0.clone()
        };
        Self {
            url,
            is_grpc: endpoint.is_grpc(),
            signal,
            is_failing: AtomicBool::new(false),
        }
    }

    /// Sends a message once. The log says when exports begin to fail, and when they arrive again.
    ///
    /// # Errors
    /// The reason is in the log.
    pub(super) async fn send(&self, message: &impl Message) -> Result<(), ()> {
        let sent = timeout(TIMEOUT, self.export(message)).await;
        let sent = sent.unwrap_or_else(|_| Err(format!("no response within {} s", TIMEOUT.as_secs())));
        let was_failing = self.is_failing.swap(sent.is_err(), Ordering::Relaxed);
        let signal = self.signal.name();
        match &sent {
            Ok(()) if was_failing => tracing::info!(signal, "exports reach the OpenTelemetry collector again"),
            Err(error) if !was_failing => {
                tracing::warn!(
                    signal,
                    error,
                    "exports do not reach the OpenTelemetry collector; trying again with each"
                );
            }
            _ => {}
        }
        sent.map_err(|_| ())
    }

    async fn export(&self, message: &impl Message) -> Result<(), String> {
        let stream = TcpStream::connect(self.url.endpoint()).await;
        let stream = stream.map_err(|error| format!("cannot connect: {error}"))?;
        match &self.url.tls_name {
            None => self.send_over(stream, message).await,
            Some(name) => {
                let protocols: &[&[u8]] = if self.is_grpc { &[b"h2"] } else { &[] };
                let connector =
                    tls_connector(read_native_roots().await, protocols).map_err(|error| error.to_string())?;
                let stream = connector.connect(name.clone(), stream).await;
                let stream = stream.map_err(|error| format!("TLS handshake failed: {error}"))?;
                self.send_over(stream, message).await
            }
        }
    }

    async fn send_over<S>(&self, stream: S, message: &impl Message) -> Result<(), String>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let url = &self.url;
        let invalid = |_| "its URL cannot be requested".to_owned();
        let interrupted = |error| format!("the connection was lost: {error}");
        let request = Request::builder().method(Method::POST).header(USER_AGENT, "tollgate");
        if !self.is_grpc {
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
            .uri(format!("{scheme}://{}{}", url.authority, self.signal.method()))
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
}

impl fmt::Debug for OtlpClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OtlpClient")
            .field("signal", &self.signal)
            .finish_non_exhaustive()
    }
}

/// A message of gRPC: not compressed, with its length.
fn frame(message: &impl Message) -> Bytes {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_signal_has_its_path() {
        for (url, metrics, traces) in [
            ("http://h:4317", "/", Some("/")),
            ("http://h/v1/metrics", "/v1/metrics", Some("/v1/traces")),
            (
                "http://h/a/v1/metrics?key=1",
                "/a/v1/metrics?key=1",
                Some("/a/v1/traces?key=1"),
            ),
            ("http://h/v1/traces", "/v1/metrics", Some("/v1/traces")),
            ("http://h/otlp", "/otlp", None),
            ("http://h/otlp?to=/v1/metrics", "/otlp?to=/v1/metrics", None),
        ] {
            let endpoint = OtlpEndpoint::parse(url).unwrap();
            assert_eq!(endpoint.target(Signal::Metrics), metrics, "{url}");
            assert_eq!(endpoint.takes_traces(), traces.is_some(), "{url}");
            if let Some(traces) = traces {
                assert_eq!(endpoint.target(Signal::Traces), traces, "{url}");
            }
        }
    }
}
