//! Whether a server is worth asking. One that failed again and again is left alone, so that nobody waits for it, until
//! probes in the background show that it answers.
//!
//! Time is an argument. What is noted are calls, not requests: those who went together in one that failed are one failure.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tollgate_core::{Micros, Timestamp};

/// When a server is left alone, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breaking {
    /// After so many calls in a row that failed.
    pub failures: u32,
    /// Within this time, or they do not count as a row.
    pub within: Micros,
    /// Until when.
    pub open_for: OpenFor,
}

/// How long a server that failed is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenFor {
    /// Until it answers probes in the background. No request is risked.
    Auto,
    /// So long; then one request tries.
    Fixed(Micros),
}

/// What a breaker lets through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BreakerState {
    /// All.
    Closed = 0,
    /// Nothing yet, but a probe was answered; or one request, to see how it goes.
    HalfOpen = 1,
    /// Nothing.
    Open = 2,
}

/// How a call went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Went {
    Well,
    /// It failed, or took too long.
    Badly,
    /// It was not made: there was no connection.
    Unreached,
}

/// Of so many calls in a second, this share may not fail: in percent.
const CALLS: u32 = 20;
const SHARE: u32 = 50;
const SECOND: Micros = Micros::from_secs(1);

/// How long a server may be out of reach after something went wrong. A connection that did not answer once is given up, and
/// another takes some round trips: that is one failure and not one for each call that finds none meanwhile. It is enough for
/// a server that stood still for 50 ms, and lets one that is away be noticed within 100 ms.
const REACHED_WITHIN: Micros = Micros::from_millis(60);

/// How often it may be out of reach for so long in one second, and how often soon after it was left alone. Each time costs a few
/// who wait for it in vain.
const UNREACHED_MOST: u64 = 2;
const UNREACHED_MOST_AGAIN: u64 = 1;

/// How many probes in a row must be answered, and the most it can come to: twice as many each time that the server fails
/// again soon after. So a link that comes and goes is seldom trusted, and one that was away once soon.
const PROBES: u32 = 2;
const PROBES_MOST: u32 = 8;
const SOON: Micros = Micros::from_secs(10);

/// How long one request may try before another does: it may have been left by whoever made it.
const TRY: Micros = Micros::from_secs(1);

/// A breaker, for many threads.
#[derive(Debug)]
pub(super) struct Breaker {
    breaking: Breaking,
    /// What `machine` is in, for those who only want to know.
    state: AtomicU8,
    machine: Mutex<Machine>,
}

#[derive(Debug)]
struct Machine {
    breaking: Breaking,
    /// How long the server may be out of reach after something went wrong.
    patience: Micros,
    state: State,
    /// Failures in a row, and when the first of them was.
    row: (u32, Timestamp),
    /// This second: when it began, its calls, and those that failed.
    second: (Timestamp, u32, u32),
    /// For how much of this second the server was out of reach, and when that was last seen.
    unreached: (Micros, Timestamp),
    /// Probes in a row that close it.
    needed: u32,
    closed_at: Option<Timestamp>,
    changes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed,
    /// With so many probes answered.
    Open {
        since: Timestamp,
        answered: u32,
    },
    /// One request tries, since then.
    Trying(Timestamp),
}

impl Default for Breaking {
    fn default() -> Self {
        Self {
            failures: 5,
            within: Micros::from_secs(10),
            open_for: OpenFor::Auto,
        }
    }
}

impl BreakerState {
    /// As answers write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::HalfOpen => "half_open",
            Self::Open => "open",
        }
    }
}

impl Breaker {
    /// `deadline`: how long a call may take.
    pub(super) fn new(breaking: Breaking, deadline: Duration) -> Self {
        Self {
            breaking,
            state: AtomicU8::new(BreakerState::Closed as u8),
            machine: Mutex::new(Machine::new(breaking, Micros::from(deadline))),
        }
    }

    pub(super) fn state(&self) -> BreakerState {
        match self.state.load(Ordering::Relaxed) {
            0 => BreakerState::Closed,
            1 => BreakerState::HalfOpen,
            _ => BreakerState::Open,
        }
    }

    /// How long the server may be out of reach after something went wrong.
    pub(super) fn patience(&self) -> Duration {
        self.machine().patience.into()
    }

    /// How often it has opened or closed.
    pub(super) fn changes(&self) -> u64 {
        self.machine().changes
    }

    /// Whether a call may be made now. Where one request is to try, the first that asks is it.
    pub(super) fn lets_pass(&self, now: Timestamp) -> bool {
        match (self.state(), self.breaking.open_for) {
            (BreakerState::Closed, _) => true,
            (_, OpenFor::Auto) => false,
            (_, OpenFor::Fixed(_)) => self.change(|machine| machine.lets_pass(now)),
        }
    }

    /// Whether nobody may ask just now. Unlike [`Breaker::lets_pass`] it chooses nobody to try.
    pub(super) fn is_shut(&self, now: Timestamp) -> bool {
        match (self.state(), self.breaking.open_for) {
            (BreakerState::Closed, _) => false,
            (_, OpenFor::Auto) => true,
            (_, OpenFor::Fixed(_)) => !self.machine().may_try(now),
        }
    }

    /// Notes how a call went. True if the server is to be probed from now on.
    pub(super) fn note(&self, went: Went, now: Timestamp) -> bool {
        self.change(|machine| {
            let was_closed = machine.state == State::Closed;
            machine.note(went, now);
            was_closed && machine.state != State::Closed && machine.breaking.open_for == OpenFor::Auto
        })
    }

    /// Notes how a probe went. False if there is nothing to probe any more.
    pub(super) fn note_probe(&self, went: Went, now: Timestamp) -> bool {
        self.change(|machine| {
            machine.note_probe(went, now);
            machine.state != State::Closed
        })
    }

    fn change<T>(&self, by: impl FnOnce(&mut Machine) -> T) -> T {
        let mut machine = self.machine();
        let told = by(&mut machine);
        let state = match machine.state {
            State::Closed => BreakerState::Closed,
            State::Open { answered: 0, .. } => BreakerState::Open,
            State::Open { .. } | State::Trying(_) => BreakerState::HalfOpen,
        };
        self.state.store(state as u8, Ordering::Relaxed);
        told
    }

    fn machine(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Machine {
    fn new(breaking: Breaking, deadline: Micros) -> Self {
        // As long as the failures that are still allowed would have taken.
        let allowed = u64::from(breaking.failures.saturating_sub(1)).saturating_mul(deadline.get());
        Self {
            breaking,
            patience: REACHED_WITHIN.max(Micros::new(allowed)),
            state: State::Closed,
            row: (0, Timestamp::EPOCH),
            second: (Timestamp::EPOCH, 0, 0),
            unreached: (Micros::ZERO, Timestamp::EPOCH),
            needed: PROBES,
            closed_at: None,
            changes: 0,
        }
    }

    fn may_try(&self, now: Timestamp) -> bool {
        match (self.state, self.breaking.open_for) {
            (State::Closed, _) => true,
            (State::Open { .. }, OpenFor::Auto) => false,
            (State::Open { since, .. }, OpenFor::Fixed(long)) => now >= since + long,
            (State::Trying(since), _) => now >= since + TRY,
        }
    }

    fn lets_pass(&mut self, now: Timestamp) -> bool {
        let may = self.may_try(now);
        if may && self.state != State::Closed {
            self.state = State::Trying(now);
        }
        may
    }

    fn note(&mut self, went: Went, now: Timestamp) {
        match (self.state, went) {
            (State::Closed, went) => {
                if self.is_too_much(went, now) {
                    self.open(now);
                }
            }
            (State::Trying(_), Went::Well) => self.close(now),
            (State::Trying(_), Went::Badly | Went::Unreached) => self.state = shut(now),
            // It began before.
            (State::Open { .. }, _) => {}
        }
    }

    fn note_probe(&mut self, went: Went, now: Timestamp) {
        if let State::Open { since, answered } = self.state {
            match went {
                Went::Badly | Went::Unreached => self.state = shut(now),
                Went::Well if answered + 1 >= self.needed => self.close(now),
                Went::Well => {
                    self.state = State::Open {
                        since,
                        answered: answered + 1,
                    }
                }
            }
        }
    }

    /// Counts a call, and says whether that is one failure too many.
    fn is_too_much(&mut self, went: Went, now: Timestamp) -> bool {
        if now >= self.second.0 + SECOND {
            self.second = (now, 0, 0);
            self.unreached.0 = Micros::ZERO;
        }
        let is_again = self.was_left_alone(now);
        let (_, calls, failed) = &mut self.second;
        let (failures, first) = &mut self.row;
        let is_first = *failures == 0 || now > *first + self.breaking.within;
        if is_first && went != Went::Well {
            (*failures, *first) = (0, now);
        }
        match went {
            Went::Well => {
                *calls = calls.saturating_add(1);
                self.row = (0, now);
            }
            Went::Badly => {
                *calls = calls.saturating_add(1);
                *failed = failed.saturating_add(1);
                *failures = failures.saturating_add(1);
                self.unreached.1 = now;
            }
            Went::Unreached if is_first => {
                *failures = 1;
                self.unreached.1 = now;
            }
            Went::Unreached => {
                let (unreached, seen) = &mut self.unreached;
                *unreached = Micros::new(unreached.get() + now.since(*seen).get());
                *seen = now;
                let times = match is_again {
                    true => UNREACHED_MOST_AGAIN,
                    false => UNREACHED_MOST,
                };
                let most = Micros::new(self.patience.get().saturating_mul(times));
                if now >= *first + self.patience || *unreached >= most {
                    return true;
                }
            }
        }
        let is_share = *calls >= CALLS && failed.saturating_mul(100) >= calls.saturating_mul(SHARE);
        self.row.0 >= self.breaking.failures || is_share
    }

    /// Whether it was left alone until a short time ago.
    fn was_left_alone(&self, now: Timestamp) -> bool {
        self.closed_at.is_some_and(|closed_at| now < closed_at + SOON)
    }

    fn open(&mut self, now: Timestamp) {
        self.needed = match self.was_left_alone(now) {
            true => (self.needed * 2).min(PROBES_MOST),
            false => PROBES,
        };
        self.state = shut(now);
        self.changes += 1;
    }

    fn close(&mut self, now: Timestamp) {
        self.state = State::Closed;
        self.row = (0, now);
        self.second = (now, 0, 0);
        self.unreached = (Micros::ZERO, now);
        self.closed_at = Some(now);
        self.changes += 1;
    }
}

const fn shut(now: Timestamp) -> State {
    State::Open {
        since: now,
        answered: 0,
    }
}

#[cfg(test)]
mod tests;
