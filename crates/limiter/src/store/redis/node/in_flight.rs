//! Reaching a server: a connection in time, an answer in time, and what is learned of the server by calls whose callers
//! leave before they are answered.

use crate::store::BreakerState;
use crate::store::StoreError;
use crate::store::redis::connection::{Failure, ScriptConnection};
use crate::store::redis::node::Node;
use futures_util::future::{Either, select};
use redis::aio::MultiplexedConnection;
use std::pin::pin;
use std::sync::Weak;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout, timeout_at};

impl Node {
    /// The connection, if there is one in time. While another is dialled in the place of one that failed, nobody waits for it
    /// longer than half a deadline, and for the first not longer than a whole one: most are there by then, and of others
    /// nobody knows when they will be.
    pub(crate) async fn connection_before(&self, until: Instant) -> Result<ScriptConnection, StoreError> {
        if let Some(connection) = self.connector.current() {
            return Ok(connection);
        }
        let wait_max = match self.connector.was_connected() {
            true => self.context.deadline / 2,
            false => self.context.deadline,
        };
        let until = match self.breaker.state() {
            BreakerState::Closed => until.min(self.connector.disconnected_since() + wait_max),
            // Whoever tries whether it is back has come for that.
            BreakerState::HalfOpen | BreakerState::Open => until,
        };
        if until <= Instant::now() {
            return Err(StoreError::Unavailable);
        }
        let connection = timeout_at(until, self.connector.connection()).await;
        connection.map_err(|_| StoreError::Unavailable)
    }

    /// The answer of the script to what was sent on a connection, if there is one in time. A packet that was lost is sent again
    /// after a fifth of a second if nothing follows it, and at once if something does. So while the answer is late, the time is
    /// asked for, where it was told before: that could not be taken for an answer of the script.
    pub(crate) async fn reply_before<T>(
        &self,
        until: Instant,
        keepalive_on: Option<MultiplexedConnection>,
        reply: impl Future<Output = T>,
    ) -> Result<T, StoreError> {
        let Some(connection) = keepalive_on else {
            return timeout_at(until, reply).await.map_err(|_| StoreError::Timeout);
        };
        let interval = self.context.deadline / KEEPALIVES;
        let mut reply = pin!(reply);
        if let Ok(reply) = timeout_at(until.min(Instant::now() + interval * KEEPALIVE_AFTER), reply.as_mut()).await {
            return Ok(reply);
        }
        let keepalives = pin!(send_keepalives(connection, interval));
        match timeout_at(until, select(reply, keepalives)).await {
            Ok(Either::Left((reply, _))) => Ok(reply),
            Ok(Either::Right(_)) | Err(_) => Err(StoreError::Timeout),
        }
    }

    /// Looks once more when there should be a connection: whoever asked now may be the last for long, and nobody else would
    /// notice that the server is away.
    pub(crate) fn schedule_recheck(&self) {
        if self.breaker.state() == BreakerState::Closed && !self.recheck_scheduled.swap(true, Ordering::Relaxed) {
            let (node, wait_max) = (Weak::clone(&self.weak_self), self.breaker.unreachable_max());
            self.context.runtime.spawn(async move {
                sleep(wait_max).await;
                let Some(node) = node.upgrade() else { return };
                node.recheck_scheduled.store(false, Ordering::Relaxed);
                if !node.connector.is_connected() {
                    node.record::<()>(&[Err(StoreError::Unavailable.into())], None);
                }
            });
        }
    }

    /// Whether what a call on this connection failed by was told before: many may wait for the same answer, and whatever
    /// kept it from them happened once.
    pub(crate) fn already_reported(&self, connection: &ScriptConnection) -> bool {
        // Numbers begin with zero, which here is none.
        let number = connection.id() + 1;
        self.last_reported.fetch_max(number, Ordering::Relaxed) >= number
    }
}

/// How many knocks there would be in the time that a call may take, and how many are left out: what is answered within two
/// fifths of it is not late.
const KEEPALIVES: u32 = 5;
const KEEPALIVE_AFTER: u32 = 2;

/// Sends something behind what was sent, again and again. What is said to that says nothing.
async fn send_keepalives(mut connection: MultiplexedConnection, interval: Duration) {
    loop {
        let interval_end = sleep(interval);
        let _ = timeout(interval, connection.send_packed_command(&redis::cmd("TIME"))).await;
        interval_end.await;
    }
}

/// The most writes that may be under way at once: what waits in them is held by nobody else.
const WRITES_MAX: usize = 256;

/// A place among them, until it is dropped.
pub(crate) struct WritePermit<'n>(&'n AtomicUsize);

impl<'n> WritePermit<'n> {
    /// Nothing if all are taken.
    pub(crate) fn try_acquire(in_flight: &'n AtomicUsize) -> Option<Self> {
        let permit = Self(in_flight);
        (in_flight.fetch_add(1, Ordering::Relaxed) < WRITES_MAX).then_some(permit)
    }
}

impl Drop for WritePermit<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A call that is under way. If whoever made it leaves, what the call would have shown is found out all the same: a server
/// that answers nobody in time would never be left alone by those who wait less long than that.
pub(crate) struct CallGuard<'n> {
    node: &'n Node,
    until: Instant,
    stage: CallStage,
}

enum CallStage {
    /// There is no connection yet.
    Connecting,
    Sent(ScriptConnection),
    Finished,
}

impl<'n> CallGuard<'n> {
    /// A call that is waited for until then.
    pub(crate) const fn new(node: &'n Node, until: Instant) -> Self {
        let stage = CallStage::Connecting;
        Self { node, until, stage }
    }

    /// It is sent on this connection.
    pub(crate) fn mark_sent(&mut self, connection: ScriptConnection) -> &mut ScriptConnection {
        self.stage = CallStage::Sent(connection);
        match &mut self.stage {
            CallStage::Sent(connection) => connection,
            CallStage::Connecting | CallStage::Finished => unreachable!("it was just set"),
        }
    }

    /// It is over, and notes how it went.
    pub(crate) fn finish<T>(mut self, replies: &[Result<T, Failure>]) {
        match std::mem::replace(&mut self.stage, CallStage::Finished) {
            CallStage::Sent(connection) => self.node.record(replies, Some(&connection)),
            CallStage::Connecting | CallStage::Finished => self.node.record(replies, None),
        }
    }
}

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.stage, CallStage::Finished) {
            CallStage::Finished => {}
            CallStage::Connecting => self.node.record::<()>(&[Err(StoreError::Unavailable.into())], None),
            CallStage::Sent(connection) => {
                // One at a time is enough: what it finds holds for all.
                if !self.node.follow_up_running.swap(true, Ordering::Relaxed) {
                    let follow_up = await_abandoned_reply(Weak::clone(&self.node.weak_self), connection, self.until);
                    self.node.context.runtime.spawn(follow_up);
                }
            }
        }
    }
}

/// Waits in the place of whoever left. A server answers in the order of calls: when it has answered what followed the call,
/// whatever it says, it has answered the call.
async fn await_abandoned_reply(node: Weak<Node>, mut connection: ScriptConnection, until: Instant) {
    let reply = timeout_at(until, connection.query(&redis::cmd("PING"))).await;
    let Some(node) = node.upgrade() else { return };
    node.follow_up_running.store(false, Ordering::Relaxed);
    let error = match reply {
        Err(_) => StoreError::Timeout,
        Ok(Err(error @ (StoreError::ConnectionLost | StoreError::InvalidReply))) => error,
        Ok(_) => return,
    };
    node.context.count_error(error);
    node.record::<()>(&[Err(error.into())], Some(&connection));
}
