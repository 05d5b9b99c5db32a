//! One connection, from accepting to its end.

use super::routes::Front;
use super::settings::Bounds;
use super::watch::{Heard, Look, Pulse, Watch};
use crate::server::accept::{Awaited, Stage, Turn, shake_hands};
use crate::server::listen::Stream;
use hyper::service::service_fn;
use hyper::{Request, Version, body::Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use std::convert::Infallible;
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch as channel;
use tokio::time::{Instant, sleep};

/// Serves one connection until its client, its time or the server ends it.
pub(super) async fn serve(stream: Stream, front: Arc<Front>, stage: channel::Receiver<Stage>) {
    let settings = &front.settings;
    match (stream.peer(), &settings.tls) {
        (Err(error), _) => tracing::debug!(%error, "a client was gone before it was met"),
        (Ok(peer), None) => converse(stream, peer, &front, stage).await,
        (Ok(peer), Some(tls)) => {
            let within = settings.bounds.header_timeout;
            // Apart: what TLS needs would be kept for connections without it, too.
            let shaken = Box::pin(shake_hands(stream, tls, within, stage.clone()));
            if let Some(stream) = shaken.await {
                Box::pin(converse(stream, peer, &front, stage)).await;
            }
        }
    }
}

async fn converse<T>(stream: T, peer: IpAddr, front: &Arc<Front>, mut stage: channel::Receiver<Stage>)
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
        let beat = pulse.begin(request.version() == Version::HTTP_2);
        let asked = front.sort(request, peer);
        let front = Arc::clone(&front);
        async move { Ok::<_, Infallible>(front.answer(asked, beat).await) }
    });
    let builder = builder(&bounds);
    let mut connection = pin!(builder.serve_connection(io, service));
    let mut look = pin!(sleep(watch.every()));
    let mut changing = stage.clone();
    let mut changed = pin!(changing.changed());
    let mut awaited = Awaited::new();
    loop {
        let turn = poll_fn(|cx| {
            let talk = connection.as_mut().poll(cx);
            awaited.poll(cx, talk, look.as_mut(), changed.as_mut(), &stage)
        });
        match turn.await {
            Turn::Came(ended) => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection ended badly");
                }
                return;
            }
            Turn::Look => {
                let now = Instant::now();
                // What is late is polled with the connection, which is next.
                if watch.look(now) == Look::Over {
                    tracing::debug!("a client was cut off: it was too slow, or silent for too long");
                    return;
                }
                look.as_mut().reset(now + watch.every());
                awaited.look = true;
            }
            Turn::Stage => break,
        }
    }
    connection.as_mut().graceful_shutdown();
    tokio::select! {
        _ = connection => {}
        _ = stage.wait_for(|stage| *stage == Stage::Cut) => {}
    }
}

fn builder(bounds: &Bounds) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    let mut http1 = builder.http1();
    // Slow heads are cut off by the watch. An answer is small: it is copied behind its head and written in one piece, which
    // the system does in half a microsecond less than two.
    http1
        .header_read_timeout(None)
        .writev(false)
        .max_buf_size(bounds.header_bytes.max(HEADER_BYTES_MIN));
    if bounds.headers != HEADERS {
        http1.max_headers(bounds.headers);
    }
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(bounds.streams)
        .max_header_list_size(u32::try_from(bounds.header_bytes).unwrap_or(u32::MAX))
        .max_pending_accept_reset_streams(Some(PENDING_RESETS));
    builder
}

/// What hyper takes if it is not told: it has the room for them ready, and otherwise makes it for every request.
const HEADERS: usize = 100;
/// The least that hyper takes.
const HEADER_BYTES_MIN: usize = 8 * 1024;
/// Streams that a client opened and took back before they were seen: more than that is an attack.
const PENDING_RESETS: usize = 20;
