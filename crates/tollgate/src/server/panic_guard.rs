//! Isolation of panics: a call that panics is answered with an error, and ends neither its connection nor another call.
//!
//! Calls of several callers share a connection, and calls are polled on the connection's task, so a panic that left the
//! call would end all of them.

use super::gate::Gate;
use super::telemetry::Protocol;
use std::any::Any;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::Poll;

/// The text for the caller.
pub(super) const PANIC_TEXT: &str = "internal error; the server's log has the cause";

/// Returns the output of a call; none if it panicked, which is counted and logged.
pub(super) async fn guard<F: Future>(gate: &Gate, protocol: Protocol, mut call: Pin<&mut F>) -> Option<F::Output> {
    poll_fn(|cx| match guard_now(gate, protocol, || call.as_mut().poll(cx)) {
        Some(Poll::Ready(output)) => Poll::Ready(Some(output)),
        Some(Poll::Pending) => Poll::Pending,
        None => Poll::Ready(None),
    })
    .await
}

/// Does the same for a call that does not wait.
pub(super) fn guard_now<T>(gate: &Gate, protocol: Protocol, call: impl FnOnce() -> T) -> Option<T> {
    // The state that calls share stays consistent: counters are changed under locks by code that does not panic in between,
    // and locks recover from poisoning.
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(output) => Some(output),
        Err(payload) => {
            gate.metrics().faults.add_panic(protocol, panic_message(&*payload));
            None
        }
    }
}

/// The message of a panic, if it has one.
fn panic_message(payload: &(dyn Any + Send)) -> &str {
    match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(message), _) => message,
        (None, Some(message)) => message,
        (None, None) => "no message",
    }
}

/// Panics in the middle of a decision about this domain, in tests.
#[cfg(test)]
pub(super) const PANIC_DOMAIN: &str = "panic";
/// Panics in the middle of a decision about this cost, in tests.
#[cfg(test)]
pub(super) const PANIC_COST: u64 = 666_666;

#[cfg(test)]
mod tests;
