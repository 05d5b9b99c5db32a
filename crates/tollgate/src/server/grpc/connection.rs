//! One connection, from accepting to its end.

use super::coalesced_io::coalesce;
use super::inline_executor::InlineExecutor;
use super::service::GrpcService;
use super::settings::GrpcSettings;
use crate::server::net::accept::{ShutdownStage, Wakeup, Wakeups, idle_grace, tls_handshake};
use crate::server::net::listen::Stream;
use crate::server::net::sensor_io::SensorIo;
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper::{Request, Response, body::Incoming};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::future::poll_fn;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch as channel;
use tokio::time::{Instant, sleep_until, timeout};
use tonic::Status;

/// Serves one connection until its client, its time or the server ends it.
pub(super) async fn serve(stream: Stream, service: Arc<GrpcService>, stage: channel::Receiver<ShutdownStage>) {
    match &service.settings.tls {
        None => serve_connection(stream, &service, stage).await,
        Some(tls) => {
            let within = service.settings.header_timeout;
            // Apart: what TLS needs would be kept for connections without it, too.
            let handshake = Box::pin(tls_handshake(stream, tls, within, stage.clone()));
            if let Some(stream) = handshake.await {
                Box::pin(serve_connection(stream, &service, stage)).await;
            }
        }
    }
}

async fn serve_connection<T>(stream: T, service: &Arc<GrpcService>, mut stage: channel::Receiver<ShutdownStage>)
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let settings = &service.settings;
    let calls = Arc::new(CallCounters::default());
    let call_counters = Arc::clone(&calls);
    // One per connection, so that calls on two of them do not count in the same place.
    let local_service = Arc::new(Arc::clone(service));
    let service = service_fn(move |request: Request<Incoming>| {
        let guard = CallGuard::start(&call_counters);
        let service = Arc::clone(&local_service);
        async move {
            let response = service.respond(request).await;
            guard.end(&response);
            Ok::<_, Infallible>(response)
        }
    });
    let bytes_read = Arc::new(AtomicU64::new(0));
    let sensor = Arc::clone(&bytes_read);
    let (stream, sender) = coalesce(stream);
    let stream = SensorIo::new(stream, move |bytes| {
        sensor.fetch_add(bytes as u64, Ordering::Relaxed);
    });
    let has_preface = || bytes_read.load(Ordering::Relaxed) >= PREFACE_BYTES;
    let mut connection = pin!(builder(settings).serve_connection(TokioIo::new(stream), service));
    let started_at = Instant::now();
    let oldest = started_at + jittered_age(settings.connection_age);
    let idle_until = started_at + settings.idle_timeout.min(settings.connection_age);
    // First whether it calls at all.
    let mut idle_timer = pin!(sleep_until(idle_until.min(started_at + settings.header_timeout)));
    let mut changing = stage.clone();
    let mut changed = pin!(changing.changed());
    let mut wakeups = Wakeups::new();
    let mut calls_seen = 0;
    let grace = loop {
        let wakeup = poll_fn(|cx| {
            let polled = sender.poll(connection.as_mut(), cx);
            wakeups.poll(cx, polled, idle_timer.as_mut(), changed.as_mut(), &stage)
        });
        match wakeup.await {
            Wakeup::Ready(ended) => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection ended badly");
                }
                return;
            }
            Wakeup::IdleCheck => {
                let now = Instant::now();
                let authenticated = calls.authenticated();
                if authenticated == 0 {
                    tracing::debug!("closing idle or slow connection");
                    if !has_preface() {
                        return;
                    }
                    break idle_grace(settings.drain);
                }
                if now < idle_until {
                    idle_timer.as_mut().reset(idle_until);
                    wakeups.idle_check = true;
                    continue;
                }
                if authenticated == calls_seen || now >= oldest {
                    break CLOSE_GRACE;
                }
                calls_seen = authenticated;
                idle_timer.as_mut().reset(oldest.min(now + settings.idle_timeout));
                wakeups.idle_check = true;
            }
            Wakeup::StageChanged => {
                let short_grace = idle_grace(settings.drain);
                // It may be about to speak; who has is told to go in its own words.
                let polling = poll_fn(|cx| sender.poll(connection.as_mut(), cx));
                if !has_preface() && (ends_within(short_grace, polling, &mut stage).await || !has_preface()) {
                    return;
                }
                break short_grace;
            }
        }
    };
    // GOAWAY: who is not done by then can call again elsewhere.
    connection.as_mut().graceful_shutdown();
    loop {
        let before = calls.in_flight();
        let polling = poll_fn(|cx| sender.poll(connection.as_mut(), cx));
        if ends_within(grace, polling, &mut stage).await {
            return;
        }
        // A server that stops waits for calls, and not for clients that do not answer.
        let is_stopping = *stage.borrow() != ShutdownStage::Running;
        if !is_stopping || before + calls.in_flight() == 0 {
            return;
        }
    }
}

/// Whether a connection comes to its end within a time, or the server does.
async fn ends_within(time: Duration, connection: impl Future, stage: &mut channel::Receiver<ShutdownStage>) -> bool {
    tokio::select! {
        ended = timeout(time, connection) => ended.is_ok(),
        _ = stage.wait_for(|stage| *stage == ShutdownStage::Aborting) => true,
    }
}

/// The calls of one connection.
#[derive(Debug, Default)]
struct CallCounters {
    started: AtomicU64,
    ended: AtomicU64,
    /// Those whose caller did not show a token that is known.
    unauthenticated: AtomicU64,
}

/// A call on its way.
struct CallGuard(Arc<CallCounters>);

impl CallCounters {
    /// Calls of somebody who may be here.
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
    fn start(counters: &Arc<CallCounters>) -> Self {
        counters.started.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(counters))
    }

    fn end<B>(self, response: &Response<B>) {
        let status = response.headers().get(Status::GRPC_STATUS);
        if status.is_some_and(|status| status.as_bytes() == UNAUTHENTICATED) {
            self.0.unauthenticated.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Relaxed);
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

/// An age, up to a tenth less: connections that came together do not go together.
fn jittered_age(age: Duration) -> Duration {
    let fraction = (RandomState::new().build_hasher().finish() >> 32) as u32;
    let millis = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
    let less = (u128::from(millis / 10) * u128::from(fraction)) >> 32;
    age.saturating_sub(Duration::from_millis(u64::try_from(less).unwrap_or(0)))
}

/// How HTTP/2 begins: the preface, and the head of the frame behind it.
const PREFACE_BYTES: u64 = 24 + 9;
/// Streams that a client opened and took back before they were seen: more than that is an attack.
const PENDING_RESETS: usize = 20;
/// Streams that we had to take back because of what the client sent on them: the same.
const LOCAL_RESETS: usize = 1_024;
/// A client that is gone without a word is noticed by this.
const PING_INTERVAL: Duration = Duration::from_secs(60);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// `grpc-status` of a call without a token that is known.
const UNAUTHENTICATED: &[u8] = b"16";
/// How long calls in flight may take on a connection that is too old or idle.
const CLOSE_GRACE: Duration = Duration::from_secs(30);
