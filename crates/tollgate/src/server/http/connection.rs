//! One connection, from accepting to its end.

use super::opening::{Spoken, open};
use super::routes::Front;
use super::settings::Bounds;
use super::watch::{Look, Pulse, Watch};
use crate::server::accept::{Awaited, Stage, Turn, parting, shake_hands};
use crate::server::heard::Heard;
use crate::server::listen::Stream;
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

async fn converse<T>(stream: T, peer: IpAddr, front: &Arc<Front>, stage: channel::Receiver<Stage>)
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let pulse = Arc::new(Pulse::default());
    let bounds = front.settings.bounds;
    let mut watch = Watch::new(Arc::clone(&pulse), bounds, Instant::now());
    let hearing = Arc::clone(&pulse);
    let mut heard = Heard::new(stream, move |_| hearing.hear());
    let spoken = {
        let mut opening = pin!(open(&mut heard));
        let opened = match watched(opening.as_mut(), &mut watch, &stage).await {
            Ended::Itself(opened) => opened,
            Ended::Over => return,
            Ended::Stopping => match part(opening, front, stage.clone()).await {
                Some(opened) => opened,
                None => return,
            },
        };
        let Ok(spoken) = opened else { return };
        spoken
    };
    // One per connection, so that requests on two of them do not count in the same place.
    let own = Arc::new(Arc::clone(front));
    let beating = Arc::clone(&pulse);
    let service = service_fn(move |request: Request<Incoming>| {
        let beat = pulse.begin(request.version() == Version::HTTP_2);
        let asked = own.sort(request, peer);
        let front = Arc::clone(&own);
        async move { Ok::<_, Infallible>(front.answer(asked, beat).await) }
    });
    let io = TokioIo::new(heard);
    match spoken {
        Spoken::Http1 => {
            let mut connection = pin!(http1_builder(&bounds).serve_connection(io, service));
            match watched(connection.as_mut(), &mut watch, &stage).await {
                Ended::Itself(ended) => note(ended),
                Ended::Over => {}
                Ended::Stopping => {
                    if part(connection.as_mut(), front, stage.clone()).await.is_none() {
                        connection.as_mut().graceful_shutdown();
                        finish(connection, &beating, front, stage).await;
                    }
                }
            }
        }
        // Apart: what it needs would be kept for those who speak HTTP/1, too.
        Spoken::Http2 => {
            let mut connection = Box::pin(http2_builder(&bounds).serve_connection(io, service));
            match watched(connection.as_mut(), &mut watch, &stage).await {
                Ended::Itself(ended) => note(ended),
                Ended::Over => {}
                Ended::Stopping => {
                    connection.as_mut().graceful_shutdown();
                    finish(connection.as_mut(), &beating, front, stage).await;
                }
            }
        }
    }
}

fn note(ended: hyper::Result<()>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended badly");
    }
}

/// How a part of a conversation ended.
enum Ended<T> {
    Itself(T),
    /// The client has had its time.
    Over,
    /// It has not, but the server stops.
    Stopping,
}

/// Polls `talk` until it ends, its client has had its time, or the server stops.
async fn watched<F: Future>(
    mut talk: Pin<&mut F>,
    watch: &mut Watch,
    stage: &channel::Receiver<Stage>,
) -> Ended<F::Output> {
    let mut look = pin!(sleep(watch.every()));
    let mut changing = stage.clone();
    let mut changed = pin!(changing.changed());
    let mut awaited = Awaited::new();
    loop {
        let turn = poll_fn(|cx| {
            let talk = talk.as_mut().poll(cx);
            awaited.poll(cx, talk, look.as_mut(), changed.as_mut(), stage)
        });
        match turn.await {
            Turn::Came(ended) => return Ended::Itself(ended),
            Turn::Look => {
                let now = Instant::now();
                // What is late is polled with the connection, which is next.
                if watch.look(now) == Look::Over {
                    tracing::debug!("a client was cut off: it was too slow, or silent for too long");
                    return Ended::Over;
                }
                look.as_mut().reset(now + watch.every());
                awaited.look = true;
            }
            Turn::Stage => return Ended::Stopping,
        }
    }
}

/// Goes on for a moment while the server stops, because a request may be under way already: what is answered now says that
/// the connection ends, and then it does. None if there was none.
async fn part<F: Future>(talk: Pin<&mut F>, front: &Front, mut stage: channel::Receiver<Stage>) -> Option<F::Output> {
    tokio::select! {
        ended = timeout(parting(front.settings.drain), talk) => ended.ok(),
        _ = stage.wait_for(|stage| *stage == Stage::Cut) => None,
    }
}

/// Lets a connection that was told to end do so, unless that takes too long. A server that stops waits for requests, and not
/// for clients that have none under way and do not answer.
async fn finish(
    mut connection: Pin<&mut impl Future>,
    pulse: &Pulse,
    front: &Front,
    mut stage: channel::Receiver<Stage>,
) {
    let ends = async {
        loop {
            let was_busy = pulse.is_busy();
            let ended = timeout(parting(front.settings.drain), connection.as_mut()).await;
            if ended.is_ok() || !(was_busy || pulse.is_busy()) {
                return;
            }
        }
    };
    tokio::select! {
        () = ends => {}
        _ = stage.wait_for(|stage| *stage == Stage::Cut) => {}
    }
}

fn http1_builder(bounds: &Bounds) -> http1::Builder {
    let mut builder = http1::Builder::new();
    // Slow heads are cut off by the watch. An answer is small: it is copied behind its head and written in one piece, which
    // the system does in half a microsecond less than two.
    builder
        .header_read_timeout(None)
        .writev(false)
        .max_buf_size(bounds.header_bytes.max(HEADER_BYTES_MIN));
    if bounds.headers != HEADERS {
        builder.max_headers(bounds.headers);
    }
    builder
}

fn http2_builder(bounds: &Bounds) -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
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
