//! Connections, for every front end alike: accepted while there is room, ended when the server stops.

use super::gate::{Gate, Phase};
use super::listen::{Listener, Stream};
use super::tls::Tls;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tokio::task::unconstrained;
use tokio::time::{Sleep, timeout};
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

/// Lets `converse` have each connection on `listener`, at most so many at a time, until `shutdown` comes to an end. Then
/// it accepts no more than those that have just connected, tells every conversation to come to its end, and after the time to drain that it is over.
///
/// At the cap of connections the next ones wait in the system's queue until one ends: a client that was let in is served.
pub(super) async fn accept<C>(
    listener: Listener,
    gate: &Arc<Gate>,
    (connections, drain): (usize, Duration),
    shutdown: impl Future<Output = ()>,
    converse: impl Fn(Stream, watch::Receiver<Stage>) -> C,
) where
    C: Future<Output = ()> + Send + 'static,
{
    let all = u32::try_from(connections.clamp(1, Semaphore::MAX_PERMITS)).unwrap_or(u32::MAX);
    let room = Arc::new(Semaphore::new(all as usize));
    let (stage, staged) = watch::channel(Stage::Running);
    let accept = async {
        loop {
            // Room first: what cannot be served is not accepted.
            let Ok(permit) = Arc::clone(&room).acquire_owned().await else {
                return;
            };
            let conversation = converse(listener.accept().await, staged.clone());
            let gate = Arc::clone(gate);
            tokio::spawn(async move {
                let open = gate.figures().open();
                conversation.await;
                drop((open, permit));
            });
        }
    };
    {
        let mut accept = pin!(accept);
        tokio::select! {
            () = shutdown => {}
            () = &mut accept => {}
        }
        gate.enter(Phase::Draining);
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
    use std::future::poll_fn;
    use tokio::task::coop::{consume_budget, has_budget_remaining};
    use tokio::time::{Instant, sleep};

    const WAIT: Duration = Duration::from_millis(20);

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
