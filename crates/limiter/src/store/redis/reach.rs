//! Reaching a server: a connection in time, an answer in time, and what is learned of the server by calls whose callers
//! leave before they are answered.

use super::breaker::BreakerState;
use super::line::{Failure, Line};
use super::node::Node;
use crate::store::StoreError;
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
    pub(super) async fn line_by(&self, until: Instant) -> Result<Line, StoreError> {
        if let Some(line) = self.link.line_now() {
            return Ok(line);
        }
        let patience = match self.link.was_up() {
            true => self.shared.deadline / 2,
            false => self.shared.deadline,
        };
        let until = match self.breaker.state() {
            BreakerState::Closed => until.min(self.link.gone() + patience),
            // Whoever tries whether it is back has come for that.
            BreakerState::HalfOpen | BreakerState::Open => until,
        };
        if until <= Instant::now() {
            return Err(StoreError::Unavailable);
        }
        let line = timeout_at(until, self.link.line()).await;
        line.map_err(|_| StoreError::Unavailable)
    }

    /// The answer of the script to what was sent on a connection, if there is one in time. A packet that was lost is sent again
    /// after a fifth of a second if nothing follows it, and at once if something does. So while the answer is late, the time is
    /// asked for, where it was told before: that could not be taken for an answer of the script.
    pub(super) async fn answer_by<T>(
        &self,
        until: Instant,
        knocking_on: Option<MultiplexedConnection>,
        answer: impl Future<Output = T>,
    ) -> Result<T, StoreError> {
        let Some(connection) = knocking_on else {
            return timeout_at(until, answer).await.map_err(|_| StoreError::Timeout);
        };
        let every = self.shared.deadline / KNOCKS;
        let mut answer = pin!(answer);
        if let Ok(answer) = timeout_at(until.min(Instant::now() + every * UNKNOCKED), answer.as_mut()).await {
            return Ok(answer);
        }
        let knocking = pin!(knock(connection, every));
        match timeout_at(until, select(answer, knocking)).await {
            Ok(Either::Left((answer, _))) => Ok(answer),
            Ok(Either::Right(_)) | Err(_) => Err(StoreError::Timeout),
        }
    }

    /// Looks once more when there should be a connection: whoever asked now may be the last for long, and nobody else would
    /// notice that the server is away.
    pub(super) fn await_line(&self) {
        if self.breaker.state() == BreakerState::Closed && !self.is_awaited.swap(true, Ordering::Relaxed) {
            let (node, patience) = (Weak::clone(&self.me), self.breaker.patience());
            self.shared.runtime.spawn(async move {
                sleep(patience).await;
                let Some(node) = node.upgrade() else { return };
                node.is_awaited.store(false, Ordering::Relaxed);
                if !node.link.is_up() {
                    node.note::<()>(&[Err(StoreError::Unavailable.into())], None);
                }
            });
        }
    }

    /// Whether what a call on this connection failed by was told before: many may wait for the same answer, and whatever
    /// kept it from them happened once.
    pub(super) fn is_told(&self, line: &Line) -> bool {
        // Numbers begin with zero, which here is none.
        let number = line.number() + 1;
        self.told_of.fetch_max(number, Ordering::Relaxed) >= number
    }
}

/// How many knocks there would be in the time that a call may take, and how many are left out: what is answered within two
/// fifths of it is not late.
const KNOCKS: u32 = 5;
const UNKNOCKED: u32 = 2;

/// Sends something behind what was sent, again and again. What is said to that says nothing.
async fn knock(mut connection: MultiplexedConnection, every: Duration) {
    loop {
        let pause = sleep(every);
        let _ = timeout(every, connection.send_packed_command(&redis::cmd("TIME"))).await;
        pause.await;
    }
}

/// The most writes that may be under way at once: what waits in them is held by nobody else.
const AT_ONCE: usize = 256;

/// A place among them, until it is dropped.
pub(super) struct Place<'n>(&'n AtomicUsize);

impl<'n> Place<'n> {
    /// Nothing if all are taken.
    pub(super) fn take(taken: &'n AtomicUsize) -> Option<Self> {
        let place = Self(taken);
        (taken.fetch_add(1, Ordering::Relaxed) < AT_ONCE).then_some(place)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A call that is under way. If whoever made it leaves, what the call would have shown is found out all the same: a server
/// that answers nobody in time would never be left alone by those who wait less long than that.
pub(super) struct Watched<'n> {
    node: &'n Node,
    until: Instant,
    stage: Stage,
}

enum Stage {
    /// There is no connection yet.
    Waits,
    Sent(Line),
    Over,
}

impl<'n> Watched<'n> {
    /// A call that is waited for until then.
    pub(super) const fn new(node: &'n Node, until: Instant) -> Self {
        let stage = Stage::Waits;
        Self { node, until, stage }
    }

    /// It is sent on this connection.
    pub(super) fn sent(&mut self, line: Line) -> &mut Line {
        self.stage = Stage::Sent(line);
        match &mut self.stage {
            Stage::Sent(line) => line,
            Stage::Waits | Stage::Over => unreachable!("it was just set"),
        }
    }

    /// It is over, and notes how it went.
    pub(super) fn went<T>(mut self, answers: &[Result<T, Failure>]) {
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Sent(line) => self.node.note(answers, Some(&line)),
            Stage::Waits | Stage::Over => self.node.note(answers, None),
        }
    }
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Over => {}
            Stage::Waits => self.node.note::<()>(&[Err(StoreError::Unavailable.into())], None),
            Stage::Sent(line) => {
                // One at a time is enough: what it finds holds for all.
                if !self.node.is_followed.swap(true, Ordering::Relaxed) {
                    let follow = follow(Weak::clone(&self.node.me), line, self.until);
                    self.node.shared.runtime.spawn(follow);
                }
            }
        }
    }
}

/// Waits in the place of whoever left. A server answers in the order of calls: when it has answered what followed the call,
/// whatever it says, it has answered the call.
async fn follow(node: Weak<Node>, mut line: Line, until: Instant) {
    let answer = timeout_at(until, line.ask(&redis::cmd("PING"))).await;
    let Some(node) = node.upgrade() else { return };
    node.is_followed.store(false, Ordering::Relaxed);
    let error = match answer {
        Err(_) => StoreError::Timeout,
        Ok(Err(error @ (StoreError::Lost | StoreError::Nonsense))) => error,
        Ok(_) => return,
    };
    node.shared.count(error);
    node.note::<()>(&[Err(error.into())], Some(&line));
}
