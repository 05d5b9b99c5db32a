//! Serves one gRPC connection.

use super::coalesced_io::coalesce;
use super::inline_executor::InlineExecutor;
use super::service::GrpcService;
use super::settings::GrpcSettings;
use crate::server::net::accept::{ConnectionLimits, FrontEnd, Io};
use crate::server::net::idle::{IdleMonitor, IdleTimeouts, ProgressMark, WaitingFor};
use crate::server::net::sensor_io::SensorIo;
use crate::server::net::tls::Tls;
use crate::server::net::{ConnectionHandle, StageReceiver, TimeoutAction, idle_grace, serve_connection};
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper::{Request, Response, body::Incoming};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;
use tonic::Status;

impl FrontEnd for GrpcService {
    fn limits(&self) -> ConnectionLimits {
        ConnectionLimits {
            connections: self.settings.connections,
            per_address: self.settings.connections_per_address,
            handshake_timeout: self.settings.header_timeout,
            drain: self.settings.drain,
        }
    }

    fn tls(&self) -> Option<&Tls> {
        self.settings.tls.as_deref()
    }

    async fn serve(self: Arc<Self>, stream: impl Io, _: Option<IpAddr>, stage: StageReceiver) {
        let mut monitor = IdleMonitor::new(timeouts(&self.settings), Instant::now());
        let drain = self.settings.drain;
        let handle = Arc::new(GrpcHandle::new(drain));
        let (stream, sender) = coalesce(stream);
        let sensor = Arc::clone(&handle);
        let stream = SensorIo::new(stream, move |bytes| {
            sensor.bytes_read.fetch_add(bytes as u64, Ordering::Relaxed);
        });
        let builder = builder(&self.settings);
        // One per connection, so that calls on two connections do not contend for one reference count.
        let local_service = Arc::new(self);
        let calls = Arc::clone(&handle);
        let handler = service_fn(move |request: Request<Incoming>| {
            let guard = CallGuard::start(&calls);
            let service = Arc::clone(&local_service);
            async move {
                let response = service.respond(request).await;
                guard.end(&response);
                Ok::<_, Infallible>(response)
            }
        });
        let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), handler));
        let served = pin!(poll_fn(|cx| {
            if handle.is_closing.load(Ordering::Relaxed) && handle.is_closing.swap(false, Ordering::Relaxed) {
                connection.as_mut().graceful_shutdown();
            }
            sender.poll(connection.as_mut(), cx)
        }));
        if let Some(Err(error)) = serve_connection(served, &*handle, &mut monitor, drain, stage).await {
            tracing::debug!(%error, "connection error");
        }
    }
}

/// A connection as the serving loop sees it.
#[derive(Debug)]
struct GrpcHandle {
    calls: CallCounters,
    bytes_read: AtomicU64,
    is_closing: AtomicBool,
    drain: Duration,
}

impl GrpcHandle {
    fn new(drain: Duration) -> Self {
        Self {
            calls: CallCounters::default(),
            bytes_read: AtomicU64::new(0),
            is_closing: AtomicBool::new(false),
            drain,
        }
    }

    /// True if the client speaks HTTP/2, so that it understands GOAWAY.
    fn has_preface(&self) -> bool {
        self.bytes_read.load(Ordering::Relaxed) >= PREFACE_BYTES
    }
}

impl ConnectionHandle for GrpcHandle {
    /// Only calls of authenticated callers are progress.
    fn progress(&self) -> ProgressMark {
        let authenticated = self.calls.authenticated();
        ProgressMark {
            waiting_for: match authenticated {
                0 => WaitingFor::FirstRequest,
                _ => WaitingFor::NextRequest,
            },
            progress: authenticated,
        }
    }

    fn is_busy(&self) -> bool {
        self.calls.in_flight() > 0
    }

    fn lingers(&self) -> bool {
        !self.has_preface()
    }

    /// Sends GOAWAY: a client whose call is not answered by then can repeat it elsewhere.
    fn start_close(&self, grace: Duration) -> Option<Duration> {
        self.is_closing.store(true, Ordering::Relaxed);
        self.has_preface().then_some(grace)
    }

    fn on_timeout(&self, waiting_for: WaitingFor) -> TimeoutAction {
        match waiting_for {
            WaitingFor::FirstRequest if self.has_preface() => TimeoutAction::Close(idle_grace(self.drain)),
            WaitingFor::FirstRequest => TimeoutAction::Abort,
            _ => TimeoutAction::Close(CLOSE_GRACE),
        }
    }
}

fn timeouts(settings: &GrpcSettings) -> IdleTimeouts {
    let idle = settings.idle_timeout.min(settings.connection_age);
    IdleTimeouts {
        first_request: settings.header_timeout.min(idle),
        idle,
        age: jittered_age(settings.connection_age),
        ..IdleTimeouts::NONE
    }
}

/// The calls of one connection.
#[derive(Debug, Default)]
struct CallCounters {
    started: AtomicU64,
    ended: AtomicU64,
    /// Calls without a known token.
    unauthenticated: AtomicU64,
}

/// A call in flight.
struct CallGuard(Arc<GrpcHandle>);

impl CallCounters {
    /// Calls of callers that may be here.
    fn authenticated(&self) -> u64 {
        let unauthenticated = self.unauthenticated.load(Ordering::Relaxed);
        self.started.load(Ordering::Relaxed).saturating_sub(unauthenticated)
    }

    fn in_flight(&self) -> u64 {
        let ended = self.ended.load(Ordering::Relaxed);
        self.started.load(Ordering::Relaxed).saturating_sub(ended)
    }
}

impl CallGuard {
    fn start(handle: &Arc<GrpcHandle>) -> Self {
        handle.calls.started.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(handle))
    }

    fn end<B>(self, response: &Response<B>) {
        let status = response.headers().get(Status::GRPC_STATUS);
        if status.is_some_and(|status| status.as_bytes() == UNAUTHENTICATED) {
            self.0.calls.unauthenticated.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        self.0.calls.ended.fetch_add(1, Ordering::Relaxed);
    }
}

fn builder(settings: &GrpcSettings) -> Builder<InlineExecutor> {
    let mut builder = Builder::new(InlineExecutor);
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(settings.streams)
        .max_header_list_size(u32::try_from(settings.header_bytes).unwrap_or(u32::MAX))
        .max_pending_accept_reset_streams(PENDING_RESETS)
        .max_local_error_reset_streams(LOCAL_RESETS)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT);
    builder
}

/// An age less up to a tenth: connections that were opened at once do not reconnect at once.
fn jittered_age(age: Duration) -> Duration {
    let fraction = fastrand::u32(..);
    let millis = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
    let less = (u128::from(millis / 10) * u128::from(fraction)) >> 32;
    age.saturating_sub(Duration::from_millis(u64::try_from(less).unwrap_or(0)))
}

/// The start of HTTP/2: the preface, and the head of the frame behind it.
const PREFACE_BYTES: u64 = 24 + 9;
/// Streams that a client opened and reset before they were accepted; more than that is an attack (rapid reset).
const PENDING_RESETS: usize = 20;
/// Streams that we had to reset because of what the client sent on them; the same.
const LOCAL_RESETS: usize = 1_024;
/// Keepalive: detects a client that is gone without closing its connection.
const PING_INTERVAL: Duration = Duration::from_secs(60);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// `grpc-status` of a call without a known token.
const UNAUTHENTICATED: &[u8] = b"16";
/// The time calls in flight may take on a connection that is too old or idle.
const CLOSE_GRACE: Duration = Duration::from_secs(30);
