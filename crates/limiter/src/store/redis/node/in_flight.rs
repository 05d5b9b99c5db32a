//! Calls in flight: how many, which failures were already reported, and what happens to a call whose caller leaves.

use crate::store::redis::connection::ScriptConnection;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// The most writes in flight that bypass the batcher: nothing else bounds what they hold.
const WRITES_MAX: usize = 256;

/// Bookkeeping of the calls to one server.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    writes: AtomicUsize,
    /// One more than the id of the connection whose failure was reported last.
    last_reported: AtomicU64,
    recheck_scheduled: AtomicBool,
    follow_up_running: AtomicBool,
}

/// A write that bypasses the batcher.
#[derive(Debug)]
pub(crate) struct WritePermit<'f>(&'f AtomicUsize);

impl InFlight {
    /// A permit for a write that bypasses the batcher, unless too many are in flight.
    pub(crate) fn try_write(&self) -> Option<WritePermit<'_>> {
        let permit = WritePermit(&self.writes);
        (self.writes.fetch_add(1, Ordering::Relaxed) < WRITES_MAX).then_some(permit)
    }

    /// True for the first failure on a connection. Many calls may wait for one reply that never arrives, and that is one
    /// failure of the server.
    pub(crate) fn is_first_failure(&self, connection: &ScriptConnection) -> bool {
        // Ids start with zero, which here is none.
        let id = connection.id() + 1;
        self.last_reported.fetch_max(id, Ordering::Relaxed) < id
    }

    /// True if no recheck of the connection is scheduled yet; one is from now on.
    pub(crate) fn schedule_recheck(&self) -> bool {
        !self.recheck_scheduled.swap(true, Ordering::Relaxed)
    }

    /// The recheck is over.
    pub(crate) fn recheck_done(&self) {
        self.recheck_scheduled.store(false, Ordering::Relaxed);
    }

    /// True if no follow-up of an abandoned call is running yet; one is from now on. One is enough: its result holds for all.
    pub(crate) fn start_follow_up(&self) -> bool {
        !self.follow_up_running.swap(true, Ordering::Relaxed)
    }

    /// The follow-up is over.
    pub(crate) fn follow_up_done(&self) {
        self.follow_up_running.store(false, Ordering::Relaxed);
    }
}

impl Drop for WritePermit<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The progress of a call.
#[derive(Debug)]
pub(crate) enum CallStage {
    /// It waits for a connection.
    Connecting,
    /// It was sent on this connection.
    Sent(ScriptConnection),
}

/// A call in flight. If it is dropped before [`finish`](Self::finish), its caller has left: `abandoned` then finds out what
/// the call would have shown. Otherwise callers that wait less than the deadline would hide a server that is silent.
pub(crate) struct CallGuard<F: FnOnce(CallStage)> {
    stage: CallStage,
    abandoned: Option<F>,
}

impl<F: FnOnce(CallStage)> CallGuard<F> {
    pub(crate) const fn new(abandoned: F) -> Self {
        Self {
            stage: CallStage::Connecting,
            abandoned: Some(abandoned),
        }
    }

    /// The call is sent on this connection.
    pub(crate) fn mark_sent(&mut self, connection: ScriptConnection) -> &mut ScriptConnection {
        self.stage = CallStage::Sent(connection);
        match &mut self.stage {
            CallStage::Sent(connection) => connection,
            CallStage::Connecting => unreachable!("it was just set"),
        }
    }

    /// The call is over. Returns the connection it was sent on.
    pub(crate) fn finish(mut self) -> Option<ScriptConnection> {
        self.abandoned = None;
        match std::mem::replace(&mut self.stage, CallStage::Connecting) {
            CallStage::Sent(connection) => Some(connection),
            CallStage::Connecting => None,
        }
    }
}

impl<F: FnOnce(CallStage)> Drop for CallGuard<F> {
    fn drop(&mut self) {
        if let Some(abandoned) = self.abandoned.take() {
            abandoned(std::mem::replace(&mut self.stage, CallStage::Connecting));
        }
    }
}
