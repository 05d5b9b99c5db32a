//! Cuts off clients that are slow or silent, at no cost to the others.
//!
//! A timer that is set for every request costs as much as a decision. Here a request only counts itself; the connection is
//! looked at every few seconds, and whoever has not come further since the time allowed is cut off, late by one look at
//! most.

use super::settings::Bounds;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::Poll;
use std::time::Duration;
use tokio::time::Instant;

/// What happens on one connection.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    /// Requests that have begun, wrapping.
    begun: AtomicU32,
    /// Requests that have ended, wrapping.
    ended: AtomicU32,
    /// Whether bytes came since the last request began.
    heard: AtomicBool,
    /// Whether several requests can be on their way at a time: then bytes alone do not mean that one has begun.
    multiplexed: AtomicBool,
    /// The request whose body is waited for, by its number; 0 if none is.
    reading: AtomicU32,
    /// The request whose body has had its time.
    late: AtomicU32,
}

/// A request on its way.
#[derive(Debug)]
pub(super) struct Beat {
    pulse: Arc<Pulse>,
    number: u32,
    is_multiplexed: bool,
}

/// What a look comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// All is well.
    Fine,
    /// A body has had its time: its request is to be polled, and sees it.
    Late,
    /// The client has had its time.
    Over,
}

/// Looks at a pulse.
#[derive(Debug)]
pub(super) struct Watch {
    pulse: Arc<Pulse>,
    bounds: Bounds,
    /// Requests that had ended when it last looked.
    ended: u32,
    /// When something last ended, as far as was seen.
    since: Instant,
    /// When the bytes of an unfinished request were first seen.
    heard_since: Option<Instant>,
    /// The request whose body was waited for at the last look, and when it was first seen.
    reading: (u32, Instant),
}

impl Pulse {
    /// Bytes came.
    pub(super) fn hear(&self) {
        self.heard.store(true, Ordering::Relaxed);
    }

    /// Whether a request is on its way.
    pub(super) fn is_busy(&self) -> bool {
        self.begun.load(Ordering::Relaxed) != self.ended.load(Ordering::Relaxed)
    }

    /// A request begins; it ends when the beat is dropped.
    pub(super) fn begin(self: &Arc<Self>, is_multiplexed: bool) -> Beat {
        let before = self.begun.fetch_add(1, Ordering::Relaxed);
        self.heard.store(false, Ordering::Relaxed);
        if is_multiplexed {
            self.multiplexed.store(true, Ordering::Relaxed);
        }
        Beat {
            pulse: Arc::clone(self),
            number: before.wrapping_add(1),
            is_multiplexed,
        }
    }
}

impl Beat {
    /// Whether others may be on their way beside it.
    pub(super) const fn is_multiplexed(&self) -> bool {
        self.is_multiplexed
    }

    /// Waits for a body, at most for the time it may take; nothing if it takes longer.
    ///
    /// The requests of a plain connection are polled with it, so the watch can tell them that their time is up. Those of
    /// a multiplexed one run on their own and have a timer each.
    pub(super) async fn body<T>(&self, within: Duration, body: impl Future<Output = T>) -> Option<T> {
        if self.is_multiplexed {
            // A timer takes room, which the others should not carry.
            return Box::pin(tokio::time::timeout(within, body)).await.ok();
        }
        self.pulse.reading.store(self.number, Ordering::Relaxed);
        let mut body = pin!(body);
        let read = poll_fn(|cx| {
            if self.pulse.late.load(Ordering::Relaxed) == self.number {
                return Poll::Ready(None);
            }
            body.as_mut().poll(cx).map(Some)
        });
        let read = read.await;
        self.pulse.reading.store(0, Ordering::Relaxed);
        read
    }
}

impl Drop for Beat {
    fn drop(&mut self) {
        // What was heard since it began was its body.
        self.pulse.heard.store(false, Ordering::Relaxed);
        self.pulse.ended.fetch_add(1, Ordering::Relaxed);
    }
}

impl Watch {
    pub(super) fn new(pulse: Arc<Pulse>, bounds: Bounds, now: Instant) -> Self {
        Self {
            pulse,
            bounds,
            ended: 0,
            since: now,
            heard_since: None,
            reading: (0, now),
        }
    }

    /// How long to wait before looking again: a quarter of the time that is allowed.
    pub(super) fn every(&self) -> Duration {
        let Bounds {
            header_timeout,
            idle_timeout,
            body_timeout,
            ..
        } = self.bounds;
        (header_timeout.min(idle_timeout).min(body_timeout) / 4).max(Duration::from_millis(1))
    }

    /// Whether the client, or a body, has had its time.
    pub(super) fn look(&mut self, now: Instant) -> Look {
        let reading = self.pulse.reading.load(Ordering::Relaxed);
        if reading == 0 || reading != self.reading.0 {
            self.reading = (reading, now);
        } else if now.duration_since(self.reading.1) >= self.bounds.body_timeout {
            self.pulse.late.store(reading, Ordering::Relaxed);
            return Look::Late;
        }
        if self.is_over(now) { Look::Over } else { Look::Fine }
    }

    fn is_over(&mut self, now: Instant) -> bool {
        let Pulse {
            begun,
            ended,
            heard,
            multiplexed,
            ..
        } = &*self.pulse;
        let ended = ended.load(Ordering::Relaxed);
        let busy = begun.load(Ordering::Relaxed) != ended;
        if busy || ended != self.ended {
            self.ended = ended;
            self.since = now;
            self.heard_since = None;
        }
        if busy {
            // What we take our time for is not the client's fault; its body has a time of its own.
            return false;
        }
        let multiplexed = multiplexed.load(Ordering::Relaxed);
        if heard.load(Ordering::Relaxed) && !multiplexed {
            let heard_since = *self.heard_since.get_or_insert(now);
            return now.duration_since(heard_since) >= self.bounds.header_timeout;
        }
        // Who has just connected is expected to say something.
        let first = ended == 0;
        let allowed = if first {
            self.bounds.header_timeout
        } else {
            self.bounds.idle_timeout
        };
        now.duration_since(self.since) >= allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Context;

    const SECOND: Duration = Duration::from_secs(1);

    fn watched() -> (Arc<Pulse>, Watch, Instant) {
        let pulse = Arc::new(Pulse::default());
        let now = Instant::now();
        let watch = Watch::new(Arc::clone(&pulse), Bounds::default(), now);
        (pulse, watch, now)
    }

    #[test]
    fn who_connects_and_says_nothing_is_cut_off() {
        let (_, mut watch, now) = watched();
        assert!(!watch.is_over(now + 4 * SECOND));
        assert!(watch.is_over(now + 5 * SECOND));
    }

    #[test]
    fn who_drips_bytes_of_a_request_is_cut_off() {
        let (pulse, mut watch, now) = watched();
        drop(pulse.begin(false));
        assert!(!watch.is_over(now + 9 * SECOND));
        for second in 20..25 {
            pulse.heard.store(true, Ordering::Relaxed);
            assert!(!watch.is_over(now + second * SECOND), "{second}");
        }
        assert!(watch.is_over(now + 25 * SECOND));
    }

    #[test]
    fn who_is_silent_between_requests_may_be_so_for_a_while() {
        let (pulse, mut watch, now) = watched();
        drop(pulse.begin(false));
        assert!(!watch.is_over(now + 10 * SECOND));
        assert!(!watch.is_over(now + 84 * SECOND));
        assert!(watch.is_over(now + 85 * SECOND));
    }

    #[test]
    fn the_body_of_a_request_is_not_the_beginning_of_the_next() {
        let (pulse, mut watch, now) = watched();
        let beat = pulse.begin(false);
        pulse.heard.store(true, Ordering::Relaxed);
        drop(beat);
        assert!(!watch.is_over(now + 10 * SECOND));
        assert!(!watch.is_over(now + 84 * SECOND));
        assert!(watch.is_over(now + 85 * SECOND));
    }

    #[test]
    fn who_waits_for_an_answer_is_never_cut_off() {
        let (pulse, mut watch, now) = watched();
        let beat = pulse.begin(false);
        assert!(!watch.is_over(now + 1_000 * SECOND));
        drop(beat);
        assert!(!watch.is_over(now + 1_074 * SECOND));
    }

    #[test]
    fn bytes_between_the_requests_of_a_multiplexed_connection_are_no_request() {
        let (pulse, mut watch, now) = watched();
        drop(pulse.begin(true));
        pulse.heard.store(true, Ordering::Relaxed);
        assert!(!watch.is_over(now));
        assert!(!watch.is_over(now + 74 * SECOND));
        assert!(watch.is_over(now + 75 * SECOND));
    }

    #[test]
    fn a_body_that_does_not_come_is_late_and_the_next_one_has_its_own_time() {
        let (pulse, mut watch, now) = watched();
        for start in [0, 100] {
            let beat = pulse.begin(false);
            let mut body = Box::pin(beat.body(Duration::ZERO, std::future::pending::<()>()));
            let mut cx = Context::from_waker(std::task::Waker::noop());
            assert!(body.as_mut().poll(&mut cx).is_pending());
            assert_eq!(watch.look(now + start * SECOND), Look::Fine);
            assert_eq!(watch.look(now + (start + 9) * SECOND), Look::Fine);
            assert!(body.as_mut().poll(&mut cx).is_pending());
            assert_eq!(watch.look(now + (start + 10) * SECOND), Look::Late);
            assert_eq!(body.as_mut().poll(&mut cx), Poll::Ready(None));
        }
    }
}
