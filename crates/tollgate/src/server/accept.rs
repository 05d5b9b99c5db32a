//! Connections, for every front end alike: accepted while there is room, ended when the server stops.

use super::addresses::{Addresses, counted};
use super::gate::{Gate, Phase};
use super::listen::{Listener, Stream};
use super::tls::Tls;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tokio::task::unconstrained;
use tokio::time::{Instant, Sleep, timeout};
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

/// What connections are held to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    /// At a time.
    pub(super) connections: usize,
    /// At a time from one address of another machine.
    pub(super) per_address: usize,
    /// How long they may take when the server stops.
    pub(super) drain: Duration,
}

/// Lets `converse` have each connection on `listener`, at most so many at a time, until `shutdown` comes to an end. Then
/// it accepts no more than those that have just connected, tells every conversation to come to its end, and after the time to drain that it is over.
///
/// At the cap of connections the next ones wait in the system's queue until one ends: a client that was let in is served. At
/// the cap of one address its next ones are closed, so that they do not stand in the way of others.
pub(super) async fn accept<C>(
    listener: Listener,
    gate: &Arc<Gate>,
    terms: Terms,
    shutdown: impl Future<Output = ()>,
    converse: impl Fn(Stream, watch::Receiver<Stage>) -> C,
) where
    C: Future<Output = ()> + Send + 'static,
{
    accept_from(counted, listener, gate, terms, shutdown, converse).await;
}

/// The same, where `counted` says which address a connection counts for.
async fn accept_from<C>(
    counted: impl Fn(IpAddr) -> Option<IpAddr>,
    listener: Listener,
    gate: &Arc<Gate>,
    terms: Terms,
    shutdown: impl Future<Output = ()>,
    converse: impl Fn(Stream, watch::Receiver<Stage>) -> C,
) where
    C: Future<Output = ()> + Send + 'static,
{
    let Terms {
        connections,
        per_address,
        drain,
    } = terms;
    let addresses = Addresses::new(per_address);
    let mut told: Option<Instant> = None;
    let all = u32::try_from(connections.clamp(1, Semaphore::MAX_PERMITS)).unwrap_or(u32::MAX);
    let room = Arc::new(Semaphore::new(all as usize));
    let (stage, staged) = watch::channel(Stage::Running);
    let accept = async {
        loop {
            // Room first: what cannot be served is not accepted.
            let Ok(permit) = Arc::clone(&room).acquire_owned().await else {
                return;
            };
            let stream = listener.accept().await;
            // Who is gone already has no address, and is found to be gone by who serves it.
            let address = stream.peer().ok();
            let Some(place) = addresses.place(address.and_then(&counted)) else {
                if told.is_none_or(|told| told.elapsed() >= TOLD_EVERY) {
                    told = Some(Instant::now());
                    tracing::warn!(
                        ?address,
                        most = per_address,
                        "one address has as many connections as it may"
                    );
                }
                continue;
            };
            let conversation = converse(stream, staged.clone());
            let gate = Arc::clone(gate);
            tokio::spawn(async move {
                let open = gate.metrics().open();
                conversation.await;
                drop((open, place, permit));
            });
        }
    };
    {
        let mut accept = pin!(accept);
        tokio::select! {
            () = shutdown => {}
            () = &mut accept => {}
        }
        gate.advance_phase(Phase::Draining);
        stage.send_replace(Stage::Draining);
        // Who has connected already would be cut off with the listener.
        let _ = timeout(LATECOMERS.min(drain / 2), accept).await;
    }
    drop(listener);
    if timeout(drain, room.acquire_many(all)).await.is_err() {
        tracing::warn!(?drain, "cutting off connections that did not end in time");
        stage.send_replace(Stage::Cut);
        if timeout(CUTTING, room.acquire_many(all)).await.is_err() {
            tracing::error!("connections that were cut off did not end; stopping without them");
        }
    }
}

/// How long a connection without a request is kept when the server stops: one may be under way already.
pub(super) fn parting(drain: Duration) -> Duration {
    Duration::from_secs(1).min(drain / 2)
}

/// How long cutting off may take.
const CUTTING: Duration = Duration::from_secs(5);

/// How often it is told that somebody connects more often than it may.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// How long those are accepted that had connected when the server stopped.
const LATECOMERS: Duration = Duration::from_millis(20);

/// TLS with a client, unless it takes longer than `within` or the server has stopped.
pub(super) async fn shake_hands(
    stream: Stream,
    tls: &Tls,
    within: Duration,
    mut stage: watch::Receiver<Stage>,
) -> Option<TlsStream<Stream>> {
    let shaken = timeout(within, tls.acceptor().accept(stream));
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
        _ = stage.wait_for(|stage| *stage == Stage::Cut) => None,
    }
}

/// Why a conversation is looked at.
pub(super) enum Turn<T> {
    /// It came to something.
    Came(T),
    /// It is time to look whether it goes on.
    Look,
    /// The server stops.
    Stage,
}

/// What is still to be waited for beside a conversation. Waiting for a change of the stage takes a lock that all connections
/// share, and waiting for a time some work, so each is done once; then a glance tells.
pub(super) struct Awaited {
    pub(super) look: bool,
    stage: bool,
}

impl Awaited {
    /// All of it.
    pub(super) const fn new() -> Self {
        Self {
            look: true,
            stage: true,
        }
    }

    /// The next turn of a conversation.
    pub(super) fn poll<T>(
        &mut self,
        cx: &mut Context<'_>,
        talk: Poll<T>,
        mut look: Pin<&mut Sleep>,
        changed: Pin<&mut impl Future>,
        stage: &watch::Receiver<Stage>,
    ) -> Poll<Turn<T>> {
        if let Poll::Ready(came) = talk {
            return Poll::Ready(Turn::Came(came));
        }
        // Not held to the task's budget: who has used it up would not be noted as waiting, and never be woken.
        let is_due = match std::mem::take(&mut self.look) {
            true => pin!(unconstrained(look.as_mut())).poll(cx).is_ready(),
            false => look.is_elapsed(),
        };
        if is_due {
            return Poll::Ready(Turn::Look);
        }
        if std::mem::take(&mut self.stage) && pin!(unconstrained(changed)).poll(cx).is_ready() {
            return Poll::Ready(Turn::Stage);
        }
        match stage.has_changed() {
            Ok(false) => Poll::Pending,
            Ok(true) | Err(_) => Poll::Ready(Turn::Stage),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::listen::Address;
    use std::future::{pending, poll_fn};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::task::coop::{consume_budget, has_budget_remaining};
    use tokio::time::sleep;
    use tollgate_limiter::core::rules::{RulesParser, ParserOptions};
    use tollgate_limiter::store::memory::Memory;

    const WAIT: Duration = Duration::from_millis(20);

    /// A connection that says one letter back, if it was let in.
    async fn talk(address: std::net::SocketAddr) -> Option<TcpStream> {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let said = stream.write_all(b"a").await.is_ok() && stream.read_u8().await.is_ok();
        said.then_some(stream)
    }

    #[tokio::test]
    async fn one_address_gets_no_more_connections_than_it_may() {
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
        let Ok(Address::Tcp(address)) = listener.address() else {
            panic!("a TCP listener has a TCP address")
        };
        let serve = async move {
            let rules = RulesParser::new(ParserOptions::default()).finish().unwrap().rules;
            let gate = Arc::new(Gate::new(rules, Arc::new(Memory::options().build())));
            let terms = Terms {
                connections: 9,
                per_address: 2,
                drain: WAIT,
            };
            accept_from(Some, listener, &gate, terms, pending(), |mut stream, _| async move {
                while let Ok(letter) = stream.read_u8().await {
                    stream.write_u8(letter).await.unwrap();
                }
            })
            .await;
        };
        let serving = tokio::spawn(serve);
        let (first, second) = (talk(address).await, talk(address).await);
        assert!(first.is_some() && second.is_some());
        assert!(talk(address).await.is_none());
        drop(first);
        while talk(address).await.is_none() {}
        serving.abort();
    }

    #[tokio::test]
    async fn who_has_used_up_its_budget_is_woken_all_the_same() {
        let waited = tokio::spawn(async {
            let (_sender, stage) = watch::channel(Stage::Running);
            let began = Instant::now();
            let mut look = pin!(sleep(WAIT));
            let mut changing = stage.clone();
            let mut changed = pin!(changing.changed());
            let mut awaited = Awaited::new();
            let turn = poll_fn(|cx| {
                if awaited.look {
                    while has_budget_remaining() && pin!(consume_budget()).poll(cx).is_ready() {}
                }
                awaited.poll::<()>(cx, Poll::Pending, look.as_mut(), changed.as_mut(), &stage)
            });
            assert!(matches!(turn.await, Turn::Look));
            began.elapsed()
        });
        let waited = timeout(Duration::from_secs(9), waited).await;
        assert!(waited.expect("it is woken").expect("it ends") >= WAIT);
    }
}
