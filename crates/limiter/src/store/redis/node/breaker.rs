//! The circuit breaker: it opens after repeated failures of a server, so that no request waits for it, and closes when
//! background probes succeed.
//!
//! Time is an argument. It records calls, not requests: all requests of a failed call are one failure.

use crate::store::BreakerState;
use crate::store::redis::context::{BreakerConfig, OpenFor};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tollgate_core::{Micros, Timestamp};

/// The result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallResult {
    Ok,
    /// It failed, or timed out.
    Failed,
    /// It was not made: there was no connection.
    Unreachable,
}

/// The share of failed calls that opens it, in percent, of at least this many calls in a second.
const CALLS_MIN: u32 = 20;
const FAILED_PERCENT_MAX: u32 = 50;
const SECOND: Micros = Micros::from_secs(1);

/// The longest time that a server may be unreachable after a failure. A connection that failed once is closed, and a
/// new one takes some round trips: that is one failure, not one for each call meanwhile. It suffices for a server that
/// was frozen for 50 ms, and an unreachable one is noticed within 100 ms.
const UNREACHABLE_MAX: Micros = Micros::from_millis(60);

/// The times a server may be unreachable for so long in one second, and shortly after the breaker has closed. Each time
/// costs a few callers their deadline.
const UNREACHABLE_PER_SECOND_MAX: u64 = 2;
const UNREACHABLE_AFTER_REOPEN_MAX: u64 = 1;

/// The consecutive probes that close it, at first and at most: doubled each time that it opens again within the window.
/// So a flapping connection is rarely trusted, and a server that was down once soon is.
const PROBES_MIN: u32 = 2;
const PROBES_MAX: u32 = 8;
const REOPEN_WINDOW: Micros = Micros::from_secs(10);

/// The time after which another request is the trial: the caller of the first may have left.
const TRIAL_TIMEOUT: Micros = Micros::from_secs(1);

/// A circuit breaker.
#[derive(Debug)]
pub(crate) struct Breaker {
    config: BreakerConfig,
    /// The state of `machine`, readable without its lock.
    state: AtomicU8,
    machine: Mutex<Machine>,
}

#[derive(Debug)]
struct Machine {
    config: BreakerConfig,
    /// The longest time that the server may be unreachable after a failure.
    unreachable_max: Micros,
    state: State,
    /// Consecutive failures, and the time of the first.
    consecutive: (u32, Timestamp),
    /// The current second: its start, its calls, and those that failed.
    second: (Timestamp, u32, u32),
    /// The time in this second that the server was unreachable, and when that was last seen.
    unreachable: (Micros, Timestamp),
    /// Consecutive probes that close it.
    probes_needed: u32,
    closed_at: Option<Timestamp>,
    changes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed,
    /// With the number of probes that have succeeded.
    Open {
        since: Timestamp,
        probes_ok: u32,
    },
    /// One request is the trial, since then.
    HalfOpen(Timestamp),
}

impl Breaker {
    /// `deadline` is that of a call.
    pub(crate) fn new(config: BreakerConfig, deadline: Duration) -> Self {
        Self {
            config,
            state: AtomicU8::new(BreakerState::Closed as u8),
            machine: Mutex::new(Machine::new(config, Micros::from(deadline))),
        }
    }

    pub(crate) fn state(&self) -> BreakerState {
        match self.state.load(Ordering::Relaxed) {
            0 => BreakerState::Closed,
            1 => BreakerState::HalfOpen,
            _ => BreakerState::Open,
        }
    }

    /// The longest time that the server may be unreachable after a failure.
    pub(crate) fn unreachable_max(&self) -> Duration {
        self.machine().unreachable_max.into()
    }

    /// The number of state changes.
    pub(crate) fn changes(&self) -> u64 {
        self.machine().changes
    }

    /// True if a call may be made now. If a trial is due, this call is it.
    pub(crate) fn try_acquire(&self, now: Timestamp) -> bool {
        match (self.state(), self.config.open_for) {
            (BreakerState::Closed, _) => true,
            (_, OpenFor::Auto) => false,
            (_, OpenFor::Fixed(_)) => self.change(|machine| machine.try_acquire(now)),
        }
    }

    /// True if no call may be made now. Unlike [`Breaker::try_acquire`] it starts no trial.
    pub(crate) fn is_open(&self, now: Timestamp) -> bool {
        match (self.state(), self.config.open_for) {
            (BreakerState::Closed, _) => false,
            (_, OpenFor::Auto) => true,
            (_, OpenFor::Fixed(_)) => !self.machine().may_probe(now),
        }
    }

    /// Records the result of a call. True if the server must be probed from now on.
    pub(crate) fn record(&self, result: CallResult, now: Timestamp) -> bool {
        self.change(|machine| {
            let was_closed = machine.state == State::Closed;
            machine.record(result, now);
            was_closed && machine.state != State::Closed && machine.config.open_for == OpenFor::Auto
        })
    }

    /// Records the result of a probe. False once the breaker has closed.
    pub(crate) fn record_probe(&self, result: CallResult, now: Timestamp) -> bool {
        self.change(|machine| {
            machine.record_probe(result, now);
            machine.state != State::Closed
        })
    }

    fn change<T>(&self, apply: impl FnOnce(&mut Machine) -> T) -> T {
        let mut machine = self.machine();
        let outcome = apply(&mut machine);
        let state = match machine.state {
            State::Closed => BreakerState::Closed,
            State::Open { probes_ok: 0, .. } => BreakerState::Open,
            State::Open { .. } | State::HalfOpen(_) => BreakerState::HalfOpen,
        };
        self.state.store(state as u8, Ordering::Relaxed);
        outcome
    }

    fn machine(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Machine {
    fn new(config: BreakerConfig, deadline: Micros) -> Self {
        // As long as the remaining failures would take.
        let allowed = u64::from(config.failures.saturating_sub(1)).saturating_mul(deadline.get());
        Self {
            config,
            unreachable_max: UNREACHABLE_MAX.max(Micros::new(allowed)),
            state: State::Closed,
            consecutive: (0, Timestamp::EPOCH),
            second: (Timestamp::EPOCH, 0, 0),
            unreachable: (Micros::ZERO, Timestamp::EPOCH),
            probes_needed: PROBES_MIN,
            closed_at: None,
            changes: 0,
        }
    }

    fn may_probe(&self, now: Timestamp) -> bool {
        match (self.state, self.config.open_for) {
            (State::Closed, _) => true,
            (State::Open { .. }, OpenFor::Auto) => false,
            (State::Open { since, .. }, OpenFor::Fixed(duration)) => now >= since + duration,
            (State::HalfOpen(since), _) => now >= since + TRIAL_TIMEOUT,
        }
    }

    fn try_acquire(&mut self, now: Timestamp) -> bool {
        let allowed = self.may_probe(now);
        if allowed && self.state != State::Closed {
            self.state = State::HalfOpen(now);
        }
        allowed
    }

    fn record(&mut self, result: CallResult, now: Timestamp) {
        match (self.state, result) {
            (State::Closed, result) => {
                if self.should_trip(result, now) {
                    self.open(now);
                }
            }
            (State::HalfOpen(_), CallResult::Ok) => self.close(now),
            (State::HalfOpen(_), CallResult::Failed | CallResult::Unreachable) => self.state = open_state(now),
            // The call started before.
            (State::Open { .. }, _) => {}
        }
    }

    fn record_probe(&mut self, result: CallResult, now: Timestamp) {
        if let State::Open { since, probes_ok } = self.state {
            match result {
                CallResult::Failed | CallResult::Unreachable => self.state = open_state(now),
                CallResult::Ok if probes_ok + 1 >= self.probes_needed => self.close(now),
                CallResult::Ok => {
                    self.state = State::Open {
                        since,
                        probes_ok: probes_ok + 1,
                    }
                }
            }
        }
    }

    /// Counts a call. True if that opens the breaker.
    fn should_trip(&mut self, result: CallResult, now: Timestamp) -> bool {
        if now >= self.second.0 + SECOND {
            self.second = (now, 0, 0);
            self.unreachable.0 = Micros::ZERO;
        }
        let reopened = self.opened_recently(now);
        let (_, calls, failed) = &mut self.second;
        let (failures, first) = &mut self.consecutive;
        let is_first = *failures == 0 || now > *first + self.config.within;
        if is_first && result != CallResult::Ok {
            (*failures, *first) = (0, now);
        }
        match result {
            CallResult::Ok => {
                *calls = calls.saturating_add(1);
                self.consecutive = (0, now);
            }
            CallResult::Failed => {
                *calls = calls.saturating_add(1);
                *failed = failed.saturating_add(1);
                *failures = failures.saturating_add(1);
                self.unreachable.1 = now;
            }
            CallResult::Unreachable if is_first => {
                *failures = 1;
                self.unreachable.1 = now;
            }
            CallResult::Unreachable => {
                let (unreachable, last_seen) = &mut self.unreachable;
                *unreachable = Micros::new(unreachable.get() + now.since(*last_seen).get());
                *last_seen = now;
                let times = match reopened {
                    true => UNREACHABLE_AFTER_REOPEN_MAX,
                    false => UNREACHABLE_PER_SECOND_MAX,
                };
                let max = Micros::new(self.unreachable_max.get().saturating_mul(times));
                if now >= *first + self.unreachable_max || *unreachable >= max {
                    return true;
                }
            }
        }
        let too_many_failed =
            *calls >= CALLS_MIN && failed.saturating_mul(100) >= calls.saturating_mul(FAILED_PERCENT_MAX);
        self.consecutive.0 >= self.config.failures || too_many_failed
    }

    /// True if it was open until a short time ago.
    fn opened_recently(&self, now: Timestamp) -> bool {
        self.closed_at.is_some_and(|closed_at| now < closed_at + REOPEN_WINDOW)
    }

    fn open(&mut self, now: Timestamp) {
        self.probes_needed = match self.opened_recently(now) {
            true => (self.probes_needed * 2).min(PROBES_MAX),
            false => PROBES_MIN,
        };
        self.state = open_state(now);
        self.changes += 1;
    }

    fn close(&mut self, now: Timestamp) {
        self.state = State::Closed;
        self.consecutive = (0, now);
        self.second = (now, 0, 0);
        self.unreachable = (Micros::ZERO, now);
        self.closed_at = Some(now);
        self.changes += 1;
    }
}

const fn open_state(now: Timestamp) -> State {
    State::Open {
        since: now,
        probes_ok: 0,
    }
}

#[cfg(test)]
mod tests;
