//! One connection, from accepting to its end.

use super::inline::Inline;
use super::service::Front;
use super::settings::GrpcSettings;
use crate::server::accept::{Awaited, Stage, Turn, shake_hands};
use crate::server::heard::Heard;
use crate::server::listen::Stream;
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper::{Request, body::Incoming};
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

/// Serves one connection until its client, its time or the server ends it.
pub(super) async fn serve(stream: Stream, front: Arc<Front>, stage: channel::Receiver<Stage>) {
    match &front.settings.tls {
        None => converse(stream, &front, stage).await,
        Some(tls) => {
            let within = front.settings.header_timeout;
            // Apart: what TLS needs would be kept for connections without it, too.
            let shaken = Box::pin(shake_hands(stream, tls, within, stage.clone()));
            if let Some(stream) = shaken.await {
                Box::pin(converse(stream, &front, stage)).await;
            }
        }
    }
}

async fn converse<T>(stream: T, front: &Arc<Front>, mut stage: channel::Receiver<Stage>)
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let settings = &front.settings;
    let begun = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&begun);
    // One per connection, so that calls on two of them do not count in the same place.
    let own = Arc::new(Arc::clone(front));
    let service = service_fn(move |request: Request<Incoming>| {
        counted.fetch_add(1, Ordering::Relaxed);
        let front = Arc::clone(&own);
        async move { Ok::<_, Infallible>(front.answer(request).await) }
    });
    let heard = Arc::new(AtomicU64::new(0));
    let hearing = Arc::clone(&heard);
    let stream = Heard::new(stream, move |bytes| {
        hearing.fetch_add(bytes as u64, Ordering::Relaxed);
    });
    let mut connection = pin!(builder(settings).serve_connection(TokioIo::new(stream), service));
    let begun_at = Instant::now();
    let oldest = begun_at + aged(settings.connection_age);
    let idle_until = begun_at + settings.idle_timeout.min(settings.connection_age);
    // First whether it speaks at all.
    let mut look = pin!(sleep_until(idle_until.min(begun_at + settings.header_timeout)));
    let mut changing = stage.clone();
    let mut changed = pin!(changing.changed());
    let mut awaited = Awaited::new();
    let mut seen = 0;
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
                let calls = begun.load(Ordering::Relaxed);
                if now < idle_until && heard.load(Ordering::Relaxed) >= GREETING {
                    look.as_mut().reset(idle_until);
                    awaited.look = true;
                    continue;
                }
                if calls == 0 {
                    tracing::debug!("a client that called nothing was cut off");
                    return;
                }
                if calls == seen || now >= oldest {
                    break;
                }
                seen = calls;
                look.as_mut().reset(oldest.min(now + settings.idle_timeout));
                awaited.look = true;
            }
            Turn::Stage => break,
        }
    }
    // GOAWAY: who is not done by then can call again elsewhere.
    connection.as_mut().graceful_shutdown();
    let draining = stage.borrow_and_update().to_owned();
    let grace = if draining == Stage::Running {
        GRACE
    } else {
        Duration::MAX
    };
    tokio::select! {
        _ = timeout(grace, connection) => {}
        _ = stage.wait_for(|stage| *stage == Stage::Cut) => {}
    }
}

fn builder(settings: &GrpcSettings) -> Builder<Inline> {
    let mut builder = Builder::new(Inline);
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(settings.streams)
        .max_header_list_size(u32::try_from(settings.header_bytes).unwrap_or(u32::MAX))
        .max_pending_accept_reset_streams(PENDING_RESETS)
        .max_local_error_reset_streams(LOCAL_RESETS)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_WITHIN);
    builder
}

/// An age, up to a tenth less: connections that came together do not go together.
fn aged(age: Duration) -> Duration {
    let draw = (RandomState::new().build_hasher().finish() >> 32) as u32;
    let millis = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
    let less = (u128::from(millis / 10) * u128::from(draw)) >> 32;
    age.saturating_sub(Duration::from_millis(u64::try_from(less).unwrap_or(0)))
}

/// How HTTP/2 begins: the preface, and the head of the frame behind it.
const GREETING: u64 = 24 + 9;
/// Streams that a client opened and took back before they were seen: more than that is an attack.
const PENDING_RESETS: usize = 20;
/// Streams that we had to take back because of what the client sent on them: the same.
const LOCAL_RESETS: usize = 1_024;
/// A client that is gone without a word is noticed by this.
const PING_EVERY: Duration = Duration::from_secs(60);
const PING_WITHIN: Duration = Duration::from_secs(20);
/// How long calls in flight may take on a connection that is too old or idle.
const GRACE: Duration = Duration::from_secs(30);
