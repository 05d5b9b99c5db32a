//! The wait of a request for a slot.

use super::PriorityClass;
use super::gate::{ProtectionGate, SlotGuard};
use crate::admission::denial::Denial;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Sleep, sleep};
use tollgate_limiter::core::protect::WaiterId;

/// A request in the queue: ready with its slot, or with a denial. Dropping it leaves the queue.
pub(crate) struct SlotWaiter {
    gate: ProtectionGate,
    waiter: WaiterId,
    class: PriorityClass,
    timeout: Pin<Box<Sleep>>,
    has_left: bool,
}

impl SlotWaiter {
    pub(super) fn new(gate: ProtectionGate, waiter: WaiterId, class: PriorityClass, wait_max: Duration) -> Self {
        Self {
            gate,
            waiter,
            class,
            timeout: Box::pin(sleep(wait_max)),
            has_left: false,
        }
    }
}

impl Future for SlotWaiter {
    type Output = Result<SlotGuard, Box<Denial>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Some(slot) = this.gate.poll_waiter(this.waiter, this.class, cx.waker()) {
            this.has_left = true;
            return Poll::Ready(slot.ok_or_else(ProtectionGate::full));
        }
        if this.timeout.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        this.has_left = true;
        let slot = this.gate.leave(this.waiter, this.class);
        Poll::Ready(slot.ok_or_else(ProtectionGate::full))
    }
}

impl Drop for SlotWaiter {
    fn drop(&mut self) {
        if !self.has_left {
            // A slot that was granted meanwhile goes to the next.
            drop(self.gate.leave(self.waiter, self.class));
        }
    }
}

impl fmt::Debug for SlotWaiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlotWaiter")
            .field("class", &self.class)
            .finish_non_exhaustive()
    }
}
