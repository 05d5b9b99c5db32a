//! A connection as the serving loop sees it.

use crate::server::net::idle::{ProgressMark, WaitingFor};
use crate::server::net::{ConnectionHandle, TimeoutAction};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

/// The state of a connection after its last poll. The loop and the connection belong to one task, so relaxed atomics do.
#[derive(Debug)]
pub(super) struct RespHandle {
    waiting_for: AtomicU8,
    progress: AtomicU64,
    is_busy: AtomicBool,
    is_closing: AtomicBool,
}

impl RespHandle {
    pub(super) const fn new() -> Self {
        Self {
            waiting_for: AtomicU8::new(WaitingFor::NextRequest as u8),
            progress: AtomicU64::new(0),
            is_busy: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
        }
    }

    pub(super) fn set_progress(&self, mark: ProgressMark, is_busy: bool) {
        self.waiting_for.store(mark.waiting_for as u8, Ordering::Relaxed);
        self.progress.store(mark.progress, Ordering::Relaxed);
        self.is_busy.store(is_busy, Ordering::Relaxed);
    }

    /// Notes that commands are executed by a store on the network.
    pub(super) fn set_executing(&self) {
        self.waiting_for.store(WaitingFor::Response as u8, Ordering::Relaxed);
        self.is_busy.store(true, Ordering::Relaxed);
    }

    /// True if the server stops, and no further commands are to be executed.
    pub(super) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Relaxed)
    }
}

impl ConnectionHandle for RespHandle {
    fn progress(&self) -> ProgressMark {
        ProgressMark {
            waiting_for: WaitingFor::from_u8(self.waiting_for.load(Ordering::Relaxed)),
            progress: self.progress.load(Ordering::Relaxed),
        }
    }

    fn is_busy(&self) -> bool {
        self.is_busy.load(Ordering::Relaxed)
    }

    fn lingers(&self) -> bool {
        true
    }

    /// The protocol has no farewell: the replies are sent, the stream is shut down, and what still arrives is dropped.
    fn start_close(&self, _: Duration) -> Option<Duration> {
        self.is_closing.store(true, Ordering::Relaxed);
        Some(LINGER)
    }

    fn on_timeout(&self, _: WaitingFor) -> TimeoutAction {
        TimeoutAction::Abort
    }
}

/// The time in which bytes are dropped after the last reply.
const LINGER: Duration = Duration::from_millis(100);
