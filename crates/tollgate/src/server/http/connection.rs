//! One connection, from accepting to its end.

mod sniff;

use self::sniff::{HttpVersion, sniff};
use super::api::HttpService;
use super::settings::HttpLimits;
use crate::server::net::accept::{ShutdownStage, Wakeup, Wakeups, idle_grace, tls_handshake};
use crate::server::net::idle::{Activity, IdleMonitor, IdleState};
use crate::server::net::listen::Stream;
use crate::server::net::sensor_io::SensorIo;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Version, body::Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::convert::Infallible;
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch as channel;
use tokio::time::{Instant, sleep, timeout};

/// Serves one connection until its client, its time or the server ends it.
pub(super) async fn serve(stream: Stream, service: Arc<HttpService>, stage: channel::Receiver<ShutdownStage>) {
    let settings = &service.settings;
    match (stream.peer(), &settings.tls) {
        (Err(error), _) => tracing::debug!(%error, "a client was gone before it was met"),
        (Ok(peer), None) => serve_connection(stream, peer, &service, stage).await,
        (Ok(peer), Some(tls)) => {
            let within = settings.limits.header_timeout;
            // Apart: what TLS needs would be kept for connections without it, too.
            let handshake = Box::pin(tls_handshake(stream, tls, within, stage.clone()));
            if let Some(stream) = handshake.await {
                Box::pin(serve_connection(stream, peer, &service, stage)).await;
            }
        }
    }
}

async fn serve_connection<T>(
    stream: T,
    peer: IpAddr,
    service: &Arc<HttpService>,
    stage: channel::Receiver<ShutdownStage>,
) where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let activity = Arc::new(Activity::default());
    let limits = service.settings.limits;
    let mut monitor = IdleMonitor::new(Arc::clone(&activity), limits, Instant::now());
    let sensor = Arc::clone(&activity);
    let mut stream = SensorIo::new(stream, move |_| sensor.record_bytes());
    let version = {
        let mut sniffing = pin!(sniff(&mut stream));
        let sniffed = match run_until_idle(sniffing.as_mut(), &mut monitor, &stage).await {
            ConnectionEnd::Finished(opened) => opened,
            ConnectionEnd::TimedOut => return,
            ConnectionEnd::Stopping => match drain_connection(sniffing, service, stage.clone()).await {
                Some(sniffed) => sniffed,
                None => return,
            },
        };
        let Ok(version) = sniffed else { return };
        version
    };
    // One per connection, so that requests on two of them do not count in the same place.
    let local_service = Arc::new(Arc::clone(service));
    let in_flight = Arc::clone(&activity);
    let handler = service_fn(move |request: Request<Incoming>| {
        let guard = activity.start_request(request.version() == Version::HTTP_2);
        let routed = local_service.route(request, peer);
        let service = Arc::clone(&local_service);
        async move { Ok::<_, Infallible>(service.respond(routed, guard).await) }
    });
    let io = TokioIo::new(stream);
    match version {
        HttpVersion::Http1 => {
            let mut connection = pin!(http1_builder(&limits).serve_connection(io, handler));
            match run_until_idle(connection.as_mut(), &mut monitor, &stage).await {
                ConnectionEnd::Finished(ended) => log_end(ended),
                ConnectionEnd::TimedOut => {}
                ConnectionEnd::Stopping => {
                    if drain_connection(connection.as_mut(), service, stage.clone())
                        .await
                        .is_none()
                    {
                        connection.as_mut().graceful_shutdown();
                        finish(connection, &in_flight, service, stage).await;
                    }
                }
            }
        }
        // Apart: what it needs would be kept for those who speak HTTP/1, too.
        HttpVersion::Http2 => {
            let mut connection = Box::pin(http2_builder(&limits).serve_connection(io, handler));
            match run_until_idle(connection.as_mut(), &mut monitor, &stage).await {
                ConnectionEnd::Finished(ended) => log_end(ended),
                ConnectionEnd::TimedOut => {}
                ConnectionEnd::Stopping => {
                    connection.as_mut().graceful_shutdown();
                    finish(connection.as_mut(), &in_flight, service, stage).await;
                }
            }
        }
    }
}

fn log_end(ended: hyper::Result<()>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended badly");
    }
}

/// How a part of a conversation ended.
enum ConnectionEnd<T> {
    Finished(T),
    /// The client has had its time.
    TimedOut,
    /// It has not, but the server stops.
    Stopping,
}

/// Polls `talk` until it ends, its client has had its time, or the server stops.
async fn run_until_idle<F: Future>(
    mut connection: Pin<&mut F>,
    monitor: &mut IdleMonitor,
    stage: &channel::Receiver<ShutdownStage>,
) -> ConnectionEnd<F::Output> {
    let mut idle_timer = pin!(sleep(monitor.check_interval()));
    let mut changing = stage.clone();
    let mut changed = pin!(changing.changed());
    let mut wakeups = Wakeups::new();
    loop {
        let wakeup = poll_fn(|cx| {
            let polled = connection.as_mut().poll(cx);
            wakeups.poll(cx, polled, idle_timer.as_mut(), changed.as_mut(), stage)
        });
        match wakeup.await {
            Wakeup::Ready(ended) => return ConnectionEnd::Finished(ended),
            Wakeup::IdleCheck => {
                let now = Instant::now();
                // What is late is polled with the connection, which is next.
                if monitor.check(now) == IdleState::Expired {
                    tracing::debug!("closing idle or slow connection");
                    return ConnectionEnd::TimedOut;
                }
                idle_timer.as_mut().reset(now + monitor.check_interval());
                wakeups.idle_check = true;
            }
            Wakeup::StageChanged => return ConnectionEnd::Stopping,
        }
    }
}

/// Goes on for a moment while the server stops, because a request may be under way already: what is answered now says that
/// the connection ends, and then it does. None if there was none.
async fn drain_connection<F: Future>(
    connection: Pin<&mut F>,
    service: &HttpService,
    mut stage: channel::Receiver<ShutdownStage>,
) -> Option<F::Output> {
    tokio::select! {
        ended = timeout(idle_grace(service.settings.drain), connection) => ended.ok(),
        _ = stage.wait_for(|stage| *stage == ShutdownStage::Aborting) => None,
    }
}

/// Lets a connection that was told to end do so, unless that takes too long. A server that stops waits for requests, and not
/// for clients that have none under way and do not answer.
async fn finish(
    mut connection: Pin<&mut impl Future>,
    activity: &Activity,
    service: &HttpService,
    mut stage: channel::Receiver<ShutdownStage>,
) {
    let ends = async {
        loop {
            let was_busy = activity.has_requests();
            let ended = timeout(idle_grace(service.settings.drain), connection.as_mut()).await;
            if ended.is_ok() || !(was_busy || activity.has_requests()) {
                return;
            }
        }
    };
    tokio::select! {
        () = ends => {}
        _ = stage.wait_for(|stage| *stage == ShutdownStage::Aborting) => {}
    }
}

fn http1_builder(limits: &HttpLimits) -> http1::Builder {
    let mut builder = http1::Builder::new();
    // Slow heads are cut off by the watch. An answer is small: it is copied behind its head and written in one piece, which
    // the system does in half a microsecond less than two.
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

/// What hyper takes if it is not told: it has the room for them ready, and otherwise makes it for every request.
const HEADERS_DEFAULT: usize = 100;
/// The least that hyper takes.
const HEADER_BYTES_MIN: usize = 8 * 1024;
/// Streams that a client opened and took back before they were seen: more than that is an attack.
const PENDING_RESETS: usize = 20;
