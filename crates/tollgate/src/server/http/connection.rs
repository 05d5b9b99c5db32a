//! Serves one HTTP connection: sniffs the protocol version, then hands the stream to hyper.

mod sniff;

use self::sniff::{HttpVersion, sniff};
use super::api::HttpService;
use super::settings::{HttpLimits, HttpSettings};
use crate::server::net::accept::{ConnectionLimits, FrontEnd, Io};
use crate::server::net::idle::{Activity, IdleMonitor, IdleTimeouts, ProgressMark, RequestGuard, WaitingFor};
use crate::server::net::prefixed_io::PrefixedIo;
use crate::server::net::sensor_io::SensorIo;
use crate::server::net::tls::Tls;
use crate::server::net::{ConnectionHandle, StageReceiver, TimeoutAction, serve_connection};
use hyper::body::{Body, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response, Version};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::convert::Infallible;
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::Instant;

impl FrontEnd for HttpService {
    fn limits(&self) -> ConnectionLimits {
        let HttpSettings { limits, drain, .. } = &self.settings;
        ConnectionLimits {
            connections: limits.connections,
            per_address: limits.connections_per_address,
            handshake_timeout: limits.header_timeout,
            drain: *drain,
        }
    }

    fn tls(&self) -> Option<&Tls> {
        self.settings.tls.as_deref()
    }

    async fn serve(self: Arc<Self>, stream: impl Io, peer: Option<IpAddr>, stage: StageReceiver) {
        let Some(peer) = peer else {
            tracing::debug!("a client disconnected before its address was known");
            return;
        };
        let HttpSettings { limits, drain, .. } = self.settings;
        // One per connection, so that requests on two connections do not contend for one reference count.
        let local_service = Arc::new(self);
        serve_http(stream, &limits, drain, stage, move |request, guard| {
            let routed = local_service.route(request, peer);
            Self::respond_guarded(Arc::clone(&local_service), routed, guard)
        })
        .await;
    }
}

/// Serves one connection until it ends: sniffs the version, and calls `respond` for every request. Its future is hyper's: one
/// around it would be moved on every request.
pub(in crate::server) async fn serve_http<F, B>(
    stream: impl Io,
    limits: &HttpLimits,
    drain: Duration,
    stage: StageReceiver,
    respond: impl Fn(Request<Incoming>, RequestGuard) -> F,
) where
    F: Future<Output = Result<Response<B>, Infallible>> + Send + 'static,
    B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
{
    let mut monitor = IdleMonitor::new(timeouts(limits), Instant::now());
    let activity = Arc::new(Activity::default());
    let sensor = Arc::clone(&activity);
    let mut stream = PrefixedIo::new(SensorIo::new(stream, move |_| sensor.record_bytes()));
    let handle = HttpHandle::new(Arc::clone(&activity), None);
    let sniffed = {
        let sniffing = pin!(sniff(&mut stream));
        serve_connection(sniffing, &handle, &mut monitor, drain, stage.clone()).await
    };
    let Some(Ok(version)) = sniffed else { return };
    let handle = HttpHandle::new(Arc::clone(&activity), Some(version));
    let handler = service_fn(move |request: Request<Incoming>| {
        let guard = activity.start_request(request.version() == Version::HTTP_2);
        respond(request, guard)
    });
    let io = TokioIo::new(stream);
    match version {
        HttpVersion::Http1 => {
            let mut connection = pin!(http1_builder(limits).serve_connection(io, handler));
            let served = pin!(handle.serve(connection.as_mut(), |connection| connection.graceful_shutdown()));
            serve_connection(served, &handle, &mut monitor, drain, stage).await;
        }
        // In a box: otherwise HTTP/1 connections would reserve the memory that HTTP/2 needs.
        HttpVersion::Http2 => {
            let mut connection = Box::pin(http2_builder(limits).serve_connection(io, handler));
            let served = pin!(handle.serve(connection.as_mut(), |connection| connection.graceful_shutdown()));
            serve_connection(served, &handle, &mut monitor, drain, stage).await;
        }
    }
}

/// A connection as the serving loop sees it.
struct HttpHandle {
    activity: Arc<Activity>,
    /// None while the version is not known.
    version: Option<HttpVersion>,
    is_closing: AtomicBool,
}

impl HttpHandle {
    fn new(activity: Arc<Activity>, version: Option<HttpVersion>) -> Self {
        Self {
            activity,
            version,
            is_closing: AtomicBool::new(false),
        }
    }

    /// Polls hyper's connection to its end, and shuts it down gracefully when [`ConnectionHandle::start_close`] asks.
    async fn serve<C>(&self, mut connection: Pin<&mut C>, shut_down: impl Fn(Pin<&mut C>))
    where
        C: Future<Output = hyper::Result<()>>,
    {
        let ended = poll_fn(|cx| {
            if self.is_closing.load(Ordering::Relaxed) && self.is_closing.swap(false, Ordering::Relaxed) {
                shut_down(connection.as_mut());
            }
            connection.as_mut().poll(cx)
        });
        if let Err(error) = ended.await {
            tracing::debug!(%error, "connection error");
        }
    }
}

impl ConnectionHandle for HttpHandle {
    fn progress(&self) -> ProgressMark {
        self.activity.progress()
    }

    fn is_busy(&self) -> bool {
        self.activity.has_requests()
    }

    /// A response of HTTP/1 says `Connection: close` while the server stops, so a request on its way ends its connection.
    /// HTTP/2 has GOAWAY for that.
    fn lingers(&self) -> bool {
        self.version != Some(HttpVersion::Http2)
    }

    fn start_close(&self, grace: Duration) -> Option<Duration> {
        self.is_closing.store(true, Ordering::Relaxed);
        self.version.map(|_| grace)
    }

    fn on_timeout(&self, waiting_for: WaitingFor) -> TimeoutAction {
        if waiting_for == WaitingFor::Body {
            self.activity.time_out_body();
            return TimeoutAction::Continue;
        }
        TimeoutAction::Abort
    }
}

fn timeouts(limits: &HttpLimits) -> IdleTimeouts {
    IdleTimeouts {
        first_request: limits.header_timeout,
        request: limits.header_timeout,
        body: limits.body_timeout,
        idle: limits.idle_timeout,
        ..IdleTimeouts::NONE
    }
}

fn http1_builder(limits: &HttpLimits) -> http1::Builder {
    let mut builder = http1::Builder::new();
    // The idle monitor times slow heads. A response is small: copied behind its head and written in one piece it takes the
    // system half a microsecond less than a vectored write.
    builder
        .header_read_timeout(None)
        .writev(false)
        .max_buf_size(limits.header_bytes.max(HEADER_BYTES_MIN));
    if limits.headers != HEADERS_DEFAULT {
        builder.max_headers(limits.headers);
    }
    builder
}

fn http2_builder(limits: &HttpLimits) -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams)
        .max_header_list_size(u32::try_from(limits.header_bytes).unwrap_or(u32::MAX))
        .max_pending_accept_reset_streams(Some(PENDING_RESETS));
    builder
}

/// Hyper's own limit, for which it keeps an array on the stack; for any other it allocates one per request.
const HEADERS_DEFAULT: usize = 100;
/// The least that hyper accepts.
const HEADER_BYTES_MIN: usize = 8 * 1024;
/// Streams that a client opened and reset before they were accepted; more than that is an attack (rapid reset).
const PENDING_RESETS: usize = 20;
