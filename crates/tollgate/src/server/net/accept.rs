//! Connections, for every front end alike: accepted while there is room, ended when the server stops.

use super::listen::{Listener, Stream};
use super::per_ip::{ConnectionsPerIp, limited_address};
use super::tls::Tls;
use crate::server::gate::{Gate, Phase};
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
pub(in crate::server) enum ShutdownStage {
    /// Serving.
    Running,
    /// Answering what is in flight.
    Draining,
    /// Out of time.
    Aborting,
}

/// What connections are held to.
#[derive(Clone, Copy, Debug)]
pub(in crate::server) struct ConnectionLimits {
    /// At a time.
    pub(in crate::server) connections: usize,
    /// At a time from one address of another machine.
    pub(in crate::server) per_address: usize,
    /// How long they may take when the server stops.
    pub(in crate::server) drain: Duration,
}

/// Lets `converse` have each connection on `listener`, at most so many at a time, until `shutdown` comes to an end. Then
/// it accepts no more than those that have just connected, tells every conversation to come to its end, and after the time to drain that it is over.
///
/// At the cap of connections the next ones wait in the system's queue until one ends: a client that was let in is served. At
/// the cap of one address its next ones are closed, so that they do not stand in the way of others.
pub(in crate::server) async fn accept<C>(
    listener: Listener,
    gate: &Arc<Gate>,
    limits: ConnectionLimits,
    shutdown: impl Future<Output = ()>,
    serve: impl Fn(Stream, watch::Receiver<ShutdownStage>) -> C,
) where
    C: Future<Output = ()> + Send + 'static,
{
    accept_from(limited_address, listener, gate, limits, shutdown, serve).await;
}

/// The same, where `counted` says which address a connection counts for.
async fn accept_from<C>(
    limit_key: impl Fn(IpAddr) -> Option<IpAddr>,
    listener: Listener,
    gate: &Arc<Gate>,
    limits: ConnectionLimits,
    shutdown: impl Future<Output = ()>,
    serve: impl Fn(Stream, watch::Receiver<ShutdownStage>) -> C,
) where
    C: Future<Output = ()> + Send + 'static,
{
    let ConnectionLimits {
        connections,
        per_address,
        drain,
    } = limits;
    let per_ip = ConnectionsPerIp::new(per_address);
    let mut last_warned: Option<Instant> = None;
    let all = u32::try_from(connections.clamp(1, Semaphore::MAX_PERMITS)).unwrap_or(u32::MAX);
    let capacity = Arc::new(Semaphore::new(all as usize));
    let (stage_sender, stage_updates) = watch::channel(ShutdownStage::Running);
    let accept = async {
        loop {
            // Room first: what cannot be served is not accepted.
            let Ok(permit) = Arc::clone(&capacity).acquire_owned().await else {
                return;
            };
            let stream = listener.accept().await;
            // Who is gone already has no address, and is found to be gone by who serves it.
            let address = stream.peer().ok();
            let Some(ip_permit) = per_ip.acquire(address.and_then(&limit_key)) else {
                if last_warned.is_none_or(|warned_at| warned_at.elapsed() >= WARN_INTERVAL) {
                    last_warned = Some(Instant::now());
                    tracing::warn!(
                        ?address,
                        most = per_address,
                        "per-address connection limit reached; closing new connections"
                    );
                }
                continue;
            };
            let connection = serve(stream, stage_updates.clone());
            let gate = Arc::clone(gate);
            tokio::spawn(async move {
                let gauge = gate.metrics().open_connection();
                connection.await;
                drop((gauge, ip_permit, permit));
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
        stage_sender.send_replace(ShutdownStage::Draining);
        // Who has connected already would be cut off with the listener.
        let _ = timeout(ACCEPT_GRACE.min(drain / 2), accept).await;
    }
    drop(listener);
    if timeout(drain, capacity.acquire_many(all)).await.is_err() {
        tracing::warn!(?drain, "cutting off connections that did not end in time");
        stage_sender.send_replace(ShutdownStage::Aborting);
        if timeout(ABORT_TIMEOUT, capacity.acquire_many(all)).await.is_err() {
            tracing::error!("connections that were cut off did not end; stopping without them");
        }
    }
}

/// How long a connection without a request is kept when the server stops: one may be under way already.
pub(in crate::server) fn idle_grace(drain: Duration) -> Duration {
    Duration::from_secs(1).min(drain / 2)
}

/// How long cutting off may take.
const ABORT_TIMEOUT: Duration = Duration::from_secs(5);

/// How often it is told that somebody connects more often than it may.
const WARN_INTERVAL: Duration = Duration::from_secs(60);

/// How long those are accepted that had connected when the server stopped.
const ACCEPT_GRACE: Duration = Duration::from_millis(20);

/// TLS with a client, unless it takes longer than `within` or the server has stopped.
pub(in crate::server) async fn tls_handshake(
    stream: Stream,
    tls: &Tls,
    handshake_timeout: Duration,
    mut stage: watch::Receiver<ShutdownStage>,
) -> Option<TlsStream<Stream>> {
    let handshake = timeout(handshake_timeout, tls.acceptor().accept(stream));
    tokio::select! {
        result = handshake => match result {
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
        _ = stage.wait_for(|stage| *stage == ShutdownStage::Aborting) => None,
    }
}

/// Why a conversation is looked at.
pub(in crate::server) enum Wakeup<T> {
    /// It came to something.
    Ready(T),
    /// It is time to look whether it goes on.
    IdleCheck,
    /// The server stops.
    StageChanged,
}

/// What is still to be waited for beside a conversation. Waiting for a change of the stage takes a lock that all connections
/// share, and waiting for a time some work, so each is done once; then a glance tells.
pub(in crate::server) struct Wakeups {
    pub(in crate::server) idle_check: bool,
    stage: bool,
}

impl Wakeups {
    /// All of it.
    pub(in crate::server) const fn new() -> Self {
        Self {
            idle_check: true,
            stage: true,
        }
    }

    /// The next turn of a conversation.
    pub(in crate::server) fn poll<T>(
        &mut self,
        cx: &mut Context<'_>,
        connection: Poll<T>,
        mut idle_timer: Pin<&mut Sleep>,
        stage_changed: Pin<&mut impl Future>,
        stage: &watch::Receiver<ShutdownStage>,
    ) -> Poll<Wakeup<T>> {
        if let Poll::Ready(output) = connection {
            return Poll::Ready(Wakeup::Ready(output));
        }
        // Not held to the task's budget: who has used it up would not be noted as waiting, and never be woken.
        let is_due = match std::mem::take(&mut self.idle_check) {
            true => pin!(unconstrained(idle_timer.as_mut())).poll(cx).is_ready(),
            false => idle_timer.is_elapsed(),
        };
        if is_due {
            return Poll::Ready(Wakeup::IdleCheck);
        }
        if std::mem::take(&mut self.stage) && pin!(unconstrained(stage_changed)).poll(cx).is_ready() {
            return Poll::Ready(Wakeup::StageChanged);
        }
        match stage.has_changed() {
            Ok(false) => Poll::Pending,
            Ok(true) | Err(_) => Poll::Ready(Wakeup::StageChanged),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::net::listen::Address;
    use std::future::{pending, poll_fn};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::task::coop::{consume_budget, has_budget_remaining};
    use tokio::time::sleep;
    use tollgate_limiter::core::rules::{ParserOptions, RulesParser};
    use tollgate_limiter::store::memory::Memory;

    const WAIT: Duration = Duration::from_millis(20);

    /// A connection that says one letter back, if it was let in.
    async fn echo(address: std::net::SocketAddr) -> Option<TcpStream> {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let echoed = stream.write_all(b"a").await.is_ok() && stream.read_u8().await.is_ok();
        echoed.then_some(stream)
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
            let limits = ConnectionLimits {
                connections: 9,
                per_address: 2,
                drain: WAIT,
            };
            accept_from(Some, listener, &gate, limits, pending(), |mut stream, _| async move {
                while let Ok(letter) = stream.read_u8().await {
                    stream.write_u8(letter).await.unwrap();
                }
            })
            .await;
        };
        let serving = tokio::spawn(serve);
        let (first, second) = (echo(address).await, echo(address).await);
        assert!(first.is_some() && second.is_some());
        assert!(echo(address).await.is_none());
        drop(first);
        while echo(address).await.is_none() {}
        serving.abort();
    }

    #[tokio::test]
    async fn who_has_used_up_its_budget_is_woken_all_the_same() {
        let waited = tokio::spawn(async {
            let (_sender, stage) = watch::channel(ShutdownStage::Running);
            let started = Instant::now();
            let mut idle_timer = pin!(sleep(WAIT));
            let mut changing = stage.clone();
            let mut changed = pin!(changing.changed());
            let mut wakeups = Wakeups::new();
            let wakeup = poll_fn(|cx| {
                if wakeups.idle_check {
                    while has_budget_remaining() && pin!(consume_budget()).poll(cx).is_ready() {}
                }
                wakeups.poll::<()>(cx, Poll::Pending, idle_timer.as_mut(), changed.as_mut(), &stage)
            });
            assert!(matches!(wakeup.await, Wakeup::IdleCheck));
            started.elapsed()
        });
        let waited = timeout(Duration::from_secs(9), waited).await;
        assert!(waited.expect("it is woken").expect("it ends") >= WAIT);
    }
}
