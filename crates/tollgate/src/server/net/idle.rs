//! Cuts off clients that are slow or silent, at no cost to the others.
//!
//! A timer that is set for every request costs as much as a decision. Here a request only counts itself; the connection is
//! looked at every few seconds, and whoever has not come further since the time allowed is cut off, late by one look at
//! most.

use crate::server::http::HttpLimits;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::Poll;
use std::time::Duration;
use tokio::time::Instant;

/// What happens on one connection.
#[derive(Debug, Default)]
pub(in crate::server) struct Activity {
    /// Requests that have begun, wrapping.
    started: AtomicU32,
    /// Requests that have ended, wrapping.
    ended: AtomicU32,
    /// Whether bytes came since the last request began.
    bytes_pending: AtomicBool,
    /// Whether several requests can be on their way at a time: then bytes alone do not mean that one has begun.
    multiplexed: AtomicBool,
    /// The request whose body is waited for, by its number; 0 if none is.
    reading_body: AtomicU32,
    /// The request whose body has had its time.
    timed_out_body: AtomicU32,
}

/// A request on its way.
#[derive(Debug)]
pub(in crate::server) struct RequestGuard {
    activity: Arc<Activity>,
    number: u32,
    is_multiplexed: bool,
}

/// What a look comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum IdleState {
    /// All is well.
    Active,
    /// A body has had its time: its request is to be polled, and sees it.
    BodyTimeout,
    /// The client has had its time.
    Expired,
}

/// Looks at a pulse.
#[derive(Debug)]
pub(in crate::server) struct IdleMonitor {
    activity: Arc<Activity>,
    limits: HttpLimits,
    /// Requests that had ended when it last looked.
    ended: u32,
    /// When something last ended, as far as was seen.
    idle_since: Instant,
    /// When the bytes of an unfinished request were first seen.
    partial_since: Option<Instant>,
    /// The request whose body was waited for at the last look, and when it was first seen.
    reading: (u32, Instant),
}

impl Activity {
    /// Bytes came.
    pub(in crate::server) fn record_bytes(&self) {
        self.bytes_pending.store(true, Ordering::Relaxed);
    }

    /// Whether a request is on its way.
    pub(in crate::server) fn has_requests(&self) -> bool {
        self.started.load(Ordering::Relaxed) != self.ended.load(Ordering::Relaxed)
    }

    /// A request begins; it ends when the beat is dropped.
    pub(in crate::server) fn start_request(self: &Arc<Self>, is_multiplexed: bool) -> RequestGuard {
        let before = self.started.fetch_add(1, Ordering::Relaxed);
        self.bytes_pending.store(false, Ordering::Relaxed);
        if is_multiplexed {
            self.multiplexed.store(true, Ordering::Relaxed);
        }
        RequestGuard {
            activity: Arc::clone(self),
            number: before.wrapping_add(1),
            is_multiplexed,
        }
    }
}

impl RequestGuard {
    /// Whether others may be on their way beside it.
    pub(in crate::server) const fn is_multiplexed(&self) -> bool {
        self.is_multiplexed
    }

    /// Waits for a body, at most for the time it may take; nothing if it takes longer.
    ///
    /// The requests of a plain connection are polled with it, so the watch can tell them that their time is up. Those of
    /// a multiplexed one run on their own and have a timer each.
    pub(in crate::server) async fn read_body<T>(&self, timeout: Duration, body: impl Future<Output = T>) -> Option<T> {
        if self.is_multiplexed {
            // A timer takes room, which the others should not carry.
            return Box::pin(tokio::time::timeout(timeout, body)).await.ok();
        }
        self.activity.reading_body.store(self.number, Ordering::Relaxed);
        let mut body = pin!(body);
        let read = poll_fn(|cx| {
            if self.activity.timed_out_body.load(Ordering::Relaxed) == self.number {
                return Poll::Ready(None);
            }
            body.as_mut().poll(cx).map(Some)
        });
        let read = read.await;
        self.activity.reading_body.store(0, Ordering::Relaxed);
        read
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        // What was heard since it began was its body.
        self.activity.bytes_pending.store(false, Ordering::Relaxed);
        self.activity.ended.fetch_add(1, Ordering::Relaxed);
    }
}

impl IdleMonitor {
    pub(in crate::server) fn new(activity: Arc<Activity>, limits: HttpLimits, now: Instant) -> Self {
        Self {
            activity,
            limits,
            ended: 0,
            idle_since: now,
            partial_since: None,
            reading: (0, now),
        }
    }

    /// How long to wait before looking again: a quarter of the time that is allowed.
    pub(in crate::server) fn check_interval(&self) -> Duration {
        let HttpLimits {
            header_timeout,
            idle_timeout,
            body_timeout,
            ..
        } = self.limits;
        (header_timeout.min(idle_timeout).min(body_timeout) / 4).max(Duration::from_millis(1))
    }

    /// Whether the client, or a body, has had its time.
    pub(in crate::server) fn check(&mut self, now: Instant) -> IdleState {
        let reading = self.activity.reading_body.load(Ordering::Relaxed);
        if reading == 0 || reading != self.reading.0 {
            self.reading = (reading, now);
        } else if now.duration_since(self.reading.1) >= self.limits.body_timeout {
            self.activity.timed_out_body.store(reading, Ordering::Relaxed);
            return IdleState::BodyTimeout;
        }
        if self.is_expired(now) {
            IdleState::Expired
        } else {
            IdleState::Active
        }
    }

    fn is_expired(&mut self, now: Instant) -> bool {
        let Activity {
            started: begun,
            ended,
            bytes_pending: heard,
            multiplexed,
            ..
        } = &*self.activity;
        let ended = ended.load(Ordering::Relaxed);
        let busy = begun.load(Ordering::Relaxed) != ended;
        if busy || ended != self.ended {
            self.ended = ended;
            self.idle_since = now;
            self.partial_since = None;
        }
        if busy {
            // What we take our time for is not the client's fault; its body has a time of its own.
            return false;
        }
        let multiplexed = multiplexed.load(Ordering::Relaxed);
        if heard.load(Ordering::Relaxed) && !multiplexed {
            let partial_since = *self.partial_since.get_or_insert(now);
            return now.duration_since(partial_since) >= self.limits.header_timeout;
        }
        // Who has just connected is expected to say something.
        let first = ended == 0;
        let allowed = if first {
            self.limits.header_timeout
        } else {
            self.limits.idle_timeout
        };
        now.duration_since(self.idle_since) >= allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Context;

    const SECOND: Duration = Duration::from_secs(1);

    fn monitored() -> (Arc<Activity>, IdleMonitor, Instant) {
        let activity = Arc::new(Activity::default());
        let now = Instant::now();
        let monitor = IdleMonitor::new(Arc::clone(&activity), HttpLimits::default(), now);
        (activity, monitor, now)
    }

    #[test]
    fn who_connects_and_says_nothing_is_cut_off() {
        let (_, mut monitor, now) = monitored();
        assert!(!monitor.is_expired(now + 4 * SECOND));
        assert!(monitor.is_expired(now + 5 * SECOND));
    }

    #[test]
    fn who_drips_bytes_of_a_request_is_cut_off() {
        let (activity, mut monitor, now) = monitored();
        drop(activity.start_request(false));
        assert!(!monitor.is_expired(now + 9 * SECOND));
        for second in 20..25 {
            activity.bytes_pending.store(true, Ordering::Relaxed);
            assert!(!monitor.is_expired(now + second * SECOND), "{second}");
        }
        assert!(monitor.is_expired(now + 25 * SECOND));
    }

    #[test]
    fn who_is_silent_between_requests_may_be_so_for_a_while() {
        let (activity, mut monitor, now) = monitored();
        drop(activity.start_request(false));
        assert!(!monitor.is_expired(now + 10 * SECOND));
        assert!(!monitor.is_expired(now + 84 * SECOND));
        assert!(monitor.is_expired(now + 85 * SECOND));
    }

    #[test]
    fn the_body_of_a_request_is_not_the_beginning_of_the_next() {
        let (activity, mut monitor, now) = monitored();
        let guard = activity.start_request(false);
        activity.bytes_pending.store(true, Ordering::Relaxed);
        drop(guard);
        assert!(!monitor.is_expired(now + 10 * SECOND));
        assert!(!monitor.is_expired(now + 84 * SECOND));
        assert!(monitor.is_expired(now + 85 * SECOND));
    }

    #[test]
    fn who_waits_for_an_answer_is_never_cut_off() {
        let (activity, mut monitor, now) = monitored();
        let guard = activity.start_request(false);
        assert!(!monitor.is_expired(now + 1_000 * SECOND));
        drop(guard);
        assert!(!monitor.is_expired(now + 1_074 * SECOND));
    }

    #[test]
    fn bytes_between_the_requests_of_a_multiplexed_connection_are_no_request() {
        let (activity, mut monitor, now) = monitored();
        drop(activity.start_request(true));
        activity.bytes_pending.store(true, Ordering::Relaxed);
        assert!(!monitor.is_expired(now));
        assert!(!monitor.is_expired(now + 74 * SECOND));
        assert!(monitor.is_expired(now + 75 * SECOND));
    }

    #[test]
    fn a_body_that_does_not_come_is_late_and_the_next_one_has_its_own_time() {
        let (activity, mut monitor, now) = monitored();
        for start in [0, 100] {
            let guard = activity.start_request(false);
            let mut body = Box::pin(guard.read_body(Duration::ZERO, std::future::pending::<()>()));
            let mut cx = Context::from_waker(std::task::Waker::noop());
            assert!(body.as_mut().poll(&mut cx).is_pending());
            assert_eq!(monitor.check(now + start * SECOND), IdleState::Active);
            assert_eq!(monitor.check(now + (start + 9) * SECOND), IdleState::Active);
            assert!(body.as_mut().poll(&mut cx).is_pending());
            assert_eq!(monitor.check(now + (start + 10) * SECOND), IdleState::BodyTimeout);
            assert_eq!(body.as_mut().poll(&mut cx), Poll::Ready(None));
        }
    }
}
