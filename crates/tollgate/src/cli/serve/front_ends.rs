//! The front ends of one server: all are bound before any serves, and all are drained together.

use super::signals::{Signal, Signals};
use crate::server::gate::{Gate, Phase};
use crate::server::net::listen::{Address, Listener};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::{Id, JoinError, JoinSet};

/// Front ends that are bound, and those that run.
pub(super) struct FrontEnds {
    /// The address of each, with the port it was assigned.
    bound: Vec<(&'static str, Address)>,
    running: JoinSet<()>,
    names: Vec<(Id, &'static str)>,
    stop: watch::Sender<bool>,
}

impl FrontEnds {
    pub(super) fn new() -> Self {
        Self {
            bound: Vec::new(),
            running: JoinSet::new(),
            names: Vec::new(),
            stop: watch::Sender::new(false),
        }
    }

    /// Binds an address, unless the front end is disabled.
    ///
    /// # Errors
    /// The reason why the address cannot be bound, and the next step.
    pub(super) async fn bind(
        &mut self,
        name: &'static str,
        address: Option<&Address>,
    ) -> Result<Option<Listener>, String> {
        let Some(address) = address else { return Ok(None) };
        let bound = Listener::bind(address).await;
        match self.bound_listener(name, address, bound) {
            Ok((listener, _)) => Ok(Some(listener)),
            Err((_, text)) => Err(text),
        }
    }

    /// Records a listener that was bound elsewhere. Returns it with its actual address.
    ///
    /// # Errors
    /// The error, and its text with the next step.
    pub(super) fn bound_listener(
        &mut self,
        name: &'static str,
        address: &Address,
        bound: io::Result<Listener>,
    ) -> Result<(Listener, Address), (io::Error, String)> {
        let bound = bound.and_then(|listener| listener.address().map(|address| (listener, address)));
        let (listener, actual) = bound.map_err(|error| {
            let next_step = match error.kind() {
                io::ErrorKind::AddrInUse => &format!(
                    "another program uses it; stop that, or choose another address with \
                     --set server.{name}=127.0.0.1:0 (port 0 takes a free one)"
                ),
                io::ErrorKind::PermissionDenied => "permission denied; choose a port above 1023, or another path",
                _ => "is it an address of this machine?",
            };
            let text = format!("cannot listen on {address}: {error}; {next_step}");
            (error, text)
        })?;
        self.bound.push((name, actual.clone()));
        Ok((listener, actual))
    }

    /// The addresses they are bound to.
    pub(super) fn bound(&self) -> &[(&'static str, Address)] {
        &self.bound
    }

    /// True once front ends are to drain.
    pub(super) fn stop_signal(&self) -> watch::Receiver<bool> {
        self.stop.subscribe()
    }

    /// Completes when front ends are to drain.
    pub(super) fn stopping(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut stop = self.stop_signal();
        async move {
            // The sender is dropped only when all is over.
            let _ = stop.wait_for(|stop| *stop).await;
        }
    }

    /// Spawns one.
    pub(super) fn spawn(&mut self, name: &'static str, serve: impl Future<Output = ()> + Send + 'static) {
        let task = self.running.spawn(serve);
        self.names.push((task.id(), name));
    }

    /// Runs until the last front end has ended, reacting to signals.
    ///
    /// # Errors
    /// A front end ended by itself. The others are drained then.
    pub(super) async fn run(
        mut self,
        gate: &Gate,
        signals: &mut Signals,
        reload: &Arc<Notify>,
        drain: Duration,
    ) -> Result<(), String> {
        let mut failure = None;
        loop {
            tokio::select! {
                exit = self.running.join_next_with_id() => match exit {
                    None => break,
                    Some(exit) => if let Some(text) = self.failure(exit, gate.phase()) {
                        gate.advance_phase(Phase::Draining);
                        self.stop.send_replace(true);
                        failure.get_or_insert(text);
                    },
                },
                signal = signals.next() => match signal {
                    Signal::Reload => reload.notify_one(),
                    Signal::Stop if gate.phase() == Phase::Draining => {
                        tracing::warn!("second stop signal; aborting requests in flight");
                        self.running.abort_all();
                    }
                    Signal::Stop => {
                        tracing::info!(within = ?drain, "draining: no new connections; finishing requests in flight");
                        gate.advance_phase(Phase::Draining);
                        self.stop.send_replace(true);
                    }
                },
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// The failure of a front end that ended, if it was not asked to.
    fn failure(&self, exit: Result<(Id, ()), JoinError>, phase: Phase) -> Option<String> {
        let (id, error) = match exit {
            Ok((id, ())) if phase != Phase::Draining => (id, "it returned before the drain".to_owned()),
            Err(error) if error.is_panic() => (error.id(), error.to_string()),
            Ok(_) | Err(_) => return None,
        };
        let name = self.names.iter().find(|(task, _)| *task == id);
        Some(format!(
            "the {} front end ended unexpectedly: {error}",
            name.map_or("", |(_, name)| name)
        ))
    }
}
