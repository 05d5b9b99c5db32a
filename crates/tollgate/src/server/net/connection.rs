//! Serves one connection until its client, a timeout or a shutdown ends it.

use super::accept::ShutdownStage;
use super::idle::{IdleMonitor, ProgressMark, WaitingFor};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::unconstrained;
use tokio::time::{Instant, Sleep, sleep, timeout};

/// The stage of the shutdown, as a connection follows it.
pub(in crate::server) type StageReceiver = watch::Receiver<ShutdownStage>;

/// The part of a connection that [`serve_connection`] sees: its progress, and the way to ask it to end. It is shared with
/// the future that serves the connection; both belong to one task.
pub(in crate::server) trait ConnectionHandle {
    /// The thing the connection waits for, and how far it has come.
    fn progress(&self) -> ProgressMark;

    /// True while requests are in flight or replies are unsent.
    fn is_busy(&self) -> bool;

    /// True if a request may be on its way, so that a server that stops serves a moment longer before it closes.
    fn lingers(&self) -> bool;

    /// Asks the connection to end after the requests in flight: GOAWAY, `Connection: close`. Returns the time a client
    /// without requests has to leave; none if there is nothing to wait for.
    fn start_close(&self, grace: Duration) -> Option<Duration>;

    /// Decides about a client that has made no progress for its timeout.
    fn on_timeout(&self, waiting_for: WaitingFor) -> TimeoutAction;
}

/// The consequence of a timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum TimeoutAction {
    /// The request that timed out answers for itself; the connection stays.
    Continue,
    /// Close gracefully, with this much time for requests in flight.
    Close(Duration),
    /// Drop the connection.
    Abort,
}

/// Polls `connection` until it ends, and returns what it ended with.
///
/// Between polls `monitor` checks its progress. When the server stops, the connection is drained: it may linger for
/// [`idle_grace`], is then asked to close, and has as long as it is busy or until the stage is `Aborting`. None if the
/// connection was closed before it ended by itself.
pub(in crate::server) async fn serve_connection<F: Future>(
    mut connection: Pin<&mut F>,
    handle: &impl ConnectionHandle,
    monitor: &mut IdleMonitor,
    drain: Duration,
    mut stage: StageReceiver,
) -> Option<F::Output> {
    let grace = {
        let mut idle_timer = pin!(sleep(monitor.check_interval()));
        let mut changing = stage.clone();
        let mut stage_changed = pin!(changing.changed());
        let mut wakeups = Wakeups::new();
        loop {
            let wakeup = poll_fn(|cx| {
                let polled = connection.as_mut().poll(cx);
                wakeups.poll(cx, polled, idle_timer.as_mut(), stage_changed.as_mut(), &stage)
            });
            match wakeup.await {
                Wakeup::Ready(output) => return Some(output),
                Wakeup::IdleCheck => {
                    let now = Instant::now();
                    if let Some(waiting_for) = monitor.check(handle.progress(), now) {
                        let action = handle.on_timeout(waiting_for);
                        if action != TimeoutAction::Continue {
                            tracing::debug!(?waiting_for, "closing idle or slow connection");
                        }
                        match action {
                            TimeoutAction::Continue => {}
                            TimeoutAction::Close(grace) => break grace,
                            TimeoutAction::Abort => return None,
                        }
                    }
                    // A request that timed out is polled with the connection, which is next.
                    idle_timer.as_mut().reset(now + monitor.check_interval());
                    wakeups.idle_check = true;
                }
                Wakeup::StageChanged => break idle_grace(drain),
            }
        }
    };
    drain_connection(connection, handle, grace, &mut stage).await
}

/// Ends a connection. While the server runs, for instance because of its age, the connection has `grace` once; while the
/// server stops, it has as long as requests are in flight.
async fn drain_connection<F: Future>(
    mut connection: Pin<&mut F>,
    handle: &impl ConnectionHandle,
    grace: Duration,
    stage: &mut StageReceiver,
) -> Option<F::Output> {
    let is_stopping = |stage: &StageReceiver| *stage.borrow() != ShutdownStage::Running;
    if is_stopping(stage) && handle.lingers() {
        match ends_within(grace, connection.as_mut(), stage).await {
            Ok(output) => return Some(output),
            Err(Unfinished::Aborted) => return None,
            Err(Unfinished::TimedOut) => {}
        }
    }
    let grace = handle.start_close(grace)?;
    loop {
        let was_busy = handle.is_busy();
        match ends_within(grace, connection.as_mut(), stage).await {
            Ok(output) => return Some(output),
            Err(Unfinished::Aborted) => return None,
            // A server that stops waits for requests, not for idle clients that do not leave.
            Err(Unfinished::TimedOut) if is_stopping(stage) && (was_busy || handle.is_busy()) => {}
            Err(Unfinished::TimedOut) => return None,
        }
    }
}

/// The reason why a connection has not ended.
enum Unfinished {
    TimedOut,
    /// The drain time is over.
    Aborted,
}

async fn ends_within<F: Future>(
    time: Duration,
    connection: Pin<&mut F>,
    stage: &mut StageReceiver,
) -> Result<F::Output, Unfinished> {
    tokio::select! {
        ended = timeout(time, connection) => ended.map_err(|_| Unfinished::TimedOut),
        _ = stage.wait_for(|stage| *stage == ShutdownStage::Aborting) => Err(Unfinished::Aborted),
    }
}

/// The time a connection without a request is kept when the server stops: a request may be on its way.
pub(in crate::server) fn idle_grace(drain: Duration) -> Duration {
    Duration::from_secs(1).min(drain / 2)
}

/// The reason why [`serve_connection`] wakes up.
enum Wakeup<T> {
    /// The connection ended.
    Ready(T),
    /// The idle monitor is due.
    IdleCheck,
    /// The server stops.
    StageChanged,
}

/// The registrations that are still to be made beside the connection's own. A change of the stage is awaited behind a lock
/// that all connections share, and a timer costs work too, so each is registered once; afterwards an atomic load tells.
struct Wakeups {
    idle_check: bool,
    stage: bool,
}

impl Wakeups {
    const fn new() -> Self {
        Self {
            idle_check: true,
            stage: true,
        }
    }

    fn poll<T>(
        &mut self,
        cx: &mut Context<'_>,
        connection: Poll<T>,
        mut idle_timer: Pin<&mut Sleep>,
        stage_changed: Pin<&mut impl Future>,
        stage: &StageReceiver,
    ) -> Poll<Wakeup<T>> {
        if let Poll::Ready(output) = connection {
            return Poll::Ready(Wakeup::Ready(output));
        }
        // Polled outside tokio's cooperative budget: with the budget exhausted the timer returns `Pending` without
        // registering our waker.
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
    use tokio::task::coop::{consume_budget, has_budget_remaining};

    const WAIT: Duration = Duration::from_millis(20);

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
