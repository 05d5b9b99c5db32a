//! One connection, from accepting to its end.

use super::routes::Front;
use super::settings::Bounds;
use super::watch::{Heard, Pulse, Watch};
use crate::server::listen::Stream;
use crate::server::tls::Tls;
use hyper::service::service_fn;
use hyper::{Request, Version, body::Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, watch as channel};
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::server::TlsStream;

/// How far the server is on its way to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Serving.
    Running,
    /// Answering what is in flight.
    Draining,
    /// Out of time.
    Cut,
}

/// Serves one connection until its client, its time or the server ends it. `permit` is its place among all connections.
pub(super) async fn serve(
    stream: Stream,
    front: Arc<Front>,
    stage: channel::Receiver<Stage>,
    permit: OwnedSemaphorePermit,
) {
    let figures = front.gate.figures();
    figures.accepted.add(1);
    figures.connections.add(1);
    match &front.settings.tls {
        None => converse(stream, &front, stage).await,
        Some(tls) => {
            if let Some(stream) = shake_hands(stream, tls, &front.settings.bounds, stage.clone()).await {
                converse(stream, &front, stage).await;
            }
        }
    }
    figures.connections.take(1);
    drop(permit);
}

/// TLS with a client, unless it takes too long or the server stops.
async fn shake_hands(
    stream: Stream,
    tls: &Tls,
    bounds: &Bounds,
    mut stage: channel::Receiver<Stage>,
) -> Option<TlsStream<Stream>> {
    let shaken = timeout(bounds.header_timeout, tls.acceptor().accept(stream));
    tokio::select! {
        shaken = shaken => match shaken {
            Ok(Ok(stream)) => Some(stream),
            Ok(Err(error)) => {
                tracing::debug!(%error, "no TLS with a client");
                None
            }
            Err(_) => {
                tracing::debug!("a client took too long over TLS");
                None
            }
        },
        _ = stage.wait_for(|stage| *stage != Stage::Running) => None,
    }
}

async fn converse<T>(stream: T, front: &Arc<Front>, mut stage: channel::Receiver<Stage>)
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let pulse = Arc::new(Pulse::default());
    let bounds = front.settings.bounds;
    let mut watch = Watch::new(Arc::clone(&pulse), bounds, Instant::now());
    let io = TokioIo::new(Heard::new(stream, Arc::clone(&pulse)));
    // One per connection, so that requests on two of them do not count in the same place.
    let front = Arc::new(Arc::clone(front));
    let service = service_fn(move |request: Request<Incoming>| {
        let front = Arc::clone(&front);
        let beat = pulse.begin(request.version() == Version::HTTP_2);
        async move {
            let response = front.answer(request).await;
            drop(beat);
            Ok::<_, Infallible>(response)
        }
    });
    let builder = builder(&bounds);
    let mut connection = pin!(builder.serve_connection(io, service));
    let mut look = pin!(sleep(watch.every()));
    let mut seen = Stage::Running;
    loop {
        tokio::select! {
            biased;
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection ended badly");
                }
                return;
            }
            () = look.as_mut() => {
                let now = Instant::now();
                if watch.is_over(now) {
                    tracing::debug!("a client was cut off: it was too slow, or silent for too long");
                    return;
                }
                look.as_mut().reset(now + watch.every());
            }
            changed = stage.changed() => {
                let now = *stage.borrow_and_update();
                match (changed, now) {
                    (Err(_), _) | (Ok(()), Stage::Cut) => return,
                    (Ok(()), Stage::Draining) if seen == Stage::Running => connection.as_mut().graceful_shutdown(),
                    (Ok(()), _) => {}
                }
                seen = now;
            }
        }
    }
}

fn builder(bounds: &Bounds) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        // Slow heads are cut off by the watch.
        .header_read_timeout(None)
        .max_headers(bounds.headers)
        .max_buf_size(bounds.header_bytes.max(HEADER_BYTES_MIN));
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(bounds.streams)
        .max_header_list_size(u32::try_from(bounds.header_bytes).unwrap_or(u32::MAX))
        .max_pending_accept_reset_streams(Some(PENDING_RESETS));
    builder
}

/// The least that hyper takes.
const HEADER_BYTES_MIN: usize = 8 * 1024;
/// Streams that a client opened and took back before they were seen: more than that is an attack.
const PENDING_RESETS: usize = 20;
