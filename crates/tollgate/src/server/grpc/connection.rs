//! One connection, from accepting to its end.

use super::gathered::gathered;
use super::inline::Inline;
use super::service::Front;
use super::settings::GrpcSettings;
use crate::server::accept::{Awaited, Stage, Turn, parting, shake_hands};
use crate::server::heard::Heard;
use crate::server::listen::Stream;
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
    let calls = Arc::new(Calls::default());
    let counted = Arc::clone(&calls);
    // One per connection, so that calls on two of them do not count in the same place.
    let own = Arc::new(Arc::clone(front));
    let service = service_fn(move |request: Request<Incoming>| {
        let call = Call::begin(&counted);
        let front = Arc::clone(&own);
        async move {
            let answer = front.answer(request).await;
            call.end(&answer);
            Ok::<_, Infallible>(answer)
        }
    });
    let heard = Arc::new(AtomicU64::new(0));
    let hearing = Arc::clone(&heard);
    let (stream, sender) = gathered(stream);
    let stream = Heard::new(stream, move |bytes| {
        hearing.fetch_add(bytes as u64, Ordering::Relaxed);
    });
    let speaks = || heard.load(Ordering::Relaxed) >= GREETING;
    let mut connection = pin!(builder(settings).serve_connection(TokioIo::new(stream), service));
    let begun_at = Instant::now();
    let oldest = begun_at + aged(settings.connection_age);
    let idle_until = begun_at + settings.idle_timeout.min(settings.connection_age);
    // First whether it calls at all.
    let mut look = pin!(sleep_until(idle_until.min(begun_at + settings.header_timeout)));
    let mut changing = stage.clone();
    let mut changed = pin!(changing.changed());
    let mut awaited = Awaited::new();
    let mut seen = 0;
    let grace = loop {
        let turn = poll_fn(|cx| {
            let talk = sender.poll(connection.as_mut(), cx);
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
                let known = calls.known();
                if known == 0 {
                    tracing::debug!("a client that called nothing was cut off");
                    if !speaks() {
                        return;
                    }
                    break parting(settings.drain);
                }
                if now < idle_until {
                    look.as_mut().reset(idle_until);
                    awaited.look = true;
                    continue;
                }
                if known == seen || now >= oldest {
                    break GRACE;
                }
                seen = known;
                look.as_mut().reset(oldest.min(now + settings.idle_timeout));
                awaited.look = true;
            }
            Turn::Stage => {
                let short = parting(settings.drain);
                // It may be about to speak; who has is told to go in its own words.
                let talk = poll_fn(|cx| sender.poll(connection.as_mut(), cx));
                if !speaks() && (ends_within(short, talk, &mut stage).await || !speaks()) {
                    return;
                }
                break short;
            }
        }
    };
    // GOAWAY: who is not done by then can call again elsewhere.
    connection.as_mut().graceful_shutdown();
    loop {
        let before = calls.in_flight();
        let talk = poll_fn(|cx| sender.poll(connection.as_mut(), cx));
        if ends_within(grace, talk, &mut stage).await {
            return;
        }
        // A server that stops waits for calls, and not for clients that do not answer.
        let is_stopping = *stage.borrow() != Stage::Running;
        if !is_stopping || before + calls.in_flight() == 0 {
            return;
        }
    }
}

/// Whether a connection comes to its end within a time, or the server does.
async fn ends_within(time: Duration, connection: impl Future, stage: &mut channel::Receiver<Stage>) -> bool {
    tokio::select! {
        ended = timeout(time, connection) => ended.is_ok(),
        _ = stage.wait_for(|stage| *stage == Stage::Cut) => true,
    }
}

/// The calls of one connection.
#[derive(Debug, Default)]
struct Calls {
    begun: AtomicU64,
    ended: AtomicU64,
    /// Those whose caller did not show a token that is known.
    unknown: AtomicU64,
}

/// A call on its way.
struct Call(Arc<Calls>);

impl Calls {
    /// Calls of somebody who may be here.
    fn known(&self) -> u64 {
        let unknown = self.unknown.load(Ordering::Relaxed);
        self.begun.load(Ordering::Relaxed).saturating_sub(unknown)
    }

    fn in_flight(&self) -> u64 {
        let ended = self.ended.load(Ordering::Relaxed);
        self.begun.load(Ordering::Relaxed).saturating_sub(ended)
    }
}

impl Call {
    fn begin(calls: &Arc<Calls>) -> Self {
        calls.begun.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(calls))
    }

    fn end<B>(self, answer: &Response<B>) {
        let status = answer.headers().get(Status::GRPC_STATUS);
        if status.is_some_and(|status| status.as_bytes() == UNAUTHENTICATED) {
            self.0.unknown.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Relaxed);
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
/// `grpc-status` of a call without a token that is known.
const UNAUTHENTICATED: &[u8] = b"16";
/// How long calls in flight may take on a connection that is too old or idle.
const GRACE: Duration = Duration::from_secs(30);
