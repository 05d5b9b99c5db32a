//! The front ends of one server: bound before any of them answers, started together and ended together.

use super::signals::{Signal, Signals};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::{Id, JoinError, JoinSet};
use tollgate::server::gate::{Gate, Phase};
use tollgate::server::net::listen::{Address, Listener};

/// Front ends that listen, and those that answer.
pub(super) struct FrontEnds {
    /// Where each listens, with the port it was given.
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

    /// Listens at an address, unless the front end is turned off.
    ///
    /// # Errors
    /// Why nobody can listen there, and what to do.
    pub(super) async fn bind(
        &mut self,
        name: &'static str,
        address: Option<&Address>,
    ) -> Result<Option<Listener>, String> {
        let Some(address) = address else { return Ok(None) };
        let listener = Listener::bind(address).await.map_err(|error| {
            let next_step = match error.kind() {
                io::ErrorKind::AddrInUse => &format!(
                    "another program listens there; stop it, or choose another with --set server.{name}=127.0.0.1:0 \
                     (0 takes any that is free)"
                ),
                io::ErrorKind::PermissionDenied => "this user may not; choose a port above 1023 or another path",
                _ => "is it an address of this machine?",
            };
            format!("cannot listen on {address}: {error}; {next_step}")
        })?;
        let bound = listener.address().map_err(|error| error.to_string())?;
        self.bound.push((name, bound));
        Ok(Some(listener))
    }

    /// Where they listen.
    pub(super) fn bound(&self) -> &[(&'static str, Address)] {
        &self.bound
    }

    /// Comes to an end when front ends are to.
    pub(super) fn stopping(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut stop = self.stop.subscribe();
        async move {
            // Without a sender there is nobody left to serve for.
            let _ = stop.wait_for(|stop| *stop).await;
        }
    }

    /// Starts one.
    pub(super) fn spawn(&mut self, name: &'static str, serve: impl Future<Output = ()> + Send + 'static) {
        let task = self.running.spawn(serve);
        self.names.push((task.id(), name));
    }

    /// From ready to the end of the last.
    ///
    /// # Errors
    /// That one ended by itself. The others are stopped then.
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
                        tracing::info!(within = ?drain, "stopping: no new connections, requests in flight are answered");
                        gate.advance_phase(Phase::Draining);
                        self.stop.send_replace(true);
                    }
                },
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// What is wrong with how one ended, if anything is.
    fn failure(&self, exit: Result<(Id, ()), JoinError>, phase: Phase) -> Option<String> {
        let (id, error) = match exit {
            Ok((id, ())) if phase != Phase::Draining => (id, "nothing told it to".to_owned()),
            Err(error) if error.is_panic() => (error.id(), error.to_string()),
            Ok(_) | Err(_) => return None,
        };
        let name = self.names.iter().find(|(task, _)| *task == id);
        Some(format!(
            "the front end {} ended: {error}",
            name.map_or("", |(_, name)| name)
        ))
    }
}
