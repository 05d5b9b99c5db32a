//! Detects slow and silent clients, at no cost to the others.
//!
//! A timer that is set for every request costs as much as a decision. Here a request only counts itself; the connection is
//! checked a few times per timeout, and a client without progress for its timeout is found late by one check at most.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::Poll;
use std::time::Duration;
use tokio::time::Instant;

/// The next thing a connection needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum WaitingFor {
    /// The client has to show a password or a token.
    Authentication,
    /// The client has connected and sent no request.
    FirstRequest,
    /// The client has sent a part of a request.
    RestOfRequest,
    /// The head of a request is there, its body is not.
    Body,
    /// A request is in flight: it is our turn.
    Response,
    /// The client has replies to read.
    ClientRead,
    /// All requests are answered.
    NextRequest,
}

impl WaitingFor {
    /// The variant of this discriminant, for marks that are kept in an atomic.
    pub(in crate::server) const fn from_u8(value: u8) -> Self {
        match value {
            0 => Self::Authentication,
            1 => Self::FirstRequest,
            2 => Self::RestOfRequest,
            3 => Self::Body,
            4 => Self::Response,
            5 => Self::ClientRead,
            _ => Self::NextRequest,
        }
    }
}

/// The state of a connection at one check. If it is the same at a later one, there was no progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) struct ProgressMark {
    pub(in crate::server) waiting_for: WaitingFor,
    /// A number that changes with every step forward: requests answered, or bytes sent.
    pub(in crate::server) progress: u64,
}

/// The time without progress that a client has, by what is awaited from it.
#[derive(Clone, Copy, Debug)]
pub(in crate::server) struct IdleTimeouts {
    /// For the first request.
    pub(in crate::server) first_request: Duration,
    /// For credentials, and for the rest of a request.
    pub(in crate::server) request: Duration,
    /// For a body.
    pub(in crate::server) body: Duration,
    /// For replies to be read.
    pub(in crate::server) unread: Duration,
    /// For the next request.
    pub(in crate::server) idle: Duration,
    /// For the connection as a whole, whatever its progress.
    pub(in crate::server) age: Duration,
}

impl IdleTimeouts {
    /// No timeout at all, to be filled in.
    pub(in crate::server) const NONE: Self = Self {
        first_request: Duration::MAX,
        request: Duration::MAX,
        body: Duration::MAX,
        unread: Duration::MAX,
        idle: Duration::MAX,
        age: Duration::MAX,
    };

    const fn timeout_for(&self, waiting_for: WaitingFor) -> Duration {
        match waiting_for {
            WaitingFor::FirstRequest => self.first_request,
            WaitingFor::Authentication | WaitingFor::RestOfRequest => self.request,
            WaitingFor::Body => self.body,
            WaitingFor::ClientRead => self.unread,
            WaitingFor::NextRequest => self.idle,
            // The client cannot help it.
            WaitingFor::Response => Duration::MAX,
        }
    }
}

/// Compares the marks of one connection.
#[derive(Debug)]
pub(in crate::server) struct IdleMonitor {
    timeouts: IdleTimeouts,
    started_at: Instant,
    mark: ProgressMark,
    /// The check at which the mark was first seen.
    since: Instant,
}

impl IdleMonitor {
    pub(in crate::server) fn new(timeouts: IdleTimeouts, now: Instant) -> Self {
        Self {
            timeouts,
            started_at: now,
            mark: ProgressMark {
                waiting_for: WaitingFor::FirstRequest,
                progress: 0,
            },
            since: now,
        }
    }

    /// The time between two checks: a quarter of the shortest timeout that can still run out.
    pub(in crate::server) fn check_interval(&self) -> Duration {
        let IdleTimeouts {
            first_request,
            request,
            body,
            unread,
            idle,
            age,
        } = self.timeouts;
        let first_request = match self.mark.waiting_for {
            WaitingFor::FirstRequest => first_request,
            _ => Duration::MAX,
        };
        let shortest = first_request.min(request).min(body).min(unread).min(idle).min(age);
        (shortest / 4).clamp(INTERVAL_MIN, INTERVAL_MAX)
    }

    /// The thing the client, or the connection by its age, has run out of time for.
    pub(in crate::server) fn check(&mut self, mark: ProgressMark, now: Instant) -> Option<WaitingFor> {
        if mark != self.mark {
            (self.mark, self.since) = (mark, now);
        }
        let is_over = now.duration_since(self.since) >= self.timeouts.timeout_for(mark.waiting_for);
        let is_too_old = now.duration_since(self.started_at) >= self.timeouts.age;
        (is_over || is_too_old).then_some(mark.waiting_for)
    }
}

const INTERVAL_MIN: Duration = Duration::from_millis(1);
const INTERVAL_MAX: Duration = Duration::from_secs(5);

/// The requests of one HTTP connection.
#[derive(Debug, Default)]
pub(in crate::server) struct Activity {
    /// Requests that have started, wrapping.
    started: AtomicU32,
    /// Requests that have ended, wrapping.
    ended: AtomicU32,
    /// True if bytes arrived since the last request started.
    bytes_pending: AtomicBool,
    /// True if several requests can be in flight: then bytes alone do not mean that one has started.
    multiplexed: AtomicBool,
    /// The request whose body is awaited, by its number; 0 if none is.
    reading_body: AtomicU32,
    /// The request whose body has run out of time.
    timed_out_body: AtomicU32,
}

/// A request in flight; it ends when this is dropped.
#[derive(Debug)]
pub(in crate::server) struct RequestGuard {
    activity: Arc<Activity>,
    number: u32,
    is_multiplexed: bool,
}

impl Activity {
    /// Notes that bytes arrived.
    pub(in crate::server) fn record_bytes(&self) {
        self.bytes_pending.store(true, Ordering::Relaxed);
    }

    /// True while a request is in flight.
    pub(in crate::server) fn has_requests(&self) -> bool {
        self.started.load(Ordering::Relaxed) != self.ended.load(Ordering::Relaxed)
    }

    /// Counts a request.
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

    /// The mark of the connection now.
    pub(in crate::server) fn progress(&self) -> ProgressMark {
        let ended = self.ended.load(Ordering::Relaxed);
        let reading_body = self.reading_body.load(Ordering::Relaxed);
        let is_partial = self.bytes_pending.load(Ordering::Relaxed) && !self.multiplexed.load(Ordering::Relaxed);
        let (waiting_for, progress) = match self.has_requests() {
            true if reading_body != 0 => (WaitingFor::Body, reading_body),
            true => (WaitingFor::Response, ended),
            false if is_partial => (WaitingFor::RestOfRequest, ended),
            false if ended == 0 => (WaitingFor::FirstRequest, ended),
            false => (WaitingFor::NextRequest, ended),
        };
        ProgressMark {
            waiting_for,
            progress: progress.into(),
        }
    }

    /// Lets the request whose body is awaited run out of time when it is polled next.
    pub(in crate::server) fn time_out_body(&self) {
        let reading_body = self.reading_body.load(Ordering::Relaxed);
        self.timed_out_body.store(reading_body, Ordering::Relaxed);
    }
}

impl RequestGuard {
    /// True if other requests may be in flight on the same connection.
    pub(in crate::server) const fn is_multiplexed(&self) -> bool {
        self.is_multiplexed
    }

    /// Awaits a body; none if it takes longer than `timeout`.
    ///
    /// The requests of HTTP/1 are polled with their connection, so the monitor can end them. Those of HTTP/2 are tasks of
    /// their own and have a timer each.
    pub(in crate::server) async fn read_body<T>(&self, timeout: Duration, body: impl Future<Output = T>) -> Option<T> {
        if self.is_multiplexed {
            // In a box: HTTP/1 should not reserve the memory of the timer.
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
        // Bytes that arrived since it started were its body.
        self.activity.bytes_pending.store(false, Ordering::Relaxed);
        self.activity.ended.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
