//! Signals to a running server.

use tokio::signal::unix::{self, SignalKind};
use tokio::sync::Notify;

/// A signal by its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    /// SIGTERM, or Ctrl-C.
    Stop,
    /// SIGHUP.
    Reload,
}

/// The signal handlers.
pub(super) struct Signals {
    terminate: unix::Signal,
    interrupt: unix::Signal,
    hang_up: unix::Signal,
}

impl Signals {
    /// Installs the handlers: from here on these signals no longer end the program.
    pub(super) fn listen() -> std::io::Result<Self> {
        Ok(Self {
            terminate: unix::signal(SignalKind::terminate())?,
            interrupt: unix::signal(SignalKind::interrupt())?,
            hang_up: unix::signal(SignalKind::hangup())?,
        })
    }

    /// Completes when the server is to stop. Until then requests for a reload are passed on.
    pub(super) async fn stop_requested(&mut self, reload: &Notify) {
        while self.next().await == Signal::Reload {
            reload.notify_one();
        }
    }

    pub(super) async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.terminate.recv() => Signal::Stop,
            _ = self.interrupt.recv() => Signal::Stop,
            _ = self.hang_up.recv() => Signal::Reload,
        }
    }
}
